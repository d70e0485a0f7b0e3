use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use proptest::prelude::*;

use super::{
    Fault, Local, Password, Refusal, SocksReply, Step, Target,
    model::{LIMITS, Script, Transcript, check, run},
};

/// A response without a body.
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

fn script(program: &[u8], responses: &[&str]) -> Script {
    let responses = responses.iter().map(|it| it.as_bytes().to_vec()).collect();
    Script { program: program.to_vec(), responses, is_clean: true, ..Script::default() }
}

/// Plays a script whole and cut at every byte.
fn play(script: &Script) -> Transcript {
    let whole = check(script, 1);
    let longest = script.responses.iter().map(Vec::len).max().unwrap_or_default();
    let longest = longest.max(script.program.len());
    // Long scripts are cut at fewer places, to save time.
    for cut in (1..longest).step_by(longest.div_ceil(200).max(1)) {
        assert_eq!(check(script, cut), whole);
    }
    whole
}

fn http(program: &str, responses: &[&str]) -> Transcript {
    play(&script(program.as_bytes(), responses))
}

fn connect(target: &str) -> Step {
    Step::Connect(Target::parse(target, None).unwrap())
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// What the one target of an exchange got.
#[track_caller]
fn sent(transcript: &Transcript) -> &str {
    let [sent] = &*transcript.to_targets else { panic!("{transcript:?}") };
    text(sent)
}

/// Checks that a request is answered with an error, that nothing of it is passed on, and that what
/// follows it is not interpreted.
#[track_caller]
fn is_rejected(request: &[u8], status: u16) {
    let next = b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    let transcript = play(&script(&[request, next].concat(), &[EMPTY, EMPTY]));
    let [Step::Close(Some(_))] = &*transcript.steps else {
        panic!("{}: {transcript:?}", String::from_utf8_lossy(request));
    };
    let answer = text(&transcript.to_program);
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 4").count() + answer.matches("HTTP/1.1 5").count(), 1);
}

#[test]
fn a_tunnel_is_granted_and_then_passes_all_bytes() {
    for (host, target) in
        [("Example.org:443", "example.org:443"), ("[2001:db8::1]:22", "[2001:db8::1]:22")]
    {
        let head = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: curl\r\n\r\n");
        let data = "\x16\x03\x01GET http://a/ HTTP/1.1\r\n\r\n";
        let transcript = http(&format!("{head}{data}"), &[]);
        assert_eq!(transcript.steps, [connect(target), Step::Splice]);
        assert_eq!(sent(&transcript), data);
        assert_eq!(text(&transcript.to_program), "HTTP/1.1 200 Connection established\r\n\r\n");
    }
}

#[test]
fn nothing_is_answered_before_the_proxy_grants_and_bytes_for_the_target_leave_before() {
    for (program, answer) in [
        (
            &b"CONNECT a.test:1 HTTP/1.0\r\n\r\nearly"[..],
            &b"HTTP/1.1 200 Connection established\r\n\r\n"[..],
        ),
        (b"\x05\x01\0\x05\x01\0\x03\x06a.test\0\x01early", b"\x05\0\0\x01\0\0\0\0\0\0"),
    ] {
        let mut local = Local::new(None, LIMITS);
        local.from_program(Bytes::from_static(program));
        if program[0] == 5 {
            assert_eq!(local.poll(), Some(Step::ToProgram(Bytes::from_static(&[5, 0]))));
        }
        assert_eq!(local.poll(), Some(connect("a.test:1")));
        assert_eq!(local.poll(), Some(Step::ToTarget(Bytes::from_static(b"early"))));
        assert_eq!(local.poll(), None);
        local.on_granted();
        assert_eq!(local.poll(), Some(Step::ToProgram(Bytes::copy_from_slice(answer))));
        assert_eq!(local.poll(), Some(Step::Splice));
        assert_eq!(local.poll(), None);
        // The object remains transparent if it is still used.
        local.from_program(Bytes::from_static(b"\0more"));
        local.from_target(Bytes::from_static(b"SSH-2.0"));
        assert_eq!(local.poll(), Some(Step::ToTarget(Bytes::from_static(b"\0more"))));
        assert_eq!(local.poll(), Some(Step::ToProgram(Bytes::from_static(b"SSH-2.0"))));
    }
}

#[test]
fn a_request_is_rewritten_for_its_target() {
    for (request, rewritten) in [
        (
            "GET http://Example.org/a?b=c HTTP/1.1\r\nHost: other.example\r\nAccept: */*\r\n\
             Proxy-Connection: keep-alive\r\nConnection: keep-alive, x-secret, TE\r\nKeep-Alive: 5\r\n\
             X-Secret: 1\r\nTE: trailers\r\nTrailer: x\r\nProxy-Authorization: Basic eDp5\r\n\
             Upgrade: h2c\r\nCookie: d=e\r\n\r\n",
            "GET /a?b=c HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nCookie: d=e\r\n\
             Via: 1.1 tandem\r\n\r\n",
        ),
        (
            "GET http://[::1]:8080 HTTP/1.1\r\nHost: [::1]:8080\r\nVia: 1.0 other\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: [::1]:8080\r\nVia: 1.0 other\r\nVia: 1.1 tandem\r\n\r\n",
        ),
        (
            "GET HTTP://a.test?q HTTP/1.0\r\nExpect: 100-continue\r\n\r\n",
            "GET /?q HTTP/1.1\r\nHost: a.test\r\nVia: 1.0 tandem\r\nConnection: close\r\n\r\n",
        ),
        (
            "OPTIONS http://a.test HTTP/1.1\r\nHost: a.test\r\nMax-Forwards: 7\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: a.test\r\nMax-Forwards: 6\r\nVia: 1.1 tandem\r\n\r\n",
        ),
        (
            "\r\n\r\nPOST http://a.test/ HTTP/1.1\nHost: a.test\ncontent-length: 05, 5\nConnection: close\n\nhello",
            "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\nVia: 1.1 tandem\r\n\
             Connection: close\r\n\r\nhello",
        ),
        (
            "PUT http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: Chunked\r\n\r\n\
             005;name=\"x\"\r\nhello\r\nA\r\n0123456789\r\n000\r\nX-Trailer: y\r\n\r\n",
            "PUT / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nVia: 1.1 tandem\r\n\r\n\
             5\r\nhello\r\na\r\n0123456789\r\n0\r\n\r\n",
        ),
    ] {
        let transcript = http(request, &[EMPTY]);
        assert_eq!(sent(&transcript), rewritten);
        let answer = text(&transcript.to_program);
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nVia: 1.1 tandem\r\n"),
            "{answer}"
        );
    }
}

