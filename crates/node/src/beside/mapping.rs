//! The proxy's map between the connection IDs of one flow and virtual ones (draft-ietf-masque-quic-proxy
//! §5.10).

use bytes::Bytes;
use rand::{Rng, SeedableRng};
use tandem_wire::{
    CidCapsule, ConnectionId, ForwardingGrant, ForwardingRequest, ResetToken, ScrambleKey,
    Transform, VarInt,
    transform::{Decoder, Encoder},
};

use super::{VIRTUAL_LEN_MIN, has_id, registry::Violation};
use crate::quic::Generator;

/// The most IDs of one flow that are registered at the same time.
const REGISTERED_MAX: u64 = 8;

/// An ID that the client has chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientId {
    id: ConnectionId,
    virtual_id: ConnectionId,
    /// Whether the client takes packets with the virtual ID.
    is_acknowledged: bool,
}

/// An ID that the target has chosen.
#[derive(Clone, Copy, Debug)]
struct TargetId {
    id: ConnectionId,
    virtual_id: ConnectionId,
}

/// What the answer to a capsule needs.
pub(super) struct Reply<'a> {
    /// Makes a new ID of this length at which the client sends packets.
    pub(super) add: &'a mut dyn FnMut(usize) -> ConnectionId,
    /// The stateless reset token of such an ID.
    pub(super) token: &'a dyn Fn(&ConnectionId) -> Option<ResetToken>,
    pub(super) answers: &'a mut Vec<CidCapsule>,
}

/// The map of one flow.
#[derive(Debug)]
pub(super) struct Mapping {
    encoder: Encoder,
    decoder: Decoder,
    clients: Vec<ClientId>,
    targets: Vec<TargetId>,
    random: Generator,
    /// The number of registrations so far.
    registered: u64,
    /// How many of them are closed.
    closed: u64,
    /// The largest sequence number that the client was told. The draft's §5: "The initial maximum is 1".
    max: u64,
}

impl Mapping {
    /// The map of a flow with this request, and its grant. `None`: the request has no transform that this
    /// proxy knows.
    pub(super) fn new(
        request: &ForwardingRequest,
        random: &mut Generator,
    ) -> Option<(Self, ForwardingGrant)> {
        let usable = |it: &&Transform| !it.needs_key() || request.scramble_key.is_some();
        let transform = *request.transforms.iter().find(usable)?;
        let key = transform.needs_key().then(|| ScrambleKey::new(random.random()));
        let mapping = Self {
            encoder: Encoder::new(transform, key.as_ref()).ok()?,
            decoder: Decoder::new(transform, request.scramble_key.as_ref()).ok()?,
            clients: Vec::new(),
            targets: Vec::new(),
            random: Generator::from_rng(random),
            registered: 0,
            closed: 0,
            max: 1,
        };
        Some((mapping, ForwardingGrant { transform, scramble_key: key }))
    }

