//! Requests: from the head to the answer.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use tandem_wire::{
    CAPSULE_PROTOCOL_TRUE, Code, FeedbackField, GroupField, ProxyStatus, RequestHead, ResponseHead,
    Urgency,
};
use tracing::{debug, info};

use super::{
    FlowId, Proxy, feedback,
    flow::{End, Flow, State, choose},
    group::Invitation,
};
use crate::{
    error::RequestError,
    fields::FEEDBACK,
    h3::{self, has_content},
    node::{Output, QueryId, ResolveError, SocketId, SocketKind},
    quic::StreamId,
    repair_fields::{self, CONTEXT_ID_OF_PROXY, Said, Writer},
    tunnel_exit::ExitPlan,
    tunnel_queue::{Form, PROMISED_SIZE, RepairPlan, TooLarge, promised_size},
};

/// RFC 9297 §3.4.
pub(super) const CAPSULE_PROTOCOL: HeaderName = HeaderName::from_static("capsule-protocol");
/// RFC 9209 §2.
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// How the proxy calls itself in `Proxy-Status`.
const NAME: &str = "tandem";

/// What a request asks for.
struct Asked {
    target: (String, u16),
    group: Option<GroupField>,
    /// If reports are wanted.
    weight: Option<u8>,
}

impl Proxy {
    pub(super) fn on_request(&mut self, now: Instant, id: FlowId, head: &RequestHead) {
        self.stats.requests += 1;
        if has_content(&head.headers) {
            self.stats.requests_refused += 1;
            self.drop_early(id);
            return self.abort_flow(id, Code::H3_MESSAGE_ERROR, End::Refused);
        }
        let target = match self.check(head) {
            Ok(target) => target,
            Err(error) => return self.refuse(id, &error),
        };
        let weight = self.read_weight(head);
        if let Some(peer) = self.peers.get_mut(&id.0) {
            peer.queue.set_urgency(id.1, urgency(head));
            peer.queue.set_weight(id.1, weight.unwrap_or(1));
        }
        let group = self.read_group(head);
        let result = match group.and_then(|field| field.first) {
            Some(first) => self.join(now, id, StreamId(first.get()), &target),
            None => self.open_flow(now, id, head, Asked { target, group, weight }),
        };
        if let Err(error) = result {
            self.refuse(id, &error);
        }
    }

    fn open_flow(
        &mut self,
        now: Instant,
        id: FlowId,
        head: &RequestHead,
        Asked { target: (host, port), group, weight }: Asked,
    ) -> Result<(), RequestError> {
        let invitation = group.map(|field| Invitation::new((&host, port), field));
        let state = match host.parse::<IpAddr>() {
            Ok(address) => self.open_socket(address, port),
            Err(_) => self.resolve(now, id, host, port),
        }?;
        if let State::Opening { socket, .. } = state {
            self.flows_by_socket.insert(socket, id);
        }
        let mut flow = Flow::new(id.1, state, self.first_form(id, head), &self.limits, now);
        flow.invitation = invitation;
        flow.repair = self.read_repair(head, flow.form);
        flow.feedback = weight.filter(|_| flow.form == Form::Datagram); // reports go in datagrams only
        self.insert_flow(id, flow);
        Ok(())
    }

    /// The target, if the request is a permitted CONNECT-UDP request.
    fn check(&self, head: &RequestHead) -> Result<(String, u16), RequestError> {
        if head.method != Method::CONNECT || head.protocol.is_none() {
            return Err(RequestError::NotConnect);
        }
        if let Some(protocol) = head.protocol.as_deref()
            && protocol != "connect-udp"
        {
            return Err(RequestError::Protocol(protocol.to_owned()));
        }
        let authorization = head.headers.get(header::PROXY_AUTHORIZATION);
        if !self.access.permits(authorization.map(HeaderValue::as_bytes)) {
            return Err(RequestError::Unauthorized);
        }
        let path = head.path.as_deref().unwrap_or_default();
        self.matcher
            .match_path(path)
            .ok_or_else(|| RequestError::PathMismatch {
                template: self.template.as_str().to_owned(),
            })?
            .map_err(|error| RequestError::MalformedTarget(error.to_string()))
    }

    /// A client that did not enable HTTP Datagrams takes only capsules.
    fn first_form(&mut self, id: FlowId, head: &RequestHead) -> (Form, TooLarge) {
        let too_large = match promised_size(&head.headers) {
            Some(size) => TooLarge::Capsule(size),
            None => TooLarge::Drop,
        };
        let settings = self.server.parts(id.0).and_then(|(session, _)| session.peer_settings());
        if settings.is_some_and(|settings| !settings.h3_datagram) {
            (Form::Capsule, too_large)
        } else {
            (Form::Datagram, too_large)
        }
    }

