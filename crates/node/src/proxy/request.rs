//! Handles requests, from the head to the answer.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tandem_wire::{
    Code, PROTOCOL_CONNECT_TCP, PathMatcher, RequestHead, ResponseHead, TargetError, Template,
    TraceId, uri_template::parse_target_authority,
};
use tracing::{debug, field::display, info, warn};

use super::{
    Access, FlowId, Proxy,
    access::{Claim, Denied, Shown, User},
    answer::{granted, refused},
    flow::{End, Flow, Owner, State},
    flow_log::Line,
    standing::Standing,
    users::{Meter, Users},
};
use crate::{
    beside,
    error::RequestError,
    guesses::Guesses,
    h3::{self, has_content},
    node::{QueryId, ResolveError, SocketId},
    quic::{ConnectionId, StreamId},
    seldom::Seldom,
    tcp::Form,
    tunnel::Asked,
};

/// The rules for which requests are permitted.
pub(super) struct Admission {
    pub(super) access: Access,
    pub(super) guesses: Guesses,
    /// Limits the warnings of wrong tokens.
    pub(super) warning: Seldom,
    /// Limits the warnings of users who have reached a limit.
    pub(super) limit_warning: Seldom,
    pub(super) matcher: PathMatcher,
    pub(super) template: Template,
    pub(super) tcp_matcher: PathMatcher,
    pub(super) tcp_template: Template,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// A flow of UDP payloads (RFC 9298).
    Udp,
    /// A TCP connection.
    Tcp(Form),
}

impl Admission {
    /// Finds out what a request asks for.
    fn asks(head: &RequestHead) -> Result<Asks, RequestError> {
        if head.method != Method::CONNECT {
            return Err(RequestError::NotConnect);
        }
        match head.protocol.as_deref() {
            None => Ok(Asks::Tcp(Form::Classic)),
            Some("connect-udp") => Ok(Asks::Udp),
            Some(PROTOCOL_CONNECT_TCP) => Ok(Asks::Tcp(Form::Capsules)),
            Some(protocol) => Err(RequestError::Protocol(protocol.into())),
        }
    }

    /// Finds out who sends a request, and slows down clients that guess tokens.
    fn identify(
        &mut self,
        now: Instant,
        users: &Users,
        standing: &mut Standing,
        authorization: Option<&[u8]>,
    ) -> Result<Claim, Denied> {
        let result = match standing.wait(now, &self.guesses) {
            Some(wait) => Err(Denied::Ignored(wait)),
            None => self.access.permits((now, users.unix(now)), authorization),
        };
        match result {
            Ok(_) => {}
            Err(Denied::NoToken) => standing.on_missing(now, &mut self.guesses),
            Err(Denied::WrongToken) => standing.on_wrong(now, &mut self.guesses),
            // A signature cannot be guessed. The holder of an old token costs its neighbours nothing.
            Err(Denied::Expired | Denied::Ignored(_)) => standing.on_ignored(),
        }
        result
    }

    /// Returns the target's host and port.
    fn target(&self, head: &RequestHead, asks: Asks) -> Result<(String, u16), RequestError> {
        let malformed =
            |error: TargetError| RequestError::MalformedTarget(error.to_string().into());
        let (matcher, template) = match asks {
            Asks::Udp => (&self.matcher, &self.template),
            Asks::Tcp(Form::Capsules) => (&self.tcp_matcher, &self.tcp_template),
            Asks::Tcp(Form::Classic) => {
                let authority = head.authority.as_deref().unwrap_or_default();
                return parse_target_authority(authority).map_err(malformed);
            }
        };
        let path = head.path.as_deref().unwrap_or_default();
        matcher
            .match_path(path)
            .ok_or_else(|| RequestError::PathMismatch { template: template.as_str().to_owned() })?
            .map_err(malformed)
    }
}

impl Proxy {
    pub(super) fn on_request(&mut self, now: Instant, id: FlowId, head: &RequestHead) {
        self.stats.requests += 1;
        if let Some(trace_id) = TraceId::of(&head.headers) {
            debug!(connection = id.0.0, flow = id.1.0, %trace_id, "request received");
        }
        let asks = Admission::asks(head);
        let has_capsules = matches!(asks, Ok(Asks::Udp | Asks::Tcp(Form::Capsules)));
        // RFC 9297 §3.2 is about messages with capsules. Other requests may have content.
        if has_capsules && has_content(&head.headers) {
            self.stats.requests_refused += 1;
            return self.abort_flow(id, Code::H3_MESSAGE_ERROR, &End::Refused);
        }
        let refused_as = asks.as_ref().map_or(Asks::Udp, |asks| *asks);
        if let Err(error) = asks.and_then(|asks| self.admit(now, id, head, asks)) {
            self.warn_of_limit(now, id, &error);
            self.refuse(id, &error, refused_as);
            self.close_guesser(now, id.0);
        }
    }

