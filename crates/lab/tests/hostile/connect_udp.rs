//! Tests of requests for flows: granted and refused requests, and the end of flows.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use noq_proto::Dir;
use tandem_node::{
    Proxy,
    limits::Limits,
    proxy::{Access, NamedToken, Token},
};
use tandem_wire::{CAPSULE_TYPE_PROXY_STATUS, Capsule, CapsuleDecoder, Code, ProxyStatus};

use crate::{
    bed::{Bed, MS, Serving, Setup, proxy},
    h3_bytes::{
        CHALLENGES, DATA, capsule, connect_udp, connect_udp_lines, frame, get, headers,
        http_datagram, udp_datagram, varint,
    },
    raw_peer::{Permits, StreamEnd},
};

const PATH: &str = "/.well-known/masque/udp/10.0.0.3/7/";

/// Asks for a flow to a target that is written into the path as it is.
fn target(host: &str, port: &str) -> Vec<u8> {
    connect_udp(host, port)
}

#[test]
fn a_request_that_is_no_connect_udp_is_refused() {
    let mut other = connect_udp_lines(PATH);
    other[1].1 = "websocket";
    let mut with_content = other.clone();
    with_content.push(("content-length", "0"));
    let put = |len| {
        let fields = [(":method", "PUT"), (":scheme", "https"), (":authority", "peer.test")];
        headers(&[&fields[..], &[(":path", PATH), ("content-length", len)]].concat())
    };
    let mut bed = proxy();
    for (what, request, status) in [
        // RFC 9220 §3.
        ("another protocol", headers(&other), 501),
        // RFC 9297 §3.2 is about messages with capsules, and these have none.
        ("another protocol with content", headers(&with_content), 501),
        ("PUT without content", put("0"), 404),
        ("PUT with content", [put("5"), frame(DATA, b"12345")].concat(), 404),
        ("PUT whose content is not there yet", put("5"), 404),
        ("GET", get(PATH), 404),
        // This asks for a TCP connection, and no program listens there.
        ("CONNECT", headers(&[(":method", "CONNECT"), (":authority", "10.0.0.3:7")]), 502),
        ("no template", headers(&connect_udp_lines("/")), 404),
        ("another path", headers(&connect_udp_lines("/.well-known/masque/ip/*/*/")), 404),
        ("a path that is too long", headers(&connect_udp_lines(&format!("{PATH}x"))), 404),
        ("a path that is too short", headers(&connect_udp_lines(&PATH[..PATH.len() - 1])), 404),
    ] {
        let answer = bed.ask(request);
        assert_eq!(answer.status(), status, "{what}");
        assert_eq!(answer.end, Some(StreamEnd::Finished), "{what}");
        bed.assert_serves(what);
    }
    assert_eq!(bed.stats().requests_refused, 11);
}

#[test]
fn a_malformed_target_is_refused() {
    let long_name = "a".repeat(300);
    let mut bed = proxy();
    for (host, port) in [
        // RFC 9298 §3: a port between 1 and 65535, no zone identifier.
        ("10.0.0.3", "0"),
        ("10.0.0.3", "65536"),
        ("10.0.0.3", "99999999999999999999"),
        ("10.0.0.3", "-7"),
        ("10.0.0.3", "+7"),
        ("10.0.0.3", "7x"),
        ("10.0.0.3", "%207"),
        ("fe80%3A%3A1%25eth0", "7"),
        ("%", "7"),
        ("%zz", "7"),
        ("%ff%fe", "7"),
        ("echo%00.test", "7"),
        ("echo%2F.test", "7"),
        ("echo%20.test", "7"),
        ("%5B%3A%3A1%5D", "7"),
        (&long_name, "7"),
    ] {
        let answer = bed.ask(target(host, port));
        assert_eq!(answer.status(), 400, "{host} {port}");
        assert!(answer.field("proxy-status").contains("error=http_request_error"), "{host} {port}");
    }
    for (host, port) in [("", "7"), ("10.0.0.3", "")] {
        assert!([400, 404].contains(&bed.ask(target(host, port)).status()), "{host:?} {port:?}");
    }
    assert_eq!(bed.stats().flows, 0);
    bed.assert_serves("malformed targets");
}

