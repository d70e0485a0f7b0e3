//! Tests of our client with servers that break the rules.

use std::time::Duration;

use bytes::Bytes;
use noq_proto::Dir;
use tandem_lab::{
    LinkConfig,
    endpoints::{SenderHost, Shot},
};
use tandem_node::{
    Client, Event,
    client::{ForwardConfig, Task},
    error::ClientError,
};
use tandem_wire::{CAPSULE_TYPE_PROXY_STATUS, Code, PROXY_STATUS_MAX};

use crate::{
    bed::{Bed, MS, fetch, fetching, tunnelling},
    h3_bytes::{
        DATA, GOAWAY, GREASE, HEADERS, PUSH_PROMISE, capsule, control_stream, datagram_capsule,
        frame, headers, http_datagram, settings, udp_datagram, varint,
    },
    raw_peer::StreamEnd,
};

const BODY: &[u8] = b"0123456789";

fn head(lines: &[(&str, &str)]) -> Vec<u8> {
    headers(lines)
}

fn ok() -> Vec<u8> {
    head(&[(":status", "200"), ("content-length", "10")])
}

fn body() -> Vec<u8> {
    frame(DATA, BODY)
}

/// The end of a client whose first request is answered with these bytes and FIN.
fn answered(streams: usize, answer: &[Vec<u8>]) -> Bed<Client> {
    let mut bed = fetching(streams).with_control_stream();
    bed.peer().send(0, answer.concat());
    bed.peer().finish(0);
    bed.run();
    bed
}

#[test]
fn a_proper_answer_is_fetched_whatever_is_around_it() {
    let grease = frame(GREASE, &[1; 5000]);
    let interim = head(&[(":status", "103"), ("link", "</style.css>")]);
    let no_length = head(&[(":status", "200")]);
    for (what, answer) in [
        ("head and body", vec![ok(), body()]),
        ("no length", vec![no_length.clone(), body()]),
        ("GREASE", vec![grease.clone(), ok(), grease.clone(), body(), grease]),
        ("interim answers", vec![interim.clone(), head(&[(":status", "100")]), ok(), body()]),
        ("trailers", vec![ok(), body(), head(&[("x", "y")])]),
        ("single bytes", [vec![ok()], BODY.iter().map(|b| frame(DATA, &[*b])).collect()].concat()),
        ("empty DATA", vec![ok(), frame(DATA, b""), body(), frame(DATA, b"")]),
    ] {
        let bed = answered(1, &answer);
        assert_eq!(bed.ended(), Some(Ok(())), "{what}");
        assert_eq!(bed.world.body(bed.node).bytes(), 10, "{what}");
    }
}

#[test]
fn any_number_of_interim_answers_may_come_before_the_final_one() {
    let mut bed = fetching(1).with_control_stream();
    // The first packet is lost, so that all later packets are read at once.
    bed.world.block(bed.peer, bed.node, MS);
    bed.peer().send(0, head(&[(":status", "100")]));
    bed.world.run_for(2 * MS);
    bed.peer().send(0, head(&[(":status", "100")]).repeat(20_000));
    bed.peer().send(0, [ok(), body()].concat());
    bed.peer().finish(0);
    bed.world.run_for(Duration::from_secs(2));
    assert_eq!(bed.ended(), Some(Ok(())));
}

