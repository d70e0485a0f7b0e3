//! Tests that drive a bound of a node to its limit, check that the limit was reached, and measure
//! what the process keeps. They measure all allocations of the world, including those of the raw
//! peers.

use std::time::Duration;

use bytes::Bytes;
use noq_proto::Dir;
use tandem_lab::Handle;
use tandem_node::{
    Proxy, Stats,
    limits::Limits,
    tunnel::resequence::{Bounds, OVERHEAD},
};
use tandem_wire::Code;

use crate::{
    bed::{Bed, MS, Serving, Setup, proxy},
    h3_bytes::{
        DATA, HEADERS, connect_udp, connect_udp_lines, control_stream, frame, headers,
        http_datagram, udp_datagram, varint,
    },
    raw_peer::{RawPeer, StreamEnd},
};

/// What a raw peer and the world keep for a packet or a stream of the test.
const BED_BYTES: i64 = 600_000;

/// The increase of allocated bytes by an action.
fn kept(act: impl FnOnce()) -> i64 {
    allocation_counter::measure(act).bytes_current
}

fn proxy_with(limits: Limits) -> Bed<Proxy> {
    Setup { limits, ..Setup::default() }.proxy().with_control_stream()
}

fn ordered() -> Vec<u8> {
    let mut lines = connect_udp_lines("/.well-known/masque/udp/10.0.0.3/7/");
    lines.push(("capsule-protocol", "?1"));
    lines.push(("tandem-repair", "1;context=2;order=ordered"));
    headers(&lines)
}

/// A payload with its number, of a sender that still repairs all numbers.
fn numbered(stream: u64, number: u64, payload: &[u8]) -> Bytes {
    let content = [varint(number), varint(number), payload.to_vec()].concat();
    http_datagram(stream, 2, &content)
}

/// Opens this number of flows with numbered payloads, all at once.
fn open_ordered(bed: &mut Bed<Proxy>, peer: Handle<RawPeer>, flows: usize) -> Vec<u64> {
    let peer = bed.world.node_mut(peer);
    let opened = (0..flows).map(|_| {
        let stream = peer.open(Dir::Bi);
        peer.send(stream, ordered());
        stream
    });
    let opened = opened.collect();
    bed.world.run_for(Duration::from_secs(2));
    opened
}

fn more_peers(bed: &mut Bed<Proxy>, number: u8) -> Vec<Handle<RawPeer>> {
    let mut peers = vec![bed.peer];
    peers.extend((1..=number).map(|number| bed.add_peer(number)));
    bed.run();
    for peer in peers.iter().skip(1) {
        let peer = bed.world.node_mut(*peer);
        let stream = peer.open(Dir::Uni);
        peer.send(stream, control_stream(&[]));
    }
    bed.run();
    peers
}

fn stats(bed: &mut Bed<Proxy>) -> Stats {
    Serving::stats(bed)
}

#[test]
fn two_bytes_that_are_far_apart_cost_what_came() {
    let mut bed = proxy();
    let mut flows = Vec::new();
    for peer in more_peers(&mut bed, 3) {
        flows.extend(open_ordered(&mut bed, peer, 1000).into_iter().map(|flow| (peer, flow)));
    }
    assert_eq!(stats(&mut bed).flows_open, 4000);
    let before = bed.world.node_mut(bed.node).tunnel_memory().get();
    let bytes = kept(|| {
        for turn in flows.chunks(100) {
            for &(peer, flow) in turn {
                for number in [1, 7100] {
                    bed.world.node_mut(peer).datagram(numbered(flow, number, b"x"));
                }
            }
            bed.world.run_for(2 * MS);
        }
        bed.run();
    });
    assert_eq!(stats(&mut bed).resequenced.waited, 8000);
    let memory = bed.world.node_mut(bed.node).tunnel_memory().get() - before;
    // A flow that has numbers notes which ones arrived, in 1 kB.
    assert!(bytes < 4000 * 2500 + BED_BYTES, "{bytes} bytes are kept for 8,000 bytes");
    assert!(memory < 4000 * 2500, "{memory} bytes are counted");
    bed.world.run_for(Duration::from_secs(11));
    assert_eq!(stats(&mut bed).resequenced.released, 8000);
}

