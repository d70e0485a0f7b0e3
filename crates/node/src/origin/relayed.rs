//! The requests that a site passes on to the server behind it, as a reverse proxy does.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header};
use tandem_wire::{Code, RequestHead, ResponseHead, TunnelInfo};
use tracing::warn;

use super::{
    answer,
    site::{Edge, RequestId, Site},
};
use crate::{
    fields::content_length,
    h3::{Body, End},
    limits::Limits,
    node::Output,
    prefix::Prefix,
    quic::{ConnectionId, StreamId, Write},
    upstream::{ExchangeId, RequestBody, UpstreamError, UpstreamInput, UpstreamOutput},
};

/// `:protocol` of WebSockets (RFC 9220 §3).
const WEBSOCKET: &str = "websocket";

/// The exchanges with the server behind a site.
#[derive(Debug, Default)]
pub(super) struct Relayed {
    by_request: BTreeMap<RequestId, Exchange>,
    requests: BTreeMap<ExchangeId, RequestId>,
    next: u64,
}

/// A request that was passed on.
#[derive(Debug)]
struct Exchange {
    id: ExchangeId,
    method: Method,
    is_websocket: bool,
    /// The household of the client.
    owner: Prefix,
    request: Upload,
    response: Download,
}

/// An interim response without fields.
fn interim(status: StatusCode) -> ResponseHead {
    ResponseHead { status, headers: HeaderMap::new() }
}

/// The state of a request's body.
#[derive(Debug)]
enum Upload {
    /// `left`: the bytes that must still come, if their number is known. `waiting`: those that the server has not
    /// taken.
    Open { left: Option<u64>, waiting: usize },
    /// Nothing more is passed on. What comes is read and dropped, so that the client can end.
    Done,
}

/// The state of a response.
#[derive(Debug)]
enum Download {
    Awaited,
    /// Bytes that the client has not taken, and whether the server has been asked for more.
    Open {
        unsent: Bytes,
        is_asked: bool,
    },
}

impl Relayed {
    pub(super) fn is_empty(&self) -> bool {
        self.by_request.is_empty()
    }

    /// The bytes that wait to be sent on a connection.
    pub(super) fn memory_of(&self, id: ConnectionId) -> u64 {
        let all = self.by_request.range((id, StreamId(0))..=(id, StreamId(u64::MAX)));
        let bytes = all.map(|(_, exchange)| {
            let Upload::Open { waiting, .. } = exchange.request else { return exchange.unsent() };
            waiting + exchange.unsent()
        });
        bytes.sum::<usize>() as u64
    }

    /// Whether an owner may begin one more exchange, or one more WebSocket. Who has fewer than are free may, so that
    /// one household takes half of the places at most, and the next one half of the rest.
    fn has_room(&self, limits: &Limits, owner: Prefix, is_websocket: bool) -> bool {
        let open = || self.by_request.values().filter(|it| it.is_websocket == is_websocket);
        let most = if is_websocket { limits.websockets } else { limits.exchanges };
        let free = most.saturating_sub(open().count());
        open().filter(|exchange| exchange.owner == owner).count() < free
    }

    fn remove(&mut self, id: RequestId) -> Option<Exchange> {
        let exchange = self.by_request.remove(&id)?;
        self.requests.remove(&exchange.id);
        Some(exchange)
    }
}

impl Exchange {
    fn unsent(&self) -> usize {
        match &self.response {
            Download::Awaited => 0,
            Download::Open { unsent, .. } => unsent.len(),
        }
    }
}

