//! The proxy's map between the connection IDs of one flow and virtual ones (draft-ietf-masque-quic-proxy
//! §5.10; sections of the draft are cited here).

use bytes::Bytes;
use rand::{Rng, SeedableRng};
use tandem_wire::{
    CidCapsule, CidReason, ConnectionId, ForwardingGrant, ForwardingRequest, ResetToken,
    ScrambleKey, Transform, VarInt,
    transform::{Decoder, Encoder},
};

use super::{VIRTUAL_LEN_MIN, has_id, registry::Violation};
use crate::quic::Generator;

/// The most IDs of one flow that are registered at the same time. They are enough for 60 connections inside
/// a chain of tunnels, with two each.
const REGISTERED_MAX: u64 = 128;

/// How many registrations a client may make without `MAX_CONNECTION_IDS` (§5).
const PERMITTED_AT_FIRST: u64 = 2;

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
    /// Computes the stateless reset token that belongs to such an ID.
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
    /// How many the client may make.
    permitted: u64,
    /// How many IDs the client has closed or replaced.
    closed: u64,
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
            permitted: PERMITTED_AT_FIRST,
            closed: 0,
        };
        Some((mapping, ForwardingGrant { transform, scramble_key: key }))
    }

    /// Handles a capsule of the client. Returns the IDs at which it may no longer send packets.
    pub(super) fn on_capsule(
        &mut self,
        capsule: CidCapsule,
        reply: &mut Reply<'_>,
    ) -> Result<Vec<ConnectionId>, Violation> {
        let mut removed = Vec::new();
        match capsule {
            CidCapsule::RegisterClient { reason, cid } => {
                self.count()?;
                let answer = self.map_client(reason, cid);
                reply.answers.push(answer);
            }
            CidCapsule::RegisterTarget { reason, cid, .. } => {
                self.count()?;
                let answer = self.map_target(reason, cid, reply);
                reply.answers.push(answer);
            }
            CidCapsule::AckClientVcid { cid, vcid, .. } => {
                let mut clients = self.clients.iter_mut();
                if let Some(client) = clients.find(|it| *it.id == *cid && *it.virtual_id == *vcid) {
                    client.is_acknowledged = true;
                }
            }
            CidCapsule::CloseClient { cid, .. } => {
                let before = self.clients.len();
                self.clients.retain(|it| *it.id != *cid);
                self.closed += (before - self.clients.len()) as u64;
            }
            CidCapsule::CloseTarget { cid, .. } => {
                let closed = self.targets.extract_if(.., |it| *it.id == *cid);
                removed.extend(closed.map(|it| it.virtual_id));
                self.closed += removed.len() as u64;
            }
            // §5: "These capsule types MUST only be sent by a proxy."
            CidCapsule::AckClient { .. }
            | CidCapsule::AckTarget { .. }
            | CidCapsule::MaxConnectionIds(_) => {
                return Err(Violation("a capsule that only proxies send"));
            }
        }
        self.permit_more(reply.answers);
        Ok(removed)
    }

    /// Counts a registration. §5: "Every registration capsule consumes a sequence number, including
    /// registrations that are rejected and re-registrations".
    const fn count(&mut self) -> Result<(), Violation> {
        if self.registered >= self.permitted {
            return Err(Violation("a registration beyond MAX_CONNECTION_IDS"));
        }
        self.registered += 1;
        Ok(())
    }

    /// Permits the client as many registrations as it has IDs to replace.
    fn permit_more(&mut self, answers: &mut Vec<CidCapsule>) {
        // §5.7: the value "MUST be greater than any value previously sent".
        let permitted = self.closed.saturating_add(REGISTERED_MAX);
        if permitted > self.permitted {
            self.permitted = permitted;
            answers.push(CidCapsule::MaxConnectionIds(VarInt::saturating_from(permitted)));
        }
    }

    /// §5.10: "The proxy MUST reply to each `REGISTER_CLIENT_CID` capsule with either an `ACK_CLIENT_CID` or
    /// `CLOSE_CLIENT_CID` capsule".
    fn map_client(&mut self, reason: CidReason, cid: Bytes) -> CidCapsule {
        let rejected = |reason, cid| CidCapsule::CloseClient { reason, cid };
        let Ok(id) = ConnectionId::try_from(&cid[..]) else {
            return rejected(CidReason::DEFAULT, cid);
        };
        if self.clients.iter().any(|it| it.id != id && it.id.conflicts_with(&id)) {
            return rejected(CidReason::CONFLICT, cid);
        }
        // §2.2: "the proxy MUST choose a client VCID that is at least as long as the original client CID".
        // §5.10: "Proxies MUST choose unpredictable client and target VCIDs".
        let bytes: [u8; ConnectionId::LEN_MAX] = self.random.random();
        let before = self.clients.iter().find(|it| it.id == id).map(|it| it.virtual_id);
        let len = virtual_len(id, before, reason);
        let Some(Ok(virtual_id)) = bytes.get(..len).map(ConnectionId::try_from) else {
            return rejected(CidReason::TOO_SHORT, cid);
        };
        // A new virtual ID for the same ID replaces the former one.
        let before = self.clients.len();
        self.clients.retain(|it| it.id != id);
        self.closed += (before - self.clients.len()) as u64;
        self.clients.push(ClientId { id, virtual_id, is_acknowledged: false });
        CidCapsule::AckClient { cid, vcid: virtual_id.into() }
    }

    fn map_target(&mut self, reason: CidReason, cid: Bytes, reply: &mut Reply<'_>) -> CidCapsule {
        let Ok(id) = ConnectionId::try_from(&cid[..]) else {
            return CidCapsule::CloseTarget { reason: CidReason::DEFAULT, cid };
        };
        let before = self.targets.iter().rev().find(|it| it.id == id).map(|it| it.virtual_id);
        let len = virtual_len(id, before, reason);
        if len > ConnectionId::LEN_MAX {
            return CidCapsule::CloseTarget { reason: CidReason::TOO_SHORT, cid };
        }
        let virtual_id = (reply.add)(len);
        self.targets.push(TargetId { id, virtual_id });
        let reset_token = (reply.token)(&virtual_id);
        CidCapsule::AckTarget { cid, vcid: virtual_id.into(), reset_token }
    }

    /// Forgets all IDs. Returns those at which the client may no longer send packets.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = ConnectionId> {
        self.closed += (self.clients.len() + self.targets.len()) as u64;
        self.clients.clear();
        self.targets.drain(..).map(|it| it.virtual_id)
    }

    /// The client's ID in a packet of the target, if the client takes such packets forwarded.
    ///
    /// §5: "The proxy MUST NOT send forwarded mode packets to the client prior to receiving
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

/// The length of a new virtual ID. It may be above [`ConnectionId::LEN_MAX`].
///
/// §5.9: after a registration with the reason `TOO_SHORT` the proxy "MUST" choose a longer one than before,
/// or close the ID.
fn virtual_len(id: ConnectionId, before: Option<ConnectionId>, reason: CidReason) -> usize {
    let usual = id.len().max(VIRTUAL_LEN_MIN);
    if reason == CidReason::TOO_SHORT {
        before.map_or(usual, |before| before.len()) + 1
    } else {
        usual
    }
}
