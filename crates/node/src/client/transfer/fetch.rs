//! A download, with one request or with several requests for ranges of one file. Or an upload.

use std::{collections::BTreeMap, time::Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, StatusCode, header};
use tandem_wire::{Code, RequestHead, ResponseHead, StrangerText, TunnelInfo};

use super::{
    auto::Choice,
    ranges::{content_range, divide, is_same, location, strong_etag, unsatisfied, validator},
    relay::Relay,
    upload::Upload,
};
use crate::{
    client::{
        chain::Peer,
        config::{FetchConfig, Resume},
    },
    error::ClientError,
    fields::content_length,
    h3::{self, Body, ConnectionError, End},
    impossible::impossible,
    node::Event,
    quic::StreamId,
    stats::FeedbackStats,
};

/// With several streams, the first request asks for this many bytes. Its answer states the total
/// length, and the rest is then divided.
const FIRST_RANGE: u64 = 1 << 20;

/// The most bytes in one piece that goes to the program.
const PIECE: usize = 64 * 1024;

/// One request of a download.
#[derive(Debug)]
struct RangeRequest {
    /// The offset of its next byte in the file.
    offset: u64,
    /// The end of the part, exclusive. `None` while it is not known.
    end: Option<u64>,
    /// Whether its answer has arrived.
    is_answered: bool,
    /// Whether its body has ended.
    has_ended: bool,
}

impl RangeRequest {
    /// Whether an answer's range fits the request. The first range may be shorter, because the rest
    /// is requested after it. For that the total must be known.
    fn allows(&self, end: u64, total: Option<u64>, is_first: bool) -> bool {
        match self.end {
            None if self.offset == 0 => false, // the whole file was requested
            None => total == Some(end),
            Some(asked) if is_first => end <= asked && total.is_some(),
            Some(asked) => end == asked,
        }
    }
}

/// The progress of a transfer.
#[derive(Debug)]
pub(in crate::client) enum Progress {
    /// A piece of the body.
    Piece { offset: u64, data: Bytes },
    /// The transfer is complete.
    Complete,
}

/// Why a transfer failed.
#[derive(Debug)]
pub(in crate::client) enum Failure {
    /// The origin violated HTTP/3.
    Protocol(ConnectionError),
    /// The origin's answer is malformed.
    Malformed(ClientError),
    /// The transfer cannot be completed.
    Client(ClientError),
}

/// A download or an upload.
pub(in crate::client) struct Fetch {
    /// The origin's authority.
    authority: String,
    config: FetchConfig,
    /// Passes reports on the tunnel on, if the origin gets any.
    relay: Option<Relay>,
    /// The upload, if this is not a download.
    upload: Option<Upload>,
    parts: BTreeMap<StreamId, RangeRequest>,
    /// Ranges that could not be requested yet, because the origin allows no more streams.
    waiting: Vec<(u64, u64)>,
    etag: Option<HeaderValue>,
    /// The download that this one continues, until the origin has agreed or refused to continue it.
    resume: Option<Resume>,
    pub(in crate::client) status: Option<StatusCode>,
    pub(in crate::client) bytes: u64,
    /// Bytes that may still go to the program before it gives more credit.
    credit: u64,
    /// Whether the program wants no bytes for now.
    is_held: bool,
    pub(in crate::client) is_complete: bool,
}

impl Fetch {
    pub(in crate::client) fn new(
        authority: String,
        config: FetchConfig,
        credit: u64,
        relay: Option<Relay>,
    ) -> Self {
        let upload = config.upload.map(|len| Upload::new(len, config.is_upload_measured));
        let resume = config.resume.clone().filter(|resume| resume.offset > 0);
        Self {
            authority,
            config,
            resume,
            relay,
            upload,
            parts: BTreeMap::new(),
            waiting: Vec::new(),
            etag: None,
            status: None,
            bytes: 0,
            credit,
            is_held: false,
            is_complete: false,
        }
    }

    pub(in crate::client) fn add_credit(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_add(bytes);
    }

    pub(in crate::client) const fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether this is the stream of one of our requests.
    pub(in crate::client) fn has_request(&self, stream: u64) -> bool {
        self.parts.contains_key(&StreamId(stream))
    }

    /// The bytes of an upload's body that the connection has taken; 0 for a download.
    pub(in crate::client) fn uploaded(&self) -> u64 {
        self.upload.as_ref().map_or(0, Upload::taken)
    }

    /// Sends the first request.
    pub(in crate::client) fn start(&mut self, origin: &mut Peer) {
        if self.config.streams > 1 {
            let start = self.first_byte();
            self.waiting.push((start, start.saturating_add(FIRST_RANGE)));
        }
        self.send_requests(origin);
    }