impl Site {
    /// Passes a request on, or refuses it.
    pub(super) fn ask_upstream(&mut self, cx: &mut Edge<'_>, id: RequestId, head: RequestHead) {
        let method = head.method.clone();
        let path = cx.server.connection(id.0).and_then(|connection| connection.path());
        let Some(path) = path else { return }; // the client has gone
        let client = path.client.ip().to_canonical();
        let expects = head.headers.get(header::EXPECT);
        let expects = expects.is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        let (head, body) = match self.to_pass_on(head) {
            Ok(passed_on) => passed_on,
            Err(status) => return Self::refuse(cx, id, &method, answer::plain(status)),
        };
        let (owner, is_websocket) = (Prefix::of_household(client), body == RequestBody::WebSocket);
        let Some(relayed) = &mut self.upstream else { return };
        if !relayed.has_room(&self.limits, owner, is_websocket) {
            let answer = answer::without_upstream(UpstreamError::Busy);
            return Self::refuse(cx, id, &method, answer);
        }
        let exchange = ExchangeId(relayed.next);
        relayed.next += 1;
        let request = match body {
            RequestBody::None => Upload::Done,
            RequestBody::Sized(len) => Upload::Open { left: Some(len), waiting: 0 },
            RequestBody::Unsized | RequestBody::WebSocket => {
                Upload::Open { left: None, waiting: 0 }
            }
        };
        if expects
            && matches!(request, Upload::Open { .. })
            && let Some(mut carrier) = cx.server.carrier(id.0)
        {
            // RFC 9110 §10.1.1: a gateway sends "an immediate response" or forwards the request. This one is ready for
            // the body, and the server behind it need not wait for it.
            carrier.respond(id.1, &interim(StatusCode::CONTINUE), End::More);
        }
        let response = Download::Awaited;
        let relay = Exchange { id: exchange, method, is_websocket, owner, request, response };
        relayed.by_request.insert(id, relay);
        relayed.requests.insert(exchange, id);
        let (head, client) = (Box::new(head), Some(client));
        let output = UpstreamOutput::Request { exchange, head, client, body };
        cx.outputs.push_back(Output::Upstream(output));
    }

