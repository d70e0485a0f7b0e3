//! How a server accepts connections, and which ones it closes when it is short of room or memory.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use noq_proto::{Incoming, ServerConfig};
use tandem_wire::{Code, TunnelInfo};
use tracing::{debug, warn};

use super::{
    Connection, ConnectionId, Heaviest, LossDetection, Returning, Steering, Transport,
    amplification::Unvalidated,
    budget::{Budget, BudgetPart, Spent},
    endpoint::{Endpoint, Peer, earliest},
    event::{Closed, Event},
    first_size,
    hello::{self, First, Hellos},
    observed::Observer,
    places::{Place, Places},
};
use crate::{limits::Limits, prefix::Prefix, seldom::Seldom, stats::Accepting};

/// What a server needs to accept connections.
pub(super) struct Acceptance {
    pub(super) config: ServerConfig,
    /// Whether no more connections are accepted.
    pub(super) is_over: bool,
    returning: Option<Returning>,
    /// How many handshakes may begin.
    budget: Budget,
    /// The connections that wait for the rest of their `ClientHello`. `None`: the server need not know what clients
    /// offer.
    hellos: Option<Hellos>,
    places: Places,
    connections_max: usize,
    unvalidated_max: usize,
    handshake_timeout: Duration,
    memory_max: u64,
    /// The memory of the process that was in use at the last measurement, in bytes.
    memory_in_use: u64,
    /// Which of several nodes that share the memory of the process this one is.
    steering: Steering,
    heaviest: Heaviest,
    /// The connections whose handshake is not complete and whose peer has not proven its address.
    unvalidated: usize,
    /// When the handshakes in progress time out.
    handshakes: BTreeSet<(Instant, ConnectionId)>,
    counters: Accepting,
    warning: Seldom,
    budget_warning: Seldom,
    /// Of each connection that has begun, whether its client has said that it will send reports.
    #[cfg(test)]
    pub(super) reports: Vec<bool>,
}

/// What the first packet of a connection says about its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstPacket {
    /// Nothing: its address may be forged.
    Unproven,
    /// It receives at its address: it has answered a Retry packet.
    Proven,
    /// It has also made a permitted request on an earlier connection.
    Returning,
}

impl FirstPacket {
    fn of(incoming: &Incoming) -> Self {
        match (incoming.remote_address_validated(), incoming.may_retry()) {
            (false, _) => Self::Unproven,
            (true, false) => Self::Proven,
            // No Retry packet may follow the token of one, so it is a token of an earlier connection.
            (true, true) => Self::Returning,
        }
    }

    /// The part of the budget that such peers may use. So forged packets take nothing from peers with real addresses,
    /// and strangers take nothing from clients that come again.
    const fn part(self) -> BudgetPart {
        match self {
            Self::Unproven => BudgetPart::Half,
            Self::Proven => BudgetPart::ThreeQuarters,
            Self::Returning => BudgetPart::All,
        }
    }
}

/// What is done with the first packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Begin,
    /// The peer is asked to prove its address, and asks again at once.
    Retry,
    /// Nothing. The peer repeats its packet after about a second, and then after two and four more (RFC 9002 §6.2). A
    /// refusal would cost the server more, and would end most clients.
    Ignore,
}

impl Acceptance {
    /// `config` has the settings of connections that get no address token.
    pub(super) fn new(
        (config, returning): (ServerConfig, Option<Returning>),
        transport: &Transport,
        limits: &Limits,
    ) -> Self {
        Self {
            config,
            is_over: false,
            returning,
            budget: Budget::new(limits.handshakes),
            hellos: (transport.loss_detection == LossDetection::AsClientsSay).then(Hellos::default),
            places: Places::new(limits.connections_per_prefix),
            connections_max: limits.connections,
            unvalidated_max: limits.unvalidated_handshakes,
            handshake_timeout: limits.handshake_timeout,
            memory_max: limits.memory,
            memory_in_use: 0,
            steering: transport.steering,
            heaviest: transport.heaviest.clone(),
            unvalidated: 0,
            handshakes: BTreeSet::new(),
            counters: Accepting::default(),
            warning: Seldom::default(),
            budget_warning: Seldom::default(),
            #[cfg(test)]
            reports: Vec::new(),
        }
    }

    /// Whether a peer must prove that it can receive at its address before it gets a connection.
    /// Half-open connections and memory show that a server is under load (RFC 9000 §8.1.2).
    fn requires_retry(&self) -> bool {
        self.unvalidated >= self.unvalidated_max
            || self.memory_in_use >= memory_high(self.memory_max) / 2
    }

    /// Whether the process uses so much memory that no connection gets memory in addition.
    fn is_short_of_memory(&self) -> bool {
        self.memory_in_use >= memory_high(self.memory_max)
    }

