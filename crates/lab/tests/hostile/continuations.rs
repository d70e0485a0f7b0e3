//! Tests of request streams that continue on other streams.

use noq_proto::Dir;
use tandem_wire::Code;

use crate::{
    bed::{Serving, Setup, origin, proxy},
    h3_bytes::{DATA, connect_udp, data, datagram_capsule, frame, get, headers, varint},
    raw_peer::StreamEnd,
};

/// The type of the frame and of the stream.
const CONTINUATION: u64 = 0x2c4b_1d7a;

/// A stream that a client opens after its control stream.
const FIRST: u64 = 6;

fn continued(stream: u64) -> Vec<u8> {
    frame(CONTINUATION, &varint(stream))
}

/// A stream that continues a request with these frames.
fn continuation(request: u64, frames: &[u8]) -> Vec<u8> {
    [varint(CONTINUATION), varint(request), frames.to_vec()].concat()
}

fn payload(payload: &[u8]) -> Vec<u8> {
    data(&[datagram_capsule(payload)])
}

#[test]
fn bytes_of_other_streams_come_where_the_request_stream_says_however_they_are_cut() {
    let capsule = datagram_capsule(b"three");
    let (start, rest) = capsule.split_at(3);
    let first = [payload(b"two"), frame(DATA, start)].concat();
    let second = frame(DATA, rest);
    for split in 0..=first.len() + 8 {
        let mut bed = proxy();
        let flow = bed.open_flow();
        let (one, other) = (bed.peer().open(Dir::Uni), bed.peer().open(Dir::Uni));
        let ends = [continued(other), continued(one), payload(b"four")].concat();
        bed.send_pieces(flow, [&payload(b"one")[..], &ends]);
        bed.run();
        assert_eq!(bed.at_target(), [&b"one"[..]], "nothing has overtaken");
        for (stream, frames) in [(one, &second), (other, &first)] {
            let bytes = continuation(flow, frames);
            let (start, rest) = bytes.split_at(split.min(bytes.len()));
            bed.send_pieces(stream, [start, rest]);
            bed.peer().finish(stream);
            bed.run();
        }
        let sent = [&b"one"[..], b"two", b"three", b"four"];
        assert_eq!(bed.at_target(), sent, "split at {split}");
        assert_eq!(bed.answer(flow).end, None);
    }
}

#[test]
fn what_breaks_a_rule_ends_the_connection() {
    let head = headers(&[(":status", "200")]);
    let nested = continued(FIRST + 4);
    for (what, frames, on_other, code) in [
        ("HEADERS", &head[..], continued(FIRST), Code::H3_FRAME_UNEXPECTED),
        ("a continuation of it", &nested, continued(FIRST), Code::H3_FRAME_UNEXPECTED),
        ("half a frame", &[0, 9, 1], continued(FIRST), Code::H3_FRAME_ERROR),
        ("another request's bytes", &[], continued(FIRST), Code::H3_ID_ERROR),
        ("a request stream", &[], continued(4), Code::H3_ID_ERROR),
        ("the proxy's own stream", &[], continued(3), Code::H3_ID_ERROR),
        ("no stream ID", &[], frame(CONTINUATION, b""), Code::H3_FRAME_ERROR),
    ] {
        let mut bed = proxy();
        let flow = bed.open_flow();
        let other = bed.open_flow();
        let of = if what == "another request's bytes" { other } else { flow };
        assert_eq!(bed.open_with(Dir::Uni, continuation(of, frames)), FIRST);
        bed.peer().finish(FIRST);
        bed.peer().send(flow, on_other);
        bed.run();
        assert_eq!(bed.closed_with(), Some(code), "{what}: {:?}", bed.seen().closed);
    }
    for (what, request) in [("before a head", vec![]), ("in a request for a file", get("/file"))] {
        let mut bed = origin();
        bed.open_with(Dir::Bi, [request, continued(FIRST)].concat());
        bed.run();
        assert_eq!(bed.closed_with(), Some(Code::H3_FRAME_UNEXPECTED), "{what}");
    }
}

#[test]
fn a_continuation_of_no_request_is_not_read() {
    let mut bed = proxy();
    let flow = bed.open_flow();
    bed.peer().reset(flow, Code::H3_REQUEST_CANCELLED);
    bed.run();
    let late = bed.open_with(Dir::Uni, continuation(flow, &payload(b"late")));
    bed.run();
    assert_eq!(bed.seen().stopped.get(&late), Some(&Code::H3_REQUEST_CANCELLED));
    // A server's request stream does not exist.
    let wrong = bed.open_with(Dir::Uni, continuation(1, b""));
    bed.run();
    assert_eq!(bed.seen().stopped.get(&wrong), Some(&Code::H3_REQUEST_CANCELLED));
    bed.assert_serves("streams of no request");
}

#[test]
fn a_continuation_may_come_before_its_request() {
    let mut bed = proxy();
    let stream = bed.open_with(Dir::Uni, continuation(0, &payload(b"early")));
    bed.peer().finish(stream);
    bed.run();
    let request = [connect_udp("10.0.0.3", "7"), continued(stream)].concat();
    let flow = bed.open_with(Dir::Bi, request);
    bed.run();
    assert_eq!((flow, bed.answer(flow).status()), (0, 200));
    assert_eq!(bed.at_target(), [&b"early"[..]]);
}

#[test]
fn a_request_ends_with_its_continuations_and_they_with_it() {
    let mut bed = proxy();
    let flow = bed.open_flow();
    let stream = bed.open_with(Dir::Uni, continuation(flow, b""));
    bed.peer().send(flow, continued(stream));
    bed.run();
    bed.peer().reset(stream, Code::H3_REQUEST_CANCELLED);
    bed.run();
    assert_eq!(bed.answer(flow).end, Some(StreamEnd::Reset(Code::H3_REQUEST_CANCELLED)));
    assert_eq!(bed.stats().flows_open, 0);

    let flow = bed.open_flow();
    let unread = bed.open_with(Dir::Uni, continuation(flow, &[0; 1000]));
    let current = bed.open_with(Dir::Uni, continuation(flow, b""));
    bed.peer().send(flow, continued(current));
    bed.run();
    bed.peer().reset(flow, Code::H3_REQUEST_CANCELLED);
    bed.run();
    for stream in [unread, current] {
        assert!(bed.seen().stopped.contains_key(&stream), "{stream}");
    }
    bed.assert_serves("requests that continued");
}

#[test]
fn as_many_streams_as_a_client_may_open_cost_other_flows_nothing() {
    let mut bed = Setup::default().proxy().with_control_stream();
    let waiting = bed.open_flow();
    let mut opened = 0;
    while let Some(stream) = bed.peer().try_open(Dir::Uni) {
        bed.peer().send(stream, continuation(waiting, &[0; 10_000]));
        opened += 1;
    }
    assert!((40..100).contains(&opened), "{opened}");
    bed.peer().send(waiting, continued(1000 * 4 + 2)); // it never comes
    bed.run();
    let other = bed.open_flow();
    assert_eq!(bed.echo(other, b"x"), [b"x"]);
    assert_eq!(bed.answer(waiting).end, None);
}
