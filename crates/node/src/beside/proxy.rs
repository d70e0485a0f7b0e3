//! The proxy's end: the flows of all clients.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use http::HeaderMap;
use rand::Rng;
use tandem_wire::{
    CidCapsule, ConnectionId, ForwardingRequest, PortSharing, ResetToken, SealField, StrangerText,
    TransportField,
};
use tracing::debug;

use super::{
    Batch, FORWARDING, Outbox, PORT_SHARING, SEAL, VIRTUAL_LEN_MIN,
    ids::PrefixFreeMap,
    mapping::{Mapping, Reply},
    registry::Violation,
};
use crate::{
    fields::{TRANSPORT, only_line},
    node::SocketId,
    quic::{
        self, ConnectionId as Connection, ConnectionIds, Generator, ResetKeys, StreamId, Transport,
    },
    seal::{Opener, Sealer, Secrets},
    stats::BesideStats,
};

/// A flow of a client.
pub(crate) type FlowId = (Connection, StreamId);

/// Where a packet leaves, and its destination.
pub(crate) type Way = (SocketId, SocketAddr);

/// The wishes of a request.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    forwarding: Option<ForwardingRequest>,
    seal: Option<SealField>,
    /// What the client says of a sealed transport.
    pub(crate) sealed: Option<TransportField>,
    /// Whether the client speaks of sharing the target's port.
    names_port_sharing: bool,
}

/// All flows with packets beside their connections.
pub(crate) struct BesideFlows {
    flows: BTreeMap<FlowId, MappedFlow>,
    /// The flows of the IDs at which clients send packets.
    ids: PrefixFreeMap<FlowId>,
    outbox: Outbox<Way>,
    reset: Option<ResetKeys>,
    random: Generator,
    choice: ConnectionIds,
    stats: BesideStats,
}

struct MappedFlow {
    /// How often the client had moved to another path when the IDs were agreed on. They are used on no other
    /// path.
    moves: u64,
    /// The order of the packets to the client.
    order: InOrder,
    kind: PacketKind,
}

/// Keeps a flow in order when its packets begin to travel beside the connection: while earlier ones wait
/// inside, later ones follow them, for [`Self::LONGEST`] at most. Packets that overtake others seem lost
/// to their sender, which would retransmit them.
#[derive(Debug, Default)]
enum InOrder {
    /// All packets travelled inside.
    #[default]
    Inside,
    /// Since this time a packet would have travelled beside.
    Waiting(Instant),
    /// Packets travel beside.
    Beside,
}

impl InOrder {
    const LONGEST: Duration = Duration::from_secs(2);

    /// Whether the next packet travels beside. `waits` says whether earlier ones wait inside.
    fn is_beside(&mut self, now: Instant, waits: bool) -> bool {
        *self = match *self {
            Self::Inside if waits => Self::Waiting(now),
            Self::Waiting(since) if waits && now < since + Self::LONGEST => Self::Waiting(since),
            _ => Self::Beside,
        };
        matches!(self, Self::Beside)
    }
}

/// The present path of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// The client's address.
    pub(crate) client: SocketAddr,
    /// Whether the client has shown that it receives at this address.
    pub(crate) is_validated: bool,
    /// How often the client has moved to another path on purpose. A new address that a network has given to
    /// it (RFC 9000 §9.3.3) does not count.
    pub(crate) moves: u64,
}

enum PacketKind {
    Forward(Box<Mapping>),
    Seal(Box<Sealed>),
}

struct Sealed {
    sealer: Option<Sealer>,
    opener: Opener,
    id: ConnectionId,
}

/// What a packet that came from a client is.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// A packet of a connection.
    OfConnection(BytesMut),
    /// A packet beside a connection, which was dropped and counted.
    Dropped,
    /// The payload of a flow, of this length, which is on its way to the target.
    Relayed(FlowId, usize),
}

impl Asked {
    /// Reads the fields of a request. Also returns how many were ignored.
    pub(crate) fn read(headers: &HeaderMap) -> (Self, u64) {
        let mut ignored = 0;
        let mut ignore = |name, error: StrangerText| {
            debug!(name, %error, "a field of a request is ignored");
            ignored += 1;
        };
        let names_port_sharing = headers.contains_key(PORT_SHARING);
        let mut asked = Self { names_port_sharing, ..Self::default() };
        match only_line(headers, &FORWARDING) {
            None => {}
            Some(Err(error)) => ignore(ForwardingRequest::NAME, error),
            Some(Ok(line)) => match ForwardingRequest::parse(&line) {
                Ok(request) => asked.forwarding = request,
                Err(error) => ignore(ForwardingRequest::NAME, error.to_string().into()),
            },
        }
        match only_line(headers, &SEAL) {
            None => {}
            Some(Err(error)) => ignore(SealField::NAME, error),
            Some(Ok(line)) => match SealField::parse(&line) {
                Ok(field) => asked.seal = Some(field),
                Err(error) => ignore(SealField::NAME, error.to_string().into()),
            },
        }
        match only_line(headers, &TRANSPORT) {
            None => {}
            Some(Err(error)) => ignore(TransportField::NAME, error),
            Some(Ok(line)) => match TransportField::parse(&line) {
                Ok(field) => asked.sealed = Some(field),
                Err(error) => ignore(TransportField::NAME, error.to_string().into()),
            },
        }
        (asked, ignored)
    }
}

