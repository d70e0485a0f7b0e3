//! The data path between tunnels and the sockets towards targets, for all services whose flows carry payloads.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_wire::Code;

use super::{
    FlowId, LISTEN, Proxy,
    flow::{End, Flow, Stage, StreamFate},
    service::Others,
    shares::PACKET_COST,
    users::{Direction, MeterVerdict},
};
use crate::{
    impossible::impossible,
    node::{Output, SocketId, Transmit},
    quic::ConnectionId,
    tunnel::{Arrival, StreamEnd, Unsent},
};

/// The most bytes in one system call towards a target.
const MAX_BATCH: usize = 60_000;
/// The most datagrams in one system call: the kernel's limit for GSO (generic segmentation
/// offload).
const MAX_BATCH_SEGMENTS: usize = 64;

/// The shortest time between two messages to the target of a flow that its packets are too large.
const TOO_BIG_INTERVAL: Duration = Duration::from_secs(1);

/// The size of packets on which their sender relies. It uses a size for many packets in a row only after one
/// has arrived; a single larger packet is a search for the path MTU, and may be lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsedSize {
    size: u16,
    /// How many larger packets came in a row, and the least size among them.
    larger: u16,
    least: u16,
}

impl UsedSize {
    /// Enough packets in a row.
    const ENOUGH: u16 = 16;

    /// Notes a packet. Returns the size if it has become larger.
    pub(super) fn on_packet(&mut self, size: usize) -> Option<usize> {
        let size = u16::try_from(size).unwrap_or(u16::MAX); // the length of a UDP payload has 16 bits
        if size <= self.size {
            self.larger = 0;
            return None;
        }
        self.least = if self.larger == 0 { size } else { self.least.min(size) };
        self.larger += 1;
        if self.larger < Self::ENOUGH {
            return None;
        }
        (self.size, self.larger) = (self.least, 0);
        Some(self.size.into())
    }
}

/// The socket through which the payloads of a flow leave, and what has passed it.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) socket: SocketId,
    pub(super) target: SocketAddr,
    pub(super) to_target_datagrams: u64,
    pub(super) to_client_datagrams: u64,
    /// Those of both directions that travelled beside the connection.
    pub(super) beside_datagrams: u64,
    /// The size of those to the client.
    beside_size: UsedSize,
    /// Payloads from the target that were dropped because they did not fit the tunnel.
    pub(super) too_large: u64,
    /// When the target may be told again that its packets are too large.
    next_too_big: Instant,
    /// The other addresses of the target, until something comes from it.
    pub(super) others: Option<Box<Others>>,
}

impl Outlet {
    pub(super) fn new(now: Instant, socket: SocketId, target: SocketAddr) -> Self {
        Self {
            socket,
            target,
            to_target_datagrams: 0,
            to_client_datagrams: 0,
            beside_datagrams: 0,
            beside_size: UsedSize::default(),
            too_large: 0,
            next_too_big: now,
            others: None,
        }
    }

    /// Whether a payload can leave now.
    pub(super) fn has_socket(&self) -> bool {
        self.others.as_ref().is_none_or(|others| !others.is_waiting())
    }

    /// Counts a payload that has passed.
    pub(super) const fn on_passed(&mut self, way: Direction) {
        match way {
            Direction::ToTarget => self.to_target_datagrams += 1,
            Direction::ToClient => self.to_client_datagrams += 1,
        }
    }
}

/// The state of the path from tunnels to targets.
#[derive(Default)]
pub(super) struct Relay {
    /// Connections whose tunnels may have payloads for targets.
    ready: VecDeque<ConnectionId>,
    /// A payload that did not fit the batch of the payloads before it.
    ahead: Option<(FlowId, Bytes)>,
    /// Payloads that are sent again, to another address of their target.
    again: VecDeque<(FlowId, Bytes)>,
    /// Connections that have ended, and whose payloads for targets are relayed before they are
    /// forgotten.
    lost: VecDeque<ConnectionId>,
    /// Whether the target of an urgent flow has sent something, see
    /// [`Node::take_urgent`](crate::node::Node::take_urgent).
    pub(super) has_urgent: bool,
}

/// Datagrams of one flow to its target. All have the same size, except that the last may be
/// shorter.
struct TargetBatch {
    socket: SocketId,
    target: SocketAddr,
    flow: FlowId,
    segment: usize,
    count: usize,
}

