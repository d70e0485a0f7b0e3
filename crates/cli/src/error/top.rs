//! Why there is nothing to see of a server or a client, as one line for a person.

use tandem_node::StrangerText;
use tandem_server::admin::AdminAddr;

/// Why an admin listener says nothing that can be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopError {
    /// An admin listener does not answer.
    #[error("{address}: {error}; is there a proxy, an origin or a client with --admin {address}?")]
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
    /// A client has no tunnel.
    #[error("{address}: the client has no tunnel at present{}", why(.error))]
    NoTunnel {
        /// The address of its admin listener.
        address: AdminAddr,
        /// Why, if it knows.
        error: Option<StrangerText>,
    },
    /// What answers is no server or client of this version.
    #[error(
        "{address}: the answer is not that of a Tandem server or client of this version: {error}"
    )]
    ForeignAnswer {
        /// The address.
        address: AdminAddr,
        /// The cause.
        error: StrangerText,
    },
}

/// A cause at the end of a sentence.
#[expect(clippy::ref_option, reason = "the field of an error is passed as a reference")]
fn why(error: &Option<StrangerText>) -> String {
    error.as_ref().map_or_else(String::new, |error| format!(": {error}"))
}