    /// What a request says of repair; nothing from whom takes only capsules.
    fn read_repair(&mut self, head: &RequestHead, form: Form) -> Said {
        if form == Form::Capsule {
            return Said::Nothing;
        }
        let (said, error) = repair_fields::read(&head.headers, Writer::Client);
        if let Some(error) = error {
            debug!(%error, "repair field ignored");
            self.stats.fields_ignored += 1;
        }
        said
    }

    /// The weight of a flow in the tunnel's queue, if reports on it are wanted.
    fn read_weight(&mut self, head: &RequestHead) -> Option<u8> {
        feedback::wanted_weight(&head.headers).unwrap_or_else(|error| {
            debug!(%error, "feedback field ignored");
            self.stats.fields_ignored += 1;
            None
        })
    }

    fn resolve(
        &mut self,
        now: Instant,
        id: FlowId,
        host: String,
        port: u16,
    ) -> Result<State, RequestError> {
        // A name that nobody waits for any more is still looked up, so that requests which come and
        // go could start any number.
        if self.queries >= self.limits.queries {
            return Err(RequestError::TooManyQueries(self.limits.queries));
        }
        self.queries += 1;
        // RFC 9298 §3.1: "if the target_host is a DNS name, the UDP proxy MUST perform DNS resolution
        // before replying to the HTTP request."
        let query = QueryId(self.next_query);
        self.next_query += 1;
        self.flows_by_query.insert(query, id);
        self.outputs.push_back(Output::Resolve { query, host: host.clone() });
        Ok(State::Resolving { query, host, port, deadline: now + self.limits.dns_timeout })
    }

    fn open_socket(&mut self, address: IpAddr, port: u16) -> Result<State, RequestError> {
        if !self.policy.permits(address) {
            return Err(RequestError::TargetProhibited(address));
        }
        let socket = SocketId(self.next_socket);
        self.next_socket += 1;
        let target = SocketAddr::new(address.to_canonical(), port);
        self.outputs.push_back(Output::OpenSocket { socket, kind: SocketKind::Connected(target) });
        Ok(State::Opening { socket, target })
    }

    pub(super) fn insert_flow(&mut self, id: FlowId, mut flow: Flow) {
        let Some(peer) = self.peers.get_mut(&id.0) else { return };
        self.timers.insert((flow.next_look, id));
        // Datagrams may come before the request that they belong to (RFC 9298 §5).
        let early = std::mem::take(&mut peer.early);
        for (until, datagram) in early {
            if datagram.quarter_stream_id.stream_id() != id.1.0 {
                peer.early.push_back((until, datagram));
            } else if !flow.keep_early(datagram.payload) {
                self.stats.dropped.unknown_flow += 1;
            }
        }
        peer.flows.insert(id.1, flow);
    }

    pub(super) fn on_dns_timeout(&mut self, id: FlowId) {
        let timeout = self.limits.dns_timeout;
        if let Some(host) = self.resolving_host(id) {
            self.refuse(id, &RequestError::DnsTimeout { host, timeout });
        }
    }

    pub(super) fn on_resolved(
        &mut self,
        query: QueryId,
        result: Result<Vec<IpAddr>, ResolveError>,
    ) {
        self.queries = self.queries.saturating_sub(1);
        // The flow may have gone, or the answer may be late.
        let Some(id) = self.flows_by_query.remove(&query) else { return };
        let Some(flow) = self.peers.get_mut(&id.0).and_then(|peer| peer.flows.get_mut(&id.1))
        else {
            return;
        };
        let State::Resolving { host, port, .. } = &flow.state else { return };
        let (host, port) = (host.clone(), *port);
        // RFC 9298 §3.1: "If errors occur during this process, the UDP proxy MUST reject the
        // request".
        let state = result
            .map_err(|error| RequestError::Dns { host: host.clone(), error })
            .and_then(|addresses| {
                // Checked after resolution, so that no name leads inside.
                choose(&addresses, |address| self.policy.permits(address)).map_err(|prohibited| {
                    match prohibited {
                        Some(address) => RequestError::TargetProhibited(address),
                        None => RequestError::Dns { host, error: ResolveError::NotFound },
                    }
                })
            })
            .and_then(|address| self.open_socket(address, port));
        match state {
            Ok(state) => self.set_state(id, state),
            Err(error) => self.refuse(id, &error),
        }
    }

    fn set_state(&mut self, id: FlowId, state: State) {
        if let State::Opening { socket, .. } = state {
            self.flows_by_socket.insert(socket, id);
        }
        if let Some(flow) = self.peers.get_mut(&id.0).and_then(|peer| peer.flows.get_mut(&id.1)) {
            flow.state = state;
        }
    }