#[test]
fn an_answer_that_breaks_the_frames_ends_the_connection() {
    let trailers = || head(&[("x", "y")]);
    let section = |bytes: &[u8]| frame(HEADERS, bytes);
    for (what, answer, code) in [
        ("DATA first", vec![body()], Code::H3_FRAME_UNEXPECTED),
        (
            "DATA after an interim answer",
            vec![head(&[(":status", "103")]), body(), ok()],
            Code::H3_FRAME_UNEXPECTED,
        ),
        ("DATA after trailers", vec![ok(), trailers(), body()], Code::H3_FRAME_UNEXPECTED),
        ("two trailers", vec![ok(), body(), trailers(), trailers()], Code::H3_FRAME_UNEXPECTED),
        ("GOAWAY", vec![frame(GOAWAY, &[0])], Code::H3_FRAME_UNEXPECTED),
        // RFC 9114 §7.2.5: we allow no push at all.
        ("PUSH_PROMISE", vec![frame(PUSH_PROMISE, &[0, 0, 0])], Code::H3_ID_ERROR),
        ("cut frame", vec![ok(), vec![0x00, 10, 1]], Code::H3_FRAME_ERROR),
        ("dynamic table", vec![section(&[0, 0, 0x80])], Code::QPACK_DECOMPRESSION_FAILED),
    ] {
        let bed = answered(1, &answer);
        assert_eq!(bed.closed_with(), Some(code), "{what}: {:?}", bed.ended());
        assert!(matches!(bed.ended(), Some(Err(ClientError::Protocol { .. }))), "{what}");
    }
}

#[test]
fn a_malformed_answer_is_not_accepted() {
    // RFC 9114 §4.1.2: "Clients MUST NOT accept a malformed response."
    let status = (":status", "200");
    for (what, answer) in [
        ("no :status", vec![head(&[("x", "y")]), body()]),
        (":status twice", vec![head(&[status, status]), body()]),
        (":status 20", vec![head(&[(":status", "20")]), body()]),
        (":status abc", vec![head(&[(":status", "abc")]), body()]),
        (":status 101", vec![head(&[(":status", "101")]), ok(), body()]),
        (":method in an answer", vec![head(&[status, (":method", "GET")]), body()]),
        ("uppercase", vec![head(&[status, ("X", "y")]), body()]),
        ("connection", vec![head(&[status, ("connection", "close")]), body()]),
        ("pseudo-header in trailers", vec![ok(), body(), head(&[status])]),
    ] {
        let bed = answered(1, &answer);
        assert!(matches!(bed.ended(), Some(Err(_))), "{what}: {:?}", bed.ended());
    }
}

#[test]
fn a_body_has_the_length_that_was_announced() {
    // RFC 9114 §4.1.2.
    let status = (":status", "200");
    for (what, answer) in [
        ("shorter than its length", vec![ok(), frame(DATA, b"012345678")]),
        ("longer than its length", vec![ok(), body(), frame(DATA, b"x")]),
        ("empty despite its length", vec![ok()]),
        (
            "two lengths",
            vec![head(&[status, ("content-length", "10"), ("content-length", "11")]), body()],
        ),
        ("a signed length", vec![head(&[status, ("content-length", "+10")]), body()]),
        ("no number for a length", vec![head(&[status, ("content-length", "ten")]), body()]),
    ] {
        let bed = answered(1, &answer);
        assert!(matches!(bed.ended(), Some(Err(_))), "{what}: {:?}", bed.ended());
        assert_eq!(bed.closed_with(), Some(Code::H3_MESSAGE_ERROR), "{what}");
    }
    for lines in [
        &[status, ("content-length", "10"), ("content-length", "10")][..],
        &[status, ("content-length", "10, 10")],
    ] {
        assert_eq!(answered(1, &[head(lines), body()]).ended(), Some(Ok(())), "{lines:?}");
    }
}

#[test]
fn a_range_that_was_not_asked_for_is_not_accepted() {
    let part = |range: &'static str, len: usize| {
        vec![head(&[(":status", "206"), ("content-range", range)]), frame(DATA, &vec![0; len])]
    };
    for (what, streams, answer) in [
        ("a part, though the whole was wanted", 1, part("bytes 0-9/100", 10)),
        ("another part", 2, part("bytes 10-19/100", 10)),
        ("no Content-Range", 2, vec![head(&[(":status", "206")]), body()]),
        ("an unknown total", 2, part("bytes 0-9/*", 10)),
        ("a part shorter than its range", 2, part("bytes 0-9/10", 9)),
        ("a part longer than its range", 2, part("bytes 0-9/10", 11)),
        (
            "a length other than the range's",
            2,
            vec![
                head(&[
                    (":status", "206"),
                    ("content-range", "bytes 0-9/10"),
                    ("content-length", "9"),
                ]),
                body(),
            ],
        ),
    ] {
        let bed = answered(streams, &answer);
        assert!(matches!(bed.ended(), Some(Err(_))), "{what}: {:?}", bed.ended());
    }
    // The second range is shorter or longer than requested.
    for second in ["bytes 10-18/20", "bytes 10-20/21"] {
        let mut bed = fetching(2).with_control_stream();
        bed.peer().send(0, part("bytes 0-9/20", 10).concat());
        bed.peer().finish(0);
        bed.run();
        bed.peer().send(4, part(second, 9).concat());
        bed.peer().finish(4);
        bed.run();
        bed.peer().send(8, part("bytes 15-19/20", 5).concat());
        bed.peer().finish(8);
        bed.run();
        assert!(matches!(bed.ended(), Some(Err(_))), "{second}: {:?}", bed.ended());
    }
}

