//! HTTP/3 (RFC 9114) as far as a tunnel and a file server need it: one control stream each way,
//! requests, answers, extended CONNECT (RFC 9220) and HTTP Datagrams (RFC 9297). No server push, no
//! dynamic QPACK table.

mod control_stream;
mod peer_ids;
mod qpack_stream;
mod request_stream;

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use http::Method;
use http::{HeaderMap, header};
use tandem_wire::{
    Code, DecodeError, ErrorScope, Frame, RequestHead, ResponseHead, Settings, decode_trailers,
    encode_data_header, encode_headers,
};

use self::{
    control_stream::ControlStreams,
    peer_ids::{PeerIds, cancel_push},
    request_stream::{Follows, Next, RequestStream},
};
use crate::{
    limits::Limits,
    quic::{self, Connection, Direction, Read, StreamGone, StreamId, Write},
};

/// Which end of the connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Sends requests.
    Client,
    /// Answers them.
    Server,
}

/// What happened on an HTTP/3 connection.
#[derive(Debug)]
pub(crate) enum Event {
    /// The peer's SETTINGS came: see [`Session::peer_settings`].
    Settings,
    /// A request came (server).
    Request(StreamId, RequestHead),
    /// An answer came (client).
    Response(StreamId, ResponseHead),
    /// A part of a body, or its end, can be read with [`Session::read_body`].
    Body(StreamId),
    /// A body that was blocked can be written on.
    Writable(StreamId),
    /// The stream failed: the peer reset or stopped it, or it was malformed, in which case we have
    /// reset it.
    Failed(StreamId, Code),
    /// The peer is about to end the connection and takes no more requests.
    GoAway,
}

/// A part of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// Bytes, in order.
    Data(Bytes),
    /// Nothing at the moment; an event tells when there is.
    Blocked,
    /// All of it has been read.
    End,
    /// The stream failed; it is forgotten.
    Failed(Code),
}

/// Why a connection has to end, with the code that the RFC names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct ConnectionError {
    /// Sent to the peer when the connection is closed.
    pub(crate) code: Code,
    /// For people.
    pub(crate) reason: String,
}

/// Why a request stream cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StreamError {
    /// What has to be closed because of it.
    scope: ErrorScope,
    error: ConnectionError,
}

impl StreamError {
    fn of(error: &DecodeError, side: Side) -> Self {
        if *error == DecodeError::PushPromise && side == Side::Server {
            // RFC 9114 §7.2.5: "A server MUST treat the receipt of a PUSH_PROMISE frame as a
            // connection error of type H3_FRAME_UNEXPECTED."
            return Self::unexpected("PUSH_PROMISE from a client");
        }
        let scope = match error {
            // A head that is too long is no fault of the other requests: what follows it on its
            // stream is not read.
            DecodeError::FrameTooLong { .. } => ErrorScope::Stream,
            error => error.scope(),
        };
        Self { scope, error: error.clone().into() }
    }

    /// A frame came where or when it must not.
    fn unexpected(what: &str) -> Self {
        let error = ConnectionError { code: Code::H3_FRAME_UNEXPECTED, reason: what.to_owned() };
        Self { scope: ErrorScope::Connection, error }
    }
}

impl From<DecodeError> for ConnectionError {
    fn from(error: DecodeError) -> Self {
        Self { code: error.code(), reason: error.to_string() }
    }
}

/// HTTP/3 on one QUIC connection.
pub(crate) struct Session {
    side: Side,
    control: ControlStreams,
    requests: BTreeMap<StreamId, RequestStream>,
    peer_settings: Option<Settings>,
    peer_ids: PeerIds,
    events: VecDeque<Event>,
    field_section_max: usize,
    /// First request stream that is not taken any more (server), once GOAWAY is sent.
    goaway: Option<u64>,
    /// The request stream that the peer will open next (server).
    next_request: u64,
}

impl Session {
    pub(crate) fn new(side: Side, limits: &Limits) -> Self {
        let settings = Settings {
            max_field_section_size: Some(limits.field_section as u64),
            enable_connect_protocol: side == Side::Server,
            h3_datagram: true,
            ..Settings::default()
        };
        Self {
            side,
            control: ControlStreams::new(side, &settings),
            requests: BTreeMap::new(),
            peer_settings: None,
            peer_ids: PeerIds::default(),
            events: VecDeque::new(),
            field_section_max: limits.field_section,
            goaway: None,
            next_request: 0,
        }
    }

    /// The peer's SETTINGS, once they came.
    pub(crate) fn peer_settings(&self) -> Option<&Settings> {
        self.peer_settings.as_ref()
    }

    /// The next thing that happened.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether this is a request that has not come yet, or not all of it (server), rather than one
    /// that has gone.
    pub(crate) fn may_come(&self, stream: StreamId) -> bool {
        stream.0 >= self.next_request
            || self.requests.get(&stream).is_some_and(|request| !request.has_head())
    }

