//! The connections of clients, each with its tunnel, its flows, and their timers.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    time::Instant,
};

use super::{FlowId, access::Access, flow::Flow, passwords::Passwords, standing::Standing};
use crate::{
    carrier::Carrier,
    limits::Limits,
    quic::{ConnectionId, StreamId, earliest},
    stats::Stats,
    timers::move_timer,
    tunnel::ProxyTunnel,
};

/// One client's connection.
pub(super) struct Peer {
    pub(super) standing: Standing,
    pub(super) tunnel: ProxyTunnel,
    pub(super) flows: BTreeMap<StreamId, Box<Flow>>,
    pub(super) passwords: Passwords,
    /// Whether the connection is in the relay's list.
    pub(super) is_relayed: bool,
    /// When the next timer of its tunnel is due.
    timer: Option<Instant>,
    /// The bytes that its tunnel held at the last look.
    held_bytes: usize,
}

/// All connections.
pub(super) struct Peers {
    /// In boxes, as the flows of each, because a node of a B-tree has room for eleven values.
    by_connection: BTreeMap<ConnectionId, Box<Peer>>,
    tunnel_timers: BTreeSet<(Instant, ConnectionId)>,
    /// When something has to be done for a flow.
    flow_timers: BTreeSet<(Instant, FlowId)>,
    /// Bytes of numbered payloads that wait for missing ones, in all tunnels.
    held_bytes: usize,
    held_bytes_max: usize,
    /// Connections with streams whose backlog has become short.
    drained: VecDeque<ConnectionId>,
    /// The counters of tunnels that have ended.
    ended: Stats,
}

