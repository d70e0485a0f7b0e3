//! Why a server cannot begin or go on.

use std::net::SocketAddr;

use tandem_node::{error::ClientError, quic};

use crate::{
    admin::ListenError,
    files::FileError,
    process::{SystemError, WriteError},
    site::TcpError,
    takeover::{AddressError, TakeOverError},
    tls::TlsError,
    users::StoreError,
};

/// What a server is told, or finds in its files, is wrong.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A file that a setting names cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no TLS with these settings.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Other hosts could use the proxy without access control, and nothing says that they may.
    #[error(
        "listen = {listen} lets other hosts use this proxy: give --token-file FILE, --jwks FILE, \
         --concealed-keys FILE or --client-ca FILE, or --allow-anyone to serve every client"
    )]
    OpenProxy {
        /// Where it listens.
        listen: SocketAddr,
    },
    /// The operating system refuses something.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The node refuses the settings.
    #[error(transparent)]
    Node(#[from] quic::ConfigError),
}

/// Why a server cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// What it is told is wrong.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A node cannot begin or go on.
    #[error("{error}")]
    Node {
        /// The cause.
        error: ClientError,
    },
    /// It cannot take over from the process that started it.
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
    /// The admin listener cannot be opened.
    #[error(transparent)]
    Admin(#[from] ListenError),
    /// The site cannot be served over TCP.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// The store of what users have used cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The operating system refused something else.
    #[error(transparent)]
    System(#[from] SystemError),
}

impl From<AddressError> for ServeError {
    fn from(error: AddressError) -> Self {
        match error {
            AddressError::Listen { error } => Self::Node { error },
            AddressError::TakeOver(error) => Self::TakeOver(error),
        }
    }
}

impl From<FileError> for ServeError {
    fn from(error: FileError) -> Self {
        Self::Setup(error.into())
    }
}

impl From<TlsError> for ServeError {
    fn from(error: TlsError) -> Self {
        Self::Setup(error.into())
    }
}

impl From<quic::ConfigError> for ServeError {
    fn from(error: quic::ConfigError) -> Self {
        Self::Setup(error.into())
    }
}
