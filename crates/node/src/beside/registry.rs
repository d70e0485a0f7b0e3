//! The client's account of the connection IDs of one flow, and the IDs that the proxy has chosen for them
//! (draft-ietf-masque-quic-proxy §5).

use bytes::{Bytes, BytesMut};
use tandem_wire::{
    CidCapsule, ConnectionId, ForwardingGrant, ScrambleKey,
    transform::{Decoder, Encoder, NoTransformKey},
};

/// The most IDs of the proxy's choice for one ID of the client. A proxy that sends more is not followed.
const VIRTUAL_MAX: usize = 4;

/// How often a closed ID is registered again. A proxy closes IDs when the client's address has changed.
const RENEWALS_MAX: u8 = 16;

/// A capsule that the proxy must not send. The flow ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// A change of the IDs at which this client receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Add(ConnectionId),
    Remove(ConnectionId),
}

/// A registered connection ID.
#[derive(Debug)]
struct Registered {
    id: ConnectionId,
    /// Those by which the proxy replaces it in packets. For an ID of the target, only the last is used.
    virtual_ids: Vec<ConnectionId>,
    renewals: u8,
}

/// The IDs of one flow.
#[derive(Debug)]
pub(super) struct Registry {
    encoder: Encoder,
    decoder: Decoder,
    client: Option<Registered>,
    target: Option<Registered>,
    /// The sequence number of the next registration.
    next: u64,
    /// The largest sequence number that the proxy permits. The draft's §5: "The initial maximum is 1".
    max: u64,
    capsules: Vec<CidCapsule>,
}

impl Registry {
    /// The registry of a flow with this grant. `key` is that of this client.
    pub(super) fn new(grant: &ForwardingGrant, key: &ScrambleKey) -> Result<Self, NoTransformKey> {
        Ok(Self {
            encoder: Encoder::new(grant.transform, Some(key))?,
            decoder: Decoder::new(grant.transform, grant.scramble_key.as_ref())?,
            client: None,
            target: None,
            next: 0,
            max: 1,
            capsules: Vec::new(),
        })
    }

    pub(super) fn take_capsules(&mut self) -> Vec<CidCapsule> {
        std::mem::take(&mut self.capsules)
    }

    /// The target's ID, and the one by which it is replaced in packets to the proxy.
    pub(super) fn target(&self) -> Option<(ConnectionId, ConnectionId)> {
        let target = self.target.as_ref()?;
        Some((target.id, *target.virtual_ids.last()?))
    }

    /// The IDs at which the proxy sends packets.
    pub(super) fn own_ids(&self) -> impl Iterator<Item = &ConnectionId> {
        self.client.iter().flat_map(|client| &client.virtual_ids)
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
        let client = self.client.as_ref()?;
        if client.id.len() == virtual_id.len() {
            self.decoder.decode_in_place(&mut packet, &client.id).ok()?;
            return Some(packet);
        }
        let mut restored = Vec::with_capacity(packet.len() + ConnectionId::LEN_MAX);
        self.decoder.decode(&packet, virtual_id.len(), &client.id, &mut restored).ok()?;
        Some(BytesMut::from(Bytes::from(restored)))
    }

    /// Registers an ID that the client has chosen, in the place of an earlier one.
    pub(super) fn register_client(&mut self, id: ConnectionId) {
        if let Some(before) = self.client.take() {
            self.capsules.push(CidCapsule::CloseClient(before.id.into()));
        }
        if self.take_number() {
            self.capsules.push(CidCapsule::RegisterClient(id.into()));
            self.client = Some(Registered { id, virtual_ids: Vec::new(), renewals: 0 });
        }
    }

    /// Registers an ID that the target has chosen, in the place of an earlier one.
    pub(super) fn register_target(&mut self, id: ConnectionId) {
        if let Some(before) = self.target.take() {
            self.capsules.push(CidCapsule::CloseTarget(before.id.into()));
        }
        if self.take_number() {
            self.capsules.push(register_target(&id));
            self.target = Some(Registered { id, virtual_ids: Vec::new(), renewals: 0 });
        }
    }

