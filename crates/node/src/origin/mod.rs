//! The origin, an HTTP/3 server. It answers GET and HEAD for the files below a folder, and can
//! accept PUT without storing the uploads.

mod answer;
mod feedback;
mod path;
mod speedtest;
mod upload;

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Instant,
};

use bytes::Bytes;
use http::{Method, StatusCode};
use tandem_units::ByteCount;
use tandem_wire::{Code, ErrorScope, HttpDatagram, RequestHead, ResponseHead, TraceId, TunnelInfo};
use tracing::{debug, field::display};

use self::answer::Answer;
use crate::{
    Serves,
    h3::{self, Body, End},
    hand_over::BusyNodes,
    impossible::{self, impossible},
    limits::Limits,
    node::{
        Event, FileError, FileId, FileMeta, Input, Node, Output, Received, SocketId, SocketKind,
    },
    path_report::PathReport,
    quic::{ConfigError, ConnectionId, ServerTls, StreamId, Transport, Write},
    seldom::Seldom,
    server::{self, Server},
    stats::{ConnectionStats, Stats},
    status::Status,
};

/// The configuration of an origin.
#[derive(Clone)]
pub struct OriginConfig {
    /// The local address at which the origin listens; port 0 lets the operating system choose.
    pub listen: SocketAddr,
    /// The TLS configuration with the certificate. The node sets ALPN.
    pub tls: rustls::ServerConfig,
    /// The settings of the QUIC connections to clients.
    pub transport: Transport,
    /// Whether uploads (PUT) are read, counted and discarded, which serves measurements, or
    /// refused. Uploads are never stored.
    pub takes_uploads: bool,
    /// Whether clients may measure their rate: with uploads, as with `takes_uploads`, and with a body of
    /// [`Limits::upload`] zeros at [`OriginConfig::SPEEDTEST`].
    pub serves_speedtests: bool,
    /// The bounds of the node.
    pub limits: Limits,
    /// A seed makes every random choice repeatable. It is only for tests, because connection IDs
    /// become predictable.
    pub seed: Option<u64>,
}

impl OriginConfig {
    /// The path of the body with which clients measure their rate.
    pub const SPEEDTEST: &str = speedtest::PATH;

    /// Creates the configuration of an origin with default settings, which refuses uploads.
    pub fn new(listen: SocketAddr, tls: rustls::ServerConfig) -> Self {
        Self {
            listen,
            tls,
            transport: Transport::default(),
            takes_uploads: false,
            serves_speedtests: false,
            limits: Limits::default(),
            seed: None,
        }
    }
}

/// The name of the file that is served for a folder.
const INDEX: &str = "index.html";

/// The number of bytes of a file that are read first. It is small, so that clients that do not read
/// their response cost little memory.
const FIRST_READ: usize = 16 * 1024;

/// The listening socket.
const LISTEN: SocketId = SocketId(0);

/// The name of a request.
type RequestId = (ConnectionId, StreamId);

/// A request whose response is not complete.
struct OpenRequest {
    head: RequestHead,
    path: Vec<String>,
    /// `None`: the body is zeros.
    file: Option<FileId>,
    state: ResponseState,
    began: Instant,
    /// The status of the response, and how many bytes of its body were sent.
    sent: (Option<StatusCode>, u64),
}

enum ResponseState {
    /// The file is being opened.
    Opening,
    /// The file is being sent. `next` is the position of the next byte to read, and `end` is the
    /// position after the last one. The origin reads `ahead` bytes at a time; the number doubles
    /// after each read, up to [`Limits::read_ahead`].
    Sending { next: u64, end: u64, unsent: Bytes, is_reading: bool, ahead: usize },
}

/// The bytes of files that wait to be sent on a connection.
fn chunks_of(exchanges: &BTreeMap<RequestId, OpenRequest>, id: ConnectionId) -> u64 {
    let of_connection = exchanges.range((id, StreamId(0))..=(id, StreamId(u64::MAX)));
    let unsent = of_connection.map(|(_, exchange)| match &exchange.state {
        ResponseState::Opening => 0,
        ResponseState::Sending { unsent, .. } => unsent.len() as u64,
    });
    unsent.sum()
}

