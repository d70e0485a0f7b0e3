//! The life of a flow, which is the same for all services: it is opened, its target's name is resolved, it is granted
//! or refused, and it ends.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use http::HeaderMap;
use tandem_wire::{Code, ResponseHead, TraceId};
use tracing::{debug, field::display};

use super::{
    FlowId, Proxy,
    access::{Access, User},
    answer::{refused, unreachable},
    flow::{End, Flow, Owner, Stage, StreamFate},
    request::Asks,
    service::{Race, Reach, Service},
    users::Meter,
};
use crate::{
    error::RequestError,
    h3,
    impossible::impossible,
    node::{Output, QueryId, ResolveError, SocketId},
    quic::ConnectionId,
    tcp::TcpOutput,
    tunnel::encode_proxy_status,
};

impl Proxy {
    /// Opens a flow for a permitted request. The tunnel has to hear of it afterwards.
    pub(super) fn open_flow(
        &mut self,
        now: Instant,
        id: FlowId,
        (user, headers): (User, &HeaderMap),
        (asks, target): (Asks, (String, u16)),
    ) -> Result<&mut Flow, RequestError> {
        let owner = self.owner(now, id, user, headers)?;
        let stage = if let Ok(address) = target.0.parse() {
            Stage::Reaching(self.reach(now, id, asks, (&[address], target.1), &owner.user)?)
        } else {
            let (query, output) = self.targets.query(id, target.0.clone(), &owner.user)?;
            self.outputs.push_back(output);
            Stage::Resolving { query, deadline: now + self.limits.dns_timeout }
        };
        let flow = Flow::new(now, stage, asks, owner, target);
        let flow = self.peers.insert_flow(id, flow, &self.limits);
        flow.ok_or(RequestError::Unauthorized) // there is no such connection any more
    }

