//! All QUIC connections of one socket.

mod beside;
mod events;
mod opening;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use noq_proto::{
    ConnectionHandle, DatagramEvent, FourTuple, ServerConfig, TokenMemoryCache, TransportConfig,
    crypto,
};
use tandem_congestion::{ControllerConfig, ControllerName};
use tandem_wire::PepAck;

use super::{
    AckPolicy, ClientTls, Connection, ConnectionId, ConnectionIds, DatagramTransport, Layer,
    LossDetection, Mtu, ServerTls, Transport, UnusablePackets,
    accept::Acceptance,
    amplification::Unvalidated,
    answers::Answers,
    config::{Windows, endpoint_config, initial_destination_cids},
    convert::{ecn_to_noq, from_noq},
    demux::{self, Demux},
    event::{Closed, Event},
    first_size::LargerInitials,
    hello::First,
    pep::Listener,
    qlog::{Place, Qlogs},
    returning::Given,
    sealed::SealedIds,
    undecided::{Undecided, WaitingPacket},
};
use crate::{
    limits::Limits,
    node::{Ecn, Transmit},
    prefix::Prefix,
    rounds::{Party, Rounds},
};

/// A connection of an endpoint.
pub(super) struct Slot {
    pub(super) connection: Connection,
    handle: ConnectionHandle,
    timer: Option<Instant>,
    pub(super) peer: Peer,
    /// Whose turn the connection takes.
    party: Party<ConnectionId>,
    /// Whether the connection is in [`Endpoint::ready`].
    is_ready: bool,
    /// Whether the connection is in [`Endpoint::touched`].
    is_touched: bool,
}

/// What a client needs to open connections.
struct Opening {
    tls: Arc<dyn crypto::ClientConfig>,
    /// The address tokens that servers have given.
    tokens: Arc<TokenMemoryCache>,
    destination_cids: Arc<dyn Fn() -> noq_proto::ConnectionId + Send + Sync>,
    /// The place of the connections in a chain.
    layer: Option<Layer>,
    /// The same for their qlogs.
    place: Option<Place>,
}

/// What an endpoint knows about the peer of a connection.
pub(super) struct Peer {
    /// When the connection began.
    pub(super) began: Instant,
    /// The prefix of the peer's address at that time, if the peer opened the connection.
    pub(super) prefix: Option<Prefix>,
    /// The limit on what is sent to the peer, if the peer has not proven its address.
    pub(super) unvalidated: Option<Unvalidated>,
    /// The address tokens that the peer has got.
    pub(super) given: Option<Given>,
}

/// All QUIC connections of one socket.
///
/// After any call on a `&mut Connection`, drain [`Endpoint::poll_event`], and then
/// [`Endpoint::next_ready`] with [`Endpoint::poll_transmit`].
pub(crate) struct Endpoint {
    demux: Demux,
    /// The connections of the packets of sealed transports.
    sealed_ids: SealedIds,
    /// What carries the datagrams of connections.
    datagrams: DatagramTransport,
    /// How the connection IDs are chosen at which this endpoint receives packets.
    ids: ConnectionIds,
    /// Their length in bytes.
    pub(super) id_len: usize,
    pub(super) inner: noq_proto::Endpoint,
    /// In boxes, because a node of a B-tree has room for eleven values.
    pub(super) slots: BTreeMap<ConnectionId, Box<Slot>>,
    by_handle: BTreeMap<usize, ConnectionId>,
    next_id: u64,
    /// Other nodes at the same address use the numbers between, so that logs name each connection once.
    id_step: u64,
    timers: BTreeSet<(Instant, ConnectionId)>,
    /// Connections that may have something to send, in the order of their turns.
    ready: Rounds<ConnectionId>,
    /// Connections that may have events, because they were used or got packets since they were last
    /// asked for events. Each is in it at most once. A connection that is no longer ready is not
    /// asked, and waits until it is touched again.
    touched: VecDeque<ConnectionId>,
    pub(super) events: VecDeque<(ConnectionId, Event)>,
    pub(super) answers: Answers,
    /// Packets of other machines' connections that are answered if their machine is gone.
    undecided: Undecided,
    client: Option<Opening>,
    pub(super) server: Option<Acceptance>,
    transport: TransportConfig,
    /// When connections acknowledge what arrives.
    pub(super) acks: Option<AckPolicy>,
    pub(super) mtu: Mtu,
    /// The window of a new connection for all its streams.
    pub(super) windows: Windows,
    /// The first datagrams of a client's connection, if they are larger than others' are.
    larger_initials: Option<LargerInitials>,
    /// The controller of the next connection.
    controller: ControllerConfig,
    pub(super) loss_detection: LossDetection,
    marks_ecn: bool,
    /// Finds the packets of PEP-ACKs.
    pub(super) peps: Option<Listener>,
    /// Makes the qlog files of connections.
    pub(super) qlog: Option<Qlogs>,
    /// The packets that were sent and lost on connections that were forgotten at once.
    pub(super) abandoned_packets: (u64, u64),
    /// How often connections were asked for their events.
    #[cfg(test)]
    pub(super) visits: usize,
}

