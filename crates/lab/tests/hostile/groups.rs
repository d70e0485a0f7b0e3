//! Tests of request streams that join the flow of another stream (`tandem-group`).

use noq_proto::Dir;
use tandem_node::Proxy;
use tandem_wire::Code;

use crate::{
    bed::{Bed, Serving, proxy},
    h3_bytes::{DATA, connect_udp_group, datagram_capsule, frame},
    raw_peer::StreamEnd,
};

/// Opens a flow that allows this number of streams.
fn open_group(bed: &mut Bed<Proxy>, streams: u8) -> u64 {
    let first = bed.open_with(Dir::Bi, connect_udp_group("10.0.0.3", "7", &streams.to_string()));
    bed.run();
    assert_eq!(bed.answer(first).status(), 200);
    assert_eq!(bed.answer(first).field("tandem-group"), streams.to_string());
    first
}

fn join(bed: &mut Bed<Proxy>, first: u64) -> u64 {
    let group = format!("8;first={first}");
    let stream = bed.open_with(Dir::Bi, connect_udp_group("10.0.0.3", "7", &group));
    bed.run();
    stream
}

/// Sends capsules over one stream, and returns the number of bytes that came back over each of the
/// streams `over`.
fn echo(bed: &mut Bed<Proxy>, stream: u64, count: usize, over: &[u64]) -> Vec<usize> {
    let before: Vec<_> = over.iter().map(|&stream| bed.answer(stream).body.len()).collect();
    for _ in 0..count {
        bed.peer().send(stream, frame(DATA, &datagram_capsule(b"hello")));
    }
    bed.run();
    let after = over.iter().map(|&stream| bed.answer(stream).body.len());
    after.zip(before).map(|(after, before)| after - before).collect()
}

#[test]
fn payloads_to_a_client_take_the_streams_of_a_group_in_turn() {
    let mut bed = proxy();
    let first = open_group(&mut bed, 3);
    let joined = [join(&mut bed, first), join(&mut bed, first)];
    let streams = [first, joined[0], joined[1]];
    assert_eq!(joined.map(|stream| bed.answer(stream).status()), [200, 200]);
    let came = echo(&mut bed, joined[1], 30, &streams);
    assert!(came.iter().all(|&bytes| bytes == came[0] && bytes > 0), "{came:?}");
    assert_eq!(bed.at_target().len(), 30);
    let stats = bed.stats();
    assert_eq!((stats.flows, stats.flows_open), (1, 1), "one flow, one socket");
}

#[test]
fn an_invalid_join_is_refused_and_no_other_stream_ends() {
    let mut bed = proxy();
    let plain = bed.open_flow();
    let first = open_group(&mut bed, 2);
    let joined = join(&mut bed, first);
    assert_eq!(bed.answer(joined).status(), 200);
    for (what, group, port) in [
        ("a flow that was never opened", "8;first=4000".to_owned(), "7"),
        ("a flow that did not ask for a group", format!("8;first={plain}"), "7"),
        ("another stream that joined", format!("8;first={joined}"), "7"),
        ("a group that is full", format!("8;first={first}"), "7"),
    ] {
        let answer = bed.ask(connect_udp_group("10.0.0.3", port, &group));
        assert_eq!(answer.status(), 400, "{what}");
        assert!(answer.field("proxy-status").contains("to join"), "{what}");
    }
    let other = open_group(&mut bed, 2);
    let answer = bed.ask(connect_udp_group("10.0.0.3", "8", &format!("8;first={other}")));
    assert_eq!(answer.status(), 400, "another target");
    assert_eq!(bed.stats().flows_open, 3);
    bed.assert_serves("requests that may not join");
}

#[test]
fn a_group_field_that_makes_no_sense_is_ignored_and_counted() {
    for (number, group) in ["0", "17", "-3", "8;first=1", "8;first=abc", "many"].iter().enumerate()
    {
        let mut bed = proxy();
        let answer = bed.ask(connect_udp_group("10.0.0.3", "7", group));
        assert_eq!(answer.status(), 200, "{group}");
        assert!(!answer.head.headers.contains_key("tandem-group"), "{group}");
        assert_eq!(bed.stats().fields_ignored, 1, "{number}: {group}");
    }
}

#[test]
fn the_streams_of_a_group_end_with_its_first() {
    let mut bed = proxy();
    let first = open_group(&mut bed, 4);
    let joined = [join(&mut bed, first), join(&mut bed, first)];
    bed.peer().finish(joined[0]);
    bed.run();
    assert_eq!(bed.answer(joined[0]).end, Some(StreamEnd::Finished));
    let came = echo(&mut bed, first, 10, &[first, joined[1]]);
    assert!(came[0] > 0 && came[0] == came[1], "the other streams continue: {came:?}");
    bed.peer().finish(first);
    bed.run();
    assert_eq!(bed.answer(joined[1]).end, Some(StreamEnd::Reset(Code::H3_NO_ERROR)));
    assert_eq!(bed.stats().flows_open, 0);
    bed.assert_serves("a group that ended");
}

#[test]
fn a_malformed_capsule_ends_the_stream_that_joined_and_not_its_flow() {
    let mut bed = proxy();
    let first = open_group(&mut bed, 2);
    let joined = join(&mut bed, first);
    bed.peer().send(joined, frame(DATA, &[0x00]));
    bed.peer().finish(joined);
    bed.run();
    assert_eq!(bed.answer(joined).end, Some(StreamEnd::Reset(Code::H3_MESSAGE_ERROR)));
    let came = echo(&mut bed, first, 5, &[first]);
    assert!(came[0] > 0, "{came:?}");
}
