//! What strangers send to find out whether a web site is a proxy.

use tandem_wire::{VarInt, qpack::encode_field_section};

use crate::prober::Probe;

/// A frame, or anything else that is a type, a length and a value.
fn frame(frame_type: u64, payload: &[u8]) -> Vec<u8> {
    [varint(frame_type), varint(payload.len() as u64), payload.to_vec()].concat()
}

fn varint(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    VarInt::try_from(value).unwrap().encode(&mut out);
    out
}

pub(crate) fn headers(lines: &[(&str, &str)]) -> Vec<u8> {
    let lines = lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    frame(1, &encode_field_section(lines))
}

fn with<'a>(begin: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<u8> {
    headers(&[begin, more].concat())
}

fn plain<'a>(method: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
}

/// A request for a TCP connection (RFC 9114 §4.4).
pub(crate) fn connect(authority: &str) -> Vec<(&str, &str)> {
    vec![(":method", "CONNECT"), (":authority", authority)]
}

/// An extended CONNECT request (RFC 9220).
pub(crate) fn extended<'a>(protocol: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut lines = plain("CONNECT", path);
    lines.insert(1, (":protocol", protocol));
    lines
}

const UDP: &str = "/.well-known/masque/udp/192.0.2.1/53/";
const TCP: &str = "/.well-known/masque/tcp/192.0.2.1/80/";
const IP: &str = "/.well-known/masque/ip/*/*/";

/// Credentials that are right nowhere, in each form. The first is the Basic form of `alice` and a wrong token.
const WRONG: [&str; 6] = [
    "Basic YWxpY2U6d3JvbmcgdG9rZW4gb2YgYWxpY2U=",
    "Bearer fedcba9876543210fedcba",
    "Bearer eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.AAAA",
    "Digest username=\"alice\", realm=\"tandem\", nonce=\"0\", uri=\"/\", response=\"0\"",
    "Negotiate YII=",
    "Concealed k=:YQ==:, a=:YQ==:, s=2055, v=:YQ==:, p=:YQ==:",
];

