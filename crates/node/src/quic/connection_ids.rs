//! How a node chooses its connection IDs, and the tokens of stateless resets for them.

use std::time::Duration;

use noq_proto::{
    ConnectionIdGenerator, InvalidCid,
    crypto::{CryptoError, HmacKey},
};
use rand::Rng;
use ring::hmac;
use tandem_wire::{ConnectionId, ResetToken, RoutableIds};

use super::{
    Fleet, OtherProcess, Steering, Transport,
    config::{Generator, rng},
    demux::CONNECTION_ID_LEN,
};

/// How a node chooses connection IDs: at random, but for what says the node and the machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionIds {
    steering: Steering,
    other_process: OtherProcess,
    fleet: Option<Fleet>,
}

impl ConnectionIds {
    pub(crate) fn new(transport: &Transport) -> Self {
        Self {
            steering: transport.steering,
            other_process: transport.other_process.clone(),
            fleet: transport.fleet.clone(),
        }
    }

    /// The length in bytes of the IDs at which the engine receives packets.
    pub(crate) fn len(&self) -> usize {
        self.fleet.as_ref().map_or(CONNECTION_ID_LEN, Fleet::id_len)
    }

    /// Which byte of an ID says the node.
    fn thread_at(&self) -> usize {
        self.fleet.as_ref().map_or(0, Fleet::thread_at)
    }

    /// Whether this node may say that the connection of an ID does not exist. Another thread, process or machine may
    /// have it, although its packet came here: the kernel joins packets that follow each other from one address, and
    /// gives them to the node of the first one; load balancers may do the same.
    ///
    /// All nodes know the secret of stateless resets. An answer to the packet of another node would contain the token
    /// that ends a live connection. RFC 9000 §21.11: "servers MUST NOT generate a stateless reset if a connection with
    /// the corresponding connection ID could be active on any endpoint using the same static key."
    pub(super) fn may_answer(&self, id: &[u8]) -> bool {
        let is_shared = self.other_process.is_there();
        id.get(self.thread_at()).is_some_and(|&it| self.steering.answers_for(it, is_shared))
            && self.fleet.as_ref().is_none_or(|fleet| fleet.answers_for(id))
    }

    /// Whether the ID is one of another machine of the fleet that is not known to be gone, and for which this node
    /// would answer otherwise.
    pub(super) fn may_answer_later(&self, id: &[u8]) -> bool {
        self.is_owner_gone(id) == Some(false)
            && id.get(self.thread_at()).is_some_and(|&it| self.steering.answers_for(it, false))
    }

    /// Whether the other machine of the fleet that an ID names is gone. `None`: the ID names none that is known.
    pub(super) fn is_owner_gone(&self, id: &[u8]) -> Option<bool> {
        self.fleet.as_ref()?.is_owner_gone(id)
    }

    /// Makes random bytes a connection ID of this node. There are at least [`Self::len`].
    pub(crate) fn mark(&self, id: &mut [u8]) {
        let thread_at = self.thread_at();
        if let Some(fleet) = &self.fleet {
            fleet.mark(id);
        }
        if let Some((_, from_thread)) = id.split_at_mut_checked(thread_at) {
            self.steering.mark(from_thread);
        }
    }
}

/// Connection IDs that follow from a seed. Those of noq itself come from the thread's generator.
pub(super) struct EngineIds {
    random: Generator,
    ids: ConnectionIds,
}

impl EngineIds {
    pub(super) fn new(seed: Option<u64>, ids: ConnectionIds) -> Self {
        Self { random: rng(seed), ids }
    }
}

impl ConnectionIdGenerator for EngineIds {
    fn generate_cid(&mut self) -> noq_proto::ConnectionId {
        let mut id = [0; ConnectionId::LEN_MAX];
        let id = id.get_mut(..self.ids.len()).unwrap_or_default();
        id.fill_with(|| self.random.random());
        self.ids.mark(id);
        noq_proto::ConnectionId::new(id)
    }

