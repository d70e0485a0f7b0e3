//! The settings of certificates by ACME.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use clap::builder::Resettable;
use tandem_server::tls::{AcmeSetup, TlsError};
use url::{Host, Url};

use crate::error::ConfigError;

/// HTTP's port. ACME servers ask there for the proof (RFC 8555 §8.3).
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 80);

/// Flags of a server, and keys of its file.
#[derive(Debug, Default, clap::Args)]
#[expect(clippy::struct_field_names, reason = "the names are those of the flags")]
pub(crate) struct AcmeSettings {
    /// Get and renew a certificate for this name by ACME (RFC 8555), with --acme-folder; who sets it accepts the terms
    /// of the certificate authority, which must reach this machine at TCP port 80; repeatable
    #[arg(long, value_name = "NAME", env = "TANDEM_ACME_DOMAIN", value_delimiter = ',',
          help_heading = Resettable::Reset)]
    acme_domain: Vec<String>,

    /// Folder for the certificate and the account at the certificate authority, which only its owner can read
    #[arg(long, value_name = "DIR", env = "TANDEM_ACME_FOLDER", help_heading = Resettable::Reset)]
    acme_folder: Option<PathBuf>,

    /// Address for mail from the certificate authority
    #[arg(long, value_name = "MAIL", env = "TANDEM_ACME_CONTACT")]
    acme_contact: Option<String>,

    #[arg(
        long, value_name = "URL", env = "TANDEM_ACME_DIRECTORY",
        help = format!("URL of the ACME directory [default: {}]", AcmeSetup::DIRECTORY)
    )]
    acme_directory: Option<String>,

    /// CA that has signed the certificate of the ACME directory itself, in PEM [default: those of the system]
    #[arg(long, value_name = "FILE", env = "TANDEM_ACME_CA")]
    acme_ca: Option<PathBuf>,

    /// Address at which the certificate authority finds the proof, while a certificate is ordered [default: port 80 of
    /// all addresses]
    #[arg(long, value_name = "ADDR", env = "TANDEM_ACME_LISTEN")]
    acme_listen: Option<SocketAddr>,
}

impl AcmeSettings {
    /// `None`: nothing is set.
    pub(crate) fn check(self) -> Result<Option<AcmeSetup>, ConfigError> {
        let Self { acme_domain, acme_folder, acme_contact, acme_directory, acme_ca, acme_listen } =
            self;
        let Some(folder) = acme_folder else {
            let other = [
                ("acme-domain", !acme_domain.is_empty()),
                ("acme-contact", acme_contact.is_some()),
                ("acme-directory", acme_directory.is_some()),
                ("acme-ca", acme_ca.is_some()),
                ("acme-listen", acme_listen.is_some()),
            ];
            let other = other.into_iter().find_map(|(name, is_set)| is_set.then_some(name));
            let reason = "the certificate and the account are kept there";
            return match other {
                Some(first) => {
                    Err(ConfigError::Incomplete { first, second: "acme-folder", reason })
                }
                None => Ok(None),
            };
        };
        if acme_domain.is_empty() {
            let (first, second) = ("acme-folder", "acme-domain");
            let reason = "a certificate is for a name";
            return Err(ConfigError::Incomplete { first, second, reason });
        }
        for name in &acme_domain {
            // The certificate authority checks the rest. It does not issue certificates for addresses by this way.
            if !matches!(Host::parse(name), Ok(Host::Domain(domain)) if domain == *name) {
                return Err(TlsError::Name { name: name.clone() }.into());
            }
        }
        let directory = acme_directory.unwrap_or_else(|| AcmeSetup::DIRECTORY.to_owned());
        if !Url::parse(&directory).is_ok_and(|url| url.scheme() == "https" && url.has_host()) {
            return Err(ConfigError::AcmeDirectory { url: directory });
        }
        Ok(Some(AcmeSetup {
            acme_domain,
            acme_folder: folder,
            acme_contact,
            acme_directory: directory,
            acme_ca,
            acme_listen: acme_listen.unwrap_or(LISTEN),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_folder_belong_together() {
        let check = |domains: &[&str], folder: Option<&str>, directory: Option<&str>| {
            let settings = AcmeSettings {
                acme_domain: domains.iter().map(|&name| name.to_owned()).collect(),
                acme_folder: folder.map(PathBuf::from),
                acme_directory: directory.map(str::to_owned),
                ..AcmeSettings::default()
            };
            settings.check().map(|it| it.is_some()).map_err(|error| error.to_string())
        };
        assert_eq!(check(&[], None, None), Ok(false));
        assert_eq!(check(&["a.example", "b.example"], Some("f"), None), Ok(true));
        for (domains, folder, directory, expected) in [
            (&["a.example"][..], None, None, "acme-domain needs acme-folder"),
            (&[], Some("f"), None, "acme-folder needs acme-domain"),
            (&[], None, Some("https://ca.example/"), "acme-directory needs acme-folder"),
            (&["192.0.2.1"], Some("f"), None, "192.0.2.1"),
            (&["*.a b"], Some("f"), None, "*.a b"),
            (&["a.example"], Some("f"), Some("http://ca.example/"), "http://ca.example/"),
        ] {
            let error = check(domains, folder, directory).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
