//! What a site answers, whichever node serves it: the files of a folder, uploads and reports.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use bytes::Bytes;
use http::{Method, StatusCode};
use tandem_wire::{Code, ErrorScope, HttpDatagram, RequestHead, ResponseHead, TraceId, TunnelInfo};
use tracing::{debug, field::display};

use super::{
    answer::{self, Answer},
    relayed::Relayed,
    speedtest,
};
use crate::{
    carrier::Carrier,
    h3::{self, Body, End},
    impossible::impossible,
    limits::Limits,
    node::{FileError, FileId, FileMeta, Input, Output},
    quic::{ConnectionId, StreamId, Write},
    seldom::Seldom,
    server::Server,
    stats::Stats,
};

/// The number of bytes of a file that are read first. It is small, so that clients that do not read
/// their response cost little memory.
const FIRST_READ: usize = 16 * 1024;

/// The name of a request.
pub(super) type RequestId = (ConnectionId, StreamId);

/// A request whose response is not complete.
pub(super) struct OpenRequest {
    pub(super) head: RequestHead,
    pub(super) path: Vec<String>,
    /// `None`: the body is zeros.
    pub(super) file: Option<FileId>,
    pub(super) state: ResponseState,
    pub(super) began: Instant,
    /// The status of the response, and how many bytes of its body were sent.
    pub(super) sent: (Option<StatusCode>, u64),
}

pub(super) enum ResponseState {
    /// The file is being opened.
    Opening,
    /// The file is being sent. `next` is the position of the next byte to read, and `end` is the
    /// position after the last one. The origin reads `ahead` bytes at a time; the number doubles
    /// after each read, up to [`Limits::read_ahead`].
    Sending { next: u64, end: u64, unsent: Bytes, is_reading: bool, ahead: usize },
}

/// The request stream to which a datagram belongs.
const fn stream_of(datagram: &HttpDatagram) -> StreamId {
    StreamId(datagram.quarter_stream_id.stream_id())
}

/// What a site uses of the node that serves it.
pub(crate) struct Edge<'a> {
    pub(crate) now: Instant,
    pub(crate) server: &'a mut Server,
    pub(crate) outputs: &'a mut VecDeque<Output>,
    pub(crate) stats: &'a mut Stats,
}

/// Where the content of a site comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// The folder of the driver.
    #[default]
    Folder,
    /// An HTTP server, which the driver asks ([`UpstreamOutput`](crate::upstream::UpstreamOutput)).
    Upstream,
}

impl Content {
    const fn is_upstream(self) -> bool {
        matches!(self, Self::Upstream)
    }
}

/// Which requests a site answers besides those for its content.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extras {
    /// Reports on tunnels, because the congestion controller uses them.
    pub(crate) reports: bool,
    /// Uploads, which are counted and dropped.
    pub(crate) uploads: bool,
    /// A body of zeros.
    pub(crate) speedtests: bool,
}

/// A site: its requests, and what of their answers has not been sent.
pub(crate) struct Site {
    pub(super) limits: Limits,
    pub(super) extras: Extras,
    pub(super) exchanges: BTreeMap<RequestId, OpenRequest>,
    pub(super) requests_by_file: BTreeMap<FileId, RequestId>,
    /// The number of missing bytes of each upload.
    pub(super) uploads: BTreeMap<RequestId, u64>,
    /// The request of each connection that carries reports.
    pub(super) channels: BTreeMap<ConnectionId, StreamId>,
    pub(super) next_file: u64,
    /// The exchanges with the server from which the site comes. `None`: it comes from a folder.
    pub(super) upstream: Option<Relayed>,
    /// Limits the warnings of content that cannot be read, for which clients may ask as often as they like.
    pub(super) unreadable: Seldom,
}

impl Site {
    pub(crate) fn new(content: Content, extras: Extras, limits: &Limits) -> Self {
        Self {
            limits: limits.clone(),
            extras,
            exchanges: BTreeMap::new(),
            requests_by_file: BTreeMap::new(),
            uploads: BTreeMap::new(),
            channels: BTreeMap::new(),
            next_file: 0,
            upstream: content.is_upstream().then(Relayed::default),
            unreadable: Seldom::default(),
        }
    }

