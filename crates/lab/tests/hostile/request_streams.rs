//! Tests of the data that a client may send on request streams, and of the errors that end the
//! connection or only the stream.

use noq_proto::Dir;
use tandem_wire::Code;

use crate::{
    bed::{FILE, MS, Serving, Setup, origin, proxy},
    h3_bytes::{
        CANCEL_PUSH, DATA, GOAWAY, GREASE, HEADERS, MAX_PUSH_ID, PUSH_PROMISE, SETTINGS,
        connect_udp, frame, get, headers, varint,
    },
    raw_peer::{Permits, StreamEnd},
};

/// A head that is followed by a body, so that it does not end the request.
fn post() -> Vec<u8> {
    headers(&[
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "peer.test"),
        (":path", "/file"),
    ])
}

fn concat(parts: &[Vec<u8>]) -> Vec<u8> {
    parts.concat()
}

/// Streams that end the connection as soon as they have arrived completely.
fn streams_that_end_the_connection() -> Vec<(&'static str, Vec<u8>, Code)> {
    let section = |bytes: &[u8]| frame(HEADERS, bytes);
    let data = || frame(DATA, b"data");
    let trailers = || headers(&[("x", "y")]);
    let mut table = vec![
        // RFC 9114 §4.1.
        ("DATA before HEADERS", concat(&[data(), get("/")]), Code::H3_FRAME_UNEXPECTED),
        (
            "HEADERS after trailers",
            concat(&[post(), data(), trailers(), trailers()]),
            Code::H3_FRAME_UNEXPECTED,
        ),
        ("DATA after trailers", concat(&[post(), trailers(), data()]), Code::H3_FRAME_UNEXPECTED),
        // RFC 9114 §7.2.3 to §7.2.7: these belong on the control stream, or nowhere.
        ("SETTINGS", frame(SETTINGS, b""), Code::H3_FRAME_UNEXPECTED),
        ("CANCEL_PUSH", frame(CANCEL_PUSH, &[0]), Code::H3_FRAME_UNEXPECTED),
        ("GOAWAY", frame(GOAWAY, &[0]), Code::H3_FRAME_UNEXPECTED),
        ("MAX_PUSH_ID", frame(MAX_PUSH_ID, &[0]), Code::H3_FRAME_UNEXPECTED),
        ("PUSH_PROMISE", frame(PUSH_PROMISE, &[0, 0, 0]), Code::H3_FRAME_UNEXPECTED),
        ("GOAWAY in a body", concat(&[post(), frame(GOAWAY, &[0])]), Code::H3_FRAME_UNEXPECTED),
        // RFC 9204 §2.2, §3.1, §4.5: no dynamic table, 99 entries in the static one.
        ("required insert count", section(&[1, 0]), Code::QPACK_DECOMPRESSION_FAILED),
        ("dynamic reference", section(&[0, 0, 0x80]), Code::QPACK_DECOMPRESSION_FAILED),
        ("post-base reference", section(&[0, 0, 0x10]), Code::QPACK_DECOMPRESSION_FAILED),
        ("static index 99", section(&[0, 0, 0xff, 36]), Code::QPACK_DECOMPRESSION_FAILED),
        ("no prefix", section(&[]), Code::QPACK_DECOMPRESSION_FAILED),
        ("cut string", section(&[0, 0, 0x23, b'a']), Code::QPACK_DECOMPRESSION_FAILED),
        ("endless integer", section(&[0xff; 16]), Code::QPACK_DECOMPRESSION_FAILED),
        ("bad Huffman", section(&[0, 0, 0x29, 0]), Code::QPACK_DECOMPRESSION_FAILED),
        (
            "dynamic reference in trailers",
            concat(&[post(), section(&[0, 0, 0x80])]),
            Code::QPACK_DECOMPRESSION_FAILED,
        ),
        // RFC 9114 §7.1.
        ("cut type", concat(&[get("/"), vec![0x40]]), Code::H3_FRAME_ERROR),
        ("cut length", concat(&[get("/"), vec![0x00, 0x40]]), Code::H3_FRAME_ERROR),
        ("cut HEADERS", vec![0x01, 5, 0, 0], Code::H3_FRAME_ERROR),
        ("cut DATA", concat(&[post(), vec![0x00, 5, 1]]), Code::H3_FRAME_ERROR),
        ("cut GREASE", concat(&[post(), vec![0x21, 5, 1]]), Code::H3_FRAME_ERROR),
    ];
    // RFC 9114 §7.2.8.
    for (what, frame_type) in
        [("PRIORITY", 2), ("PING", 6), ("WINDOW_UPDATE", 8), ("CONTINUATION", 9)]
    {
        table.push((what, frame(frame_type, b""), Code::H3_FRAME_UNEXPECTED));
    }
    table
}