impl Endpoint {
    /// An endpoint that accepts connections.
    pub(crate) fn server(
        tls: &ServerTls,
        transport: &Transport,
        limits: &Limits,
        seed: Option<u64>,
    ) -> Self {
        let mut config = ServerConfig::with_crypto(tls.0.clone());
        if let Some(fleet) = &transport.fleet {
            config.token_key(Arc::new(fleet.token_key()));
        }
        let mut returning = transport.returning.clone();
        if let Some(returning) = &mut returning {
            let fleet = transport.fleet.as_ref().map(|fleet| Arc::new(fleet.token_key()) as _);
            returning.apply(&mut config, fleet, limits.returning);
        }
        let mut endpoint = Self::new(Some(config.clone()), transport, limits, seed);
        endpoint.server = Some(Acceptance::new((config, returning), transport, limits));
        endpoint
    }

    /// An endpoint that opens connections.
    pub(crate) fn client(
        tls: &ClientTls,
        transport: &Transport,
        limits: &Limits,
        seed: Option<u64>,
    ) -> Self {
        let mut endpoint = Self::new(None, transport, limits, seed);
        let destination_cids = initial_destination_cids(seed);
        let (tls, tokens) = (tls.crypto.clone(), tls.tokens.clone());
        endpoint.client = Some(Opening { tls, tokens, destination_cids, layer: None, place: None });
        endpoint.larger_initials = LargerInitials::new(transport.mtu);
        endpoint
    }

    fn new(
        server: Option<ServerConfig>,
        transport: &Transport,
        limits: &Limits,
        seed: Option<u64>,
    ) -> Self {
        let ids = ConnectionIds::new(transport);
        Self {
            demux: Demux::default(),
            sealed_ids: SealedIds::new(transport, seed),
            datagrams: transport.datagrams,
            id_len: ids.len(),
            ids,
            inner: noq_proto::Endpoint::new(
                Arc::new(endpoint_config(transport, seed, server.is_some())),
                server.map(Arc::new),
                true,
            ),
            slots: BTreeMap::new(),
            by_handle: BTreeMap::new(),
            next_id: transport.steering.index().into(),
            id_step: transport.steering.nodes().into(),
            timers: BTreeSet::new(),
            ready: Rounds::default(),
            touched: VecDeque::new(),
            events: VecDeque::new(),
            answers: Answers::new(limits),
            undecided: Undecided::default(),
            client: None,
            server: None,
            transport: transport.to_noq(limits),
            acks: transport.acks,
            mtu: transport.mtu,
            windows: transport.windows(),
            larger_initials: None,
            controller: transport.controller.clone(),
            loss_detection: transport.loss_detection,
            // RFC 9298 §6: without congestion control, the tunnel "MUST NOT signal ECN support".
            // Its packets are then Not-ECT.
            marks_ecn: transport.controller.name != ControllerName::Off,
            peps: transport.peps.clone().map(Listener::new),
            qlog: transport.qlog.clone().map(Qlogs::new),
            abandoned_packets: (0, 0),
            #[cfg(test)]
            visits: 0,
        }
    }

    /// Sets the TLS settings of the connections that this endpoint accepts from now on. The keys of
    /// Retry tokens and of stateless resets stay.
    pub(crate) fn set_tls(&mut self, tls: &ServerTls) {
        if let Some(acceptance) = &mut self.server {
            acceptance.config.crypto = tls.0.clone();
        }
    }

