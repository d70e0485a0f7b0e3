//! PEP-ACKs: what a performance-enhancing proxy (PEP) on the path tells the sender of packets that have
//! passed it (`docs/design/wire.md`). This module has those for QUIC; [`tcp`] has those for TCP.

mod key;
pub mod tcp;

use std::net::{IpAddr, SocketAddr};

use bytes::{Buf, BufMut};
use subtle::ConstantTimeEq;

pub use key::PepKey;

/// The identifier of a PEP, which its operator has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PepId(pub u32);

impl std::fmt::Display for PepId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// The ends of a connection of which a PEP tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ends {
    /// The receiver of the data, in whose name the PEP sends.
    pub client: SocketAddr,
    /// The sender of the data.
    pub server: SocketAddr,
}

impl Ends {
    /// Whether the option of a segment (see [`tcp`]) is one of the PEP that has this key, and for this connection:
    /// sequence numbers mean nothing in another one.
    pub fn authenticates(&self, key: &PepKey, option: &[u8]) -> bool {
        let Some((content, mac)) = option.split_last_chunk::<{ tcp::TcpPepAck::MAC_LEN }>() else {
            return false;
        };
        self.mac(key, content).ct_eq(mac).into()
    }

    fn mac(&self, key: &PepKey, content: &[u8]) -> [u8; tcp::TcpPepAck::MAC_LEN] {
        let mut ends = Vec::with_capacity(36);
        for end in [self.client, self.server] {
            match end.ip() {
                IpAddr::V4(ip) => ends.put_slice(&ip.octets()),
                IpAddr::V6(ip) => ends.put_slice(&ip.octets()),
            }
            ends.put_u16(end.port());
        }
        key.mac(&[&ends, content])
    }
}

/// The bytes of a QUIC packet by which a PEP names it to its sender, who knows which packet number has
/// them.
///
/// They are taken behind the longest possible short header: a first byte, a connection ID of 20 bytes
/// and a packet number of 4 (RFC 9000 §17.3.1). So they are ciphertext, and different in each packet,
/// whatever the length of the connection ID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice(pub [u8; Self::LEN]);

impl Slice {
    /// The number of bytes.
    pub const LEN: usize = 10;

    /// Their place in the UDP payload.
    const START: usize = 25;

    /// The slice of a UDP payload. `None`: the payload is shorter than 35 bytes, or has a long header.
    ///
    /// Only the form bit of the first byte counts, because endpoints may choose the next one, the fixed
    /// bit (RFC 9287 §3).
    pub fn of(payload: &[u8]) -> Option<Self> {
        let is_short = payload.first()? & 0x80 == 0;
        let bytes = payload.get(Self::START..)?.first_chunk()?;
        is_short.then_some(Self(*bytes))
    }
}

impl std::fmt::Debug for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A packet that the PEP has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenPacket {
    /// Which one it is.
    pub slice: Slice,
    /// How long before [`PepAck::time`] it came, in microseconds; 65,535 also stands for longer.
    pub age: u16,
}

/// A PEP-ACK for a QUIC connection.
///
/// It is a UDP payload that looks like a QUIC packet with a long header of an unknown version, cut off
/// inside its first connection ID. No stack can answer that: a Version Negotiation packet would need
/// both connection IDs (RFC 8999 §6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PepAck {
    /// The PEP.
    pub pep: PepId,
    /// Counts the PEP-ACKs of the flow from 0, modulo 2^32.
    pub sequence: u32,
    /// When it left, by the PEP's clock, in microseconds modulo 2^32.
    pub time: u32,
    /// 1 to [`Self::SEEN_MAX`] packets, in the order in which they came.
    pub seen: Vec<SeenPacket>,
}

impl PepAck {
    /// The most packets that one covers. Its payload has 1001 bytes then.
    pub const SEEN_MAX: usize = 80;

    /// The first bytes of each: a long header, the version `TPEP`, and 255 as the length of the first
    /// connection ID; at last the version of this format.
    const START: [u8; 7] = *b"\x85TPEP\xff\x01";

    /// The bytes before the packets: those of `START`, a count, identifier, sequence number and time.
    const HEADER_LEN: usize = Self::START.len() + 1 + 3 * 4;

    /// The bytes of each packet.
    const SEEN_LEN: usize = Slice::LEN + 2;

    /// Whether a UDP payload is a PEP-ACK of any version of the format, which QUIC must not get.
    pub fn is_one(payload: &[u8]) -> bool {
        payload.starts_with(&Self::START[..6])
    }

    /// Appends it to `out`. Without a key it gets a MAC of zeros, which authenticates nothing.
    ///
    /// # Panics
    /// It panics if `seen` is empty or has more than [`Self::SEEN_MAX`] packets.
    pub fn encode(&self, key: Option<&PepKey>, out: &mut Vec<u8>) {
        let count = u8::try_from(self.seen.len()).unwrap_or(0);
        assert!((1..=Self::SEEN_MAX).contains(&count.into()), "{} packets", self.seen.len());
        let start = out.len();
        out.put_slice(&Self::START);
        out.put_u8(count);
        out.put_u32(self.pep.0);
        out.put_u32(self.sequence);
        out.put_u32(self.time);
        for SeenPacket { slice, age } in &self.seen {
            out.put_slice(&slice.0);
            out.put_u16(*age);
        }
        let content = out.get(start..).unwrap_or_default();
        let mac = key.map_or([0; PepKey::MAC_LEN], |key| key.mac(&[content]));
        out.put_slice(&mac);
    }

