//! Tests of the retransmission of datagrams with peers that lie, never retransmit, or only support
//! the draft.

use std::time::Duration;

use bytes::Bytes;
use noq_proto::Dir;
use tandem_node::{
    Client, Proxy,
    client::{Repair, TunnelMode},
    limits::Limits,
    stats::FeedbackStats,
};

use crate::{
    bed::{Bed, MS, Serving, Setup, granted},
    h3_bytes::{DATA, capsule, connect_udp_lines, frame, headers, http_datagram, varint},
};

const PATH: &str = "/.well-known/masque/udp/10.0.0.3/7/";

/// A request for a flow with these fields.
fn request(fields: &[(&'static str, &'static str)]) -> Vec<u8> {
    let mut lines = connect_udp_lines(PATH);
    lines.push(("capsule-protocol", "?1"));
    lines.extend(fields);
    headers(&lines)
}

fn open(bed: &mut Bed<Proxy>, fields: &[(&'static str, &'static str)]) -> u64 {
    let stream = bed.open_with(Dir::Bi, request(fields));
    bed.run();
    assert_eq!(bed.answer(stream).status(), 200);
    stream
}

/// A payload with its numbers, under the Context ID that the tests ask for.
fn numbered(stream: u64, number: u64, distance: u64, payload: &[u8]) -> Bytes {
    let content = [varint(number), varint(distance), payload.to_vec()].concat();
    http_datagram(stream, 2, &content)
}

const ORDERED: (&str, &str) = ("tandem-repair", "1;context=2;order=ordered");

#[test]
fn a_grant_agrees_to_what_was_understood() {
    for (fields, ours, draft) in [
        (&[][..], false, false),
        (&[ORDERED], true, false),
        (&[ORDERED, ("dg-retrans", "?1")], true, false),
        (&[("dg-retrans", "?1")], false, true),
        (&[("dg-retrans", "?0")], false, false),
        (&[("tandem-repair", "1;context=3")], false, false),
        (&[("tandem-repair", "2;context=2"), ("dg-retrans", "?1")], false, true),
        (&[("tandem-repair", "1;context=2;deadline=0")], false, false),
        (&[("tandem-repair", "1;context=2;limit=-1")], false, false),
        (&[("tandem-repair", "1;context=2;limit=99999999999999999999")], false, false),
    ] {
        let mut bed = Setup::default().proxy().with_control_stream();
        let stream = open(&mut bed, fields);
        let answer = bed.answer(stream);
        assert_eq!(!answer.field("tandem-repair").is_empty(), ours, "{fields:?}");
        assert_eq!(answer.field("dg-retrans") == "?1", draft, "{fields:?}");
        let has_ours = fields.iter().any(|(name, _)| *name == "tandem-repair");
        assert_eq!(bed.stats().fields_ignored, u64::from(has_ours && !ours), "{fields:?}");
    }
}

#[test]
fn numbers_that_lie_are_dropped_and_nothing_else_suffers() {
    let mut bed = Setup::default().proxy().with_control_stream();
    let stream = open(&mut bed, &[ORDERED]);
    let largest = (1 << 62) - 1;
    for datagram in [
        numbered(stream, 0, 0, b"first"),
        numbered(stream, 0, 0, b"again"),
        http_datagram(stream, 2, b""),
        http_datagram(stream, 2, &[0x40]),
        numbered(stream, 3, 4, b"floor below zero"),
        numbered(stream, largest, 0, b"no sane sender is there"),
        numbered(stream, largest, largest, b"nor there"),
        http_datagram(stream, 4, b"not agreed on"),
        numbered(stream, 1, 0, b"second"),
    ] {
        bed.peer().datagram(datagram);
        bed.world.run_for(5 * MS);
    }
    bed.run();
    assert_eq!(bed.at_target(), [&b"first"[..], b"second"]);
    let stats = bed.stats();
    assert_eq!((stats.dropped.malformed, stats.dropped.unknown_context), (3, 1));
    let exit = stats.resequenced;
    assert_eq!((exit.duplicates, exit.out_of_range, exit.released), (1, 2, 2));
    bed.assert_serves("numbers that lie");
}