/// A file server.
pub struct Origin {
    server: Server,
    listen: SocketAddr,
    limits: Limits,
    /// Whether the congestion controller uses reports.
    takes_reports: bool,
    takes_uploads: bool,
    serves_speedtests: bool,
    exchanges: BTreeMap<RequestId, OpenRequest>,
    requests_by_file: BTreeMap<FileId, RequestId>,
    /// The number of missing bytes of each upload.
    uploads: BTreeMap<RequestId, u64>,
    /// The request of each connection that carries reports.
    channels: BTreeMap<ConnectionId, StreamId>,
    outputs: VecDeque<Output>,
    next_file: u64,
    /// Limits the warnings of files that cannot be read, for which clients may ask as often as they like.
    unreadable: Seldom,
    stats: Stats,
}

impl Origin {
    /// Creates an origin. It requests its listening socket at the first poll.
    ///
    /// # Errors
    ///
    /// The configuration of TLS or QUIC is invalid.
    pub fn new(config: OriginConfig) -> Result<Self, ConfigError> {
        let tls = ServerTls::new(config.tls.clone())?;
        Ok(Self::with_tls(config, &tls))
    }

    /// The same with TLS settings that were prepared before, so that [`OriginConfig::tls`] is not used.
    pub fn with_tls(config: OriginConfig, tls: &ServerTls) -> Self {
        let takes_reports = config.transport.controller.name.takes_reports();
        // Uploads are read at once.
        let window = config.transport.receive_window.or(Some(Transport::WINDOW_OF_FAST_READERS));
        let transport = Transport { receive_window: window, ..config.transport.clone() };
        let server = Server::new(tls, &transport, &config.limits, config.seed);
        let open = Output::OpenSocket { socket: LISTEN, kind: SocketKind::Listen(config.listen) };
        Self {
            server,
            listen: config.listen,
            limits: config.limits,
            exchanges: BTreeMap::new(),
            requests_by_file: BTreeMap::new(),
            channels: BTreeMap::new(),
            takes_reports,
            takes_uploads: config.takes_uploads || config.serves_speedtests,
            serves_speedtests: config.serves_speedtests,
            uploads: BTreeMap::new(),
            outputs: VecDeque::from([open]),
            next_file: 0,
            unreadable: Seldom::default(),
            stats: Stats::default(),
        }
    }

    /// Returns the counters of the origin.
    pub fn stats(&mut self) -> Stats {
        self.stats.internal_errors += impossible::take();
        let mut stats = self.stats;
        self.server.add_to(&mut stats, |_, _| {});
        stats
    }

    /// Returns the number of bytes of uploads that were received.
    pub const fn uploaded(&self) -> ByteCount {
        ByteCount::new(self.stats.upload_bytes)
    }

    /// Returns the statistics of every open connection, the oldest first.
    pub fn connections(&mut self) -> impl Iterator<Item = ConnectionStats> {
        self.server.connections()
    }

    /// What PEPs have shown of the path of each open connection, and of those that have ended since the
    /// last call, of which the newest 1024 are remembered.
    pub fn take_path_reports(&mut self) -> Vec<PathReport> {
        self.server.take_path_reports()
    }

    fn on_event(&mut self, now: Instant, id: ConnectionId, event: server::Event) {
        match event {
            server::Event::Http(h3::Event::Request(stream, head)) => {
                self.server.prove(id);
                self.on_request(now, (id, stream), *head);
            }
            server::Event::Http(h3::Event::Body(stream)) => self.read_body(now, (id, stream)),
            server::Event::Http(h3::Event::Writable(stream)) => self.send(now, (id, stream)),
            server::Event::Http(h3::Event::Failed(stream, _)) => {
                self.close_channel((id, stream));
                self.uploads.remove(&(id, stream));
                self.close(now, (id, stream));
            }
            server::Event::Lost => self.server.forget(now, id),
            server::Event::Closed => {
                let first = (id, StreamId(0));
                let last = (id, StreamId(u64::MAX));
                let gone: Vec<_> = self.exchanges.range(first..=last).map(|(&id, _)| id).collect();
                for id in gone {
                    self.close(now, id);
                }
                self.channels.remove(&id);
                self.uploads.retain(|(connection, _), _| *connection != id);
            }
            server::Event::Datagrams => self.take_datagrams(now, id),
            server::Event::Opened(_)
            | server::Event::Connected
            | server::Event::Http(
                h3::Event::Settings | h3::Event::Response(..) | h3::Event::GoAway,
            ) => {}
        }
    }