impl Peers {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            by_connection: BTreeMap::new(),
            tunnel_timers: BTreeSet::new(),
            flow_timers: BTreeSet::new(),
            held_bytes: 0,
            held_bytes_max: limits.held_bytes,
            drained: VecDeque::new(),
            ended: Stats::default(),
        }
    }

    pub(super) fn insert(&mut self, id: ConnectionId, client: SocketAddr, tunnel: ProxyTunnel) {
        let peer = Peer {
            standing: Standing::new(client),
            tunnel,
            flows: BTreeMap::new(),
            passwords: Passwords::default(),
            is_relayed: false,
            timer: None,
            held_bytes: 0,
        };
        self.by_connection.insert(id, Box::new(peer));
    }

    /// Removes a connection. Returns its standing and its flows.
    pub(super) fn remove(
        &mut self,
        id: ConnectionId,
    ) -> Option<(Standing, BTreeMap<StreamId, Box<Flow>>)> {
        let mut peer = self.by_connection.remove(&id)?;
        move_timer(&mut self.tunnel_timers, id, &mut peer.timer, None);
        self.held_bytes -= peer.held_bytes;
        peer.tunnel.add_to(&mut self.ended);
        for (&stream, flow) in &mut peer.flows {
            move_timer(&mut self.flow_timers, (id, stream), &mut flow.timer, None);
        }
        Some((peer.standing, peer.flows))
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Peer> {
        self.by_connection.get(&id).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Peer> {
        self.by_connection.get_mut(&id).map(Box::as_mut)
    }

    pub(super) fn flow_mut(&mut self, (id, stream): FlowId) -> Option<&mut Flow> {
        self.by_connection.get_mut(&id)?.flows.get_mut(&stream).map(Box::as_mut)
    }

    /// The flow for which [`Targets`](super::Targets) has a socket, a connection or a look-up, and its tunnel. The end
    /// of a flow gives these up, so that there always is one.
    pub(super) fn flow_of_target(
        &mut self,
        (id, stream): FlowId,
    ) -> Option<(&mut Flow, &mut ProxyTunnel)> {
        let peer = self.by_connection.get_mut(&id).map(Box::as_mut);
        let found = peer.and_then(|Peer { flows, tunnel, .. }| {
            Some((flows.get_mut(&stream).map(Box::as_mut)?, tunnel))
        });
        debug_assert!(
            found.is_some(),
            "what reaches a target has outlived flow {stream:?} of {id:?}"
        );
        found
    }

    /// Inserts a flow. `None`: there is no such connection.
    pub(super) fn insert_flow(
        &mut self,
        (id, stream): FlowId,
        mut flow: Flow,
        limits: &Limits,
    ) -> Option<&mut Flow> {
        let peer = self.by_connection.get_mut(&id)?;
        let due = flow.timeout(limits);
        move_timer(&mut self.flow_timers, (id, stream), &mut flow.timer, due);
        peer.flows.insert(stream, Box::new(flow));
        peer.flows.get_mut(&stream).map(Box::as_mut)
    }

    pub(super) fn remove_flow(&mut self, (id, stream): FlowId) -> Option<Box<Flow>> {
        let mut flow = self.by_connection.get_mut(&id)?.flows.remove(&stream)?;
        // Otherwise the timer of each flow that has ended would remain until the idle timeout.
        move_timer(&mut self.flow_timers, (id, stream), &mut flow.timer, None);
        Some(flow)
    }

    /// Forgets which connections showed a token that is no longer permitted. Returns their flows
    /// that were opened with such a token.
    pub(super) fn revoke(&mut self, access: &Access) -> Vec<FlowId> {
        let mut revoked = Vec::new();
        for (&id, peer) in &mut self.by_connection {
            peer.standing.revoke(access);
            let flows = peer.flows.iter();
            let flows = flows.filter(|(_, flow)| !access.still_permits(&flow.owner.user));
            revoked.extend(flows.map(|(&stream, _)| (id, stream)));
        }
        revoked
    }

    /// Sets the timer of a flow anew.
    pub(super) fn set_timer(&mut self, (id, stream): FlowId, limits: &Limits) {
        let peer = self.by_connection.get_mut(&id);
        if let Some(flow) = peer.and_then(|peer| peer.flows.get_mut(&stream)) {
            let due = flow.timeout(limits);
            move_timer(&mut self.flow_timers, (id, stream), &mut flow.timer, due);
        }
    }

    /// The next flow whose timer is due.
    pub(super) fn pop_due_flow(&mut self, now: Instant) -> Option<FlowId> {
        let (due, id) = *self.flow_timers.first()?;
        (due <= now).then(|| {
            self.flow_timers.pop_first();
            if let Some(flow) = self.flow_mut(id) {
                flow.timer = None;
            }
            id
        })
    }

    /// The next connection whose tunnel has a timer that is due.
    pub(super) fn pop_due_tunnel(&mut self, now: Instant) -> Option<ConnectionId> {
        let (due, id) = *self.tunnel_timers.first()?;
        (due <= now).then(|| {
            self.tunnel_timers.pop_first();
            if let Some(peer) = self.by_connection.get_mut(&id) {
                peer.timer = None;
            }
            id
        })
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let flow = self.flow_timers.first().map(|&(due, _)| due);
        earliest(flow, self.tunnel_timers.first().map(|&(due, _)| due))
    }

    /// Gives the engine as much as it takes from the queue of a connection's tunnel.
    pub(super) fn feed(&mut self, now: Instant, id: ConnectionId, mut carrier: Carrier<'_>) {
        if let Some(peer) = self.by_connection.get_mut(&id) {
            peer.tunnel.feed(now, &mut carrier);
            let timer = peer.tunnel.next_timeout();
            move_timer(&mut self.tunnel_timers, id, &mut peer.timer, timer);
            if peer.tunnel.has_drained() {
                self.drained.push_back(id);
            }
        }
    }

    /// The next connection with streams whose backlog has become short.
    pub(super) fn pop_drained(&mut self) -> Option<ConnectionId> {
        self.drained.pop_front()
    }

    pub(super) fn has_drained(&self) -> bool {
        !self.drained.is_empty()
    }

    /// Updates the timer of a tunnel and the bytes that it holds. If all tunnels together hold too
    /// much, the flow that holds most gives up its missing payloads. Returns the connection of that
    /// flow.
    pub(super) fn note(&mut self, now: Instant, id: ConnectionId) -> Option<ConnectionId> {
        let peer = self.by_connection.get_mut(&id)?;
        let timer = peer.tunnel.next_timeout();
        move_timer(&mut self.tunnel_timers, id, &mut peer.timer, timer);
        let held_bytes = peer.tunnel.held_bytes();
        self.held_bytes = self.held_bytes - peer.held_bytes + held_bytes;
        peer.held_bytes = held_bytes;
        if self.held_bytes <= self.held_bytes_max {
            return None;
        }
        let longest = self.by_connection.iter_mut().max_by_key(|(_, it)| it.tunnel.longest_held());
        let (&id, peer) = longest?;
        peer.tunnel.flush_longest(now);
        Some(id)
    }

    /// The bytes of memory that the tunnel and the flows of a connection take.
    pub(super) fn memory_of(&self, id: ConnectionId) -> u64 {
        let of_flows = |peer: &Peer| peer.flows.values().map(|flow| flow.memory()).sum::<usize>();
        let memory = |peer: &Peer| peer.tunnel.memory() + of_flows(peer);
        self.get(id).map_or(0, memory) as u64
    }

    /// Bytes of encoded payloads that wait in all tunnels' queues.
    pub(super) fn queued(&self) -> usize {
        self.by_connection.values().map(|peer| peer.tunnel.queued()).sum()
    }

    /// Bytes of memory that the buffers of all tunnels take.
    pub(super) fn memory(&self) -> usize {
        self.by_connection.values().map(|peer| peer.tunnel.memory()).sum()
    }

    /// Adds the counters of all tunnels, including those that have ended.
    pub(super) fn add_to(&self, stats: &mut Stats) {
        stats.add_tunnels(&self.ended);
        for peer in self.by_connection.values() {
            peer.tunnel.add_to(stats);
        }
    }
}
