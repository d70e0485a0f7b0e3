//! QUIC as the rest of the node sees it. Nothing else in this crate knows noq.

mod config;
mod connection;
mod delivery;
mod demux;
mod endpoint;
#[cfg(test)]
mod tests;

pub use config::{
    ClientTls, ConfigError, LossDetection, Mtu, QlogDir, ResetSecret, ServerTls, Transport,
};
pub(crate) use connection::{
    Connection, Direction, PathEstimate, Read, SendDatagram, StreamGone, Write,
};
pub(crate) use delivery::{DatagramId, Delivery};
pub(crate) use endpoint::{Closed, Endpoint, Event, earliest};

/// Received UDP payloads that are for no connection and get no answer, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnusablePackets {
    /// It ends before the connection IDs of its header do.
    pub too_short: u64,
    /// Its version of QUIC is not spoken here, and it is too small to begin a connection.
    pub unknown_version: u64,
}

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
