//! A packet with which one machine learns whether a QUIC server runs on another.

/// A packet that each QUIC server answers, without any state and without a connection: its version is one that no
/// server speaks. The answer is a Version Negotiation packet with the connection IDs of the probe (RFC 8999 §6, RFC
/// 9000 §6.1). They are random, so that only a host that sees the probe can make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionProbe {
    destination: [u8; 8],
    source: [u8; 8],
}

impl VersionProbe {
    /// The size of the packet in bytes. RFC 9000 §14.1: a server answers only packets of at least this size.
    pub const LEN: usize = 1200;

    /// A version that is reserved for this purpose (RFC 9000 §15: 0x?a?a?a?a).
    const VERSION: [u8; 4] = [0x5a, 0x6a, 0x7a, 0x8a];

    /// A long header, with the fixed bit of version 1, which some servers expect.
    const FIRST: u8 = 0xc0;

    /// A probe with these random connection IDs.
    pub const fn new(destination: [u8; 8], source: [u8; 8]) -> Self {
        Self { destination, source }
    }

    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let Self { destination, source } = self;
        let mut packet =
            [&[Self::FIRST][..], &Self::VERSION, &[8], destination, &[8], source].concat();
        packet.resize(Self::LEN, 0);
        packet
    }

    /// Whether a received UDP payload is an answer to the probe.
    pub fn is_answered_by(&self, payload: &[u8]) -> bool {
        let Self { destination, source } = self;
        // RFC 8999 §6: "The value for the Destination Connection ID field MUST be the value of the Source Connection ID
        // field of the packet that caused the Version Negotiation packet to be sent", and the other way round.
        let expected = [&[0; 4][..], &[8], source, &[8], destination].concat();
        payload.split_first().is_some_and(|(first, rest)| {
            first & 0x80 != 0 && rest.starts_with(&expected) && rest.len() > expected.len()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: VersionProbe = VersionProbe::new([1; 8], [2; 8]);

    #[test]
    fn only_version_negotiation_with_the_ids_of_the_probe_answers_it() {
        let answer = |first: u8, version: [u8; 4], to: u8, from: u8| {
            [&[first][..], &version, &[8], &[to; 8], &[8], &[from; 8], &[0, 0, 0, 1]].concat()
        };
        for (what, payload, expected) in [
            ("the answer", answer(0xff, [0; 4], 2, 1), true),
            ("with the fixed bit clear", answer(0x80, [0; 4], 2, 1), true),
            ("a short header", answer(0x40, [0; 4], 2, 1), false),
            ("another version", answer(0xff, [0, 0, 0, 1], 2, 1), false),
            ("other IDs", answer(0xff, [0; 4], 2, 3), false),
            ("the IDs of the probe itself", answer(0xff, [0; 4], 1, 2), false),
            ("no version", answer(0xff, [0; 4], 2, 1)[..23].to_vec(), false),
            ("the probe", PROBE.encode(), false),
            ("nothing", Vec::new(), false),
        ] {
            assert_eq!(PROBE.is_answered_by(&payload), expected, "{what}");
        }
    }

    #[test]
    fn a_probe_is_as_large_as_the_first_packet_of_a_client() {
        let packet = PROBE.encode();
        assert_eq!(packet.len(), 1200);
        assert_eq!(packet[..6], [0xc0, 0x5a, 0x6a, 0x7a, 0x8a, 8]);
    }
}
