//! The part of HTTP/3 (RFC 9114) that tunnels and a file server need: one control stream in each
//! direction, requests, responses, extended CONNECT (RFC 9220) and HTTP Datagrams (RFC 9297). It
//! has neither server push nor a dynamic QPACK table.

mod continuation;
mod control_stream;
mod error;
mod peer_ids;
mod qpack_stream;
mod request_stream;
mod trace;
mod unidirectional;

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use http::Method;
use http::{HeaderMap, header};
use tandem_wire::{
    Code, ErrorScope, RequestHead, ResponseHead, Settings, decode_trailers, encode_data_header,
    encode_headers,
};

pub(crate) use self::error::ConnectionError;
use self::{
    continuation::{Incoming, Outgoing},
    control_stream::ControlStreams,
    error::StreamError,
    peer_ids::PeerIds,
    request_stream::{Follows, Next, RequestStream},
    trace::Tracer,
};
use crate::{
    limits::Limits,
    quic::{self, Connection, Direction, Read, StreamGone, StreamId, Write},
};

/// This node's role in the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The node sends requests.
    Client,
    /// The node answers requests.
    Server,
}

/// An event of an HTTP/3 connection.
#[derive(Debug)]
pub(crate) enum Event {
    /// The peer's SETTINGS have arrived; see [`Session::peer_settings`].
    Settings,
    /// A request has arrived (server).
    Request(StreamId, Box<RequestHead>),
    /// A response has arrived (client).
    Response(StreamId, Box<ResponseHead>),
    /// A part of a body, or its end, can be read with [`Session::read_body`].
    Body(StreamId),
    /// A body that was blocked can be written again.
    Writable(StreamId),
    /// The stream failed. The peer reset or stopped it, or it was malformed. In all cases the
    /// session has reset it.
    Failed(StreamId, Code),
    /// The peer is about to close the connection and accepts no more requests.
    GoAway,
}

/// A part of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// The next bytes of the body.
    Data(Bytes),
    /// There are no bytes at present. [`Event::Body`] follows when there are.
    Blocked,
    /// The whole body has been read.
    End,
    /// The stream failed. The session no longer knows it.
    Failed(Code),
}

/// HTTP/3 on one QUIC connection.
pub(crate) struct Session {
    side: Side,
    control: ControlStreams,
    /// In boxes, because a node of a B-tree has room for eleven values.
    requests: BTreeMap<StreamId, Box<RequestStream>>,
    incoming: Incoming,
    outgoing: Outgoing,
    peer_settings: Option<Settings>,
    peer_ids: PeerIds,
    events: VecDeque<Event>,
    field_section_max: usize,
    /// The first request stream that is no longer accepted, once GOAWAY was sent (server).
    goaway: Option<u64>,
    /// The ID of the request stream that the peer will open next (server).
    next_request: u64,
    tracer: Option<Box<Tracer>>,
}

impl Session {
    pub(crate) fn new(side: Side, limits: &Limits) -> Self {
        let settings = Settings {
            max_field_section_size: Some(limits.field_section as u64),
            enable_connect_protocol: side == Side::Server,
            h3_datagram: true,
            continuation: true,
            ..Settings::default()
        };
        Self {
            side,
            control: ControlStreams::new(side, &settings),
            requests: BTreeMap::new(),
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            peer_settings: None,
            peer_ids: PeerIds::default(),
            events: VecDeque::new(),
            field_section_max: limits.field_section,
            goaway: None,
            next_request: 0,
            tracer: None,
        }
    }

    /// Bytes of memory that the request streams take here. The cost is one step per stream.
    pub(crate) fn memory(&self) -> usize {
        self.requests.values().map(|request| request.memory()).sum()
    }

    /// Returns the peer's SETTINGS, once they have arrived.
    pub(crate) fn peer_settings(&self) -> Option<&Settings> {
        self.peer_settings.as_ref()
    }

    /// Returns the next event.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns whether the header section of this request can still arrive (server). It is false
    /// for requests that have ended.
    pub(crate) fn may_come(&self, stream: StreamId) -> bool {
        stream.0 >= self.next_request
            || self.requests.get(&stream).is_some_and(|request| !request.has_head())
    }