    /// The engine asks before it answers a packet with a stateless reset.
    fn validate(&self, id: noq_proto::ConnectionId) -> Result<(), InvalidCid> {
        if self.ids.may_answer(&id) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        self.ids.len()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// The keys from which the tokens of stateless resets follow (RFC 9000 §10.3.2).
pub(crate) struct ResetKeys {
    /// The key of a machine alone, or of the fleet's first generation.
    first: hmac::Key,
    /// Those of the fleet's other generations, each with the rotation of its connection IDs.
    others: Vec<(u8, hmac::Key)>,
    id_len: usize,
}

impl ResetKeys {
    /// `None`: nothing is known that survives a restart.
    pub(crate) fn new(transport: &Transport) -> Option<Self> {
        let id_len = ConnectionIds::new(transport).len();
        let Some(fleet) = &transport.fleet else {
            let first = transport.reset_secret.as_ref()?.key();
            return Some(Self { first, others: Vec::new(), id_len });
        };
        let mut keys = fleet.reset_secrets().map(|(rotation, secret)| (rotation, secret.key()));
        let (_, first) = keys.next()?;
        Some(Self { first, others: keys.collect(), id_len })
    }

    /// The key for a connection ID, which says in which generation it was made.
    fn of(&self, id: &[u8]) -> &hmac::Key {
        let rotation = RoutableIds::rotation_of(id);
        let other = self.others.iter().find(|(of, _)| Some(*of) == rotation);
        other.map_or(&self.first, |(_, key)| key)
    }

    /// The token with which the engine of a node that has forgotten everything resets a packet with this connection
    /// ID or a longer one. It takes the first bytes for one of its own.
    pub(crate) fn token(&self, id: &[u8]) -> Option<ResetToken> {
        let id = id.get(..self.id_len)?;
        let signature = hmac::sign(self.of(id), id);
        signature.as_ref().first_chunk().copied().map(ResetToken::new)
    }
}

impl HmacKey for ResetKeys {
    fn sign(&self, id: &[u8], out: &mut [u8]) {
        self.of(id).sign(id, out);
    }

    fn signature_len(&self) -> usize {
        self.first.signature_len()
    }

    fn verify(&self, id: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        HmacKey::verify(self.of(id), id, signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::{FleetSecret, Generation, Neighbours, ResetSecret, Turn};

    fn generation(rotation: u8) -> Generation {
        let ids = RoutableIds::new(rotation, 2, 8, None).unwrap();
        Generation { ids, secret: FleetSecret([rotation; 32]) }
    }

    fn in_fleet(rotations: &[u8], steering: Steering) -> Transport {
        let generations = rotations.iter().map(|&rotation| generation(rotation)).collect();
        let fleet = Some(Fleet::new(vec![0xab, 0xcd], generations).unwrap());
        Transport { steering, fleet, ..Transport::default() }
    }

    #[test]
    fn a_seed_always_gives_the_same_connection_ids() {
        let mut ids = EngineIds::new(Some(7), ConnectionIds::default());
        for expected in
            [[190, 233, 134, 232, 205, 70, 153, 5], [182, 173, 224, 79, 210, 171, 138, 160]]
        {
            assert_eq!(*ids.generate_cid(), expected);
        }
    }

    #[test]
    fn the_ids_of_a_fleet_name_machine_and_thread() {
        let steering = Steering::new(2, 3, Turn::Second).unwrap();
        let mut ids = EngineIds::new(None, ConnectionIds::new(&in_fleet(&[4], steering)));
        for _ in 0..100 {
            let id = ids.generate_cid();
            assert_eq!(id.len(), ids.cid_len());
            assert_eq!((id[0] >> 5, &id[1..3]), (4, &[0xab, 0xcd][..]), "{id:?}");
            assert_eq!(steering.slot_of(id[11]), 5, "{id:?}");
        }
    }

    #[test]
    fn ids_of_the_other_process_are_left_alone_while_it_is_there() {
        let transport = |turn| Transport {
            steering: Steering::new(0, 2, turn).unwrap(),
            ..Transport::default()
        };
        let (old, new) = (transport(Turn::First), transport(Turn::Second));
        let mut old_ids = EngineIds::new(None, ConnectionIds::new(&old));
        let mut new_ids = EngineIds::new(None, ConnectionIds::new(&new));
        let (of_old, of_new) = (old_ids.generate_cid(), new_ids.generate_cid());
        assert!(new_ids.validate(of_old).is_ok(), "it may be reset, nobody has the connection");
        new.other_process.set(true);
        assert!(new_ids.validate(of_old).is_err());
        assert!(new_ids.validate(of_new).is_ok());
        new.other_process.set(false);
        assert!(new_ids.validate(of_old).is_ok());
    }

    #[test]
    fn a_machine_answers_for_another_only_when_that_is_gone() {
        let (own, other, stranger) = ([0xab, 0xcd], [0xab, 0xce], [0xab, 0xcf]);
        let of = |server_id: [u8; 2], rotation| {
            let mut id = [0; 12];
            RoutableIds::new(rotation, 2, 8, None).unwrap().encode(&server_id, &mut id);
            id
        };
        let mut transport = in_fleet(&[4, 3], Steering::ALONE);
        let neighbours = Neighbours::new([(other.to_vec(), ([10, 0, 0, 2], 443).into())]);
        transport.fleet = transport.fleet.map(|it| it.with_neighbours(neighbours.clone()));
        let ids = ConnectionIds::new(&transport);
        let answers = || [own, other, stranger].map(|it| ids.may_answer(&of(it, 4)));
        assert_eq!(answers(), [true, false, false]);
        assert_eq!(neighbours.take_asked().collect::<Vec<_>>(), [0], "somebody should look");
        neighbours.set_gone(0, true);
        assert_eq!(answers(), [true, true, false]);
        assert!(ids.may_answer(&of(other, 3)) && ids.may_answer(&of(own, 3)));
        assert!(!ids.may_answer(&of(own, 2)), "nobody knows whose an ID of this rotation is");
        neighbours.set_gone(0, false);
        assert_eq!(answers(), [true, false, false]);
    }

    #[test]
    fn the_generation_of_an_id_decides_the_token_of_its_reset() {
        let keys =
            |rotations: &[u8]| ResetKeys::new(&in_fleet(rotations, Steering::ALONE)).unwrap();
        let (old, both, new) = (keys(&[0]), keys(&[1, 0]), keys(&[1]));
        let (old_id, new_id) = ([9; 12], [0x29; 12]);
        assert_eq!(both.token(&old_id), old.token(&old_id));
        assert_eq!(both.token(&new_id), new.token(&new_id));
        assert_ne!(both.token(&new_id), old.token(&new_id));
        let mut signature = [0; 32];
        both.sign(&old_id, &mut signature);
        assert_eq!(old.token(&old_id), signature.first_chunk().copied().map(ResetToken::new));
        assert_eq!(both.token(&[9; 11]), None, "too short for an ID");
        assert_eq!(both.token(&[9; 20]), both.token(&[9; 12]), "only the first bytes count");
    }

    #[test]
    fn a_machine_alone_has_one_key_or_none() {
        assert!(ResetKeys::new(&Transport::default()).is_none());
        let reset_secret = Some(ResetSecret([1; 32]));
        let keys = ResetKeys::new(&Transport { reset_secret, ..Transport::default() }).unwrap();
        assert_ne!(keys.token(&[9; 8]), keys.token(&[8; 8]));
    }
}