    /// Whether no answer is being sent.
    pub(crate) fn is_idle(&self) -> bool {
        let is_relaying = self.upstream.as_ref().is_some_and(|relayed| !relayed.is_empty());
        self.exchanges.is_empty() && self.uploads.is_empty() && !is_relaying
    }

    /// The bytes of answers that wait to be sent on a connection.
    pub(crate) fn memory_of(&self, id: ConnectionId) -> u64 {
        let of_connection = self.exchanges.range((id, StreamId(0))..=(id, StreamId(u64::MAX)));
        let unsent = of_connection.map(|(_, exchange)| match &exchange.state {
            ResponseState::Opening => 0,
            ResponseState::Sending { unsent, .. } => unsent.len() as u64,
        });
        let relayed = self.upstream.as_ref().map_or(0, |relayed| relayed.memory_of(id));
        unsent.sum::<u64>() + relayed
    }

    /// Handles what HTTP/3 says of a request that is the site's.
    pub(crate) fn on_http(&mut self, cx: &mut Edge<'_>, id: ConnectionId, event: h3::Event) {
        match event {
            h3::Event::Request(stream, head) => self.on_request(cx, (id, stream), *head),
            h3::Event::Body(stream) if self.is_relayed((id, stream)) => {
                self.relay_body(cx, (id, stream));
            }
            h3::Event::Body(stream) => self.read_body(cx, (id, stream)),
            h3::Event::Writable(stream) => {
                self.send(cx, (id, stream));
                self.relay(cx, (id, stream));
            }
            h3::Event::Failed(stream, _) => {
                self.close_channel(cx, (id, stream));
                self.uploads.remove(&(id, stream));
                self.close(cx, (id, stream));
                self.cancel(cx, (id, stream));
            }
            h3::Event::Settings | h3::Event::Response(..) | h3::Event::GoAway => {}
        }
    }

    /// Handles what the driver has found out for the site.
    pub(crate) fn handle(&mut self, cx: &mut Edge<'_>, input: Input) {
        match input {
            Input::FileOpened { file, result } => self.on_file_opened(cx, file, result),
            Input::FileChunk { file, result } => self.on_file_chunk(cx, file, result),
            Input::Upstream(input) => self.on_upstream(cx, input),
            _ => {} // it is not for a site
        }
    }

    /// Forgets the requests of a connection that has ended.
    pub(crate) fn on_closed(&mut self, cx: &mut Edge<'_>, id: ConnectionId) {
        let (first, last) = ((id, StreamId(0)), (id, StreamId(u64::MAX)));
        let gone: Vec<_> = self.exchanges.range(first..=last).map(|(&id, _)| id).collect();
        for id in gone {
            self.close(cx, id);
        }
        self.cancel_all(cx, id);
        self.channels.remove(&id);
        self.uploads.retain(|(connection, _), _| *connection != id);
    }

