//! The client's end: one hop, and the flows through it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use http::HeaderMap;
use rand::Rng;
use tandem_wire::{
    CidCapsule, ConnectionId, ForwardingFieldError, ForwardingGrant, ForwardingRequest,
    ScrambleKey, SealField, StrangerText, Transform,
};

use super::{
    Batch, FORWARDING, LongHeader, Outbox, SEAL, VIRTUAL_LEN_MIN,
    ids::PrefixFreeMap,
    registry::{End, KnownTarget, Registry, Violation, Virtual},
};
use crate::{
    fields::only_line,
    quic::{self, Generator, Header, StreamId},
    seal::{Opener, Sealer, Secret, Secrets},
    stats::BesideStats,
};

/// How the payloads of a hop's flows travel beside its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Not at all.
    Nothing,
    /// Packets of QUIC connections are forwarded.
    Forward,
    /// Payloads are sealed, in both directions or only towards the proxy.
    Seal { both_ways: bool },
}

/// How often a client asks the proxy for a sign of life inside the connection, while packets travel
/// beside it. If the client's address has changed, or the proxy has forgotten the flow, both learn it
/// from that: packets beside the connection are good on its path only.
const BEAT: Duration = Duration::from_secs(1);

/// The same for the nearest proxy. Between other proxies addresses hardly ever change.
const BEAT_OF_NEAREST: Duration = Duration::from_millis(500);

/// The state of a hop.
#[derive(Debug)]
pub(crate) struct Beside {
    wish: Wish,
    flows: BTreeMap<StreamId, BesideFlow>,
    /// The flows of the IDs at which the proxy sends packets.
    ids: PrefixFreeMap<StreamId>,
    outbox: Outbox<()>,
    /// IDs of the proxy's choice that no flow uses any longer, until the hop before this one knows.
    gone: Vec<Virtual>,
    beat: Duration,
    /// When the proxy is asked for a sign of life, if packets have travelled beside the connection since it
    /// was asked last.
    next_beat: Option<Instant>,
    random: Generator,
    stats: BesideStats,
}

/// What a request says of the flow.
#[derive(Debug)]
pub(crate) enum Offer {
    Nothing,
    Forward(ScrambleKey),
    /// With the ID at which this client receives sealed packets.
    Seal(Option<ConnectionId>),
}

#[derive(Debug)]
enum BesideFlow {
    Forward(Box<Forwarding>),
    Seal(Box<SealedFlow>),
}

/// A flow whose QUIC packets are forwarded.
#[derive(Debug)]
struct Forwarding {
    key: ScrambleKey,
    /// What was agreed on. `None`: the flow is not granted.
    registry: Option<Registry>,
    /// The IDs that were seen last.
    client: Option<ConnectionId>,
    target: Option<ConnectionId>,
    /// Whether the hop before this one had no room for the IDs. The packets then stay in the tunnel.
    is_refused: bool,
    /// Another ID of the client, which the target has used since, and in how many packets.
    next_client: Option<(ConnectionId, u32)>,
}

/// A flow whose payloads are sealed.
struct SealedFlow {
    /// The secrets, until the grant says at which ID the proxy receives.
    secrets: Option<Secret>,
    id: Option<ConnectionId>,
    sealer: Option<Sealer>,
    opener: Option<Opener>,
}

impl std::fmt::Debug for SealedFlow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealed").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What a packet from the proxy's address is.
#[derive(Debug)]
pub(crate) enum Unwrapped {
    /// A payload of a flow.
    Payload(StreamId, BytesMut),
    /// A packet beside the connection that was dropped and counted.
    Dropped,
    /// A packet of the connection.
    OfConnection(BytesMut),
}

impl Beside {
    pub(crate) fn new(wish: Wish, seed: Option<u64>) -> Self {
        Self {
            wish,
            flows: BTreeMap::new(),
            ids: PrefixFreeMap::default(),
            outbox: Outbox::default(),
            gone: Vec::new(),
            beat: BEAT,
            next_beat: None,
            random: quic::rng(seed.map(|seed| seed.wrapping_add(3))),
            stats: BesideStats::default(),
        }
    }

    /// Whether nothing travels beside the connection but the sealed transport.
    pub(crate) const fn is_off(&self) -> bool {
        matches!(self.wish, Wish::Nothing)
    }

    /// Makes this the hop to the nearest proxy.
    pub(crate) const fn set_nearest(&mut self) {
        self.beat = BEAT_OF_NEAREST;
    }

    /// The state for a new connection to the same proxy.
    pub(crate) fn renew(&mut self) {
        self.flows.clear();
        self.ids = PrefixFreeMap::default();
        self.outbox = Outbox::default();
        self.gone.clear();
        self.next_beat = None;
    }