#[test]
fn an_answer_that_ends_early_ends_the_client() {
    for (what, answer) in [
        ("nothing", vec![]),
        ("only an interim answer", vec![head(&[(":status", "103")])]),
        ("only GREASE", vec![frame(GREASE, b"x")]),
    ] {
        let bed = answered(1, &answer);
        assert!(matches!(bed.ended(), Some(Err(ClientError::Body { .. }))), "{what}");
    }
    for code in [Code::H3_NO_ERROR, Code::H3_REQUEST_REJECTED, Code(0x7777)] {
        let mut bed = fetching(1).with_control_stream();
        bed.peer().send(0, [ok(), frame(DATA, b"01234")].concat());
        bed.run();
        bed.peer().reset(0, code);
        bed.run();
        assert!(matches!(bed.ended(), Some(Err(ClientError::Body { .. }))), "{code}");
    }
}

#[test]
fn a_servers_bidirectional_stream_ends_the_connection() {
    // RFC 9114 §6.1.
    let mut bed = fetching(1).with_control_stream();
    bed.open_with(Dir::Bi, b"anything".to_vec());
    bed.run();
    assert_eq!(bed.closed_with(), Some(Code::H3_STREAM_CREATION_ERROR));
}

#[test]
fn after_goaway_nothing_more_is_asked_for() {
    // RFC 9114 §5.2: "Endpoints MUST NOT initiate new requests or promise new pushes on the
    // connection after receipt of a GOAWAY frame from the peer."
    let mut bed = fetching(3);
    bed.open_with(Dir::Uni, control_stream(&frame(GOAWAY, &[4])));
    bed.run();
    assert_eq!(bed.ended(), None, "its request is below the ID in GOAWAY");
    let range = ("content-range", "bytes 0-9/30");
    bed.peer().send(0, [head(&[(":status", "206"), range]), body()].concat());
    bed.peer().finish(0);
    bed.run();
    assert!(!bed.seen().streams.contains_key(&4), "no more requests");
    assert!(matches!(bed.ended(), Some(Err(_))), "{:?}", bed.ended());

    // This request will not be answered.
    let mut bed = fetching(1);
    bed.open_with(Dir::Uni, control_stream(&frame(GOAWAY, &[0])));
    bed.run();
    assert!(matches!(bed.ended(), Some(Err(_))), "{:?}", bed.ended());
}

#[test]
fn datagrams_for_a_download_end_it_and_do_not_pile_up() {
    // RFC 9297 §2.
    let mut bed = fetching(1).with_control_stream();
    bed.peer().datagram(udp_datagram(400, b"for no request"));
    bed.run();
    assert_eq!(bed.ended(), None);
    bed.peer().datagram(udp_datagram(0, b"for a GET"));
    bed.run();
    assert_eq!(bed.closed_with(), Some(Code::H3_DATAGRAM_ERROR));
    assert!(matches!(bed.ended(), Some(Err(_))));
}

/// A client whose proxy has granted its flow to an origin, on stream 0.
fn in_tunnel() -> Bed<Client> {
    let mut bed = tunnelling(fetch("origin.test", 1)).with_control_stream();
    bed.peer().send(0, head(&[(":status", "200"), ("capsule-protocol", "?1")]));
    bed.run();
    let is_up = |(_, event): &(_, Event)| matches!(event, Event::HopUp { .. });
    assert!(bed.world.events(bed.node).iter().any(is_up));
    bed
}

