//! UDP payloads (RFC 9298): how a flow is opened and granted, and its packets that travel beside the connection.

use std::{io, mem, net::SocketAddr, time::Instant};

use bytes::BytesMut;
use http::StatusCode;
use tandem_wire::{CidCapsule, Code, ResponseHead, TransportField};
use tracing::{debug, field::display};

use super::{Attempt, Open, Others};
use crate::proxy::{
    Arm, FlowId, Proxy,
    ab_test::Transfer,
    access::User,
    answer::{granted, unreachable},
    flow::{End, Stage, StreamFate},
    relay::Outlet,
    request::Permitted,
    shares::PACKET_COST,
    users::{Direction, MeterVerdict},
};
use crate::{
    OsError,
    beside::{self, Arrived, Violation},
    error::RequestError,
    fields::TRANSPORT,
    h3,
    impossible::impossible,
    node::SocketId,
    quic::{ConnectionId, StreamId},
    service::{HostPort, Service},
    stats::Stats,
    tunnel::{Asked, encode_proxy_status},
};

/// The most capsules about connection IDs that wait for a client to read them. It may have that many IDs
/// registered and closed twice.
const UNREAD_MAX: usize = 512;

/// Counts the end of a flow of UDP payloads. One that was not granted has not counted as a flow.
pub(super) const fn count_end(is_open: bool, end: &End, stats: &mut Stats) {
    let ended = &mut stats.flows_ended;
    let counter = match end {
        _ if !is_open => return,
        End::Idle => &mut ended.idle,
        End::Unreachable | End::Failed(_) => &mut ended.unreachable,
        End::Malformed(_) => &mut ended.malformed,
        End::WithConnection => &mut ended.with_connection,
        End::Revoked | End::Expired | End::MonthUsed => &mut ended.revoked,
        End::ByClient | End::Reset(_) | End::Refused | End::Finished | End::CutOff => {
            &mut ended.by_client
        }
    };
    *counter += 1;
}

impl Proxy {
    /// Opens a flow of UDP payloads, or lets a request stream join one.
    pub(super) fn open_udp(
        &mut self,
        now: Instant,
        id: FlowId,
        request: Permitted<'_>,
    ) -> Result<(), RequestError> {
        if self.admission.has_service() {
            return Err(RequestError::OtherService);
        }
        let (mut asked, ignored) = Asked::read(request.headers);
        let (beside, also_ignored) = beside::Asked::read(request.headers);
        self.stats.fields_ignored += ignored + also_ignored;
        if let Some(first) = asked.group.and_then(|field| field.first) {
            return self.join(id, StreamId(first.get()), &request.target, &asked);
        }
        let arm = self.arm(id.0, &request.user).filter(|_| asked.wants_tecc());
        if let Some(arm) = arm {
            asked.withhold(arm);
        }
        let flow = self.open_flow(now, id, request)?;
        flow.beside = Some(Box::new(beside));
        flow.transfer = arm.map(|arm| Box::new(Transfer::new(now, arm)));
        if let Some(peer) = self.peers.get_mut(id.0)
            && let Some(carrier) = self.server.carrier(id.0)
        {
            peer.tunnel.on_request(&carrier, id.1, Service::Udp, asked);
        }
        self.advance_race(now, id);
        Ok(())
    }

    /// The arm of the A/B test in which a user is. `None`: there is no test.
    fn arm(&self, connection: ConnectionId, user: &User) -> Option<Arm> {
        let client = self.peers.get(connection)?.standing.client;
        Some(self.ab_test?.arm(user.in_test(client.ip()).as_bytes()))
    }