    fn resolving_host(&self, id: FlowId) -> Option<String> {
        match &self.peers.get(&id.0)?.flows.get(&id.1)?.state {
            State::Resolving { host, .. } => Some(host.clone()),
            _ => None,
        }
    }

    pub(super) fn on_socket_opened(
        &mut self,
        now: Instant,
        socket: SocketId,
        result: Result<SocketAddr, io::ErrorKind>,
    ) {
        let Some(&id) = self.flows_by_socket.get(&socket) else { return };
        if let Err(kind) = result {
            self.flows_by_socket.remove(&socket);
            return self.refuse(id, &RequestError::Socket(kind));
        }
        let Some(peer) = self.peers.get_mut(&id.0) else { return };
        let Some(flow) = peer.flows.get_mut(&id.1) else { return };
        let State::Opening { target, .. } = flow.state else { return };
        flow.state = State::Open { socket, target };
        flow.last_active = now;
        if let Some(weight) = flow.feedback
            && !peer.reporter.insert(now, id.1, weight, peer.queue.urgency(id.1))
        {
            flow.feedback = None;
        }
        if flow.feedback.is_some() {
            peer.queue.set_reported();
        }
        let grant = granted(target, flow);
        if let Said::Ours(field) = flow.repair {
            let wish = field.into();
            let plan = RepairPlan::numbered(CONTEXT_ID_OF_PROXY, wish, flow.too_large);
            peer.queue.set_repair(id.1, plan);
            self.exit.insert(id, ExitPlan::new(field.context_id, wish));
        }
        let Some((session, connection)) = self.server.parts(id.0) else { return };
        session.send_response(connection, id.1, &grant, h3::End::More);
        self.stats.flows += 1;
        info!(flow = id.1.0, %target, "flow opened");
        self.relay_early(id);
    }

    /// Answers a request with an error and ends it.
    fn refuse(&mut self, id: FlowId, error: &RequestError) {
        self.stats.requests_refused += 1;
        debug!(flow = id.1.0, %error, "request refused");
        self.drop_early(id);
        self.close_flow(id, End::Refused);
        let Some((session, connection)) = self.server.parts(id.0) else { return };
        session.send_response(connection, id.1, &refused(error), h3::End::Last);
        session.stop_reading(connection, id.1);
    }
}

/// How urgent a flow is, as its request says.
fn urgency(head: &RequestHead) -> Urgency {
    let value = head.headers.get(Urgency::FIELD).and_then(|value| value.to_str().ok());
    value.map_or_else(Urgency::default, Urgency::parse_field)
}

/// RFC 9298 §3.5: "any 2xx (Successful) HTTP status code, without any "Transfer-Encoding" or
/// "Content-Length" header fields"; RFC 9297 §3.4: "When using the Capsule Protocol, HTTP endpoints
/// SHOULD send the Capsule-Protocol header field".
fn granted(target: SocketAddr, flow: &Flow) -> ResponseHead {
    let mut headers = HeaderMap::new();
    if let TooLarge::Capsule(size) = flow.too_large {
        headers.insert(PROMISED_SIZE, HeaderValue::from(size));
    }
    repair_fields::grant(&mut headers, flow.repair);
    if flow.feedback.is_some() {
        let field = FeedbackField::Grant { context_id: feedback::CONTEXT_ID };
        headers.insert(FEEDBACK, field.encode());
    }
    if let Some(invitation) = &flow.invitation {
        invitation.grant(&mut headers);
    }
    headers.insert(CAPSULE_PROTOCOL, HeaderValue::from_static(CAPSULE_PROTOCOL_TRUE));
    let status = ProxyStatus {
        name: NAME.to_owned(),
        next_hop: Some(target.to_string()),
        ..ProxyStatus::default()
    };
    headers.insert(PROXY_STATUS, status.encode());
    ResponseHead { status: StatusCode::OK, headers }
}

/// RFC 9297 §3.4: "The Capsule-Protocol header field MUST NOT be used on HTTP responses with a
/// status code that is both different from 101 (Switching Protocols) and outside the 2xx (Successful)
/// range."
fn refused(error: &RequestError) -> ResponseHead {
    let (status, error_type) = error.response();
    let mut headers = HeaderMap::new();
    let proxy_status = ProxyStatus {
        name: NAME.to_owned(),
        error: error_type.map(Into::into),
        details: Some(error.to_string()),
        ..ProxyStatus::default()
    };
    headers.insert(PROXY_STATUS, proxy_status.encode());
    if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        // RFC 9110 §15.5.8: "The proxy MUST send a Proxy-Authenticate header field".
        headers.insert(
            header::PROXY_AUTHENTICATE,
            HeaderValue::from_static("Bearer realm=\"tandem\""),
        );
    }
    ResponseHead { status, headers }
}
