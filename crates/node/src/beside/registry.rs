//! The client's account of the connection IDs of one flow, and the IDs that the proxy has chosen for them
//! (draft-ietf-masque-quic-proxy §5, of which sections are cited here).

use bytes::{Bytes, BytesMut};
use tandem_wire::{
    CidCapsule, CidReason, ConnectionId, ForwardingGrant, ScrambleKey,
    transform::{Decoder, Encoder, NoTransformKey},
};

use super::has_id;

/// The most IDs of the proxy's choice for one ID of the client. A proxy that sends more is not followed.
const VIRTUAL_MAX: usize = 4;

/// The most IDs of the client, and the most of the target, that are registered at the same time. In a chain, a
/// flow carries the connection to the next proxy and what is forwarded beside it, and each of them may
/// change its ID.
const IDS_MAX: usize = 8;

/// How many registrations a proxy permits at first (§5).
const PERMITTED_AT_FIRST: u64 = 2;

/// A capsule that the proxy must not send. The flow ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// What is known of the target's ID in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The ID is not registered.
    Unknown,
    /// The proxy has not mapped it.
    Unmapped,
    /// The proxy has mapped it.
    Mapped { id: ConnectionId, virtual_id: ConnectionId },
}

/// A registered connection ID.
#[derive(Debug)]
struct Registered {
    id: ConnectionId,
    /// Those by which the proxy replaces it in packets. For an ID of the target, only the last is used.
    virtual_ids: Vec<ConnectionId>,
}

/// The IDs of one flow.
#[derive(Debug)]
pub(super) struct Registry {
    encoder: Encoder,
    decoder: Decoder,
    /// The client's IDs, the newest last.
    clients: Vec<Registered>,
    /// The target's IDs, the newest last.
    targets: Vec<Registered>,
    /// The number of registrations so far.
    registered: u64,
    /// How many the proxy permits.
    permitted: u64,
    capsules: Vec<CidCapsule>,
    /// IDs at which this client receives no longer.
    retired: Vec<ConnectionId>,
    /// IDs that the proxy has chosen since they were last taken.
    chosen: Vec<Virtual>,
}

/// An ID that the proxy has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Virtual {
    /// For packets to the client.
    Client(ConnectionId),
    /// For packets to the target.
    Target(ConnectionId),
}

impl Registry {
    /// The registry of a flow with this grant. `key` is that of this client.
    pub(super) fn new(grant: &ForwardingGrant, key: &ScrambleKey) -> Result<Self, NoTransformKey> {
        Ok(Self {
            encoder: Encoder::new(grant.transform, Some(key))?,
            decoder: Decoder::new(grant.transform, grant.scramble_key.as_ref())?,
            clients: Vec::new(),
            targets: Vec::new(),
            registered: 0,
            permitted: PERMITTED_AT_FIRST,
            capsules: Vec::new(),
            retired: Vec::new(),
            chosen: Vec::new(),
        })
    }

    pub(super) fn take_capsules(&mut self) -> Vec<CidCapsule> {
        std::mem::take(&mut self.capsules)
    }

    pub(super) fn take_chosen(&mut self) -> Vec<Virtual> {
        std::mem::take(&mut self.chosen)
    }

