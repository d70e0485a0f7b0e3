//! What strangers send to find out whether a web site is a proxy.

use bytes::BytesMut;
use tandem_wire::{
    VarInt, encode_continued, h3_frame::STREAM_TYPE_CONTINUATION, qpack::encode_field_section,
};

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
const PVD: &str = "/.well-known/pvd";

/// Credentials that are right nowhere, in each form. The first is the Basic form of `alice` and a wrong token.
const WRONG: [&str; 6] = [
    "Basic YWxpY2U6d3JvbmcgdG9rZW4gb2YgYWxpY2U=",
    "Bearer fedcba9876543210fedcba",
    "Bearer eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.AAAA",
    "Digest username=\"alice\", realm=\"tandem\", nonce=\"0\", uri=\"/\", response=\"0\"",
    "Negotiate YII=",
    "Concealed k=YWxpY2U, a=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA, s=2055, v=AAAAAAAAAAAAAAAAAAAAAA, p=AAAA",
];

/// Paths that are asked for.
const PATHS: &[&str] = &[
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
    PVD,
    "/.well-known/tandem-speedtest",
    "/.well-known/tandem-quic-info",
    "/../etc/passwd",
    "/%2e%2e/etc/passwd",
    "//",
    "/%00",
    "/%zz",
    "*",
    "/.well-known/masque/udp/*/*/",
];

/// Other methods than GET, and their paths.
const METHODS: &[(&str, &str)] = &[
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
];

/// Fields of requests for a page.
const FIELDS: &[(&str, &str)] = &[
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
];

/// Targets of TCP connections.
const AUTHORITIES: &[&str] = &[
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
];

/// Protocols of extended CONNECT, and paths.
const EXTENDED: &[(&str, &str)] = &[
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
    ("connect-udp-bind", UDP),
    ("nonsense", "/"),
    ("", "/"),
];

/// Fields of requests for a flow of UDP payloads.
const UDP_FIELDS: &[(&str, &str)] = &[
    ("content-length", "5"),
    ("content-type", "text/plain"),
    ("tandem-mode", "rmdt"),
    ("tandem-group", "1"),
    ("capsule-protocol", "?0"),
];

/// A probe that is one request.
fn one(name: impl Into<String>, request: Vec<u8>) -> Probe {
    Probe { name: name.into(), requests: vec![(request, true)], ..Probe::default() }
}

/// All probes. `secret` stands for the secret path of a site, of which they try a wrong one and a shortened one.
pub(crate) fn all(secret: &str) -> Vec<Probe> {
    let mut all = Vec::new();
    all.extend(PATHS.iter().map(|path| one(format!("GET {path}"), headers(&plain("GET", path)))));
    let methods = METHODS.iter();
    all.extend(
        methods
            .map(|(method, path)| one(format!("{method} {path}"), headers(&plain(method, path)))),
    );
    all.extend(
        FIELDS
            .iter()
            .map(|field| one(format!("GET / with {field:?}"), with(&plain("GET", "/"), &[*field]))),
    );
    let authorities = AUTHORITIES.iter();
    all.extend(authorities.map(|it| one(format!("CONNECT {it}"), headers(&connect(it)))));
    all.extend(EXTENDED.iter().map(|(protocol, path)| {
        let request = with(&extended(protocol, path), &[("capsule-protocol", "?1")]);
        one(format!("extended CONNECT {protocol} {path}"), request)
    }));
    all.extend(UDP_FIELDS.iter().map(|field| {
        one(format!("connect-udp with {field:?}"), with(&extended("connect-udp", UDP), &[*field]))
    }));
    credentials(&mut all);
    around(&mut all, secret);
    malformed(&mut all);
    streams(&mut all);
    datagrams(&mut all);
    all
}

/// Requests for the configuration document by who knows the path, and has no right besides.
pub(crate) fn of_the_document(secret: &str) -> Vec<Probe> {
    let path = format!("/{secret}{PVD}");
    let mut all = Vec::new();
    for path in [&*path, PVD] {
        for method in ["GET", "HEAD", "POST", "OPTIONS"] {
            all.push(one(format!("{method} of the document"), headers(&plain(method, path))));
            for wrong in WRONG {
                for field in ["authorization", "proxy-authorization"] {
                    let shown: String = wrong.chars().take(24).collect();
                    let name = format!("{method} of the document with {field}: {shown}");
                    all.push(one(name, with(&plain(method, path), &[(field, wrong)])));
                }
            }
        }
        all.push(one("connect-udp to the document", headers(&extended("connect-udp", path))));
    }
    all
}

/// Wrong credentials.
fn credentials(all: &mut Vec<Probe>) {
    for wrong in WRONG {
        let shown: String = wrong.chars().take(24).collect();
        for field in ["authorization", "proxy-authorization"] {
            for (name, lines) in [
                ("GET", plain("GET", "/")),
                ("CONNECT", connect("192.0.2.1:443")),
                ("connect-udp", extended("connect-udp", UDP)),
                ("connect-tcp", extended("connect-tcp", TCP)),
            ] {
                all.push(one(
                    format!("{name} with {field}: {shown}"),
                    with(&lines, &[(field, wrong)]),
                ));
            }
        }
    }
    // The more tokens are wrong, the less a proxy looks at them.
    let guess = |number: u32| {
        let token = format!("Bearer wrong-token-of-a-guesser-{number}");
        (with(&extended("connect-udp", UDP), &[("authorization", &token)]), true)
    };
    let mut requests: Vec<_> = (0..40).map(guess).collect();
    requests.push((headers(&plain("GET", "/")), true));
    all.push(Probe { name: "guesses".to_owned(), requests, ..Probe::default() });
}

