//! A download, with one request or with several requests for ranges of one file. Or an upload.

use std::{collections::BTreeMap, time::Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tandem_wire::{Code, RequestHead, ResponseHead, TunnelInfo};

use super::{FetchConfig, peer::Peer, relay::Relay, upload::Upload};
use crate::{
    error::ClientError,
    fields::content_length,
    h3::{Body, ConnectionError, End},
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
struct Part {
    /// The offset of its next byte in the file.
    offset: u64,
    /// The end of the part, exclusive. `None` while it is not known.
    end: Option<u64>,
    /// Whether its answer has arrived.
    is_answered: bool,
    /// Whether its body has ended.
    has_ended: bool,
}

impl Part {
    /// Whether an answer's range fits the request. The first range may be shorter, because the rest
    /// is requested after it. For that the total must be known.
    fn allows(&self, end: u64, total: Option<u64>, is_first: bool) -> bool {
        match self.end {
            None => false, // the whole file was requested
            Some(asked) if is_first => end <= asked && total.is_some(),
            Some(asked) => end == asked,
        }
    }
}

/// The progress of a transfer.
#[derive(Debug)]
pub(super) enum Progress {
    /// A piece of the body.
    Piece { offset: u64, data: Bytes },
    /// The transfer is complete.
    Complete,
}

/// Why a transfer failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The origin violated HTTP/3.
    Protocol(ConnectionError),
    /// The origin's answer is malformed.
    Malformed(ClientError),
    /// The transfer cannot be completed.
    Client(ClientError),
}

/// A download or an upload.
pub(super) struct Fetch {
    /// The origin's authority.
    authority: String,
    config: FetchConfig,
    /// Passes reports on the tunnel on, if the origin gets any.
    relay: Option<Relay>,
    /// The upload, if this is not a download.
    pub(super) upload: Option<Upload>,
    parts: BTreeMap<StreamId, Part>,
    /// Ranges that could not be requested yet, because the origin allows no more streams.
    waiting: Vec<(u64, u64)>,
    etag: Option<HeaderValue>,
    pub(super) status: Option<StatusCode>,
    pub(super) bytes: u64,
    /// Bytes that may still go to the program before it gives more credit.
    credit: u64,
    pub(super) is_complete: bool,
}

impl Fetch {
    pub(super) fn new(
        authority: String,
        config: FetchConfig,
        credit: u64,
        relay: Option<Relay>,
    ) -> Self {
        let upload = config.upload.map(Upload::new);
        Self {
            authority,
            config,
            relay,
            upload,
            parts: BTreeMap::new(),
            waiting: Vec::new(),
            etag: None,
            status: None,
            bytes: 0,
            credit,
            is_complete: false,
        }
    }

    pub(super) fn add_credit(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_add(bytes);
    }

    /// Whether this is the stream of one of our requests.
    pub(super) fn has_request(&self, stream: u64) -> bool {
        self.parts.contains_key(&StreamId(stream))
    }

    /// Sends the first request.
    pub(super) fn start(&mut self, origin: &mut Peer) {
        if self.config.streams > 1 {
            self.waiting.push((0, FIRST_RANGE));
        }
        self.send_requests(origin);
    }

    /// Sends requests for the ranges that wait, or for the whole file.
    pub(super) fn send_requests(&mut self, origin: &mut Peer) {
        if self.config.streams <= 1 {
            if self.parts.is_empty() && self.status.is_none() {
                self.request(origin, 0, None);
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
        let mut headers = HeaderMap::new();
        if let Some(end) = end
            && let Ok(range) = HeaderValue::from_str(&format!("bytes={start}-{}", end - 1))
        {
            headers.insert(header::RANGE, range);
        }
        // This makes sure that all ranges are of one file, even if it is replaced meanwhile.
        if let Some(etag) = &self.etag {
            headers.insert(header::IF_MATCH, etag.clone());
        }
        if let Some(relay) = &mut self.relay {
            relay.add_to(&mut headers);
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
        let Some((session, connection)) = origin.parts() else { return false };
        let Some(stream) = session.send_request(connection, &head, end_of_request) else {
            return false;
        };
        if let Some(upload) = &mut self.upload {
            upload.begin(origin, stream);
        }
        self.parts
            .insert(stream, Part { offset: start, end, is_answered: false, has_ended: false });
        true
    }

    /// Continues an upload after its stream has room again.
    pub(super) fn on_writable(&mut self, origin: &mut Peer, stream: StreamId) {
        if let Some(upload) = self.upload.as_mut().filter(|_| self.parts.contains_key(&stream)) {
            upload.send(origin, stream);
        }
    }

    /// Handles the origin's SETTINGS.
    pub(super) fn on_settings(&mut self, origin: &mut Peer) {
        if let Some(relay) = &mut self.relay {
            relay.on_settings(origin);
        }
    }

    /// Passes a report on the tunnel on. `false`: the origin gets no reports.
    pub(super) fn relay(&mut self, origin: &mut Peer, info: TunnelInfo) -> bool {
        let Some(relay) = &mut self.relay else { return false };
        relay.push(origin, info);
        true
    }

    /// Lets the sender of an upload follow a report on this client's end of its tunnel.
    pub(super) fn follow(&mut self, now: Instant, origin: &mut Peer, info: TunnelInfo) {
        if let Some(upload) = &mut self.upload {
            upload.follow(now, origin, info);
        }
    }

    /// Adds the reports that went to the origin, or that the sender of an upload followed.
    pub(super) fn add_to(&self, feedback: &mut FeedbackStats) {
        match &self.upload {
            Some(upload) => {
                feedback.sent = upload.reports;
                feedback.used += upload.followed;
            }
            None => feedback.sent = self.relay.as_ref().map_or(0, |relay| relay.sent),
        }
    }

    /// Handles the end of a stream, if it is the stream for reports. A download continues without
    /// it. Returns whether it was that stream.
    pub(super) fn on_relay_end(&mut self, stream: StreamId) -> bool {
        let relay = self.relay.as_mut().filter(|relay| relay.owns(stream));
        relay.map(Relay::on_end).is_some()
    }

    /// Handles an answer. Returns an event for the first one.
    pub(super) fn on_response(
        &mut self,
        origin: &mut Peer,
        stream: StreamId,
        head: &ResponseHead,
    ) -> Result<Option<Event>, Failure> {
        if let Some(relay) = self.relay.as_mut().filter(|relay| relay.owns(stream)) {
            relay.on_response(stream, head.status);
            return Ok(None);
        }
        if self.upload.is_some() {
            return self.on_upload_answered(head.status);
        }
        let is_first = self.status.is_none();
        if !matches!(head.status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            return Err(Failure::Client(match head.status {
                StatusCode::PRECONDITION_FAILED => self.changed(),
                status => ClientError::Status { url: self.url(), status: status.as_u16() },
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
        let Some(part) = self.parts.get_mut(&stream) else { return Ok(None) };
        part.is_answered = true;
        let total = match (head.status, range) {
            (StatusCode::PARTIAL_CONTENT, Some((start, end, total)))
                if start == part.offset && part.allows(end, total, is_first) =>
            {
                part.end = Some(end);
                total
            }
            (StatusCode::OK, _) if is_first => {
                part.end = length;
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
        let end_of_first = part.end;
        if let (StatusCode::PARTIAL_CONTENT, Some(total), Some(end)) =
            (head.status, total, end_of_first)
        {
            self.waiting = divide(end, total, self.config.streams);
            self.send_requests(origin);
        }
        Ok(Some(Event::ResponseStarted { status: head.status.as_u16(), len: total }))
    }

    fn on_upload_answered(&mut self, status: StatusCode) -> Result<Option<Event>, Failure> {
        let Some(upload) = &self.upload else { return Ok(None) };
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
            ClientError::Status { url: self.url(), status: status.as_u16() }
        }))
    }

    /// The next piece of any part. `None`: no data has arrived.
    pub(super) fn poll(&mut self, origin: &mut Peer) -> Option<Result<Progress, Failure>> {
        if self.is_complete || self.status.is_none() {
            return None;
        }
        if self.upload.is_some() {
            self.is_complete = true;
            return Some(Ok(Progress::Complete));
        }
        if !self.waiting.is_empty() && origin.session.is_peer_going() {
            let reason = "the origin is going away and takes no more requests".to_owned();
            return Some(Err(Failure::Client(self.body_error(reason))));
        }
        if self.credit == 0 {
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
        let Some(part) = self.parts.get_mut(&stream) else { return Ok(None) };
        if !part.is_answered {
            return Ok(None);
        }
        if part.has_ended {
            return self.on_end(stream).map(|()| None);
        }
        let Some((session, connection)) = origin.parts() else { return Ok(None) };
        let max = PIECE.min(usize::try_from(self.credit).unwrap_or(PIECE));
        let mut piece = BytesMut::new();
        let mut failed = None;
        while piece.len() < max {
            match session.read_body(connection, stream).map_err(Failure::Protocol)? {
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
        let Some(part) = self.parts.remove(&stream) else { return Ok(()) };
        match part.end {
            Some(end) if part.offset < end => {
                Err(self.malformed(&format!("the body ended {} bytes early", end - part.offset)))
            }
            _ => Ok(()),
        }
    }

    /// The error for a stream that the origin reset.
    pub(super) fn reset(&self, code: Code) -> ClientError {
        self.body_error(format!("the origin reset the transfer ({code})"))
    }

    fn changed(&self) -> ClientError {
        self.body_error("the file changed while it was fetched".to_owned())
    }

    fn malformed(&self, reason: &str) -> Failure {
        Failure::Malformed(self.body_error(reason.to_owned()))
    }

    fn body_error(&self, reason: String) -> ClientError {
        ClientError::Body { url: self.url(), reason }
    }

    fn url(&self) -> String {
        format!("https://{}{}", self.authority, self.config.path)
    }
}

/// Divides `start..total` into `count` ranges of nearly equal length. The first range is the last
/// item, so that they are popped in order.
fn divide(start: u64, total: u64, count: usize) -> Vec<(u64, u64)> {
    let count = count as u64;
    let mut ranges: Vec<_> = (0..count)
        .map(|index| {
            let at = |index: u64| {
                let share = u128::from(total - start) * u128::from(index) / u128::from(count);
                start + u64::try_from(share).unwrap_or(u64::MAX)
            };
            (at(index), at(index + 1))
        })
        .filter(|(start, end)| start < end)
        .collect();
    ranges.reverse();
    ranges
}

/// `bytes START-END/TOTAL` (RFC 9110 §14.4) as start, exclusive end and total.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64, Option<u64>)> {
    let value = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    let end = last.checked_add(1)?;
    (first < end && total.is_none_or(|total| end <= total)).then_some((first, end, total))
}

/// RFC 9110 §13.1.1: "An origin server MUST use the strong comparison function" for If-Match, so a
/// weak tag would never match.
fn strong_etag(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(header::ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/")).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_the_rest_without_overlap() {
        for (start, total, count) in [(10, 110, 4), (0, 3, 4), (5, 5, 2), (0, u64::MAX, 7)] {
            let mut ranges = divide(start, total, count);
            ranges.reverse();
            let mut next = start;
            for (from, to) in ranges {
                assert_eq!(from, next, "{start} {total} {count}");
                assert!(to > from);
                next = to;
            }
            assert_eq!(next, total.max(start), "{start} {total} {count}");
        }
    }

    #[test]
    fn a_content_range_is_parsed_or_refused() {
        for (value, expected) in [
            ("bytes 0-9/100", Some((0, 10, Some(100)))),
            ("bytes 90-99/100", Some((90, 100, Some(100)))),
            ("bytes 0-9/*", Some((0, 10, None))),
            ("bytes 90-100/100", None),
            ("bytes 9-8/100", None),
            ("bytes 0-18446744073709551615/*", None),
            ("items 0-9/100", None),
            ("bytes */100", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_RANGE, HeaderValue::from_static(value));
            assert_eq!(content_range(&headers), expected, "{value}");
        }
    }
}