#[test]
fn addresses_inside_are_prohibited_however_they_are_written() {
    let mut bed = proxy();
    for host in [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "192.168.1.1",
        "172.16.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "%3A%3A",
        "%3A%3A1",
        "%3a%3a1",
        "fe80%3A%3A1",
        "fd00%3A%3A1",
        "ff02%3A%3A1",
        "%3A%3Affff%3A127.0.0.1",
        "64%3Aff9b%3A%3A7f00%3A1",
        "2002%3A7f00%3A1%3A%3A",
        "12%37.0.0.1",
        "inside.test",
        "INSIDE.test",
    ] {
        let answer = bed.ask(target(host, "7"));
        assert_eq!(answer.status(), 403, "{host}");
        let status = answer.field("proxy-status");
        assert!(status.contains("error=destination_ip_prohibited"), "{host}: {status}");
    }
    assert_eq!(bed.stats().flows, 0);
    bed.assert_serves("prohibited targets");
}

#[test]
fn names_are_resolved_or_refused_with_the_reason() {
    let mut bed = proxy();
    assert_eq!(bed.ask(target("echo.test", "7")).status(), 200);
    for (host, status, error) in [
        ("nowhere.test", 502, "error=dns_error"),
        ("failing.test", 502, "error=dns_error"),
        ("mute.test", 504, "error=dns_timeout"),
        // This is neither an address nor a name, so no resolver is asked.
        ("127.1", 400, "error=http_request_error"),
        ("0x7f000001", 400, "error=http_request_error"),
        ("2130706433", 400, "error=http_request_error"),
    ] {
        let stream = bed.open_with(Dir::Bi, target(host, "7"));
        bed.world.run_for(Limits::default().dns_timeout + 1000 * MS);
        let answer = bed.answer(stream);
        assert_eq!(answer.status(), status, "{host}");
        let proxy_status = answer.field("proxy-status");
        assert!(proxy_status.contains(error), "{host}: {proxy_status}");
    }
    bed.assert_serves("names that do not resolve");
}

#[test]
fn only_a_known_token_opens_a_flow() {
    let token = Token::parse("0123456789abcdef").expect("it is long enough");
    let token = NamedToken::new("alice", token).expect("it is a name");
    let limits = Limits { guesses: 100, guesses_per_connection: 100, ..Limits::default() };
    let setup = Setup { access: Access::Tokens(vec![token]), limits, ..Setup::default() };
    let mut bed = setup.proxy().with_control_stream();
    let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
    let bearer = |token: &str| format!("Bearer {token}");
    // What the proxy reads as a token counts as a guess if it is wrong, and nothing else does.
    for (authorization, status, is_guess) in [
        (None, 401, false),
        (Some(String::new()), 401, false),
        (Some(bearer("")), 401, true),
        (Some(bearer("0123456789abcdeX")), 401, true),
        (Some(bearer(" 0123456789abcdef")), 401, true),
        (Some(bearer("0123456789abcdef0")), 401, true),
        (Some("Basic 0123456789abcdef".to_owned()), 401, false),
        (Some(basic("alice")), 401, false),
        (Some(basic(&"x".repeat(9000))), 401, false),
        (Some(basic("bob:0123456789abcdef")), 401, true),
        (Some(basic("alice:0123456789abcdeX")), 401, true),
        (Some("Digest username=\"alice\"".to_owned()), 401, false),
        (Some(bearer("0123456789abcdef")), 200, false),
        (Some("bEARER 0123456789abcdef".to_owned()), 200, false),
        (Some(basic("alice:0123456789abcdef")), 200, false),
        (Some(basic(":0123456789abcdef")), 200, false),
    ] {
        for field in ["authorization", "proxy-authorization"] {
            let before = bed.stats().denied.wrong_token;
            let mut lines = connect_udp_lines(PATH);
            lines.extend(authorization.as_deref().map(|value| (field, value)));
            let answer = bed.ask(headers(&lines));
            let what = format!("{field}: {authorization:?}");
            assert_eq!(answer.status(), status, "{what}");
            let challenges = answer.fields("www-authenticate");
            let expected: &[&str] = if status == 401 { &CHALLENGES } else { &[] };
            assert_eq!(challenges, expected, "{what}");
            let guesses = bed.stats().denied.wrong_token - before;
            assert_eq!(guesses, u64::from(is_guess), "{what}");
        }
    }
    // Both fields are read, and must not contradict each other.
    let [right, wrong] = ["0123456789abcdef", "0123456789abcdeX"].map(bearer);
    for (first, second, status) in [(&right, &right, 200), (&right, &wrong, 401)] {
        let mut lines = connect_udp_lines(PATH);
        lines.extend([("authorization", &**first), ("proxy-authorization", &**second)]);
        assert_eq!(bed.ask(headers(&lines)).status(), status, "{first}, {second}");
    }
    // A client without a token must not learn which targets exist.
    assert_eq!(bed.ask(target("127.0.0.1", "0")).status(), 401);
    assert_eq!(bed.stats().requests_refused, 2 * 12 + 2);
}

