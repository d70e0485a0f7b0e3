//! Classifies received UDP payloads by the properties that all versions of QUIC share (RFC 8999).

use tandem_wire::ConnectionId;

use super::{UnusablePackets, header::Header};

/// The length of the connection IDs of a node in bytes, if its machine is in no fleet. It is the least length.
pub(super) const CONNECTION_ID_LEN: usize = 8;

/// The version of QUIC that we speak (RFC 9000 §15).
pub(super) const VERSION: u32 = 1;

/// RFC 9000 §14.1: a client's first packets fill a UDP payload of at least this size.
pub(super) const INITIAL_SIZE_MIN: usize = 1200;

/// The largest UDP payload that is handled. We announce less in `max_udp_payload_size`, but a
/// client that does not know it yet may send what its network carries: 1,500 bytes with Ethernet.
/// The engine would also handle 64 kB, of which a small payload in it could hold all.
const PAYLOAD_MAX: usize = 2048;

/// QUIC version 2 (RFC 9369 §3.1), which the programs whose packets a tunnel carries may speak.
const VERSION_2: u32 = 0x6b33_43cf;

/// Whether a UDP payload looks like the first packet of a QUIC client, of version 1 or 2.
pub(crate) fn is_first_of_client(payload: &[u8]) -> bool {
    /// RFC 9000 §17.2: the fixed bit, which clients set in their first packets.
    const FIXED: u8 = 0x40;
    payload.len() >= INITIAL_SIZE_MIN
        && payload.first().is_some_and(|first| first & FIXED != 0)
        && matches!(Header::read(payload), Some(Header::Long { version: VERSION | VERSION_2, .. }))
}

/// The connection ID of ours, with `len` bytes, in a packet with a short header (RFC 8999 §5.2).
pub(super) fn id_of_short_header(payload: &[u8], len: usize) -> Option<ConnectionId> {
    match Header::read(payload)? {
        Header::Short { rest } => ConnectionId::try_from(rest.get(..len)?).ok(),
        Header::Long { .. } => None,
    }
}

/// The receiver of a UDP payload inside the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The engine: for one of its connections, a new connection, or an answer of the endpoint
    /// itself.
    Engine,
    /// None: the payload is larger than any that a peer may send.
    TooLong,
    /// None: the payload ends before its connection IDs do.
    TooShort,
    /// None: the version is unknown, and the payload is too small to get an answer.
    UnknownVersion,
}

/// Classifies received UDP payloads, and counts the unusable ones.
#[derive(Debug, Default)]
pub(super) struct Demux {
    unusable: UnusablePackets,
}

impl Demux {
    /// Whether a UDP payload is for the engine.
    pub(super) fn is_for_engine(&mut self, payload: &[u8]) -> bool {
        let counter = match purpose(payload) {
            Purpose::Engine => return true,
            Purpose::TooLong => &mut self.unusable.too_long,
            Purpose::TooShort => &mut self.unusable.too_short,
            Purpose::UnknownVersion => &mut self.unusable.unknown_version,
        };
        *counter += 1;
        false
    }

    /// Whether a packet of a sealed transport is not larger than any that a peer may send. Counts it otherwise.
    pub(super) const fn has_size(&mut self, payload: &[u8]) -> bool {
        let fits = payload.len() <= PAYLOAD_MAX;
        self.unusable.too_long += !fits as u64;
        fits
    }

    /// Counts a packet of a sealed transport that is not authentic, or that came before.
    pub(super) const fn count_refused(&mut self) {
        self.unusable.refused += 1;
    }

    /// Counts a UDP payload that only another node may answer.
    pub(super) const fn count_for_another(&mut self) {
        self.unusable.for_another += 1;
    }

    /// How many UDP payloads were unusable.
    pub(super) const fn unusable(&self) -> UnusablePackets {
        self.unusable
    }
}