    /// Whether no ID is registered.
    pub(super) const fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.targets.is_empty()
    }

    /// Handles a capsule of the client. Returns the IDs at which it may no longer send packets.
    pub(super) fn on_capsule(
        &mut self,
        capsule: CidCapsule,
        reply: &mut Reply<'_>,
    ) -> Result<Vec<ConnectionId>, Violation> {
        let mut removed = Vec::new();
        match capsule {
            CidCapsule::RegisterClient(cid) => {
                self.take_number()?;
                let answer = self.map_client(cid);
                reply.answers.push(answer);
            }
            CidCapsule::RegisterTarget { cid, .. } => {
                self.take_number()?;
                let answer = self.map_target(cid, reply);
                reply.answers.push(answer);
            }
            CidCapsule::AckClientVcid { cid, vcid, .. } => {
                let mut clients = self.clients.iter_mut();
                if let Some(client) = clients.find(|it| *it.id == *cid && *it.virtual_id == *vcid) {
                    client.is_acknowledged = true;
                }
            }
            CidCapsule::CloseClient(cid) => {
                let before = self.clients.len();
                self.clients.retain(|it| *it.id != *cid);
                self.closed += (before - self.clients.len()) as u64;
            }
            CidCapsule::CloseTarget(cid) => {
                self.targets.retain(|it| {
                    let is_closed = *it.id == *cid;
                    if is_closed {
                        removed.push(it.virtual_id);
                    }
                    !is_closed
                });
                self.closed += removed.len() as u64;
            }
            // The draft's §5: "These capsule types MUST only be sent by a proxy."
            CidCapsule::AckClient { .. }
            | CidCapsule::AckTarget { .. }
            | CidCapsule::MaxConnectionIds(_) => {
                return Err(Violation("a capsule that only proxies send"));
            }
        }
        self.permit_more(reply.answers);
        Ok(removed)
    }

    /// Counts a registration.
    fn take_number(&mut self) -> Result<(), Violation> {
        if self.registered > self.max {
            return Err(Violation("a registration beyond MAX_CONNECTION_IDS"));
        }
        self.registered += 1;
        Ok(())
    }

    /// Tells the client how many more IDs it may register.
    fn permit_more(&mut self, answers: &mut Vec<CidCapsule>) {
        let max = self.closed + REGISTERED_MAX - 1;
        if max > self.max {
            self.max = max;
            answers.push(CidCapsule::MaxConnectionIds(VarInt::saturating_from(max)));
        }
    }

    /// The draft's §5.10: "The proxy MUST reply to each REGISTER_CLIENT_CID capsule with either an
    /// ACK_CLIENT_CID or CLOSE_CLIENT_CID capsule".
    fn map_client(&mut self, cid: Bytes) -> CidCapsule {
        let refused = |mapping: &mut Self, cid| {
            mapping.closed += 1;
            CidCapsule::CloseClient(cid)
        };
        let Ok(id) = ConnectionId::try_from(&cid[..]) else { return refused(self, cid) };
        if self.clients.iter().any(|it| it.id != id && it.id.conflicts_with(&id)) {
            return refused(self, cid);
        }
        // The draft's §2.2: "the proxy MUST choose a client VCID that is at least as long as the original
        // client CID", and unpredictable.
        let bytes: [u8; ConnectionId::LEN_MAX] = self.random.random();
        let len = id.len().max(VIRTUAL_LEN_MIN);
        let Ok(virtual_id) = ConnectionId::try_from(bytes.get(..len).unwrap_or(&bytes)) else {
            return refused(self, cid);
        };
        // A new virtual ID for the same ID replaces the former one.
        let before = self.clients.len();
        self.clients.retain(|it| it.id != id);
        self.closed += (before - self.clients.len()) as u64;
        self.clients.push(ClientId { id, virtual_id, is_acknowledged: false });
        CidCapsule::AckClient { cid, vcid: virtual_id.into() }
    }

    fn map_target(&mut self, cid: Bytes, reply: &mut Reply<'_>) -> CidCapsule {
        let Ok(id) = ConnectionId::try_from(&cid[..]) else {
            self.closed += 1;
            return CidCapsule::CloseTarget(cid);
        };
        let virtual_id = (reply.add)(id.len().max(VIRTUAL_LEN_MIN));
        self.targets.push(TargetId { id, virtual_id });
        let reset_token = (reply.token)(&virtual_id);
        CidCapsule::AckTarget { cid, vcid: virtual_id.into(), reset_token }
    }

    /// Closes everything. Returns the IDs at which the client may no longer send packets.
    pub(super) fn close_all(&mut self, capsules: &mut Vec<CidCapsule>) -> Vec<ConnectionId> {
        let clients = self.clients.drain(..).map(|it| CidCapsule::CloseClient(it.id.into()));
        let before = capsules.len();
        capsules.extend(clients);
        let mut removed = Vec::new();
        for TargetId { id, virtual_id } in self.targets.drain(..) {
            capsules.push(CidCapsule::CloseTarget(id.into()));
            removed.push(virtual_id);
        }
        self.closed += (capsules.len() - before) as u64;
        self.permit_more(capsules);
        removed
    }

    /// The client's ID in a packet of the target, if the client takes such packets forwarded.
    ///
    /// The draft's §5: "The proxy MUST NOT send forwarded mode packets to the client prior to receiving
    /// this acknowledgement." Packets with long headers are always tunnelled.
    pub(super) fn client_of(&self, packet: &[u8]) -> Option<ClientId> {
        let mut clients = self.clients.iter().filter(|it| it.is_acknowledged);
        clients.find(|it| has_id(packet, &it.id)).copied()
    }

    /// Appends a packet of the target to `out`, with the virtual ID of the client's.
    pub(super) fn encode(&self, packet: &[u8], client: ClientId, out: &mut Vec<u8>) -> Option<()> {
        self.encoder.encode(packet, client.id.len(), &client.virtual_id, out).ok()
    }

    /// Appends a packet of the client to `out`, as the target expects it. Returns its length.
    pub(super) fn decode(
        &self,
        virtual_id: &ConnectionId,
        packet: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let target = self.targets.iter().find(|it| it.virtual_id == *virtual_id)?;
        let before = out.len();
        self.decoder.decode(packet, virtual_id.len(), &target.id, out).ok()?;
        Some(out.len() - before)
    }
}
