//! The errors of a [`Client`](super::Client) and its flows.

use tandem_node::{
    OsError, StrangerText,
    client::TemplateError,
    error::{ClientError as TunnelError, FlowError},
    proxy::TokenError,
    quic::ConfigError,
};

/// The reason why a client could not connect, or why a flow was not opened, did not take a payload
/// or has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The text is not the URL of a proxy.
    #[error("{url:?} is not the URL of a proxy such as \"https://proxy.example\": {error}")]
    Url {
        /// The text.
        url: StrangerText,
        /// What is wrong with it.
        error: TemplateError,
    },
    /// The text is not a token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The certificates of the CAs cannot be used.
    #[error("the CA certificates cannot be used: {0}")]
    Trust(StrangerText),
    /// The node cannot use these settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The operating system could not start the thread of the client.
    #[error("the thread of the client cannot be started: {0}")]
    Thread(OsError),
    /// The tunnel could not be established or has ended, or the proxy refused or closed the flow.
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
    /// The flow could not be opened, or did not take the payload.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// The program has closed the client.
    #[error("the client was closed")]
    Closed,
}