impl Proxy {
    /// Passes a payload from a target to its client's tunnel.
    pub(super) fn from_target(&mut self, now: Instant, socket: SocketId, payload: &[u8]) {
        let Some(id) = self.targets.flow_of(socket) else { return }; // the flow has ended
        let Some((flow, tunnel)) = self.peers.flow_of_target(id) else {
            return impossible("a flow lets go of its socket when it ends");
        };
        flow.last_active = now;
        if let Some(others) = flow.outlet().and_then(|outlet| outlet.others.take())
            && let Some(query) = others.query()
        {
            self.targets.forget_query(query);
        }
        match flow.owner.meter.datagram(now, Direction::ToClient, payload.len()) {
            MeterVerdict::Pass => {}
            MeterVerdict::OverRate => return,
            MeterVerdict::MonthUsed => return self.revoke(id, &End::MonthUsed),
        }
        if self.shares.is_busy() {
            self.shares.count(now, Some(flow.owner.who(id.0)), PACKET_COST + payload.len());
        }
        let Stage::Open(open) = &mut flow.stage else { return }; // of a wrong driver
        let Some(outlet) = open.outlet() else { return }; // of a wrong driver
        self.relay.has_urgent |= tunnel.is_urgent(id.1);
        if let Some(pep) = &mut self.pep {
            pep.observe(now, (outlet.socket, outlet.target), payload);
        }
        // A packet beside the connection does not touch it, so that the connection is not polled for it.
        if self.beside.is_used(id)
            && let Some(connection) = self.server.connection(id.0)
            && let Some(path) = connection.path()
            && self.beside.send(
                (now, tunnel.holds(id.1)),
                id,
                payload,
                (LISTEN, path, connection.packet_size_max()),
            )
        {
            outlet.beside_datagrams += 1;
            if let Some(size) = outlet.beside_size.on_packet(payload.len()) {
                tunnel.promise(id.1, size);
            }
            open.on_passed(Direction::ToClient, payload.len(), &mut self.stats);
            flow.count_in_test(now, (Direction::ToClient, payload.len()), &mut self.stats);
            return;
        }
        let Some(mut carrier) = self.server.carrier(id.0) else { return }; // the client has gone
        match tunnel.send(now, &mut carrier, id.1, payload) {
            Ok(()) => {
                open.on_passed(Direction::ToClient, payload.len(), &mut self.stats);
                flow.count_in_test(now, (Direction::ToClient, payload.len()), &mut self.stats);
            }
            Err(Unsent::TooLarge { fits }) => {
                outlet.too_large += 1;
                if now >= outlet.next_too_big {
                    outlet.next_too_big = now + TOO_BIG_INTERVAL;
                    let (peer, local_ip, len) = (outlet.target, None, payload.len());
                    let too_big = Output::PacketTooBig { socket, peer, local_ip, len, fits };
                    self.outputs.push_back(too_big);
                }
            }
            Err(Unsent::Other) => {}
        }
    }

    /// Sends payloads of a flow again, to another address of its target.
    pub(super) fn send_again(&mut self, id: FlowId, payloads: Vec<Bytes>) {
        self.relay.again.extend(payloads.into_iter().map(|payload| (id, payload)));
    }

    /// Notes that the tunnel of a connection may have payloads for targets.
    pub(super) fn has_arrivals(&mut self, id: ConnectionId) {
        if let Some(peer) = self.peers.get_mut(id)
            && !std::mem::replace(&mut peer.is_relayed, true)
        {
            self.relay.ready.push_back(id);
        }
    }

    /// Handles the end of a connection by its peer or by an error. Its payloads are relayed first.
    pub(super) fn on_lost(&mut self, id: ConnectionId) {
        self.relay.lost.push_back(id);
        self.has_arrivals(id);
    }

    /// Forgets a connection that has ended, after all its payloads have been relayed. Returns whether
    /// there was something to do.
    pub(super) fn forget_lost(&mut self, now: Instant) -> bool {
        let Some(id) = self.relay.lost.pop_front() else { return false }; // none
        if self.peers.get_mut(id).is_some_and(|peer| peer.tunnel.end(now)) {
            self.on_lost(id); // the payloads that it releases come first
        } else {
            self.server.forget(now, id);
        }
        true
    }

    /// Sends the next payloads to one target. A batch holds consecutive payloads of one flow and
    /// one size.
    pub(super) fn to_target(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let mut batch: Option<TargetBatch> = None;
        while let Some((id, payload)) = self.next_payload(now) {
            let flow = self.peers.flow_mut(id);
            let Some(Flow { stage: Stage::Open(open), owner, last_active, transfer, .. }) = flow
            else {
                self.stats.dropped.unknown_flow += 1;
                continue;
            };
            let Some(outlet) = open.outlet() else {
                self.stats.dropped.unknown_flow += 1;
                continue;
            };
            let Outlet { socket, target, .. } = *outlet;
            if let Some(others) = outlet.others.as_mut().filter(|others| others.is_waiting()) {
                self.stats.dropped.unknown_flow += u64::from(!others.keep(&payload));
                continue;
            }
            let len = payload.len();
            if batch.as_ref().is_some_and(|batch| !batch.takes(id, len, buf.len())) {
                self.relay.ahead = Some((id, payload));
                break;
            }
            if self.shares.is_busy() {
                let who = owner.who(id.0);
                if self.shares.drops(who) {
                    self.stats.dropped.over_share += 1;
                    continue;
                }
                self.shares.count(now, Some(who), len);
            }
            match owner.meter.datagram(now, Direction::ToTarget, len) {
                MeterVerdict::Pass => {}
                MeterVerdict::OverRate => continue,
                MeterVerdict::MonthUsed => {
                    self.revoke(id, &End::MonthUsed);
                    continue;
                }
            }
            *last_active = now;
            if let Some(others) = open.outlet().and_then(|outlet| outlet.others.as_mut()) {
                others.keep(&payload);
            }
            open.on_passed(Direction::ToTarget, len, &mut self.stats);
            if let Some(transfer) = transfer {
                transfer.on_payload(now, (Direction::ToTarget, len), &mut self.stats.transfers);
            }
            buf.extend_from_slice(&payload);
            let batch = batch.get_or_insert(TargetBatch {
                socket,
                target,
                flow: id,
                segment: len,
                count: 0,
            });
            batch.count += 1;
            if batch.is_full(len) {
                break;
            }
        }
        batch.map(|batch| batch.into_output(buf.len()))
    }