    /// Takes the sequence number of a registration. The draft's §5.9: "The client MUST NOT send a
    /// registration capsule with a sequence number greater than what the proxy advertises".
    const fn take_number(&mut self) -> bool {
        let may = self.next <= self.max;
        if may {
            self.next += 1;
        }
        may
    }

    /// Handles a capsule of the proxy. `change` adds and removes IDs at which this client receives, and
    /// returns whether it could.
    pub(super) fn on_capsule(
        &mut self,
        capsule: CidCapsule,
        mut change: impl FnMut(Change) -> bool,
    ) -> Result<(), Violation> {
        match capsule {
            CidCapsule::RegisterClient(_)
            | CidCapsule::RegisterTarget { .. }
            | CidCapsule::AckClientVcid { .. } => {
                Err(Violation("a capsule that only clients send"))
            }
            CidCapsule::MaxConnectionIds(max) if max.get() < 1 => {
                Err(Violation("MAX_CONNECTION_IDS below 1"))
            }
            CidCapsule::MaxConnectionIds(max) => {
                self.max = self.max.max(max.get());
                Ok(())
            }
            CidCapsule::AckClient { cid, vcid } => {
                self.on_client_mapped(cid, &vcid, change);
                Ok(())
            }
            CidCapsule::AckTarget { cid, vcid, .. } => {
                let target = self.target.as_mut().filter(|it| *it.id == *cid);
                if let (Some(target), Ok(id)) = (target, ConnectionId::try_from(&vcid[..]))
                    && !id.is_empty()
                {
                    target.virtual_ids = vec![id];
                }
                Ok(())
            }
            CidCapsule::CloseClient(cid) => {
                let Some(mut closed) = self.client.take_if(|it| *it.id == *cid) else {
                    return Ok(());
                };
                let was_mapped = !closed.virtual_ids.is_empty();
                for id in closed.virtual_ids.drain(..) {
                    change(Change::Remove(id));
                }
                self.client =
                    self.renew(closed, was_mapped, |id| CidCapsule::RegisterClient((*id).into()));
                Ok(())
            }
            CidCapsule::CloseTarget(cid) => {
                let Some(mut closed) = self.target.take_if(|it| *it.id == *cid) else {
                    return Ok(());
                };
                let was_mapped = !closed.virtual_ids.is_empty();
                closed.virtual_ids.clear();
                self.target = self.renew(closed, was_mapped, register_target);
                Ok(())
            }
        }
    }

    fn on_client_mapped(
        &mut self,
        cid: Bytes,
        vcid: &[u8],
        mut change: impl FnMut(Change) -> bool,
    ) {
        let Some(client) = self.client.as_mut().filter(|it| *it.id == *cid) else { return };
        let Ok(id) = ConnectionId::try_from(vcid) else { return };
        // The draft's §5.3: the ID "MUST be at least as large as the Connection ID".
        let is_usable = !id.is_empty() && id.len() >= client.id.len();
        if is_usable && client.virtual_ids.len() < VIRTUAL_MAX && change(Change::Add(id)) {
            client.virtual_ids.push(id);
            // The draft's §5.9.2: "the client MUST reply to the ACK_CLIENT_CID with an ACK_CLIENT_VCID
            // capsule".
            let (vcid, reset_token) = (id.into(), None);
            self.capsules.push(CidCapsule::AckClientVcid { cid, vcid, reset_token });
        } else {
            self.capsules.push(CidCapsule::CloseClient(cid));
            self.client = None;
        }
    }

    /// Registers an ID again that the proxy has closed. One that the proxy never accepted stays out: it
    /// conflicts with another, and its packets travel in the tunnel.
    fn renew(
        &mut self,
        closed: Registered,
        was_mapped: bool,
        capsule: impl FnOnce(&ConnectionId) -> CidCapsule,
    ) -> Option<Registered> {
        if !was_mapped || closed.renewals >= RENEWALS_MAX || !self.take_number() {
            return None;
        }
        self.capsules.push(capsule(&closed.id));
        Some(Registered { renewals: closed.renewals + 1, ..closed })
    }
}

fn register_target(id: &ConnectionId) -> CidCapsule {
    CidCapsule::RegisterTarget { cid: (*id).into(), reset_token: None }
}