#[test]
fn a_stream_that_breaks_the_frames_ends_the_connection() {
    for (what, bytes, code) in streams_that_end_the_connection() {
        let mut bed = origin();
        let stream = bed.open_with(Dir::Bi, bytes);
        bed.peer().finish(stream);
        bed.run();
        assert_eq!(bed.closed_with(), Some(code), "{what}: {:?}", bed.seen().closed);
        let stats = bed.stats();
        assert_eq!((stats.connections_broken, stats.connections_open), (1, 0), "{what}");
    }
}

#[test]
fn only_data_may_follow_a_connect_request() {
    // RFC 9114 §4.4: "Receipt of any other known frame type MUST be treated as a connection error
    // of type H3_FRAME_UNEXPECTED."
    let mut bed = proxy();
    let stream = bed.open_flow();
    bed.peer().send(stream, headers(&[("x", "y")]));
    bed.run();
    assert_eq!(bed.closed_with(), Some(Code::H3_FRAME_UNEXPECTED));
    assert_eq!(bed.stats().flows_open, 0);
}

/// The name of an error, and the lines of a request with this error.
type Malformed = (&'static str, &'static [(&'static str, &'static str)]);

const M: (&str, &str) = (":method", "GET");
const S: (&str, &str) = (":scheme", "https");
const A: (&str, &str) = (":authority", "peer.test");
const P: (&str, &str) = (":path", "/");

/// RFC 9114 §4.1.2 to §4.4, RFC 9220 §3.
const MALFORMED_REQUESTS: &[Malformed] = &[
    ("nothing", &[]),
    ("no :method", &[S, A, P]),
    ("no :scheme", &[M, A, P]),
    ("no :path", &[M, S, A]),
    ("no :authority", &[M, S, P]),
    ("empty :path", &[M, S, A, (":path", "")]),
    ("relative :path", &[M, S, A, (":path", "file")]),
    ("empty :authority", &[M, S, (":authority", ""), P]),
    (":authority with userinfo", &[M, S, (":authority", "me@peer.test"), P]),
    (":authority and another host", &[M, S, A, P, ("host", "other.test")]),
    ("two hosts", &[M, S, A, P, ("host", "peer.test"), ("host", "peer.test")]),
    (":method twice", &[M, M, S, A, P]),
    (":path twice", &[M, S, A, P, P]),
    (":status in a request", &[M, S, A, P, (":status", "200")]),
    ("unknown pseudo-header", &[M, S, A, P, (":x", "y")]),
    ("pseudo-header after a field", &[M, S, A, ("x", "y"), P]),
    ("uppercase", &[M, S, A, P, ("X", "y")]),
    ("empty name", &[M, S, A, P, ("", "y")]),
    ("space in a name", &[M, S, A, P, ("x y", "z")]),
    ("line feed in a value", &[M, S, A, P, ("x", "y\nz")]),
    ("carriage return in a value", &[M, S, A, P, ("x", "y\rz")]),
    ("NUL in a value", &[M, S, A, P, ("x", "y\0z")]),
    ("space in :method", &[(":method", "GET x"), S, A, P]),
    ("connection", &[M, S, A, P, ("connection", "close")]),
    ("keep-alive", &[M, S, A, P, ("keep-alive", "1")]),
    ("proxy-connection", &[M, S, A, P, ("proxy-connection", "close")]),
    ("transfer-encoding", &[M, S, A, P, ("transfer-encoding", "chunked")]),
    ("upgrade", &[M, S, A, P, ("upgrade", "h2c")]),
    ("te", &[M, S, A, P, ("te", "gzip")]),
    (":protocol without CONNECT", &[M, S, A, P, (":protocol", "connect-udp")]),
    ("CONNECT with :path", &[(":method", "CONNECT"), (":authority", "peer.test:443"), P]),
    ("CONNECT without port", &[(":method", "CONNECT"), A]),
    (
        "extended CONNECT without :path",
        &[(":method", "CONNECT"), (":protocol", "connect-udp"), S, A],
    ),
];