    /// Lets the payloads of all flows travel inside the connection from now on, because its packets take another path.
    ///
    /// The draft's §6.5: "In the event of active migration, the proxy removes forwarding rules in order to not send
    /// packets with the same connection ID bytes over multiple network paths."
    pub(crate) fn leave_path(&mut self) {
        while let Some((&stream, _)) = self.flows.first_key_value() {
            self.close(stream);
        }
    }

    /// What was counted.
    pub(crate) const fn stats(&self) -> &BesideStats {
        &self.stats
    }

    /// Adds the fields of a request for a flow.
    pub(crate) fn offer(&mut self, headers: &mut HeaderMap) -> Offer {
        match self.wish {
            Wish::Nothing => Offer::Nothing,
            Wish::Forward => {
                let key = ScrambleKey::new(self.random.random());
                let transforms = vec![Transform::ScrambleDt];
                let request = ForwardingRequest { transforms, scramble_key: Some(key.clone()) };
                headers.insert(FORWARDING, request.encode());
                Offer::Forward(key)
            }
            Wish::Seal { both_ways } => {
                let id = both_ways.then(|| self.random.random::<[u8; VIRTUAL_LEN_MIN]>());
                let id = id.and_then(|bytes| ConnectionId::try_from(&bytes[..]).ok());
                headers.insert(SEAL, SealField { id }.encode());
                Offer::Seal(id)
            }
        }
    }

    /// Notes that a request was sent. Sealed packets may overtake its grant. `secrets` are those of the
    /// flow.
    pub(crate) fn on_requested(
        &mut self,
        stream: StreamId,
        offer: Offer,
        secrets: impl FnOnce() -> Option<Secrets>,
    ) {
        let flow = match offer {
            Offer::Nothing => return,
            Offer::Forward(key) => BesideFlow::Forward(Box::new(Forwarding {
                key,
                registry: None,
                client: None,
                target: None,
                is_refused: false,
                next_client: None,
            })),
            Offer::Seal(id) => {
                let Some(Secrets { to_proxy, to_client }) = secrets() else { return };
                let id = id.filter(|&id| self.ids.insert(id, stream));
                let opener = id.map(|id| Opener::new(to_client, id.len()));
                let secrets = Some(to_proxy);
                BesideFlow::Seal(Box::new(SealedFlow { secrets, id, sealer: None, opener }))
            }
        };
        self.flows.insert(stream, flow);
    }

    /// Handles the grant of a flow. Returns whether the proxy agreed.
    ///
    /// # Errors
    ///
    /// The proxy chose what was not offered, so that the request must be aborted.
    pub(crate) fn on_granted(
        &mut self,
        stream: StreamId,
        headers: &HeaderMap,
    ) -> Result<bool, StrangerText> {
        match self.flows.get_mut(&stream) {
            None => Ok(false),
            Some(BesideFlow::Forward(flow)) => {
                let Some(Ok(line)) = only_line(headers, &FORWARDING) else {
                    return Ok(false);
                };
                // The draft's §3: "If the client receives a transform that it did not advertise
                // support for, it MUST abort the request."
                let grant = match ForwardingGrant::parse(&line, &[Transform::ScrambleDt]) {
                    Ok(Some(grant)) => grant,
                    Err(error @ ForwardingFieldError::TransformNotOffered { .. }) => {
                        return Err(error.to_string().into());
                    }
                    Ok(None) | Err(_) => return Ok(false),
                };
                let Ok(registry) = Registry::new(&grant, &flow.key) else { return Ok(false) };
                let registry = flow.registry.insert(registry);
                if let Some(id) = flow.client {
                    registry.register(End::Client, id);
                }
                if let Some(id) = flow.target {
                    registry.register(End::Target, id);
                }
                Ok(true)
            }
            Some(BesideFlow::Seal(flow)) => {
                let Some(Ok(line)) = only_line(headers, &SEAL) else { return Ok(false) };
                let Ok(SealField { id: Some(id) }) = SealField::parse(&line) else {
                    return Ok(false);
                };
                let Some(secret) = flow.secrets.take() else { return Ok(false) };
                flow.sealer = Some(Sealer::new(secret, id));
                Ok(true)
            }
        }
    }

    /// The capsules that a flow has to send on its request stream.
    pub(crate) fn take_capsules(&mut self, stream: StreamId) -> Vec<CidCapsule> {
        match self.flows.get_mut(&stream) {
            Some(BesideFlow::Forward(flow)) => {
                let Some(registry) = &mut flow.registry else { return Vec::new() };
                retire(&mut self.ids, &mut self.gone, registry);
                registry.take_capsules()
            }
            Some(BesideFlow::Seal(_)) | None => Vec::new(),
        }
    }

    /// The IDs that the proxy has chosen for a flow since the last call.
    pub(crate) fn take_chosen(&mut self, stream: StreamId) -> Vec<Virtual> {
        self.registry(stream).map(Registry::take_chosen).unwrap_or_default()
    }