fn purpose(payload: &[u8]) -> Purpose {
    if payload.len() > PAYLOAD_MAX {
        return Purpose::TooLong;
    }
    match Header::read(payload) {
        None => Purpose::TooShort,
        // This node chose the connection ID of a short header.
        Some(Header::Short { rest }) if rest.len() < CONNECTION_ID_LEN => Purpose::TooShort,
        // RFC 9000 §5.2.2: "Servers MUST drop smaller packets that specify unsupported versions."
        // Version 0 marks Version Negotiation packets (RFC 8999 §6), which may also be small.
        Some(Header::Long { version, .. })
            if ![0, VERSION].contains(&version) && payload.len() < INITIAL_SIZE_MIN =>
        {
            Purpose::UnknownVersion
        }
        Some(_) => Purpose::Engine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A long header with connection IDs of these lengths, padded to a size.
    fn long(version: u32, connection_ids: [u8; 2], size: usize) -> Vec<u8> {
        let mut packet = vec![0xc0];
        packet.extend(version.to_be_bytes());
        for len in connection_ids {
            packet.push(len);
            packet.extend(vec![7; len.into()]);
        }
        packet.resize(size, 0);
        packet
    }

    #[test]
    fn the_first_packet_of_a_quic_client_is_known() {
        let mut wireguard = vec![1, 0, 0, 0];
        wireguard.resize(1200, 9);
        for (what, packet, expected) in [
            ("version 1", long(1, [8, 0], 1200), true),
            ("version 2", long(0x6b33_43cf, [20, 20], 1250), true),
            ("a small packet", long(1, [8, 8], 1199), false),
            ("another version", long(2, [8, 8], 1200), false),
            ("a short header", vec![0x40; 1200], false),
            ("WireGuard", wireguard, false),
            ("OpenVPN's first packet", vec![0x38; 1200], false),
            ("DTLS", vec![0x16; 1200], false),
            ("nothing", vec![], false),
        ] {
            assert_eq!(is_first_of_client(&packet), expected, "{what}");
        }
    }

    #[test]
    fn payloads_of_a_wrong_size_or_an_unknown_version_are_unusable() {
        use Purpose::{Engine, TooLong, TooShort, UnknownVersion};
        for (what, packet, expected) in [
            ("nothing", vec![], TooShort),
            ("a short header without a connection ID", vec![0x40; 8], TooShort),
            ("a short header and no more", vec![0x40; 9], Engine),
            ("a short header", vec![0x40; 1300], Engine),
            ("a long header without a version", vec![0xc0, 0, 0, 0], TooShort),
            ("a long header without a length", vec![0xc0, 0, 0, 0, 1], TooShort),
            ("a long header that is cut in its IDs", long(1, [8, 8], 22), TooShort),
            ("a long header and no more", long(1, [8, 8], 23), Engine),
            ("a small packet of version 1", long(1, [8, 8], 60), Engine),
            ("Version Negotiation", long(0, [8, 8], 31), Engine),
            ("a version to come, too small", long(2, [8, 8], 1199), UnknownVersion),
            ("a version to come, large enough", long(2, [8, 8], 1200), Engine),
            ("draft 29, too small", long(0xff00_001d, [8, 8], 1199), UnknownVersion),
            ("draft 29, large enough", long(0xff00_001d, [8, 8], 1200), Engine),
            ("a reserved version, too small", long(0x0a1a_2a3a, [0, 0], 100), UnknownVersion),
            ("the largest packet of version 1", long(1, [8, 8], 2048), Engine),
            ("a larger packet of version 1", long(1, [8, 8], 2049), TooLong),
            ("a larger packet with a short header", vec![0x40; 2049], TooLong),
            ("the largest UDP payload", vec![0x40; 65_527], TooLong),
            ("long IDs of a version to come", long(2, [255, 255], 1199), UnknownVersion),
            ("long IDs that are cut", long(2, [255, 255], 500), TooShort),
        ] {
            assert_eq!(purpose(&packet), expected, "{what}");
        }
    }

    #[test]
    fn unusable_payloads_are_counted_by_cause() {
        let mut demux = Demux::default();
        assert!(!demux.is_for_engine(&[]));
        assert!(!demux.is_for_engine(&long(2, [8, 8], 100)));
        assert!(!demux.is_for_engine(&long(3, [8, 8], 1199)));
        assert!(!demux.is_for_engine(&long(1, [8, 8], 2049)));
        assert!(demux.is_for_engine(&long(1, [8, 8], 1200)));
        demux.count_for_another();
        demux.count_refused();
        assert!(demux.has_size(&[7; PAYLOAD_MAX]) && !demux.has_size(&[7; PAYLOAD_MAX + 1]));
        let expected = UnusablePackets {
            too_short: 1,
            too_long: 2,
            unknown_version: 2,
            for_another: 1,
            refused: 1,
            too_many: 0,
        };
        assert_eq!(demux.unusable(), expected);
    }
}