#[test]
fn a_client_that_never_repairs_is_waited_for_within_bounds() {
    let mut bed = Setup::default().proxy().with_control_stream();
    let stream = open(&mut bed, &[ORDERED]);
    let payload = [7; 1000];
    // Number 0 never comes. Of the others every second one comes, and then one in 5000.
    let numbers = (1..=2000).map(|number| 2 * number).chain((1..=100).map(|jump| 5000 * jump));
    for (number, sent) in numbers.zip(1..) {
        bed.peer().datagram(numbered(stream, number, number, &payload));
        if sent % 10 == 0 {
            bed.world.run_for(MS);
        }
    }
    bed.run();
    let exit = bed.stats().resequenced;
    assert!(exit.held_bytes_max <= 8_000_000 && exit.held_packets_max <= 7168, "{exit:?}");
    assert!(exit.given_up.packets > 0 && exit.given_up.time > 0, "{exit:?}");
    bed.world.run_for(Duration::from_secs(11));
    let exit = bed.stats().resequenced;
    assert!(exit.given_up.silence > 0, "{exit:?}");
    assert_eq!((exit.released, bed.at_target().len()), (2100, 2100));
    bed.assert_serves("gaps");
}

#[test]
fn many_flows_that_wait_share_the_bound_of_the_node() {
    let limits = Limits { held_bytes: 100_000, ..Limits::default() };
    let mut bed = Setup { limits, ..Setup::default() }.proxy().with_control_stream();
    let streams: Vec<_> = (0..10).map(|_| open(&mut bed, &[ORDERED])).collect();
    for number in 1..=30 {
        for stream in &streams {
            bed.peer().datagram(numbered(*stream, number, number, &[7; 1000]));
        }
        bed.world.run_for(2 * MS);
    }
    bed.run();
    let exit = bed.stats().resequenced;
    assert!(exit.given_up.flush > 0, "{exit:?}");
    // Of the 300 payloads that came, at most 100 still wait.
    assert!(exit.released >= 200, "{exit:?}");
    bed.assert_serves("many flows");
}

#[test]
fn a_client_of_the_draft_is_repaired_as_often_as_it_says() {
    for (limits, repaired) in [
        (&[][..], 0),
        (&[(0xbb, vec![0])], 0),
        (&[(0xbb, vec![2])], 1),
        (&[(0xba, vec![0, 2])], 1),
        // These are for another context, and with a number that does not fill its value.
        (&[(0xba, vec![5, 2]), (0xbb, vec![2, 0])], 0),
        // Each value overwrites the earlier ones.
        (&[(0xbb, vec![2]), (0xba, vec![0, 0])], 0),
        (&[(0xbb, varint((1 << 62) - 1))], 1),
    ] {
        let mut bed = Setup::default().proxy().with_control_stream();
        let stream = open(&mut bed, &[("dg-retrans", "?1")]);
        for (capsule_type, value) in limits {
            bed.peer().send(stream, frame(DATA, &capsule(*capsule_type, value)));
        }
        bed.echo(stream, b"hello");
        let (node, peer, target) = (bed.node, bed.peer, bed.target);
        bed.world.block(node, peer, 3 * MS);
        bed.world.node_mut(target).send([Bytes::from_static(b"lost")]);
        bed.echo(stream, b"wake");
        bed.world.run_for(20 * MS);
        for _ in 0..5 {
            bed.world.node_mut(target).send([Bytes::from_static(b"later")]);
            bed.echo(stream, b"wake");
        }
        bed.run();
        let stats = bed.stats();
        assert_eq!(u64::from(stats.repaired.sent_again > 0), repaired, "{limits:?}: {stats:?}");
        bed.assert_serves("repair");
    }
}