    /// The position of the first byte to request.
    fn first_byte(&self) -> u64 {
        self.resume.as_ref().map_or(0, |resume| resume.offset)
    }

    /// Sends requests for the ranges that wait, or for the whole file.
    pub(in crate::client) fn send_requests(&mut self, origin: &mut Peer) {
        if self.config.streams <= 1 {
            if self.parts.is_empty() && self.status.is_none() {
                self.request(origin, self.first_byte(), None);
            }
            return;
        }
        while let Some((start, end)) = self.waiting.pop() {
            if !self.request(origin, start, Some(end)) {
                self.waiting.push((start, end));
                return;
            }
        }
    }

    fn request(&mut self, origin: &mut Peer, start: u64, end: Option<u64>) -> bool {
        let mut headers = self.config.fields.clone();
        let range = match end {
            Some(end) => Some(format!("bytes={start}-{}", end - 1)),
            None => (start > 0).then(|| format!("bytes={start}-")),
        };
        if let Some(Ok(range)) = range.map(HeaderValue::try_from) {
            headers.insert(header::RANGE, range);
        }
        // These make sure that all ranges are of one file, even if it is replaced meanwhile.
        if let Some(etag) = &self.etag {
            headers.insert(header::IF_MATCH, etag.clone());
        }
        if let Some(resume) = &self.resume {
            headers.insert(header::IF_RANGE, resume.validator.clone());
        }
        if let Some(relay) = &mut self.relay {
            relay.add_to(&mut headers, origin);
        }
        let upload = self.upload.as_ref();
        let method = upload.map_or(Method::GET, |upload| upload.add_to(&mut headers));
        let end_of_request = if self.upload.is_some() { End::More } else { End::Last };
        let head = RequestHead {
            method,
            scheme: Some("https".to_owned()),
            authority: Some(self.authority.clone()),
            path: Some(self.config.path.clone()),
            protocol: None,
            headers,
        };
        let Some(mut carrier) = origin.carrier() else { return false }; // it is lost
        let Some(stream) = carrier.request(&head, end_of_request) else {
            return false; // the origin allows no more streams at present
        };
        if let Some(upload) = &mut self.upload {
            upload.begin(origin, stream);
        }
        self.parts.insert(
            stream,
            RangeRequest { offset: start, end, is_answered: false, has_ended: false },
        );
        true
    }

    /// Continues an upload after its stream has room again.
    fn on_writable(&mut self, origin: &mut Peer, stream: StreamId) {
        if let Some(upload) = self.upload.as_mut().filter(|_| self.parts.contains_key(&stream)) {
            upload.send(origin, stream);
        }
    }

    /// Handles the origin's SETTINGS.
    fn on_settings(&mut self, origin: &mut Peer) {
        if let Some(relay) = &mut self.relay {
            relay.on_settings(origin);
        }
    }

    /// Passes a report on the tunnel on. `false`: the origin gets no reports.
    pub(in crate::client) fn relay(&mut self, now: Instant, info: TunnelInfo) -> bool {
        let Some(relay) = &mut self.relay else { return false }; // the origin gets none
        relay.push(now, info);
        true
    }

    /// The order in which payloads should leave the tunnel. `None` for an upload.
    pub(in crate::client) fn choice(&self) -> Option<Choice> {
        let follows_reports = self.relay.as_ref().is_some_and(Relay::is_open);
        self.upload.is_none().then(|| Choice::of(follows_reports))
    }

    /// When the next timer is due.
    pub(in crate::client) fn next_timeout(&self) -> Option<Instant> {
        self.relay.as_ref().and_then(Relay::next_timeout)
    }

    pub(in crate::client) fn handle_timeout(&mut self, now: Instant, origin: &mut Peer) {
        if let Some(relay) = &mut self.relay {
            relay.handle_timeout(now, origin);
        }
    }

    /// Handles the arrival of a packet from the origin.
    pub(in crate::client) fn on_packet(&mut self, now: Instant, origin: &mut Peer) {
        if let Some(relay) = &mut self.relay {
            relay.on_packet(now, origin);
        }
    }

    /// Lets the sender of an upload follow a report on this client's end of its tunnel.
    pub(in crate::client) fn follow(&mut self, now: Instant, origin: &mut Peer, info: TunnelInfo) {
        if let Some(upload) = &mut self.upload {
            upload.follow(now, origin, info);
        }
    }

    /// Adds the reports that went to the origin, or that the sender of an upload followed.
    pub(in crate::client) fn add_to(&self, feedback: &mut FeedbackStats) {
        match &self.upload {
            Some(upload) => {
                feedback.sent = upload.reports;
                feedback.followed += upload.followed;
            }
            None => feedback.sent = self.relay.as_ref().map_or(0, |relay| relay.sent),
        }
    }

