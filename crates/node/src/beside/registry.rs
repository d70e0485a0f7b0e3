//! The client's account of the connection IDs of one flow, and the IDs that the proxy has chosen for them
//! (draft-ietf-masque-quic-proxy §5, of which sections are cited here).

use bytes::{Bytes, BytesMut};
use tandem_wire::{
    CidCapsule, CidReason, ConnectionId, ForwardingGrant, ResetToken, ScrambleKey,
    transform::{Decoder, Encoder, NoTransformKey},
};

use super::has_id;
use crate::impossible::impossible;

/// The most IDs of the proxy's choice for one ID of the client. A proxy that sends more is not followed.
const VIRTUAL_MAX: usize = 4;

/// The most IDs of a flow's own connection that are registered at the same time, for each end.
const OWN_MAX: usize = 8;

/// The most IDs of inner connections for each end. In a chain, a flow carries the connection to the next
/// proxy, and the packets that are forwarded beside it.
const INNER_MAX: usize = 64;

/// Registrations that inner connections leave to the flow's own one.
const LEFT_TO_OWN: u64 = 2;

/// How many registrations a proxy permits at first (§5).
const PERMITTED_AT_FIRST: u64 = 2;

/// A capsule that the proxy must not send. The flow ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// What is known of the target's ID in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownTarget {
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
    /// Whether the next proxy has chosen it, for an inner connection.
    is_inner: bool,
    /// The token with which a proxy that has forgotten the virtual ID answers packets with it.
    reset_token: Option<ResetToken>,
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
    /// IDs of the proxy's choice that are no longer used.
    retired: Vec<Virtual>,
    /// IDs that the proxy has chosen since they were last taken.
    chosen: Vec<Virtual>,
}

/// An end of the connection in a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Target,
}

