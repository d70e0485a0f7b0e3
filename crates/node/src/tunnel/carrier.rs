//! What carries a tunnel: HTTP/3 on one QUIC connection.
//!
//! This is the lower face of the tunnel. Everything that a tunnel asks of its connection is a function
//! here, so that another carrier (HTTP/2 over TCP) has one place to enter.

use std::time::Instant;

use bytes::Bytes;

use crate::{
    h3::{Body, ConnectionError, Session},
    quic::{
        Connection, DatagramId, Delivery, PathEstimate, SendDatagram, StreamGone, StreamId, Write,
    },
};

/// The HTTP/3 session of a tunnel and the QUIC connection below it.
pub(crate) struct Carrier<'a> {
    session: &'a mut Session,
    connection: &'a mut Connection,
}

impl<'a> From<(&'a mut Session, &'a mut Connection)> for Carrier<'a> {
    fn from((session, connection): (&'a mut Session, &'a mut Connection)) -> Self {
        Self { session, connection }
    }
}

impl Carrier<'_> {
    /// Whether the peer takes HTTP Datagrams outside of capsules.
    ///
    /// RFC 9297 §2.1.1: "QUIC DATAGRAM frames MUST NOT be sent until the `SETTINGS_H3_DATAGRAM` setting
    /// has been both sent and received with a value of 1."
    pub(super) fn takes_datagrams(&self) -> bool {
        self.session.peer_settings().is_some_and(|settings| settings.h3_datagram)
    }

    /// Whether the peer said that it takes no HTTP Datagrams outside of capsules.
    pub(super) fn refuses_datagrams(&self) -> bool {
        self.session.peer_settings().is_some_and(|settings| !settings.h3_datagram)
    }

    /// Largest HTTP Datagram that fits a packet now, in bytes; 0 if the peer takes none.
    pub(super) fn max_datagram_size(&mut self) -> usize {
        self.connection.max_datagram_size().unwrap_or(0)
    }

    /// Whether the engine would take a datagram of this size now.
    pub(super) fn has_room_for_datagram(&mut self, len: usize) -> bool {
        self.connection.has_room_for_datagram(len)
    }

    pub(super) fn send_datagram(&mut self, data: Bytes) -> SendDatagram {
        self.connection.send_datagram(data)
    }

    /// Sends a datagram whose delivery [`Carrier::poll_delivery`] reports. `false`: it was not taken.
    pub(super) fn send_tracked_datagram(&mut self, id: DatagramId, data: Bytes) -> bool {
        self.connection.send_tracked_datagram(id, data)
    }

    pub(super) fn poll_delivery(&mut self) -> Option<(DatagramId, Delivery)> {
        self.connection.poll_delivery()
    }

    /// The tracked datagram that was sent last, and when, while its delivery is not known.
    pub(super) fn newest_datagram(&self) -> Option<(DatagramId, Instant)> {
        self.connection.newest_datagram()
    }

    pub(super) fn receive_datagram(&mut self) -> Option<Bytes> {
        self.connection.receive_datagram()
    }

    pub(super) fn path_estimate(&self) -> PathEstimate {
        self.connection.path_estimate()
    }

    /// RFC 9002's `smoothed_rtt`.
    pub(super) fn smoothed_rtt(&self) -> std::time::Duration {
        self.connection.smoothed_rtt()
    }

    pub(super) fn read_body(&mut self, stream: StreamId) -> Result<Body, ConnectionError> {
        self.session.read_body(self.connection, stream)
    }

    /// Writes as much of `data` as the stream has room for and cuts that off its front.
    pub(super) fn write_body(
        &mut self,
        stream: StreamId,
        data: &mut Bytes,
    ) -> Result<Write, StreamGone> {
        self.session.write_body(self.connection, stream, data)
    }

    /// Limits the stream data that the engine holds, so that the rest waits in the tunnel's queue.
    pub(super) fn hold_two_windows(&mut self) {
        self.connection.hold_two_windows();
    }

    /// Whether a request on this stream may still come.
    pub(super) fn may_come(&self, stream: StreamId) -> bool {
        self.session.may_come(stream)
    }

    /// Whether the peer must not open this stream yet.
    pub(super) fn cannot_come(&self, stream: StreamId, streams_max: u32) -> bool {
        self.session.cannot_come(stream, streams_max)
    }
}