#[test]
fn a_closed_port_ends_only_its_flow() {
    let mut bed = proxy();
    let other = bed.open_flow();
    let closed = bed.open_with(Dir::Bi, target("10.0.0.3", "9"));
    bed.run();
    assert_eq!(bed.answer(closed).status(), 200, "UDP reports no error before the first packet");
    bed.peer().datagram(udp_datagram(closed, b"anybody there?"));
    bed.run();
    // RFC 9298 §3.1: "if the proxy is notified by the operating system that its socket is no longer
    // usable, it MUST close the request stream."
    assert_eq!(bed.answer(closed).end, Some(StreamEnd::Reset(Code::H3_CONNECT_ERROR)));
    assert_eq!(bed.stats().flows_ended.unreachable, 1);
    assert_eq!(bed.echo(other, b"x"), [b"x"]);
    assert_eq!(bed.stats().flows_open, 1);
}

#[test]
fn a_client_of_ours_is_told_why_the_target_cannot_be_reached() {
    let mut bed = proxy();
    let other = bed.open_flow();
    let path = "/.well-known/masque/udp/10.0.0.3/9/";
    let mut ours = connect_udp_lines(path);
    ours.push(("tandem-promised-size", "1280"));
    let closed = bed.open_with(Dir::Bi, headers(&ours));
    bed.run();
    // A client has nothing to say of a proxy, so the proxy ignores such a capsule.
    let status = capsule(CAPSULE_TYPE_PROXY_STATUS.get(), b"a;error=connection_refused");
    bed.peer().send(closed, frame(DATA, &status));
    bed.run();
    assert_eq!((bed.answer(closed).status(), bed.stats().flows_open), (200, 2));
    bed.peer().datagram(udp_datagram(closed, b"anybody there?"));
    bed.run();
    let answer = bed.answer(closed);
    assert_eq!(answer.end, Some(StreamEnd::Finished));
    assert_eq!(bed.seen().stopped.get(&closed), Some(&Code::H3_NO_ERROR));
    let mut capsules = CapsuleDecoder::new(100);
    capsules.push(answer.body.into());
    let Ok(Some(Capsule::ProxyStatus(value))) = capsules.next() else { panic!("no capsule") };
    let statuses = ProxyStatus::parse(std::str::from_utf8(&value).expect("text"));
    let statuses = statuses.expect("a Proxy-Status field");
    assert_eq!(statuses[0].error.as_deref(), Some("connection_refused"));
    assert_eq!(statuses[0].next_hop.as_deref(), Some("10.0.0.3:9"));
    assert_eq!((capsules.next(), capsules.finish()), (Ok(None), Ok(())));
    assert_eq!(bed.stats().flows_ended.unreachable, 1);
    assert_eq!(bed.echo(other, b"x"), [b"x"]);
    assert_eq!(bed.stats().flows_open, 1);
}

#[test]
fn the_clients_end_of_a_flow_closes_its_socket() {
    type End = fn(&mut Bed<Proxy>, u64);
    let ends: [(&str, End); 3] = [
        ("FIN", |bed, flow| bed.peer().finish(flow)),
        ("RESET", |bed, flow| bed.peer().reset(flow, Code::H3_REQUEST_CANCELLED)),
        ("STOP_SENDING", |bed, flow| bed.peer().stop(flow, Code::H3_REQUEST_CANCELLED)),
    ];
    for (how, end) in ends {
        let mut bed = proxy();
        let other = bed.open_flow();
        let flow = bed.open_flow();
        assert_eq!(bed.echo(flow, b"x"), [b"x"]);
        assert_eq!(bed.stats().flows_open, 2);
        end(&mut bed, flow);
        bed.run();
        let stats = bed.stats();
        assert_eq!((stats.flows_open, stats.flows_ended.by_client), (1, 1), "{how}");
        bed.peer().datagram(udp_datagram(flow, b"late"));
        bed.run();
        assert_eq!(bed.at_target(), [&b"x"[..]], "{how}: no payload reaches the target afterwards");
        assert_eq!(bed.stats().dropped.unknown_flow, 1, "{how}");
        assert_eq!(bed.echo(other, b"x"), [b"x"], "{how}");
    }
}

