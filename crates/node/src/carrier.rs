//! An HTTP connection: HTTP/3 and the QUIC connection below it, as one object.
//!
//! Requests, responses, bodies, datagrams and tunnels use a connection only through the functions here, so that another
//! form of HTTP (HTTP/2 over TCP) would be a second form of [`Carrier`].

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use tandem_units::ByteCount;
use tandem_wire::{
    Code, QuarterStreamId, RequestHead, ResponseHead, Settings, TunnelInfo, VarInt, encode_headers,
    encode_trailers,
};

use crate::{
    buffers,
    h3::{Body, ConnectionError, End, Session},
    quic::{
        Connection, DatagramId, Delivery, PathEstimate, SendDatagram, StreamGone, StreamId, Write,
    },
};

/// What the queue of a tunnel needs of its carrier. Tests replace it by a model.
pub(crate) trait QueueCarrier {
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
    /// Limits the stream data that the engine holds to what is in flight and two bursts, so that all
    /// else takes turns in the tunnel's queue.
    fn hold_burst(&mut self);
    /// Whether only this limit, and no flow control, keeps a stream from taking more.
    fn is_held(&mut self, stream: StreamId) -> bool;
    /// Ends the sending direction of a stream.
    fn finish(&mut self, stream: StreamId);
}

/// An open HTTP connection. Borrowing it from its [`Server`](crate::server::Server) or client also schedules the
/// connection to send.
pub(crate) struct Carrier<'a> {
    session: &'a mut Session,
    connection: &'a mut Connection,
}

impl<'a> Carrier<'a> {
    pub(crate) const fn new(session: &'a mut Session, connection: &'a mut Connection) -> Self {
        Self { session, connection }
    }

    /// The QUIC connection, for what is not HTTP: estimates of the path, keys, and reports for its controller.
    pub(crate) const fn quic(&mut self) -> &mut Connection {
        self.connection
    }

    /// The peer's SETTINGS, once they have arrived.
    pub(crate) fn peer_settings(&self) -> Option<&Settings> {
        self.session.peer_settings()
    }

    /// Sends a request. `None`: the peer allows no more streams at the moment.
    pub(crate) fn request(&mut self, head: &RequestHead, end: End) -> Option<StreamId> {
        self.session.send_request(self.connection, head, end)
    }

    /// Sends the header section of a response.
    pub(crate) fn respond(&mut self, stream: StreamId, head: &ResponseHead, end: End) {
        self.session.send_response(self.connection, stream, head, end);
    }

    /// Notes the length of the body that follows, so that it is sent as one frame.
    pub(crate) fn begin_body(&mut self, stream: StreamId, len: usize) {
        self.session.begin_body(stream, len);
    }

    pub(crate) fn read_body(&mut self, stream: StreamId) -> Result<Body, ConnectionError> {
        self.session.read_body(self.connection, stream)
    }

    /// Writes as much of `data` as the stream has room for, and removes that part from its front.
    pub(crate) fn write_body(
        &mut self,
        stream: StreamId,
        data: &mut Bytes,
    ) -> Result<Write, StreamGone> {
        self.session.write_body(self.connection, stream, data)
    }

    /// Ends the sending direction of a stream.
    pub(crate) fn finish(&mut self, stream: StreamId) {
        self.session.finish(self.connection, stream);
    }

    /// Writes the last bytes of a body and ends the stream.
    pub(crate) fn finish_with(&mut self, stream: StreamId, data: Bytes) {
        self.session.finish_with(self.connection, stream, data);
    }

    /// Writes the trailer section, if there is one, and ends the stream.
    pub(crate) fn finish_with_trailers(&mut self, stream: StreamId, trailers: &HeaderMap) {
        let mut frame = BytesMut::new();
        if !trailers.is_empty() {
            encode_headers(&encode_trailers(trailers), &mut frame);
        }
        self.finish_with(stream, frame.freeze());
    }