    /// Lets a request stream join the flow of another. A stream that cannot join at once is
    /// refused.
    fn join(
        &mut self,
        id: FlowId,
        first: StreamId,
        target: &HostPort,
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

    /// Grants a flow whose socket was opened, or refuses it. If it was granted, the socket is for another address.
    pub(in crate::proxy) fn on_socket_opened(
        &mut self,
        now: Instant,
        socket: SocketId,
        result: Result<SocketAddr, OsError>,
    ) {
        let Some(id) = self.targets.flow_of(socket) else { return }; // the flow has ended
        let local = match result {
            Ok(local) => local,
            Err(error) if self.has_other(now, id, (socket, error)) => return,
            Err(error) => {
                self.outputs.push_back(self.targets.close(socket));
                return self.on_attempt_failed(now, id, (Attempt::Udp(socket), error));
            }
        };
        if let Some(client) = self.client(id.0) {
            self.targets.on_opened(socket, local, client);
        }
        if self.use_other(id, socket) {
            return;
        }
        let Some(target) = self.on_attempt_opened(id, Attempt::Udp(socket)) else { return }; // it has lost
        let Some((flow, tunnel)) = self.peers.flow_of_target(id) else {
            return impossible("a flow lets go of its socket when it ends");
        };
        let stage = Stage::Open(Open::Udp(Outlet::new(now, socket, target)));
        if let Stage::Reaching(race) = mem::replace(&mut flow.stage, stage)
            && let Some(outlet) = flow.outlet()
        {
            outlet.others = Others::after(race);
        }
        flow.last_active = now;
        self.log.opened(id, flow);
        let mut headers = tunnel.grant(now, id.1);
        if let Some(connection) = self.server.connection(id.0)
            && let Some(path) = connection.path()
        {
            let secrets = || connection.seal_secrets(id.1);
            if let Some(asked) = flow.beside.take() {
                self.beside.grant(id, &asked, (path, secrets), &mut headers);
                let is_new = connection.sealed_offer().is_some();
                if let Some(own) = asked.sealed.and_then(|it| connection.agree_on_sealed(now, it)) {
                    if is_new {
                        self.stats.sealed_transports += 1;
                        debug!(connection = id.0.0, "datagrams travel in the sealed transport");
                    }
                    let field = TransportField { id: own, reset: self.beside.reset_token(&own) };
                    headers.insert(TRANSPORT, field.encode());
                }
            }
        }
        self.answer(id, &granted(target, headers), h3::End::More);
        self.stats.flows += 1;
        self.has_arrivals(id.0);
    }

    /// Takes a packet that travels beside its connection. Returns a packet of a connection.
    pub(in crate::proxy) fn take_beside(
        &mut self,
        now: Instant,
        from: SocketAddr,
        packet: BytesMut,
    ) -> Option<BytesMut> {
        let Self { beside, peers, server, stats, shares, .. } = self;
        let arrived = beside.arrive(packet, from, |id| {
            let path = server.connection(id.0)?.path()?;
            let flow = peers.flow_mut(id)?;
            let meter = &flow.owner.meter;
            if shares.drops(flow.owner.who(id.0)) {
                stats.dropped.over_share += 1;
                return None;
            }
            if meter.wait(now, Direction::ToTarget).is_some() {
                meter.dropped(Direction::ToTarget);
                return None;
            }
            let outlet = flow.outlet().filter(|outlet| outlet.has_socket())?;
            Some((path, (outlet.socket, outlet.target)))
        });
        match arrived {
            Arrived::OfConnection(packet) => return Some(packet),
            Arrived::Dropped => {}
            Arrived::Relayed(id, len) => {
                stats.to_target_datagrams += 1;
                stats.to_target_bytes += len as u64;
                if let Some(flow) = peers.flow_mut(id) {
                    flow.last_active = now;
                    flow.count_in_test(now, (Direction::ToTarget, len), stats);
                    if let Some(outlet) = flow.outlet() {
                        outlet.to_target_datagrams += 1;
                        outlet.beside_datagrams += 1;
                    }
                    if shares.is_busy() {
                        shares.count(now, Some(flow.owner.who(id.0)), PACKET_COST + len);
                    }
                    let meter = &mut flow.owner.meter;
                    if meter.passed(now, Direction::ToTarget, (len, 1)) == MeterVerdict::MonthUsed {
                        self.revoke(id, &End::MonthUsed);
                    }
                }
            }
        }
        None
    }

    fn send_cids(&mut self, id: FlowId, capsules: &[CidCapsule]) {
        let Some(peer) = self.peers.get_mut(id.0) else { return }; // the client has gone
        let send = |it: &CidCapsule| peer.tunnel.send_capsule(id.1, |out| it.encode(out));
        let waiting = capsules.iter().map(send).max();
        self.server.wake(id.0);
        if waiting > Some(UNREAD_MAX) {
            let end = End::Malformed("the client reads no answers about connection IDs".into());
            self.end_flow(id, &end, StreamFate::Reset(Code::H3_EXCESSIVE_LOAD));
        }
    }

    /// Handles a capsule of a client about a connection ID.
    pub(in crate::proxy) fn on_cid(&mut self, id: FlowId, capsule: CidCapsule) {
        let path = self.server.connection(id.0).and_then(|connection| connection.path());
        let Some(path) = path else { return }; // the client has gone
        match self.beside.on_capsule(id, capsule, path) {
            Ok(answers) => self.send_cids(id, &answers),
            Err(Violation(reason)) => {
                let end = End::Malformed(reason.into());
                self.end_flow(id, &end, StreamFate::Reset(Code::H3_DATAGRAM_ERROR));
            }
        }
    }

    /// Handles that the socket of a flow has failed.
    pub(in crate::proxy) fn on_socket_failed(
        &mut self,
        now: Instant,
        socket: SocketId,
        error: io::ErrorKind,
    ) {
        let Some(id) = self.targets.flow_of(socket) else { return }; // the flow has ended
        if !self.has_other(now, id, (socket, error.into())) {
            self.end_target(id, error);
        }
    }

    /// Ends a flow whose target cannot be reached. A client of ours is told the reason in a capsule
    /// before its stream ends. The stream of another client is reset.
    pub(super) fn end_target(&mut self, id: FlowId, error: io::ErrorKind) {
        let Some((flow, tunnel)) = self.peers.flow_of_target(id) else {
            return impossible("a flow lets go of its socket when it ends");
        };
        let user = display(&flow.owner.user);
        debug!(connection = id.0.0, flow = id.1.0, %user, %error, "the target's socket failed");
        // A frame that was sent in part can only be cut by a reset.
        let can_explain = tunnel.explains_end(id.1) && !tunnel.is_within_frame(id.1);
        let fate = match flow.outlet().filter(|_| can_explain) {
            Some(outlet) => {
                StreamFate::FinishWith(encode_proxy_status(&unreachable(outlet.target, error)))
            }
            None => StreamFate::Reset(Code::H3_CONNECT_ERROR),
        };
        self.end_flow(id, &End::Unreachable, fate);
    }
}
