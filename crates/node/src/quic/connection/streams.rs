//! What is said of streams and datagrams, and when what has come is looked at.

use bytes::Bytes;

use super::Connection;

/// The direction of data on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Both directions.
    Bidirectional,
    /// Only the direction from the end that opened the stream.
    Unidirectional,
}

/// The result of a write to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// The engine took all bytes.
    Done,
    /// The engine took only a part. An event follows when there is room again.
    Blocked,
}

/// The error for a stream that cannot send any more, because the peer stopped it or because it was
/// reset or finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamGone;

/// The result of sending a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SendDatagram {
    /// The engine took the datagram.
    Taken,
    /// The engine holds a full burst already, so it returns the datagram.
    Blocked(Bytes),
    /// The datagram fits no packet of this connection, or the peer accepts no datagrams.
    TooLarge,
}

impl Connection {
    /// Notes a packet that has arrived. Returns whether the engine's events must be collected before the next one.
    pub(in crate::quic) const fn must_collect(&mut self) -> bool {
        self.receiver.on_packet()
    }

    /// Notes that the engine's events have been collected.
    pub(in crate::quic) const fn on_collected(&mut self) {
        self.receiver.on_collected();
    }
}
