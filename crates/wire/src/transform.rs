//! The transforms of packets in forwarded mode: what client and proxy do to the QUIC packets of a
//! connection between client and target before they send them to each other
//! ([draft-ietf-masque-quic-proxy §6]).
//!
//! [draft-ietf-masque-quic-proxy §6]: https://datatracker.ietf.org/doc/html/draft-ietf-masque-quic-proxy-08#section-6

use std::{fmt, mem, str::FromStr};

use aes::{
    Aes128Dec, Aes128Enc,
    cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit, consts::U16},
};
use ctr::{
    CtrCore,
    cipher::{InnerIvInit, StreamCipherCore},
    flavors::Ctr128BE,
};

use crate::{ConnectionId, StrangerText};

/// The bit of a QUIC packet's first byte that is set in long headers ([RFC 8999 §5.1]).
///
/// [RFC 8999 §5.1]: https://www.rfc-editor.org/rfc/rfc8999#section-5.1
const HEADER_FORM: u8 = 0x80;

/// The length of a block of AES, and so of the initialization vector (IV) in a packet, in bytes.
const BLOCK_LEN: usize = 16;

type Block = [u8; BLOCK_LEN];

/// Why all parts of a packet are there: see [`Cipher::check`].
const CHECKED: &str = "the length of the packet was checked";

/// A transform of packets ([draft §6.3]).
///
/// [draft §6.3]: https://datatracker.ietf.org/doc/html/draft-ietf-masque-quic-proxy-08#section-6.3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// AES-128 in counter mode, without authentication, so that an observer of both sides of a
    /// proxy cannot compare packets (§6.3.2).
    ScrambleDt,
    /// Nothing but the connection ID changes (§6.3.1).
    Identity,
}

impl Transform {
    /// Every transform; the ones that hide more come first.
    pub const ALL: [Self; 2] = [Self::ScrambleDt, Self::Identity];

    /// Returns the name that fields use.
    pub const fn as_str(self) -> &'static str {
        match self {
            // The draft's §6.3.2: deployments of this version of the scramble transform "MUST use
            // the value "scramble-dt"."
            Self::ScrambleDt => "scramble-dt",
            Self::Identity => "identity",
        }
    }

    /// Whether each side needs the key of the other one.
    pub const fn needs_key(self) -> bool {
        match self {
            Self::ScrambleDt => true,
            Self::Identity => false,
        }
    }
}

impl fmt::Display for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Transform {
    type Err = UnknownTransform;

    fn from_str(name: &str) -> Result<Self, UnknownTransform> {
        let transform = Self::ALL.into_iter().find(|transform| transform.as_str() == name);
        transform.ok_or_else(|| UnknownTransform { seen: name.into() })
    }
}

/// The error for a text that is not the name of a transform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seen:?} is not a transform; allowed: scramble-dt, identity")]
pub struct UnknownTransform {
    /// The text.
    pub seen: StrangerText,
}

/// The key of [`Transform::ScrambleDt`] for one direction: 32 random bytes, which the sender of the
/// packets has generated. They are secret, so that [`fmt::Debug`] hides them.
#[derive(Clone, PartialEq, Eq)]
pub struct ScrambleKey([u8; Self::LEN]);

impl ScrambleKey {
    /// The length of a key in bytes.
    pub const LEN: usize = 2 * BLOCK_LEN;

    /// Creates a key.
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the secret bytes.
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Splits the key into that of the counter mode and that of the IV, the draft's k1 and k2.
    fn halves(&self) -> (Block, Block) {
        let halves = self.0.first_chunk().copied().zip(self.0.last_chunk().copied());
        halves.expect("a key has two blocks")
    }
}

impl fmt::Debug for ScrambleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScrambleKey(..)")
    }
}

/// The error for a transform that needs a key, if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("transform {0} needs a key")]
pub struct NoTransformKey(pub Transform);

/// The reason why a packet cannot be forwarded. It may go through the tunnel instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransformError {
    /// The packet has a long header.
    #[error("the packet has a long header")]
    LongHeader,
    /// The packet ends before what the transform needs.
    #[error("the packet has {len} bytes; at least {len_min} are needed")]
    TooShort {
        /// The length of the packet in bytes.
        len: usize,
        /// The least possible length in bytes.
        len_min: usize,
    },
}

/// Prepares the packets that a client or a proxy sends in forwarded mode.
#[derive(Debug)]
pub struct Encoder(Cipher<Aes128Enc>);

/// Restores the packets that a client or a proxy receives in forwarded mode.
#[derive(Debug)]
pub struct Decoder(Cipher<Aes128Dec>);