    /// The next payload for a target. Payloads without numbers come first, in the order of their
    /// arrival, and then the numbered payloads that the egress releases.
    fn next_payload(&mut self, now: Instant) -> Option<(FlowId, Bytes)> {
        let ahead = self.relay.ahead.take();
        if let Some(payload) = ahead.or_else(|| self.relay.again.pop_front()) {
            return Some(payload);
        }
        while let Some(&id) = self.relay.ready.front() {
            let (peer, carrier) = (self.peers.get_mut(id), self.server.carrier(id));
            let (Some(peer), Some(mut carrier)) = (peer, carrier) else {
                self.relay.ready.pop_front();
                continue;
            };
            match peer.tunnel.poll_arrival(now, &mut carrier) {
                Some(Arrival::Payload(stream, payload)) => return Some(((id, stream), payload)),
                Some(Arrival::Ended(stream, end)) => self.on_stream_end((id, stream), end),
                Some(Arrival::Broken(error)) => self.server.break_connection(now, id, &error),
                Some(Arrival::Cid(stream, capsule)) => self.on_cid((id, stream), capsule),
                // A client has no Context ID for reports, and no service has capsules of clients.
                Some(Arrival::Report(..) | Arrival::Capsule(..)) => {}
                None => {
                    if let Some((stream, payload)) = peer.tunnel.poll_release(now) {
                        return Some(((id, stream), payload));
                    }
                    peer.is_relayed = false;
                    self.relay.ready.pop_front();
                    if let Some(flushed) = self.peers.note(now, id) {
                        self.has_arrivals(flushed);
                    }
                }
            }
        }
        None
    }

    fn on_stream_end(&mut self, id: FlowId, end: StreamEnd) {
        match end {
            StreamEnd::Finished => self.on_client_end(id),
            StreamEnd::Reset(code) => self.end_flow(id, &End::Reset(code), StreamFate::Left),
            StreamEnd::Failed(_) => {} // only a client gets the reason from its proxy
            StreamEnd::Malformed(code, reason) => {
                self.end_flow(id, &End::Malformed(reason), StreamFate::Reset(code));
            }
        }
    }

    /// Ends a flow after its client has finished the request stream. The proxy finishes its side as
    /// well.
    fn on_client_end(&mut self, id: FlowId) {
        if self.peers.flow_mut(id).is_some_and(|flow| flow.open().is_none()) {
            return self.end_flow(
                id,
                &End::ByClient,
                StreamFate::Reset(Code::H3_REQUEST_CANCELLED),
            );
        }
        if self.peers.get_mut(id.0).is_some_and(|peer| peer.tunnel.is_within_frame(id.1)) {
            // RFC 9114 §7.1: a frame that the end of the stream cuts is "a connection error of type
            // H3_FRAME_ERROR". A reset may cut it.
            return self.end_flow(id, &End::ByClient, StreamFate::Reset(Code::H3_NO_ERROR));
        }
        self.end_flow(id, &End::ByClient, StreamFate::Finish);
    }
}

impl TargetBatch {
    /// Whether a payload of a flow may follow the `bytes` that the batch holds.
    fn takes(&self, flow: FlowId, len: usize, bytes: usize) -> bool {
        // GSO cannot send an empty payload as a segment of its own.
        self.flow == flow && len != 0 && len <= self.segment && bytes + len <= MAX_BATCH
    }

    /// Whether no payload may follow the last one, which has `len` bytes.
    const fn is_full(&self, len: usize) -> bool {
        len < self.segment || len == 0 || self.count == MAX_BATCH_SEGMENTS
    }

    fn into_output(self, size: usize) -> Output {
        // RFC 9298 §6.2: a UDP proxy "MUST set the ECN bits to Not-ECT on UDP packets it sends to the
        // target."
        let segment_size = (self.count > 1).then_some(self.segment);
        let destination = self.target;
        let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size };
        Output::Transmit { socket: self.socket, transmit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_larger_packets_do_not_count_as_a_size_that_is_used() {
        let mut used = UsedSize::default();
        let many = |used: &mut UsedSize, size| (0..20).filter_map(|_| used.on_packet(size)).last();
        assert_eq!(many(&mut used, 1200), Some(1200));
        for _ in 0..100 {
            assert_eq!((used.on_packet(1360), used.on_packet(1200)), (None, None));
        }
        assert_eq!(many(&mut used, 1280), Some(1280));
        assert_eq!(many(&mut used, 300), None);
    }
}
