//! Connection IDs that name a server, so that load balancers can route by them
//! ([draft-ietf-quic-load-balancers-21]).
//!
//! [draft-ietf-quic-load-balancers-21]: https://datatracker.ietf.org/doc/html/draft-ietf-quic-load-balancers-21

use std::{fmt, ops::RangeInclusive};

use aes::{
    Aes128Dec, Aes128Enc, Block,
    cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit},
};

/// The length of the part that is one block of AES and is encrypted in one pass (§5.4.1).
const BLOCK: usize = 16;

/// How connection IDs of one configuration of QUIC-LB are made (§5):
///
/// ```text
/// First Octet (8) = Config Rotation (3), Random Bits (5)
/// Server ID (8..), Nonce (32..)                           encrypted, if there is a key
/// ```
#[derive(Clone)]
pub struct RoutableIds {
    rotation: u8,
    server_id_len: usize,
    nonce_len: usize,
    cipher: Option<ServerIdCipher>,
}

/// Why a configuration of QUIC-LB is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoutableIdsError {
    /// The rotation is reserved or too large.
    #[error("the config rotation is {0}; 0 to 6 are allowed")]
    Rotation(u8),
    /// The server ID is empty.
    #[error("the server ID is empty; it has at least one byte")]
    NoServerId,
    /// The nonce is too short.
    #[error("the nonce has {0} bytes; at least 4 are needed")]
    Nonce(usize),
    /// The connection ID would be too long.
    #[error("server ID and nonce have {0} bytes together; at most 19 fit a connection ID")]
    TooLong(usize),
}

impl RoutableIds {
    /// The allowed values of the config rotation. §3.1: "A configuration MUST NOT use the reserved identifier
    /// 0b111".
    pub const ROTATIONS: RangeInclusive<u8> = 0..=6;

    /// The bytes of the key.
    pub const KEY_LEN: usize = BLOCK;

    /// A configuration. Lengths are in bytes. Without a key everybody can read the server ID.
    pub fn new(
        rotation: u8,
        server_id_len: usize,
        nonce_len: usize,
        key: Option<&[u8; Self::KEY_LEN]>,
    ) -> Result<Self, RoutableIdsError> {
        if !Self::ROTATIONS.contains(&rotation) {
            return Err(RoutableIdsError::Rotation(rotation));
        }
        // §5.3: "The nonce length MUST be at least 4 octets. The server ID length MUST be at least 1 octet."
        if server_id_len == 0 {
            return Err(RoutableIdsError::NoServerId);
        }
        if nonce_len < 4 {
            return Err(RoutableIdsError::Nonce(nonce_len));
        }
        // §5.3: "the server ID and nonce lengths MUST sum to 19 octets or less"
        let len = server_id_len.saturating_add(nonce_len);
        if len > 19 {
            return Err(RoutableIdsError::TooLong(len));
        }
        let cipher = key.map(|key| ServerIdCipher::new(key, len));
        Ok(Self { rotation, server_id_len, nonce_len, cipher })
    }

    /// The length of a connection ID in bytes: 6 to 20.
    pub const fn id_len(&self) -> usize {
        1 + self.server_id_len + self.nonce_len
    }

    /// The config rotation.
    pub const fn rotation(&self) -> u8 {
        self.rotation
    }

    /// The length of the server ID in bytes.
    pub const fn server_id_len(&self) -> usize {
        self.server_id_len
    }

    /// The config rotation of a connection ID, which its first three bits say. `None` is the empty ID.
    pub fn rotation_of(id: &[u8]) -> Option<u8> {
        id.first().map(|first| first >> 5)
    }

    /// Makes a connection ID of random bytes: writes rotation and server ID into them, and encrypts them. The rest
    /// of `id` stays as it is.
    ///
    /// # Panics
    ///
    /// `id` is shorter than [`Self::id_len`], or the server ID has another length than in this configuration.
    pub fn encode(&self, server_id: &[u8], id: &mut [u8]) {
        let (id, _) = id.split_at_mut(self.id_len());
        let (first, block) = id.split_at_mut(1);
        for first in first {
            *first = *first & 0x1f | self.rotation << 5;
        }
        block.split_at_mut(self.server_id_len).0.copy_from_slice(server_id);
        if let Some(cipher) = &self.cipher {
            cipher.encrypt(block);
        }
    }

