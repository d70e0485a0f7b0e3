//! Why a certificate, or TLS with it, cannot be used.

use crate::{files::FileError, process::WriteError};

/// Why there is no TLS with these settings.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file with a certificate or a key cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file with a certificate or a key could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// TLS refuses the settings.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A name for which no certificate can be made.
    #[error("name = {name:?} is neither a host name nor an IP address")]
    Name {
        /// The name.
        name: String,
    },
}
