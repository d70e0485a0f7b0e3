//! PEP-ACKs for TCP: an experimental option in a segment that stacks ignore (`docs/design/wire.md`).

use bytes::{Buf, BufMut};

use super::{Ends, PepAckError, PepId, PepKey};

/// Sequence numbers of bytes that the PEP has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenBytes {
    /// The sequence number of the first byte.
    pub start: u32,
    /// The sequence number after the last byte.
    pub end: u32,
}

/// A PEP-ACK for a TCP connection, which is an option of kind 253 (RFC 6994).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpPepAck {
    /// The PEP.
    pub pep: PepId,
    /// Counts the PEP-ACKs of the connection from 0, modulo 2^32.
    pub sequence: u32,
    /// When the last byte of the first range came, by the PEP's clock, in microseconds modulo 2^32.
    pub time: u32,
    /// One or two ranges; the newest first.
    pub seen: Vec<SeenBytes>,
}

impl TcpPepAck {
    /// The most ranges that one covers. The option then takes all 40 bytes that a segment has for
    /// options.
    pub const SEEN_MAX: usize = 2;

    /// The kind of experimental options (RFC 4727 §3.1).
    const KIND: u8 = 253;

    /// The experiment identifier (RFC 6994 §3): "TP".
    const EXPERIMENT: u16 = 0x5450;

    /// The bytes before the ranges: kind, length, experiment, identifier, sequence number and time.
    const HEADER_LEN: usize = 4 + 3 * 4;

    /// The length of the MAC in bytes. A segment has no room for more.
    pub(super) const MAC_LEN: usize = 8;

    /// Appends the option to `out`; its length is a multiple of 4. Without a key it gets a MAC of zeros,
    /// which authenticates nothing.
    ///
    /// # Panics
    /// It panics if there is no range, or more than [`Self::SEEN_MAX`].
    pub fn encode(&self, ends: &Ends, key: Option<&PepKey>, out: &mut Vec<u8>) {
        assert!((1..=Self::SEEN_MAX).contains(&self.seen.len()), "{} ranges", self.seen.len());
        let (start, len) = (out.len(), Self::len(self.seen.len()));
        out.put_u8(Self::KIND);
        out.put_u8(u8::try_from(len).unwrap_or(u8::MAX));
        out.put_u16(Self::EXPERIMENT);
        out.put_u32(self.pep.0);
        out.put_u32(self.sequence);
        out.put_u32(self.time);
        for SeenBytes { start, end } in &self.seen {
            out.put_u32(*start);
            out.put_u32(*end);
        }
        let content = out.get(start..).unwrap_or_default();
        let mac = key.map_or([0; Self::MAC_LEN], |key| ends.mac(key, content));
        out.put_slice(&mac);
    }

    /// Decodes an option, with its kind and length. It says nothing about authenticity; see
    /// [`Ends::authenticates`].
    ///
    /// # Errors
    /// The bytes are no such option: see [`PepAckError`].
    pub fn decode(option: &[u8]) -> Result<Self, PepAckError> {
        let mut rest = option;
        let start = (rest.try_get_u8(), rest.try_get_u8(), rest.try_get_u16());
        let (Ok(Self::KIND), Ok(len), Ok(Self::EXPERIMENT)) = start else {
            return Err(PepAckError::Start);
        };
        let of_ranges = usize::from(len).saturating_sub(Self::len(0));
        let count = of_ranges / 8;
        if !(1..=Self::SEEN_MAX).contains(&count) {
            return Err(PepAckError::Count(count));
        }
        let expected = Self::len(count);
        if usize::from(len) != expected || option.len() != expected {
            return Err(PepAckError::Len { len: option.len(), expected });
        }
        let (pep, sequence, time) = (PepId(rest.get_u32()), rest.get_u32(), rest.get_u32());
        let seen = (0..count).map(|_| SeenBytes { start: rest.get_u32(), end: rest.get_u32() });
        Ok(Self { pep, sequence, time, seen: seen.collect() })
    }

    /// The length of an option with this number of ranges.
    const fn len(ranges: usize) -> usize {
        Self::HEADER_LEN + 8 * ranges + Self::MAC_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> Ends {
        let (client, server) = ("192.0.2.1:50000".parse().unwrap(), "198.51.100.2:443".parse());
        Ends { client, server: server.unwrap() }
    }

    fn ack(ranges: usize) -> TcpPepAck {
        let all = [SeenBytes { start: 5, end: 9 }, SeenBytes { start: u32::MAX, end: 2 }];
        let seen = all[..ranges].to_vec();
        TcpPepAck { pep: PepId(0x0102_0304), sequence: 7, time: 1_000_000, seen }
    }

    fn encoded(ack: &TcpPepAck, key: Option<&PepKey>) -> Vec<u8> {
        let mut out = Vec::new();
        ack.encode(&ends(), key, &mut out);
        out
    }

    #[test]
    fn the_layout_is_that_of_wire_md() {
        let expected = [
            &[253, 32, 0x54, 0x50][..],
            &[1, 2, 3, 4],
            &[0, 0, 0, 7],
            &[0, 0x0f, 0x42, 0x40],
            &[0, 0, 0, 5, 0, 0, 0, 9],
            &[0; 8],
        ];
        assert_eq!(encoded(&ack(1), None), expected.concat());
        assert_eq!(encoded(&ack(2), None).len(), 40, "a segment has no more bytes of options");
    }

    #[test]
    fn what_is_encoded_is_decoded_and_authentic_in_its_connection_only() {
        let key = PepKey::new([9; 32]);
        for ranges in [1, 2] {
            let option = encoded(&ack(ranges), Some(&key));
            assert_eq!(TcpPepAck::decode(&option), Ok(ack(ranges)));
            assert!(ends().authenticates(&key, &option));
            let mut other = ends();
            other.client.set_port(50_001);
            assert!(!other.authenticates(&key, &option));
            for bit in 0..8 * option.len() {
                let mut forged = option.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                assert!(!ends().authenticates(&key, &forged), "bit {bit}");
            }
        }
        assert!(!ends().authenticates(&key, &encoded(&ack(1), None)));
        assert!(!ends().authenticates(&key, &[]));
    }

    #[test]
    fn other_options_are_no_pep_acks() {
        let good = encoded(&ack(1), None);
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for (what, option, expected) in [
            ("nothing", vec![], PepAckError::Start),
            ("a timestamp", vec![8, 10, 0, 0, 0, 0, 0, 0, 0, 0], PepAckError::Start),
            ("another experiment", changed(3, 0x51), PepAckError::Start),
            ("no range", changed(1, 24), PepAckError::Count(0)),
            ("three ranges", changed(1, 48), PepAckError::Count(3)),
            ("half a range", changed(1, 36), PepAckError::Len { len: 32, expected: 32 }),
            ("a missing range", changed(1, 40), PepAckError::Len { len: 32, expected: 40 }),
            ("one byte less", good[..31].to_vec(), PepAckError::Len { len: 31, expected: 32 }),
        ] {
            assert_eq!(TcpPepAck::decode(&option), Err(expected), "{what}");
        }
    }
}