#[test]
fn a_malformed_request_is_reset_and_ends_nothing_else() {
    let mut bed = origin();
    for (what, lines) in MALFORMED_REQUESTS {
        let stream = bed.open_with(Dir::Bi, headers(lines));
        bed.run();
        let end = Some(StreamEnd::Reset(Code::H3_MESSAGE_ERROR));
        assert_eq!(bed.came(stream).end, end, "{what}");
        assert_eq!(bed.seen().stopped.get(&stream), Some(&Code::H3_MESSAGE_ERROR), "{what}");
    }
    bed.assert_serves("malformed requests");
    assert_eq!(bed.stats().connections_broken, 0);
    assert_eq!(bed.stats().requests, 1, "malformed requests do not count");
}

#[test]
fn an_incomplete_or_overlong_request_is_reset_and_ends_nothing_else() {
    let long = "x".repeat(20_000);
    let many: Vec<_> = (0..600).map(|_| ("x", "y")).collect();
    for (what, bytes, code) in [
        // RFC 9114 §4.1.
        ("nothing", vec![], Code::H3_REQUEST_INCOMPLETE),
        ("only GREASE", frame(GREASE, b"x"), Code::H3_REQUEST_INCOMPLETE),
        // RFC 9114 §10.5.1: a larger section risks to be treated as malformed; not the connection.
        ("20000 bytes", headers(&[M, S, A, P, ("x", &long)]), Code::H3_EXCESSIVE_LOAD),
        ("600 fields", headers(&[&[M, S, A, P], &many[..]].concat()), Code::H3_EXCESSIVE_LOAD),
        ("2^50 bytes", concat(&[varint(HEADERS), varint(1 << 50)]), Code::H3_EXCESSIVE_LOAD),
        // RFC 9114 §4.3.
        (
            "pseudo-header in trailers",
            concat(&[post(), headers(&[(":path", "/")])]),
            Code::H3_MESSAGE_ERROR,
        ),
        (
            "uppercase in trailers",
            concat(&[post(), headers(&[("X", "y")])]),
            Code::H3_MESSAGE_ERROR,
        ),
    ] {
        let mut bed = Setup { permits: small_window(), ..Setup::default() }.origin();
        bed.peer().reads = false;
        let stream = bed.open_with(Dir::Bi, bytes);
        bed.peer().finish(stream);
        bed.run();
        bed.peer().reads = true;
        bed.run();
        assert_eq!(bed.seen().closed, None, "{what}");
        assert_eq!(bed.came(stream).end, Some(StreamEnd::Reset(code)), "{what}");
    }
}

/// A small window, by which answers are not complete before the request has been read.
fn small_window() -> Permits {
    Permits { stream_window: 16, ..Permits::default() }
}

#[test]
fn frames_of_unknown_types_are_skipped_wherever_they_are() {
    let grease = frame(GREASE, &[7; 3000]);
    let request = [
        grease.clone(),
        get("/file"),
        grease.clone(),
        frame(DATA, b"a body that nobody wants"),
        grease.clone(),
        headers(&[("trailer", "x")]),
        grease,
    ];
    let mut bed = origin();
    let stream = bed.open_with(Dir::Bi, request.concat());
    bed.peer().finish(stream);
    bed.run();
    let answer = bed.answer(stream);
    assert_eq!((answer.status(), &*answer.body), (200, FILE));
    assert_eq!(answer.end, Some(StreamEnd::Finished));
    bed.assert_serves("GREASE");
}