    /// Processes all received datagrams. Only reports use datagrams. Those whose request may still arrive are given
    /// to `early`.
    pub(crate) fn take_datagrams(
        &mut self,
        cx: &mut Edge<'_>,
        id: ConnectionId,
        mut early: impl FnMut(&mut Carrier<'_>, HttpDatagram),
    ) {
        while let Some(mut carrier) = cx.server.carrier(id)
            && let Some(data) = carrier.receive_datagram()
        {
            match HttpDatagram::decode(data) {
                Err(error) if error.scope() == ErrorScope::Connection => {
                    cx.stats.dropped.malformed += 1;
                    cx.server.break_connection(cx.now, id, &error.into());
                }
                Ok(datagram) if self.is_channel((id, &datagram)) => {
                    Self::take_report(cx, id, datagram);
                }
                // RFC 9297 §2.1: "If an HTTP/3 Datagram is received and its Quarter Stream ID field maps to a stream
                // that has not yet been created, the receiver SHALL either drop that datagram silently or buffer it
                // temporarily".
                Ok(datagram) if carrier.may_come(stream_of(&datagram)) => {
                    early(&mut carrier, datagram);
                }
                Ok(datagram) => {
                    // RFC 9297 §2: "If an HTTP Datagram is received and it is associated with a
                    // request that has no known semantics for HTTP Datagrams, the receiver MUST
                    // terminate the request. If HTTP/3 is in use, the request stream MUST be
                    // aborted with H3_DATAGRAM_ERROR (0x33)."
                    cx.stats.dropped.unknown_flow += 1;
                    let stream = stream_of(&datagram);
                    carrier.reset(stream, Code::H3_DATAGRAM_ERROR);
                    self.close(cx, (id, stream));
                    self.cancel(cx, (id, stream));
                }
                Err(_) => cx.stats.dropped.malformed += 1,
            }
        }
    }

    fn on_request(&mut self, cx: &mut Edge<'_>, id: RequestId, head: RequestHead) {
        cx.stats.requests += 1;
        let trace_id = TraceId::of(&head.headers).map(display);
        debug!(connection = id.0.0, stream = id.1.0, trace_id, method = %head.method, "request received");
        Self::read_report(cx, id.0, &head.headers);
        if head.protocol.as_deref() == Some(TunnelInfo::PROTOCOL) {
            return self.open_channel(cx, id);
        }
        if self.upstream.is_some() {
            return self.ask_upstream(cx, id, head);
        }
        if head.method == Method::PUT && self.extras.uploads {
            return self.begin_upload(cx, id, &head);
        }
        let is_read = matches!(head.method, Method::GET | Method::HEAD);
        if self.extras.speedtests && is_read && head.path.as_deref() == Some(speedtest::PATH) {
            return self.begin_speedtest(cx, id, head);
        }
        let path = match answer::find(&head, self.extras.uploads) {
            Ok(path) => path,
            Err(answer) => return Self::refuse(cx, id, &head.method, *answer),
        };
        let file = self.open_file(cx, id, path.clone());
        let exchange = OpenRequest {
            head,
            path,
            file: Some(file),
            state: ResponseState::Opening,
            began: cx.now,
            sent: (None, 0),
        };
        self.exchanges.insert(id, exchange);
    }

    fn open_file(&mut self, cx: &mut Edge<'_>, id: RequestId, path: Vec<String>) -> FileId {
        let file = FileId(self.next_file);
        self.next_file += 1;
        self.requests_by_file.insert(file, id);
        cx.outputs.push_back(Output::OpenFile { file, path });
        file
    }

    fn on_file_opened(
        &mut self,
        cx: &mut Edge<'_>,
        file: FileId,
        result: Result<FileMeta, FileError>,
    ) {
        let Some(&id) = self.requests_by_file.get(&file) else {
            // The request has ended in the meantime.
            if result.is_ok() {
                cx.outputs.push_back(Output::CloseFile(file));
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
                self.start(cx, id, &answer);
            }
            Err(error) => {
                let method = exchange.head.method.clone();
                let answer = answer::without_file(&exchange.head, error);
                if let FileError::Io(error) = error
                    && let Some(left_out) = self.unreadable.due(cx.now)
                {
                    tracing::warn!(%error, left_out, "a file cannot be read");
                }
                self.requests_by_file.remove(&file);
                self.exchanges.remove(&id);
                Self::refuse(cx, id, &method, answer);
            }
        }
    }

    /// Sends a response without a file.
    pub(super) fn refuse(
        cx: &mut Edge<'_>,
        id: RequestId,
        method: &Method,
        (head, body): (ResponseHead, Bytes),
    ) {
        cx.stats.requests_refused += 1;
        let status = head.status.as_u16();
        debug!(connection = id.0.0, stream = id.1.0, status, "request refused");
        let Some(mut carrier) = cx.server.carrier(id.0) else { return }; // the client has gone
        let has_body = *method != Method::HEAD && !body.is_empty();
        let end = if has_body { End::More } else { End::Last };
        carrier.respond(id.1, &head, end);
        if has_body {
            carrier.begin_body(id.1, body.len());
            carrier.finish_with(id.1, body);
        }
        if *method == Method::CONNECT {
            // What a client sends before it has the answer, datagrams too, is of no use any more.
            carrier.stop_reading(id.1);
        }
    }

    /// Sends the header section of a response, and begins to send the file if the response has a
    /// body.
    pub(super) fn start(&mut self, cx: &mut Edge<'_>, id: RequestId, answer: &Answer) {
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
        let Some(mut carrier) = cx.server.carrier(id.0) else { return }; // the client has gone
        let end = if len == 0 { End::Last } else { End::More };
        carrier.respond(id.1, &answer.head, end);
        if let Some(exchange) = self.exchanges.get_mut(&id) {
            exchange.sent.0 = Some(answer.head.status);
        }
        if len == 0 {
            return self.close(cx, id);
        }
        carrier.begin_body(id.1, usize::try_from(len).unwrap_or(usize::MAX));
        self.send(cx, id);
    }

    /// Sends the bytes that were read, and reads the next ones when all of them are written.
    fn send(&mut self, cx: &mut Edge<'_>, id: RequestId) {
        while self.send_some(cx, id) {}
    }

    /// Sends what there is. Returns whether there is more at once.
    fn send_some(&mut self, cx: &mut Edge<'_>, id: RequestId) -> bool {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return false }; // it sends no file
        let ResponseState::Sending { next, end, unsent, is_reading, ahead } = &mut exchange.state
        else {
            return false; // its file is not open yet
        };
        let Some(mut carrier) = cx.server.carrier(id.0) else { return false }; // the client has gone
        let before = unsent.len();
        let result = carrier.write_body(id.1, unsent);
        let written = (before - unsent.len()) as u64;
        exchange.sent.1 += written;
        cx.stats.file_bytes += written;
        match result {
            Ok(Write::Blocked) => {}
            Err(_) => self.close(cx, id),
            Ok(Write::Done) if *is_reading => {}
            Ok(Write::Done) if *next == *end => {
                carrier.finish(id.1);
                self.close(cx, id);
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
                cx.outputs.push_back(Output::ReadFile { file, offset, len });
            }
        }
        false
    }

    fn on_file_chunk(&mut self, cx: &mut Edge<'_>, file: FileId, result: Result<Bytes, FileError>) {
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
                self.send(cx, id);
            }
            // The file was truncated or cannot be read, so the announced length cannot be reached.
            Ok(_) | Err(_) => {
                debug!("a file ended early");
                if let Some(mut carrier) = cx.server.carrier(id.0) {
                    carrier.reset(id.1, Code::H3_INTERNAL_ERROR);
                }
                self.close(cx, id);
            }
        }
    }

    /// Reads the body of a request. Its bytes are not stored.
    fn read_body(&mut self, cx: &mut Edge<'_>, id: RequestId) {
        loop {
            let Some(mut carrier) = cx.server.carrier(id.0) else { return }; // the client has gone
            match carrier.read_body(id.1) {
                Ok(Body::Data(data)) if self.take_upload(cx, id, data.len()) => {}
                Ok(Body::Data(_) | Body::Blocked) => return,
                Ok(Body::End) => {
                    self.end_upload(cx, id);
                    return self.close_channel(cx, id);
                }
                Ok(Body::Failed(_)) => {
                    self.uploads.remove(&id);
                    return self.close(cx, id);
                }
                Err(error) => return cx.server.break_connection(cx.now, id.0, &error),
            }
        }
    }

    /// Forgets a request and its file.
    fn close(&mut self, cx: &mut Edge<'_>, id: RequestId) {
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
            active_s = (cx.now - exchange.began).as_secs_f64(),
            reason = if is_complete { "complete" } else { "ended early" },
            "request ended"
        );
        if let Some(file) = exchange.file
            && !matches!(exchange.state, ResponseState::Opening)
        {
            cx.outputs.push_back(Output::CloseFile(file));
        }
    }
}
