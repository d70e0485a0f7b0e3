//! Several machines that serve together, behind a load balancer that routes packets by their connection IDs.
//!
//! A connection ID names the machine ([draft-ietf-quic-load-balancers-21]), so that a client may change its address.
//! All machines derive the keys of Retry tokens and of stateless resets from the same secrets, so that any of them can
//! check a token, and can reset the connection of a machine that is gone ([`Neighbours`]).
//!
//! [draft-ietf-quic-load-balancers-21]: https://datatracker.ietf.org/doc/html/draft-ietf-quic-load-balancers-21

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use noq_proto::crypto::{CryptoError, HandshakeTokenKey};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Prk, Salt},
};
use tandem_wire::{ConnectionId, RoutableIds};

use super::ResetSecret;

/// What all machines of a fleet share during one period.
#[derive(Clone, Debug)]
pub struct Generation {
    /// How connection IDs are made.
    pub ids: RoutableIds,
    /// From which the keys of tokens follow.
    pub secret: FleetSecret,
}

/// A secret of 32 bytes. It is never printed.
#[derive(Clone)]
pub struct FleetSecret(pub [u8; 32]);

impl fmt::Debug for FleetSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetSecret(..)")
    }
}

/// One machine of a fleet.
#[derive(Clone, Debug)]
pub struct Fleet {
    member: Arc<FleetMember>,
    neighbours: Neighbours,
}

/// The other machines of a fleet, as far as they are known, and which of them are gone. All nodes of a machine share it
/// with the program that looks after the other machines.
///
/// A node answers a packet of another machine's connection only if that machine is gone. Otherwise the answer, a
/// stateless reset, could end a connection that the other machine has. By default no machine is known, and their
/// packets are never answered.
#[derive(Clone, Debug, Default)]
pub struct Neighbours(Arc<[Neighbour]>);

#[derive(Debug)]
struct Neighbour {
    server_id: Vec<u8>,
    address: SocketAddr,
    is_asked: AtomicBool,
    is_gone: AtomicBool,
}

impl Neighbours {
    /// Machines with these server IDs, at which each listens at an address of its own. All of them are there at first.
    pub fn new(machines: impl IntoIterator<Item = (Vec<u8>, SocketAddr)>) -> Self {
        let is_there = |(server_id, address)| Neighbour {
            server_id,
            address,
            is_asked: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
        };
        Self(machines.into_iter().map(is_there).collect())
    }

    /// The machines' own addresses, in the order of their indices.
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = SocketAddr> {
        self.0.iter().map(|it| it.address)
    }

    /// The machines, by their index, whose packets have come here since the last call. It is not known whether they are
    /// there.
    pub fn take_asked(&self) -> impl Iterator<Item = usize> {
        let asked = |it: &Neighbour| it.is_asked.swap(false, Relaxed);
        self.0.iter().enumerate().filter(move |(_, it)| asked(it)).map(|(index, _)| index)
    }

    /// Notes whether the machine with this index, if there is one, is gone.
    pub fn set_gone(&self, index: usize, is_gone: bool) {
        if let Some(neighbour) = self.0.get(index) {
            neighbour.is_gone.store(is_gone, Relaxed);
        }
    }

    /// Whether the machine with this server ID is known to be gone. Also notes that a packet for it has come.
    pub fn is_gone(&self, server_id: &[u8]) -> bool {
        let Some(neighbour) = self.with_id(server_id) else {
            return false; // it is none of the fleet
        };
        neighbour.is_asked.store(true, Relaxed);
        neighbour.is_gone.load(Relaxed)
    }

    fn with_id(&self, server_id: &[u8]) -> Option<&Neighbour> {
        self.0.iter().find(|it| it.server_id == server_id)
    }
}

#[derive(Debug)]
struct FleetMember {
    server_id: Vec<u8>,
    /// The one in use, and others whose tokens are known. There is at least one.
    current: Generation,
    others: Vec<Generation>,
}

/// Why a machine cannot be a member of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    /// There is no generation.
    #[error("there is no generation")]
    NoGeneration,
    /// The server ID has another length than the generations say.
    #[error("the server ID has {len} bytes, and the fleet's have {expected}")]
    ServerId {
        /// The length of the server ID.
        len: usize,
        /// The length that the generations say.
        expected: usize,
    },
    /// Two generations differ in the length of their connection IDs. A packet with a short header does not say how long
    /// its ID is.
    #[error("all generations need connection IDs of the same length")]
    Lengths,
    /// Two generations have the same rotation.
    #[error("two generations have the rotation {0}")]
    Rotation(u8),
    /// No byte is left for the thread.
    #[error(
        "server ID and nonce have {0} bytes together; at most 18 leave a byte for the number of the thread"
    )]
    TooLong(usize),
}