/// The expanded keys. `K` encrypts or decrypts the IV.
#[derive(Debug)]
enum Cipher<K> {
    ScrambleDt(Box<ScrambleDt<K>>),
    Identity,
}

#[derive(Debug)]
struct ScrambleDt<K> {
    stream: Aes128Enc,
    iv: K,
}

impl Encoder {
    /// Expands the key, which is that of this side.
    ///
    /// # Errors
    ///
    /// The transform needs a key, and there is none.
    pub fn new(transform: Transform, key: Option<&ScrambleKey>) -> Result<Self, NoTransformKey> {
        Cipher::new(transform, key).map(Self)
    }

    /// Appends a packet to `out` with `vcid` in the place of its connection ID, which has `cid_len`
    /// bytes, and transforms it. The bytes after the IDs are copied once.
    ///
    /// # Errors
    ///
    /// The packet must not or cannot be forwarded. Then `out` does not change.
    pub fn encode(
        &self,
        packet: &[u8],
        cid_len: usize,
        vcid: &ConnectionId,
        out: &mut Vec<u8>,
    ) -> Result<(), TransformError> {
        self.0.check(packet, cid_len)?;
        self.apply(vcid.len(), copy_with_id(packet, cid_len, vcid, out));
        Ok(())
    }

    /// Does the same as [`encode`](Self::encode) to a packet whose connection ID is as long as
    /// `vcid`, without a copy.
    ///
    /// # Errors
    ///
    /// The packet must not or cannot be forwarded. Then it does not change.
    pub fn encode_in_place(
        &self,
        packet: &mut [u8],
        vcid: &ConnectionId,
    ) -> Result<(), TransformError> {
        self.0.check(packet, vcid.len())?;
        put_id(packet, vcid);
        self.apply(vcid.len(), packet);
        Ok(())
    }

    fn apply(&self, vcid_len: usize, packet: &mut [u8]) {
        if let Cipher::ScrambleDt(keys) = &self.0 {
            keys.apply(vcid_len, packet, |key, iv| {
                let mut sent = iv.into();
                key.encrypt_block(&mut sent);
                (iv, sent.into())
            });
        }
    }
}

impl Decoder {
    /// Expands the key, which is that of the peer.
    ///
    /// # Errors
    ///
    /// The transform needs a key, and there is none.
    pub fn new(transform: Transform, key: Option<&ScrambleKey>) -> Result<Self, NoTransformKey> {
        Cipher::new(transform, key).map(Self)
    }

    /// Inverts the transform of a packet whose virtual connection ID has `vcid_len` bytes, and
    /// appends it to `out` with `cid` in the place of that ID. What it appends has a short header.
    /// The bytes after the IDs are copied once.
    ///
    /// # Errors
    ///
    /// The packet cannot have been forwarded. Then `out` does not change.
    pub fn decode(
        &self,
        packet: &[u8],
        vcid_len: usize,
        cid: &ConnectionId,
        out: &mut Vec<u8>,
    ) -> Result<(), TransformError> {
        self.0.check(packet, vcid_len)?;
        self.apply(cid.len(), copy_with_id(packet, vcid_len, cid, out));
        Ok(())
    }

    /// Does the same as [`decode`](Self::decode) to a packet whose virtual connection ID is as long
    /// as `cid`, without a copy.
    ///
    /// # Errors
    ///
    /// The packet cannot have been forwarded. Then it does not change.
    pub fn decode_in_place(
        &self,
        packet: &mut [u8],
        cid: &ConnectionId,
    ) -> Result<(), TransformError> {
        self.0.check(packet, cid.len())?;
        put_id(packet, cid);
        self.apply(cid.len(), packet);
        Ok(())
    }

    fn apply(&self, cid_len: usize, packet: &mut [u8]) {
        if let Cipher::ScrambleDt(keys) = &self.0 {
            keys.apply(cid_len, packet, |key, sent| {
                let mut iv = sent.into();
                key.decrypt_block(&mut iv);
                (iv.into(), iv.into())
            });
        }
    }
}

impl<K: KeyInit<KeySize = U16>> Cipher<K> {
    fn new(transform: Transform, key: Option<&ScrambleKey>) -> Result<Self, NoTransformKey> {
        Ok(match transform {
            Transform::ScrambleDt => {
                let (stream, iv) = key.ok_or(NoTransformKey(transform))?.halves();
                Self::ScrambleDt(Box::new(ScrambleDt {
                    stream: Aes128Enc::new(&stream.into()),
                    iv: K::new(&iv.into()),
                }))
            }
            Transform::Identity => Self::Identity,
        })
    }
}