    /// Returns whether the peer cannot open this request stream, because it may have only
    /// `streams_max` streams open at the same time (server).
    pub(crate) fn cannot_come(&self, stream: StreamId, streams_max: u32) -> bool {
        stream.0 >= self.next_request + 4 * u64::from(streams_max)
    }

    /// Processes an event of the QUIC connection. The session does not process datagrams; the data
    /// path reads them from the connection directly.
    pub(crate) fn on_quic_event(
        &mut self,
        connection: &mut Connection,
        event: &quic::Event,
    ) -> Result<(), ConnectionError> {
        self.control.open(connection);
        match *event {
            quic::Event::Opened(stream) | quic::Event::Readable(stream) => {
                self.on_readable(connection, stream)
            }
            quic::Event::Writable(stream) => {
                self.on_writable(connection, stream);
                Ok(())
            }
            quic::Event::Stopped(stream, code) => self.on_stopped(connection, stream, code),
            quic::Event::Accepted { .. }
            | quic::Event::Connected
            | quic::Event::MoreStreams
            | quic::Event::Datagrams
            | quic::Event::Lost(_) => Ok(()),
        }
    }

    fn on_readable(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
    ) -> Result<(), ConnectionError> {
        if !stream.is_bidirectional() {
            self.read_unidirectional(connection, stream)?;
            self.stop_stalled(connection);
            return Ok(());
        }
        if !stream.is_client_initiated() {
            // RFC 9114 §6.1: "Clients MUST treat receipt of a server-initiated bidirectional
            // stream as a connection error of type H3_STREAM_CREATION_ERROR unless such an
            // extension has been negotiated."
            return Err(ConnectionError {
                code: Code::H3_STREAM_CREATION_ERROR,
                reason: "the server opened a bidirectional stream".into(),
            });
        }
        if self.side == Side::Server && stream.0 >= self.next_request {
            self.next_request = stream.0 + 4;
            if self.goaway.is_some_and(|first| stream.0 >= first) {
                // RFC 9114 §5.2: "Servers MAY reject individual requests on streams with IDs
                // greater than or equal to the identifier sent in the GOAWAY frame."
                connection.reset(stream, Code::H3_REQUEST_REJECTED);
                connection.stop(stream, Code::H3_REQUEST_REJECTED);
                return Ok(());
            }
            let request = RequestStream::new(self.side, self.field_section_max);
            self.requests.insert(stream, Box::new(request));
        }
        self.read_request(connection, stream)?;
        self.stop_stalled(connection);
        Ok(())
    }

    /// Fails the tunnel of which most waits to be read, if so much waits that the others might have to
    /// stop.
    fn stop_stalled(&mut self, connection: &mut Connection) {
        let Some(stalled) = connection.stalled() else { return }; // little waits
        let request = self.incoming.request_of(stalled).unwrap_or(stalled);
        if self.requests.get(&request).is_some_and(|request| request.is_tunnel()) {
            self.fail(connection, request, Code::H3_EXCESSIVE_LOAD);
        }
    }

    /// Fails the requests that the peer will not process after its GOAWAY.
    fn fail_from(&mut self, connection: &mut Connection, first: StreamId) {
        let rejected: Vec<_> = self.requests.range(first..).map(|(&stream, _)| stream).collect();
        for stream in rejected {
            self.fail(connection, stream, Code::H3_REQUEST_REJECTED);
        }
    }

    /// Returns whether the peer has sent GOAWAY and accepts no more requests.
    pub(crate) fn is_peer_going(&self) -> bool {
        self.peer_ids.is_going()
    }

    /// Reads until a header section is complete. Bodies are read only with [`Self::read_body`].
    fn read_request(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
    ) -> Result<(), ConnectionError> {
        while let Some(request) = self.requests.get_mut(&stream) {
            if request.has_head() {
                if request.wants_body_event() {
                    self.events.push_back(Event::Body(stream));
                } else if let Some(code) = connection.take_reset(stream) {
                    // The reader of the body may not come back for long.
                    self.on_given_up(connection, stream, code);
                }
                break;
            }
            match request.next(connection, stream, &mut self.incoming) {
                Ok(Next::Head(section)) => self.on_head(connection, stream, section)?,
                Ok(Next::Blocked) => break,
                // There is neither a body nor a trailer section before the header section.
                Ok(Next::Data(_) | Next::Trailers(_)) => {}
                Ok(Next::End) => self.fail(connection, stream, Code::H3_REQUEST_INCOMPLETE),
                Ok(Next::Reset(code)) => self.on_given_up(connection, stream, code),
                Err(error) => self.on_stream_error(connection, stream, error)?,
            }
        }
        Ok(())
    }