    /// The IDs that the proxy has chosen, and that no flow uses any longer, since the last call.
    pub(crate) fn take_gone(&mut self) -> Vec<Virtual> {
        std::mem::take(&mut self.gone)
    }

    /// Registers an ID that the next proxy has chosen, whose packets this hop's flow will carry. `false`:
    /// there is no room for it. A flow that is not forwarded has no IDs, and carries everything.
    pub(crate) fn register_inner(&mut self, stream: StreamId, id: Virtual) -> bool {
        self.registry(stream).is_none_or(|registry| registry.register_inner(id))
    }

    /// Closes an ID that the next proxy has chosen.
    pub(crate) fn close_inner(&mut self, stream: StreamId, id: Virtual) {
        if let Some(registry) = self.registry(stream) {
            registry.close_inner(id);
        }
    }

    /// Keeps the packets of a flow in the tunnel from now on, because the hop before this one has no room
    /// for an ID that the proxy has chosen.
    pub(crate) fn refuse(&mut self, stream: StreamId, id: Virtual) {
        if let Some(BesideFlow::Forward(flow)) = self.flows.get_mut(&stream)
            && let Some(registry) = &mut flow.registry
        {
            registry.close_virtual(id);
            flow.is_refused = true;
        }
    }

    fn registry(&mut self, stream: StreamId) -> Option<&mut Registry> {
        match self.flows.get_mut(&stream) {
            Some(BesideFlow::Forward(flow)) => flow.registry.as_mut(),
            Some(BesideFlow::Seal(_)) | None => None,
        }
    }

    /// Handles a capsule about connection IDs.
    pub(crate) fn on_capsule(
        &mut self,
        stream: StreamId,
        capsule: CidCapsule,
    ) -> Result<(), Violation> {
        let Self { flows, ids, .. } = self;
        let Some(BesideFlow::Forward(flow)) = flows.get_mut(&stream) else { return Ok(()) }; // sent unasked
        let Some(registry) = &mut flow.registry else { return Ok(()) }; // before its grant
        registry.on_capsule(capsule, |id| ids.insert(id, stream))
    }

    /// Whether a flow may have payloads that travel beside the connection.
    pub(crate) fn is_used(&self, stream: StreamId) -> bool {
        self.flows.contains_key(&stream)
    }

    /// Sends a payload beside the connection, if its flow permits. `false`: it has to travel inside.
    /// `size_max` is the size of the connection's packets.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        stream: StreamId,
        payload: &[u8],
        size_max: usize,
    ) -> bool {
        let Self { flows, outbox, .. } = self;
        let is_sent = match flows.get_mut(&stream) {
            None => false,
            Some(BesideFlow::Forward(flow)) => flow.send(payload, outbox),
            Some(BesideFlow::Seal(flow)) => match &mut flow.sealer {
                Some(sealer) if payload.len() + sealer.overhead() <= size_max => {
                    outbox.add((), |out| sealer.seal(payload, out).ok()).is_some()
                }
                _ => false,
            },
        };
        if is_sent {
            self.stats.sent += 1;
            self.next_beat.get_or_insert(now + self.beat);
        }
        is_sent
    }

    /// Notes a payload that arrived inside the connection.
    pub(crate) fn on_tunnelled(&mut self, stream: StreamId, payload: &[u8]) {
        let Some(BesideFlow::Forward(flow)) = self.flows.get_mut(&stream) else { return }; // not forwarded
        match LongHeader::read(payload) {
            Some(header) if header.is_of_handshake => flow.see_target(header.source),
            Some(_) => {}
            None => flow.see_short(payload),
        }
    }

    /// Finds out what a packet from the proxy is.
    pub(crate) fn unwrap(&mut self, now: Instant, mut packet: BytesMut) -> Unwrapped {
        let Some((id, &stream)) = self.ids.find(&packet) else {
            if self.next_beat.is_some() && self.is_reset(&packet) {
                self.next_beat = Some(now);
            }
            return Unwrapped::OfConnection(packet);
        };
        let payload = match self.flows.get_mut(&stream) {
            None => None,
            Some(BesideFlow::Forward(flow)) => {
                flow.registry.as_ref().and_then(|registry| registry.decode(&id, packet))
            }
            Some(BesideFlow::Seal(flow)) => flow.opener.as_mut().and_then(|opener| {
                let range = opener.open(&mut packet).ok()?;
                packet.truncate(range.end);
                Some(packet.split_off(range.start))
            }),
        };
        let Some(payload) = payload else {
            self.stats.refused += 1;
            return Unwrapped::Dropped;
        };
        self.stats.received += 1;
        self.next_beat.get_or_insert(now + self.beat);
        Unwrapped::Payload(stream, payload)
    }

    /// Whether a packet from the proxy says that it does not know a virtual ID. The connection itself shows
    /// what has become of the proxy.
    fn is_reset(&self, packet: &[u8]) -> bool {
        self.flows.values().any(|flow| match flow {
            BesideFlow::Forward(flow) => {
                flow.registry.as_ref().is_some_and(|it| it.is_reset(packet))
            }
            BesideFlow::Seal(_) => false,
        })
    }

    /// When [`Self::is_due`] is next.
    pub(crate) const fn next_timeout(&self) -> Option<Instant> {
        self.next_beat
    }

    /// Whether it is time to ask the proxy for a sign of life.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        self.next_beat.take_if(|due| *due <= now).is_some()
    }

    /// The packet that was sent last and has not left yet.
    pub(crate) fn last_sent(&self) -> Option<&[u8]> {
        self.outbox.last()
    }

    /// Takes the next packets that leave.
    pub(crate) fn poll(&mut self, buf: &mut Vec<u8>) -> Option<Batch<()>> {
        self.outbox.poll(buf)
    }

    /// Forgets a flow.
    pub(crate) fn close(&mut self, stream: StreamId) {
        match self.flows.remove(&stream) {
            None => {}
            Some(BesideFlow::Forward(mut flow)) => {
                if let Some(registry) = &mut flow.registry {
                    registry.clear();
                    retire(&mut self.ids, &mut self.gone, registry);
                }
            }
            Some(BesideFlow::Seal(flow)) => {
                if let Some(id) = flow.id {
                    self.ids.remove(&id);
                }
            }
        }
    }
}