impl Fleet {
    /// The machine with this server ID. The first generation is in use. The others, which come later or have been in
    /// use before, are known.
    pub fn new(server_id: Vec<u8>, generations: Vec<Generation>) -> Result<Self, FleetError> {
        let mut seen = [false; 8];
        for Generation { ids, .. } in &generations {
            let rotation = ids.rotation();
            let seen = seen.get_mut(usize::from(rotation)).ok_or(FleetError::Rotation(rotation))?;
            if std::mem::replace(seen, true) {
                return Err(FleetError::Rotation(rotation));
            }
        }
        let mut generations = generations.into_iter();
        let current = generations.next().ok_or(FleetError::NoGeneration)?;
        let others: Vec<_> = generations.collect();
        let (len, expected) = (server_id.len(), current.ids.server_id_len());
        if len != expected {
            return Err(FleetError::ServerId { len, expected });
        }
        let lengths = |ids: &RoutableIds| (ids.id_len(), ids.server_id_len());
        if others.iter().any(|it| lengths(&it.ids) != lengths(&current.ids)) {
            return Err(FleetError::Lengths);
        }
        if current.ids.id_len() >= ConnectionId::LEN_MAX {
            return Err(FleetError::TooLong(current.ids.id_len() - 1));
        }
        let member = Arc::new(FleetMember { server_id, current, others });
        Ok(Self { member, neighbours: Neighbours::default() })
    }

    /// The same machine, with what is known of the others.
    #[must_use]
    pub fn with_neighbours(self, neighbours: Neighbours) -> Self {
        Self { neighbours, ..self }
    }

    /// What is known of the other machines.
    pub const fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    /// Whether this machine may say that the connection of an ID does not exist.
    pub(super) fn answers_for(&self, id: &[u8]) -> bool {
        let named = self.machine_of(id);
        named.is_some_and(|it| it == self.member.server_id || self.neighbours.is_gone(&it))
    }

    /// Whether the other machine that an ID names is gone. `None`: the ID names no other machine that is known.
    pub(super) fn is_owner_gone(&self, id: &[u8]) -> Option<bool> {
        Some(self.neighbours.with_id(&self.machine_of(id)?)?.is_gone.load(Relaxed))
    }

    /// The server ID in a connection ID.
    fn machine_of(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.generations().find_map(|it| it.ids.server_id(id))
    }

    /// The length of a connection ID in bytes: that of QUIC-LB, and a byte for the thread.
    pub fn id_len(&self) -> usize {
        self.thread_at() + 1
    }

    /// Which byte of a connection ID says the thread, counted from 0. §5.3: "The server MAY append additional
    /// bytes to the connection ID [...] for its own use."
    pub fn thread_at(&self) -> usize {
        self.member.current.ids.id_len()
    }

    /// Makes random bytes a connection ID of this machine.
    pub(super) fn mark(&self, id: &mut [u8]) {
        self.member.current.ids.encode(&self.member.server_id, id);
    }

    fn generations(&self) -> impl Iterator<Item = &Generation> {
        std::iter::once(&self.member.current).chain(&self.member.others)
    }

    /// The secrets of stateless resets, each with the rotation of the connection IDs that it is for. The first one is
    /// also for all other IDs.
    pub(super) fn reset_secrets(&self) -> impl Iterator<Item = (u8, ResetSecret)> {
        self.generations().map(|generation| {
            let secret = generation.secret.derive(b"tandem stateless reset");
            (generation.ids.rotation(), ResetSecret(secret))
        })
    }

    /// The key of Retry tokens and of address tokens.
    pub(super) fn token_key(&self) -> TokenKey {
        let secrets = self.generations().map(|it| it.secret.derive(b"tandem retry token"));
        TokenKey(secrets.map(|secret| Salt::new(HKDF_SHA256, &[]).extract(&secret)).collect())
    }
}

impl FleetSecret {
    fn derive(&self, label: &[u8]) -> [u8; 32] {
        expand(&Salt::new(HKDF_SHA256, &[]).extract(&self.0), label)
    }
}

fn expand(key: &Prk, info: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    let info = [info];
    let filled = key.expand(&info, HKDF_SHA256).and_then(|expanded| expanded.fill(&mut bytes));
    filled.expect("32 bytes are what HKDF-SHA-256 gives at once");
    bytes
}

/// Seals tokens with the first key, and opens those of any. Each token has a key of its own, which follows from a
/// random number of 128 bits.
pub(super) struct TokenKey(Vec<Prk>);

