//! Tests of open flows: capsules, packets that do not fit, and floods.

use std::time::Duration;

use bytes::Bytes;
use noq_proto::Dir;
use tandem_node::limits::Limits;
use tandem_wire::Code;

use crate::{
    bed::{Serving, Setup, proxy},
    h3_bytes::{
        DATA, GREASE, capsule, connect_udp, data, datagram_capsule, frame, udp_datagram, varint,
    },
    raw_peer::{Permits, StreamEnd},
};

#[test]
fn capsules_are_relayed_and_unknown_ones_skipped_however_they_are_cut() {
    let stream_data = [
        data(&[capsule(GREASE, b"who knows"), datagram_capsule(b"one"), capsule(0x1234, b"")]),
        frame(GREASE, b"a frame in between"),
        data(&[datagram_capsule(b""), datagram_capsule(b"two")]),
    ]
    .concat();
    let sent = [&b"one"[..], b"", b"two"];
    for split in 0..=stream_data.len() {
        let mut bed = proxy();
        let flow = bed.open_flow();
        let (first, second) = stream_data.split_at(split);
        bed.send_pieces(flow, [first, second]);
        bed.run();
        assert_eq!(bed.at_target(), sent, "split at {split}");
        assert_eq!(bed.stats().dropped.total(), 0, "split at {split}");
        assert_eq!(bed.answer(flow).end, None, "split at {split}");
    }
    let mut bed = proxy();
    let flow = bed.open_flow();
    bed.send_pieces(flow, stream_data.chunks(1));
    bed.run();
    assert_eq!(bed.at_target(), sent, "single bytes");
}

#[test]
fn what_came_in_capsules_goes_out_before_the_flow_ends() {
    let mut bed = proxy();
    let flow = bed.open_flow();
    bed.peer().send(flow, data(&[datagram_capsule(b"the last word")]));
    bed.peer().finish(flow);
    bed.run();
    assert_eq!(bed.at_target(), [&b"the last word"[..]]);
    assert_eq!(bed.stats().flows_open, 0);
    // Everything comes in one packet, before the flow was granted.
    let request = [connect_udp("10.0.0.3", "7"), data(&[datagram_capsule(b"early")])].concat();
    let flow = bed.open_with(Dir::Bi, request);
    bed.run();
    assert_eq!(bed.answer(flow).status(), 200);
    assert_eq!(bed.at_target()[1..], [&b"early"[..]]);
}

#[test]
fn a_malformed_capsule_ends_only_its_flow() {
    let datagram = datagram_capsule(b"cut");
    let too_long = [varint(0), varint(70_000)].concat();
    let longest = datagram_capsule(&vec![7; 65_528]);
    for (what, capsules, is_cut, code) in [
        // RFC 9297 §3.3.
        ("cut in its type", vec![0x40], true, Code::H3_MESSAGE_ERROR),
        ("cut in its length", vec![0x00], true, Code::H3_MESSAGE_ERROR),
        ("cut in its value", datagram[..4].to_vec(), true, Code::H3_MESSAGE_ERROR),
        ("unknown, cut", [varint(GREASE), vec![9, 1]].concat(), true, Code::H3_MESSAGE_ERROR),
        // RFC 9298 §5.
        ("DATAGRAM of 70000 bytes", too_long, false, Code::H3_DATAGRAM_ERROR),
        ("payload of 65528 bytes", longest, false, Code::H3_DATAGRAM_ERROR),
    ] {
        let mut bed = proxy();
        let other = bed.open_flow();
        let flow = bed.open_flow();
        bed.peer().send(flow, frame(DATA, &capsules));
        if is_cut {
            bed.peer().finish(flow);
        }
        bed.run();
        assert_eq!(bed.answer(flow).end, Some(StreamEnd::Reset(code)), "{what}");
        let stats = bed.stats();
        assert_eq!((stats.flows_open, stats.flows_ended.malformed), (1, 1), "{what}");
        assert_eq!(bed.echo(other, b"x"), [b"x"], "{what}");
    }
}

#[test]
fn a_datagram_capsule_without_context_is_dropped_alone() {
    let mut bed = proxy();
    let flow = bed.open_flow();
    let capsules = [
        capsule(0, b""),
        capsule(0, &[0x40]),
        capsule(0, &[0x02, b'x']),
        datagram_capsule(b"understood"),
    ];
    bed.peer().send(flow, data(&capsules));
    bed.run();
    let dropped = bed.stats().dropped;
    assert_eq!((dropped.malformed, dropped.unknown_context, dropped.total()), (2, 1, 3));
    assert_eq!(bed.at_target(), [&b"understood"[..]]);
}