/// Forgets the IDs at which this client receives no longer.
fn retire(ids: &mut PrefixFreeMap<StreamId>, gone: &mut Vec<Virtual>, registry: &mut Registry) {
    for id in registry.take_retired() {
        if id.end == End::Client {
            ids.remove(&id.id);
        }
        gone.push(id);
    }
}

impl Forwarding {
    /// Forwards a packet. `false`: it is none of a connection whose IDs are registered.
    fn send(&mut self, payload: &[u8], outbox: &mut Outbox<()>) -> bool {
        if let Some(header) = LongHeader::read(payload) {
            self.see_client(header.source);
            // The draft's §6.1: "QUIC long header packets MUST NOT be forwarded."
            return false;
        }
        let Some(registry) = &self.registry else { return false }; // not granted
        let (id, virtual_id) = match registry.target_of(payload) {
            KnownTarget::Mapped { id, virtual_id } => (id, virtual_id),
            KnownTarget::Unmapped => return false,
            KnownTarget::Unknown => {
                self.see_other_target(payload);
                return false;
            }
        };
        outbox.add((), |out| registry.encode(payload, id.len(), &virtual_id, out)).is_some()
    }

    /// Notes the ID that the client has chosen. Another one than before is that of a new connection.
    fn see_client(&mut self, id: ConnectionId) {
        if self.client != Some(id) && !self.is_refused {
            self.client = Some(id);
            if let Some(registry) = &mut self.registry {
                registry.register(End::Client, id);
            }
        }
    }

    /// Notes the ID in a packet of the target with a short header, which came in the tunnel. IDs change out of
    /// sight after the handshake; they are as long as the first one. A target must use one in several packets,
    /// so that a single packet with any bytes does not change anything.
    fn see_short(&mut self, packet: &[u8]) {
        /// Enough packets of a target that has changed its ID.
        const ENOUGH: u32 = 3;
        let Some(len) = self.client.map(|id| id.len()).filter(|len| *len > 0) else { return };
        let Some(id) = packet.get(1..=len).and_then(|id| ConnectionId::try_from(id).ok()) else {
            return; // it is too short
        };
        let is_settled =
            self.registry.as_ref().is_none_or(|registry| registry.has(End::Client, &id));
        if is_settled || self.is_refused {
            return;
        }
        let seen = match self.next_client {
            Some((next, seen)) if next == id => seen + 1,
            _ => 1,
        };
        self.next_client = Some((id, seen));
        if seen >= ENOUGH {
            self.next_client = None;
            self.see_client(id);
        }
    }

    /// Notes that the client uses another ID of the target than the registered one, of the same length.
    fn see_other_target(&mut self, packet: &[u8]) {
        let Some(len) = self.registry.as_ref().and_then(Registry::target_len) else { return }; // none is registered
        let Some(Header::Short { rest }) = Header::read(packet) else { return }; // it has no ID yet
        if let Some(Ok(id)) = rest.get(..len).map(ConnectionId::try_from) {
            self.see_target(id);
        }
    }

    /// Notes the ID that the target has chosen.
    fn see_target(&mut self, id: ConnectionId) {
        if self.target != Some(id) && !self.is_refused {
            self.target = Some(id);
            if let Some(registry) = &mut self.registry {
                registry.register(End::Target, id);
            }
        }
    }
}
