//! QUIC as the rest of the node sees it. All knowledge of noq stays below this module.

mod config;
mod connection;
mod endpoint;
#[cfg(test)]
mod tests;

pub use config::{ClientTls, ConfigError, Mtu, QlogDir, ResetSecret, ServerTls, Transport};
pub(crate) use connection::{
    Connection, Direction, PathEstimate, Read, SendDatagram, StreamGone, Write,
};
pub(crate) use endpoint::{Closed, Endpoint, Event, earliest};
pub(crate) use tandem_congestion::{DatagramId, Delivery};

/// Names a connection of one endpoint. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// QUIC stream ID (RFC 9000 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamId(pub(crate) u64);

impl StreamId {
    /// Whether data flows both ways on it (RFC 9000 §2.1: the second bit is clear).
    pub(crate) const fn is_bidirectional(self) -> bool {
        self.0 & 0b10 == 0
    }

    /// Whether the client opened it (RFC 9000 §2.1: the first bit is clear).
    pub(crate) const fn is_client_initiated(self) -> bool {
        self.0 & 0b01 == 0
    }
}

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