#[test]
fn bytes_of_a_refused_request_lead_nowhere() {
    let mut bed = proxy();
    let stream = bed.open_with(Dir::Bi, connect_udp("127.0.0.1", "7"));
    bed.peer().send(stream, data(&[datagram_capsule(b"x"), vec![0xff; 10_000]]));
    bed.run();
    assert_eq!(bed.answer(stream).status(), 403);
    bed.peer().send(stream, vec![0xff; 100_000]);
    bed.run();
    bed.assert_serves("garbage after a refusal");
}

#[test]
fn a_packet_that_does_not_fit_is_dropped_and_its_flow_lives_on() {
    let mut bed = proxy();
    let flow = bed.open_flow();
    bed.echo(flow, b"x");
    bed.peer().datagrams.clear();
    let payloads = [1200, 1450, 9000, 65_507, 1].map(|len| Bytes::from(vec![7; len]));
    bed.world.node_mut(bed.target).send(payloads);
    bed.run();
    let lens: Vec<_> = bed.echoed(flow).iter().map(Vec::len).collect();
    assert_eq!(lens, [1200, 1]);
    assert_eq!(bed.stats().dropped.too_large, 3);
    // Three packets in one second cost one message.
    let told = bed.world.too_big(bed.node);
    assert!(matches!(told, [(_, 1450, 1200..1450)]), "{told:?}");
    assert_eq!(bed.answer(flow).end, None);
}

#[test]
fn a_flood_from_the_target_is_bounded_and_counted() {
    let limits = Limits { tunnel_queue: 50_000, ..Limits::default() };
    let mut bed = Setup { limits, ..Setup::default() }.proxy().with_control_stream();
    let flow = bed.open_flow();
    bed.echo(flow, b"x");
    bed.peer().datagrams.clear();
    let before = bed.stats();
    bed.world.node_mut(bed.target).send((0..5000).map(|_| Bytes::from(vec![7; 1000])));
    bed.world.run_for(Duration::from_secs(5));
    let (came, stats) = (bed.echoed(flow).len() as u64, bed.stats());
    assert!((50..1000).contains(&came), "{came} of 5000 came");
    assert_eq!(came + stats.dropped.queue_full, 5000);
    assert_eq!(stats.to_client_datagrams - before.to_client_datagrams, came);
    bed.assert_serves("a flood");
}

#[test]
fn a_flood_of_datagrams_for_nobody_leaves_no_trace() {
    let mut bed = proxy();
    let flow = bed.open_flow();
    for round in 0..50_u64 {
        for number in 0..200_u64 {
            bed.peer().datagram(udp_datagram(4 * (1 + (200 * round + number) % 1000), &[7; 500]));
        }
        bed.run();
    }
    bed.world.run_for(Duration::from_millis(500)); // the last ones wait for their requests
    let stats = bed.stats();
    assert_eq!(stats.dropped.unknown_flow, 10_000);
    assert_eq!(bed.echo(flow, b"x"), [b"x"]);
}

#[test]
fn a_flow_that_its_client_finishes_does_not_end_within_a_frame() {
    // RFC 9114 §7.1: "When a stream terminates cleanly, if the last frame on the stream was truncated,
    // this MUST be treated as a connection error of type H3_FRAME_ERROR."
    let permits = Permits { stream_window: 3000, ..Permits::default() };
    let mut bed = Setup { permits, ..Setup::default() }.proxy().with_control_stream();
    let flow = bed.open_flow();
    bed.peer().send(flow, data(&[datagram_capsule(b"in a capsule")]));
    bed.run();
    bed.peer().reads = false;
    let payloads = [Bytes::from(vec![7; 9000]), Bytes::from_static(b"another")];
    bed.world.node_mut(bed.target).send(payloads);
    bed.run();
    bed.peer().finish(flow);
    bed.run();
    assert_eq!(bed.stats().flows_open, 0);
    bed.peer().reads = true;
    bed.run();
    assert_eq!(bed.came(flow).end, Some(StreamEnd::Reset(Code::H3_NO_ERROR)));
    // An end between two frames is clean.
    let flow = bed.open_flow();
    bed.peer().send(flow, data(&[datagram_capsule(b"in a capsule")]));
    bed.run();
    bed.peer().finish(flow);
    bed.run();
    assert_eq!(bed.answer(flow).end, Some(StreamEnd::Finished));
    assert_eq!(bed.stats().flows_ended.by_client, 2);
}

#[test]
fn early_capsules_are_bounded_by_their_bytes_too() {
    let mut bed = proxy();
    let request = connect_udp("mute.test", "7");
    let flow = bed.open_with(Dir::Bi, request);
    for _ in 0..16 {
        bed.peer().send(flow, data(&[datagram_capsule(&[7; 10_000])]));
    }
    bed.run();
    assert_eq!(
        bed.stats().dropped.unknown_flow,
        14,
        "there is room for two full packets of ten each"
    );
}
