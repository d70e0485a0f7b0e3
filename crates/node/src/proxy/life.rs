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
use tracing::debug;

use super::{
    FlowId, Proxy,
    access::{Access, User},
    answer::{refused, revoked},
    flow::{End, Flow, Owner, Stage, StreamFate},
    peers::Peer,
    request::Permitted,
    service::{Attempt, Further, LookUp, Race},
    users::Meter,
};
use crate::{
    OsError,
    error::RequestError,
    h3,
    impossible::impossible,
    node::{Progress, QueryId, ResolveError},
    quic::ConnectionId,
    service::{HostPort, Service},
    tcp::TcpOutput,
    tunnel::encode_proxy_status,
};

impl Proxy {
    /// Opens a flow for a permitted request. The tunnel has to hear of it afterwards.
    pub(super) fn open_flow(
        &mut self,
        now: Instant,
        id: FlowId,
        Permitted { user, headers, service, target }: Permitted<'_>,
    ) -> Result<&mut Flow, RequestError> {
        let owner = self.owner(now, id, user, headers)?;
        let stage = if let Ok(address) = target.host.parse::<IpAddr>() {
            let address = address.to_canonical();
            let mut race = self.race(now, (&[address], target.port), &owner.user)?;
            if address.is_ipv4() {
                race.expect(Further::IfUnroutable);
            }
            Stage::Reaching(race)
        } else {
            Stage::Resolving(self.look_up(now, id, target.host.clone(), &owner.user)?)
        };
        let flow = Flow::new(now, stage, service, owner, target);
        let flow = self.peers.insert_flow(id, flow, &self.limits);
        flow.ok_or(RequestError::Unauthorized) // there is no such connection any more
    }