    /// Whether this request cannot come, because the peer may open so many streams at once only
    /// (server).
    pub(crate) fn cannot_come(&self, stream: StreamId, streams_max: u32) -> bool {
        stream.0 >= self.next_request + 4 * u64::from(streams_max)
    }

    /// Takes an event of the QUIC connection. Datagrams are not for the session: the data path
    /// reads them from the connection itself.
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
            return self.read_control(connection, stream);
        }
        if !stream.is_client_initiated() {
            // RFC 9114 §6.1: "Clients MUST treat receipt of a server-initiated bidirectional
            // stream as a connection error of type H3_STREAM_CREATION_ERROR unless such an
            // extension has been negotiated."
            return Err(ConnectionError {
                code: Code::H3_STREAM_CREATION_ERROR,
                reason: "the server opened a bidirectional stream".to_owned(),
            });
        }
        if self.side == Side::Server && stream.0 >= self.next_request {
            self.next_request = stream.0 + 4;
            if self.goaway.is_some_and(|first| stream.0 >= first) {
                // RFC 9114 §5.2: "Servers MAY reject individual requests on streams with IDs greater
                // than or equal to the identifier sent in the GOAWAY frame."
                connection.reset(stream, Code::H3_REQUEST_REJECTED);
                connection.stop(stream, Code::H3_REQUEST_REJECTED);
                return Ok(());
            }
            self.requests.insert(stream, RequestStream::new(self.side, self.field_section_max));
        }
        self.read_request(connection, stream)
    }

    fn read_control(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
    ) -> Result<(), ConnectionError> {
        while let Some(frame) = self.control.read(connection, stream)? {
            match frame {
                Frame::Settings(settings) => {
                    self.events.push_back(Event::Settings);
                    self.peer_settings = Some(settings);
                }
                Frame::GoAway(id) => {
                    self.peer_ids.on_goaway(self.side, id)?;
                    self.events.push_back(Event::GoAway);
                    if self.side == Side::Client {
                        self.fail_from(connection, StreamId(id.get()));
                    }
                }
                Frame::MaxPushId(id) => self.peer_ids.on_max_push_id(self.side, id)?,
                Frame::CancelPush(id) => return Err(cancel_push(id)),
                // The decoder refuses those that belong on other streams.
                Frame::Unknown { .. } | Frame::Data(_) | Frame::Headers(_) => {}
            }
        }
        Ok(())
    }

    /// Gives up the requests that the peer is not going to answer.
    fn fail_from(&mut self, connection: &mut Connection, first: StreamId) {
        let rejected: Vec<_> = self.requests.range(first..).map(|(&stream, _)| stream).collect();
        for stream in rejected {
            self.fail(connection, stream, Code::H3_REQUEST_REJECTED);
        }
    }

    /// Whether the peer takes no more requests.
    pub(crate) fn is_peer_going(&self) -> bool {
        self.peer_ids.is_going()
    }

    /// Reads until a head is complete; bodies are read by whoever wants them.
    fn read_request(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
    ) -> Result<(), ConnectionError> {
        while let Some(request) = self.requests.get_mut(&stream) {
            if request.has_head() {
                if request.wants_body_event() {
                    self.events.push_back(Event::Body(stream));
                }
                break;
            }
            match request.next(connection, stream) {
                Ok(Next::Head(section)) => self.on_head(connection, stream, section)?,
                Ok(Next::Blocked) => break,
                // There is neither a body nor trailers before the head.
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
                RequestHead::decode(section, max).map(|head| Event::Request(stream, head))
            }
            Side::Client => {
                ResponseHead::decode(section, max).map(|head| Event::Response(stream, head))
            }
        };
        let Some(request) = self.requests.get_mut(&stream) else { return Ok(()) };
        let follows = match &event {
            // RFC 9110 §15.2: any number of interim answers may come before the final one.
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
                tracing::debug!(%stream, %error, "stream failed");
                self.fail(connection, stream, error.code);
                Ok(())
            }
        }
    }

    /// Ends a stream in both directions, forgets it and tells of it.
    fn fail(&mut self, connection: &mut Connection, stream: StreamId, code: Code) {
        if self.requests.contains_key(&stream) {
            self.reset(connection, stream, code);
            self.events.push_back(Event::Failed(stream, code));
        }
    }

    /// The peer gave a stream up with this code: so do we, and tell of it.
    fn on_given_up(&mut self, connection: &mut Connection, stream: StreamId, code: Code) {
        if self.requests.contains_key(&stream) {
            self.give_up(connection, stream);
            self.events.push_back(Event::Failed(stream, code));
        }
    }

    /// Ends a stream that the peer gave up, but not with the peer's own code: RFC 9114 §4.1.1 does
    /// not allow each side to use each code.
    fn give_up(&mut self, connection: &mut Connection, stream: StreamId) {
        self.reset(connection, stream, Code::H3_REQUEST_CANCELLED);
    }

    fn on_writable(&mut self, connection: &mut Connection, stream: StreamId) {
        if self.control.on_writable(connection, stream) {
            return;
        }
        let Some(request) = self.requests.get_mut(&stream) else { return };
        if let Ok(Write::Done) = request.flush(connection, stream) {
            self.events.push_back(Event::Writable(stream));
        }
        self.forget_if_done(stream);
    }

    /// Forgets a stream when both directions have ended well.
    fn forget_if_done(&mut self, stream: StreamId) {
        if self.requests.get(&stream).is_some_and(RequestStream::is_done) {
            self.requests.remove(&stream);
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
                reason: "the peer stopped our control stream".to_owned(),
            });
        }
        // RFC 9114 §4.1: "Clients MUST NOT discard complete responses as a result of having their
        // request terminated abruptly": a server that wants no more of a request says so with
        // H3_NO_ERROR, and its answer comes or has come.
        if self.side == Side::Server || code != Code::H3_NO_ERROR {
            self.on_given_up(connection, stream, code);
        }
        Ok(())
    }

    /// Sends a request (client). `None`: the peer allows no more streams at the moment.
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
        request.queue(head_frame(&head.encode()), end);
        if request.flush(connection, stream).is_err() {
            tracing::debug!(%stream, "stopped before the request was sent");
        }
        self.requests.insert(stream, request);
        Some(stream)
    }

    /// Sends an answer (server). No effect if the stream has gone.
    pub(crate) fn send_response(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        head: &ResponseHead,
        end: End,
    ) {
        let Some(request) = self.requests.get_mut(&stream) else { return };
        request.queue(head_frame(&head.encode()), end);
        if request.flush(connection, stream).is_err() {
            tracing::debug!(%stream, "stopped before the answer was sent");
        }
        self.forget_if_done(stream);
    }

    /// Begins a body of exactly `len` bytes: one DATA frame, whose bytes follow with
    /// [`Session::write_body`].
    pub(crate) fn begin_body(&mut self, stream: StreamId, len: usize) {
        let Some(request) = self.requests.get_mut(&stream) else { return };
        let mut header = BytesMut::with_capacity(16);
        encode_data_header(len, &mut header);
        request.queue(header.freeze(), End::More);
    }

    /// Writes as much of a body as there is room for and cuts that off the front of `data`.
    pub(crate) fn write_body(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        data: &mut Bytes,
    ) -> Result<Write, StreamGone> {
        let request = self.requests.get_mut(&stream).ok_or(StreamGone)?;
        match request.flush(connection, stream)? {
            Write::Done => connection.write(stream, data),
            Write::Blocked => Ok(Write::Blocked),
        }
    }

    /// Says that nothing follows on a stream. What is queued is still sent.
    pub(crate) fn finish(&mut self, connection: &mut Connection, stream: StreamId) {
        self.finish_with(connection, stream, Bytes::new());
    }

    /// Sends the rest of a short body, and that nothing follows it. What has no room yet is kept.
    pub(crate) fn finish_with(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        rest: Bytes,
    ) {
        let Some(request) = self.requests.get_mut(&stream) else { return };
        request.queue(rest, End::Last);
        if request.flush(connection, stream).is_err() {
            tracing::debug!(%stream, "stopped before its end");
        }
        self.forget_if_done(stream);
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
            let error = match request.next(connection, stream) {
                Ok(Next::Data(data)) => return Ok(Body::Data(data)),
                Ok(Next::Blocked) => return Ok(Body::Blocked),
                Ok(Next::End) => {
                    self.forget_if_done(stream);
                    return Ok(Body::End);
                }
                Ok(Next::Head(section) | Next::Trailers(section)) => {
                    match decode_trailers(section, max) {
                        Ok(_) => continue, // nothing that we know stands there
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

    /// Tells the peer that no more requests are taken (RFC 9114 §5.2).
    pub(crate) fn send_goaway(&mut self, connection: &mut Connection) {
        if self.goaway.is_none() {
            self.goaway = Some(self.next_request);
            self.control.send_goaway(connection, self.next_request);
        }
    }

    /// Ends a stream in both directions and forgets it.
    pub(crate) fn reset(&mut self, connection: &mut Connection, stream: StreamId, code: Code) {
        if self.requests.remove(&stream).is_some() {
            connection.reset(stream, code);
            connection.stop(stream, code);
        }
    }

    /// Asks the peer to send no more on a stream (server). What is queued is still sent.
    pub(crate) fn stop_reading(&mut self, connection: &mut Connection, stream: StreamId) {
        let Some(request) = self.requests.get_mut(&stream) else { return };
        request.stop_reading();
        // RFC 9114 §4.1: "The error code H3_NO_ERROR SHOULD be used when requesting that the client
        // stop sending on the request stream."
        connection.stop(stream, Code::H3_NO_ERROR);
        self.forget_if_done(stream);
    }
}

/// Whether something follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// More follows.
    More,
    /// That was all.
    Last,
}

/// Whether a message has fields that a message with capsules must not have.
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

/// Reads of a stream, for the two kinds of them.
fn read(connection: &mut Connection, stream: StreamId) -> Read {
    /// Bytes per read; the engine gives its own pieces, which are at most a packet long.
    const MAX: usize = 64 * 1024;
    connection.read(stream, MAX)
}
