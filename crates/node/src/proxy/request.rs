//! Handles requests, from the head to the answer.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use http::{HeaderValue, Method, StatusCode, header};
use tandem_wire::{Code, PathMatcher, RequestHead, ResponseHead, Template};
use tracing::{debug, info};

use super::{
    Access, FlowId, Proxy,
    answer::{granted, refused},
    flow::{End, Flow, State},
};
use crate::{
    error::RequestError,
    h3::{self, has_content},
    node::{QueryId, ResolveError, SocketId},
    quic::StreamId,
    tunnel::{Asked, Carrier},
};

/// The rules for which requests are permitted.
pub(super) struct Admission {
    pub(super) access: Access,
    pub(super) matcher: PathMatcher,
    pub(super) template: Template,
}

impl Admission {
    /// Returns the target's host and port, if the request is a permitted CONNECT-UDP request.
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
}

impl Proxy {
    pub(super) fn on_request(&mut self, now: Instant, id: FlowId, head: &RequestHead) {
        self.stats.requests += 1;
        if has_content(&head.headers) {
            self.stats.requests_refused += 1;
            return self.abort_flow(id, Code::H3_MESSAGE_ERROR, &End::Refused);
        }
        let result = self.admission.check(head).and_then(|target| {
            let (asked, ignored) = Asked::read(&head.headers);
            self.stats.fields_ignored += ignored;
            match asked.group.and_then(|field| field.first) {
                Some(first) => self.join(id, StreamId(first.get()), &target, &asked),
                None => self.open_flow(now, id, target, asked),
            }
        });
        if let Err(error) = result {
            self.refuse(id, &error);
        }
    }

    fn open_flow(
        &mut self,
        now: Instant,
        id: FlowId,
        target: (String, u16),
        asked: Asked,
    ) -> Result<(), RequestError> {
        let (state, output) = self.targets.reach(now, id, target.clone())?;
        self.outputs.push_back(output);
        self.peers.insert_flow(id, Flow::new(state, target, &self.limits, now));
        if let (Some(peer), Some(parts)) = (self.peers.get_mut(id.0), self.server.parts(id.0)) {
            peer.tunnel.on_request(&Carrier::from(parts), id.1, asked);
        }
        Ok(())
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

    fn answer(&mut self, id: FlowId, head: &ResponseHead, end: h3::End) {
        if let Some((session, connection)) = self.server.parts(id.0) {
            session.send_response(connection, id.1, head, end);
        }
    }

    /// Refuses a request whose name was not resolved in time.
    pub(super) fn on_dns_timeout(&mut self, id: FlowId) {
        let timeout = self.limits.dns_timeout;
        if let Some(flow) = self.peers.flow_mut(id) {
            let host = flow.requested.0.clone();
            self.refuse(id, &RequestError::DnsTimeout { host, timeout });
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
        let Some(flow) = self.peers.flow_mut(id) else { return };
        match self.targets.open_resolved(now, id, flow.requested.clone(), result) {
            Ok((state, output)) => {
                flow.state = state;
                self.outputs.push_back(output);
            }
            Err(error) => self.refuse(id, &error),
        }
    }

    pub(super) fn on_socket_opened(
        &mut self,
        now: Instant,
        socket: SocketId,
        result: Result<SocketAddr, io::ErrorKind>,
    ) {
        let Some(id) = self.targets.flow_of(socket) else { return };
        if let Err(kind) = result {
            return self.refuse(id, &RequestError::for_socket(kind));
        }
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        let Some(flow) = peer.flows.get_mut(&id.1) else { return };
        let State::Opening { target, .. } = flow.state else { return };
        flow.state = State::Open { socket, target };
        flow.last_active = now;
        let grant = granted(target, peer.tunnel.grant(now, id.1));
        self.answer(id, &grant, h3::End::More);
        self.stats.flows += 1;
        info!(flow = id.1.0, %target, "flow opened");
        self.has_arrivals(id.0);
    }

    /// Answers a request with an error and ends it.
    fn refuse(&mut self, id: FlowId, error: &RequestError) {
        self.stats.requests_refused += 1;
        debug!(flow = id.1.0, %error, "request refused");
        self.close_flow(id, &End::Refused);
        self.answer(id, &refused(error), h3::End::Last);
        if let Some((session, connection)) = self.server.parts(id.0) {
            session.stop_reading(connection, id.1);
        }
    }
}