    /// What is done with the first packet of a connection, before the work of a handshake.
    fn decide(&mut self, now: Instant, prefix: Prefix, standing: FirstPacket) -> Decision {
        if standing == FirstPacket::Unproven && self.requires_retry() {
            self.counters.retried += 1;
            return Decision::Retry;
        }
        let Err(spent) = self.budget.spend(now, prefix, standing.part()) else {
            return Decision::Begin;
        };
        if standing == FirstPacket::Unproven {
            self.counters.retried += 1;
            return Decision::Retry;
        }
        match spent {
            Spent::Prefix => self.counters.over_prefix_pace += 1,
            Spent::Node => self.counters.over_pace += 1,
        }
        if self.budget_warning.due(now).is_some() {
            let Accepting { over_prefix_pace, over_pace, .. } = self.counters;
            warn!(
                over_prefix_pace,
                over_pace,
                "clients begin more handshakes than the server has time for: it lets some wait, \
                 those of busy address prefixes first; the counts are totals since the start"
            );
        }
        Decision::Ignore
    }

    /// Notes that a handshake is complete, which proves the address of the peer (RFC 9000 §8.1).
    pub(super) fn on_connected(&mut self, id: ConnectionId, peer: &mut Peer) {
        self.handshakes.remove(&(peer.began + self.handshake_timeout, id));
        self.unvalidated -= usize::from(peer.unvalidated.take().is_some());
    }

    /// Forgets a connection.
    pub(super) fn forget(&mut self, id: ConnectionId, peer: &mut Peer) {
        self.on_connected(id, peer);
        if let Some(prefix) = peer.prefix {
            self.places.remove(prefix, id);
        }
    }

    /// When the first handshake times out, or a connection begins without the rest of its `ClientHello`.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let handshake = self.handshakes.first().map(|&(due, _)| due);
        earliest(handshake, self.hellos.as_ref().and_then(Hellos::next_timeout))
    }

    /// A copy of a UDP payload that a connection may begin with, if it must be looked at.
    pub(super) fn copy_of_initial(&self, payload: &[u8]) -> Option<BytesMut> {
        self.hellos.as_ref().and_then(|_| hello::copy_of_initial(payload))
    }

    /// Warns that connections were refused or closed, but not too often.
    fn warn(&mut self, now: Instant) {
        if self.warning.due(now).is_some() {
            let Accepting { refused, displaced, closed_for_memory, .. } = self.counters;
            warn!(
                refused,
                displaced,
                closed_for_memory,
                limit = self.connections_max,
                memory_in_use = self.memory_in_use,
                memory_limit = self.memory_max,
                "the server is short of room for connections: it refuses new ones, or closes others; \
                 the counts are totals since the start"
            );
        }
    }
}

/// The time that a connection has for its first permitted request before it is closed for lack of
/// memory: enough for a handshake and a request on a slow path.
const REQUEST_TIME: Duration = Duration::from_secs(3);

/// The memory in use from which no new connection gets a place in addition, and the heaviest one is
/// closed: half of the bound. The rest is for the program itself, for what arrives until the next
/// measurement, and for memory that the allocator has not given back yet. Attacks over loopback need
/// up to 60 MB of it.
const fn memory_high(memory_max: u64) -> u64 {
    memory_max / 2
}

impl Endpoint {
    /// Handles the first packet of a connection, with a copy of it if it must be looked at.
    pub(super) fn accept(&mut self, now: Instant, first: First, packet: Option<BytesMut>) {
        let First { incoming, .. } = &first;
        let remote = incoming.remote_address();
        let prefix = Prefix::of_network(remote.ip());
        let decision = self
            .server
            .as_mut()
            .filter(|acceptance| !acceptance.is_over)
            .map(|acceptance| acceptance.decide(now, prefix, FirstPacket::of(incoming)));
        match decision {
            Some(Decision::Begin) => {}
            Some(Decision::Retry) => {
                let mut answer = Vec::new();
                if let Ok(transmit) = self.inner.retry(first.incoming, &mut answer) {
                    self.answer(&transmit, answer);
                }
                return;
            }
            Some(Decision::Ignore) | None => return self.inner.ignore(first.incoming),
        }
        let begun = match (&mut self.server, packet) {
            // The engine takes the thresholds of loss detection only when a connection begins, so that the first report
            // would come too late.
            (Some(Acceptance { config, hellos: Some(hellos), .. }), Some(packet)) => {
                hellos.begin(now, first, packet, config.crypto.as_ref(), TunnelInfo::ALPN)
            }
            _ => Some((first, false)),
        };
        self.begin(now, begun);
    }