    fn on_head(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        section: Bytes,
    ) -> Result<(), ConnectionError> {
        let max = self.field_section_max as u64;
        let event = match self.side {
            Side::Server => {
                RequestHead::decode(section, max).map(|head| Event::Request(stream, Box::new(head)))
            }
            Side::Client => ResponseHead::decode(section, max)
                .map(|head| Event::Response(stream, Box::new(head))),
        };
        let Some(request) = self.requests.get_mut(&stream) else { return Ok(()) };
        let follows = match &event {
            // RFC 9110 §15.2: any number of interim responses may precede the final one.
            Ok(Event::Response(_, head)) if head.status.is_informational() => return Ok(()),
            Ok(Event::Response(_, head)) if request.is_connect && head.status.is_success() => {
                Follows::Tunnel
            }
            Ok(Event::Request(_, head)) if head.method == Method::CONNECT => Follows::Tunnel,
            Ok(_) => Follows::Body,
            Err(error) => {
                let error = StreamError::of(error, self.side);
                return self.on_stream_error(connection, stream, error);
            }
        };
        request.on_head_accepted(follows);
        if let (Ok(Event::Response(_, head)), Some(tracer)) = (&event, &self.tracer) {
            tracer.on_response(stream, head.status);
        }
        self.events.extend(event);
        self.events.push_back(Event::Body(stream));
        Ok(())
    }

    fn on_stream_error(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        StreamError { scope, error }: StreamError,
    ) -> Result<(), ConnectionError> {
        match scope {
            ErrorScope::Connection => Err(error),
            ErrorScope::Stream => {
                tracing::debug!(%stream, %error, "a request stream failed");
                self.fail(connection, stream, error.code);
                Ok(())
            }
        }
    }

    /// Resets a stream in both directions, forgets it, and emits [`Event::Failed`].
    fn fail(&mut self, connection: &mut Connection, stream: StreamId, code: Code) {
        if self.requests.contains_key(&stream) {
            self.reset(connection, stream, code);
            self.events.push_back(Event::Failed(stream, code));
        }
    }

    /// Processes that the peer has cancelled a stream with this code: resets the stream and emits
    /// [`Event::Failed`].
    fn on_given_up(&mut self, connection: &mut Connection, stream: StreamId, code: Code) {
        if self.requests.contains_key(&stream) {
            self.give_up(connection, stream);
            self.events.push_back(Event::Failed(stream, code));
        }
    }

    /// Resets a stream that the peer has cancelled. It does not use the peer's code, because RFC
    /// 9114 §4.1.1 does not allow every code on both sides.
    fn give_up(&mut self, connection: &mut Connection, stream: StreamId) {
        self.reset(connection, stream, Code::H3_REQUEST_CANCELLED);
    }

    fn on_writable(&mut self, connection: &mut Connection, stream: StreamId) {
        if self.control.on_writable(connection, stream) {
            return;
        }
        let stream = self.outgoing.request_of(stream).unwrap_or(stream);
        let Some(request) = self.requests.get_mut(&stream) else { return }; // it has ended
        if let Ok(Write::Done) = request.flush(connection, stream) {
            self.events.push_back(Event::Writable(stream));
        }
        self.forget_if_done(connection, stream);
    }

    /// Forgets a stream if both directions have ended without an error.
    fn forget_if_done(&mut self, connection: &mut Connection, stream: StreamId) {
        if self.requests.get(&stream).is_some_and(|request| request.is_done()) {
            self.requests.remove(&stream);
            self.log_end(stream, &"complete");
            self.incoming.end(connection, stream, Code::H3_NO_ERROR);
        }
    }

