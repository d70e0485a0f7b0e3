//! The answers of a server to packets of other versions of QUIC.

use std::time::Instant;

use bytes::BytesMut;

use super::{SERVER, tls};
use crate::{
    limits::Limits,
    quic::{Endpoint, Transport},
};

/// A packet with a long header and connection IDs of eight bytes.
fn packet(version: u32, size: usize) -> BytesMut {
    let mut packet = BytesMut::from(&[0xc0][..]);
    packet.extend_from_slice(&version.to_be_bytes());
    for id in [1, 2] {
        packet.extend_from_slice(&[8]);
        packet.extend_from_slice(&[id; 8]);
    }
    packet.resize(size, 0);
    packet
}

/// The versions that a server offers in its answer to this packet. `None`: it does not answer.
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn offered(packet: BytesMut) -> Option<Vec<u32>> {
    let (server_tls, _) = tls();
    let (transport, limits) = (Transport::default(), Limits::default());
    let mut server = Endpoint::server(&server_tls, &transport, &limits, Some(1));
    server.handle_datagram(Instant::now(), (SERVER, None), None, packet);
    let mut answer = Vec::new();
    server.poll_answer(&mut answer)?;
    // RFC 9000 §17.2.1: the answer has the first byte, version 0, and both connection IDs, each
    // after its length.
    assert_eq!(answer[1..5], [0; 4]);
    let versions = answer[5 + 9 + 9..].chunks(4);
    Some(versions.map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap())).collect())
}

#[test]
fn only_version_1_is_offered_and_only_to_packets_that_could_begin_a_connection() {
    /// RFC 9000 §15: versions of this form are reserved, to exercise version negotiation.
    fn is_reserved(version: u32) -> bool {
        version & 0x0f0f_0f0f == 0x0a0a_0a0a
    }
    for version in [2, 0x6b33_43cf, 0xff00_001d, 0xff00_0022, 0x0a0a_0a0a, u32::MAX] {
        for size in [30, 500, 1199] {
            assert_eq!(offered(packet(version, size)), None, "version {version:#x}, {size} bytes");
        }
        for size in [1200, 1452] {
            let offered = offered(packet(version, size)).expect("an answer");
            let usable: Vec<_> = offered.into_iter().filter(|it| !is_reserved(*it)).collect();
            assert_eq!(usable, [1], "version {version:#x}, {size} bytes");
        }
    }
}
