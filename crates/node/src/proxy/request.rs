//! Handles requests, from the head to the answer.

use std::time::Instant;

use http::{HeaderMap, Method};
use tandem_wire::{Code, RequestHead, TraceId};
use tracing::{debug, field::display, warn};

use super::{
    Access, FlowId, Proxy, ProxyConfig,
    access::{Claim, Denied, Shown, User},
    credentials::{Credentials, NoCredentials},
    flow::{End, StreamFate},
    ports::TcpPorts,
    service::Paths,
    standing::Standing,
    users::Users,
};
use crate::{
    concealed,
    error::RequestError,
    guesses::Guesses,
    h3::{self, has_content},
    quic::ConnectionId,
    seldom::Seldom,
    service::{HostPort, Service},
};

/// The rules for which requests are permitted.
pub(super) struct Admission {
    pub(super) access: Access,
    pub(super) guesses: Guesses,
    /// Limits the warnings of wrong tokens.
    pub(super) warning: Seldom,
    /// Limits the warnings of users who have reached a limit.
    pub(super) limit_warning: Seldom,
    pub(super) paths: Paths,
    /// The only target of this proxy, which is for TCP.
    pub(super) only: Option<HostPort>,
    /// The ports of all other targets of TCP connections.
    pub(super) tcp_ports: TcpPorts,
}

/// A request that is permitted so far: who sends it, and what for.
pub(super) struct Permitted<'a> {
    pub(super) user: User,
    pub(super) headers: &'a HeaderMap,
    pub(super) service: Service,
    pub(super) target: HostPort,
}

impl Admission {
    /// Finds out what a request is for.
    pub(super) fn service(head: &RequestHead) -> Result<Service, RequestError> {
        if head.method != Method::CONNECT {
            return Err(RequestError::NotConnect);
        }
        let protocol = head.protocol.as_deref();
        Service::of(protocol)
            .ok_or_else(|| RequestError::Protocol(protocol.unwrap_or_default().into()))
    }

    /// Finds out who sends a request, and slows down clients that guess tokens.
    fn identify(
        &mut self,
        now: Instant,
        users: &Users,
        standing: &mut Standing,
        credentials: Result<Credentials, NoCredentials>,
    ) -> Result<Claim, Denied> {
        // A key cannot be guessed, so that its holder does not wait for those who guess tokens.
        let has_key = credentials.as_ref().is_ok_and(|it| it.user().is_some());
        let result = match standing.wait(now, &self.guesses).filter(|_| !has_key) {
            Some(wait) => Err(Denied::Ignored(wait)),
            None => self.access.permits((now, users.unix(now)), credentials),
        };
        match result {
            Ok(_) => {}
            Err(Denied::NoToken) => standing.on_missing(),
            Err(Denied::WrongToken) => standing.on_wrong(now, &mut self.guesses),
            // A signature cannot be guessed. The holder of an old token costs its neighbours nothing.
            Err(Denied::Expired | Denied::Ignored(_)) => standing.on_ignored(),
        }
        result
    }

    /// Whether the proxy is there for one service only.
    pub(super) const fn has_service(&self) -> bool {
        self.only.is_some()
    }

    /// The proxy's only service, if it has one and the request is for it. Otherwise it is the target,
    /// if the proxy opens connections to its port.
    pub(super) fn tcp_target(&self, target: HostPort) -> Result<HostPort, RequestError> {
        match &self.only {
            Some(only) if target.host == ProxyConfig::SERVICE || target == *only => {
                Ok(only.clone())
            }
            Some(_) => Err(RequestError::OtherService),
            None if !self.tcp_ports.permits(target.port) => {
                Err(RequestError::PortProhibited(target.port))
            }
            None => Ok(target),
        }
    }
}

impl Proxy {
    pub(super) fn on_request(&mut self, now: Instant, id: FlowId, head: Box<RequestHead>) {
        let Some(head) = self.judge_now(now, id, head) else { return }; // it waits
        let mut user = None;
        if self.site.is_some() {
            user = self.user_beside_site(now, id.0, &head);
            if user.is_none() {
                return self.tell_site(now, id.0, h3::Event::Request(id.1, head));
            }
        }
        self.stats.requests += 1;
        if let Some(trace_id) = TraceId::of(&head.headers) {
            debug!(connection = id.0.0, flow = id.1.0, %trace_id, "request received");
        }
        if self.answer_pvd(now, id, &head) {
            return;
        }
        let service = Admission::service(&head);
        let has_capsules = service.as_ref().is_ok_and(|service| service.has_capsules());
        // RFC 9297 §3.2 is about messages with capsules. Other requests may have content.
        if has_capsules && has_content(&head.headers) {
            self.stats.requests_refused += 1;
            let fate = StreamFate::Reset(Code::H3_MESSAGE_ERROR);
            return self.end_flow(id, &End::Refused, fate);
        }
        let refused_as = service.as_ref().map_or(Service::Udp, |service| *service);
        if let Err(error) = service.and_then(|service| self.admit(now, id, &head, (service, user)))
        {
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
        (service, user): (Service, Option<Result<User, RequestError>>),
    ) -> Result<(), RequestError> {
        let identify = || self.identify(now, id.0, head);
        let user = user.unwrap_or_else(identify)?;
        let target = self.admission.paths.target(head, service)?;
        self.server.prove(id.0);
        user.check_target(&target)?;
        if let Some(client) = self.client(id.0) {
            self.targets.check_nesting(client)?;
        }
        self.open(now, id, Permitted { user, headers: &head.headers, service, target })
    }

    /// Finds out who sends a request. Counts a request that may not use the proxy.
    pub(super) fn identify(
        &mut self,
        now: Instant,
        id: ConnectionId,
        head: &RequestHead,
    ) -> Result<User, RequestError> {
        let credentials = self.credentials(id, head);
        let Some(peer) = self.peers.get_mut(id) else { return Err(RequestError::Unauthorized) };
        let standing = &mut peer.standing;
        let (counter, error) =
            match self.admission.identify(now, &self.users, standing, credentials) {
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

    /// What a request shows.
    fn credentials(
        &mut self,
        id: ConnectionId,
        head: &RequestHead,
    ) -> Result<Credentials, NoCredentials> {
        let users = self.admission.access.concealed();
        let to = (&head.headers, head.authority.as_deref().unwrap_or_default());
        let connection = self.server.connection(id).filter(|_| !users.is_empty());
        let user = connection.and_then(|connection| concealed::identify(users, to, connection));
        if let Some(user) = user {
            return Ok(Credentials::proven(user.clone()));
        }
        let shown = Credentials::of(&head.headers)?;
        let peer = self.peers.get(id);
        let is_password = peer.is_some_and(|peer| peer.passwords.are_right(&shown));
        Ok(shown.checked(is_password))
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
}