/// All probes. `secret` stands for the secret path of a site, of which they try a wrong one and a shortened one.
pub(crate) fn all(secret: &str) -> Vec<Probe> {
    let mut all = Vec::new();
    let mut ask = |name: &str, request: Vec<u8>| {
        all.push(Probe {
            name: name.to_owned(),
            requests: vec![(request, true)],
            ..Probe::default()
        });
    };
    let long = format!("/{}", "a".repeat(6000));
    let huge = "a".repeat(20_000);
    let near = format!("/{}x{UDP}", &secret[1..]);
    let short = format!("/{}{UDP}", &secret[1..]);
    let only = format!("/{secret}");
    let slash = format!("/{secret}/");
    let doubled = format!("//{secret}{UDP}");
    let below = format!("/{secret}{UDP}");
    for path in [
        "/",
        "/index.html",
        "/index.html?a=b",
        "/folder",
        "/folder/",
        "/folder/page.txt",
        "/missing",
        "/empty",
        "/large",
        UDP,
        TCP,
        IP,
        "/.well-known/pvd",
        "/.well-known/tandem-speedtest",
        "/.well-known/tandem-quic-info",
        "/../etc/passwd",
        "/%2e%2e/etc/passwd",
        "//",
        "/%00",
        "/%zz",
        "*",
        &long,
        &near,
        &short,
        &only,
        &slash,
        &below,
        "/.well-known/masque/udp/*/*/",
    ] {
        let name: String = path.chars().take(60).collect();
        ask(&format!("GET {name}"), headers(&plain("GET", path)));
    }
    for (method, path) in [
        ("HEAD", "/"),
        ("HEAD", "/missing"),
        ("HEAD", UDP),
        ("OPTIONS", "*"),
        ("OPTIONS", "/"),
        ("OPTIONS", UDP),
        ("TRACE", "/"),
        ("POST", "/"),
        ("POST", UDP),
        ("PUT", "/file"),
        ("DELETE", "/"),
        ("PATCH", "/"),
        ("BREW", "/"),
        ("PROPFIND", "/"),
        ("get", "/"),
    ] {
        ask(&format!("{method} {path}"), headers(&plain(method, path)));
    }
    for (name, value) in [
        ("range", "bytes=0-3"),
        ("range", "bytes=-1"),
        ("range", "bytes=99999999-"),
        ("range", "bytes=0-1,3-4"),
        ("range", "tokens=1-2"),
        ("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT"),
        ("if-modified-since", "Thu, 01 Jan 1970 00:00:00 GMT"),
        ("if-none-match", "*"),
        ("if-match", "\"x\""),
        ("accept-encoding", "br"),
        ("expect", "100-continue"),
        ("te", "trailers"),
        ("tandem-quic-info", "1"),
        ("capsule-protocol", "?1"),
        ("proxy-status", "x"),
        ("content-length", "0"),
        ("content-length", "x"),
        ("max-forwards", "0"),
        ("upgrade-insecure-requests", "1"),
    ] {
        ask(&format!("GET / with {name}: {value}"), with(&plain("GET", "/"), &[(name, value)]));
    }
    for authority in [
        "192.0.2.1:443",
        "127.0.0.1:1",
        "localhost:22",
        "[::1]:80",
        "example.org:443",
        "example.org",
        "x:0",
        ":",
        "a b:1",
        "service.tandem.invalid:1",
    ] {
        ask(&format!("CONNECT {authority}"), headers(&connect(authority)));
    }
    for wrong in WRONG {
        let shown: String = wrong.chars().take(24).collect();
        for field in ["authorization", "proxy-authorization"] {
            ask(&format!("GET with {field}: {shown}"), with(&plain("GET", "/"), &[(field, wrong)]));
            ask(
                &format!("CONNECT with {field}: {shown}"),
                with(&connect("192.0.2.1:443"), &[(field, wrong)]),
            );
            ask(
                &format!("connect-udp with {field}: {shown}"),
                with(&extended("connect-udp", UDP), &[(field, wrong)]),
            );
        }
        ask(
            &format!("connect-tcp with {shown}"),
            with(&extended("connect-tcp", TCP), &[("authorization", wrong)]),
        );
        ask(
            &format!("near the secret path with {shown}"),
            with(&extended("connect-udp", &near), &[("authorization", wrong)]),
        );
    }
    for (protocol, path) in [
        ("connect-udp", UDP),
        ("connect-tcp", TCP),
        ("connect-ip", IP),
        ("websocket", "/"),
        ("websocket", "/chat"),
        ("webtransport", "/"),
        ("tandem-quic-info", "/.well-known/tandem-quic-info"),
        ("connect-udp", "/"),
        ("connect-udp", "/.well-known/masque/udp/"),
        ("connect-udp", "/.well-known/masque/udp/a/b/c/"),
        ("connect-udp", "/.well-known/masque/udp/192.0.2.1/99999/"),
        ("connect-tcp", UDP),
        ("connect-udp", TCP),
        ("connect-udp", &near),
        ("connect-udp", &short),
        ("connect-udp", &only),
        ("connect-udp", &slash),
        ("connect-udp", &doubled),
        ("connect-udp-bind", UDP),
        ("nonsense", "/"),
        ("", "/"),
    ] {
        ask(
            &format!("extended CONNECT {protocol} {path}"),
            with(&extended(protocol, path), &[("capsule-protocol", "?1")]),
        );
    }
    for (name, value) in [
        ("content-length", "5"),
        ("content-type", "text/plain"),
        ("tandem-mode", "rmdt"),
        ("tandem-group", "1"),
        ("capsule-protocol", "?0"),
        ("user-agent", &huge),
    ] {
        let name = name.to_owned();
        ask(
            &format!("connect-udp with {name}"),
            with(&extended("connect-udp", UDP), &[(&name, value)]),
        );
    }
    malformed(&mut all);
    streams(&mut all);
    datagrams(&mut all);
    // The more tokens are wrong, the less a proxy looks at them.
    let guess = |number: u32| {
        let token = format!("Bearer wrong-token-of-a-guesser-{number}");
        (with(&extended("connect-udp", UDP), &[("authorization", &token)]), true)
    };
    let mut requests: Vec<_> = (0..40).map(guess).collect();
    requests.push((headers(&plain("GET", "/")), true));
    all.push(Probe { name: "guesses".to_owned(), requests, ..Probe::default() });
    all
}