    pub(super) fn take_retired(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.retired)
    }

    /// The target's ID in a packet, and the one by which it is replaced in packets to the proxy.
    pub(super) fn target_of(&self, packet: &[u8]) -> Target {
        match self.targets.iter().find(|it| has_id(packet, &it.id)) {
            None => Target::Unknown,
            Some(target) => match target.virtual_ids.last() {
                None => Target::Unmapped,
                Some(&virtual_id) => Target::Mapped { id: target.id, virtual_id },
            },
        }
    }

    /// The length of the target's IDs.
    pub(super) fn target_len(&self) -> Option<usize> {
        self.targets.last().map(|target| target.id.len())
    }

    /// The IDs at which the proxy sends packets.
    pub(super) fn own_ids(&self) -> impl Iterator<Item = &ConnectionId> {
        self.clients.iter().flat_map(|client| &client.virtual_ids).chain(&self.retired)
    }

    /// Appends a packet with the proxy's ID to `out`.
    pub(super) fn encode(
        &self,
        packet: &[u8],
        id_len: usize,
        virtual_id: &ConnectionId,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        self.encoder.encode(packet, id_len, virtual_id, out).ok()
    }

    /// Restores a packet that arrived with an ID of the proxy's choice.
    pub(super) fn decode(
        &self,
        virtual_id: &ConnectionId,
        mut packet: BytesMut,
    ) -> Option<BytesMut> {
        let client = self.clients.iter().find(|it| it.virtual_ids.contains(virtual_id))?;
        if client.id.len() == virtual_id.len() {
            self.decoder.decode_in_place(&mut packet, &client.id).ok()?;
            return Some(packet);
        }
        let mut restored = Vec::with_capacity(packet.len() + ConnectionId::LEN_MAX);
        self.decoder.decode(&packet, virtual_id.len(), &client.id, &mut restored).ok()?;
        Some(BytesMut::from(Bytes::from(restored)))
    }

    /// Whether an ID of the client is registered.
    pub(super) fn has_client(&self, id: &ConnectionId) -> bool {
        self.clients.iter().any(|it| it.id == *id)
    }

    /// Registers an ID that the client has chosen. The oldest makes room.
    pub(super) fn register_client(&mut self, id: ConnectionId) {
        if self.has_client(&id) || !self.may_register() {
            return;
        }
        if self.clients.len() >= IDS_MAX {
            let before = self.clients.remove(0);
            self.capsules.push(close_client(before.id.into()));
            self.retired.extend(before.virtual_ids);
        }
        let (reason, cid) = (CidReason::DEFAULT, id.into());
        self.capsules.push(CidCapsule::RegisterClient { reason, cid });
        self.clients.push(Registered { id, virtual_ids: Vec::new() });
    }

    /// Registers an ID that the target has chosen. The oldest makes room.
    pub(super) fn register_target(&mut self, id: ConnectionId) {
        if self.targets.iter().any(|it| it.id == id) || !self.may_register() {
            return;
        }
        if self.targets.len() >= IDS_MAX {
            let (reason, cid) = (CidReason::DEFAULT, self.targets.remove(0).id.into());
            self.capsules.push(CidCapsule::CloseTarget { reason, cid });
        }
        let (reason, cid, reset_token) = (CidReason::DEFAULT, id.into(), None);
        self.capsules.push(CidCapsule::RegisterTarget { reason, cid, reset_token });
        self.targets.push(Registered { id, virtual_ids: Vec::new() });
    }

    /// Counts a registration, if the proxy permits one more (§5.7). Without one, packets stay in the tunnel.
    const fn may_register(&mut self) -> bool {
        let may = self.registered < self.permitted;
        if may {
            self.registered += 1;
        }
        may
    }

    /// Handles a capsule of the proxy. `add` adds an ID at which this client receives, and returns whether
    /// it could.
    pub(super) fn on_capsule(
        &mut self,
        capsule: CidCapsule,
        add: impl FnOnce(ConnectionId) -> bool,
    ) -> Result<(), Violation> {
        match capsule {
            CidCapsule::RegisterClient { .. }
            | CidCapsule::RegisterTarget { .. }
            | CidCapsule::AckClientVcid { .. } => {
                return Err(Violation("a capsule that only clients send"));
            }
            // §5: a client that receives a smaller value than 3 "MUST reset the stream with
            // H3_DATAGRAM_ERROR". §5.7: it "MUST be greater than any value previously sent".
            CidCapsule::MaxConnectionIds(max) if max.get() <= self.permitted => {
                return Err(Violation("MAX_CONNECTION_IDS is not larger than before"));
            }
            CidCapsule::MaxConnectionIds(max) => self.permitted = max.get(),
            CidCapsule::AckClient { cid, vcid } => self.on_client_mapped(cid, &vcid, add),
            CidCapsule::AckTarget { cid, vcid, .. } => {
                let target = self.targets.iter_mut().find(|it| *it.id == *cid);
                if let (Some(target), Ok(id)) = (target, ConnectionId::try_from(&vcid[..]))
                    && !id.is_empty()
                {
                    target.virtual_ids = vec![id];
                    self.chosen.push(Virtual::Target(id));
                }
            }
            CidCapsule::CloseClient { cid, .. } => {
                reject(&mut self.clients, &cid)?;
            }
            CidCapsule::CloseTarget { cid, .. } => {
                reject(&mut self.targets, &cid)?;
            }
        }
        Ok(())
    }

    fn on_client_mapped(
        &mut self,
        cid: Bytes,
        vcid: &[u8],
        add: impl FnOnce(ConnectionId) -> bool,
    ) {
        let Some(client) = self.clients.iter_mut().find(|it| *it.id == *cid) else { return };
        let Ok(id) = ConnectionId::try_from(vcid) else { return };
        // §5.3: its length "MUST be at least as large as the Connection ID".
        let is_usable = !id.is_empty() && id.len() >= client.id.len();
        if is_usable && client.virtual_ids.len() < VIRTUAL_MAX && add(id) {
            client.virtual_ids.push(id);
            self.chosen.push(Virtual::Client(id));
            // §5.9.2: "the client MUST reply to the ACK_CLIENT_CID with an ACK_CLIENT_VCID capsule".
            let (vcid, reset_token) = (id.into(), None);
            self.capsules.push(CidCapsule::AckClientVcid { cid, vcid, reset_token });
        } else {
            self.capsules.push(close_client(cid));
            self.retired.append(&mut client.virtual_ids);
            let unusable = client.id;
            self.clients.retain(|it| it.id != unusable);
        }
    }
}

fn close_client(cid: Bytes) -> CidCapsule {
    CidCapsule::CloseClient { reason: CidReason::DEFAULT, cid }
}

/// Handles the rejection of an ID, whose packets then stay in the tunnel.
///
/// §5: a client that receives `CLOSE_CLIENT_CID` or `CLOSE_TARGET_CID` for an ID that was acknowledged "MUST
/// reset the stream with `H3_DATAGRAM_ERROR`".
fn reject(registered: &mut Vec<Registered>, cid: &[u8]) -> Result<(), Violation> {
    let Some(index) = registered.iter().position(|it| *it.id == *cid) else { return Ok(()) };
    if registered.swap_remove(index).virtual_ids.is_empty() {
        return Ok(());
    }
    Err(Violation("a rejection of an ID that was acknowledged before"))
}