    /// Handles a further Initial packet of a client.
    pub(super) fn go_on(&mut self, now: Instant, client: SocketAddr, packet: BytesMut) {
        let hellos = self.server.as_mut().and_then(|acceptance| acceptance.hellos.as_mut());
        let begun = hellos.and_then(|hellos| hellos.go_on(client, packet, TunnelInfo::ALPN));
        self.begin(now, begun);
    }

    /// Begins the connections whose `ClientHello` has not come in time.
    pub(super) fn begin_due(&mut self, now: Instant) {
        while let Some(hellos) = self.server.as_mut().and_then(|server| server.hellos.as_mut())
            && let Some(first) = hellos.take_due(now)
        {
            self.begin(now, Some((first, false)));
        }
    }

    /// Begins a connection, if there is one. Its client has said whether it will send reports on a tunnel.
    fn begin(&mut self, now: Instant, begun: Option<(First, bool)>) {
        let Some((first, reports)) = begun else { return }; // more has to come
        let remote = first.incoming.remote_address();
        let prefix = Prefix::of_network(remote.ip());
        if self.server.as_ref().is_none_or(|acceptance| acceptance.is_over) {
            return self.inner.ignore(first.incoming);
        }
        if !self.make_room(now, prefix) {
            debug!(%remote, "connection refused: there is no room");
            let mut answer = Vec::new();
            let transmit = self.inner.refuse(first.incoming, &mut answer);
            return self.answer(&transmit, answer);
        }
        self.take(now, first, prefix, reports);
    }

    /// Makes room for a connection from this prefix. Returns whether there is room now.
    fn make_room(&mut self, now: Instant, prefix: Prefix) -> bool {
        let connections = self.connections();
        let Some(acceptance) = &mut self.server else { return false }; // it is no server
        let has_room = connections < acceptance.connections_max && !acceptance.is_short_of_memory();
        let place = acceptance.places.find(prefix, has_room);
        match place {
            Place::Free => return true,
            Place::Instead(_) => acceptance.counters.displaced += 1,
            Place::None => acceptance.counters.refused += 1,
        }
        acceptance.warn(now);
        let Place::Instead(other) = place else { return false }; // there is none
        let reason = "other clients need the room";
        self.displace(now, other, Code::H3_EXCESSIVE_LOAD, reason);
        true
    }

    fn take(
        &mut self,
        now: Instant,
        First { incoming, len, ecn }: First,
        prefix: Prefix,
        reports: bool,
    ) {
        let remote = incoming.remote_address();
        let mut unvalidated = (!incoming.remote_address_validated()).then(Unvalidated::default);
        if let Some(unvalidated) = &mut unvalidated {
            unvalidated.on_received(len);
        }
        let hooks = self.hooks(now, Observer::new(now, None, (self.qlog.clone(), None)));
        let mut transport = self.transport(&hooks);
        transport.initial_mtu(first_size::of_server(self.mtu, len));
        self.loss_detection.apply(&mut transport, reports);
        #[cfg(test)]
        if let Some(acceptance) = &mut self.server {
            acceptance.reports.push(reports);
        }
        let mut given = None;
        let config = self.server.as_ref().map(|acceptance| {
            let mut config = acceptance.config.clone();
            given = acceptance.returning.as_ref().map(|returning| returning.give(&mut config));
            config.transport_config(Arc::new(transport));
            config.crypto = hooks.observer.server(config.crypto.clone());
            Arc::new(config)
        });
        let mut answer = Vec::new();
        match self.inner.accept(incoming, now, &mut answer, config) {
            Ok((handle, connection)) => {
                hooks.observer.log(|qlog| qlog.remote(remote));
                let mut connection = Connection::new(connection, hooks, self.acks, self.windows);
                if ecn.is_some() {
                    connection.ecn.is_asked = true;
                }
                let is_unvalidated = unvalidated.is_some();
                let peer = Peer { began: now, prefix: Some(prefix), unvalidated, given };
                let id = self.insert(handle, connection, peer);
                if let Some(acceptance) = &mut self.server {
                    acceptance.places.insert(prefix, id);
                    acceptance.unvalidated += usize::from(is_unvalidated);
                    acceptance.handshakes.insert((now + acceptance.handshake_timeout, id));
                }
                self.events.push_back((id, Event::Accepted { remote }));
            }
            Err(error) => {
                debug!(cause = %error.cause, "connection not accepted");
                if let Some(transmit) = error.response {
                    self.answer(&transmit, answer);
                }
            }
        }
    }

    /// Notes that the peer of a connection has made a request that is permitted. Other connections
    /// make room before it does.
    pub(crate) fn prove(&mut self, id: ConnectionId) {
        if let Some(acceptance) = &mut self.server
            && let Some(Peer { prefix: Some(prefix), given, .. }) =
                self.slots.get(&id).map(|slot| &slot.peer)
        {
            acceptance.places.prove(*prefix, id);
            if let Some(given) = given {
                given.prove();
            }
        }
    }