    /// Handles the end of a stream, if it is the stream for reports. A download continues without
    /// it. Returns whether it was that stream.
    fn on_relay_end(&mut self, stream: StreamId) -> bool {
        let relay = self.relay.as_mut().filter(|relay| relay.owns(stream));
        relay.map(Relay::on_end).is_some()
    }

    /// Handles an event of the connection to the origin. Returns what the embedding program is told.
    pub(in crate::client) fn on_event(
        &mut self,
        origin: &mut Peer,
        event: h3::Event,
    ) -> Result<Option<Event>, Failure> {
        match event {
            h3::Event::Settings => self.on_settings(origin),
            h3::Event::Response(stream, head) => return self.on_response(origin, stream, &head),
            h3::Event::Writable(stream) => self.on_writable(origin, stream),
            h3::Event::Failed(stream, code) => {
                if !self.on_relay_end(stream) {
                    return Err(Failure::Client(self.reset(code)));
                }
            }
            h3::Event::GoAway => tracing::debug!("the origin is going away"),
            h3::Event::Body(_) => {} // `poll` reads the body of an answer
            h3::Event::Request(..) => impossible("a client's session refuses requests"),
        }
        Ok(None)
    }

    /// Handles an answer. Returns an event for the first one.
    fn on_response(
        &mut self,
        origin: &mut Peer,
        stream: StreamId,
        head: &ResponseHead,
    ) -> Result<Option<Event>, Failure> {
        if let Some(relay) = self.relay.as_mut().filter(|relay| relay.owns(stream)) {
            relay.on_response(stream, head.status);
            return Ok(None);
        }
        if let Some(location) = location(head) {
            let (url, status) = (self.url().into(), head.status.as_u16());
            return Err(Failure::Client(ClientError::Redirected { url, status, location }));
        }
        if self.upload.is_some() {
            return self.on_upload_answered(head.status);
        }
        let is_first = self.status.is_none();
        if let Some(resume) = self.resume.take() {
            if head.status == StatusCode::RANGE_NOT_SATISFIABLE {
                return Ok(self.on_nothing_left(origin, stream, head, &resume));
            }
            // An origin that does not know If-Range sends a range of the file that it has now.
            if head.status == StatusCode::PARTIAL_CONTENT
                && !is_same(&head.headers, &resume.validator)
            {
                self.start_over(origin, stream);
                return Ok(None);
            }
        }
        if !matches!(head.status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            return Err(Failure::Client(match head.status {
                StatusCode::PRECONDITION_FAILED => self.changed(),
                status => ClientError::Status { url: self.url().into(), status: status.as_u16() },
            }));
        }
        let range = (head.status == StatusCode::PARTIAL_CONTENT)
            .then(|| content_range(&head.headers))
            .flatten();
        let length = content_length(&head.headers).map_err(|error| self.malformed(error))?;
        if let (Some(length), Some((start, end, _))) = (length, range)
            && length != end - start
        {
            return Err(self.malformed("Content-Length and Content-Range differ"));
        }
        let Some(part) = self.parts.get_mut(&stream) else { return Ok(None) }; // it was given up
        part.is_answered = true;
        let total = match (head.status, range) {
            (StatusCode::PARTIAL_CONTENT, Some((start, end, total)))
                if start == part.offset && part.allows(end, total, is_first) =>
            {
                part.end = Some(end);
                total
            }
            (StatusCode::OK, _) if is_first => {
                (part.offset, part.end) = (0, length);
                length
            }
            // The answer has a range that was not requested, or the whole file instead of one of
            // several ranges.
            _ => return Err(Failure::Client(self.changed())),
        };
        if !is_first {
            return Ok(None);
        }
        self.status = Some(head.status);
        self.etag = strong_etag(&head.headers);
        let (start, end_of_first) = (part.offset, part.end);
        if let (StatusCode::PARTIAL_CONTENT, Some(total), Some(end)) =
            (head.status, total, end_of_first)
        {
            self.waiting = divide(end, total, self.config.streams);
            self.send_requests(origin);
        }
        let (status, validator) = (head.status.as_u16(), validator(&head.headers));
        Ok(Some(Event::ResponseStarted { status, len: total, start, validator }))
    }

    /// Handles the answer that the file has no bytes beyond those that arrived earlier. Either the
    /// earlier download was complete, or it was of another file.
    fn on_nothing_left(
        &mut self,
        origin: &mut Peer,
        stream: StreamId,
        head: &ResponseHead,
        resume: &Resume,
    ) -> Option<Event> {
        let len = unsatisfied(&head.headers).filter(|&len| len == resume.offset);
        if len.is_none() || !is_same(&head.headers, &resume.validator) {
            self.start_over(origin, stream);
            return None;
        }
        self.parts.remove(&stream);
        self.status = Some(head.status);
        let (status, validator) = (head.status.as_u16(), Some(resume.validator.clone()));
        Some(Event::ResponseStarted { status, len, start: resume.offset, validator })
    }