impl BesideFlows {
    /// For a proxy whose endpoint has these settings.
    pub(crate) fn new(transport: &Transport, seed: Option<u64>) -> Self {
        Self {
            flows: BTreeMap::new(),
            ids: PrefixFreeMap::default(),
            outbox: Outbox::default(),
            reset: ResetKeys::new(transport),
            random: quic::rng(seed.map(|seed| seed.wrapping_add(4))),
            choice: ConnectionIds::new(transport),
            stats: BesideStats::default(),
        }
    }

    pub(crate) const fn stats(&self) -> &BesideStats {
        &self.stats
    }

    /// Grants what a request asks for, and adds the fields of the answer.
    pub(crate) fn grant(
        &mut self,
        id: FlowId,
        asked: &Asked,
        (Path { moves, .. }, secrets): (Path, impl FnOnce() -> Option<Secrets>),
        headers: &mut HeaderMap,
    ) {
        if asked.names_port_sharing {
            // The draft's §4: a proxy that does not support it "SHOULD send "Proxy-QUIC-Port-Sharing"
            // with a value of "?0"."
            headers.insert(PORT_SHARING, PortSharing::Prohibited.encode());
        }
        if let Some(request) = &asked.forwarding
            && let Some((mapping, grant)) = Mapping::new(request, &mut self.random)
        {
            headers.insert(FORWARDING, grant.encode());
            let kind = PacketKind::Forward(Box::new(mapping));
            self.flows.insert(id, MappedFlow { moves, order: InOrder::default(), kind });
        } else if let Some(SealField { id: receiver }) = asked.seal
            && let Some(Secrets { to_proxy, to_client }) = secrets()
        {
            let choice = (&mut self.random, &self.choice);
            let own = new_id(&mut self.ids, choice, (VIRTUAL_LEN_MIN, id));
            headers.insert(SEAL, SealField { id: Some(own) }.encode());
            let kind = PacketKind::Seal(Box::new(Sealed {
                sealer: receiver.map(|receiver| Sealer::new(to_client, receiver)),
                opener: Opener::new(to_proxy, own.len()),
                id: own,
            }));
            self.flows.insert(id, MappedFlow { moves, order: InOrder::default(), kind });
        }
    }

    /// The token of a stateless reset for an ID of ours.
    pub(crate) fn reset_token(&self, id: &ConnectionId) -> Option<ResetToken> {
        self.reset.as_ref()?.token(id)
    }

    /// Handles a capsule about connection IDs from a client. Returns the answers.
    pub(crate) fn on_capsule(
        &mut self,
        id: FlowId,
        capsule: CidCapsule,
        path: Path,
    ) -> Result<Vec<CidCapsule>, Violation> {
        self.leave_former_path(id, path);
        let Self { flows, ids, random, reset, choice, .. } = self;
        let Some(MappedFlow { kind: PacketKind::Forward(mapping), .. }) = flows.get_mut(&id) else {
            return Ok(Vec::new()); // nothing was negotiated, so that the type is unknown
        };
        let mut answers = Vec::new();
        let mut reply = Reply {
            add: &mut |len| new_id(ids, (random, choice), (len, id)),
            token: &|id| reset.as_ref().and_then(|keys| keys.token(id)),
            answers: &mut answers,
        };
        for id in mapping.on_capsule(capsule, &mut reply)? {
            ids.remove(&id);
        }
        Ok(answers)
    }

    /// Forgets the IDs of a flow whose client has moved to another path on purpose.
    ///
    /// The draft's §6.5: "In the event of active migration, the proxy removes forwarding rules in order to
    /// not send packets with the same connection ID bytes over multiple network paths." The client may
    /// register its IDs again.
    fn leave_former_path(&mut self, id: FlowId, Path { moves, .. }: Path) {
        let Some(flow) = self.flows.get_mut(&id).filter(|flow| flow.moves != moves) else { return }; // it has not moved
        flow.moves = moves;
        match &mut flow.kind {
            PacketKind::Forward(mapping) => {
                for id in mapping.clear() {
                    self.ids.remove(&id);
                }
            }
            PacketKind::Seal(_) => self.close(id),
        }
    }