    /// The request as it is passed on, or the status that refuses it.
    fn to_pass_on(&self, mut head: RequestHead) -> Result<(RequestHead, RequestBody), StatusCode> {
        let protocol = head.protocol.as_deref();
        let is_websocket = protocol.is_some_and(|it| it.eq_ignore_ascii_case(WEBSOCKET));
        // A gateway opens no other tunnels, and what TRACE shows is not for clients.
        if (head.method == Method::CONNECT && !is_websocket) || head.method == Method::TRACE {
            return Err(StatusCode::NOT_IMPLEMENTED);
        }
        let path = head.path.as_deref().unwrap_or_default();
        if head.authority.is_none() {
            // RFC 9114 §4.3.1: either of them names the host, and both are equal if both are there.
            let host = head.headers.remove(header::HOST);
            head.authority = host.and_then(|host| Some(host.to_str().ok()?.to_owned()));
        }
        if head.authority.is_none() || !path.starts_with('/') {
            return Err(StatusCode::BAD_REQUEST);
        }
        head.headers.remove(header::EXPECT);
        head.headers.remove(TunnelInfo::FIELD); // it is for this end of the connection
        let body = match content_length(&head.headers) {
            _ if is_websocket => RequestBody::WebSocket,
            Ok(Some(0)) => RequestBody::None,
            Ok(Some(len)) if len > self.limits.upload => return Err(StatusCode::PAYLOAD_TOO_LARGE),
            Ok(Some(len)) => RequestBody::Sized(len),
            Ok(None) if matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS) => {
                RequestBody::None
            }
            Ok(None) => RequestBody::Unsized,
            Err(_) => return Err(StatusCode::BAD_REQUEST),
        };
        Ok((head, body))
    }

    /// Whether a request was passed on.
    pub(super) fn is_relayed(&self, id: RequestId) -> bool {
        self.upstream.as_ref().is_some_and(|relayed| relayed.by_request.contains_key(&id))
    }

    /// Passes on what has come of a request's body, as far as the server takes it.
    pub(super) fn relay_body(&mut self, cx: &mut Edge<'_>, id: RequestId) {
        loop {
            let exchanges = self.upstream.as_mut().map(|relayed| &mut relayed.by_request);
            let Some(exchange) = exchanges.and_then(|it| it.get_mut(&id)) else { return };
            let has_room = match &exchange.request {
                Upload::Open { waiting, .. } => *waiting < self.limits.exchange_body,
                Upload::Done => true, // what comes is dropped
            };
            let Some(mut carrier) = cx.server.carrier(id.0).filter(|_| has_room) else { return };
            let body = carrier.read_body(id.1);
            let Upload::Open { left, waiting } = &mut exchange.request else {
                match body {
                    Ok(Body::Data(_)) => continue,
                    Ok(Body::Failed(_)) => return self.cancel(cx, id),
                    Ok(Body::Blocked | Body::End) => return,
                    Err(error) => return cx.server.break_connection(cx.now, id.0, &error),
                }
            };
            match body {
                Ok(Body::Data(data)) => {
                    let rest = left.map(|left| left.checked_sub(data.len() as u64));
                    if rest == Some(None) {
                        return self.abort(cx, id);
                    }
                    *left = rest.flatten();
                    *waiting += data.len();
                    let output = UpstreamOutput::Body { exchange: exchange.id, data };
                    cx.outputs.push_back(Output::Upstream(output));
                }
                Ok(Body::End) if left.is_some_and(|left| left > 0) => return self.abort(cx, id),
                Ok(Body::End) => {
                    exchange.request = Upload::Done;
                    let output = UpstreamOutput::BodyEnd { exchange: exchange.id };
                    return cx.outputs.push_back(Output::Upstream(output));
                }
                Ok(Body::Blocked) => return,
                Ok(Body::Failed(_)) => return self.cancel(cx, id),
                Err(error) => return cx.server.break_connection(cx.now, id.0, &error),
            }
        }
    }

    /// Ends a request whose body has another length than it says. RFC 9114 §4.1.2: it is malformed, which is "a stream
    /// error of type `H3_MESSAGE_ERROR`".
    fn abort(&mut self, cx: &mut Edge<'_>, id: RequestId) {
        cx.stats.requests_refused += 1;
        self.reset(cx, id, Code::H3_MESSAGE_ERROR);
    }

    fn reset(&mut self, cx: &mut Edge<'_>, id: RequestId, code: Code) {
        if let Some(mut carrier) = cx.server.carrier(id.0) {
            carrier.reset(id.1, code);
        }
        self.cancel(cx, id);
    }

    /// Handles what the server behind the site has said.
    pub(super) fn on_upstream(&mut self, cx: &mut Edge<'_>, input: UpstreamInput) {
        let Some(relayed) = &mut self.upstream else { return }; // of a wrong driver
        let (UpstreamInput::Interim { exchange, .. }
        | UpstreamInput::Head { exchange, .. }
        | UpstreamInput::Taken { exchange, .. }
        | UpstreamInput::Data { exchange, .. }
        | UpstreamInput::End { exchange, .. }
        | UpstreamInput::Failed { exchange, .. }) = &input;
        let Some(&id) = relayed.requests.get(exchange) else { return }; // the request has ended
        let Some(exchange) = relayed.by_request.get_mut(&id) else { return };
        match input {
            UpstreamInput::Interim { head, .. } => {
                let is_due = matches!(exchange.response, Download::Awaited);
                if is_due && let Some(mut carrier) = cx.server.carrier(id.0) {
                    carrier.respond(id.1, &head, End::More);
                }
            }
            UpstreamInput::Head { head, .. } => self.on_response(cx, id, &head),
            UpstreamInput::Taken { bytes, .. } => {
                if let Upload::Open { waiting, .. } = &mut exchange.request {
                    *waiting = waiting.saturating_sub(bytes);
                }
                self.relay_body(cx, id);
            }
            UpstreamInput::Data { data, .. } => {
                let Download::Open { unsent, is_asked } = &mut exchange.response else { return };
                (*unsent, *is_asked) = (data, false);
                if let Some(mut carrier) = cx.server.carrier(id.0) {
                    carrier.begin_body(id.1, unsent.len());
                }
                self.relay(cx, id);
            }
            UpstreamInput::End { trailers, .. } => self.finish(cx, id, &trailers),
            UpstreamInput::Failed { error, .. } => {
                let is_servers = error != UpstreamError::Stalled;
                if is_servers && let Some(left_out) = self.unreadable.due(cx.now) {
                    warn!(%error, left_out, "the server behind the site gives no whole answer");
                }
                if matches!(exchange.response, Download::Awaited) {
                    let method = exchange.method.clone();
                    Self::refuse(cx, id, &method, answer::without_upstream(error));
                    self.stop(cx, id);
                } else if exchange.is_websocket || !is_servers {
                    // RFC 9220 §3: "RST exceptions are represented by a stream error of type H3_REQUEST_CANCELLED".
                    self.reset(cx, id, Code::H3_REQUEST_CANCELLED);
                } else {
                    self.reset(cx, id, Code::H3_INTERNAL_ERROR);
                }
            }
        }
    }

    fn on_response(&mut self, cx: &mut Edge<'_>, id: RequestId, head: &ResponseHead) {
        let exchanges = self.upstream.as_mut().map(|relayed| &mut relayed.by_request);
        let Some(exchange) = exchanges.and_then(|it| it.get_mut(&id)) else { return };
        if let Some(mut carrier) = cx.server.carrier(id.0) {
            carrier.respond(id.1, head, End::More);
        }
        exchange.response = Download::Open { unsent: Bytes::new(), is_asked: false };
        self.relay(cx, id);
    }

    /// Sends what there is of a response, and asks for more when all of it is written.
    pub(super) fn relay(&mut self, cx: &mut Edge<'_>, id: RequestId) {
        let exchanges = self.upstream.as_mut().map(|relayed| &mut relayed.by_request);
        let Some(exchange) = exchanges.and_then(|it| it.get_mut(&id)) else { return };
        let Download::Open { unsent, is_asked } = &mut exchange.response else { return };
        let Some(mut carrier) = cx.server.carrier(id.0) else { return }; // the client has gone
        let before = unsent.len();
        let result = carrier.write_body(id.1, unsent);
        cx.stats.file_bytes += (before - unsent.len()) as u64;
        match result {
            Ok(Write::Done) if !*is_asked => {
                *is_asked = true;
                let output = UpstreamOutput::More { exchange: exchange.id };
                cx.outputs.push_back(Output::Upstream(output));
            }
            Ok(Write::Done | Write::Blocked) => {}
            Err(_) => self.cancel(cx, id),
        }
    }

    /// Ends a response.
    fn finish(&mut self, cx: &mut Edge<'_>, id: RequestId, trailers: &HeaderMap) {
        if let Some(mut carrier) = cx.server.carrier(id.0) {
            carrier.finish_with_trailers(id.1, trailers);
        }
        self.stop(cx, id);
    }

    /// Reads no more of a request that has been answered.
    fn stop(&mut self, cx: &mut Edge<'_>, id: RequestId) {
        let exchanges = self.upstream.as_mut().map(|relayed| &mut relayed.by_request);
        let exchange = exchanges.and_then(|it| it.get_mut(&id));
        let is_open = exchange.is_some_and(|it| matches!(it.request, Upload::Open { .. }));
        if is_open && let Some(mut carrier) = cx.server.carrier(id.0) {
            carrier.stop_reading(id.1);
        }
        self.cancel(cx, id);
    }

    /// Forgets a request, and gives up its exchange.
    pub(super) fn cancel(&mut self, cx: &mut Edge<'_>, id: RequestId) {
        let exchange = self.upstream.as_mut().and_then(|relayed| relayed.remove(id));
        if let Some(Exchange { id: exchange, .. }) = exchange {
            cx.outputs.push_back(Output::Upstream(UpstreamOutput::Forget { exchange }));
        }
    }

    /// Gives up all exchanges of a connection.
    pub(super) fn cancel_all(&mut self, cx: &mut Edge<'_>, id: ConnectionId) {
        let Some(relayed) = &self.upstream else { return };
        let all = relayed.by_request.range((id, StreamId(0))..=(id, StreamId(u64::MAX)));
        let gone: Vec<_> = all.map(|(&request, _)| request).collect();
        for request in gone {
            self.cancel(cx, request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_later_finds_a_place() {
        let limits = Limits { exchanges: 8, websockets: 4, ..Limits::default() };
        let owner = |address: &str| Prefix::of_household(address.parse().unwrap());
        let mut relayed = Relayed::default();
        let mut open = |address, is_websocket| {
            let owner = owner(address);
            let mut count = 0;
            while relayed.has_room(&limits, owner, is_websocket) {
                let id = (ConnectionId(relayed.next), StreamId(0));
                let (request, response) = (Upload::Done, Download::Awaited);
                let (exchange, method) = (ExchangeId(relayed.next), Method::GET);
                let exchange =
                    Exchange { id: exchange, method, is_websocket, owner, request, response };
                relayed.by_request.insert(id, exchange);
                relayed.next += 1;
                count += 1;
            }
            count
        };
        assert_eq!(open("192.0.2.1", false), 4);
        assert_eq!(open("192.0.2.2", false), 2);
        assert_eq!(open("2001:db8::1", false), 1);
        assert_eq!(open("2001:db8::2", false), 0, "it is the same household");
        assert_eq!(open("192.0.2.3", false), 1);
        assert_eq!(open("192.0.2.4", false), 0, "all places are taken");
        assert_eq!(open("192.0.2.1", true), 2, "WebSockets have places of their own");
        assert_eq!(open("192.0.2.2", true), 1);
    }
}