    /// Looks up the addresses of a target.
    fn look_up(
        &mut self,
        now: Instant,
        id: FlowId,
        host: String,
        user: &User,
    ) -> Result<LookUp, RequestError> {
        let (query, output) = self.targets.query(id, host, user)?;
        self.outputs.push_back(output);
        Ok(LookUp { query, deadline: now + self.limits.dns_timeout })
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

    /// Begins to reach a target at one of these addresses, of which there is at least one.
    fn race(
        &self,
        now: Instant,
        (found, port): (&[IpAddr], u16),
        user: &User,
    ) -> Result<Box<Race>, RequestError> {
        let deadline = now + self.limits.connect_timeout;
        let mut race = Race::new(now, deadline, port);
        race.add(&self.permitted(found, user)?, deadline);
        Ok(Box::new(race))
    }

    /// Those of a target's addresses that the proxy may reach: at least one.
    fn permitted(&self, found: &[IpAddr], user: &User) -> Result<Vec<IpAddr>, RequestError> {
        if self.admission.has_service() {
            return Ok(found.to_vec()); // the operator chose it
        }
        self.targets.permitted(found, user)
    }

    /// Handles the addresses of a target that are known by now.
    pub(super) fn on_resolved(
        &mut self,
        now: Instant,
        query: QueryId,
        (result, progress): (Result<Vec<IpAddr>, ResolveError>, Progress),
    ) {
        // The flow may have ended before the answer arrived.
        let Some(id) = self.targets.on_answer(query, progress) else { return };
        let Some((flow, _)) = self.peers.flow_of_target(id) else {
            return impossible("a flow lets go of its query when it ends");
        };
        let HostPort { host, port } = flow.requested.clone();
        let (service, user) = (flow.service, flow.owner.user.clone());
        // RFC 9298 §3.1: "If errors occur during this process, the UDP proxy MUST reject the request".
        let found = result
            .and_then(
                |found| if found.is_empty() { Err(ResolveError::NotFound) } else { Ok(found) },
            )
            .map_err(|error| RequestError::Dns { host: host.into(), error });
        let further = match (&flow.stage, progress) {
            (Stage::Resolving(look_up), Progress::Partial) => Further::From(*look_up),
            (_, Progress::Partial) => {
                let look_up = flow.race().and_then(|race| race.look_up());
                look_up.map_or(Further::Nothing, Further::From)
            }
            _ => Further::Nothing,
        };
        let is_first = matches!(flow.stage, Stage::Resolving(_));
        // Addresses are checked after resolution, so that no name leads to an internal address.
        if is_first {
            let race = found.and_then(|found| self.race(now, (&found, port), &user));
            match (race, self.peers.flow_mut(id)) {
                (Ok(mut race), Some(flow)) => {
                    race.expect(further);
                    flow.stage = Stage::Reaching(race);
                }
                (Err(_), _) if progress == Progress::Partial => return, // a better one may come
                (Err(error), _) => return self.refuse(id, &error, service),
                (Ok(_), None) => return,
            }
        } else {
            let permitted = found.and_then(|found| self.permitted(&found, &user));
            let deadline = now + self.limits.connect_timeout;
            if let Some(race) = self.peers.flow_mut(id).and_then(Flow::race) {
                race.add(&permitted.unwrap_or_default(), deadline);
                race.expect(further);
            }
            self.go_on(now, id);
        }
        self.advance_race(now, id); // sets the timer, too
    }

    /// Tries the next address of a target, or refuses the request if none is left.
    pub(super) fn advance_race(&mut self, now: Instant, id: FlowId) {
        while let Some(flow) = self.peers.flow_mut(id)
            && let service = flow.service
            && let Flow { stage: Stage::Reaching(race), requested, owner, .. } = flow
        {
            if race.wants_nat64() {
                let (host, user) = (requested.host.clone(), owner.user.clone());
                let look_up = self.look_up(now, id, host, &user).map(Further::From);
                if let Some(race) = self.peers.flow_mut(id).and_then(Flow::race) {
                    race.expect(look_up.unwrap_or(Further::Nothing));
                }
                continue;
            }
            if let Some(error) = race.lost(now) {
                let error = service.unreachable(requested, error);
                return self.refuse(id, &error, service);
            }
            let Some(peer) = race.due(now) else { break }; // not yet
            let user = owner.user.party();
            match service.attempt(&mut self.targets, now, id, (peer, user)) {
                Ok((attempt, output)) => {
                    race.on_started(now, attempt);
                    self.outputs.push_back(output);
                }
                Err(error) if race.running().next().is_none() => {
                    return self.refuse(id, &error, service);
                }
                Err(_) => race.skip(io::ErrorKind::QuotaExceeded.into()),
            }
        }
        self.set_timer(id);
    }

    /// Handles that an attempt to reach a target has failed.
    pub(super) fn on_attempt_failed(
        &mut self,
        now: Instant,
        id: FlowId,
        (attempt, error): (Attempt, OsError),
    ) {
        if let Some(race) = self.peers.flow_mut(id).and_then(Flow::race) {
            race.on_failed(now, attempt, error);
            self.advance_race(now, id);
        }
    }

    /// Ends the race of a flow with the attempt that was opened first. Returns its target. `None`: it has lost the
    /// race.
    pub(super) fn on_attempt_opened(&mut self, id: FlowId, attempt: Attempt) -> Option<SocketAddr> {
        let race = self.peers.flow_mut(id).and_then(Flow::race)?;
        let target = race.address(attempt)?;
        let others: Vec<_> = race.running().filter(|other| *other != attempt).collect();
        // A flow of UDP payloads may need addresses that come later.
        if let (Attempt::Tcp(_), Some(look_up)) = (attempt, race.look_up()) {
            self.targets.forget_query(look_up.query);
        }
        for other in others {
            self.outputs.push_back(other.give_up(&mut self.targets, TcpOutput::Close));
        }
        Some(target)
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
            Stage::Resolving(_) if is_due => {
                let (host, timeout) = ((&flow.requested.host).into(), self.limits.dns_timeout);
                let service = flow.service;
                self.refuse(id, &RequestError::DnsTimeout { host, timeout }, service);
            }
            Stage::Reaching(_) => self.advance_race(now, id),
            Stage::Open(open) if open.resumes() => self.resume(now, id),
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
    pub(super) fn refuse(&mut self, id: FlowId, error: &RequestError, service: Service) {
        self.stats.requests_refused += 1;
        self.stats.tcp.failed += u64::from(service.carries_bytes());
        let user = self.peers.get(id.0).and_then(|peer| peer.standing.user.as_ref());
        debug!(
            connection = id.0.0, flow = id.1.0, user = user.map(display), %error,
            "request refused"
        );
        self.end_flow(id, &End::Refused, StreamFate::Left);
        self.answer(id, &refused(error, service), h3::End::Last);
        if let Some(mut carrier) = self.server.carrier(id.0) {
            carrier.stop_reading(id.1);
        }
    }

    /// Ends a flow whose user has lost its right to it, and tells the client why, if its stream can carry that: after
    /// what waits for it, or instead.
    pub(super) fn revoke(&mut self, id: FlowId, end: &End) {
        let mut fate = StreamFate::Reset(Code::H3_REQUEST_CANCELLED);
        if let Some(cause) = end.cause()
            && let Some(Peer { flows, tunnel, .. }) = self.peers.get_mut(id.0)
            && let Some(Flow { stage: Stage::Open(open), .. }) = flows.get(&id.1).map(Box::as_ref)
            && let Some(after) =
                open.say(tunnel, id.1, || encode_proxy_status(&revoked(cause, end)))
        {
            fate = after;
        }
        let is_draining = matches!(fate, StreamFate::Drains);
        self.end_flow(id, end, fate);
        if is_draining && let Some(mut carrier) = self.server.carrier(id.0) {
            carrier.stop_reading(id.1);
            self.server.wake(id.0);
        }
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
            Stage::Resolving(look_up) => self.targets.forget_query(look_up.query),
            Stage::Reaching(race) => {
                if let Some(look_up) = race.look_up() {
                    self.targets.forget_query(look_up.query);
                }
                for attempt in race.running() {
                    let output = attempt.give_up(&mut self.targets, TcpOutput::Reset);
                    self.outputs.push_back(output);
                }
            }
            Stage::Open(open) => self.close(open),
        }
        self.beside.close(id);
        if let Some(transfer) = flow.transfer.take() {
            transfer.end(&mut self.stats.transfers);
        }
        flow.service.count_end(flow.open().is_some(), end, &mut self.stats);
        self.log.closed(id, flow, end);
    }

    /// The present address of a client.
    pub(super) fn client(&mut self, id: ConnectionId) -> Option<SocketAddr> {
        Some(self.server.connection(id)?.path()?.client)
    }
}