#[test]
fn what_all_flows_hold_stays_below_the_bound_of_the_node() {
    let limits = Limits { held_bytes: 100_000, ..Limits::default() };
    let mut bed = proxy_with(limits);
    let mut flows = Vec::new();
    for peer in more_peers(&mut bed, 1) {
        flows.extend(open_ordered(&mut bed, peer, 20).into_iter().map(|flow| (peer, flow)));
    }
    let mut most = 0;
    let bytes = kept(|| {
        // The gaps are not yet so old that they are given up.
        for number in 1..=20 {
            for &(peer, flow) in &flows {
                bed.world.node_mut(peer).datagram(numbered(flow, 2 * number, b"x"));
            }
            bed.world.run_for(2 * MS);
            most = most.max(bed.world.node_mut(bed.node).tunnel_memory().get());
        }
    });
    let exit = stats(&mut bed).resequenced;
    assert!(exit.given_up.flush > 0 && exit.waited == 20 * 40, "{exit:?}");
    // Beside what they hold, each flow notes which numbers arrived.
    assert!(most > 90_000 && most < 100_000 + 40 * 4500, "{most} bytes are counted");
    assert!(bytes < 100_000 + BED_BYTES, "{bytes} bytes are kept");
    bed.assert_serves("many small payloads");
}

#[test]
fn what_one_flow_holds_stays_below_its_bound() {
    let mut bed = proxy();
    let peer = bed.peer;
    let flow = open_ordered(&mut bed, peer, 1)[0];
    let (mut most, payload) = (0, [7; 1150]);
    // The first payloads let the peer's congestion window grow. Number 4000 never comes.
    for numbers in [0..4000, 4001..11_100] {
        for number in numbers {
            bed.peer().datagram(numbered(flow, number, &payload));
        }
        for _ in 0..100 {
            bed.world.run_for(MS);
            most = most.max(bed.world.node_mut(bed.node).tunnel_memory().get());
        }
        bed.peer().datagrams.clear();
    }
    let exit = stats(&mut bed).resequenced;
    assert!(exit.given_up.bytes > 0, "{exit:?}");
    let bound = Bounds::default().bytes;
    let held = exit.held_bytes_max + exit.held_packets_max * OVERHEAD;
    assert!(held > bound * 9 / 10 && held <= bound, "{held} bytes were held");
    assert!(most < bound as u64 + 400_000, "{most} bytes are counted");
}

#[test]
fn a_queue_of_small_payloads_stays_below_its_bound() {
    let limits = Limits { tunnel_queue: 200_000, ..Limits::default() };
    let mut bed = proxy_with(limits);
    let flow = bed.open_flow();
    bed.echo(flow, b"x");
    let (node, peer, target) = (bed.node, bed.peer, bed.target);
    bed.world.block(node, peer, Duration::from_secs(3));
    let flood = |bed: &mut Bed<Proxy>| {
        bed.world.node_mut(target).send((0..1000).map(|_| Bytes::from_static(b"x")));
        bed.world.run_for(2 * MS);
    };
    // The links of the world keep room for the packets of a turn.
    flood(&mut bed);
    let bytes = kept(|| (0..20).for_each(|_| flood(&mut bed)));
    let dropped = stats(&mut bed).dropped.queue_full;
    assert!(dropped > 10_000, "{dropped} payloads were dropped");
    let queued = bed.world.node_mut(node).tunnel_queue().get();
    let memory = bed.world.node_mut(node).tunnel_memory().get();
    assert!((1000..=200_000).contains(&queued), "{queued} bytes wait");
    assert!(memory < 3 * 200_000 + 20_000, "{memory} bytes are counted");
    assert!(bytes < 3 * 200_000 + BED_BYTES, "{bytes} bytes are kept");
}

#[test]
fn datagrams_kept_for_retransmission_stay_below_their_bound() {
    let limits = Limits { repair_bytes: 60_000, ..Limits::default() };
    let mut bed = proxy_with(limits);
    let peer = bed.peer;
    let flow = open_ordered(&mut bed, peer, 1)[0];
    bed.peer().datagram(numbered(flow, 0, b"x"));
    bed.run();
    let (node, target) = (bed.node, bed.target);
    bed.world.block(peer, node, Duration::from_secs(3));
    bed.world.node_mut(target).send((0..2000).map(|_| Bytes::from_static(b"x")));
    let bytes = kept(|| bed.world.run_for(Duration::from_secs(2)));
    let repaired = stats(&mut bed).repaired;
    assert!(repaired.given_up.room > 0, "{repaired:?}");
    // The rest are the packets in flight, which nobody acknowledges.
    assert!(bytes < 60_000 + 2000 * 700, "{bytes} bytes are kept");
}