    /// Processes all received datagrams. Only reports use datagrams.
    fn take_datagrams(&mut self, now: Instant, id: ConnectionId) {
        while let Some(data) =
            self.server.carrier(id).and_then(|mut carrier| carrier.receive_datagram())
        {
            match HttpDatagram::decode(data) {
                Err(error) if error.scope() == ErrorScope::Connection => {
                    self.stats.dropped.malformed += 1;
                    self.server.break_connection(now, id, &error.into());
                }
                Ok(datagram) if self.is_channel((id, &datagram)) => {
                    self.take_report(now, id, datagram);
                }
                Ok(datagram) => {
                    // RFC 9297 §2: "If an HTTP Datagram is received and it is associated with a
                    // request that has no known semantics for HTTP Datagrams, the receiver MUST
                    // terminate the request. If HTTP/3 is in use, the request stream MUST be
                    // aborted with H3_DATAGRAM_ERROR (0x33)."
                    self.stats.dropped.unknown_flow += 1;
                    let stream = StreamId(datagram.quarter_stream_id.stream_id());
                    if let Some(mut carrier) = self.server.carrier(id) {
                        carrier.reset(stream, Code::H3_DATAGRAM_ERROR);
                    }
                    self.close(now, (id, stream));
                }
                Err(_) => self.stats.dropped.malformed += 1,
            }
        }
    }

    fn on_request(&mut self, now: Instant, id: RequestId, head: RequestHead) {
        self.stats.requests += 1;
        let trace_id = TraceId::of(&head.headers).map(display);
        debug!(connection = id.0.0, stream = id.1.0, trace_id, method = %head.method, "request received");
        self.read_report(now, id.0, &head.headers);
        if head.protocol.as_deref() == Some(TunnelInfo::PROTOCOL) {
            return self.open_channel(id);
        }
        if head.method == Method::PUT && self.takes_uploads {
            return self.begin_upload(id, &head);
        }
        if !matches!(head.method, Method::GET | Method::HEAD) {
            let answer = answer::method_not_allowed(self.takes_uploads);
            return self.refuse(id, &head.method, answer);
        }
        if self.serves_speedtests && head.path.as_deref() == Some(speedtest::PATH) {
            return self.begin_speedtest(now, id, head);
        }
        let Some(mut path) = head.path.as_deref().and_then(path::segments) else {
            return self.refuse(id, &head.method, answer::plain(StatusCode::NOT_FOUND));
        };
        if path.last().is_some_and(String::is_empty) {
            path.pop();
            path.push(INDEX.to_owned());
        }
        let file = self.open_file(id, path.clone());
        let exchange = OpenRequest {
            head,
            path,
            file: Some(file),
            state: ResponseState::Opening,
            began: now,
            sent: (None, 0),
        };
        self.exchanges.insert(id, exchange);
    }

    fn open_file(&mut self, id: RequestId, path: Vec<String>) -> FileId {
        let file = FileId(self.next_file);
        self.next_file += 1;
        self.requests_by_file.insert(file, id);
        self.outputs.push_back(Output::OpenFile { file, path });
        file
    }

    fn on_file_opened(&mut self, now: Instant, file: FileId, result: Result<FileMeta, FileError>) {
        let Some(&id) = self.requests_by_file.get(&file) else {
            // The request has ended in the meantime.
            if result.is_ok() {
                self.outputs.push_back(Output::CloseFile(file));
            }
            return;
        };
        let Some(exchange) = self.exchanges.get(&id) else {
            return impossible("a file that is open is of a request");
        };
        let name = exchange.path.last().map_or("", String::as_str);
        match result {
            Ok(meta) => {
                let answer = answer::for_file(&exchange.head, name, &meta);
                self.start(now, id, &answer);
            }
            Err(error) => {
                let method = exchange.head.method.clone();
                let answer = match error {
                    FileError::NotFound => answer::plain(StatusCode::NOT_FOUND),
                    FileError::IsFolder => answer::to_folder(exchange.head.path.as_deref()),
                    FileError::Io(error) => {
                        if let Some(left_out) = self.unreadable.due(now) {
                            tracing::warn!(%error, left_out, "a file cannot be read");
                        }
                        answer::plain(StatusCode::INTERNAL_SERVER_ERROR)
                    }
                };
                self.requests_by_file.remove(&file);
                self.exchanges.remove(&id);
                self.refuse(id, &method, answer);
            }
        }
    }