    /// Ends both directions of a stream with this code.
    pub(crate) fn reset(&mut self, stream: StreamId, code: Code) {
        self.session.reset(self.connection, stream, code);
    }

    /// Asks the peer to send no more on a stream, without an error.
    pub(crate) fn stop_reading(&mut self, stream: StreamId) {
        self.session.stop_reading(self.connection, stream);
    }

    /// Tells the peer that no further requests are taken.
    pub(crate) fn send_goaway(&mut self) {
        self.session.send_goaway(self.connection);
    }

    /// Gives a datagram to the engine.
    pub(crate) fn send_datagram(&mut self, data: Bytes) -> SendDatagram {
        self.connection.send_datagram(data)
    }

    /// Gives a report on a tunnel to the engine, as an HTTP Datagram.
    pub(crate) fn send_report(
        &mut self,
        info: &TunnelInfo,
        id: QuarterStreamId,
        context_id: VarInt,
    ) -> SendDatagram {
        let encode = |out: &mut BytesMut| info.encode_datagram(id, context_id, out);
        self.send_datagram(buffers::filled(TunnelInfo::DATAGRAM_LEN_MAX, encode).freeze())
    }

    pub(crate) fn receive_datagram(&mut self) -> Option<Bytes> {
        self.connection.receive_datagram()
    }

    /// Takes the error of a peer that breaks the rules of the transport of its datagrams.
    pub(crate) fn take_violation(&mut self) -> Option<ConnectionError> {
        let reason = self.connection.take_violation()?;
        Some(ConnectionError { code: Code::H3_DATAGRAM_ERROR, reason })
    }

    /// Whether the peer accepts HTTP Datagrams in QUIC DATAGRAM frames.
    pub(crate) fn takes_datagrams(&self) -> bool {
        // RFC 9297 §2.1.1: "QUIC DATAGRAM frames MUST NOT be sent until the SETTINGS_H3_DATAGRAM
        // setting has been both sent and received with a value of 1."
        self.peer_settings().is_some_and(|settings| settings.h3_datagram)
    }

    /// Whether the peer said that it accepts HTTP Datagrams only in capsules.
    pub(crate) fn refuses_datagrams(&self) -> bool {
        self.peer_settings().is_some_and(|settings| !settings.h3_datagram)
    }

    /// Whether the peer's SETTINGS show that it is an end of ours.
    pub(crate) fn is_to_tandem(&self) -> bool {
        self.peer_settings().is_some_and(|settings| settings.continuation)
    }

    /// Whether neither end has closed the connection.
    pub(crate) fn is_open(&self) -> bool {
        !self.connection.is_closed()
    }

    /// Whether the peer has not acknowledged everything that was sent to it.
    pub(crate) fn awaits_ack(&self) -> bool {
        self.connection.awaits_ack()
    }

    /// Notes how many datagrams were sent again so far.
    pub(crate) fn log_repairs(&self, now: Instant, total: u64) {
        self.connection.log_repairs(now, total);
    }

    pub(crate) fn path_estimate(&self) -> PathEstimate {
        self.connection.path_estimate()
    }

    /// The bytes of IP packets that came from the peer, as they count for reports: those of the sealed transport twice,
    /// because half as many come in it, where acknowledgements travel with datagrams.
    pub(crate) fn received_for_reports(&mut self) -> ByteCount {
        self.connection.received_bytes() + self.connection.received_sealed()
    }

    /// Whether a request on this stream may still arrive.
    pub(crate) fn may_come(&self, stream: StreamId) -> bool {
        self.session.may_come(stream)
    }

    /// Whether the limits on streams do not allow the peer to open this stream yet.
    pub(crate) fn cannot_come(&self, stream: StreamId, streams_max: u32) -> bool {
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
        Carrier::send_datagram(self, data)
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
        Carrier::write_body(self, stream, data)
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
        Carrier::finish(self, stream);
    }
}