impl<K> Cipher<K> {
    /// Checks that a packet has a short header, and all that the transform needs after its
    /// connection ID of `id_len` bytes.
    fn check(&self, packet: &[u8], id_len: usize) -> Result<(), TransformError> {
        // The draft's §6.1: "QUIC long header packets MUST NOT be forwarded."
        if packet.first().is_some_and(|first| first & HEADER_FORM != 0) {
            return Err(TransformError::LongHeader);
        }
        let after_id = match self {
            Self::ScrambleDt(_) => BLOCK_LEN,
            Self::Identity => 0,
        };
        let (len, len_min) = (packet.len(), id_len.saturating_add(1 + after_id));
        if len < len_min { Err(TransformError::TooShort { len, len_min }) } else { Ok(()) }
    }
}

impl<K> ScrambleDt<K> {
    /// Applies the transform or its inverse to a packet. `ivs` maps the IV in the packet to that of
    /// the counter mode and that of the result.
    fn apply(&self, id_len: usize, packet: &mut [u8], ivs: impl Fn(&K, Block) -> (Block, Block)) {
        let (header, after_header) = packet.split_first_mut().expect(CHECKED);
        let after_id = after_header.get_mut(id_len..).expect(CHECKED);
        let (iv, iv_of_result) = ivs(&self.iv, *after_id.first_chunk().expect(CHECKED));
        // The counter mode covers the header byte and the bytes after the IV. The header byte takes
        // the place of the IV's last byte meanwhile, because one run over all of them is faster
        // than two.
        let (_, stream) = after_id.split_at_mut(BLOCK_LEN - 1);
        mem::swap(header, stream.first_mut().expect(CHECKED));
        CtrCore::<_, Ctr128BE>::inner_iv_init(&self.stream, &iv.into())
            .apply_keystream_partial(stream.into());
        let place: &mut Block = after_id.first_chunk_mut().expect(CHECKED);
        let [.., last] = place;
        // The draft's §6.3.2: "This ensures that the Header Form bit is zero, as required by the
        // QUIC invariants".
        *header = *last & !HEADER_FORM;
        *place = iv_of_result;
    }
}

/// Appends a packet with another connection ID to `out`, and returns the copy.
fn copy_with_id<'a>(
    packet: &[u8],
    id_len: usize,
    id: &ConnectionId,
    out: &'a mut Vec<u8>,
) -> &'a mut [u8] {
    let start = out.len();
    let (header, after_header) = packet.split_first().expect(CHECKED);
    let after_id = after_header.get(id_len..).expect(CHECKED);
    // The draft's §6.1: "Prior to sending a forwarded mode packet, the sender MUST replace the
    // Connection ID with the Virtual Connection ID." The length of the packet changes by the
    // difference of their lengths.
    out.reserve(1 + id.len() + after_id.len());
    out.push(*header);
    out.extend_from_slice(id);
    out.extend_from_slice(after_id);
    out.split_at_mut(start).1
}