    fn admit(
        &mut self,
        now: Instant,
        id: FlowId,
        head: &RequestHead,
        asks: Asks,
    ) -> Result<(), RequestError> {
        let shown = |name| head.headers.get(name).map(HeaderValue::as_bytes);
        let authorization = match asks {
            Asks::Tcp(Form::Capsules) => shown(header::AUTHORIZATION),
            Asks::Tcp(Form::Classic) | Asks::Udp => None,
        };
        let authorization = authorization.or(shown(header::PROXY_AUTHORIZATION));
        let user = self.identify(now, id.0, authorization)?;
        let target = self.admission.target(head, asks)?;
        self.server.prove(id.0);
        user.check_target(&target)?;
        if let Some(client) = self.client(id.0) {
            self.targets.check_nesting(client)?;
        }
        if let Asks::Tcp(form) = asks {
            return self.open_tcp(now, id, (user, &head.headers), (target, form));
        }
        if self.tcp.is_only_service() {
            return Err(RequestError::OtherService);
        }
        let (asked, ignored) = Asked::read(&head.headers);
        let (beside, also_ignored) = beside::Asked::read(&head.headers);
        self.stats.fields_ignored += ignored + also_ignored;
        if let Some(first) = asked.group.and_then(|field| field.first) {
            return self.join(id, StreamId(first.get()), &target, &asked);
        }
        self.open_flow(now, id, (user, &head.headers), (target, asked, beside))
    }

    /// Finds out who sends a request. Counts a request that may not use the proxy.
    fn identify(
        &mut self,
        now: Instant,
        id: ConnectionId,
        authorization: Option<&[u8]>,
    ) -> Result<User, RequestError> {
        let Some(peer) = self.peers.get_mut(id) else { return Err(RequestError::Unauthorized) };
        let standing = &mut peer.standing;
        let (counter, error) =
            match self.admission.identify(now, &self.users, standing, authorization) {
                Ok(mut claim) => {
                    if claim.shown == Shown::Nothing {
                        if let Some(user) = &standing.user {
                            return Ok(user.clone());
                        }
                        let connection = self.server.connection(id);
                        let subject = connection.and_then(|it| it.certificate_name());
                        claim.name = subject.unwrap_or(claim.name);
                    }
                    let user = standing.be(User::new(claim, &self.users))?;
                    if let Some(number) = user.party() {
                        self.server.set_user(id, number);
                    }
                    return Ok(user);
                }
                Err(Denied::NoToken) => {
                    self.stats.denied.no_token += 1;
                    return Err(RequestError::Unauthorized);
                }
                Err(Denied::WrongToken) => {
                    (&mut self.stats.denied.wrong_token, RequestError::Unauthorized)
                }
                Err(Denied::Expired) => {
                    self.stats.denied.expired += 1;
                    return Err(RequestError::TokenExpired);
                }
                Err(Denied::Ignored(wait)) => {
                    (&mut self.stats.denied.ignored, RequestError::TooManyGuesses(wait))
                }
            };
        *counter += 1;
        if let Some(left_out) = self.admission.warning.due(now) {
            let client = self.log_clients.then(|| display(standing.client));
            warn!(connection = id.0, client, left_out, "a client sent a wrong token");
        }
        Err(error)
    }

    /// Tells the operator, at most seldom, that a user has reached a limit.
    fn warn_of_limit(&mut self, now: Instant, id: FlowId, error: &RequestError) {
        if let RequestError::UserLimit { .. }
        | RequestError::UserTarget { .. }
        | RequestError::UserAddress { .. } = error
            && let Some(left_out) = self.admission.limit_warning.due(now)
        {
            warn!(connection = id.0.0, left_out, "request refused: {error}");
        }
    }

    /// Closes a connection that has shown too many wrong tokens.
    fn close_guesser(&mut self, now: Instant, id: ConnectionId) {
        let peer = self.peers.get_mut(id);
        if peer.is_some_and(|peer| peer.standing.is_over(self.limits.guesses_per_connection)) {
            let reason = "too many wrong tokens on this connection".into();
            let error = h3::ConnectionError { code: Code::H3_EXCESSIVE_LOAD, reason };
            self.server.break_connection(now, id, &error);
        }
    }

    /// The present address of a client.
    fn client(&mut self, id: ConnectionId) -> Option<SocketAddr> {
        Some(self.server.connection(id)?.path()?.client)
    }

    fn open_flow(
        &mut self,
        now: Instant,
        id: FlowId,
        (user, headers): (User, &HeaderMap),
        (target, asked, beside): ((String, u16), Asked, beside::Asked),
    ) -> Result<(), RequestError> {
        let owner = self.owner(now, id, user, headers)?;
        let (state, output) = self.targets.reach(now, id, target.clone(), &owner.user)?;
        self.outputs.push_back(output);
        let beside = Some(Box::new(beside));
        let flow = Flow { beside, ..Flow::new(state, owner, target, &self.limits, now) };
        self.peers.insert_flow(id, flow);
        if let Some(peer) = self.peers.get_mut(id.0)
            && let Some(carrier) = self.server.carrier(id.0)
        {
            peer.tunnel.on_request(&carrier, id.1, asked);
        }
        Ok(())
    }