/// Requests that HTTP/3 forbids.
fn malformed(all: &mut Vec<Probe>) {
    let get = headers(&plain("GET", "/"));
    let post = with(&plain("POST", "/"), &[("content-length", "5")]);
    let udp = headers(&extended("connect-udp", UDP));
    let mut ask = |name: &str, request: Vec<u8>, ends: bool| {
        all.push(Probe {
            name: name.to_owned(),
            requests: vec![(request, ends)],
            ..Probe::default()
        });
    };
    ask(
        "no path",
        headers(&[(":method", "GET"), (":scheme", "https"), (":authority", "localhost")]),
        true,
    );
    ask(
        "no method",
        headers(&[(":scheme", "https"), (":authority", "localhost"), (":path", "/")]),
        true,
    );
    ask("no authority", headers(&[(":method", "GET"), (":scheme", "https"), (":path", "/")]), true);
    ask(
        "http scheme",
        headers(&[(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")]),
        true,
    );
    ask(
        "CONNECT with a path",
        headers(&[
            (":method", "CONNECT"),
            (":scheme", "https"),
            (":authority", "a:1"),
            (":path", "/"),
        ]),
        true,
    );
    ask(
        "GET with a protocol",
        headers(&[
            (":method", "GET"),
            (":protocol", "connect-udp"),
            (":scheme", "https"),
            (":authority", "a"),
            (":path", "/"),
        ]),
        true,
    );
    ask(
        "extended CONNECT without a path",
        headers(&[(":method", "CONNECT"), (":protocol", "connect-udp"), (":authority", "a")]),
        true,
    );
    ask("an upper-case field", with(&plain("GET", "/"), &[("Accept", "x")]), true);
    ask("connection", with(&plain("GET", "/"), &[("connection", "close")]), true);
    ask("transfer-encoding", with(&plain("POST", "/"), &[("transfer-encoding", "chunked")]), true);
    ask(
        "two lengths",
        with(&plain("POST", "/"), &[("content-length", "1"), ("content-length", "2")]),
        true,
    );
    ask("a field section of garbage", frame(1, &[0xff; 40]), true);
    ask("an empty field section", frame(1, &[]), true);
    ask("an empty stream", Vec::new(), true);
    ask("DATA first", frame(0, b"hello"), true);
    ask("SETTINGS on a request stream", frame(4, &[]), true);
    ask("a push promise", frame(5, &[0]), true);
    ask("a reserved frame first", [frame(0x21 + 0x1f, b"x"), get.clone()].concat(), true);
    ask("half of a frame", get[..get.len() - 3].to_vec(), true);
    ask("a request that never ends", get.clone(), false);
    ask("a connect-udp request that never ends", udp.clone(), false);
    ask("CONNECT that never ends", headers(&connect("192.0.2.1:443")), false);
    ask("half of a request that never ends", get[..get.len() - 3].to_vec(), false);
    ask("HEADERS twice", [get.clone(), get.clone(), get.clone()].concat(), true);
    ask("DATA after GET", [get.clone(), frame(0, b"hello")].concat(), true);
    ask("a body that is too short", [post.clone(), frame(0, b"he")].concat(), true);
    ask("a body that is too long", [post.clone(), frame(0, b"hello, world")].concat(), true);
    ask("a body", [post, frame(0, b"hello")].concat(), true);
    ask("capsules", [udp.clone(), frame(0, &frame(0, b"\0payload"))].concat(), true);
    ask("HEADERS after CONNECT", [udp.clone(), get].concat(), true);
    ask("a frame that continues elsewhere", [udp, frame(0x7_4d_43, &varint(14))].concat(), true);
}

/// Unidirectional streams, of which some end a connection.
fn streams(all: &mut Vec<Probe>) {
    let get = (headers(&plain("GET", "/")), true);
    let settings = |pairs: &[(u64, u64)]| {
        let pairs: Vec<_> =
            pairs.iter().map(|(id, value)| [varint(*id), varint(*value)].concat()).collect();
        [varint(0), frame(4, &pairs.concat())].concat()
    };
    for (name, has_own_control, one_way) in [
        ("no control stream", true, vec![]),
        ("a control stream that ends", true, vec![(settings(&[]), true)]),
        ("two control streams", false, vec![(settings(&[]), false)]),
        ("SETTINGS twice", true, vec![([settings(&[]), frame(4, &[])].concat(), false)]),
        ("GOAWAY first", true, vec![([varint(0), frame(7, &varint(0))].concat(), false)]),
        ("all settings", true, vec![(settings(&[(0x08, 1), (0x33, 1), (0x06, 1000)]), false)]),
        ("a forbidden setting", true, vec![(settings(&[(0x02, 1)]), false)]),
        ("a wrong setting", true, vec![(settings(&[(0x08, 2)]), false)]),
        ("a setting twice", true, vec![(settings(&[(0x33, 1), (0x33, 1)]), false)]),
        ("a push stream", false, vec![(varint(1), false)]),
        (
            "a stream of an unknown type",
            false,
            vec![([varint(0x21 + 0x1f), b"hello".to_vec()].concat(), true)],
        ),
        ("a QPACK instruction", false, vec![(vec![2, 0x3f, 0xff, 0xff, 0xff], false)]),
        (
            "a stream that continues nothing",
            false,
            vec![([varint(0x7_4d_43), varint(0)].concat(), true)],
        ),
        (
            "DATA on the control stream",
            true,
            vec![([settings(&[]), frame(0, b"x")].concat(), false)],
        ),
    ] {
        let name = name.to_owned();
        all.push(Probe {
            name,
            has_own_control,
            one_way,
            requests: vec![get.clone()],
            ..Probe::default()
        });
    }
}

/// Datagrams, for which a web site has no use.
fn datagrams(all: &mut Vec<Probe>) {
    let open = (headers(&extended("connect-udp", UDP)), false);
    let get = (headers(&plain("GET", "/large")), false);
    let datagram = |quarter: u64, payload: &[u8]| [varint(quarter), payload.to_vec()].concat();
    for (name, before, after, requests) in [
        ("a datagram before its request", vec![datagram(0, b"\0hello")], vec![], vec![get.clone()]),
        ("a datagram for no request", vec![datagram(99, b"\0hello")], vec![], vec![get.clone()]),
        (
            "a datagram for an impossible request",
            vec![datagram(1 << 59, b"\0hello")],
            vec![],
            vec![get.clone()],
        ),
        ("an empty datagram", vec![Vec::new()], vec![], vec![get.clone()]),
        ("a datagram that is cut", vec![vec![0xff, 0xff]], vec![], vec![get.clone()]),
        (
            "many datagrams",
            (0..200).map(|it| datagram(it % 7, b"\0hello")).collect(),
            vec![],
            vec![get],
        ),
        ("a datagram before connect-udp", vec![datagram(0, b"\0hello")], vec![], vec![open]),
    ] {
        let name = name.to_owned();
        all.push(Probe { name, datagrams: (before, after), requests, ..Probe::default() });
    }
}