#[test]
fn a_request_that_ends_before_it_is_granted_opens_no_flow() {
    let mut bed = proxy();
    for host in ["echo.test", "mute.test", "10.0.0.3"] {
        let stream = bed.open_with(Dir::Bi, target(host, "7"));
        bed.peer().finish(stream);
        bed.run();
        let came = bed.came(stream);
        // A clean end by the proxy would be an answer without a head.
        if came.data.is_empty() {
            assert_eq!(came.end, Some(StreamEnd::Reset(Code::H3_REQUEST_CANCELLED)), "{host}");
        }
        assert_eq!(bed.stats().flows_open, 0, "{host}");
    }
    bed.assert_serves("early ends");
}

#[test]
fn an_idle_flow_is_closed_and_a_busy_one_is_not() {
    let limits = Limits { flow_idle: Duration::from_secs(20), ..Limits::default() };
    let mut bed = Setup { limits, ..Setup::default() }.proxy().with_control_stream();
    let idle = bed.open_flow();
    let busy = bed.open_flow();
    let received = bed.open_flow();
    for _ in 0..5 {
        bed.world.run_for(Duration::from_secs(5));
        bed.echo(busy, b"x");
    }
    assert_eq!(bed.answer(idle).end, Some(StreamEnd::Reset(Code::H3_NO_ERROR)));
    assert_eq!(bed.answer(received).end, Some(StreamEnd::Reset(Code::H3_NO_ERROR)));
    assert_eq!(bed.answer(busy).end, None);
    let stats = bed.stats();
    assert_eq!((stats.flows_open, stats.flows_ended.idle), (1, 2));
}

#[test]
fn a_proxy_that_is_full_refuses_connections_and_keeps_the_others() {
    let limits = Limits { connections: 1, ..Limits::default() };
    let mut bed = Setup { limits, ..Setup::default() }.proxy().with_control_stream();
    bed.open_flow(); // a connection without a permitted request would make room
    let late = bed.add_peer(1);
    bed.world.run_for(Duration::from_secs(3));
    let closed = format!("{:?}", bed.world.node(late).closed);
    assert!(closed.contains("refused"), "{closed}");
    bed.assert_serves("a refused connection");
    assert_eq!(bed.stats().connections, 1);
}

#[test]
fn a_client_without_datagrams_is_never_sent_one() {
    // RFC 9297 §2.1.1: "QUIC DATAGRAM frames MUST NOT be sent until the SETTINGS_H3_DATAGRAM setting
    // has been both sent and received with a value of 1."
    let mut bed = Setup::default().proxy();
    let flow = bed.open_flow();
    bed.peer().datagram(udp_datagram(flow, b"x"));
    bed.run();
    assert_eq!(bed.at_target(), [&b"x"[..]]);
    assert_eq!(bed.seen().datagrams.len(), 0, "SETTINGS have not come");
}

#[test]
fn a_datagram_frame_that_is_no_http_datagram_ends_the_connection() {
    // RFC 9297 §2.1.
    for (what, data) in [
        ("empty", vec![]),
        ("cut", vec![0xc0, 0, 0]),
        ("2^60", vec![0xd0, 0, 0, 0, 0, 0, 0, 0]),
        ("2^62 - 1", vec![0xff; 9]),
    ] {
        let mut bed = proxy();
        let flow = bed.open_flow();
        bed.peer().datagram(udp_datagram(flow, b"x"));
        bed.peer().datagram(data);
        bed.run();
        assert_eq!(bed.closed_with(), Some(Code::H3_DATAGRAM_ERROR), "{what}");
        let stats = bed.stats();
        assert_eq!((stats.connections_broken, stats.dropped.malformed), (1, 1), "{what}");
        assert_eq!((stats.broken.datagrams, stats.flows_ended.with_connection), (1, 1), "{what}");
        assert_eq!(stats.flows_open, 0, "{what}");
        assert_eq!(bed.at_target(), [&b"x"[..]], "{what}: what came before is relayed");
    }
}