    /// Handles a packet that came to the listening socket. `at` says the present path of a connection, and
    /// the way to the target of a flow.
    pub(crate) fn arrive(
        &mut self,
        mut packet: BytesMut,
        from: SocketAddr,
        at: impl FnOnce(FlowId) -> Option<(Path, Way)>,
    ) -> Arrived {
        let Some((virtual_id, &id)) = self.ids.find(&packet) else {
            // The engine would take the first bytes of a virtual ID for one of its own, and answer with the stateless
            // reset of that ID, which is in use.
            if self.ids.has_one_like(&packet, self.choice.len()) {
                self.stats.refused += 1;
                return Arrived::Dropped;
            }
            return Arrived::OfConnection(packet);
        };
        // The IDs are good on the path of the tunnel's connection only.
        let way = at(id).filter(|(path, _)| path.client == from);
        if let Some((path, _)) = way {
            self.leave_former_path(id, path);
        }
        let Self { flows, outbox, stats, .. } = self;
        let relayed = match (flows.get_mut(&id).map(|flow| &mut flow.kind), way) {
            (Some(PacketKind::Forward(mapping)), Some((_, way))) => {
                outbox.add(way, |out| mapping.decode(&virtual_id, &packet, out))
            }
            (Some(PacketKind::Seal(sealed)), Some((_, way))) => {
                sealed.opener.open(&mut packet).ok().and_then(|range| {
                    outbox.add(way, |out| {
                        out.extend_from_slice(packet.get(range.clone())?);
                        Some(range.len())
                    })
                })
            }
            _ => None,
        };
        let Some(len) = relayed else {
            stats.refused += 1;
            return Arrived::Dropped;
        };
        stats.received += 1;
        Arrived::Relayed(id, len)
    }

    /// Whether a flow may have payloads that travel beside the connection.
    pub(crate) fn is_used(&self, id: FlowId) -> bool {
        self.flows.contains_key(&id)
    }

    /// Sends a packet of a target beside the connection, if the flow permits. `false`: it has to travel
    /// inside. `waits` says whether earlier packets of the flow wait there, and `size_max` is the size of
    /// the connection's packets.
    ///
    /// The draft's §6.5: "the proxy MUST limit the number of packets that it will proxy to an unvalidated
    /// client address". Beside the connection there are none; inside it, QUIC itself limits them.
    pub(crate) fn send(
        &mut self,
        (now, waits): (Instant, bool),
        id: FlowId,
        payload: &[u8],
        (socket, path, size_max): (SocketId, Path, usize),
    ) -> bool {
        self.leave_former_path(id, path);
        let Self { flows, outbox, stats, .. } = self;
        let Some(MappedFlow { order, kind, .. }) = flows.get_mut(&id).filter(|_| path.is_validated)
        else {
            return false; // nothing travels beside, or not yet again
        };
        let to = (socket, path.client);
        let sent = match kind {
            PacketKind::Forward(mapping) => mapping
                .client_of(payload)
                .filter(|_| order.is_beside(now, waits))
                .and_then(|client| outbox.add(to, |out| mapping.encode(payload, client, out))),
            PacketKind::Seal(flow) => flow
                .sealer
                .as_mut()
                .filter(|sealer| payload.len() + sealer.overhead() <= size_max)
                .filter(|_| order.is_beside(now, waits))
                .and_then(|sealer| outbox.add(to, |out| sealer.seal(payload, out).ok())),
        };
        if sent.is_none() && !matches!(order, InOrder::Waiting(_)) {
            *order = InOrder::Inside; // the ID is new, for instance
        }
        stats.sent += u64::from(sent.is_some());
        sent.is_some()
    }

    /// Takes the next packets that leave.
    pub(crate) fn poll(&mut self, buf: &mut Vec<u8>) -> Option<Batch<Way>> {
        self.outbox.poll(buf)
    }

    /// Forgets a flow.
    pub(crate) fn close(&mut self, id: FlowId) {
        match self.flows.remove(&id).map(|flow| flow.kind) {
            Some(PacketKind::Forward(mut mapping)) => {
                for id in mapping.clear() {
                    self.ids.remove(&id);
                }
            }
            Some(PacketKind::Seal(sealed)) => drop(self.ids.remove(&sealed.id)),
            None => {}
        }
    }
}

/// A new ID of this length or more at which clients send packets of a flow. Load balancers and the operating system
/// give the packets to this node.
fn new_id(
    ids: &mut PrefixFreeMap<FlowId>,
    (random, choice): (&mut Generator, &ConnectionIds),
    (len, flow): (usize, FlowId),
) -> ConnectionId {
    loop {
        let mut bytes: [u8; ConnectionId::LEN_MAX] = random.random();
        choice.mark(&mut bytes);
        let id = bytes.get(..len.max(choice.len())).unwrap_or(&bytes);
        if let Ok(id) = ConnectionId::try_from(id)
            && ids.insert(id, flow)
        {
            return id;
        }
    }
}