impl TokenKey {
    /// A key that follows from this secret alone.
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        Self(vec![Salt::new(HKDF_SHA256, &[]).extract(secret)])
    }

    fn of_token(key: &Prk, number: u128) -> Result<LessSafeKey, CryptoError> {
        let key = expand(key, &number.to_be_bytes());
        UnboundKey::new(&AES_256_GCM, &key).map(LessSafeKey::new).map_err(|_| CryptoError)
    }

    /// No key seals a second token.
    fn nonce() -> Nonce {
        Nonce::assume_unique_for_key([0; 12])
    }
}

impl HandshakeTokenKey for TokenKey {
    fn seal(&self, number: u128, data: &mut Vec<u8>) -> Result<(), CryptoError> {
        let key = Self::of_token(self.0.first().ok_or(CryptoError)?, number)?;
        key.seal_in_place_append_tag(Self::nonce(), Aad::empty(), data).map_err(|_| CryptoError)
    }

    fn open<'a>(&self, number: u128, data: &'a mut [u8]) -> Result<&'a [u8], CryptoError> {
        for key in &self.0 {
            // A key that does not fit leaves the data in an undefined state.
            let mut copy = data.to_vec();
            let opened =
                Self::of_token(key, number)?.open_in_place(Self::nonce(), Aad::empty(), &mut copy);
            if let Ok(opened) = opened {
                let data = data.get_mut(..opened.len()).ok_or(CryptoError)?;
                data.copy_from_slice(opened);
                return Ok(data);
            }
        }
        Err(CryptoError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(rotation: u8, secret: u8) -> Generation {
        let ids = RoutableIds::new(rotation, 2, 8, Some(&[secret; 16])).unwrap();
        Generation { ids, secret: FleetSecret([secret; 32]) }
    }

    fn fleet(generations: &[(u8, u8)]) -> Fleet {
        let generations =
            generations.iter().map(|&(rotation, secret)| generation(rotation, secret));
        Fleet::new(vec![1, 2], generations.collect()).unwrap()
    }

    #[test]
    fn a_token_of_each_known_generation_is_opened() {
        let (old, both, new) = (fleet(&[(0, 7)]), fleet(&[(1, 8), (0, 7)]), fleet(&[(1, 8)]));
        let sealed = |fleet: &Fleet| {
            let mut token = b"192.0.2.1:443".to_vec();
            fleet.token_key().seal(99, &mut token).unwrap();
            token
        };
        let opens = |fleet: &Fleet, number, mut token: Vec<u8>| {
            let key = fleet.token_key();
            key.open(number, &mut token).is_ok_and(|opened| opened == b"192.0.2.1:443")
        };
        assert!(opens(&both, 99, sealed(&old)) && opens(&both, 99, sealed(&both)));
        assert!(opens(&new, 99, sealed(&both)), "the first generation seals");
        assert!(!opens(&new, 99, sealed(&old)) && !opens(&old, 99, sealed(&both)));
        assert!(!opens(&both, 98, sealed(&old)), "the number belongs to the token");
        let mut forged = sealed(&old);
        forged[3] ^= 1;
        assert!(!opens(&both, 99, forged));
        assert!(!opens(&both, 99, vec![]));
    }

    #[test]
    fn generations_that_contradict_each_other_are_refused() {
        let new = |server_id: &[u8], generations: Vec<Generation>| {
            Fleet::new(server_id.to_vec(), generations).err()
        };
        assert_eq!(new(&[1, 2], vec![]), Some(FleetError::NoGeneration));
        let expected = Some(FleetError::ServerId { len: 1, expected: 2 });
        assert_eq!(new(&[1], vec![generation(0, 1)]), expected);
        let twice = vec![generation(3, 1), generation(3, 2)];
        assert_eq!(new(&[1, 2], twice), Some(FleetError::Rotation(3)));
        let longer = RoutableIds::new(1, 2, 9, None).unwrap();
        let longer = Generation { ids: longer, secret: FleetSecret([1; 32]) };
        assert_eq!(new(&[1, 2], vec![generation(0, 1), longer]), Some(FleetError::Lengths));
        let full = RoutableIds::new(0, 2, 17, None).unwrap();
        let full = Generation { ids: full, secret: FleetSecret([1; 32]) };
        assert_eq!(new(&[1, 2], vec![full]), Some(FleetError::TooLong(19)));
    }

    #[test]
    fn no_secret_is_printed() {
        assert!(!format!("{:?}", fleet(&[(0, 173)])).contains("173"));
    }
}
