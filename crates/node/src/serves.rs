//! What a program does with a node that serves, whichever node it is.

use std::time::Instant;

use crate::{BusyNodes, node::Node, quic::ServerTls, status::Status};

/// A node that serves: a [`Proxy`](crate::Proxy) or an [`Origin`](crate::Origin).
pub trait Serves: Node {
    /// Replaces the certificate, the key and the authentication of clients. They apply to new connections. The secret
    /// of stateless resets stays, because the peers of open connections know what follows from it.
    fn set_tls(&mut self, tls: &ServerTls);

    /// Tells the node that another process at the address gets new connections from now on. It goes on for those that
    /// it has. It is no longer busy when it has been idle for [`Limits::QUIET`](crate::limits::Limits::QUIET), or after
    /// [`Limits::hand_over`](crate::limits::Limits::hand_over).
    fn hand_over(&mut self, now: Instant, busy: BusyNodes);

    /// Tells the node that the other process has died, so that it gets new connections again.
    fn take_back(&mut self);

    /// The state of the node, with this number of its busiest connections.
    fn status(&mut self, busiest: usize) -> Status;
}
