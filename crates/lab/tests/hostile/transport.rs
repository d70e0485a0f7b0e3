//! Tests of clients that break the rules of the sealed transport (`docs/design/wire.md`).

#![expect(clippy::unwrap_used, reason = "an error here fails the test")]

use bytes::Bytes;
use noq_proto::Dir;
use tandem_lab::{Handle, LinkConfig};
use tandem_node::{
    Proxy,
    seal::{ConnectionId, Opener, Sealer, Secrets},
};
use tandem_wire::{Code, TransportField, VarInt};

use crate::{
    bed::{Bed, ELSEWHERE, Serving, proxy},
    beside::{ask_with, send_raw, with_id},
    h3_bytes::{connect_udp, control_stream, udp_datagram},
    raw_peer::RawPeer,
    target::Sprayer,
};

/// The ID at which the peer receives.
const OWN_ID: [u8; 8] = *b"own_id__";

/// Types of frames (RFC 9000 §19, RFC 9221 §4).
const PING: u8 = 0x01;
const ACK: u8 = 0x02;
const ACK_ECN: u8 = 0x03;
const DATAGRAM: u8 = 0x30;

/// A connection whose datagrams travel in the sealed transport.
struct Sealed {
    bed: Bed<Proxy>,
    stream: u64,
    sealer: Sealer,
    opener: Opener,
    /// The number of the next packet.
    number: u64,
    /// The numbers of the packets that came.
    numbers: Vec<u64>,
}

impl Sealed {
    fn new() -> Self {
        let mut bed = proxy();
        let own = ConnectionId::try_from(&OWN_ID[..]).unwrap();
        let request = TransportField { id: own, reset: None }.encode();
        let (stream, field) = ask_with(&mut bed, TransportField::NAME, request.to_str().unwrap());
        let TransportField { id, .. } = TransportField::parse(&field).unwrap();
        let peer = bed.peer();
        let secrets = Secrets::export_for_transport(|out, label, context| {
            peer.export(out, label, context);
            Ok::<_, ()>(())
        });
        let Secrets { to_proxy, to_client } = secrets.unwrap();
        let (sealer, opener) = (Sealer::new(to_proxy, id), Opener::new(to_client, own.len()));
        Self { bed, stream, sealer, opener, number: 0, numbers: Vec::new() }
    }