fn client(grant: &[(&str, &str)]) -> Bed<Client> {
    granted(TunnelMode::Rmdt(Repair::default()), grant)
}

#[test]
fn a_stock_proxy_gets_plain_datagrams_and_no_capsules() {
    let bed = client(&[]);
    let came = &bed.seen().datagrams;
    assert!(!came.is_empty());
    assert!(came.iter().all(|datagram| datagram[..2] == [0, 0]), "quarter stream ID and context");
    let limit = capsule(0xbb, &[1]);
    assert!(!bed.came(0).data.windows(limit.len()).any(|bytes| bytes == limit));
}

#[test]
fn a_proxy_of_the_draft_is_told_how_often_to_repair() {
    let bed = client(&[("dg-retrans", "?1")]);
    assert!(bed.seen().datagrams.iter().all(|datagram| datagram[..2] == [0, 0]));
    let limit = frame(DATA, &capsule(0xbb, &[1]));
    assert!(bed.came(0).data.ends_with(&limit), "{:?}", bed.came(0));
}

#[test]
fn a_proxy_of_ours_gets_numbers() {
    let mut bed = client(&[("tandem-repair", "1;context=1")]);
    let came = &bed.seen().datagrams;
    assert!(!came.is_empty());
    assert!(came.iter().all(|datagram| datagram[..2] == [0, 2]), "quarter stream ID and context");
    assert_eq!(came[0][2..4], [0, 0], "number and distance to the floor");
    for malformed in [&[][..], &[0x40], &[1, 2, 0]] {
        bed.peer().datagram(http_datagram(0, 1, malformed));
    }
    bed.run();
    assert_eq!(bed.stats().dropped.malformed, 3);
    let bed = client(&[("tandem-repair", "1;context=2")]);
    assert!(bed.seen().datagrams.iter().all(|datagram| datagram[..2] == [0, 0]), "an even context");
}

#[test]
fn a_proxy_that_tells_nothing_of_its_tunnel_serves_who_asked_for_it() {
    for grant in [
        &[][..],
        &[("tandem-feedback", "2;context=3")],
        &[("tandem-feedback", "1;context=2")],
        &[("tandem-feedback", "1")],
    ] {
        let mut bed = granted(TunnelMode::Tecc(Repair::default()), grant);
        assert!(!bed.seen().datagrams.is_empty(), "{grant:?}");
        // This context was not agreed on, so it is treated as any unknown context.
        bed.peer().datagram(http_datagram(0, 3, &[1, 1, 1, 1, 1, 1, 1, 1, 1]));
        bed.run();
        let stats = bed.stats();
        assert_eq!(stats.feedback, FeedbackStats::default(), "{grant:?}");
        assert_eq!((stats.dropped.unknown_context, bed.closed_with()), (1, None), "{grant:?}");
    }
}

#[test]
fn reports_that_cannot_be_are_counted_and_end_nothing() {
    let mode = TunnelMode::Tecc(Repair::default());
    let mut bed = granted(mode, &[("tandem-feedback", "1;context=3")]);
    let report = |sequence: u64, rate: u64| {
        [1, sequence, rate, 0, 0, 0, 40_000, 40_000, 0].map(varint).concat()
    };
    for content in [
        report(0, 5_000),
        report(1, 5_000),
        report(1, 9_000), // repeated
        report(0, 9_000), // late
        report(2, 0),
        vec![1, 3],
        vec![],
        [2, 4].map(varint).concat(),
    ] {
        bed.peer().datagram(http_datagram(0, 3, &content));
        bed.run();
    }
    let FeedbackStats { sent, received, followed, stale, malformed } = bed.stats().feedback;
    assert_eq!((sent, received, followed, stale, malformed), (0, 2, 0, 2, 4));
    assert_eq!(bed.closed_with(), None);
}