#[test]
fn a_request_may_come_in_any_pieces() {
    let request = [frame(GREASE, b"x"), get("/file"), frame(DATA, b"body")].concat();
    let mut bed = origin();
    for split in 1..request.len() {
        let stream = bed.peer().open(Dir::Bi);
        let (first, second) = request.split_at(split);
        bed.send_pieces(stream, [first, second]);
        bed.peer().finish(stream);
        bed.run();
        assert_eq!(bed.answer(stream).body, FILE, "split at {split}");
    }
}

#[test]
fn a_request_that_its_client_gives_up_ends_nothing_else() {
    let request = get("/file");
    for code in [Code::H3_REQUEST_CANCELLED, Code::H3_REQUEST_REJECTED, Code(0x1234)] {
        // RFC 9114 §4.1.1: "Servers MUST NOT use the H3_REQUEST_REJECTED error code for requests
        // that were partially or fully processed."
        let cancelled = Some(StreamEnd::Reset(Code::H3_REQUEST_CANCELLED));
        let mut bed = Setup { permits: small_window(), ..Setup::default() }.origin();
        bed.peer().reads = false;
        let in_head = bed.open_with(Dir::Bi, request[..9].to_vec());
        let in_body = bed.open_with(Dir::Bi, post());
        bed.run();
        bed.peer().reset(in_head, code);
        bed.peer().reset(in_body, code);
        bed.run();
        bed.peer().reads = true;
        bed.run();
        assert_eq!(bed.came(in_head).end, cancelled, "{code}");
        assert_eq!(bed.came(in_body).end, cancelled, "{code}");
        assert_eq!(bed.seen().closed, None);

        let mut bed = origin();
        let stopped = bed.open_with(Dir::Bi, request.clone());
        bed.peer().stop(stopped, code);
        bed.run();
        bed.assert_serves("STOP_SENDING");
    }
}

#[test]
fn more_requests_at_once_than_allowed_wait_and_all_are_answered() {
    let mut bed = origin();
    let mut answered = 0;
    for _ in 0..3 {
        let mut streams = Vec::new();
        while let Some(stream) = bed.peer().try_open(Dir::Bi) {
            bed.peer().send(stream, get("/file"));
            bed.peer().finish(stream);
            streams.push(stream);
        }
        assert!((500..=1024).contains(&streams.len()), "{} streams", streams.len());
        bed.world.run_for(1000 * MS);
        for stream in streams {
            assert_eq!(bed.answer(stream).body, FILE, "stream {stream}");
            answered += 1;
        }
    }
    assert_eq!(bed.stats().requests, answered);
    bed.assert_serves("thousands of requests");
}

#[test]
fn an_answer_waits_for_the_clients_window() {
    // The head of the answer does not fit into the window, and must not be lost.
    let permits = Permits { stream_window: 16, ..Permits::default() };
    let setup = Setup { permits, ..Setup::default() };
    let mut bed = setup.proxy().with_control_stream();
    for (host, status) in [("127.0.0.1", 403), ("10.0.0.3", 200)] {
        let answer = bed.ask(connect_udp(host, "7"));
        assert_eq!(answer.status(), status);
        assert_eq!(
            answer.end.is_some(),
            status != 200,
            "a flow stays open, and a refusal ends its stream"
        );
    }
    let mut bed = setup.origin().with_control_stream();
    for (path, status) in [("/file", 200), ("/nothing", 404)] {
        let answer = bed.ask(get(path));
        assert_eq!((answer.status(), answer.end), (status, Some(StreamEnd::Finished)));
    }
}

#[test]
fn methods_that_the_origin_does_not_know_are_refused() {
    for (method, status) in [("POST", 405), ("PUT", 405), ("OPTIONS", 405), ("BREW", 405)] {
        let mut bed = origin();
        let answer = bed.ask(headers(&[(":method", method), S, A, P]));
        assert_eq!((answer.status(), answer.field("allow")), (status, "GET, HEAD"));
        bed.assert_serves(method);
    }
}