#[test]
fn requests_share_a_connection_to_their_target_and_get_their_responses_in_order() {
    let get =
        |host: &str, path: &str| format!("GET http://{host}/{path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let one = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none";
    let two = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n";
    let last = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
    let program =
        [get("a.test", "1"), get("A.test:80", "2"), get("b.test", "3"), get("b.test", "4")]
            .concat();
    let transcript = http(&program, &[one, two, last, one]);
    assert_eq!(
        transcript.steps,
        [
            connect("a.test:80"),
            Step::Disconnect,
            connect("b.test:80"),
            Step::Disconnect, // the target announced its end
            connect("b.test:80"),
            Step::Close(None),
        ]
    );
    let paths = |bytes: &[u8]| text(bytes).matches("GET /").count();
    assert_eq!(transcript.to_targets.iter().map(|it| paths(it)).collect::<Vec<_>>(), [2, 1, 1]);
    let answers = text(&transcript.to_program);
    let places = ["\r\n\r\none", "3\r\ntwo\r\n0\r\n\r\n", "204 No Content"]
        .map(|it| answers.find(it).unwrap());
    assert!(places.is_sorted(), "{answers}");
    assert!(!answers.contains("close"), "the program's connection persists: {answers}");
}

#[test]
fn responses_are_passed_on_with_their_bodies() {
    let get = "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let old = "GET http://a.test/ HTTP/1.0\r\n\r\n";
    let head = "HEAD http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
    for (request, response, passed_on, persists) in [
        (
            get,
            "HTTP/1.1 200 Fine\r\nContent-Length: 2\r\nConnection: x-hop\r\nX-Hop: 1\r\nX-End: 2\r\n\
             Proxy-Authenticate: Basic realm=x\r\n\r\nok",
            "HTTP/1.1 200 Fine\r\nX-End: 2\r\nContent-Length: 2\r\nVia: 1.1 tandem\r\n\r\nok",
            true,
        ),
        (
            get,
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 304\r\nContent-Length: 9\r\n\r\n",
            "HTTP/1.1 100 Continue\r\nVia: 1.1 tandem\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\
             Via: 1.1 tandem\r\n\r\nHTTP/1.1 304 \r\nContent-Length: 9\r\nVia: 1.1 tandem\r\n\r\n",
            true,
        ),
        (
            get,
            "HTTP/1.0 200 OK\r\n\r\nuntil the end",
            "HTTP/1.1 200 OK\r\nVia: 1.0 tandem\r\nConnection: close\r\n\r\nuntil the end",
            false,
        ),
        (
            get,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n0\r\nT: u\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nVia: 1.1 tandem\r\n\r\n1\r\na\r\n0\r\n\r\n",
            true,
        ),
        (
            old,
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nVia: 1.1 tandem\r\nConnection: close\r\n\r\nab",
            false,
        ),
        (
            head,
            "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nVia: 1.1 tandem\r\n\r\n",
            true,
        ),
        (
            get,
            "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nVia: 1.1 tandem\r\n\r\n",
            true,
        ),
    ] {
        let transcript = http(&format!("{request}{get}"), &[response, EMPTY]);
        let passed = text(&transcript.to_program);
        assert!(passed.starts_with(passed_on), "{passed:?} instead of {passed_on:?}");
        assert_eq!(
            passed.matches("HTTP/1.1 200 OK\r\nContent-Length: 0").count(),
            usize::from(persists)
        );
        assert_eq!(transcript.steps.last(), Some(&Step::Close(None)));
    }
}

#[test]
fn a_websocket_passes_all_bytes_after_the_change_of_protocol() {
    let request = "GET http://a.test/chat HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\n\r\n";
    let response = "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let transcript = http(&format!("{request}\x01GET http://"), &[&format!("{response}\x02frame")]);
    assert_eq!(transcript.steps, [connect("a.test:80"), Step::Splice]);
    assert!(sent(&transcript).starts_with("GET /chat HTTP/1.1\r\n"));
    assert!(
        sent(&transcript)
            .ends_with("Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x01GET http://")
    );
    let passed = text(&transcript.to_program);
    assert!(
        passed.ends_with("Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x02frame"),
        "{passed}"
    );

    // A target may stay with HTTP, and must not change the protocol on its own.
    let stays = http(&request.repeat(2), &[EMPTY, EMPTY]);
    assert_eq!(stays.steps, [connect("a.test:80"), Step::Close(None)]);
    let forced = http("GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", &[response]);
    assert!(text(&forced.to_program).starts_with("HTTP/1.1 502 "));
}

#[test]
fn malformed_requests_are_answered_and_end_the_connection() {
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET http:///a HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET wss://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET http://user@/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET http://\u{e4}.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET http://a.test:0/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET http://a.test/#b HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET http://a.test/ HTTP/1.1\r\n\r\n", 400),
        ("GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n", 400),
        ("GET http://a.test/ HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        ("GET http://a.test/ HTTP/2.0\r\nHost: a.test\r\n\r\n", 505),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        ("GET http://a.test/\r\n\r\n", 400),
        ("GET  http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("\x16\x03\x01\x02", 400),
        ("\0", 400),
        ("CONNECT a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("CONNECT http://a.test:80/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("CONNECT a.test:80 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc", 400),
        (
            "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        ("TRACE http://a.test/ HTTP/1.1\r\nHost: a.test\r\nMax-Forwards: 0\r\n\r\n", 405),
        ("OPTIONS http://a.test/ HTTP/1.1\r\nHost: a.test\r\nMax-Forwards: -1\r\n\r\n", 400),
    ] {
        is_rejected(request.as_bytes(), status);
    }
    let words = http("GET /index.html HTTP/1.1\r\nHost: localhost:1080\r\n\r\n", &[]).to_program;
    assert!(text(&words).contains("this port is a proxy"), "{}", text(&words));
}

#[test]
fn nothing_is_smuggled_past_the_head_of_a_request() {
    for fields in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nContent-Length: 4\r\n",
        "Content-Length: 3, 4\r\n",
        "Content-Length: 3,\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: -3\r\n",
        "Content-Length: 0x3\r\n",
        "Content-Length: 3 3\r\n",
        "Content-Length:\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Content-Length : 3\r\n",
        "Content-Length\t: 3\r\n",
        " Content-Length: 3\r\n",
        "X: y\r\n Content-Length: 3\r\n",
        "X: y\r\n\tz\r\n",
        "X: y\rContent-Length: 3\r\n",
        "X: y\0\r\n",
        "X: y\x0bz\r\n",
        "X: \x7f\r\n",
        "X\0: y\r\n",
        "X\r\n",
        ": y\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding:\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
        "Transfer-Encoding\r\n : chunked\r\n",
    ] {
        let head = format!("POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n");
        is_rejected(head.as_bytes(), 400);
    }
    let head =
        "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n";
    is_rejected(head.as_bytes(), 501);
    let head = "POST http://a.test/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    is_rejected(head.as_bytes(), 400);
}

#[test]
fn malformed_chunks_end_the_connection_with_what_follows_them() {
    let head = "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    let next = "GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    for chunks in [
        "\r\n",
        "g\r\n",
        "-1\r\n",
        "+1\r\na\r\n",
        " 1\r\na\r\n",
        "0x1\r\na\r\n",
        "1 1\r\na\r\n",
        "1\na\r\n0\r\n\r\n",
        "1;a\nb\r\na\r\n0\r\n\r\n",
        "1;a\rb\r\na\r\n0\r\n\r\n",
        "1\r\nab\r\n0\r\n\r\n",
        "1\r\na\n0\r\n\r\n",
        "1\r\na\r0\r\n\r\n",
        ";x\r\n",
        "10000000000000000\r\n",
        "0\r\n\n",
        "0\r\nX: y\n\r\n",
        "0\r\nX : y\r\n\r\n",
        "0\r\n x\r\n\r\n",
        "0\r\nX: y\rz\r\n\r\n",
        &format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(LIMITS.chunk_line)),
        &format!("0\r\nX: {}\r\n\r\n", "x".repeat(LIMITS.head)),
    ] {
        let transcript = http(&format!("{head}{chunks}{next}"), &[EMPTY, EMPTY]);
        let [first, Step::Close(Some(Fault::Malformed(_)))] = &*transcript.steps else {
            panic!("{chunks:?}: {transcript:?}");
        };
        assert_eq!(*first, connect("a.test:80"));
        assert!(text(&transcript.to_program).starts_with("HTTP/1.1 400 "), "{chunks:?}");
        assert!(!sent(&transcript).contains("evil"), "{chunks:?}");
    }
}

#[test]
fn urls_are_taken_as_programs_write_them() {
    for (url, first_line) in [
        ("ws://a.test/chat", "GET /chat HTTP/1.1"),
        ("WS://a.test", "GET / HTTP/1.1"),
        ("http://user:p@ss:w@a.test/x", "GET /x HTTP/1.1"),
        ("http://a.test/@b?c@d", "GET /@b?c@d HTTP/1.1"),
        ("http://a.test/\u{fc}ber?q=\u{e4}", "GET /%C3%BCber?q=%C3%A4 HTTP/1.1"),
        ("http://a.test/a?x={1|2}^`", "GET /a?x={1|2}^` HTTP/1.1"),
    ] {
        let transcript = http(&format!("GET {url} HTTP/1.1\r\nHost: a.test\r\n\r\n"), &[EMPTY]);
        assert_eq!(transcript.steps[0], connect("a.test:80"), "{url}");
        let line = format!("{first_line}\r\nHost: a.test\r\n");
        assert!(sent(&transcript).starts_with(&line), "{url}: {}", sent(&transcript));
        assert_eq!(transcript.answered, 1, "{url}");
    }
    // A byte that is no UTF-8 stands for itself.
    let request = b"GET http://a.test/\xe4 HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let transcript = play(&script(request, &[EMPTY]));
    assert!(sent(&transcript).starts_with("GET /%E4 HTTP/1.1\r\n"));
}

#[test]
fn whitespace_before_the_colon_of_a_response_field_is_removed() {
    let get = "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
    for name in ["Content-Length ", "Content-Length\t", "Content-Length \t "] {
        let response = format!("HTTP/1.1 200 OK\r\n{name}: 3\r\nX \t: y\r\n\r\nabc");
        let transcript = http(get, &[&response]);
        let passed = text(&transcript.to_program);
        assert!(passed.contains("\r\nContent-Length: 3\r\n"), "{name:?}: {passed}");
        assert!(passed.contains("\r\nX: y\r\n") && passed.ends_with("\r\n\r\nabc"), "{passed}");
    }
}

#[test]
fn a_response_has_as_many_fields_as_fit_its_head() {
    let get = "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let fields = "X: y\r\n".repeat(LIMITS.head / 8);
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{fields}\r\n");
    let transcript = http(get, &[&response]);
    assert_eq!(text(&transcript.to_program).matches("X: y").count(), LIMITS.head / 8);
}

#[test]
fn what_is_too_large_is_refused() {
    let line = "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n";
    let rest = LIMITS.head - line.len() - "X: \r\n\r\n".len();
    let fits = format!("{line}X: {}\r\n\r\n", "x".repeat(rest));
    assert_eq!(http(&fits, &[EMPTY]).answered, 1);
    is_rejected(format!("{line}X: {}\r\n\r\n", "x".repeat(rest + 1)).as_bytes(), 431);
    is_rejected(format!("GET http://a.test/{}", "x".repeat(LIMITS.head)).as_bytes(), 431);
    let many = (LIMITS.head - line.len()) / "X:\r\n".len();
    assert_eq!(http(&format!("{line}{}\r\n", "X:\r\n".repeat(many - 1)), &[EMPTY]).answered, 1);
    is_rejected(format!("{line}{}\r\n", "X:\r\n".repeat(many + 1)).as_bytes(), 431);

    // A program that ignores `wants_program` is cut off.
    let mut local = Local::new(None, LIMITS);
    local.from_program(Bytes::from(format!("{line}\r\n")));
    assert!(!local.wants_program());
    for _ in 0..=LIMITS.held {
        local.from_program(Bytes::from_static(b"G"));
    }
    let last = std::iter::from_fn(|| local.poll()).last();
    assert!(matches!(last, Some(Step::Abort(Fault::TooLarge(_)))), "{last:?}");
}

#[test]
fn broken_responses_become_502_and_never_the_answer_of_another_request() {
    let get = "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
    for response in [
        "",
        "HTTP/1.1 200 OK\r\n",
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: y\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX y: z\r\n\r\n",
        "HTTP/1.1 200 OK\r\n : y\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
        "HTTP/1.1 099 Low\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        &format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(LIMITS.head)),
        &format!("HTTP/1.1 200 OK\r\n{}\r\n", "X:\r\n".repeat(LIMITS.head / 4)),
    ] {
        let transcript = http(get, &[response]);
        let passed = text(&transcript.to_program);
        let answer = passed
            .strip_prefix("HTTP/1.1 100 Continue\r\nVia: 1.1 tandem\r\n\r\n")
            .unwrap_or(passed);
        assert!(answer.starts_with("HTTP/1.1 502 "), "{response:?}: {passed}");
        assert!(matches!(transcript.steps.last(), Some(Step::Close(Some(Fault::Target(_))))));
    }
    // What follows a response is dropped with its connection.
    let poisoned = format!("{EMPTY}HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison");
    let transcript = http(&get.repeat(2), &[&poisoned, EMPTY]);
    let steps = [connect("a.test:80"), Step::Disconnect, connect("a.test:80"), Step::Close(None)];
    assert_eq!(transcript.steps, steps);
    assert!(!text(&transcript.to_program).contains("poison"));
}

#[test]
fn a_response_that_breaks_off_is_never_taken_for_complete() {
    let get = "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
    for (response, is_clean) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", true),
        ("HTTP/1.1 200 OK\r\n\r\nabc", false),
    ] {
        let transcript = play(&Script { is_clean, ..script(get.as_bytes(), &[response]) });
        let last = transcript.steps.last();
        assert!(matches!(last, Some(Step::Abort(Fault::Target(_)))), "{response:?}: {last:?}");
    }
}

#[test]
fn a_target_that_ends_an_idle_connection_is_connected_again() {
    let get = Bytes::from_static(b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let steps = |local: &mut Local| -> Vec<_> {
        let carries = |step: &Step| !matches!(step, Step::ToProgram(_) | Step::ToTarget(_));
        std::iter::from_fn(|| local.poll()).filter(carries).collect()
    };
    let mut local = Local::new(None, LIMITS);
    local.from_program(get.clone());
    local.on_granted();
    local.from_target(Bytes::from_static(EMPTY.as_bytes()));
    assert_eq!(steps(&mut local), [connect("a.test:80")]);
    local.target_ended(true);
    assert_eq!(steps(&mut local), [Step::Disconnect]);
    local.from_program(get.clone());
    local.from_target(Bytes::from_static(EMPTY.as_bytes()));
    assert_eq!(steps(&mut local), [connect("a.test:80")]);
    // The end crosses the next request: the program finds its connection closed, and repeats it.
    local.from_program(get);
    local.target_ended(true);
    assert!(matches!(*steps(&mut local), [Step::Close(Some(Fault::Target(_)))]));
}

#[test]
fn a_response_before_the_end_of_the_request_ends_the_connection_after_both() {
    let head = "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n";
    let collect = |local: &mut Local| -> Vec<_> { std::iter::from_fn(|| local.poll()).collect() };
    let refusal = "HTTP/1.1 413 Large\r\nContent-Length: 0\r\n\r\n";
    let told =
        "HTTP/1.1 413 Large\r\nContent-Length: 0\r\nVia: 1.1 tandem\r\nConnection: close\r\n\r\n";
    for (expect, end, waits_for_body) in [
        ("", "", true),
        ("Expect: 100-continue\r\n", "", false),
        ("", "Connection: close\r\n", false),
    ] {
        let mut local = Local::new(None, LIMITS);
        local.from_program(Bytes::from(format!("{head}{expect}\r\n")));
        local.on_granted();
        collect(&mut local);
        let response = refusal.replace("\r\n\r\n", &format!("\r\n{end}\r\n"));
        local.from_target(Bytes::from(response));
        let mut expected = vec![Step::ToProgram(Bytes::from(told))];
        if waits_for_body {
            assert_eq!(collect(&mut local), expected);
            // What the target sends in the meantime is not kept.
            local.from_target(Bytes::from(vec![b'x'; 1_000_000]));
            assert!(!format!("{local:?}").contains("1000000 bytes"), "{local:?}");
            local.from_program(Bytes::from_static(b"bodyGET http://b.test/ HTTP/1.1\r\n\r\n"));
            expected = vec![Step::ToTarget(Bytes::from_static(b"body"))];
        }
        expected.push(Step::Close(None));
        assert_eq!(collect(&mut local), expected);
    }
}

#[test]
fn a_program_that_ends_early_gets_what_it_asked_for_and_no_more() {
    let get = "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
    for (program, answered, is_fault) in [
        ("", 0, false),
        ("\r\n", 0, false),
        (get, 1, false),
        (&format!("{get}GET http"), 1, true),
        ("POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9\r\n\r\nhalf", 0, true),
    ] {
        let transcript = http(program, &[EMPTY, EMPTY]);
        assert_eq!(transcript.answered, answered, "{program:?}");
        let last = transcript.steps.last();
        let has_fault = matches!(last, Some(Step::Close(Some(_)) | Step::Abort(_)));
        assert_eq!(has_fault, is_fault, "{program:?}: {last:?}");
    }
}

#[test]
fn http_asks_for_the_password_and_takes_only_the_right_one() {
    // user:secret, user:wrong, usersecret
    for (field, is_right) in [
        ("", false),
        ("Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=\r\n", true),
        ("proxy-authorization: basic dXNlcjpzZWNyZXQ=\r\n", true),
        ("Proxy-Authorization: Basic dXNlcjp3cm9uZw==\r\n", false),
        ("Proxy-Authorization: Basic dXNlcnNlY3JldA==\r\n", false),
        ("Proxy-Authorization: Basic ????\r\n", false),
        ("Proxy-Authorization: Basic\r\n", false),
        ("Proxy-Authorization: Bearer dXNlcjpzZWNyZXQ=\r\n", false),
        ("Authorization: Basic dXNlcjpzZWNyZXQ=\r\n", false),
        ("Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=\r\nProxy-Authorization: x\r\n", false),
    ] {
        for request in ["GET http://a.test/ HTTP/1.1", "CONNECT a.test:80 HTTP/1.1"] {
            let program = format!("{request}\r\nHost: a.test\r\n{field}\r\n");
            let script = Script { has_password: true, ..script(program.as_bytes(), &[EMPTY]) };
            let transcript = play(&script);
            let answer = text(&transcript.to_program);
            if is_right {
                assert!(answer.starts_with("HTTP/1.1 200 "), "{program}: {answer}");
                assert!(!sent(&transcript).contains("dXNlcjpzZWNyZXQ"), "the password leaks");
            } else {
                assert_eq!(transcript.steps, [Step::Close(Some(Fault::Unauthorized))]);
                assert!(answer.starts_with("HTTP/1.1 407 "), "{program}: {answer}");
                assert!(answer.contains("\r\nProxy-Authenticate: Basic realm=\"tandem\"\r\n"));
            }
        }
    }
}

#[test]
fn passwords_are_never_printed() {
    let password = Arc::new(Password::parse("user:secret").unwrap());
    for program in [
        &b""[..],
        b"\x05\x01\x02\x01\x04user\x07secret",
        b"\x05\x01\x02\x01\x04user\x06secret",
        b"GET http://a.test/ HTTP/1.1\r\nProxy-Authorization: Basic secret",
        b"GET http://a.test/ HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Basic dXNlcjpzZWNyZXQ=\r\n\r\n",
    ] {
        let mut local = Local::new(Some(password.clone()), LIMITS);
        local.from_program(Bytes::from_static(program));
        let shown = format!("{local:?}");
        assert!(!shown.contains("secret") && !shown.contains("dXNlc"), "{shown}");
    }
}

#[test]
fn http_tells_why_a_target_cannot_be_reached() {
    for (request, has_body) in [
        ("GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", true),
        ("HEAD http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", false),
        ("CONNECT a.test:80 HTTP/1.1\r\nHost: a.test\r\n\r\n", true),
    ] {
        let script = Script { is_refused: true, ..script(request.as_bytes(), &[]) };
        let transcript = play(&script);
        let refused = Step::Close(Some(Fault::Refused("refused".into())));
        assert_eq!(transcript.steps, [connect("a.test:80"), refused]);
        let answer = text(&transcript.to_program);
        assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
        let status = "\r\nProxy-Status: tandem;error=connection_refused;next-hop=\"a.test:80\"";
        assert!(answer.contains(status), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let words = "tandem: the tunnel cannot reach a.test:80: refused.\n";
        assert!(head.contains(&format!("Content-Length: {}", words.len())), "{head}");
        assert_eq!(body, if has_body { words } else { "" });
    }
}

#[test]
fn socks5_opens_connections_to_names_and_addresses() {
    for (address, target) in [
        (&b"\x03\x0bExample.org\x01\xbb"[..], "example.org:443"),
        (b"\x01\xc0\0\x02\x01\0\x16", "192.0.2.1:22"),
        (b"\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\x50", "[::1]:80"),
    ] {
        let program = [b"\x05\x02\0\x02\x05\x01\0", address, b"hello"].concat();
        let transcript = play(&script(&program, &[]));
        assert_eq!(transcript.steps, [connect(target), Step::Splice]);
        assert_eq!(sent(&transcript), "hello");
        assert_eq!(*transcript.to_program, *b"\x05\0\x05\0\0\x01\0\0\0\0\0\0");
    }
}

#[test]
fn socks5_opens_an_association_that_ends_with_its_connection() {
    for (address, from) in [
        (&b"\x01\0\0\0\0\0\0"[..], "0.0.0.0:0"),
        (b"\x01\x7f\0\0\x01\x13\x88", "127.0.0.1:5000"),
        (b"\x03\x01a\0\x01", "0.0.0.0:0"),
    ] {
        let program = [b"\x05\x01\0\x05\x03\0", address, b"ignored"].concat();
        let transcript = play(&script(&program, &[]));
        let from: SocketAddr = from.parse().unwrap();
        assert_eq!(transcript.steps, [Step::Associate { from }, Step::Close(None)]);
        assert_eq!(*transcript.to_program, *b"\x05\0\x05\0\0\x01\x7f\0\0\x01\x04\x38");
    }
}

#[test]
fn socks5_refuses_with_the_code_of_the_cause() {
    for (request, code) in [
        (&b"\x05\x02\0\x01\x7f\0\0\x01\0\x50"[..], SocksReply::CommandNotSupported),
        (b"\x05\x09\0\x01\x7f\0\0\x01\0\x50", SocksReply::CommandNotSupported),
        (b"\x05\x01\0\x02\x7f\0\0\x01\0\x50", SocksReply::AddressTypeNotSupported),
        (b"\x05\x01\0\x01\x7f\0\0\x01\0\0", SocksReply::HostUnreachable),
        (b"\x05\x01\0\x03\0\0\x50", SocksReply::HostUnreachable),
        (b"\x05\x01\0\x03\x03a\nb\0\x50", SocksReply::HostUnreachable),
        (b"\x05\x01\0\x03\x02\xff\xff\0\x50", SocksReply::HostUnreachable),
        (b"\x04\x01\0\x01\x7f\0\0\x01\0\x50", SocksReply::GeneralFailure),
    ] {
        let transcript = play(&script(&[b"\x05\x01\0", request].concat(), &[]));
        assert!(matches!(*transcript.steps, [Step::Close(Some(_))]), "{transcript:?}");
        let reply = [5, 0, 5, code as u8, 0, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(*transcript.to_program, reply, "{request:?}");
    }
    for request in [&b"\x05\x01\0\x01\x7f\0\0\x01\0\x50"[..], b"\x05\x03\0\x01\0\0\0\0\0\0"] {
        let program = [b"\x05\x01\0", request].concat();
        let transcript = play(&Script { is_refused: true, ..script(&program, &[]) });
        assert_eq!(*transcript.to_program, *b"\x05\0\x05\x05\0\x01\0\0\0\0\0\0");
        assert!(matches!(transcript.steps.last(), Some(Step::Close(Some(Fault::Refused(_))))));
    }
}

#[test]
fn socks5_asks_for_the_password_and_takes_only_the_right_one() {
    let request = b"\x05\x01\0\x01\x7f\0\0\x01\0\x50";
    for (has_password, hello, reply, is_right) in [
        (true, &b"\x05\x02\0\x02\x01\x04user\x06secret"[..], &b"\x05\x02\x01\0"[..], true),
        (true, b"\x05\x02\0\x02\x01\x04user\x05wrong", b"\x05\x02\x01\x01", false),
        (true, b"\x05\x01\x02\x01\0\0", b"\x05\x02\x01\x01", false),
        (true, b"\x05\x01\x02\x02\x04user\x06secret", b"\x05\x02\x01\x01", false),
        (true, b"\x05\x01\0", b"\x05\xff", false),
        (true, b"\x05\0", b"\x05\xff", false),
        (false, b"\x05\x01\x01", b"\x05\xff", false),
        // A program that always shows a password is served without one too.
        (false, b"\x05\x01\x02\x01\x01a\x01b", b"\x05\x02\x01\0", true),
    ] {
        let program = [hello, request].concat();
        let transcript = play(&Script { has_password, ..script(&program, &[]) });
        if is_right {
            assert_eq!(transcript.steps, [connect("127.0.0.1:80"), Step::Splice]);
            assert!(transcript.to_program.starts_with(reply), "{hello:?}");
        } else {
            assert_eq!(transcript.steps, [Step::Close(Some(Fault::Unauthorized))], "{hello:?}");
            assert_eq!(*transcript.to_program, *reply, "{hello:?}");
        }
    }
}

const SOCKS4_GRANTED: &[u8] = b"\0\x5a\0\0\0\0\0\0";
const SOCKS4_REJECTED: &[u8] = b"\0\x5b\0\0\0\0\0\0";

#[test]
fn socks4_and_4a_give_connections() {
    for (request, target) in [
        (&b"\x04\x01\0\x50\x7f\0\0\x01user\0"[..], "127.0.0.1:80"),
        (b"\x04\x01\x01\xbb\xc0\0\x02\x01\0", "192.0.2.1:443"),
        (b"\x04\x01\0\x50\0\0\0\x01user\0a.test\0", "a.test:80"),
        (b"\x04\x01\0\x50\0\0\0\xff\0my_app_1.test\0", "my_app_1.test:80"),
        (b"\x04\x01\0\x50\0\0\0\x01\x002001:db8::1\0", "[2001:db8::1]:80"),
    ] {
        let transcript = play(&script(&[request, b"hello"].concat(), &[]));
        assert_eq!(transcript.steps, [connect(target), Step::Splice], "{target}");
        assert_eq!(sent(&transcript), "hello", "{target}");
        assert_eq!(*transcript.to_program, *SOCKS4_GRANTED, "{target}");
    }
}

#[test]
fn socks4_requests_without_a_target_are_rejected() {
    let long = [b"\x04\x01\0\x50\x7f\0\0\x01", &[b'x'; 256][..]].concat();
    let long_name = [b"\x04\x01\0\x50\0\0\0\x01user\0", &[b'x'; 256][..]].concat();
    for request in [
        &b"\x04\x02\0\x50\x7f\0\0\x01\0"[..], // BIND
        b"\x04\x09\0\x50\x7f\0\0\x01\0",
        b"\x04\x01\0\0\x7f\0\0\x01\0",
        b"\x04\x01\0\x50\0\0\0\x01user\0\0",
        b"\x04\x01\0\x50\0\0\0\x01user\0a b\0",
        b"\x04\x01\0\x50\0\0\0\x01user\0\xff\0",
        &long,
        &long_name,
    ] {
        let transcript = play(&script(request, &[]));
        assert!(
            matches!(&*transcript.steps, [Step::Close(Some(_))]),
            "{request:?}: {transcript:?}"
        );
        assert_eq!(*transcript.to_program, *SOCKS4_REJECTED, "{request:?}");
    }
    let incomplete = play(&script(b"\x04\x01\0\x50\x7f\0\0\x01user", &[]));
    assert!(matches!(&*incomplete.steps, [Step::Close(Some(Fault::Malformed(_)))]));
    assert_eq!(*incomplete.to_program, *b"");
}

#[test]
fn socks4_is_rejected_where_a_password_is_needed_and_the_log_says_what_to_do() {
    let request = script(b"\x04\x01\0\x50\x7f\0\0\x01user\0", &[]);
    let transcript = play(&Script { has_password: true, ..request });
    assert_eq!(transcript.steps, [Step::Close(Some(Fault::Socks4))]);
    assert_eq!(*transcript.to_program, *SOCKS4_REJECTED);
    assert!(Fault::Socks4.to_string().contains("socks5h://"));
}

/// Texts of which requests and responses consist, well-formed and malformed.
fn word() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "GET http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST http://b.test/ HTTP/1.1\r\nHost: b\r\nContent-Length: 3\r\n\r\nabc",
        "POST http://a.test/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HEAD http://a.test/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "GET http://a.test/ HTTP/1.0\r\n\r\n",
        "CONNECT a.test:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a.test/ HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "3\r\nabc\r\n",
        "0\r\n\r\n",
        "0\r\nX: y\r\n\r\n",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "\r\n",
        "\n",
        "\r",
        " ",
        "x",
        "\0",
        "\u{1e}",
        "\x05\x01\0",
        "\x05\x01\0\x01\x7f\0\0\x01\0\x50",
        "\x05\x03\0\x03\x01a\0\x50",
    ])
}

proptest! {
    #[test]
    fn the_steps_depend_on_the_bytes_and_not_on_how_they_are_cut(
        flags: u8,
        words in prop::collection::vec(word(), 0..12),
        noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
    ) {
        let mut input = words.concat().into_bytes();
        for (place, byte) in noise {
            if !input.is_empty() {
                let place = place.index(input.len());
                input[place] = byte;
            }
        }
        input.insert(0, flags);
        run(&input);
    }

    #[test]
    fn any_bytes_are_taken(input: Vec<u8>) {
        run(&input);
    }
}

#[test]
fn a_refusal_after_the_answer_has_no_effect() {
    let mut local = Local::new(None, LIMITS);
    local.on_refused(&Refusal::new("dns_error".into(), "".into()));
    local.on_granted();
    local.target_ended(false);
    local.from_target(Bytes::from_static(b"x"));
    assert_eq!(local.poll(), None);
    local.program_ended();
    assert_eq!(local.poll(), Some(Step::Close(None)));
    assert_eq!(local.poll(), None);
}
