//! Tests of UDP payloads that are not valid QUIC packets, at the port of a proxy.

use std::time::Duration;

use tandem_lab::Handle;
use tandem_node::Proxy;

use crate::{
    bed::{Bed, MS, Serving, proxy},
    target::Sprayer,
};

/// Pseudo-random numbers that are the same in each run: Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("less than a usize")
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_be_bytes()[0]).collect()
    }
}

fn sprayer(bed: &mut Bed<Proxy>) -> Handle<Sprayer> {
    let to = "10.0.0.2:443".parse().expect("an address");
    bed.world.add_host("sprayer", ["10.0.0.66"], Sprayer::new(to))
}

/// A long header (RFC 9000 §17.2) with these IDs, and what follows.
fn long_header(first: u8, version: u32, destination: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![first];
    packet.extend_from_slice(&version.to_be_bytes());
    for id in [destination, b"source"] {
        packet.push(u8::try_from(id.len()).expect("a short ID"));
        packet.extend_from_slice(id);
    }
    packet.extend_from_slice(rest);
    packet
}

#[test]
fn a_storm_of_nonsense_harms_nobody() {
    let mut random = Random(0x7461_6e64_656d);
    let mut bed = proxy();
    let flow = bed.open_flow();
    let sprayer = sprayer(&mut bed);
    let id = *b"12345678";
    for round in 0..20 {
        for _ in 0..50 {
            let len = random.below(1500);
            let mut garbage = random.bytes(len);
            bed.world.node_mut(sprayer).spray(garbage.clone());
            garbage.resize(1200, 0);
            // Initial, 0-RTT, Handshake and Retry of version 1, of version 2 and of no version;
            // version negotiation; a short header.
            for first in [0xc0, 0xd0, 0xe0, 0xf0, 0x80] {
                for version in [1, 0x6b33_43cf, 0x0a0a_0a0a, 0] {
                    let packet = long_header(first, version, &id, &garbage);
                    bed.world.node_mut(sprayer).spray(packet);
                }
            }
            bed.world.node_mut(sprayer).spray([&[0x40][..], &id, &garbage].concat());
        }
        bed.run();
        assert_eq!(bed.echo(flow, b"x"), [b"x"], "round {round}");
    }
    let came = bed.world.node(sprayer).came;
    assert!(came < 20_000_000, "{came} bytes of answers to 24 MB");
    assert_eq!(bed.stats().connections, 1);
    assert_eq!(bed.stats().connections_open, 1, "no connection is left after the storm");
    bed.assert_serves("a storm");
}

#[test]
fn packets_of_a_connection_that_were_changed_on_the_way_harm_nobody() {
    let mut random = Random(1);
    let mut bed = proxy();
    let flow = bed.open_flow();
    let sprayer = sprayer(&mut bed);
    for _ in 0..100 {
        assert_eq!(bed.echo(flow, b"x"), [b"x"]);
        let packet = bed.seen().last_sent.clone();
        for _ in 0..20 {
            let mut changed = packet.clone();
            let at = random.below(changed.len());
            changed[at] ^= 1 << random.below(8);
            changed.truncate(1 + random.below(packet.len()));
            bed.world.node_mut(sprayer).spray(changed);
        } // The packet is unchanged, but repeated and from another address.
        bed.world.node_mut(sprayer).spray(packet);
        bed.world.run_for(5 * MS);
    }
    assert_eq!(bed.echo(flow, b"x"), [b"x"]);
    bed.assert_serves("changed packets");
}

#[test]
fn handshakes_that_are_begun_and_left_end_by_themselves() {
    let mut bed = proxy();
    let sprayer = sprayer(&mut bed);
    for number in 10..60 {
        let peer = bed.add_peer(number);
        bed.world.run_for(MS / 2); // its first packet is out
        let first = bed.world.node(peer).last_sent.clone();
        bed.world.kill(peer);
        bed.world.node_mut(sprayer).spray(first.clone());
        bed.world.node_mut(sprayer).spray(first[..1000].to_vec());
    }
    bed.run();
    assert_eq!(bed.stats().connections, 1);
    assert!(bed.stats().connections_open > 1, "the handshakes wait for a while");
    bed.world.run_for(Duration::from_secs(60));
    assert_eq!(bed.stats().connections_open, 1);
    bed.assert_serves("handshakes that were left");
}
