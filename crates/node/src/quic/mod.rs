//! QUIC for the rest of the node. No other module of this crate names the engine, noq.

mod accept;
mod ack_gate;
mod amplification;
mod answers;
mod budget;
mod certificate;
mod config;
mod connection;
mod connection_ids;
mod control;
mod convert;
mod delivery;
mod demux;
mod ecn;
mod endpoint;
mod event;
mod first_size;
mod fleet;
mod header;
mod heaviest;
mod hello;
mod observed;
mod pep;
mod places;
mod qlog;
mod reassembly;
mod receiver;
mod returning;
mod sealed;
mod steering;
mod stream_credit;
#[cfg(test)]
mod tests;
mod undecided;

pub use ack_gate::AckPolicy;
pub(crate) use config::{CONTINUATION_LEN, Generator, rng};
pub use config::{
    ClientTls, ConfigError, DatagramTransport, LossDetection, Mtu, ResetSecret, ServerTls,
    Transport, UnknownDatagramTransport,
};
pub(crate) use connection::{Connection, Direction, PathEstimate, SendDatagram, StreamGone, Write};
pub(crate) use connection_ids::{ConnectionIds, ResetKeys};
pub(crate) use delivery::{DatagramId, Delivery, IN_FLIGHT_MEMORY};
pub(crate) use demux::is_first_of_client;
pub(crate) use endpoint::{Endpoint, earliest};
pub(crate) use event::{Closed, Event};
pub use fleet::{Fleet, FleetError, FleetSecret, Generation, Neighbours};
pub(crate) use header::Header;
pub use heaviest::Heaviest;
pub(crate) use observed::{Layer, Ledger, Tag};
#[cfg(fuzzing)]
pub use pep::model::run as run_pep_listener_model;
pub use pep::{PepAckStats, Peps};
#[cfg(fuzzing)]
pub use places::model::run as run_admission_model;
pub(crate) use qlog::Place;
pub use qlog::QlogFiles;
pub(crate) use receiver::Read;
pub use returning::Returning;
pub use steering::{OtherProcess, Steering, Turn};
pub use tandem_wire::VersionProbe;

/// Received UDP payloads that belong to no connection and get no answer, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnusablePackets {
    /// Payloads that end before the connection IDs of their header do.
    pub too_short: u64,
    /// Payloads that are larger than any that a peer may send.
    pub too_long: u64,
    /// Payloads with a version of QUIC that this node does not speak, and too small to start a
    /// connection.
    pub unknown_version: u64,
    /// Payloads with a connection ID of another thread, process or machine that can have the address
    /// or the keys of this node. Only that one may answer them.
    pub for_another: u64,
    /// Packets of sealed transports that were not authentic, or that came again.
    pub refused: u64,
    /// Payloads that would have got an answer, a stateless reset for instance, if there had not been too many of them.
    pub too_many: u64,
}

/// The ID of a connection of one endpoint. No ID is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// A QUIC stream ID (RFC 9000 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamId(pub(crate) u64);

impl StreamId {
    /// Whether data flows in both directions of the stream (RFC 9000 §2.1: the second bit is
    /// clear).
    pub(crate) const fn is_bidirectional(self) -> bool {
        self.0 & 0b10 == 0
    }

    /// Whether the client opened the stream (RFC 9000 §2.1: the first bit is clear).
    pub(crate) const fn is_client_initiated(self) -> bool {
        self.0 & 0b01 == 0
    }
}

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