    /// Decodes a UDP payload. It says nothing about authenticity; see [`PepKey::authenticates`].
    ///
    /// # Errors
    /// The payload is no PEP-ACK of this version of the format: see [`PepAckError`].
    pub fn decode(payload: &[u8]) -> Result<Self, PepAckError> {
        let mut rest = payload.strip_prefix(&Self::START).ok_or(PepAckError::Start)?;
        let count = usize::from(rest.try_get_u8().unwrap_or(0));
        if !(1..=Self::SEEN_MAX).contains(&count) {
            return Err(PepAckError::Count(count));
        }
        let expected = Self::HEADER_LEN + count * Self::SEEN_LEN + PepKey::MAC_LEN;
        if payload.len() != expected {
            return Err(PepAckError::Len { len: payload.len(), expected });
        }
        let (pep, sequence, time) = (PepId(rest.get_u32()), rest.get_u32(), rest.get_u32());
        let seen = (0..count).map(|_| {
            let mut slice = [0; Slice::LEN];
            rest.copy_to_slice(&mut slice);
            SeenPacket { slice: Slice(slice), age: rest.get_u16() }
        });
        Ok(Self { pep, sequence, time, seen: seen.collect() })
    }
}

/// Why bytes are no PEP-ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PepAckError {
    /// The first bytes are others, or it is another version of the format.
    #[error("it does not begin as a PEP-ACK of version 1")]
    Start,
    /// The number of packets or ranges is not allowed.
    #[error("it covers {0} packets or ranges")]
    Count(usize),
    /// The length does not fit the number of packets or ranges.
    #[error("it has {len} bytes instead of {expected}")]
    Len {
        /// Its length in bytes.
        len: usize,
        /// The length in bytes that follows from the number of packets or ranges.
        expected: usize,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ack(count: usize) -> PepAck {
        let seen = (0..count).map(|number| {
            let byte = u8::try_from(number).unwrap();
            SeenPacket { slice: Slice([byte; Slice::LEN]), age: u16::from(byte) * 3 }
        });
        PepAck { pep: PepId(0x0102_0304), sequence: 7, time: 1_000_000, seen: seen.collect() }
    }

    fn encoded(ack: &PepAck, key: Option<&PepKey>) -> Vec<u8> {
        let mut out = Vec::new();
        ack.encode(key, &mut out);
        out
    }

    #[test]
    fn the_layout_is_that_of_wire_md() {
        let seen = vec![SeenPacket { slice: Slice(*b"0123456789"), age: 0x0201 }];
        let ack = PepAck { seen, ..ack(0) };
        let expected = [
            &b"\x85TPEP\xff\x01\x01"[..],
            &[1, 2, 3, 4],
            &[0, 0, 0, 7],
            &[0, 0x0f, 0x42, 0x40],
            b"0123456789\x02\x01",
            &[0; 16],
        ];
        assert_eq!(encoded(&ack, None), expected.concat());
    }

    #[test]
    fn what_is_encoded_is_decoded_and_authentic() {
        let key = PepKey::new([9; 32]);
        for count in [1, 2, PepAck::SEEN_MAX] {
            let bytes = encoded(&ack(count), Some(&key));
            assert!(PepAck::is_one(&bytes) && key.authenticates(&bytes));
            assert_eq!(PepAck::decode(&bytes), Ok(ack(count)));
        }
        assert!(!key.authenticates(&encoded(&ack(3), None)));
        assert!(!key.authenticates(&encoded(&ack(3), Some(&PepKey::new([8; 32])))));
        assert_eq!(encoded(&ack(PepAck::SEEN_MAX), None).len(), 996);
    }

    #[test]
    fn each_changed_bit_is_noticed() {
        let key = PepKey::new([9; 32]);
        let bytes = encoded(&ack(2), Some(&key));
        for bit in 0..8 * bytes.len() {
            let mut forged = bytes.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.authenticates(&forged), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(!key.authenticates(&bytes[..len]), "{len} bytes");
        }
    }

    #[test]
    fn other_payloads_are_no_pep_acks() {
        let good = encoded(&ack(2), None);
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for (what, bytes, expected) in [
            ("nothing", vec![], PepAckError::Start),
            ("another packet", vec![0x45; 60], PepAckError::Start),
            ("version 2", changed(6, 2), PepAckError::Start),
            ("no packets", changed(7, 0), PepAckError::Count(0)),
            ("too many packets", changed(7, 81), PepAckError::Count(81)),
            ("a missing packet", changed(7, 3), PepAckError::Len { len: 60, expected: 72 }),
            ("one byte less", good[..59].to_vec(), PepAckError::Len { len: 59, expected: 60 }),
            ("one more", [&good[..], &[0]].concat(), PepAckError::Len { len: 61, expected: 60 }),
        ] {
            assert_eq!(PepAck::decode(&bytes), Err(expected), "{what}");
        }
        assert!(PepAck::is_one(&changed(6, 2)), "later versions are not for QUIC either");
    }

    #[test]
    fn a_slice_is_taken_behind_the_longest_short_header() {
        let payload: Vec<u8> = (0..60).collect();
        assert_eq!(Slice::of(&payload), Some(Slice([25, 26, 27, 28, 29, 30, 31, 32, 33, 34])));
        assert_eq!(Slice::of(&payload[..35]), Slice::of(&payload));
        assert_eq!(Slice::of(&payload[..34]), None);
        assert_eq!(Slice::of(&[]), None);
        let mut long = payload;
        long[0] = 0xc0;
        assert_eq!(Slice::of(&long), None);
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 1_usize..9) {
            bytes.resize(PepAck::HEADER_LEN + count * PepAck::SEEN_LEN, 0);
            bytes[..7].copy_from_slice(&PepAck::START);
            bytes[7] = u8::try_from(count).unwrap();
            bytes.extend([0; PepKey::MAC_LEN]);
            prop_assert_eq!(encoded(&PepAck::decode(&bytes).unwrap(), None), bytes);
        }
    }
}
