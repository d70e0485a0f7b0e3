//! Why there is nothing to see of a server, as one line for a person.

use tandem_node::StrangerText;
use tandem_server::admin::AdminAddr;

/// Why an admin listener says nothing that can be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopError {
    /// An admin listener does not answer.
    #[error("{address}: {error}; is there a proxy or an origin with --admin {address}?")]
    NoAnswer {
        /// The address.
        address: AdminAddr,
        /// The cause.
        error: tandem_net::admin::ClientError,
    },
    /// A server takes no new connections.
    #[error(
        "{address}: the server takes no new connections: it starts or drains, memory is short, or a thread is stuck; \
         its log says more"
    )]
    NotReady {
        /// The address of its admin listener.
        address: AdminAddr,
    },
    /// What answers is no server of this version.
    #[error("{address}: the answer is not that of a Tandem server of this version: {error}")]
    ForeignAnswer {
        /// The address.
        address: AdminAddr,
        /// The cause.
        error: StrangerText,
    },
}