    /// Sends a response without a file.
    fn refuse(&mut self, id: RequestId, method: &Method, (head, body): (ResponseHead, Bytes)) {
        self.stats.requests_refused += 1;
        let status = head.status.as_u16();
        debug!(connection = id.0.0, stream = id.1.0, status, "request refused");
        let Some(mut carrier) = self.server.carrier(id.0) else { return }; // the client has gone
        let has_body = *method != Method::HEAD && !body.is_empty();
        let end = if has_body { End::More } else { End::Last };
        carrier.respond(id.1, &head, end);
        if has_body {
            carrier.begin_body(id.1, body.len());
            carrier.finish_with(id.1, body);
        }
    }

    /// Sends the header section of a response, and begins to send the file if the response has a
    /// body.
    fn start(&mut self, now: Instant, id: RequestId, answer: &Answer) {
        let len = answer.end - answer.start;
        // From now on the file is open, also if nothing of it is sent, and has to be closed.
        if let Some(exchange) = self.exchanges.get_mut(&id) {
            exchange.state = ResponseState::Sending {
                next: answer.start,
                end: answer.end,
                unsent: Bytes::new(),
                is_reading: false,
                ahead: FIRST_READ,
            };
        }
        let Some(mut carrier) = self.server.carrier(id.0) else { return }; // the client has gone
        let end = if len == 0 { End::Last } else { End::More };
        carrier.respond(id.1, &answer.head, end);
        if let Some(exchange) = self.exchanges.get_mut(&id) {
            exchange.sent.0 = Some(answer.head.status);
        }
        if len == 0 {
            return self.close(now, id);
        }
        carrier.begin_body(id.1, usize::try_from(len).unwrap_or(usize::MAX));
        self.send(now, id);
    }

    /// Sends the bytes that were read, and reads the next ones when all of them are written.
    fn send(&mut self, now: Instant, id: RequestId) {
        while self.send_some(now, id) {}
    }

    /// Sends what there is. Returns whether there is more at once.
    fn send_some(&mut self, now: Instant, id: RequestId) -> bool {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return false }; // it sends no file
        let ResponseState::Sending { next, end, unsent, is_reading, ahead } = &mut exchange.state
        else {
            return false; // its file is not open yet
        };
        let Some(mut carrier) = self.server.carrier(id.0) else { return false }; // the client has gone
        let before = unsent.len();
        let result = carrier.write_body(id.1, unsent);
        let written = (before - unsent.len()) as u64;
        exchange.sent.1 += written;
        self.stats.file_bytes += written;
        match result {
            Ok(Write::Blocked) => {}
            Err(_) => self.close(now, id),
            Ok(Write::Done) if *is_reading => {}
            Ok(Write::Done) if *next == *end => {
                carrier.finish(id.1);
                self.close(now, id);
            }
            Ok(Write::Done) => {
                let len = usize::try_from(*end - *next).unwrap_or(usize::MAX);
                let Some(file) = exchange.file else {
                    *unsent = speedtest::zeros(len);
                    *next += unsent.len() as u64;
                    return true;
                };
                let len = len.min(*ahead);
                *ahead = (*ahead * 2).min(self.limits.read_ahead);
                *is_reading = true;
                let offset = *next;
                self.outputs.push_back(Output::ReadFile { file, offset, len });
            }
        }
        false
    }

    fn on_file_chunk(&mut self, now: Instant, file: FileId, result: Result<Bytes, FileError>) {
        let Some(&id) = self.requests_by_file.get(&file) else { return }; // the request has ended
        let Some(exchange) = self.exchanges.get_mut(&id) else {
            return impossible("a file that is open is of a request");
        };
        let ResponseState::Sending { next, unsent, is_reading, .. } = &mut exchange.state else {
            return;
        }; // of a wrong driver
        *is_reading = false;
        match result {
            Ok(chunk) if !chunk.is_empty() => {
                *next += chunk.len() as u64;
                *unsent = chunk;
                self.send(now, id);
            }
            // The file was truncated or cannot be read, so the announced length cannot be reached.
            Ok(_) | Err(_) => {
                debug!("a file ended early");
                if let Some(mut carrier) = self.server.carrier(id.0) {
                    carrier.reset(id.1, Code::H3_INTERNAL_ERROR);
                }
                self.close(now, id);
            }
        }
    }

    /// Reads the body of a request. Its bytes are not stored.
    fn read_body(&mut self, now: Instant, id: RequestId) {
        loop {
            let Some(mut carrier) = self.server.carrier(id.0) else { return }; // the client has gone
            match carrier.read_body(id.1) {
                Ok(Body::Data(data)) if self.take_upload(id, data.len()) => {}
                Ok(Body::Data(_) | Body::Blocked) => return,
                Ok(Body::End) => {
                    self.end_upload(id);
                    return self.close_channel(id);
                }
                Ok(Body::Failed(_)) => {
                    self.uploads.remove(&id);
                    return self.close(now, id);
                }
                Err(error) => return self.server.break_connection(now, id.0, &error),
            }
        }
    }

    /// Forgets a request and its file.
    fn close(&mut self, now: Instant, id: RequestId) {
        let Some(exchange) = self.exchanges.remove(&id) else { return }; // it has no file
        if let Some(file) = exchange.file {
            self.requests_by_file.remove(&file);
        }
        let is_complete = match &exchange.state {
            ResponseState::Opening => exchange.sent.0.is_some(),
            ResponseState::Sending { next, end, unsent, .. } => next == end && unsent.is_empty(),
        };
        debug!(
            connection = id.0.0,
            stream = id.1.0,
            status = exchange.sent.0.map(|status| status.as_u16()),
            to_client_bytes = exchange.sent.1,
            active_s = (now - exchange.began).as_secs_f64(),
            reason = if is_complete { "complete" } else { "ended early" },
            "request ended"
        );
        if let Some(file) = exchange.file
            && !matches!(exchange.state, ResponseState::Opening)
        {
            self.outputs.push_back(Output::CloseFile(file));
        }
    }
}

