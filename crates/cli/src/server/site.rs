//! The settings of a proxy that is a web site to everybody who has no right to it.

use std::path::PathBuf;

use clap::ValueHint;
use tandem_server::site::{SiteSetup, SiteSource};

use crate::error::ConfigError;

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct SiteSettings {
    /// Be a web site to everybody who has no right to the proxy: the files of this folder, or what the HTTP server at
    /// this URL has (docs/guide/site.md)
    #[arg(long, value_name = "FOLDER|URL", env = "TANDEM_SITE", value_hint = ValueHint::AnyPath)]
    site: Option<SiteSource>,

    /// File with a path below which the proxy is, so that only who knows it can ask for a tunnel; if it does not exist,
    /// a path is made and written there
    #[arg(long, value_name = "FILE", env = "TANDEM_SECRET_PATH")]
    secret_path: Option<PathBuf>,

    /// Serve the site over HTTP/1.1 and TCP too, at the same port [default: true]
    #[arg(long, value_name = "BOOL", env = "TANDEM_HTTP1",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    http1: Option<bool>,
}

impl SiteSettings {
    /// `access` is the setting that decides who may use the proxy, besides a secret path.
    pub(crate) fn check(self, access: Option<&'static str>) -> Result<SiteSetup, ConfigError> {
        let Self { site, secret_path, http1 } = self;
        let (first, second) = ("site", "token-file FILE, jwks FILE or secret-path FILE");
        match (&site, access) {
            (None, _) if http1 == Some(true) => Err(ConfigError::Incomplete {
                first: "http1",
                second: "site FOLDER",
                reason: "a proxy speaks HTTP/3 only",
            }),
            (None, _) if secret_path.is_some() => Err(ConfigError::Incomplete {
                first: "secret-path",
                second: "site FOLDER",
                reason: "without a site, the proxy tells everybody that it is one",
            }),
            (Some(_), Some("client-ca")) => Err(ConfigError::Conflict {
                first,
                second: "client-ca",
                reason: "a web site asks its visitors for no certificate",
            }),
            (Some(_), Some("allow-anyone")) => Err(ConfigError::Conflict {
                first,
                second: "allow-anyone",
                reason: "then everybody would find the proxy",
            }),
            (Some(_), None) if secret_path.is_none() => Err(ConfigError::Incomplete {
                first,
                second,
                reason: "a site hides the proxy from those who have no right to it",
            }),
            _ => {
                let http1 = site.is_some() && http1.unwrap_or(true);
                Ok(SiteSetup { site, secret_path, http1 })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_hides_the_proxy_from_somebody() {
        let check = |site: Option<&str>, path: Option<&str>, access| {
            let site = site.map(|site| site.parse().unwrap());
            let secret_path = path.map(PathBuf::from);
            let settings = SiteSettings { site, secret_path, http1: None };
            settings.check(access).map(|it| it.site.is_some()).map_err(|error| error.to_string())
        };
        for access in [None, Some("token-file"), Some("client-ca"), Some("allow-anyone")] {
            assert_eq!(check(None, None, access), Ok(false), "{access:?}");
        }
        assert_eq!(check(Some("www"), None, Some("token-file")), Ok(true));
        assert_eq!(check(Some("www"), Some("path"), Some("jwks")), Ok(true));
        assert_eq!(check(Some("http://[::1]:8080"), Some("path"), None), Ok(true));
        for (site, path, access, words) in [
            (Some("www"), None, None, "site needs token-file FILE, jwks FILE or secret-path FILE"),
            (Some("www"), Some("path"), Some("client-ca"), "client-ca"),
            (Some("www"), Some("path"), Some("allow-anyone"), "allow-anyone"),
            (None, Some("path"), Some("token-file"), "secret-path needs site FOLDER"),
        ] {
            let error = check(site, path, access).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