/// An ID that the proxy has chosen, for packets to this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Virtual {
    pub(crate) end: End,
    pub(crate) id: ConnectionId,
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

    /// The IDs of the proxy's choice that are no longer used since the last call.
    pub(super) fn take_retired(&mut self) -> Vec<Virtual> {
        std::mem::take(&mut self.retired)
    }

    /// Ends the use of all IDs.
    pub(super) fn clear(&mut self) {
        for (end, ids) in [(End::Client, &mut self.clients), (End::Target, &mut self.targets)] {
            let virtual_ids = ids.drain(..).flat_map(|it| it.virtual_ids);
            self.retired.extend(virtual_ids.map(|id| Virtual { end, id }));
        }
    }

    /// The target's ID in a packet, and the one by which it is replaced in packets to the proxy.
    pub(super) fn target_of(&self, packet: &[u8]) -> KnownTarget {
        match self.targets.iter().find(|it| has_id(packet, &it.id)) {
            None => KnownTarget::Unknown,
            Some(target) => match target.virtual_ids.last() {
                None => KnownTarget::Unmapped,
                Some(&virtual_id) => KnownTarget::Mapped { id: target.id, virtual_id },
            },
        }
    }

    /// Whether a packet is a stateless reset (RFC 9000 §10.3) for a packet with an ID of the target.
    pub(super) fn is_reset(&self, packet: &[u8]) -> bool {
        let Some(last) = packet.last_chunk().copied().map(ResetToken::new) else { return false }; // it is too short
        self.targets.iter().any(|target| target.reset_token == Some(last))
    }

    /// The length of the target's IDs.
    pub(super) fn target_len(&self) -> Option<usize> {
        self.targets.last().map(|target| target.id.len())
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

    /// Whether an ID of an end is registered.
    pub(super) fn has(&self, end: End, id: &ConnectionId) -> bool {
        self.of(end).iter().any(|it| it.id == *id)
    }

    /// Registers an ID that an end of the flow's own connection has chosen. The oldest makes room.
    pub(super) fn register(&mut self, end: End, id: ConnectionId) {
        if self.has(end, &id) || !self.may_register(0) {
            return;
        }
        let own = || self.of(end).iter().enumerate().filter(|(_, it)| !it.is_inner);
        if own().count() >= OWN_MAX {
            let oldest = own().next().map(|(index, _)| index);
            self.close(end, oldest);
        }
        self.add(end, id, false);
    }

    /// Registers an ID of an inner connection, which the next proxy has chosen. `false`: there is no room.
    /// None makes room, because connections would take it from each other with every packet.
    pub(super) fn register_inner(&mut self, Virtual { end, id }: Virtual) -> bool {
        if self.has(end, &id) {
            return true;
        }
        let has_room = self.of(end).iter().filter(|it| it.is_inner).count() < INNER_MAX;
        if !has_room || !self.may_register(LEFT_TO_OWN) {
            return false;
        }
        self.add(end, id, true);
        true
    }

    /// Closes an ID of an inner connection, which is no longer used.
    pub(super) fn close_inner(&mut self, Virtual { end, id }: Virtual) {
        self.close(end, self.of(end).iter().position(|it| it.is_inner && it.id == id));
    }

    /// Closes the ID for which the proxy has chosen this one.
    pub(super) fn close_virtual(&mut self, Virtual { end, id }: Virtual) {
        self.close(end, self.of(end).iter().position(|it| it.virtual_ids.contains(&id)));
    }

    fn of(&self, end: End) -> &[Registered] {
        match end {
            End::Client => &self.clients,
            End::Target => &self.targets,
        }
    }

    fn of_mut(&mut self, end: End) -> &mut Vec<Registered> {
        match end {
            End::Client => &mut self.clients,
            End::Target => &mut self.targets,
        }
    }

    fn add(&mut self, end: End, id: ConnectionId, is_inner: bool) {
        let (reason, cid, reset_token) = (CidReason::DEFAULT, id.into(), None);
        self.capsules.push(match end {
            End::Client => CidCapsule::RegisterClient { reason, cid },
            End::Target => CidCapsule::RegisterTarget { reason, cid, reset_token },
        });
        let virtual_ids = Vec::new();
        self.of_mut(end).push(Registered { id, virtual_ids, is_inner, reset_token });
    }

    /// Closes the ID at this place, if there is one.
    fn close(&mut self, end: End, index: Option<usize>) {
        let Some(index) = index else { return }; // it is closed already
        let Registered { id, virtual_ids, .. } = self.of_mut(end).remove(index);
        let (reason, cid) = (CidReason::DEFAULT, id.into());
        self.capsules.push(match end {
            End::Client => CidCapsule::CloseClient { reason, cid },
            End::Target => CidCapsule::CloseTarget { reason, cid },
        });
        self.retired.extend(virtual_ids.into_iter().map(|id| Virtual { end, id }));
    }

    /// Counts a registration, if the proxy permits one more and `left` others (§5.7). Without one, packets
    /// stay in the tunnel.
    const fn may_register(&mut self, left: u64) -> bool {
        let may = self.registered.saturating_add(left) < self.permitted;
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
            CidCapsule::AckTarget { cid, vcid, reset_token } => {
                // A proxy may not let the client register without end. The answer to an earlier
                // registration of the same ID may still come.
                let mut targets = self.targets.iter_mut();
                let target =
                    targets.find(|it| *it.id == *cid && it.virtual_ids.len() < VIRTUAL_MAX);
                if let (Some(target), Ok(id)) = (target, ConnectionId::try_from(&vcid[..]))
                    && !id.is_empty()
                {
                    target.virtual_ids.push(id);
                    target.reset_token = reset_token;
                    self.chosen.push(Virtual { end: End::Target, id });
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
        let Some(index) = self.clients.iter().position(|it| *it.id == *cid) else { return }; // it is closed
        let Some(client) = self.clients.get_mut(index) else {
            return impossible("the ID was found a moment ago");
        };
        let Ok(id) = ConnectionId::try_from(vcid) else { return }; // no ID is so long
        // §5.3: its length "MUST be at least as large as the Connection ID".
        let is_usable = !id.is_empty() && id.len() >= client.id.len();
        if is_usable && client.virtual_ids.len() < VIRTUAL_MAX && add(id) {
            client.virtual_ids.push(id);
            self.chosen.push(Virtual { end: End::Client, id });
            // §5.9.2: "the client MUST reply to the ACK_CLIENT_CID with an ACK_CLIENT_VCID capsule".
            let (vcid, reset_token) = (id.into(), None);
            self.capsules.push(CidCapsule::AckClientVcid { cid, vcid, reset_token });
        } else {
            self.close(End::Client, Some(index));
        }
    }
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

#[cfg(test)]
mod tests {
    use tandem_wire::{Transform, VarInt};

    use super::*;

    fn id(number: usize) -> ConnectionId {
        ConnectionId::try_from(&number.to_be_bytes()[..]).unwrap()
    }

    /// A registry whose proxy permits this number of registrations.
    fn registry(permitted: u64) -> Registry {
        let grant = ForwardingGrant { transform: Transform::Identity, scramble_key: None };
        let mut registry = Registry::new(&grant, &ScrambleKey::new([1; 32])).unwrap();
        let max = CidCapsule::MaxConnectionIds(VarInt::saturating_from(permitted));
        registry.on_capsule(max, |_| true).unwrap();
        registry
    }

    /// An ID that the proxy has chosen for packets to the target.
    fn target(number: usize) -> Virtual {
        Virtual { end: End::Target, id: id(number) }
    }

    /// Lets the proxy choose an ID for one of the target.
    fn acknowledge(registry: &mut Registry, cid: ConnectionId, vcid: ConnectionId) {
        let reset_token = Some(ResetToken::new([9; 16]));
        let capsule = CidCapsule::AckTarget { cid: cid.into(), vcid: vcid.into(), reset_token };
        registry.on_capsule(capsule, |_| true).unwrap();
    }

    #[test]
    fn inner_connections_beyond_the_limit_are_refused_and_take_nothing_from_others() {
        for end in [End::Client, End::Target] {
            let mut registry = registry(1000);
            registry.register(End::Client, id(1));
            registry.register(End::Target, id(2));
            let inner = |number: usize| Virtual { end, id: id(100 + number) };
            for number in 0..INNER_MAX {
                assert!(registry.register_inner(inner(number)), "{number}");
            }
            assert!(!registry.register_inner(inner(INNER_MAX)));
            assert!(registry.register_inner(inner(0)), "it is registered already");
            let closed = |registry: &mut Registry| {
                let is_close = |it: &CidCapsule| {
                    matches!(it, CidCapsule::CloseClient { .. } | CidCapsule::CloseTarget { .. })
                };
                registry.take_capsules().into_iter().filter(is_close).count()
            };
            assert_eq!(closed(&mut registry), 0);
            // The flow's own connection changes its IDs, and the oldest of those makes room.
            for number in 10..10 + 2 * OWN_MAX {
                registry.register(End::Client, id(number));
                registry.register(End::Target, id(number));
            }
            assert_eq!(closed(&mut registry), 2 * (OWN_MAX + 1));
            assert!(registry.register_inner(inner(0)), "it is still registered");
            registry.close_inner(inner(3));
            assert_eq!(closed(&mut registry), 1);
            assert!(registry.register_inner(inner(INNER_MAX)));
        }
    }

    #[test]
    fn inner_connections_leave_registrations_to_the_flow_itself() {
        let mut registry = registry(5);
        let accepted = (0..9).filter(|&it| registry.register_inner(target(it)));
        assert_eq!(accepted.count(), 3);
        registry.register(End::Client, id(20));
        registry.register(End::Target, id(21));
        assert!(
            registry.has(End::Client, &id(20))
                && registry.target_of(&packet(21)) == KnownTarget::Unmapped
        );
    }

    /// A packet with a short header and an ID.
    fn packet(number: usize) -> Vec<u8> {
        let mut packet = vec![0x40];
        packet.extend_from_slice(&id(number));
        packet.resize(30, 0);
        packet
    }

    #[test]
    fn the_ids_of_the_proxy_are_retired_with_those_for_which_they_stand() {
        let mut registry = registry(100);
        registry.register(End::Target, id(1));
        acknowledge(&mut registry, id(1), id(11));
        for number in 12..20 {
            acknowledge(&mut registry, id(1), id(number)); // the newest counts, up to the fourth
        }
        let all: Vec<_> = (11..15).map(target).collect();
        assert_eq!(registry.take_chosen(), all);
        let mapped = KnownTarget::Mapped { id: id(1), virtual_id: id(14) };
        assert_eq!(registry.target_of(&packet(1)), mapped);
        registry.close_virtual(target(14));
        assert_eq!(registry.take_retired(), all);
        assert_eq!(registry.target_of(&packet(1)), KnownTarget::Unknown);
        registry.register(End::Target, id(2));
        acknowledge(&mut registry, id(2), id(13));
        registry.clear();
        assert_eq!(registry.take_retired(), [target(13)]);
    }

    #[test]
    fn a_stateless_reset_is_one_of_a_registered_target() {
        let mut registry = registry(100);
        let mut reset = packet(7);
        reset.extend_from_slice(&[9; 16]);
        assert!(!registry.is_reset(&reset));
        registry.register(End::Target, id(1));
        assert!(!registry.is_reset(&reset), "the proxy has given no token");
        acknowledge(&mut registry, id(1), id(11));
        assert!(registry.is_reset(&reset));
        assert!(!registry.is_reset(&packet(7)) && !registry.is_reset(&[9; 15]));
    }

    #[test]
    fn capsules_that_a_proxy_must_not_send_are_violations() {
        let (reason, reset_token) = (CidReason::DEFAULT, None);
        let max = |max| CidCapsule::MaxConnectionIds(VarInt::saturating_from(max));
        let cid = || Bytes::from(id(1));
        for capsule in [
            CidCapsule::RegisterClient { reason, cid: cid() },
            CidCapsule::RegisterTarget { reason, cid: cid(), reset_token },
            CidCapsule::AckClientVcid { cid: cid(), vcid: cid(), reset_token },
            max(99),
            max(100),
            CidCapsule::CloseTarget { reason, cid: cid() }, // it is acknowledged
        ] {
            let mut registry = registry(100);
            registry.register(End::Target, id(1));
            acknowledge(&mut registry, id(1), id(11));
            assert!(registry.on_capsule(capsule.clone(), |_| true).is_err(), "{capsule:?}");
        }
        let mut registry = registry(100);
        registry.register(End::Target, id(1));
        let rejected = CidCapsule::CloseTarget { reason, cid: cid() };
        assert_eq!(registry.on_capsule(rejected, |_| true), Ok(()));
        assert_eq!(registry.target_of(&packet(1)), KnownTarget::Unknown, "it stays in the tunnel");
    }

    #[test]
    fn virtual_ids_that_cannot_be_used_close_the_registration() {
        let short = ConnectionId::try_from(&[1][..]).unwrap();
        for (vcid, is_free, closes) in
            [(id(11), true, false), (short, true, true), (id(11), false, true)]
        {
            let mut registry = registry(100);
            registry.register(End::Client, id(1));
            registry.take_capsules();
            let capsule = CidCapsule::AckClient { cid: id(1).into(), vcid: vcid.into() };
            registry.on_capsule(capsule, |_| is_free).unwrap();
            let answers = registry.take_capsules();
            let is_closed = matches!(answers.as_slice(), [CidCapsule::CloseClient { .. }]);
            assert_eq!(
                (is_closed, registry.has(End::Client, &id(1))),
                (closes, !closes),
                "{vcid:?}"
            );
        }
    }
}