#[test]
fn a_datagram_that_says_nothing_to_us_is_dropped_alone() {
    let mut bed = proxy();
    let flow = bed.open_flow();
    bed.peer().datagram(varint(flow / 4)); // no context ID
    bed.peer().datagram([varint(flow / 4), vec![0x40]].concat()); // half of a context ID
    for context in [1, 2, 63, 64, (1 << 62) - 1] {
        bed.peer().datagram(http_datagram(flow, context, b"x"));
    }
    bed.run();
    let dropped = bed.stats().dropped;
    assert_eq!((dropped.malformed, dropped.unknown_context, dropped.total()), (2, 5, 7));
    assert!(bed.at_target().is_empty());
    assert_eq!(bed.echo(flow, b"x"), [b"x"]);
}

#[test]
fn an_empty_payload_is_an_empty_packet() {
    let mut bed = proxy();
    let flow = bed.open_flow();
    assert_eq!(bed.echo(flow, b""), [b""]);
    // It arrives between other payloads, in order.
    bed.peer().datagrams.clear();
    for payload in [&b"a"[..], b"", b"", b"b"] {
        bed.peer().datagram(udp_datagram(flow, payload));
    }
    bed.run();
    assert_eq!(bed.echoed(flow), [&b"a"[..], b"", b"", b"b"]);
    assert_eq!((bed.stats().to_target_datagrams, bed.stats().to_client_datagrams), (5, 5));
}

#[test]
fn early_datagrams_wait_for_the_grant_and_come_in_order() {
    let mut bed = proxy();
    // Before the request, and after it while its name is being resolved.
    let flow = bed.peer().open(Dir::Bi);
    for number in 0..4 {
        bed.peer().datagram(udp_datagram(flow, &[number]));
    }
    bed.world.run_for(5 * MS);
    bed.peer().send(flow, target("echo.test", "7"));
    bed.world.run_for(5 * MS);
    for number in 4..8 {
        bed.peer().datagram(udp_datagram(flow, &[number]));
    }
    bed.world.run_for(5 * MS);
    assert!(bed.at_target().is_empty());
    bed.run();
    let expected: Vec<_> = (0..8).map(|number| vec![number]).collect();
    assert_eq!(bed.echoed(flow), expected);
    assert_eq!(bed.stats().dropped.total(), 0);
}

#[test]
fn early_datagrams_wait_for_a_request_that_comes_in_pieces() {
    let mut bed = proxy();
    let flow = bed.peer().open(Dir::Bi);
    let request = target("10.0.0.3", "7");
    let (first, second) = request.split_at(9);
    bed.send_pieces(flow, [first]);
    bed.peer().datagram(udp_datagram(flow, b"early"));
    bed.world.run_for(5 * MS);
    bed.send_pieces(flow, [second]);
    bed.run();
    assert_eq!(bed.echoed(flow), [b"early"]);
}

#[test]
fn early_datagrams_are_bounded_and_counted() {
    let limits = Limits {
        early_datagrams_per_flow: 3,
        early_datagrams_per_connection: 5,
        ..Limits::default()
    };
    let mut bed = Setup { limits, ..Setup::default() }.proxy().with_control_stream();
    // These are for a flow that is not granted yet.
    let flow = bed.open_with(Dir::Bi, target("echo.test", "7"));
    bed.world.run_for(5 * MS);
    for number in 0..10 {
        bed.peer().datagram(udp_datagram(flow, &[number]));
    }
    bed.run();
    assert_eq!(bed.echoed(flow), [[0], [1], [2]]);
    assert_eq!(bed.stats().dropped.unknown_flow, 7);
    // These are for requests that never come. They are kept within a bound and a short time.
    for number in 0..100 {
        bed.peer().datagram(udp_datagram(400 + 4 * number, b"x"));
    }
    bed.world.run_for(10 * MS);
    assert_eq!(bed.stats().dropped.unknown_flow, 7 + 95);
    bed.run();
    assert_eq!(bed.stats().dropped.unknown_flow, 7 + 100);
    // These are for streams that have been closed.
    bed.peer().finish(flow);
    bed.run();
    bed.peer().datagram(udp_datagram(flow, b"x"));
    bed.run();
    assert_eq!(bed.stats().dropped.unknown_flow, 7 + 100 + 1);
    bed.assert_serves("early datagrams");
}