    /// Who opens a flow. The flow counts among those of the user.
    fn owner(
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

    /// Begins to reach a target at one of these addresses, of which there is at least one.
    fn reach(
        &mut self,
        now: Instant,
        id: FlowId,
        asks: Asks,
        (found, port): (&[IpAddr], u16),
        user: &User,
    ) -> Result<Reach, RequestError> {
        if asks == Asks::Udp {
            let (socket, target, output) = self.targets.open(now, id, (found, port), user)?;
            self.outputs.push_back(output);
            return Ok(Reach::Socket { socket, target });
        }
        let deadline = now + self.limits.connect_timeout;
        let race = if self.admission.has_service() {
            Race::new(found, port, now, deadline) // the operator chose it
        } else {
            Race::new(&self.targets.permitted(found, user)?, port, now, deadline)
        };
        Ok(Reach::Race(Box::new(race)))
    }

    /// Handles the addresses of a target.
    pub(super) fn on_resolved(
        &mut self,
        now: Instant,
        query: QueryId,
        result: Result<Vec<IpAddr>, ResolveError>,
    ) {
        // The flow may have ended before the answer arrived.
        let Some(id) = self.targets.on_answer(query) else { return };
        let Some((flow, _)) = self.peers.flow_of_target(id) else {
            return impossible("a flow lets go of its query when it ends");
        };
        let (asks, (host, port), user) =
            (flow.asks, flow.requested.clone(), flow.owner.user.clone());
        // RFC 9298 §3.1: "If errors occur during this process, the UDP proxy MUST reject the request".
        let found = result
            .and_then(
                |found| if found.is_empty() { Err(ResolveError::NotFound) } else { Ok(found) },
            )
            .map_err(|error| RequestError::Dns { host: host.into(), error });
        // Addresses are checked after resolution, so that no name leads to an internal address.
        let reach = found.and_then(|found| self.reach(now, id, asks, (&found, port), &user));
        match (reach, self.peers.flow_mut(id)) {
            (Ok(reach), Some(flow)) => {
                flow.stage = Stage::Reaching(reach);
                self.advance_race(now, id); // sets the timer, too
            }
            (Err(error), _) => self.refuse(id, &error, asks),
            (Ok(_), None) => {}
        }
    }

    /// Sets the timer of a flow anew.
    pub(super) fn set_timer(&mut self, id: FlowId) {
        self.peers.set_timer(id, &self.limits);
    }

    /// Does what the timer of a flow is for. The timers of flows of UDP payloads are set lazily, so that no packet has
    /// to move one.
    pub(super) fn on_flow_timer(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.peers.flow_mut(id) else {
            return impossible("the timer of a flow ends with it");
        };
        if flow.owner.user.until.is_some_and(|until| until <= now) {
            return self.revoke(id, &End::Expired);
        }
        let is_due = flow.timeout(&self.limits).is_some_and(|due| due <= now);
        match &flow.stage {
            Stage::Resolving { .. } if is_due => {
                let (host, timeout) = ((&flow.requested.0).into(), self.limits.dns_timeout);
                let asks = flow.asks;
                self.refuse(id, &RequestError::DnsTimeout { host, timeout }, asks);
            }
            Stage::Reaching(Reach::Race(_)) => self.advance_race(now, id),
            Stage::Open(Service::Tcp(_)) => self.resume(now, id),
            // RFC 9298 §3.1: UDP proxies "MUST close the request stream when closing the socket."
            _ if is_due => self.end_flow(id, &End::Idle, StreamFate::Reset(Code::H3_NO_ERROR)),
            _ => self.set_timer(id),
        }
    }

    pub(super) fn answer(&mut self, id: FlowId, head: &ResponseHead, end: h3::End) {
        if let Some(mut carrier) = self.server.carrier(id.0) {
            carrier.respond(id.1, head, end);
        }
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
        self.end_flow(id, &End::Refused, StreamFate::Left);
        self.answer(id, &refused(error, asks), h3::End::Last);
        if let Some(mut carrier) = self.server.carrier(id.0) {
            carrier.stop_reading(id.1);
        }
    }

    /// Ends a flow whose user has lost its right to it.
    pub(super) fn revoke(&mut self, id: FlowId, end: &End) {
        self.end_flow(id, end, StreamFate::Reset(Code::H3_REQUEST_CANCELLED));
    }

    /// Ends the flows that were opened with a token that is no longer permitted.
    pub(super) fn revoke_all(&mut self, access: &Access) {
        for id in self.peers.revoke(access) {
            self.revoke(id, &End::Revoked);
        }
    }

    /// Ends a flow, and the streams that had joined it. A stream without a flow only leaves the tunnel.
    pub(super) fn end_flow(&mut self, (id, stream): FlowId, end: &End, fate: StreamFate) {
        let Some(peer) = self.peers.get_mut(id) else { return }; // the client has gone
        if !matches!(fate, StreamFate::Drains) {
            for joined in peer.tunnel.close(stream) {
                if let Some(mut carrier) = self.server.carrier(id) {
                    carrier.reset(joined, Code::H3_NO_ERROR);
                }
            }
        }
        if let Some(mut flow) = self.peers.remove_flow((id, stream)) {
            self.release((id, stream), &mut flow, end);
        }
        if matches!(fate, StreamFate::Left | StreamFate::Drains) {
            return;
        }
        let Some(mut carrier) = self.server.carrier(id) else { return }; // the client has gone
        match fate {
            StreamFate::Left | StreamFate::Drains => {}
            StreamFate::Finish => carrier.finish(stream),
            StreamFate::FinishWith(last) => {
                carrier.finish_with(stream, last);
                carrier.stop_reading(stream);
            }
            StreamFate::Reset(code) => carrier.reset(stream, code),
        }
    }

    /// Releases what a flow that has ended holds outside of its tunnel.
    pub(super) fn release(&mut self, id: FlowId, flow: &mut Flow, end: &End) {
        match &mut flow.stage {
            Stage::Resolving { query, .. } => self.targets.forget_query(*query),
            Stage::Reaching(Reach::Socket { socket, .. }) => {
                self.outputs.push_back(self.targets.close(*socket));
            }
            Stage::Reaching(Reach::Race(race)) => {
                for tcp in race.running() {
                    self.targets.disconnect(tcp);
                    self.outputs.push_back(Output::Tcp(TcpOutput::Reset(tcp)));
                }
            }
            Stage::Open(Service::Udp(udp)) => {
                self.outputs.push_back(self.targets.close(udp.socket));
            }
            Stage::Open(Service::Tcp(tcp)) => {
                tcp.splice.socket.reset(&mut self.outputs);
                self.targets.disconnect(tcp.splice.socket.tcp());
            }
        }
        self.beside.close(id);
        flow.count(end, &mut self.stats);
        self.log.closed(id, flow, end);
    }

    /// Ends a flow whose target cannot be reached. A client of ours is told the reason in a capsule
    /// before its stream ends. The stream of another client is reset.
    pub(super) fn end_unreachable(&mut self, socket: SocketId, error: io::ErrorKind) {
        let Some(id) = self.targets.flow_of(socket) else { return }; // the flow has ended
        let Some((flow, tunnel)) = self.peers.flow_of_target(id) else {
            return impossible("a flow lets go of its socket when it ends");
        };
        let user = display(&flow.owner.user);
        debug!(connection = id.0.0, flow = id.1.0, %user, %error, "the target's socket failed");
        // A frame that was sent in part can only be cut by a reset.
        let can_explain = tunnel.explains_end(id.1) && !tunnel.is_within_frame(id.1);
        let fate = match flow.open().filter(|_| can_explain) {
            Some((_, target)) => {
                StreamFate::FinishWith(encode_proxy_status(&unreachable(target, error)))
            }
            None => StreamFate::Reset(Code::H3_CONNECT_ERROR),
        };
        self.end_flow(id, &End::Unreachable, fate);
    }

    /// The present address of a client.
    pub(super) fn client(&mut self, id: ConnectionId) -> Option<SocketAddr> {
        Some(self.server.connection(id)?.path()?.client)
    }
}