    /// Accepts no more connections. Packets of other versions are still answered, which shows that the server is there.
    pub(crate) const fn stop_accepting(&mut self) {
        if let Some(acceptance) = &mut self.server {
            acceptance.is_over = true;
        }
    }

    /// Handles a received UDP payload. Returns whose turns the connection takes that got it.
    pub(crate) fn handle_datagram(
        &mut self,
        now: Instant,
        (remote, local_ip): (SocketAddr, Option<IpAddr>),
        ecn: Option<Ecn>,
        payload: BytesMut,
    ) -> Option<Party<ConnectionId>> {
        if PepAck::is_one(&payload) && self.peps.is_some() {
            self.on_pep_ack(now, &payload);
            return None;
        }
        let path = FourTuple::new(remote, local_ip);
        if let Some(id) = self.sealed_ids.find(&payload) {
            // A datagram keeps the memory of its whole packet.
            let has_size = self.demux.has_size(&payload);
            return has_size.then(|| self.on_sealed(now, (id, path), ecn, payload))?;
        }
        if !self.demux.is_for_engine(&payload) {
            return None;
        }
        if self.client.is_some() && self.is_sealed_reset(now, remote, &payload) {
            return None;
        }
        if let Some(larger) = &mut self.larger_initials {
            larger.on_received(&payload);
        }
        let short_id = demux::id_of_short_header(&payload, self.id_len);
        if self.answers.has_answered(now, short_id) {
            return None;
        }
        if let Some(id) = short_id.filter(|id| self.ids.may_answer_later(id)) {
            self.undecided.insert(id, WaitingPacket::new(now, path, &payload));
        }
        let initial = self.server.as_ref().and_then(|it| it.copy_of_initial(&payload));
        let len = payload.len();
        let mut answer = Vec::new();
        match self.inner.handle(now, path, ecn.map(ecn_to_noq), payload, &mut answer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(&id) = self.by_handle.get(&handle.0)
                    && let Some(slot) = self.slots.get_mut(&id)
                {
                    if let Some(unvalidated) = &mut slot.peer.unvalidated {
                        unvalidated.on_received(len);
                    }
                    slot.connection.handle_event(now, event);
                    if let Some(id) = short_id {
                        slot.connection.on_arrived_at(now, id);
                    }
                    if let Some(mark) = ecn {
                        slot.connection.ecn.is_asked = true;
                        if mark == Ecn::Ce {
                            slot.connection.on_congestion_experienced();
                        }
                    }
                    let (must_collect, party) = (slot.connection.must_collect(), slot.party);
                    self.touch(id);
                    if must_collect {
                        self.collect_events(id);
                    }
                    return Some(party);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.accept(now, First { incoming, len, ecn }, initial);
            }
            Some(DatagramEvent::Response(transmit)) => {
                self.answers.push_to_stranger(now, short_id, (from_noq(&transmit), answer));
            }
            None if short_id.is_some_and(|id| !self.ids.may_answer(&id)) => {
                self.demux.count_for_another();
            }
            None => {
                if let Some(initial) = initial {
                    self.go_on(now, remote, initial);
                }
            }
        }
        None
    }

    /// Answers the packets of machines that are now known to be gone.
    fn answer_undecided(&mut self, now: Instant) {
        let is_gone = |id: &tandem_wire::ConnectionId| self.ids.is_owner_gone(id) == Some(true);
        for (id, WaitingPacket { path, payload, .. }) in self.undecided.decide(now, is_gone) {
            let mut answer = Vec::new();
            if let Some(DatagramEvent::Response(transmit)) =
                self.inner.handle(now, path, None, payload, &mut answer)
            {
                self.answers.push_to_stranger(now, Some(id), (from_noq(&transmit), answer));
            }
        }
    }