#[test]
fn a_proxy_that_lacks_what_we_need_is_told_from_one_that_is_silent() {
    for (what, offered) in [
        ("nothing", &[][..]),
        ("no extended CONNECT", &[(0x33, 1)]),
        ("extended CONNECT off", &[(0x08, 0), (0x33, 1)]),
    ] {
        let mut bed = tunnelling(fetch("origin.test", 1));
        bed.open_with(Dir::Uni, [varint(0), settings(offered)].concat());
        bed.run();
        let ended = bed.ended();
        assert!(matches!(ended, Some(Err(ClientError::Unsupported { .. }))), "{what}: {ended:?}");
        assert!(!bed.seen().streams.contains_key(&0), "{what}: the client sent a request");
    }
    let mut bed = tunnelling(fetch("origin.test", 1));
    bed.world.run_for(Duration::from_secs(13));
    assert!(matches!(bed.ended(), Some(Err(ClientError::NoAnswer { .. }))), "{:?}", bed.ended());
}

#[test]
fn a_refusal_is_told_with_its_reason_and_without_control_characters() {
    for status in ["301", "400", "403", "407", "502", "599"] {
        let mut bed = tunnelling(fetch("origin.test", 1)).with_control_stream();
        let proxy_status = ("proxy-status", "peer; error=dns_error; details=\"\u{9b}[31mred\"");
        bed.peer().send(0, head(&[(":status", status), proxy_status]));
        bed.peer().finish(0);
        bed.run();
        let Some(Err(error @ ClientError::Refused { .. })) = bed.ended() else {
            panic!("{status}: {:?}", bed.ended());
        };
        let text = error.to_string();
        assert!(text.contains(status) && text.contains("dns_error"), "{text}");
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}

#[test]
fn the_reason_for_which_a_flow_ends_is_told_in_words() {
    let capsule_type = CAPSULE_TYPE_PROXY_STATUS.get();
    let status = |value: &str| frame(DATA, &capsule(capsule_type, value.as_bytes()));
    for (value, words) in [
        ("p;error=connection_refused", "the target refused the connection (connection_refused)"),
        ("p;error=destination_ip_unroutable;details=\"no route\"", "no route to the target"),
        ("a proxy \u{1b}[2J", "and says a proxy \\u{1b}[2J"),
        ("", "and says "),
    ] {
        let mut bed = in_tunnel();
        bed.peer().send(0, status(value));
        bed.run();
        let Some(Err(error @ ClientError::FlowClosed { .. })) = bed.ended() else {
            panic!("{value:?}: {:?}", bed.ended());
        };
        let text = error.to_string();
        assert!(text.contains(words) && text.contains("origin.test:443"), "{text}");
        assert!(!text.contains(char::is_control), "{text:?}");
        assert_eq!(bed.came(0).end, Some(StreamEnd::Reset(Code::H3_NO_ERROR)));
    }
    // A value that is too long is skipped, as is each capsule that nobody knows.
    let mut bed = in_tunnel();
    bed.peer().send(0, status(&"x".repeat(PROXY_STATUS_MAX + 1)));
    bed.run();
    assert_eq!(bed.ended(), None);
    bed.peer().reset(0, Code::H3_CONNECT_ERROR);
    bed.run();
    let Some(Err(error)) = bed.ended() else { panic!("{:?}", bed.ended()) };
    assert!(error.to_string().contains("cannot reach the target (H3_CONNECT_ERROR)"), "{error}");
}

#[test]
fn a_tunnel_that_its_proxy_ends_ends_the_client() {
    type End = fn(&mut Bed<Client>);
    let ends: [(&str, End); 4] = [
        ("FIN", |bed| bed.peer().finish(0)),
        ("RESET", |bed| bed.peer().reset(0, Code::H3_CONNECT_ERROR)),
        ("HEADERS", |bed| bed.peer().send(0, head(&[("x", "y")]))),
        ("a cut capsule", |bed| {
            bed.peer().send(0, frame(DATA, &capsule(0, b"x")[..2]));
            bed.peer().finish(0);
        }),
    ];
    for (how, end) in ends {
        let mut bed = in_tunnel();
        end(&mut bed);
        bed.run();
        assert!(matches!(bed.ended(), Some(Err(_))), "{how}: {:?}", bed.ended());
    }
}

#[test]
fn a_proxys_datagrams_end_only_what_they_must() {
    for data in [vec![], vec![0xc0], vec![0xff; 8]] {
        let mut bed = in_tunnel();
        bed.peer().datagram(data.clone());
        bed.run();
        assert_eq!(bed.closed_with(), Some(Code::H3_DATAGRAM_ERROR), "{data:?}");
    }
    let mut bed = in_tunnel();
    bed.peer().datagram(vec![0]);
    bed.peer().datagram(vec![0, 0x40]);
    bed.peer().datagram(http_datagram(0, 2, b"another context"));
    bed.peer().datagram(udp_datagram(4, b"another flow"));
    bed.peer().datagram(udp_datagram(0, b""));
    bed.peer().datagram(udp_datagram(0, b"no QUIC packet"));
    bed.peer().datagram(udp_datagram(0, &[0xff; 1000]));
    bed.peer().send(0, frame(DATA, &datagram_capsule(b"no QUIC packet either")));
    bed.run();
    assert_eq!((bed.ended(), bed.closed_with()), (None, None));
    let dropped = bed.stats().dropped;
    assert_eq!((dropped.malformed, dropped.unknown_context, dropped.unknown_flow), (2, 1, 1));
}

/// A client that carries the packets of a program, one at a time.
fn forwarding(shots: Vec<Shot>) -> Bed<Client> {
    let config =
        ForwardConfig::new("10.0.0.2:5000".parse().expect("an address"), "echo.test".to_owned(), 7);
    let mut bed = tunnelling(Task::Forward(vec![config])).with_control_stream();
    let program = SenderHost::new("10.0.0.2:5000".parse().expect("an address"), shots);
    let program = bed.world.add_host("program", ["10.0.0.9"], program);
    bed.world.connect(program, bed.node, LinkConfig { delay: MS, ..LinkConfig::default() });
    bed
}

#[test]
fn a_refused_flow_ends_nothing_else() {
    let shot = |seconds| Shot { after: Duration::from_secs(seconds), payload_len: 100 };
    let mut bed = forwarding(vec![shot(0), shot(1), shot(2)]);
    bed.run();
    bed.peer().send(0, head(&[(":status", "502")]));
    bed.peer().finish(0);
    bed.world.run_for(Duration::from_secs(1));
    bed.peer().send(4, head(&[("malformed", "answer")]));
    bed.world.run_for(Duration::from_secs(1));
    bed.peer().send(8, head(&[(":status", "200")]));
    bed.run();
    assert_eq!(bed.ended(), None);
    let data: Vec<Bytes> = bed.seen().datagrams.clone();
    assert_eq!(data.len(), 1, "the last flow is open");
    assert!(data[0].starts_with(&udp_datagram(8, b"")));
}

#[test]
fn no_flow_is_asked_for_after_goaway() {
    let shot = |seconds| Shot { after: Duration::from_secs(seconds), payload_len: 100 };
    let mut bed = forwarding(vec![shot(1), shot(2)]);
    bed.peer().send(3, frame(GOAWAY, &[0])); // the server's first unidirectional stream
    bed.world.run_for(Duration::from_secs(3));
    assert!(!bed.seen().streams.contains_key(&0));
    assert_eq!(bed.seen().closed, None);
}

/// A client that carries the packets of a program, whose flow is open on stream 0.
fn forwarding_flow(shots: Vec<Shot>) -> Bed<Client> {
    let mut bed = forwarding(shots);
    bed.run();
    bed.peer().send(0, head(&[(":status", "200")]));
    bed.run();
    assert_eq!(bed.came(0).end, None);
    bed
}

#[test]
fn after_a_repair_too_nothing_is_asked_before_the_settings() {
    // RFC 9220 §3: "A client MUST NOT" use extended CONNECT before SETTINGS_ENABLE_CONNECT_PROTOCOL.
    let shot = |seconds| Shot { after: Duration::from_secs(seconds), payload_len: 100 };
    let mut bed = forwarding_flow(vec![shot(0), shot(2)]);
    // This program starts after the tunnel was repaired.
    let program = SenderHost::new("10.0.0.2:5000".parse().expect("an address"), vec![shot(2)]);
    let program = bed.world.add_host("another", ["10.0.0.8"], program);
    bed.world.connect(program, bed.node, LinkConfig { delay: MS, ..LinkConfig::default() });
    let now = bed.world.now();
    bed.peer().close(now, Code::H3_NO_ERROR);
    let peer = bed.peer;
    assert!(bed.world.run_until(Duration::from_secs(1), |world| world.node(peer).is_connected()));
    bed.world.run_for(Duration::from_secs(3));
    assert!(!bed.seen().streams.contains_key(&0), "the program sent, but SETTINGS have not come");
    let bed = bed.with_control_stream();
    assert!(!bed.came(0).data.is_empty(), "the client sends its request now");
}

#[test]
fn a_client_ends_a_flow_with_the_code_that_its_proxys_error_has() {
    // RFC 9297 §3.3, RFC 9298 §5, RFC 9114 §4.1.1 and §4.1.2.
    type End = fn(&mut Bed<Client>);
    let ends: [(&str, End, Code); 7] = [
        ("FIN", |bed| bed.peer().finish(0), Code::H3_NO_ERROR),
        ("RESET", |bed| bed.peer().reset(0, Code::H3_CONNECT_ERROR), Code::H3_REQUEST_CANCELLED),
        (
            "a cut capsule",
            |bed| {
                bed.peer().send(0, frame(DATA, &capsule(0, b"x")[..2]));
                bed.peer().finish(0);
            },
            Code::H3_MESSAGE_ERROR,
        ),
        (
            "a cut capsule of an unknown type",
            |bed| {
                bed.peer().send(0, frame(DATA, &capsule(0x17, b"x")[..2]));
                bed.peer().finish(0);
            },
            Code::H3_MESSAGE_ERROR,
        ),
        (
            "a capsule of 70000 bytes",
            |bed| bed.peer().send(0, frame(DATA, &[varint(0), varint(70_000)].concat())),
            Code::H3_DATAGRAM_ERROR,
        ),
        (
            "a payload of 65528 bytes",
            |bed| bed.peer().send(0, frame(DATA, &datagram_capsule(&vec![7; 65_528]))),
            Code::H3_DATAGRAM_ERROR,
        ),
        (
            "content",
            |bed| bed.peer().send(4, head(&[(":status", "200"), ("content-length", "0")])),
            Code::H3_MESSAGE_ERROR,
        ),
    ];
    let shot = |seconds| Shot { after: Duration::from_secs(seconds), payload_len: 100 };
    for (what, end, code) in ends {
        let mut bed = forwarding_flow(vec![shot(0)]);
        let ended = if what == "content" {
            // The next program opens another flow.
            let program =
                SenderHost::new("10.0.0.2:5000".parse().expect("an address"), vec![shot(0)]);
            let program = bed.world.add_host("other", ["10.0.0.8"], program);
            let near = LinkConfig { delay: MS, ..LinkConfig::default() };
            bed.world.connect(program, bed.node, near);
            bed.run();
            4
        } else {
            0
        };
        end(&mut bed);
        bed.run();
        assert_eq!(bed.came(ended).end, Some(StreamEnd::Reset(code)), "{what}");
        assert_eq!((bed.ended(), bed.seen().closed.clone()), (None, None), "{what}");
    }
    // The same holds for the flow of a download, which the client needs.
    let mut bed = in_tunnel();
    bed.peer().send(0, frame(DATA, &capsule(0, b"x")[..2]));
    bed.peer().finish(0);
    bed.run();
    assert_eq!(bed.came(0).end, Some(StreamEnd::Reset(Code::H3_MESSAGE_ERROR)));
}