    /// Sets the memory of the process that is in use, in bytes. If it is too much, connections are closed until it
    /// should be below the bound again. Strangers come first, which have had no permitted request: those that had
    /// seconds for one, and then those of a prefix that has many of them. After them come the heaviest connections.
    /// `memory` says how many bytes the node itself holds for a connection.
    pub(crate) fn set_memory_in_use(
        &mut self,
        now: Instant,
        bytes: u64,
        memory: impl Fn(ConnectionId) -> u64,
    ) {
        let Some(acceptance) = &mut self.server else { return }; // it is no server
        acceptance.memory_in_use = bytes;
        let high = memory_high(acceptance.memory_max);
        let (steering, heaviest) = (acceptance.steering, acceptance.heaviest.clone());
        // The other nodes must know how heavy connections are before memory is short.
        let weighs_from = if steering.nodes() > 1 { high / 4 * 3 } else { high };
        if bytes <= weighs_from {
            return heaviest.set(steering, 0);
        }
        let mut in_use = bytes;
        while in_use > high
            && let Some(id) =
                self.idle_stranger(now).or_else(|| self.server.as_ref()?.places.oldest_of_a_crowd())
        {
            in_use = in_use.saturating_sub(self.memory(id) + memory(id));
            self.free(now, id);
        }
        let ids: Vec<_> = self.slots.keys().copied().collect();
        let mut by_memory: Vec<_> =
            ids.into_iter().map(|id| (self.memory(id) + memory(id), id)).collect();
        by_memory.sort_unstable();
        while in_use > high
            && let Some((weight, id)) =
                by_memory.pop_if(|(it, _)| *it >= heaviest.of_others(steering))
        {
            in_use = in_use.saturating_sub(weight);
            self.free(now, id);
        }
        heaviest.set(steering, by_memory.last().map_or(0, |&(weight, _)| weight));
    }

    /// The connection that should make a permitted request first, if it had seconds for that.
    fn idle_stranger(&self, now: Instant) -> Option<ConnectionId> {
        let id = self.server.as_ref()?.places.oldest_unproven()?;
        let began = self.slots.get(&id)?.peer.began;
        (now.saturating_duration_since(began) >= REQUEST_TIME).then_some(id)
    }

    fn memory(&mut self, id: ConnectionId) -> u64 {
        self.peek(id).map_or(0, Connection::memory)
    }

    /// Closes a connection because memory is short.
    fn free(&mut self, now: Instant, id: ConnectionId) {
        if let Some(acceptance) = &mut self.server {
            acceptance.counters.closed_for_memory += 1;
            acceptance.warn(now);
        }
        self.displace(now, id, Code::H3_EXCESSIVE_LOAD, "the server is short of memory");
    }

    /// Closes a connection and forgets it at once, so that its memory is free. The peer gets one
    /// packet with `CONNECTION_CLOSE`, which is not repeated.
    fn displace(&mut self, now: Instant, id: ConnectionId, code: Code, reason: &str) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.connection.close(now, code, reason);
            let mut packet = Vec::new();
            if let Some(transmit) = slot.poll_transmit(now, &mut packet) {
                self.answers.push(transmit, packet);
            }
        }
        self.abandon(id, Closed::Displaced);
    }

    /// Forgets a connection at once. Its peer is not told.
    fn abandon(&mut self, id: ConnectionId, why: Closed) {
        if let Some(connection) = self.peek(id) {
            let last = connection.stats();
            self.abandoned_packets.0 += last.sent_packets;
            self.abandoned_packets.1 += last.lost_packets;
        }
        if let Some(handle) = self.remove(id) {
            self.inner.handle_event(handle, noq_proto::EndpointEvent::drained());
            self.events.push_back((id, Event::Lost(why)));
        }
    }

    /// Ends the handshakes that have taken too long.
    pub(super) fn time_handshakes_out(&mut self, now: Instant) {
        while let Some(acceptance) = &mut self.server
            && let Some(&(due, id)) = acceptance.handshakes.first()
            && due <= now
        {
            acceptance.handshakes.pop_first();
            acceptance.counters.handshakes_timed_out += 1;
            self.abandon(id, Closed::TimedOut);
        }
    }

    /// Whether new connections get memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.server.as_ref().is_none_or(|acceptance| !acceptance.is_short_of_memory())
    }

    /// What became of the connections that peers wanted to open.
    pub(crate) fn accepting(&self) -> Accepting {
        self.server.as_ref().map(|acceptance| acceptance.counters).unwrap_or_default()
    }
}
