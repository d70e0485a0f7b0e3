//! Tests of requests for TCP connections, in both forms: RFC 9114 §4.4 and
//! draft-ietf-httpbis-connect-tcp.

use std::io::ErrorKind;

use bytes::Bytes;
use noq_proto::Dir;
use tandem_lab::{
    Handle, LinkConfig,
    endpoints::{Behaviour, TcpReport, TcpServer},
};
use tandem_node::{
    Proxy,
    proxy::{Access, NamedToken, Token},
};
use tandem_wire::{Code, TcpCapsuleDecoder, TcpPiece};

use crate::{
    bed::{Bed, MS, Serving, Setup, proxy},
    h3_bytes::{CHALLENGES, DATA, GREASE, HEADERS, capsule, connect_lines, data, frame, headers},
    raw_peer::StreamEnd,
};

/// The types of capsules with bytes, and with the last bytes.
const BYTES: u64 = 0x2028_d7f2;
const LAST_BYTES: u64 = 0x2028_d7f3;

/// A request for a connection to a target.
type Request = fn(&str) -> Vec<u8>;

const FORMS: [(&str, Request); 2] = [("capsules", templated), ("classic", classic)];

fn classic(target: &str) -> Vec<u8> {
    headers(&[(":method", "CONNECT"), (":authority", target)])
}

fn templated(target: &str) -> Vec<u8> {
    let (host, port) = target.split_once(':').unwrap_or((target, ""));
    let path = format!("/.well-known/masque/tcp/{host}/{port}/");
    let mut lines = connect_lines("connect-tcp", &path);
    lines.push(("capsule-protocol", "?1"));
    headers(&lines)
}

/// Bytes in the form of a request.
fn bytes(form: &str, bytes: &[u8]) -> Vec<u8> {
    if form == "classic" { frame(DATA, bytes) } else { data(&[capsule(BYTES, bytes)]) }
}

/// Adds a target at port 7 of `10.0.0.5`.
fn target(bed: &mut Bed<Proxy>, behaviour: Behaviour) -> Handle<TcpServer> {
    let server = TcpServer::new(7, behaviour);
    let target = bed.world.add_host("TCP target", ["10.0.0.5"], server);
    bed.world.connect(bed.node, target, LinkConfig { delay: MS, ..LinkConfig::default() });
    target
}

/// The report of the target's only connection.
fn report(bed: &Bed<Proxy>, target: Handle<TcpServer>) -> TcpReport {
    let reports: Vec<_> = bed.world.node(target).reports().copied().collect();
    let [report] = *reports else { panic!("{} connections", reports.len()) };
    report
}

/// The bytes that came for a request, and whether the target's FIN came.
fn received(bed: &Bed<Proxy>, form: &str, stream: u64) -> (Vec<u8>, bool) {
    let answer = bed.answer(stream);
    if form == "classic" {
        return (answer.body, answer.end == Some(StreamEnd::Finished));
    }
    let mut decoder = TcpCapsuleDecoder::new();
    decoder.push(Bytes::from(answer.body));
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = decoder.next() {
        if let TcpPiece::Data(piece) = piece {
            bytes.extend(piece);
        }
    }
    (bytes, decoder.is_final())
}

#[test]
fn bytes_and_fins_pass_in_both_directions_however_they_are_cut() {
    for (form, request) in FORMS {
        let end = if form == "classic" { vec![] } else { data(&[capsule(LAST_BYTES, b"three")]) };
        let unknown = frame(GREASE, b"a frame in between");
        let stream_data = [bytes(form, b"one"), unknown, bytes(form, b"two"), end].concat();
        let sent = if form == "classic" { &b"onetwo"[..] } else { b"onetwothree" };
        for split in 0..=stream_data.len() {
            let mut bed = proxy();
            let target = target(&mut bed, Behaviour::Echo);
            let stream = bed.open_with(Dir::Bi, request("10.0.0.5:7"));
            let (first, second) = stream_data.split_at(split);
            bed.send_pieces(stream, [first, second]);
            bed.run();
            let answer = bed.answer(stream);
            assert_eq!(answer.status(), 200, "{form}");
            let capsules = if form == "classic" { "" } else { "?1" };
            assert_eq!(answer.field("capsule-protocol"), capsules, "{form}");
            assert_eq!(answer.field("proxy-status"), "tandem;next-hop=\"10.0.0.5:7\"", "{form}");
            bed.peer().finish(stream);
            bed.run();
            assert_eq!(received(&bed, form, stream), (sent.to_vec(), true), "{form} {split}");
            assert_eq!(bed.answer(stream).end, Some(StreamEnd::Finished), "{form} {split}");
            let report = report(&bed, target);
            assert_eq!((report.received, report.result), (sent.len() as u64, Some(Ok(()))));
        }
    }
}

