//! The web site of a server: a folder, or an HTTP server behind it
//! ([ADR 83](../../../../docs/design/adr/0083-a-proxy-that-is-a-site.md)).

mod tcp;

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::uri::PathAndQuery;
use serde::Serialize;
use serde_with::SerializeDisplay;
use tandem_net::{
    Files,
    site::{SiteContent, Upstream, UpstreamUrlError},
};
use tandem_node::{StrangerText, origin::Content, proxy::SecretPath};

pub(crate) use self::tcp::SiteOverTcp;
pub use self::tcp::TcpError;
use crate::{
    error::SetupError,
    files::FileError,
    process::{WriteError, say, secret},
    tls::random,
};

/// Where a site comes from.
#[derive(Clone, Debug, SerializeDisplay)]
pub enum SiteSource {
    /// The files below a folder.
    Folder(PathBuf),
    /// An HTTP server.
    Upstream(Box<Upstream>),
}

impl FromStr for SiteSource {
    type Err = UpstreamUrlError;

    fn from_str(text: &str) -> Result<Self, UpstreamUrlError> {
        if text.contains("://") {
            text.parse().map(|upstream| Self::Upstream(Box::new(upstream)))
        } else {
            Ok(Self::Folder(text.into()))
        }
    }
}

impl From<PathBuf> for SiteSource {
    fn from(folder: PathBuf) -> Self {
        Self::Folder(folder)
    }
}

impl fmt::Display for SiteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Upstream(upstream) => upstream.fmt(f),
        }
    }
}

impl SiteSource {
    /// What nodes know of the source.
    pub fn content(&self) -> Content {
        match self {
            Self::Folder(_) => Content::Folder,
            Self::Upstream(_) => Content::Upstream,
        }
    }

    /// The same source, whose server is asked for this path to find out whether it answers.
    #[must_use]
    pub(crate) fn with_health(self, health: Option<&HealthPath>) -> Self {
        match (self, health) {
            (Self::Upstream(upstream), Some(HealthPath(path))) => {
                Self::Upstream(Box::new(upstream.with_health(path.clone())))
            }
            (source, _) => source,
        }
    }

    /// Opens the source. `what` is the name of the setting.
    pub(crate) fn open(&self, what: &'static str) -> Result<SiteContent, FileError> {
        match self {
            Self::Folder(folder) if !folder.is_dir() => {
                Err(FileError::NoFolder { what, path: folder.clone() })
            }
            Self::Folder(folder) => {
                let unreadable = |error| FileError::Unreadable { file: folder.clone(), error };
                Files::below(folder).map(SiteContent::Folder).map_err(unreadable)
            }
            Self::Upstream(upstream) => Ok(SiteContent::Upstream(upstream.clone())),
        }
    }
}

/// What an HTTP server is asked for to find out whether it answers: an absolute path, perhaps with a query.
#[derive(Clone, Debug, PartialEq, Eq, SerializeDisplay)]
pub struct HealthPath(PathAndQuery);

/// The error for a text that is not an absolute path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no path on a server; allowed: a path that begins with /, such as /health")]
pub struct HealthPathError {
    text: StrangerText,
}

impl FromStr for HealthPath {
    type Err = HealthPathError;

    fn from_str(text: &str) -> Result<Self, HealthPathError> {
        let path = text.parse().ok().filter(|_| text.starts_with('/'));
        path.map(Self).ok_or_else(|| HealthPathError { text: text.into() })
    }
}

impl fmt::Display for HealthPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The site that a proxy is to everybody who has no right to it. By default it is none.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SiteSetup {
    /// Where the site comes from. `None`: the proxy tells everybody that it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteSource>,
    /// The file with the path below which the proxy's templates are. It is made if it does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_path: Option<PathBuf>,
    /// Whether the site is served over HTTP/1.1 and TCP too.
    pub http1: bool,
}

/// A secret path that is in force, and the file to which it has yet to be written.
#[derive(Clone, Debug)]
pub(crate) struct NamedPath {
    pub(crate) path: SecretPath,
    unwritten: Option<PathBuf>,
}

impl NamedPath {
    /// Reads the path of a file, or makes one if there is no such file. Writes nothing.
    pub(crate) fn read(file: &Path) -> Result<Self, SetupError> {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = BASE64_URL_SAFE_NO_PAD.encode(random::<24>()?);
                let path = SecretPath::parse(&made).expect("it has 32 characters out of these");
                return Ok(Self { path, unwritten: Some(file.to_owned()) });
            }
            Err(error) => {
                return Err(FileError::Unreadable { file: file.to_owned(), error }.into());
            }
        };
        secret::warn_if_shared(file, "the secret path");
        let mut lines = tandem_files::lines(&text);
        let wrong = |line: usize, reason: &str| {
            let (file, reason) = (file.to_owned(), reason.to_owned());
            FileError::Token { file, line, reason }
        };
        let (line, path) = lines.next().ok_or_else(|| wrong(1, "there is no secret path in it"))?;
        if let Some((line, _)) = lines.next() {
            return Err(wrong(line, "there is a second secret path in it").into());
        }
        let path = SecretPath::parse(path).map_err(|error| wrong(line, &error.to_string()))?;
        Ok(Self { path, unwritten: None })
    }

    /// Writes a path that was made, and says where it is.
    pub(crate) fn keep(&self) -> Result<(), WriteError> {
        let Some(file) = &self.unwritten else { return Ok(()) };
        secret::write_new(file, format!("{}\n", self.path.reveal()), secret::OWNER_ONLY)?;
        let file = file.display();
        say(format_args!(
            "wrote a new secret path to {file}; clients use --via https://HOST/PATH with it"
        ));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_path_is_made_once_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("path");
        let made = NamedPath::read(&file).unwrap();
        assert!(!file.exists(), "reading writes nothing");
        made.keep().unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let read = NamedPath::read(&file).unwrap();
        assert_eq!(made.path, read.path);
        read.keep().unwrap();
        assert_ne!(made.path, NamedPath::read(&folder.path().join("other")).unwrap().path);
        assert!(!format!("{made:?}").contains(made.path.reveal()));
    }

    #[test]
    fn a_wrong_secret_path_is_named_and_never_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, words) in [
            ("", ":1: there is no secret path"),
            ("# comment\nshort\n", ":2: a secret path has 22 to 200"),
            ("0123456789012345678901/\n", ":1: a secret path has 22 to 200"),
            ("0123456789012345678901\nabcdefghijklmnopqrstuv\n", ":2: there is a second"),
        ] {
            fs::write(file.path(), text).unwrap();
            let error = NamedPath::read(file.path()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert!(!error.contains("short") && !error.contains("0123"), "{error}");
        }
    }

    #[test]
    fn a_path_to_ask_for_begins_with_a_slash() {
        for (text, is_path) in [
            ("/health", true),
            ("/", true),
            ("/a?b=c", true),
            ("health", false),
            ("*", false),
            ("/a b", false),
            ("", false),
        ] {
            assert_eq!(text.parse::<HealthPath>().is_ok(), is_path, "{text}");
        }
    }

    #[test]
    fn a_site_is_a_folder_or_a_server() {
        for (text, is_folder) in [
            ("www", Some(true)),
            ("./a:b", Some(true)),
            ("http://[::1]:8080", Some(false)),
            ("https://a", None),
            ("ftp://a", None),
        ] {
            let source = text.parse::<SiteSource>().ok();
            assert_eq!(
                source.as_ref().map(|it| matches!(it, SiteSource::Folder(_))),
                is_folder,
                "{text}"
            );
            assert!(source.is_none_or(|it| it.to_string() == text), "{text}");
        }
    }
}
