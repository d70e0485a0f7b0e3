//! Tests of clients that break the rules of the sealed transport (`docs/design/wire.md`).

#![expect(clippy::unwrap_used, reason = "an error here fails the test")]

use bytes::Bytes;
use tandem_node::{
    Proxy,
    seal::{Opener, Sealer, Secrets},
};
use tandem_wire::{Code, TransportField};

use crate::{
    bed::{Bed, Serving, proxy},
    beside::{ask_with, send_raw, with_id},
};

/// The ID at which the peer receives.
const OWN_ID: [u8; 8] = *b"own_id__";

/// Types of frames (RFC 9000 §19, RFC 9221 §4).
const PING: u8 = 0x01;
const ACK: u8 = 0x02;
const DATAGRAM: u8 = 0x30;

/// A connection whose datagrams travel in the sealed transport.
struct Sealed {
    bed: Bed<Proxy>,
    stream: u64,
    sealer: Sealer,
    opener: Opener,
}

impl Sealed {
    fn new() -> Self {
        let mut bed = proxy();
        let request = TransportField { id: OWN_ID }.encode();
        let (stream, field) = ask_with(&mut bed, TransportField::NAME, request.to_str().unwrap());
        let TransportField { id } = TransportField::parse(&field).unwrap();
        let peer = bed.peer();
        let secrets = Secrets::export_for_transport(|out, label, context| {
            peer.export(out, label, context);
            Ok::<_, ()>(())
        });
        let Secrets { to_proxy, to_client } = secrets.unwrap();
        Self { bed, stream, sealer: Sealer::new(to_proxy, id), opener: Opener::new(to_client) }
    }

    fn sealed(&mut self, frames: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        self.sealer.seal(frames, &mut packet).unwrap();
        packet
    }

    /// A packet with a payload of the flow.
    fn datagram(&mut self, payload: &[u8]) -> Vec<u8> {
        let quarter_stream_id = u8::try_from(self.stream / 4).unwrap();
        let mut frames = vec![DATAGRAM, quarter_stream_id, 0];
        frames.extend_from_slice(payload);
        self.sealed(&frames)
    }

    /// Sends a packet, and returns what came to the target.
    fn send(&mut self, packet: Vec<u8>) -> Vec<Bytes> {
        send_raw(&mut self.bed, packet)
    }

    /// The frames that came in packets of the transport since the last call.
    fn came(&mut self) -> Vec<Vec<u8>> {
        let came = self.bed.peer().came.replace(Vec::new()).unwrap();
        let mut opened = Vec::new();
        for packet in with_id(&came, &OWN_ID) {
            let mut packet = packet.to_vec();
            let range = self.opener.open(&mut packet).unwrap();
            opened.push(packet.get(range).unwrap().to_vec());
        }
        opened
    }
}

#[test]
fn payloads_travel_in_the_transport_once_the_client_has_used_it() {
    let mut peer = Sealed::new();
    let stream = peer.stream;
    assert_eq!(peer.bed.echo(stream, b"before"), [b"before"], "in a DATAGRAM frame");
    assert_eq!(peer.came(), Vec::<Vec<u8>>::new());
    let packet = peer.datagram(b"hello");
    assert_eq!(peer.send(packet), [&b"hello"[..]]);
    let ends = |frames: &Vec<u8>| frames.ends_with(b"hello");
    assert_eq!(peer.came().iter().filter(|frames| ends(frames)).count(), 1, "its answer");
    assert_eq!(peer.bed.echoed(stream).len(), 1, "no answer in a DATAGRAM frame");
    assert_eq!(peer.bed.stats().sealed_transports, 1);
}

#[test]
fn forged_replayed_and_truncated_packets_reach_nobody() {
    let mut peer = Sealed::new();
    let packet = peer.datagram(b"hello");
    assert_eq!(peer.send(packet.clone()).len(), 1);
    assert_eq!(peer.send(packet), Vec::<Bytes>::new(), "a replay");
    let packet = peer.datagram(b"hello");
    for at in [0, 9, 12, 13, packet.len() - 1] {
        let mut forged = packet.clone();
        forged[at] ^= 1;
        assert_eq!(peer.send(forged), Vec::<Bytes>::new(), "byte {at}");
    }
    for len in [9, 13, 28, packet.len() - 1] {
        assert_eq!(peer.send(packet[..len].to_vec()), Vec::<Bytes>::new(), "{len} bytes");
    }
    assert_eq!(peer.send(packet).len(), 1, "the right packet still arrives");
    assert_eq!(peer.bed.closed_with(), None);
}

#[test]
fn a_peer_that_breaks_the_rules_loses_its_connection() {
    for (what, frames) in [
        ("no frame", &[][..]),
        ("an unknown frame", &[0x42]),
        ("a STREAM frame", &[0x08, 0, 1]),
        ("an acknowledgement of what was never sent", &[ACK, 0x3f, 0, 0, 0x3f]),
        ("a range below zero", &[ACK, 0, 0, 0, 9]),
        ("a truncated ACK frame", &[ACK, 0]),
        ("a datagram that is longer than the packet", &[0x31, 9, 1]),
        ("two ACK frames", &[ACK, 0, 0, 0, 0, ACK, 0, 0, 0, 0]),
    ] {
        let mut peer = Sealed::new();
        let ping = peer.sealed(&[PING]);
        peer.send(ping);
        let broken = peer.sealed(frames);
        assert_eq!(peer.send(broken), Vec::<Bytes>::new(), "{what}");
        assert_eq!(peer.bed.closed_with(), Some(Code::H3_DATAGRAM_ERROR), "{what}");
        assert_eq!(peer.bed.stats().connections_broken, 1, "{what}");
    }
}

#[test]
fn fields_that_cannot_be_used_are_as_if_absent() {
    for (value, counts) in [("1", 1), ("2;id=:AAECAwQFBgc=:", 1), ("1;id=:AAEC:", 1), ("", 1)] {
        let mut bed = proxy();
        let (stream, field) = ask_with(&mut bed, TransportField::NAME, value);
        assert_eq!((field, bed.stats().fields_ignored), (String::new(), counts), "{value}");
        assert_eq!(bed.echo(stream, b"hello"), [b"hello"]);
    }
}

#[test]
fn a_client_that_acknowledges_nothing_gets_a_window_at_most() {
    let mut peer = Sealed::new();
    let ping = peer.sealed(&[PING]);
    peer.send(ping);
    peer.came();
    for number in 0..200_u8 {
        let packet = peer.datagram(&[number; 1000]);
        peer.bed.peer().send_raw(packet);
    }
    peer.bed.run();
    let came = peer.came();
    let bytes: usize = came.iter().map(Vec::len).sum();
    assert!((5_000..100_000).contains(&bytes), "{bytes} bytes in {} packets", came.len());
}