    /// Gives up a request that would have continued an earlier download, and requests the whole
    /// file.
    fn start_over(&mut self, origin: &mut Peer, stream: StreamId) {
        self.parts.remove(&stream);
        if let Some(mut carrier) = origin.carrier() {
            carrier.reset(stream, Code::H3_REQUEST_CANCELLED);
        }
        self.start(origin);
    }

    fn on_upload_answered(&mut self, status: StatusCode) -> Result<Option<Event>, Failure> {
        let Some(upload) = &self.upload else { return Ok(None) }; // it is a download
        if upload.is_complete(status) {
            self.status = Some(status);
            self.bytes = upload.len.get();
            return Ok(None);
        }
        Err(Failure::Client(if status.is_success() {
            self.body_error(format!(
                "status {status} before the whole body was sent, or instead of 204"
            ))
        } else {
            ClientError::Status { url: self.url().into(), status: status.as_u16() }
        }))
    }

    /// The next piece of any part. `None`: no data has arrived.
    pub(in crate::client) fn poll(
        &mut self,
        origin: &mut Peer,
    ) -> Option<Result<Progress, Failure>> {
        if self.is_complete || self.status.is_none() {
            return None;
        }
        if self.upload.is_some() {
            self.is_complete = true;
            return Some(Ok(Progress::Complete));
        }
        if !self.waiting.is_empty() && origin.session.is_peer_going() {
            let reason = "the origin is going away and takes no more requests";
            return Some(Err(Failure::Client(self.body_error(reason))));
        }
        if self.credit == 0 || self.is_held {
            return None;
        }
        let streams: Vec<_> = self.parts.keys().copied().collect();
        for stream in streams {
            match self.read(origin, stream) {
                Ok(None) => {}
                Ok(Some(progress)) => return Some(Ok(progress)),
                Err(failure) => return Some(Err(failure)),
            }
        }
        if self.parts.is_empty() && self.waiting.is_empty() {
            self.is_complete = true;
            return Some(Ok(Progress::Complete));
        }
        None
    }

    fn read(&mut self, origin: &mut Peer, stream: StreamId) -> Result<Option<Progress>, Failure> {
        let Some(part) = self.parts.get_mut(&stream) else { return Ok(None) }; // it was given up
        if !part.is_answered {
            return Ok(None);
        }
        if part.has_ended {
            return self.on_end(stream).map(|()| None);
        }
        let Some(mut carrier) = origin.carrier() else { return Ok(None) }; // it is lost
        let max = PIECE.min(usize::try_from(self.credit).unwrap_or(PIECE));
        let mut piece = BytesMut::new();
        let mut failed = None;
        while piece.len() < max {
            match carrier.read_body(stream).map_err(Failure::Protocol)? {
                Body::Data(data) => piece.extend_from_slice(&data),
                Body::Blocked => break,
                Body::End => {
                    part.has_ended = true;
                    break;
                }
                Body::Failed(code) => {
                    failed = Some(code);
                    break;
                }
            }
        }
        if piece.is_empty() {
            return match failed {
                Some(code) => Err(Failure::Client(self.reset(code))),
                None if part.has_ended => self.on_end(stream).map(|()| None),
                None => Ok(None),
            };
        }
        // The next read handles an end or a failure that followed this piece.
        let offset = part.offset;
        part.offset += piece.len() as u64;
        if part.end.is_some_and(|end| part.offset > end) {
            return Err(self.malformed("longer than announced"));
        }
        self.bytes += piece.len() as u64;
        self.credit = self.credit.saturating_sub(piece.len() as u64);
        Ok(Some(Progress::Piece { offset, data: piece.freeze() }))
    }

    fn on_end(&mut self, stream: StreamId) -> Result<(), Failure> {
        let Some(part) = self.parts.remove(&stream) else { return Ok(()) }; // it was given up
        match part.end {
            Some(end) if part.offset < end => {
                Err(self.malformed(&format!("the body ended {} bytes early", end - part.offset)))
            }
            _ => Ok(()),
        }
    }

    /// The error for a stream that the origin reset.
    fn reset(&self, code: Code) -> ClientError {
        self.body_error(format!("the origin reset the transfer ({code})"))
    }

    fn changed(&self) -> ClientError {
        self.body_error("the file changed while it was fetched".to_owned())
    }

    fn malformed(&self, reason: &str) -> Failure {
        Failure::Malformed(self.body_error(reason))
    }

    fn body_error(&self, reason: impl Into<StrangerText>) -> ClientError {
        ClientError::Body { url: self.url().into(), reason: reason.into() }
    }

    fn url(&self) -> String {
        format!("https://{}{}", self.authority, self.config.path)
    }
}
