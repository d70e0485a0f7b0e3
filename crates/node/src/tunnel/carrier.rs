//! The carrier of a tunnel: HTTP/3 on one QUIC connection.
//!
//! This is the lower face of the tunnel. Everything that a tunnel needs from its connection is a
//! function here, so that another carrier (HTTP/2 over TCP) would be added in this one place.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tandem_units::ByteCount;

use crate::{
    h3::{Body, ConnectionError, Session},
    quic::{
        Connection, DatagramId, Delivery, PathEstimate, SendDatagram, StreamGone, StreamId, Write,
    },
};

/// What the queue of a tunnel needs of its carrier. Tests replace it by a model.
pub(super) trait QueueCarrier {
    /// The largest HTTP Datagram that fits a packet now, in bytes. 0 if the peer accepts none.
    fn max_datagram_size(&mut self) -> usize;
    /// Whether the engine has room for a datagram of this size now.
    fn has_room_for_datagram(&mut self, len: usize) -> bool;
    /// Gives a datagram to the engine.
    fn send_datagram(&mut self, data: Bytes) -> SendDatagram;
    /// Sends a datagram whose delivery [`QueueCarrier::poll_delivery`] reports. `false`: the engine did
    /// not take it.
    fn send_tracked_datagram(&mut self, id: DatagramId, data: Bytes) -> bool;
    /// The next delivery report. Each tracked datagram gets exactly one.
    fn poll_delivery(&mut self) -> Option<(DatagramId, Delivery)>;
    /// The tracked datagram that was sent last and when it was sent, while its delivery is not
    /// known.
    fn newest_datagram(&self) -> Option<(DatagramId, Instant)>;
    /// RFC 9002's `smoothed_rtt`.
    fn smoothed_rtt(&self) -> Duration;
    /// Writes as much of `data` as the stream has room for, and removes that part from its front.
    fn write_body(&mut self, stream: StreamId, data: &mut Bytes) -> Result<Write, StreamGone>;
    /// Notes that what is written next to a stream begins a frame, so that it may go on another stream
    /// than what came before.
    fn begin_frame(&mut self, stream: StreamId);
    /// Limits the stream data that the engine holds, so that the rest waits in the tunnel's queue.
    fn hold_two_windows(&mut self);
    /// Limits the stream data that the engine holds to what is in flight and one burst, so that all
    /// else takes turns in the tunnel's queue.
    fn hold_burst(&mut self);
    /// Whether only this limit, and no flow control, keeps a stream from taking more.
    fn is_held(&mut self, stream: StreamId) -> bool;
    /// Ends the sending direction of a stream.
    fn finish(&mut self, stream: StreamId);
}

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
    /// Whether the peer accepts HTTP Datagrams in QUIC DATAGRAM frames.
    pub(super) fn takes_datagrams(&self) -> bool {
        // RFC 9297 §2.1.1: "QUIC DATAGRAM frames MUST NOT be sent until the SETTINGS_H3_DATAGRAM
        // setting has been both sent and received with a value of 1."
        self.session.peer_settings().is_some_and(|settings| settings.h3_datagram)
    }

    /// Whether the peer's SETTINGS show that it is an end of ours.
    pub(super) fn is_to_tandem(&self) -> bool {
        self.session.peer_settings().is_some_and(|settings| settings.continuation)
    }

    /// Whether neither end has closed the connection.
    pub(super) fn is_open(&self) -> bool {
        !self.connection.is_closed()
    }

    /// Whether the peer has not acknowledged everything that was sent to it.
    pub(super) fn awaits_ack(&self) -> bool {
        self.connection.awaits_ack()
    }

    /// Whether the peer said that it accepts HTTP Datagrams only in capsules.
    pub(super) fn refuses_datagrams(&self) -> bool {
        self.session.peer_settings().is_some_and(|settings| !settings.h3_datagram)
    }

    /// Notes how many datagrams were sent again so far.
    pub(super) fn log_repairs(&self, now: Instant, total: u64) {
        self.connection.log_repairs(now, total);
    }

    pub(super) fn receive_datagram(&mut self) -> Option<Bytes> {
        self.connection.receive_datagram()
    }

    pub(super) fn path_estimate(&self) -> PathEstimate {
        self.connection.path_estimate()
    }

    /// The bytes of IP packets that came from the peer.
    pub(super) fn received_bytes(&mut self) -> ByteCount {
        self.connection.received_bytes()
    }

    pub(crate) fn read_body(&mut self, stream: StreamId) -> Result<Body, ConnectionError> {
        self.session.read_body(self.connection, stream)
    }

    /// Whether a request on this stream may still arrive.
    pub(super) fn may_come(&self, stream: StreamId) -> bool {
        self.session.may_come(stream)
    }

    /// Whether the limits on streams do not allow the peer to open this stream yet.
    pub(super) fn cannot_come(&self, stream: StreamId, streams_max: u32) -> bool {
        self.session.cannot_come(stream, streams_max)
    }
}

impl QueueCarrier for Carrier<'_> {
    fn max_datagram_size(&mut self) -> usize {
        self.connection.max_datagram_size().unwrap_or(0)
    }

    fn has_room_for_datagram(&mut self, len: usize) -> bool {
        self.connection.has_room_for_datagram(len)
    }

    fn send_datagram(&mut self, data: Bytes) -> SendDatagram {
        self.connection.send_datagram(data)
    }

    fn send_tracked_datagram(&mut self, id: DatagramId, data: Bytes) -> bool {
        self.connection.send_tracked_datagram(id, data)
    }

    fn poll_delivery(&mut self) -> Option<(DatagramId, Delivery)> {
        self.connection.poll_delivery()
    }

    fn newest_datagram(&self) -> Option<(DatagramId, Instant)> {
        self.connection.newest_datagram()
    }

    fn smoothed_rtt(&self) -> Duration {
        self.connection.smoothed_rtt()
    }

    fn write_body(&mut self, stream: StreamId, data: &mut Bytes) -> Result<Write, StreamGone> {
        self.session.write_body(self.connection, stream, data)
    }

    fn begin_frame(&mut self, stream: StreamId) {
        self.session.begin_frame(self.connection, stream);
    }

    fn hold_two_windows(&mut self) {
        self.connection.hold_two_windows();
    }

    fn hold_burst(&mut self) {
        self.connection.hold_burst();
    }

    fn is_held(&mut self, stream: StreamId) -> bool {
        self.connection.is_held(self.session.written_next(stream))
    }

    fn finish(&mut self, stream: StreamId) {
        self.session.finish(self.connection, stream);
    }
}
