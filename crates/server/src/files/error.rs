//! What is wrong with a file that a setting names, as one line for a person.

use std::{fs, io, path::PathBuf};

use tandem_files::pvd::PvdError;
use tandem_node::proxy::JwtKeysError;

/// A file that a setting names cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A file that is needed cannot be read.
    #[error("cannot read {}: {error}", file.display())]
    Unreadable {
        /// Which file.
        file: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A file is too long to be of the expected kind.
    #[error("{} has {len} bytes; allowed: at most {max}", file.display())]
    TooLong {
        /// Which file.
        file: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// A line of the file is wrong.
    #[error("{}:{line}: {}{}{reason}", file.display(), prefix(.key.as_deref()), prefix(.seen.as_deref()))]
    InFile {
        /// Which file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Key, with its table.
        key: Option<String>,
        /// The value in the file.
        seen: Option<String>,
        /// The error, and what is allowed.
        reason: String,
    },
    /// A certificate, a key or their combination cannot be used.
    #[error("{}: {reason}", file.display())]
    Pem {
        /// Which file.
        file: PathBuf,
        /// The error, and what is allowed.
        reason: String,
    },
    /// A line of a file with tokens, keys or a secret path is wrong. The error does not show the line, which is a
    /// secret.
    #[error("{}:{line}: {reason}", file.display())]
    Token {
        /// Which file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The error, and what is allowed.
        reason: String,
    },
    /// A token file without a token.
    #[error("{} has no token; write one on its own line", file.display())]
    NoToken {
        /// Which file.
        file: PathBuf,
    },
    /// The keys of an issuer of JSON Web Tokens cannot be used.
    #[error("{}: {error}", file.display())]
    Jwks {
        /// Which file.
        file: PathBuf,
        /// The error, and what is allowed.
        error: JwtKeysError,
    },
    /// A line of a file with PEPs is wrong. The error does not show the line, which is a secret.
    #[error("{}:{line}: {reason}", file.display())]
    Pep {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// The configuration document of a proxy (PvD) cannot be used.
    #[error("{}: {error}", file.display())]
    Pvd {
        /// Which file.
        file: PathBuf,
        /// The error.
        error: PvdError,
    },
    /// A folder does not exist.
    #[error("{what} = {}: no such folder; create it first, or name another one", path.display())]
    NoFolder {
        /// Name of the flag and key.
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// A file that would be overwritten.
    #[error(
        "{} exists already, and nothing was written: use it, name another folder, or remove it first",
        file.display()
    )]
    Exists {
        /// Which file.
        file: PathBuf,
    },
}

impl FileError {
    /// Whether a file does not exist or is empty, so that another program may be about to write it.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Unreadable { error, .. } => error.kind() == io::ErrorKind::NotFound,
            Self::Pem { file, .. } | Self::NoToken { file } => {
                fs::metadata(file).is_ok_and(|metadata| metadata.len() == 0)
            }
            _ => false,
        }
    }
}

fn prefix(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!("{text}: "))
}