    fn on_stopped(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        code: Code,
    ) -> Result<(), ConnectionError> {
        if self.control.is_ours(stream) {
            // RFC 9114 §6.2.1: "If either control stream is closed at any point, this MUST be
            // treated as a connection error of type H3_CLOSED_CRITICAL_STREAM."
            return Err(ConnectionError {
                code: Code::H3_CLOSED_CRITICAL_STREAM,
                reason: "the peer sent STOP_SENDING for the control stream".into(),
            });
        }
        let stream = self.outgoing.request_of(stream).unwrap_or(stream);
        if !stream.is_bidirectional() {
            connection.reset(stream, Code::H3_REQUEST_CANCELLED);
            return Ok(());
        }
        // RFC 9114 §4.1: "Clients MUST NOT discard complete responses as a result of having their
        // request terminated abruptly". A server that needs no more of a request uses H3_NO_ERROR,
        // and sends its response nevertheless. Some servers drop a request that they have read with
        // another code.
        let is_sent = self.requests.get(&stream).is_some_and(|request| request.is_sent());
        if self.side == Side::Server || (code != Code::H3_NO_ERROR && !is_sent) {
            self.on_given_up(connection, stream, code);
        }
        Ok(())
    }

    /// Sends a request (client). Returns `None` if the peer allows no more streams at present, or
    /// has sent GOAWAY.
    pub(crate) fn send_request(
        &mut self,
        connection: &mut Connection,
        head: &RequestHead,
        end: End,
    ) -> Option<StreamId> {
        // RFC 9114 §5.2: "Endpoints MUST NOT initiate new requests or promise new pushes on the
        // connection after receipt of a GOAWAY frame from the peer."
        if self.is_peer_going() {
            return None;
        }
        let stream = connection.open(Direction::Bidirectional)?;
        let mut request = RequestStream::new(self.side, self.field_section_max);
        request.is_connect = head.method == Method::CONNECT;
        let traced = self.tracer.as_mut().map(|tracer| tracer.begin(stream, head));
        request.queue(head_frame(&traced.as_ref().unwrap_or(head).encode()), end);
        if request.flush(connection, stream).is_err() {
            tracing::debug!(%stream, "the peer stopped the stream before the request was sent");
        }
        self.requests.insert(stream, Box::new(request));
        Some(stream)
    }

    /// Sends the header section of a response (server). It has no effect if the stream has ended.
    pub(crate) fn send_response(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        head: &ResponseHead,
        end: End,
    ) {
        let Some(request) = self.requests.get_mut(&stream) else { return }; // it has ended
        request.queue(head_frame(&head.encode()), end);
        if request.flush(connection, stream).is_err() {
            tracing::debug!(%stream, "the peer stopped the stream before the response was sent");
        }
        request.release_memory();
        self.forget_if_done(connection, stream);
    }

    /// Begins a body of exactly `len` bytes. It is one DATA frame, whose payload
    /// [`Session::write_body`] writes.
    pub(crate) fn begin_body(&mut self, stream: StreamId, len: usize) {
        let Some(request) = self.requests.get_mut(&stream) else { return }; // it has ended
        let mut header = BytesMut::with_capacity(16);
        encode_data_header(len, &mut header);
        request.queue(header.freeze(), End::More);
    }

    /// Writes as much of a body as flow control and buffers allow, and removes it from the front of
    /// `data`.
    pub(crate) fn write_body(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        data: &mut Bytes,
    ) -> Result<Write, StreamGone> {
        let request = self.requests.get_mut(&stream).ok_or(StreamGone)?;
        match request.flush(connection, stream)? {
            Write::Done => self.outgoing.write(connection, stream, data),
            Write::Blocked => Ok(Write::Blocked),
        }
    }

    /// Notes that what is written next to a body begins a frame, so that it may go on another stream than
    /// what came before.
    pub(crate) fn begin_frame(&mut self, connection: &mut Connection, stream: StreamId) {
        let Some(request) = self.requests.get_mut(&stream) else { return }; // it has ended
        let may_continue = self.peer_settings.is_some_and(|settings| settings.continuation);
        if let Some(frame) = self.outgoing.begin_frame(connection, stream, may_continue) {
            request.queue(frame, End::More);
        }
    }

    /// The stream that must have room before more of a body can be written.
    pub(crate) fn written_next(&self, stream: StreamId) -> StreamId {
        if self.requests.get(&stream).is_some_and(|request| request.has_unsent()) {
            return stream;
        }
        self.outgoing.stream(stream)
    }