    /// Adds a connection.
    pub(super) fn insert(
        &mut self,
        handle: ConnectionHandle,
        mut connection: Connection,
        peer: Peer,
    ) -> ConnectionId {
        let id = ConnectionId(self.next_id);
        if connection.hooks.control.is_some() {
            let chosen = self.sealed_ids.choose(id);
            connection.offer_sealed(chosen, self.acks, (self.marks_ecn, self.mtu.least));
        }
        self.next_id += self.id_step;
        self.by_handle.insert(handle.0, id);
        let party = Party::Alone(id);
        let slot = Slot {
            connection,
            handle,
            timer: None,
            peer,
            party,
            is_ready: false,
            is_touched: false,
        };
        self.slots.insert(id, Box::new(slot));
        self.touch(id);
        id
    }

    /// Notes which user a connection belongs to. All connections of a user share the turns of one.
    pub(crate) fn set_user(&mut self, id: ConnectionId, user: u64) {
        if let Some(slot) = self.slots.get_mut(&id) {
            let old = std::mem::replace(&mut slot.party, Party::User(user));
            if old != slot.party {
                self.ready.change(id, (old, slot.party));
            }
        }
    }

    /// Forgets a connection. Returns the engine's handle of it.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<ConnectionHandle> {
        let mut slot = self.slots.remove(&id)?;
        self.by_handle.remove(&slot.handle.0);
        if let Some(sealed) = &slot.connection.sealed {
            self.sealed_ids.remove(sealed.id());
        }
        if let Some(timer) = slot.timer {
            self.timers.remove(&(timer, id));
        }
        if let Some(acceptance) = &mut self.server {
            acceptance.forget(id, &mut slot.peer);
        }
        Some(slot.handle)
    }

    pub(super) fn answer(&mut self, transmit: &noq_proto::Transmit, bytes: Vec<u8>) {
        self.answers.push(from_noq(transmit), bytes);
    }

    /// Notes that a connection changed, so that it is asked for events and gets a turn to send.
    pub(crate) fn touch(&mut self, id: ConnectionId) {
        let Some(slot) = self.slots.get_mut(&id) else { return }; // it has ended
        if !std::mem::replace(&mut slot.is_ready, true) {
            self.ready.push_back(slot.party, id);
        }
        if !std::mem::replace(&mut slot.is_touched, true) {
            self.touched.push_back(id);
        }
    }

    /// Runs the timers that are due.
    ///
    /// Timers of a client wait while it has yet to send the end of its handshake. If a probe timeout were due then, the
    /// engine would want to send an Initial packet, whose keys it has discarded, and panic. It chooses the packet
    /// number space of a probe by the newest keys that it has got, and not by those that it still has.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(due, id)) = self.timers.first() {
            if due > now {
                break;
            }
            self.timers.pop_first();
            if let Some(slot) = self.slots.get_mut(&id) {
                if slot.is_ready && slot.connection.owes_end_of_handshake() {
                    let later = now + AFTER_HANDSHAKE;
                    slot.timer = Some(later);
                    self.timers.insert((later, id));
                    continue;
                }
                slot.timer = None;
                slot.connection.handle_timeout(now);
                self.touch(id);
            }
        }
        self.begin_due(now);
        self.time_handshakes_out(now);
        self.answer_undecided(now);
    }

    /// When the first timer is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let handshake = self.server.as_ref().and_then(Acceptance::next_timeout);
        let own = earliest(handshake, self.undecided.next_timeout());
        earliest(self.timers.first().map(|&(due, _)| due), own)
    }

    /// A connection for use, which is then asked for events and gets a turn to send. `None`: it has
    /// ended.
    pub(crate) fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.touch(id);
        self.slots.get_mut(&id).map(|slot| &mut slot.connection)
    }

    /// A connection for reading, which is not asked for events because of this call.
    pub(crate) fn peek(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slots.get_mut(&id).map(|slot| &mut slot.connection)
    }

    /// The packets that were sent and lost on connections that ended by [`Closed::Displaced`] or a
    /// handshake's timeout.
    pub(crate) const fn abandoned_packets(&self) -> (u64, u64) {
        self.abandoned_packets
    }

    /// Received UDP payloads that belonged to no connection and got no answer.
    pub(crate) const fn unusable_packets(&self) -> UnusablePackets {
        UnusablePackets { too_many: self.answers.too_many(), ..self.demux.unusable() }
    }

    /// How many connections there are, including those that are being closed.
    pub(crate) fn connections(&self) -> usize {
        self.slots.len()
    }

    /// The next event.
    pub(crate) fn poll_event(&mut self) -> Option<(ConnectionId, Event)> {
        if self.events.is_empty() {
            while let Some(id) = self.touched.pop_front() {
                if let Some(slot) = self.slots.get_mut(&id) {
                    slot.is_touched = false;
                }
                self.collect_events(id);
            }
        }
        self.events.pop_front()
    }

    /// The next packet of the endpoint itself.
    pub(crate) fn poll_answer(&mut self, buf: &mut Vec<u8>) -> Option<Transmit> {
        let (transmit, bytes) = self.answers.pop()?;
        buf.extend_from_slice(&bytes);
        Some(transmit)
    }

    /// The connection whose turn it is to send. It stays in the round of ready connections until
    /// [`Endpoint::poll_transmit`] returns `None` for it.
    pub(crate) fn next_ready(&mut self) -> Option<ConnectionId> {
        while let Some(id) = self.ready.front() {
            if self.slots.contains_key(&id) {
                return Some(id);
            }
            self.ready.pop_front(); // it was forgotten before its turn
        }
        None
    }

    /// The next packets of the connection that [`Endpoint::next_ready`] returned. Its turn ends
    /// with them. `None`: it has nothing to send, and leaves the round until it is touched again.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        id: ConnectionId,
        buf: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let slot = self.slots.get_mut(&id)?;
        let offset = buf.len();
        let larger = self.larger_initials.as_mut().filter(|larger| larger.is_due());
        let transmit = if larger.is_some() {
            slot.connection.poll_transmit_one(now, buf)
        } else {
            slot.poll_transmit(now, buf)
        };
        if let Some(mut transmit) = transmit {
            if let Some(larger) = larger {
                larger.pad(&mut transmit, buf, offset);
            }
            transmit.ecn = transmit.ecn.filter(|_| self.marks_ecn);
            if let Some(listener) = &mut self.peps {
                for (slice, number) in slot.connection.take_slices() {
                    listener.insert(now, slice, (id, number));
                }
            }
            self.ready.rotate();
            self.touch(id);
            return Some(transmit);
        }
        self.exchange_endpoint_events(id);
        None
    }

    /// Passes events between the endpoint and the connection, and updates the connection's timer.
    fn exchange_endpoint_events(&mut self, id: ConnectionId) {
        let Some(slot) = self.slots.get_mut(&id) else { return }; // it has ended
        let mut is_drained = false;
        let mut is_answered = false;
        while let Some(event) = slot.connection.inner().poll_endpoint_events() {
            is_drained |= event.is_drained();
            if let Some(event) = self.inner.handle_event(slot.handle, event) {
                slot.connection.inner().handle_event(event);
                is_answered = true;
            }
        }
        if is_answered {
            slot.connection.wake_engine();
            return self.touch(id); // It stays ready, because new connection IDs may have to be sent.
        }
        let timer = slot.connection.next_timeout();
        if slot.timer != timer || is_drained {
            if let Some(old) = slot.timer.take() {
                self.timers.remove(&(old, id));
            }
            if let Some(new) = timer
                && !is_drained
            {
                slot.timer = Some(new);
                self.timers.insert((new, id));
            }
        }
        slot.is_ready = false;
        let first = self.ready.pop_front();
        debug_assert_eq!(first, Some(id), "only the connection whose turn it is sends");
        if is_drained {
            self.remove(id);
        }
    }
}

/// When a client looks at its timers again that has yet to send the end of its handshake.
const AFTER_HANDSHAKE: Duration = Duration::from_millis(10);

impl Slot {
    /// The next packets to send, at the end of `buf`, as far as the limit on amplification permits.
    pub(super) fn poll_transmit(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        let Some(unvalidated) = &mut self.peer.unvalidated else {
            return self.connection.poll_transmit(now, buf);
        };
        if !unvalidated.permits(self.connection.packet_size_max()) {
            return None;
        }
        let transmit = self.connection.poll_transmit_one(now, buf)?;
        unvalidated.on_sent(transmit.size);
        Some(transmit)
    }
}

/// The earlier of two deadlines, each of which may be missing.
pub(crate) fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