#[test]
fn a_reset_of_the_target_resets_the_stream() {
    for (form, request) in FORMS {
        let mut bed = proxy();
        target(&mut bed, Behaviour::ResetAfter(3));
        let stream = bed.open_with(Dir::Bi, [request("10.0.0.5:7"), bytes(form, b"one")].concat());
        bed.run();
        let end = Some(StreamEnd::Reset(Code::H3_CONNECT_ERROR));
        assert_eq!(bed.answer(stream).end, end, "{form}");
        assert_eq!(bed.stats().tcp.reset, 1, "{form}");
        bed.assert_serves("a reset of a target");
    }
}

#[test]
fn a_client_that_gives_up_resets_its_target() {
    type Act = fn(&mut Bed<Proxy>, u64);
    let acts: [(&str, Act); 3] = [
        ("reset", |bed, stream| bed.peer().reset(stream, Code::H3_REQUEST_CANCELLED)),
        ("STOP_SENDING", |bed, stream| bed.peer().stop(stream, Code::H3_REQUEST_CANCELLED)),
        ("close", |bed, _| {
            let now = bed.world.now();
            bed.peer().close(now, Code::H3_NO_ERROR);
        }),
    ];
    for (form, request) in FORMS {
        for (what, act) in acts {
            let mut bed = proxy();
            let target = target(&mut bed, Behaviour::Sink);
            let stream = bed.open_with(Dir::Bi, request("10.0.0.5:7"));
            bed.run();
            act(&mut bed, stream);
            bed.run();
            let result = report(&bed, target).result;
            assert_eq!(result, Some(Err(ErrorKind::ConnectionReset)), "{form}, {what}");
            assert_eq!(bed.stats().tcp.aborted, 1, "{form}, {what}");
            // Both directions of the stream end.
            let code = Code::H3_REQUEST_CANCELLED;
            match what {
                "reset" => {
                    let end = Some(StreamEnd::Reset(code));
                    assert_eq!(bed.answer(stream).end, end, "{form}");
                }
                "STOP_SENDING" => {
                    assert_eq!(bed.seen().stopped.get(&stream), Some(&code), "{form}");
                }
                _ => continue,
            }
            bed.assert_serves(what);
        }
    }
}

#[test]
fn what_breaks_the_rules_of_capsules_resets_the_target() {
    let final_data = capsule(LAST_BYTES, b"");
    let after = Code::H3_MESSAGE_ERROR;
    for (what, capsules, ends, code) in [
        ("the end without FINAL_DATA", capsule(BYTES, b"one"), true, Code::H3_CONNECT_ERROR),
        ("half a capsule", capsule(BYTES, b"one")[..6].to_vec(), true, Code::H3_CONNECT_ERROR),
        ("DATA after it", [final_data.clone(), capsule(BYTES, b"x")].concat(), false, after),
        ("FINAL_DATA twice", [final_data.clone(), final_data].concat(), false, after),
    ] {
        let mut bed = proxy();
        let target = target(&mut bed, Behaviour::Echo);
        let request = [templated("10.0.0.5:7"), frame(DATA, &capsules)].concat();
        let stream = bed.open_with(Dir::Bi, request);
        if ends {
            bed.peer().finish(stream);
        }
        bed.run();
        assert_eq!(bed.came(stream).end, Some(StreamEnd::Reset(code)), "{what}");
        let result = report(&bed, target).result;
        assert_eq!(result, Some(Err(ErrorKind::ConnectionReset)), "{what}");
        bed.assert_serves(what);
    }
}