    /// Who opens a flow. The flow counts among those of the user.
    pub(super) fn owner(
        &self,
        now: Instant,
        id: FlowId,
        user: User,
        headers: &HeaderMap,
    ) -> Result<Owner, RequestError> {
        let place = user.open_flow(now)?;
        user.account.see(now);
        let peer = self.peers.get(id.0).filter(|_| self.log_clients);
        let client = peer.map(|peer| peer.standing.client);
        let meter = Meter::new(now, Arc::clone(&user.account));
        let trace_id = TraceId::of(headers);
        Ok(Owner { meter, user, client, trace_id, _place: place })
    }

    /// Lets a request stream join the flow of another. A stream that cannot join at once is
    /// refused.
    fn join(
        &mut self,
        id: FlowId,
        first: StreamId,
        target: &(String, u16),
        asked: &Asked,
    ) -> Result<(), RequestError> {
        let missing = || RequestError::Group { stream: first.0 };
        let peer = self.peers.get_mut(id.0).ok_or_else(missing)?;
        let flow = peer.flows.get(&first).ok_or_else(missing)?;
        if flow.requested != *target {
            return Err(missing());
        }
        let headers = peer.tunnel.join(first, id.1, asked).ok_or_else(missing)?;
        let grant = ResponseHead { status: StatusCode::OK, headers };
        self.answer(id, &grant, h3::End::More);
        self.has_arrivals(id.0);
        Ok(())
    }

    pub(super) fn answer(&mut self, id: FlowId, head: &ResponseHead, end: h3::End) {
        if let Some(mut carrier) = self.server.carrier(id.0) {
            carrier.respond(id.1, head, end);
        }
    }

    /// Refuses a request whose name was not resolved in time.
    pub(super) fn on_dns_timeout(&mut self, id: FlowId) {
        let timeout = self.limits.dns_timeout;
        if let Some(flow) = self.peers.flow_mut(id) {
            let host = (&flow.requested.0).into();
            self.refuse(id, &RequestError::DnsTimeout { host, timeout }, Asks::Udp);
        }
    }

    pub(super) fn on_resolved(
        &mut self,
        now: Instant,
        query: QueryId,
        result: Result<Vec<IpAddr>, ResolveError>,
    ) {
        // The flow may have ended before the answer arrived.
        let Some(id) = self.targets.on_answer(query) else { return };
        if self.tcp.has(id) {
            return self.on_tcp_resolved(now, id, result);
        }
        let Some(flow) = self.peers.flow_mut(id) else { return };
        let user = &flow.owner.user;
        match self.targets.open_resolved(now, id, flow.requested.clone(), (result, user)) {
            Ok((state, output)) => {
                flow.state = state;
                self.outputs.push_back(output);
            }
            Err(error) => self.refuse(id, &error, Asks::Udp),
        }
    }

    pub(super) fn on_socket_opened(
        &mut self,
        now: Instant,
        socket: SocketId,
        result: Result<SocketAddr, io::ErrorKind>,
    ) {
        let Some(id) = self.targets.flow_of(socket) else { return };
        let local = match result {
            Ok(local) => local,
            Err(kind) => return self.refuse(id, &RequestError::for_socket(kind), Asks::Udp),
        };
        if let Some(client) = self.client(id.0) {
            self.targets.on_opened(socket, local, client);
        }
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        let Some(flow) = peer.flows.get_mut(&id.1) else { return };
        let State::Opening { target, .. } = flow.state else { return };
        flow.state = State::Open { socket, target };
        flow.last_active = now;
        let Owner { user, client, trace_id, .. } = &flow.owner;
        if self.log.may_log(user, Line::Opened) {
            info!(
                connection = id.0.0, flow = id.1.0, trace_id = trace_id.map(display), %user,
                client = client.map(display), %target, "flow opened"
            );
        }
        let mut headers = peer.tunnel.grant(now, id.1);
        if let Some(connection) = self.server.connection(id.0)
            && let Some(path) = connection.path()
        {
            let secrets = || connection.seal_secrets(id.1);
            if let Some(asked) = flow.beside.take() {
                self.beside.grant(id, &asked, (path, secrets), &mut headers);
            }
        }
        let grant = granted(target, headers);
        self.answer(id, &grant, h3::End::More);
        self.stats.flows += 1;
        self.has_arrivals(id.0);
    }

    /// Answers a request with an error and ends it.
    pub(super) fn refuse(&mut self, id: FlowId, error: &RequestError, asks: Asks) {
        self.stats.requests_refused += 1;
        self.stats.tcp.failed += u64::from(matches!(asks, Asks::Tcp(_)));
        let user = self.peers.get(id.0).and_then(|peer| peer.standing.user.as_ref());
        debug!(
            connection = id.0.0, flow = id.1.0, user = user.map(display), %error,
            "request refused"
        );
        self.close_flow(id, &End::Refused);
        self.answer(id, &refused(error, asks), h3::End::Last);
        if let Some(mut carrier) = self.server.carrier(id.0) {
            carrier.stop_reading(id.1);
        }
    }
}
