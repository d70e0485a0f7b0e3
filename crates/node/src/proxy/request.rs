//! Handles requests, from the head to the answer.

use std::time::Instant;

use http::{HeaderValue, Method, StatusCode, header};
use tandem_wire::{
    Code, PROTOCOL_CONNECT_TCP, PathMatcher, RequestHead, ResponseHead, TargetError, Template,
    TraceId, uri_template::parse_target_authority,
};
use tracing::{debug, field::display, warn};

use super::{
    Access, FlowId, Proxy, ProxyConfig,
    access::{Claim, Denied, Shown, User},
    flow::{End, StreamFate},
    ports::TcpPorts,
    standing::Standing,
    users::Users,
};
use crate::{
    beside,
    error::RequestError,
    guesses::Guesses,
    h3::{self, has_content},
    quic::{ConnectionId, StreamId},
    seldom::Seldom,
    tcp::Form,
    tunnel::{Asked, urgency},
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
    /// The only target of this proxy, which is for TCP.
    pub(super) service: Option<(String, u16)>,
    /// The ports of all other targets of TCP connections.
    pub(super) tcp_ports: TcpPorts,
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

    /// Whether the proxy is there for one service only.
    pub(super) const fn has_service(&self) -> bool {
        self.service.is_some()
    }

    /// The proxy's only service, if it has one and the request is for it. Otherwise it is the target,
    /// if the proxy opens connections to its port.
    fn tcp_target(&self, target: (String, u16)) -> Result<(String, u16), RequestError> {
        match &self.service {
            Some(service) if target.0 == ProxyConfig::SERVICE || target == *service => {
                Ok(service.clone())
            }
            Some(_) => Err(RequestError::OtherService),
            None if !self.tcp_ports.permits(target.1) => {
                Err(RequestError::PortProhibited(target.1))
            }
            None => Ok(target),
        }
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
            let fate = StreamFate::Reset(Code::H3_MESSAGE_ERROR);
            return self.end_flow(id, &End::Refused, fate);
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
        let opener = (user, &head.headers);
        if let Asks::Tcp(_) = asks {
            let target = self.admission.tcp_target(target)?;
            self.open_flow(now, id, opener, (asks, target))?;
            if let Some(peer) = self.peers.get_mut(id.0) {
                peer.tunnel.open_bytes(id.1, urgency(&head.headers), 1);
            }
            self.advance_race(now, id);
            return Ok(());
        }
        if self.admission.has_service() {
            return Err(RequestError::OtherService);
        }
        let (asked, ignored) = Asked::read(&head.headers);
        let (beside, also_ignored) = beside::Asked::read(&head.headers);
        self.stats.fields_ignored += ignored + also_ignored;
        if let Some(first) = asked.group.and_then(|field| field.first) {
            return self.join(id, StreamId(first.get()), &target, &asked);
        }
        self.open_flow(now, id, opener, (asks, target))?.beside = Some(Box::new(beside));
        if let Some(peer) = self.peers.get_mut(id.0)
            && let Some(carrier) = self.server.carrier(id.0)
        {
            peer.tunnel.on_request(&carrier, id.1, asked);
        }
        self.advance_race(now, id);
        Ok(())
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
            let error = match error {
                RequestError::UserTarget { user, .. } | RequestError::UserAddress { user, .. }
                    if !self.log.has_targets() =>
                {
                    format!("user {user} may not reach its target through this proxy")
                }
                error => error.to_string(),
            };
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
}