    /// Ends the sending direction of a stream after all queued frames.
    pub(crate) fn finish(&mut self, connection: &mut Connection, stream: StreamId) {
        self.finish_with(connection, stream, Bytes::new());
    }

    /// Sends the rest of a short body, then ends the sending direction of the stream. Bytes that
    /// cannot be sent yet are queued.
    pub(crate) fn finish_with(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        rest: Bytes,
    ) {
        let Some(request) = self.requests.get_mut(&stream) else { return }; // it has ended
        self.outgoing.finish(connection, stream);
        request.queue(rest, End::Last);
        if request.flush(connection, stream).is_err() {
            tracing::debug!(%stream, "the peer stopped the stream before its end");
        }
        self.forget_if_done(connection, stream);
    }

    /// Reads a part of a body.
    pub(crate) fn read_body(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
    ) -> Result<Body, ConnectionError> {
        let Some(request) = self.requests.get_mut(&stream) else {
            return Ok(Body::Failed(Code::H3_REQUEST_CANCELLED));
        };
        let max = self.field_section_max as u64;
        loop {
            let error = match request.next(connection, stream, &mut self.incoming) {
                Ok(Next::Data(data)) => return Ok(Body::Data(data)),
                Ok(Next::Blocked) => return Ok(Body::Blocked),
                Ok(Next::End) => {
                    self.forget_if_done(connection, stream);
                    return Ok(Body::End);
                }
                Ok(Next::Head(section) | Next::Trailers(section)) => {
                    match decode_trailers(section, max) {
                        Ok(_) => continue, // no known field is a trailer field
                        Err(error) => StreamError::of(&error, self.side),
                    }
                }
                Ok(Next::Reset(code)) => {
                    self.give_up(connection, stream);
                    return Ok(Body::Failed(code));
                }
                Err(error) => error,
            };
            if error.scope == ErrorScope::Connection {
                return Err(error.error);
            }
            let code = error.error.code;
            self.reset(connection, stream, code);
            return Ok(Body::Failed(code));
        }
    }

    /// Sends GOAWAY: the session accepts no more requests (RFC 9114 §5.2).
    pub(crate) fn send_goaway(&mut self, connection: &mut Connection) {
        if self.goaway.is_none() {
            self.goaway = Some(self.next_request);
            self.control.send_goaway(connection, self.next_request);
        }
    }

    /// Resets a stream in both directions and forgets it.
    pub(crate) fn reset(&mut self, connection: &mut Connection, stream: StreamId, code: Code) {
        if self.requests.remove(&stream).is_some() {
            self.log_end(stream, &code);
            connection.reset(stream, code);
            connection.stop(stream, code);
            self.outgoing.reset(connection, stream, code);
            self.incoming.end(connection, stream, code);
        }
    }

    /// Asks the peer to stop sending on a stream (server). Queued frames are still sent.
    pub(crate) fn stop_reading(&mut self, connection: &mut Connection, stream: StreamId) {
        let Some(request) = self.requests.get_mut(&stream) else { return }; // it has ended
        request.stop_reading();
        // RFC 9114 §4.1: "The error code H3_NO_ERROR SHOULD be used when requesting that the client
        // stop sending on the request stream."
        connection.stop(stream, Code::H3_NO_ERROR);
        self.incoming.end(connection, stream, Code::H3_NO_ERROR);
        self.forget_if_done(connection, stream);
    }
}

/// Whether more data follows on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// More data follows.
    More,
    /// This is the last data.
    Last,
}

/// Returns whether a message has fields that are not allowed in a message with capsules.
///
/// RFC 9297 §3.2: "The Content-Length, Content-Type, and Transfer-Encoding header fields [...] MUST
/// NOT be used"; "A receiver that observes a violation of these requirements MUST treat the HTTP
/// message as malformed."
pub(crate) fn has_content(headers: &HeaderMap) -> bool {
    [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::TRANSFER_ENCODING]
        .iter()
        .any(|name| headers.contains_key(name))
}

fn head_frame(section: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(section.len() + 16);
    encode_headers(section, &mut frame);
    frame.freeze()
}

/// Reads from a stream of either kind.
fn read(connection: &mut Connection, stream: StreamId) -> Read {
    /// The largest number of bytes per read. The QUIC engine returns pieces of at most one packet.
    const MAX: usize = 64 * 1024;
    connection.read(stream, MAX)
}