/// Overwrites the connection ID of a packet with one of the same length.
fn put_id(packet: &mut [u8], id: &ConnectionId) {
    packet.get_mut(1..=id.len()).expect(CHECKED).copy_from_slice(id);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // The example of the draft's appendix A.
    const CID: &str = "002e9184cb0022ca7aecf1128c91d809e1b6853f";
    const VCID: &str = "0123456789abcdef0123456789abcdef01234567";
    const PACKET: &str = "50002e9184cb0022ca7aecf1128c91d8\
                          09e1b6853f1ba3bed7043a2163202304\
                          8def32f4f8f260c290490413d24ea6";
    const IDENTITY: &str = "500123456789abcdef0123456789abcd\
                            ef012345671ba3bed7043a2163202304\
                            8def32f4f8f260c290490413d24ea6";
    const KEY: &str = "f13a915f96fb8919d9d8655488ffea5778cac8cffbc27cd38c173bcbad955cff";
    const SCRAMBLED: &str = "320123456789abcdef0123456789abcd\
                             ef012345678ebe6906e16ec5fc90a02c\
                             0109994c3fed03f9d5d88c5f408bb6";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<_> = hex.chars().map(|digit| digit.to_digit(16).unwrap()).collect();
        digits.chunks(2).map(|pair| u8::try_from(16 * pair[0] + pair[1]).unwrap()).collect()
    }

    fn id(bytes: &[u8]) -> ConnectionId {
        ConnectionId::try_from(bytes).unwrap()
    }

    fn pair(transform: Transform, key: [u8; 32]) -> (Encoder, Decoder) {
        let key = ScrambleKey::new(key);
        let decoder = Decoder::new(transform, Some(&key)).unwrap();
        (Encoder::new(transform, Some(&key)).unwrap(), decoder)
    }

    /// The steps of the draft's §6.3.2, one after the other, on a packet with a virtual ID.
    fn scramble_step_by_step(key: &[u8; 32], vcid_len: usize, packet: &[u8]) -> Vec<u8> {
        let k1 = Aes128Enc::new(key[..16].try_into().unwrap());
        let k2 = Aes128Enc::new(key[16..].try_into().unwrap());
        let iv = Block::try_from(&packet[vcid_len + 1..vcid_len + 17]).unwrap();
        let counter = u128::from_be_bytes(iv);
        let mut stream = [&packet[..1], &packet[vcid_len + 17..]].concat();
        for (block, number) in stream.chunks_mut(16).zip(0..) {
            let mut key_stream = counter.wrapping_add(number).to_be_bytes().into();
            k1.encrypt_block(&mut key_stream);
            block.iter_mut().zip(key_stream).for_each(|(byte, key)| *byte ^= key);
        }
        let mut sent_iv = iv.into();
        k2.encrypt_block(&mut sent_iv);
        [&[stream[0] & 0x7f], &packet[1..=vcid_len], &sent_iv, &stream[1..]].concat()
    }

    #[test]
    fn the_example_of_the_draft_is_transformed_both_ways() {
        let (cid, vcid) = (bytes(CID), bytes(VCID));
        for (transform, forwarded) in
            [(Transform::Identity, IDENTITY), (Transform::ScrambleDt, SCRAMBLED)]
        {
            let (encoder, decoder) = pair(transform, bytes(KEY).try_into().unwrap());
            let mut out = b"before".to_vec();
            assert_eq!(encoder.encode(&bytes(PACKET), cid.len(), &id(&vcid), &mut out), Ok(()));
            assert_eq!(out, [&b"before"[..], &bytes(forwarded)].concat(), "{transform}");
            let mut out = b"before".to_vec();
            assert_eq!(decoder.decode(&bytes(forwarded), vcid.len(), &id(&cid), &mut out), Ok(()));
            assert_eq!(out, [&b"before"[..], &bytes(PACKET)].concat(), "{transform}");

            let mut packet = bytes(PACKET);
            assert_eq!(encoder.encode_in_place(&mut packet, &id(&vcid)), Ok(()));
            assert_eq!(packet, bytes(forwarded), "{transform}");
            assert_eq!(decoder.decode_in_place(&mut packet, &id(&cid)), Ok(()));
            assert_eq!(packet, bytes(PACKET), "{transform}");
        }
    }

    #[test]
    fn packets_that_must_not_be_forwarded_are_refused_and_nothing_changes() {
        let too_short = |len, len_min| TransformError::TooShort { len, len_min };
        for (transform, packet, id_len, refusal) in [
            (Transform::Identity, vec![], 0, Some(too_short(0, 1))),
            (Transform::Identity, vec![0x40], 0, None),
            (Transform::Identity, vec![0x40; 8], 8, Some(too_short(8, 9))),
            (Transform::Identity, vec![0x40; 9], 8, None),
            (Transform::Identity, vec![0x80; 9], 8, Some(TransformError::LongHeader)),
            (Transform::Identity, vec![0x40; 20], 20, Some(too_short(20, 21))),
            (Transform::ScrambleDt, vec![], 0, Some(too_short(0, 17))),
            (Transform::ScrambleDt, vec![0x40; 16], 0, Some(too_short(16, 17))),
            (Transform::ScrambleDt, vec![0x40; 17], 0, None),
            (Transform::ScrambleDt, vec![0x40; 36], 20, Some(too_short(36, 37))),
            (Transform::ScrambleDt, vec![0x40; 37], 20, None),
            (Transform::ScrambleDt, vec![0xff; 37], 20, Some(TransformError::LongHeader)),
        ] {
            let (encoder, decoder) = pair(transform, [7; 32]);
            let expected = refusal.map_or(Ok(()), Err);
            let name = format!("{transform} {id_len} {packet:02x?}");
            let id = id(&vec![9; id_len]);

            let (mut sent, mut received) = (vec![1], vec![1]);
            assert_eq!(encoder.encode(&packet, id_len, &id, &mut sent), expected, "{name}");
            assert_eq!(decoder.decode(&packet, id_len, &id, &mut received), expected, "{name}");
            let mut places = [packet.clone(), packet.clone()];
            assert_eq!(encoder.encode_in_place(&mut places[0], &id), expected, "{name}");
            assert_eq!(decoder.decode_in_place(&mut places[1], &id), expected, "{name}");
            if refusal.is_some() {
                assert_eq!((sent, received), (vec![1], vec![1]), "{name}");
                assert_eq!(places, [packet.clone(), packet], "{name}");
            } else {
                assert_eq!([&sent[1..], &received[1..]], [&places[0], &places[1]], "{name}");
            }
        }
        let (encoder, _) = pair(Transform::ScrambleDt, [7; 32]);
        let refused = encoder.encode(&[0x40; 9], usize::MAX, &id(&[]), &mut Vec::new());
        assert_eq!(refused, Err(too_short(9, usize::MAX)));
    }

    #[test]
    fn the_counter_is_128_bits_wide() {
        let key = std::array::from_fn(|place| u8::try_from(place).unwrap());
        let (encoder, decoder) = pair(Transform::ScrambleDt, key);
        let mut packet = vec![0x41; 100];
        packet[1..17].fill(0xff); // the IV, so that the second block has counter 0
        let mut sent = packet.clone();
        encoder.encode_in_place(&mut sent, &id(&[])).unwrap();
        assert_eq!(sent, scramble_step_by_step(&key, 0, &packet));
        decoder.decode_in_place(&mut sent, &id(&[])).unwrap();
        assert_eq!(sent, packet);
    }

    #[test]
    fn only_a_transform_with_a_key_needs_one() {
        for transform in Transform::ALL {
            let expected =
                if transform.needs_key() { Err(NoTransformKey(transform)) } else { Ok(()) };
            assert_eq!(Encoder::new(transform, None).map(|_| ()), expected, "{transform}");
            assert_eq!(Decoder::new(transform, None).map(|_| ()), expected, "{transform}");
        }
    }

    #[test]
    fn transforms_have_names() {
        for transform in Transform::ALL {
            assert_eq!(transform.to_string().parse(), Ok(transform));
        }
        for name in ["", "scramble", "Identity", "identity "] {
            let error = name.parse::<Transform>().expect_err(name);
            assert_eq!(error, UnknownTransform { seen: name.into() });
        }
    }

    #[test]
    fn no_key_is_printed() {
        let key = ScrambleKey::new([0xab; 32]);
        assert_eq!(format!("{key:?}"), "ScrambleKey(..)");
        let (encoder, decoder) = pair(Transform::ScrambleDt, [0xab; 32]);
        for text in [format!("{encoder:?}"), format!("{decoder:?}")] {
            assert!(!text.contains("171") && !text.contains("ab,") && text.len() < 200, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_itself_and_follows_the_steps_of_the_draft(
            key: [u8; 32],
            cid in prop::collection::vec(any::<u8>(), 0..=20),
            vcid in prop::collection::vec(any::<u8>(), 0..=20),
            header in 0..0x80_u8,
            rest in prop::collection::vec(any::<u8>(), 16..=300),
        ) {
            let packet = [&[header], &cid[..], &rest].concat();
            let with_vcid = [&[header], &vcid[..], &rest].concat();
            for (transform, expected) in [
                (Transform::Identity, with_vcid.clone()),
                (Transform::ScrambleDt, scramble_step_by_step(&key, vcid.len(), &with_vcid)),
            ] {
                let (encoder, decoder) = pair(transform, key);
                let mut sent = Vec::new();
                prop_assert_eq!(encoder.encode(&packet, cid.len(), &id(&vcid), &mut sent), Ok(()));
                prop_assert_eq!(&sent, &expected);
                prop_assert_eq!(sent[0] & 0x80, 0);
                let mut received = Vec::new();
                let decoded = decoder.decode(&sent, vcid.len(), &id(&cid), &mut received);
                prop_assert_eq!(decoded, Ok(()));
                prop_assert_eq!(&received, &packet);
            }
        }

        #[test]
        fn no_bytes_decode_to_a_long_header(
            key: [u8; 32],
            vcid_len in 0..=20_usize,
            cid in prop::collection::vec(any::<u8>(), 0..=20),
            packet: Vec<u8>,
        ) {
            for transform in Transform::ALL {
                let mut out = Vec::new();
                let (_, decoder) = pair(transform, key);
                match decoder.decode(&packet, vcid_len, &id(&cid), &mut out) {
                    Ok(()) => prop_assert_eq!(out[0] & 0x80, 0),
                    Err(_) => prop_assert!(out.is_empty()),
                }
            }
        }
    }
}