/// Paths that nearly are those of the proxy, and long ones.
fn around(all: &mut Vec<Probe>, secret: &str) {
    let rest = &secret[1..];
    for path in [
        format!("/{rest}x{UDP}"),
        format!("/{rest}{UDP}"),
        format!("/{secret}"),
        format!("/{secret}/"),
        format!("/{secret}/.well-known/masque/"),
        format!("//{secret}{UDP}"),
        format!("/{rest}{PVD}"),
        format!("/{secret}{PVD}/"),
        format!("/{secret}{PVD}?a"),
        format!("//{secret}{PVD}"),
        format!("/{}", "a".repeat(6000)),
    ] {
        let shown: String = path.chars().take(60).collect();
        all.push(one(format!("GET {shown}"), headers(&plain("GET", &path))));
        all.push(one(format!("connect-udp {shown}"), headers(&extended("connect-udp", &path))));
        let wrong = with(&extended("connect-udp", &path), &[("authorization", WRONG[1])]);
        all.push(one(format!("connect-udp {shown} with a wrong token"), wrong));
    }
    let below = format!("/{secret}{UDP}");
    all.push(one("GET below the path", headers(&plain("GET", &below))));
    let huge = with(&extended("connect-udp", UDP), &[("user-agent", &"a".repeat(20_000))]);
    all.push(one("connect-udp with a huge field", huge));
}

/// A part of a request head: each field may be there or not.
const FORBIDDEN: &[(&str, &[(&str, &str)])] = &[
    ("no path", &[(":method", "GET"), (":scheme", "https"), (":authority", "a")]),
    ("no method", &[(":scheme", "https"), (":authority", "a"), (":path", "/")]),
    ("no authority", &[(":method", "GET"), (":scheme", "https"), (":path", "/")]),
    (
        "http scheme",
        &[(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")],
    ),
    (
        "CONNECT with a path",
        &[(":method", "CONNECT"), (":scheme", "https"), (":authority", "a:1"), (":path", "/")],
    ),
    (
        "GET with a protocol",
        &[
            (":method", "GET"),
            (":protocol", "connect-udp"),
            (":scheme", "https"),
            (":authority", "a"),
            (":path", "/"),
        ],
    ),
    (
        "CONNECT without a path",
        &[(":method", "CONNECT"), (":protocol", "connect-udp"), (":authority", "a")],
    ),
];

/// Fields that HTTP/3 forbids.
const FORBIDDEN_FIELDS: &[(&str, &str)] = &[
    ("Accept", "x"),
    ("connection", "close"),
    ("transfer-encoding", "chunked"),
    ("te", "gzip"),
    ("content-length", "1, 2"),
    ("x", "\0"),
];

/// Requests that HTTP/3 forbids, and bodies.
fn malformed(all: &mut Vec<Probe>) {
    all.extend(FORBIDDEN.iter().map(|(name, lines)| one(*name, headers(lines))));
    all.extend(
        FORBIDDEN_FIELDS
            .iter()
            .map(|field| one(format!("POST with {field:?}"), with(&plain("POST", "/"), &[*field]))),
    );
    let get = headers(&plain("GET", "/"));
    let half = get[..get.len() - 3].to_vec();
    let post = with(&plain("POST", "/"), &[("content-length", "5")]);
    let udp = headers(&extended("connect-udp", UDP));
    let mut continued = BytesMut::from(&*udp);
    encode_continued(VarInt::from(14_u32), &mut continued);
    let lengths = [("content-length", "1"), ("content-length", "2")];
    for (name, request) in [
        ("two lengths", with(&plain("POST", "/"), &lengths)),
        ("a field section of garbage", frame(1, &[0xff; 40])),
        ("an empty field section", frame(1, &[])),
        ("an empty stream", Vec::new()),
        ("DATA first", frame(0, b"hello")),
        ("SETTINGS on a request stream", frame(4, &[])),
        ("a push promise", frame(5, &[0])),
        ("a reserved frame first", [frame(0x21 + 0x1f, b"x"), get.clone()].concat()),
        ("half of a frame", half.clone()),
        ("HEADERS twice", [get.clone(), get.clone(), get.clone()].concat()),
        ("DATA after GET", [get.clone(), frame(0, b"hello")].concat()),
        ("a body that is too short", [post.clone(), frame(0, b"he")].concat()),
        ("a body that is too long", [post.clone(), frame(0, b"hello, world")].concat()),
        ("a body", [post, frame(0, b"hello")].concat()),
        ("capsules", [udp.clone(), frame(0, &frame(0, b"\0payload"))].concat()),
        ("HEADERS after CONNECT", [udp.clone(), get.clone()].concat()),
        ("a frame that says where the request goes on", continued.to_vec()),
    ] {
        all.push(one(name, request));
    }
    for (name, request) in [
        ("GET", get),
        ("connect-udp", udp),
        ("CONNECT", headers(&connect("192.0.2.1:443"))),
        ("half of a request", half),
    ] {
        let requests = vec![(request, false)];
        all.push(Probe { name: format!("{name} that never ends"), requests, ..Probe::default() });
    }
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
            vec![([varint(STREAM_TYPE_CONTINUATION.get()), varint(0)].concat(), true)],
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