impl Serves for Origin {
    fn set_tls(&mut self, tls: &ServerTls) {
        self.server.set_tls(tls);
    }

    fn hand_over(&mut self, now: Instant, busy: BusyNodes) {
        self.server.hand_over(now, busy);
    }

    fn take_back(&mut self) {
        self.server.take_back();
    }

    fn status(&mut self, busiest: usize) -> Status {
        self.stats.internal_errors += impossible::take();
        self.server.status(self.stats, busiest)
    }
}

impl Node for Origin {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Datagram(Received { remote, local_ip, ecn, payload, .. }) => {
                self.server.handle_datagram(now, (remote, local_ip), ecn, payload);
            }
            Input::Timeout => self.server.handle_timeout(now),
            Input::MemoryInUse(bytes) => {
                let Self { server, exchanges, .. } = self;
                server.set_memory_in_use(now, bytes, |id| chunks_of(exchanges, id));
            }
            Input::SocketOpened { result, .. } => {
                self.outputs.push_back(Output::Event(Event::listening(self.listen, result)));
            }
            Input::FileOpened { file, result } => self.on_file_opened(now, file, result),
            Input::FileChunk { file, result } => self.on_file_chunk(now, file, result),
            Input::Shutdown => {
                self.server.drain(now);
            }
            Input::SocketFailed { .. }
            | Input::NetworkChanged
            | Input::Resolved { .. }
            | Input::ServiceResolved { .. }
            | Input::BodyCredit { .. }
            | Input::TunnelInfo(_)
            | Input::Load(_)
            | Input::Tcp(_) => {}
        }
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        buf.clear();
        let is_idle = self.exchanges.is_empty() && self.uploads.is_empty();
        self.server.finish_drain(now, is_idle);
        while let Some((id, event)) = self.server.poll_event(now) {
            self.on_event(now, id, event);
        }
        if let Some(output) = self.outputs.pop_front() {
            return output;
        }
        if let Some(transmit) = self.server.poll_transmit(now, buf, |_, _| {}) {
            return Output::Transmit { socket: LISTEN, transmit };
        }
        if self.server.take_ended(now) {
            return Output::Event(Event::Closed(Ok(())));
        }
        Output::Wait(self.server.next_timeout())
    }
}