#[test]
fn early_datagrams_of_a_refused_request_make_room_again() {
    let limits = Limits { early_datagrams_per_connection: 5, ..Limits::default() };
    let mut bed = Setup { limits, ..Setup::default() }.proxy().with_control_stream();
    let requests: [(Vec<u8>, u64); 3] = [
        (target("127.0.0.1", "7"), 5),
        (headers(&[("malformed", "request")]), 10),
        (target("10.0.0.3", "0"), 15),
    ];
    for (request, dropped) in requests {
        let stream = bed.peer().open(Dir::Bi);
        for _ in 0..5 {
            bed.peer().datagram(udp_datagram(stream, b"for nobody"));
        }
        bed.world.run_for(5 * MS);
        bed.peer().send(stream, request);
        bed.run();
        assert_eq!(bed.stats().dropped.unknown_flow, dropped);
    }
    let flow = bed.peer().open(Dir::Bi);
    bed.peer().datagram(udp_datagram(flow, b"early"));
    bed.world.run_for(5 * MS);
    bed.peer().send(flow, target("10.0.0.3", "7"));
    bed.run();
    assert_eq!(bed.echoed(flow), [b"early"]);
}

#[test]
fn datagrams_of_a_request_without_datagrams_end_it() {
    // RFC 9297 §2: "If an HTTP Datagram is received and it is associated with a request that has no
    // known semantics for HTTP Datagrams, the receiver MUST terminate the request. If HTTP/3 is in
    // use, the request stream MUST be aborted with H3_DATAGRAM_ERROR (0x33)."
    let permits = Permits { stream_window: 16, ..Permits::default() };
    let mut bed = Setup { permits, ..Setup::default() }.origin().with_control_stream();
    bed.peer().reads = false;
    let stream = bed.open_with(Dir::Bi, get("/file"));
    bed.run();
    bed.peer().datagram(udp_datagram(stream, b"x"));
    bed.peer().datagram(udp_datagram(stream + 400, b"for a request that has not come"));
    bed.run();
    bed.peer().reads = true;
    bed.run();
    assert_eq!(bed.came(stream).end, Some(StreamEnd::Reset(Code::H3_DATAGRAM_ERROR)));
    bed.assert_serves("a datagram for a download");
    bed.peer().datagram(vec![]);
    bed.run();
    assert_eq!(bed.closed_with(), Some(Code::H3_DATAGRAM_ERROR));
}

#[test]
fn early_datagrams_wait_about_a_round_trip_and_no_longer() {
    // RFC 9297 §2.1: "the receiver SHALL either drop that datagram silently or buffer it temporarily
    // (on the order of a round trip) while awaiting the creation of the corresponding stream."
    for (wait, is_kept) in [(100 * MS, true), (300 * MS, false)] {
        let mut bed = proxy();
        let flow = bed.peer().open(Dir::Bi);
        bed.peer().datagram(udp_datagram(flow, b"early"));
        bed.world.run_for(wait);
        assert_eq!(bed.stats().dropped.unknown_flow, u64::from(!is_kept), "{wait:?}");
        bed.peer().send(flow, target("10.0.0.3", "7"));
        bed.run();
        assert_eq!(bed.echoed(flow).len(), usize::from(is_kept), "{wait:?}");
    }
}

#[test]
fn a_datagram_for_a_stream_beyond_the_limit_ends_the_connection() {
    // RFC 9297 §2.1: "If an HTTP/3 Datagram is received and its Quarter Stream ID field maps to a
    // stream that cannot be created due to client-initiated bidirectional stream limits, it SHOULD be
    // treated as an HTTP/3 connection error of type H3_ID_ERROR."
    let streams = u64::from(Limits::default().request_streams);
    let mut bed = proxy();
    for _ in 0..3 {
        bed.open_flow();
    }
    bed.peer().datagram(udp_datagram(4 * (streams - 1), b"may come"));
    bed.run();
    assert_eq!(bed.seen().closed, None);
    bed.peer().datagram(udp_datagram(4 * (3 + streams), b"cannot come"));
    bed.run();
    assert_eq!(bed.closed_with(), Some(Code::H3_ID_ERROR));
}

#[test]
fn names_that_are_still_looked_up_are_bounded_though_their_requests_have_gone() {
    let limits = Limits { queries: 3, ..Limits::default() };
    let mut bed = Setup { limits, ..Setup::default() }.proxy().with_control_stream();
    for _ in 0..3 {
        let stream = bed.open_with(Dir::Bi, target("mute.test", "7"));
        bed.run();
        bed.peer().reset(stream, Code::H3_REQUEST_CANCELLED);
        bed.run();
    }
    assert_eq!(bed.ask(target("echo.test", "7")).status(), 503);
    bed.assert_serves("too many names");
}