    fn sealed(&mut self, frames: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; self.sealer.header_len()];
        packet.extend_from_slice(frames);
        self.sealer.seal_in_place(self.number, 0, &mut packet).unwrap();
        self.number += 1;
        packet
    }

    /// An ACK frame of this range, with this delay, and with counts of ECN marks.
    fn ack(&mut self, (first, last): (u64, u64), delay: u64, ecn: Option<[u64; 3]>) -> Vec<u8> {
        let mut frames = vec![if ecn.is_some() { ACK_ECN } else { ACK }];
        let fields = [last, delay, 0, last - first].into_iter().chain(ecn.into_iter().flatten());
        for field in fields {
            VarInt::try_from(field).unwrap().encode(&mut frames);
        }
        self.sealed(&frames)
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
            let (number, range) = self.opener.open_numbered(&mut packet).unwrap();
            self.numbers.push(number);
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
    assert_eq!(peer.bed.stats().unusable_packets.refused, 1 + 5 + 4);
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

#[test]
fn a_packet_that_is_larger_than_any_that_a_peer_may_send_is_dropped() {
    let mut peer = Sealed::new();
    // A payload of it would keep the memory of the whole packet.
    let datagram = [0x31, 6, u8::try_from(peer.stream / 4).unwrap(), 0, b'd', b'a', b't', b'a'];
    for (padding, expected) in [(1900, 1), (2048, 0), (60_000, 0)] {
        let packet = peer.sealed(&[&vec![0; padding], &datagram[..]].concat());
        assert_eq!(peer.send(packet).len(), expected, "{padding}");
    }
    assert_eq!(peer.bed.stats().unusable_packets.too_long, 2);
    assert_eq!(peer.bed.closed_with(), None);
}

#[test]
fn packets_arrive_in_any_order_and_each_once() {
    let mut peer = Sealed::new();
    let mut packets: Vec<_> = (0..200_u8).map(|number| peer.datagram(&[number; 100])).collect();
    let copies = packets.clone();
    packets.reverse();
    packets.rotate_left(77);
    for packet in packets.into_iter().chain(copies) {
        peer.bed.peer().send_raw(packet);
    }
    peer.bed.run();
    let mut came: Vec<_> = peer.bed.at_target().iter().map(|payload| payload[0]).collect();
    came.sort_unstable();
    assert_eq!(came, (0..200).collect::<Vec<u8>>());
    assert_eq!(peer.bed.stats().unusable_packets.refused, 200);
}

#[test]
fn an_outsider_moves_nothing_and_learns_nothing() {
    let mut peer = Sealed::new();
    let outsider = Sprayer::new("10.0.0.2:443".parse().unwrap());
    let outsider = peer.bed.world.add_host("outsider", ["10.0.1.1"], outsider);
    peer.bed.world.connect(outsider, peer.bed.node, LinkConfig::default());
    let send = |peer: &mut Sealed, packet: Vec<u8>| {
        let before = peer.bed.at_target().len();
        peer.bed.world.node_mut(outsider).spray(packet);
        peer.bed.run();
        peer.bed.at_target().len() - before
    };
    let packet = peer.datagram(b"first");
    assert_eq!(peer.send(packet.clone()).len(), 1);
    peer.came();
    assert_eq!(send(&mut peer, packet), 0, "a replay");
    // It has seen a packet before the proxy has.
    let packet = peer.datagram(b"second");
    let mut changed = packet.clone();
    changed[20] ^= 1;
    assert_eq!(send(&mut peer, changed), 0, "a changed packet");
    assert_eq!(send(&mut peer, packet.clone()), 1, "the bytes are those of the client");
    let answers = peer.came();
    assert!(answers.iter().any(|frames| frames.ends_with(b"second")), "to the client's address");
    assert_eq!(send(&mut peer, packet), 0);
    // The connection ends, and its ID is unknown.
    let (now, last) = (peer.bed.world.now(), peer.datagram(b"last"));
    peer.bed.peer().close(now, Code::H3_NO_ERROR);
    peer.bed.run();
    assert_eq!(peer.bed.world.node(outsider).came, 0, "there are no answers");
    let len = last.len();
    assert_eq!(send(&mut peer, last), 0);
    let came = peer.bed.world.node(outsider).came;
    assert!(came < len, "a stateless reset at most, as for every unknown ID: {came}");
}

/// Another client of the proxy, and its flow.
fn neighbour(bed: &mut Bed<Proxy>) -> (Handle<RawPeer>, u64) {
    let other = bed.add_peer(1);
    bed.run();
    let open = |bed: &mut Bed<Proxy>, dir, data: Vec<u8>| {
        let peer = bed.world.node_mut(other);
        let stream = peer.open(dir);
        peer.send(stream, data);
        bed.run();
        stream
    };
    open(bed, Dir::Uni, control_stream(&[]));
    let stream = open(bed, Dir::Bi, connect_udp("10.0.0.3", "7"));
    (other, stream)
}

/// What a peer does with the keys of the transport.
struct Misuse {
    what: &'static str,
    act: fn(&mut Sealed),
    closes: bool,
}

/// Sends this number of payloads of 1000 bytes through the proxy, and takes what comes back.
fn load(peer: &mut Sealed, count: u8) {
    for number in 0..count {
        let packet = peer.datagram(&[number; 1000]);
        peer.bed.peer().send_raw(packet);
    }
    peer.bed.run();
    peer.came();
}

fn misuses() -> impl Iterator<Item = Misuse> {
    acknowledging().into_iter().chain(sending())
}

/// What it says of packets that came.
fn acknowledging() -> [Misuse; 5] {
    [
        Misuse {
            what: "acknowledges each packet alone",
            act: |peer| {
                for _ in 0..20 {
                    load(peer, 10);
                    for number in std::mem::take(&mut peer.numbers) {
                        let packet = peer.ack((number, number), 0, None);
                        peer.bed.peer().send_raw(packet);
                    }
                }
            },
            closes: false,
        },
        Misuse {
            what: "acknowledges what has not come",
            act: |peer| {
                for _ in 0..20 {
                    load(peer, 10);
                    let Some(last) = peer.numbers.last().copied() else { break };
                    let packet = peer.ack((0, last), 0, None);
                    peer.bed.peer().send_raw(packet);
                }
            },
            closes: true,
        },
        Misuse {
            what: "lies about marks",
            act: |peer| {
                for counts in [[1 << 60, 0, 0], [0, 1 << 60, 0], [0, 0, 1 << 60], [0, 0, 0]] {
                    load(peer, 5);
                    let Some(last) = peer.numbers.last().copied() else { break };
                    let packet = peer.ack((last, last), 0, Some(counts));
                    peer.bed.peer().send_raw(packet);
                }
            },
            closes: false,
        },
        Misuse {
            what: "lies about delays",
            act: |peer| {
                for delay in [0, 1 << 20, 1 << 40, (1 << 62) - 1] {
                    load(peer, 5);
                    let Some(last) = peer.numbers.last().copied() else { break };
                    let packet = peer.ack((last, last), delay, None);
                    peer.bed.peer().send_raw(packet);
                }
            },
            closes: false,
        },
        Misuse {
            what: "never acknowledges",
            act: |peer| {
                load(peer, 200);
                peer.bed.world.run_for(std::time::Duration::from_secs(5));
            },
            closes: false,
        },
    ]
}

/// What it sends.
fn sending() -> [Misuse; 4] {
    [
        Misuse {
            what: "leaves every second number out",
            act: |peer| {
                for _ in 0..3000 {
                    peer.number += 1;
                    let packet = peer.sealed(&[PING]);
                    peer.bed.peer().send_raw(packet);
                }
                peer.bed.run();
                let largest = peer.came().iter().map(Vec::len).max();
                assert!(largest.is_some_and(|len| len < 200), "64 ranges at most: {largest:?}");
            },
            closes: false,
        },
        Misuse {
            what: "jumps through the numbers",
            act: |peer| {
                for jump in [1, 4096, 100_000, 1 << 19, (1 << 20) - 2] {
                    peer.number += jump;
                    let packet = peer.datagram(b"jump");
                    assert_eq!(peer.send(packet).len(), 1, "{jump}");
                }
            },
            closes: false,
        },
        Misuse {
            what: "sends payloads of flows that do not exist",
            act: |peer| {
                for id in [1, 2, 0x3f] {
                    let packet = peer.sealed(&[DATAGRAM, id, 0, 7, 7]);
                    assert_eq!(peer.send(packet), Vec::<Bytes>::new());
                }
            },
            closes: false,
        },
        Misuse {
            what: "sends datagrams that are none of HTTP",
            act: |peer| {
                let packet = peer.sealed(&[DATAGRAM]);
                assert_eq!(peer.send(packet), Vec::<Bytes>::new());
            },
            closes: true,
        },
    ]
}

#[test]
fn a_peer_with_the_keys_hurts_itself_at_most() {
    for Misuse { what, act, closes } in misuses() {
        let mut peer = Sealed::new();
        let (other, stream) = neighbour(&mut peer.bed);
        let echo = |peer: &mut Sealed| {
            let node = peer.bed.world.node_mut(other);
            node.datagrams.clear();
            node.datagram(udp_datagram(stream, b"hello"));
            peer.bed.run();
            peer.bed.world.node(other).datagrams.clone()
        };
        assert_eq!(echo(&mut peer).len(), 1);
        let ping = peer.sealed(&[PING]);
        peer.send(ping);
        peer.came();
        act(&mut peer);
        peer.bed.run();
        assert_eq!(echo(&mut peer).len(), 1, "the flow of another client: {what}");
        let expected = closes.then_some(Code::H3_DATAGRAM_ERROR);
        assert_eq!(peer.bed.closed_with(), expected, "{what}");
        if !closes {
            let packet = peer.datagram(b"still there?");
            assert_eq!(peer.send(packet), [&b"still there?"[..]], "{what}");
        }
    }
}

#[test]
fn nothing_is_sent_to_an_address_that_is_not_validated() {
    let mut peer = Sealed::new();
    let ping = peer.sealed(&[PING]);
    peer.send(ping);
    peer.came();
    let stream = peer.stream;
    peer.bed.peer().appear_at(ELSEWHERE);
    peer.bed.peer().elsewhere.as_mut().unwrap().hears = false;
    peer.bed.echo(stream, b"from there");
    for number in 0..5 {
        let packet = peer.datagram(&[number; 1000]);
        peer.bed.peer().send_raw(packet);
    }
    peer.bed.run();
    let elsewhere = peer.bed.seen().elsewhere.unwrap();
    assert_eq!(elsewhere.came, 1200, "the only packet is a probe: {elsewhere:?}");
    peer.bed.peer().elsewhere.as_mut().unwrap().hears = true;
    for _ in 0..10 {
        peer.bed.echo(stream, b"still there?");
    }
    peer.came();
    let packet = peer.datagram(b"hello");
    peer.send(packet);
    let ends = |frames: &Vec<u8>| frames.ends_with(b"hello");
    assert!(peer.came().iter().any(ends), "it is answered there once the address is validated");
}