    /// The server ID in a connection ID, as a load balancer finds it. `None`: the ID is of another configuration, or
    /// too short.
    pub fn server_id(&self, id: &[u8]) -> Option<Vec<u8>> {
        let (&first, rest) = id.split_first()?;
        let mut block = rest.get(..self.id_len() - 1)?.to_vec();
        if first >> 5 != self.rotation {
            return None;
        }
        if let Some(cipher) = &self.cipher {
            cipher.decrypt(&mut block);
        }
        block.truncate(self.server_id_len);
        Some(block)
    }
}

/// The key is not shown.
impl fmt::Debug for RoutableIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rotation, server_id_len, nonce_len, cipher } = self;
        f.debug_struct("RoutableIds")
            .field("rotation", rotation)
            .field("server_id_len", server_id_len)
            .field("nonce_len", nonce_len)
            .field("is_encrypted", &cipher.is_some())
            .finish_non_exhaustive()
    }
}

/// The encryption of server ID and nonce (§5.4).
#[derive(Clone)]
struct ServerIdCipher {
    aes: Aes128Enc,
    /// Decrypts what is one block.
    inverse: Aes128Dec,
    /// The bytes of server ID and nonce.
    len: usize,
}

/// One half of server ID and nonce. If their length is odd, the halves share a byte: the left one has its first
/// four bits, and the right one the others.
type Half = [u8; 10];

impl ServerIdCipher {
    fn new(key: &[u8; BLOCK], len: usize) -> Self {
        let key = &(*key).into();
        Self { aes: Aes128Enc::new(key), inverse: Aes128Dec::new(key), len }
    }

    fn encrypt(&self, block: &mut [u8]) {
        if let Ok(block) = <&mut [u8; BLOCK]>::try_from(&mut *block) {
            self.aes.encrypt_block(block.into());
            return;
        }
        let (mut left, mut right) = self.split(block);
        self.pass(1, &left, &mut right, FeistelHalf::Right);
        self.pass(2, &right, &mut left, FeistelHalf::Left);
        self.pass(3, &left, &mut right, FeistelHalf::Right);
        self.pass(4, &right, &mut left, FeistelHalf::Left);
        self.join(&left, &right, block);
    }

    fn decrypt(&self, block: &mut [u8]) {
        if let Ok(block) = <&mut [u8; BLOCK]>::try_from(&mut *block) {
            self.inverse.decrypt_block(block.into());
            return;
        }
        let (mut left, mut right) = self.split(block);
        self.pass(4, &right, &mut left, FeistelHalf::Left);
        self.pass(3, &left, &mut right, FeistelHalf::Right);
        self.pass(2, &right, &mut left, FeistelHalf::Left);
        self.pass(1, &left, &mut right, FeistelHalf::Right);
        self.join(&left, &right, block);
    }

    const fn half_len(&self) -> usize {
        self.len.div_ceil(2)
    }

    fn split(&self, block: &[u8]) -> (Half, Half) {
        let (mut left, mut right) = (Half::default(), Half::default());
        let len = self.half_len();
        let (front, back) = (block.iter().take(len), block.iter().skip(block.len() - len));
        left.iter_mut().zip(front).for_each(|(to, from)| *to = *from);
        right.iter_mut().zip(back).for_each(|(to, from)| *to = *from);
        self.clear(&mut left, FeistelHalf::Left);
        self.clear(&mut right, FeistelHalf::Right);
        (left, right)
    }

    fn join(&self, left: &Half, right: &Half, block: &mut [u8]) {
        let right_at = block.len() - self.half_len();
        block.fill(0);
        for (to, from) in block.iter_mut().zip(left.iter().take(self.half_len())) {
            *to |= from;
        }
        for (to, from) in block.iter_mut().skip(right_at).zip(right) {
            *to |= from;
        }
    }

    /// One round: `to` is changed by the encryption of `from`.
    fn pass(&self, pass: u8, from: &Half, to: &mut Half, side: FeistelHalf) {
        // expand(): the half, zeroes, the length and the pass
        let mut block = [0; BLOCK];
        block.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        let [.., len, last] = &mut block;
        *len = u8::try_from(self.len).unwrap_or(u8::MAX);
        *last = pass;
        let mut block = Block::from(block);
        self.aes.encrypt_block(&mut block);
        to.iter_mut().take(self.half_len()).zip(block).for_each(|(to, bits)| *to ^= bits);
        self.clear(to, side);
    }

    /// Clears the bits of the byte that both halves share, which belong to the other half.
    fn clear(&self, half: &mut Half, side: FeistelHalf) {
        if self.len.is_multiple_of(2) {
            return;
        }
        let (at, mask) = match side {
            FeistelHalf::Left => (self.half_len() - 1, 0xf0),
            FeistelHalf::Right => (0, 0x0f),
        };
        if let Some(shared) = half.get_mut(at) {
            *shared &= mask;
        }
    }
}