#[test]
fn a_malformed_request_opens_nothing() {
    let reset = |lines: &[(&str, &str)]| (headers(lines), Code::H3_MESSAGE_ERROR);
    let connect = (":method", "CONNECT");
    for (what, (request, code)) in [
        // RFC 9114 §4.4: ":scheme" and ":path" are omitted, and ":authority" is the target.
        ("a path", reset(&[connect, (":authority", "10.0.0.5:7"), (":path", "/")])),
        ("a scheme", reset(&[connect, (":authority", "10.0.0.5:7"), (":scheme", "https")])),
        ("no authority", reset(&[connect])),
        ("no port", reset(&[connect, (":authority", "10.0.0.5")])),
        ("port 65536", reset(&[connect, (":authority", "10.0.0.5:65536")])),
        ("a user", reset(&[connect, (":authority", "user@10.0.0.5:7")])),
        ("more than an authority", reset(&[connect, (":authority", "10.0.0.5:7/x")])),
    ] {
        let mut bed = proxy();
        let target = target(&mut bed, Behaviour::Echo);
        let stream = bed.open_with(Dir::Bi, request);
        bed.run();
        assert_eq!(bed.came(stream).end, Some(StreamEnd::Reset(code)), "{what}");
        assert_eq!(bed.world.node(target).reports().len(), 0, "{what}");
        bed.assert_serves(what);
    }
    for (what, request) in [
        ("port 0", classic("10.0.0.5:0")),
        ("no host", classic(":7")),
        ("port 0 in a path", templated("10.0.0.5:0")),
        ("no port in a path", templated("10.0.0.5")),
    ] {
        let mut bed = proxy();
        target(&mut bed, Behaviour::Echo);
        assert_eq!(bed.ask(request).status(), 400, "{what}");
        bed.assert_serves(what);
    }
}

#[test]
fn only_data_follows_a_request_for_a_connection() {
    for (form, request) in FORMS {
        let mut bed = proxy();
        target(&mut bed, Behaviour::Echo);
        let stream = bed.open_with(Dir::Bi, request("10.0.0.5:7"));
        bed.peer().send(stream, frame(HEADERS, b"x"));
        bed.run();
        assert_eq!(bed.closed_with(), Some(Code::H3_FRAME_UNEXPECTED), "{form}");
    }
}

#[test]
fn a_refusal_says_why_in_each_form() {
    for (form, request) in FORMS {
        for (to, status, why) in [
            ("10.0.0.5:8", 502, "connection_refused"),
            ("10.0.0.5:25", 403, "connection_refused"),
            ("127.0.0.1:7", 403, "destination_ip_prohibited"),
            ("inside.test:7", 403, "destination_ip_prohibited"),
            ("missing.test:7", 502, "dns_error"),
        ] {
            let mut bed = proxy();
            target(&mut bed, Behaviour::Echo);
            let answer = bed.ask(request(to));
            assert_eq!(answer.status(), status, "{form} {to}");
            let error = format!("error={why}");
            let says = answer.field("proxy-status");
            assert!(to == "10.0.0.5:25" || says.contains(&error), "{form} {to}: {says}");
            assert_eq!(answer.field("capsule-protocol"), "", "{form} {to}");
            assert_eq!(answer.end, Some(StreamEnd::Finished), "{form} {to}");
            bed.assert_serves(to);
        }
    }
}

#[test]
fn a_missing_token_is_401_with_capsules_and_407_without() {
    let token = Token::parse("0123456789abcdef").expect("it is long enough");
    let token = NamedToken::new("alice", token).expect("it is a name");
    let access = Access::Tokens([token].into());
    for ((form, request), (status, field)) in
        FORMS.into_iter().zip([(401, "www-authenticate"), (407, "proxy-authenticate")])
    {
        let setup = Setup { access: access.clone(), ..Setup::default() };
        let mut bed = setup.proxy().with_control_stream();
        let answer = bed.ask(request("10.0.0.5:7"));
        assert_eq!(answer.status(), status, "{form}");
        assert_eq!(answer.fields(field), CHALLENGES, "{form}");
    }
}