#[test]
fn early_datagrams_stay_below_their_bounds() {
    let limits = Limits { queries: 30, ..Limits::default() };
    let mut bed = proxy_with(limits);
    let dropped = |bed: &mut Bed<Proxy>| stats(bed).dropped.unknown_flow;
    let bytes = kept(|| {
        for flow in 100..300 {
            bed.peer().datagram(udp_datagram(4 * flow, &[7; 1100]));
        }
        bed.world.run_for(20 * MS);
    });
    assert_eq!(dropped(&mut bed), 200 - 64);
    let memory = bed.world.node_mut(bed.node).tunnel_memory().get();
    assert!((64 * 1100..64 * 1500).contains(&memory), "{memory} bytes are counted");
    assert!(bytes < 64 * 1500 + BED_BYTES, "{bytes} bytes are kept");
    bed.world.run_for(Duration::from_secs(2));
    assert_eq!(dropped(&mut bed), 200);

    let flows: Vec<_> =
        (0..40).map(|_| bed.open_with(Dir::Bi, connect_udp("mute.test", "7"))).collect();
    bed.run();
    let refused = flows.iter().filter(|flow| !bed.came(**flow).data.is_empty()).count();
    assert_eq!(refused, 10, "30 names are looked up at once");
    assert_eq!(bed.answer(flows[39]).status(), 503);
    let bytes = kept(|| {
        for flow in &flows[..30] {
            for len in [1, 1100].repeat(20) {
                bed.peer().datagram(udp_datagram(*flow, &[7; 1100][..len]));
            }
            bed.world.run_for(5 * MS);
        }
        bed.run();
    });
    assert_eq!(dropped(&mut bed), 200 + 30 * (40 - 16));
    assert!(bytes < 30 * 24_000 + BED_BYTES, "{bytes} bytes are kept");
}

#[test]
fn half_header_sections_stay_below_their_bound() {
    let limits = Limits { request_streams: 200, ..Limits::default() };
    let max = limits.field_section;
    let mut bed = proxy_with(limits);
    let half = [varint(HEADERS), varint(max as u64), vec![0; max - 1]].concat();
    let bytes = kept(|| {
        while let Some(stream) = bed.peer().try_open(Dir::Bi) {
            // In pieces, so that the decoder has to put them together.
            for piece in half.chunks(1000) {
                bed.peer().send(stream, piece.to_vec());
            }
            bed.world.run_for(20 * MS);
            bed.peer().forget_sent();
        }
        bed.run();
    });
    let opened = bed.seen().streams.keys().filter(|stream| **stream % 4 == 0).count();
    assert_eq!(opened, 200, "the peer may have no more streams");
    // A buffer that grows with what comes has up to twice its bytes.
    assert!(bytes < 200 * 2 * 16_384 + BED_BYTES, "{bytes} bytes are kept");

    let mut bed = proxy();
    let stream = bed.open_with(Dir::Bi, [varint(HEADERS), varint(max as u64 + 1)].concat());
    bed.run();
    assert_eq!(bed.came(stream).end, Some(StreamEnd::Reset(Code::H3_EXCESSIVE_LOAD)));
}

#[test]
fn half_capsules_stay_below_their_bound() {
    let limits = Limits::default();
    let mut bed = proxy();
    let flows: Vec<_> = (0..30).map(|_| bed.open_flow()).collect();
    let cut = [varint(0), varint(limits.capsule as u64), vec![0; limits.capsule - 1]].concat();
    let bytes = kept(|| {
        for flow in &flows {
            bed.peer().send(*flow, frame(DATA, &cut));
            bed.run();
            bed.peer().forget_sent();
        }
    });
    let memory = i64::try_from(bed.world.node_mut(bed.node).tunnel_memory().get()).unwrap();
    assert!(memory > 30 * 65_000 && memory < 30 * 2 * 66_000, "{memory} bytes are counted");
    assert!(bytes < memory + BED_BYTES, "{bytes} bytes are kept, {memory} are counted");
    bed.peer().send(flows[0], frame(DATA, b"x"));
    let long = [varint(0), varint(limits.capsule as u64 + 1)].concat();
    let flow = bed.open_flow();
    bed.peer().send(flow, frame(DATA, &long));
    bed.run();
    assert_eq!(bed.came(flow).end, Some(StreamEnd::Reset(Code::H3_DATAGRAM_ERROR)));
}

#[test]
fn an_upload_is_not_kept() {
    let mut bed = Setup { takes_uploads: true, ..Setup::default() }.origin().with_control_stream();
    let head = headers(&[
        (":method", "PUT"),
        (":scheme", "https"),
        (":authority", "peer.test"),
        (":path", "/upload"),
        ("content-length", "5000000"),
    ]);
    let stream = bed.open_with(Dir::Bi, head);
    let bytes = kept(|| {
        for _ in 0..100 {
            bed.peer().send(stream, frame(DATA, &vec![7; 49_000]));
            bed.run();
        }
        bed.peer().forget_sent();
    });
    assert_eq!(bed.stats().upload_bytes.to_string(), "4900000");
    assert!(bytes < BED_BYTES, "{bytes} bytes are kept");
}