#[derive(Clone, Copy)]
enum FeistelHalf {
    Left,
    Right,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    /// Encodes with the length of the ID in its first byte (§3.3), as the vectors do.
    fn encode(ids: &RoutableIds, server_id: &[u8], nonce: &[u8]) -> Vec<u8> {
        let length = u8::try_from(ids.id_len() - 1).unwrap();
        let mut id = [&[length], server_id, nonce].concat();
        ids.encode(server_id, &mut id);
        id
    }

    #[test]
    fn the_vectors_of_the_draft() {
        const KEY: &str = "8f95f09245765f80256934e50c66207f";
        for (rotation, key, server_id, nonce, expected) in [
            (0, None, "c4605e", "4504cc4f", "07c4605e4504cc4f"),
            // The draft prints it as 20a350d28b4203487d970b, with a nonce of nine digits.
            (1, None, "350d28b420", "03487d970b", "2a350d28b42003487d970b"),
            (0, Some(KEY), "ed793a", "ee080dbf", "0720b1d07b359d3c"),
            (
                1,
                Some(KEY),
                "ed793a51d49b8f5fab65",
                "ee080dbf48",
                "2fcc381bc74cb4fbad2823a3d1f8fed2",
            ),
            (
                2,
                Some(KEY),
                "ed793a51d49b8f5f",
                "ee080dbf48c0d1e5",
                "504dd2d05a7b0de9b2b9907afb5ecf8cc3",
            ),
            (
                3,
                Some(KEY),
                "ed793a51d49b8f5fab",
                "ee080dbf48c0d1e55d",
                "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc",
            ),
            // the example of §5.4.2.4
            (0, Some("fdf726a9893ec05c0632d3956680baf0"), "31441a", "9c69c275", "0767947d29be054a"),
        ] {
            let (server_id, nonce) = (bytes(server_id), bytes(nonce));
            let key: Option<[u8; 16]> = key.map(|key| bytes(key).try_into().unwrap());
            let ids =
                RoutableIds::new(rotation, server_id.len(), nonce.len(), key.as_ref()).unwrap();
            let id = encode(&ids, &server_id, &nonce);
            let expected = bytes(expected);
            // The draft prints the last one with the rotation 0.
            let same = |id: &[u8]| (id[0] & 0x1f, id[1..].to_vec());
            assert_eq!(same(&id), same(&expected), "{server_id:x?}");
            assert_eq!(RoutableIds::rotation_of(&id), Some(rotation));
            assert_eq!(ids.server_id(&id), Some(server_id));
        }
    }

    #[test]
    fn lengths_and_rotations_beyond_the_drafts_are_refused() {
        use RoutableIdsError::{NoServerId, Nonce, Rotation, TooLong};
        for (rotation, server_id_len, nonce_len, expected) in [
            (6, 1, 4, None),
            (7, 1, 4, Some(Rotation(7))),
            (0, 0, 4, Some(NoServerId)),
            (0, 1, 3, Some(Nonce(3))),
            (0, 1, 18, None),
            (0, 15, 4, None),
            (0, 2, 18, Some(TooLong(20))),
            (0, usize::MAX, 4, Some(TooLong(usize::MAX))),
        ] {
            let ids = RoutableIds::new(rotation, server_id_len, nonce_len, None);
            assert_eq!(ids.err(), expected, "{rotation}, {server_id_len}, {nonce_len}");
        }
    }

    #[test]
    fn no_key_is_printed() {
        let ids = RoutableIds::new(0, 2, 8, Some(&[0xab; 16])).unwrap();
        assert!(!format!("{ids:?}").contains("171"), "{ids:?}");
    }

    proptest! {
        #[test]
        fn a_load_balancer_finds_the_server_id_of_each_connection_id(
            rotation in RoutableIds::ROTATIONS,
            (server_id, nonce_len) in (1_usize..=15).prop_flat_map(|len| {
                (proptest::collection::vec(any::<u8>(), len), 4..=19 - len)
            }),
            key in proptest::option::of(any::<[u8; 16]>()),
            random in any::<[u8; 20]>(),
        ) {
            let ids = RoutableIds::new(rotation, server_id.len(), nonce_len, key.as_ref()).unwrap();
            let mut id = random;
            ids.encode(&server_id, &mut id);
            prop_assert_eq!(ids.server_id(&id), Some(server_id));
            prop_assert_eq!(&id[ids.id_len()..], &random[ids.id_len()..], "what is behind stays");
            prop_assert_eq!(id[0] & 0x1f, random[0] & 0x1f);
        }
    }
}
