//! An origin before an HTTP server, as operators use it: reports, WebSockets, hints, trailers, and a server that fails.

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use serde_json::Value;
use tandem_wire::{Frame, FrameDecoder, ResponseHead, StreamKind, decode_trailers};

use crate::{
    ask, ask_and_wait,
    prober::Seen,
    probes::{extended, headers},
    scene,
    support::{Scene, Server, eventually},
    tcp, upstream,
};

fn origin(scene: &Scene, root: &str, more: &str) -> Server {
    let common = "--listen 127.0.0.1:0 --cert dev/cert.pem --key dev/key.pem";
    scene.serve(&format!("origin {common} --root {root} --admin 127.0.0.1:0 {more}"))
}

/// What an operator's address answers.
fn admin(server: &Server, path: &str) -> String {
    let address = server.admin();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// `None`: it is not there. Those of threads are there after their first second.
fn metric(server: &Server, name: &str) -> Option<u64> {
    let text = admin(server, "/metrics");
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// The statuses of the responses on the first stream, the fields and the body of the last one, and the trailers.
fn responses(seen: &Seen) -> (Vec<u16>, ResponseHead, Vec<u8>, http::HeaderMap) {
    let mut decoder = FrameDecoder::new(StreamKind::Request, 1 << 20);
    decoder.push(seen.streams[0].0.clone().into());
    let (mut statuses, mut last, mut body) = (Vec::new(), ResponseHead::default(), Vec::new());
    let mut trailers = http::HeaderMap::new();
    while let Ok(Some(frame)) = decoder.next() {
        match frame {
            Frame::Headers(section) => match ResponseHead::decode(section.clone(), 1 << 20) {
                Ok(head) => {
                    statuses.push(head.status.as_u16());
                    last = head;
                }
                Err(_) => trailers = decode_trailers(section, 1 << 20).unwrap(),
            },
            Frame::Data(data) => body.extend_from_slice(&data),
            _ => {}
        }
    }
    (statuses, last, body, trailers)
}

fn request(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let begin = [
        (":method", method),
        (":scheme", "https"),
        (":authority", "garden.example"),
        (":path", path),
    ];
    headers(&[&begin[..], more].concat())
}

fn data(bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    tandem_wire::encode_data_header(bytes.len(), &mut frame);
    [frame, bytes.to_vec()].concat()
}

#[test]
fn a_client_in_mode_tecc_sends_reports_to_an_origin_before_a_server() {
    let scene = scene();
    let file: Vec<u8> = (0..600_000_u32).map(|it| u8::try_from(it % 251).unwrap()).collect();
    let answer = [
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", file.len()).into_bytes(),
        file.clone(),
    ]
    .concat();
    let (address, asked) = upstream::server(move |_, _| answer.clone());
    let origin = origin(&scene, &format!("http://{address}"), "--controller tecc");
    let proxy = scene.serve(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.0/8 --write-ca proxy.pem --feedback-interval 20ms",
    );
    let access = scene.serve(&format!(
        "lab relay --listen 127.0.0.1:0 --to {} --rate 8Mbit/s --delay 5ms",
        proxy.address
    ));
    let get = format!(
        "get https://{}/file --via https://{} --ca dev/ca.pem --ca proxy.pem --mode tecc -o out --json",
        origin.address, access.address
    );
    let result: Value = serde_json::from_str(&scene.run(&get).succeeds()).unwrap();
    assert_eq!(std::fs::read(scene.path("out")).unwrap(), file);
    assert!(result["feedback_sent"].as_u64() > Some(2), "{result}");
    eventually("reports are followed", || {
        metric(&origin, "tandem_reports_total{event=\"followed\"}") > Some(2)
    });
    let (head, _) = asked.take().pop().unwrap();
    assert!(!head.contains("tandem-quic-info"), "the report is not for the server: {head}");
}

#[test]
fn hints_and_trailers_and_the_wish_to_continue_pass() {
    let scene = scene();
    let (address, _) = upstream::server(|head, body| match head.split(' ').nth(1).unwrap() {
        "/hints" => {
            let hint =
                "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\nconnection: x-own\r\nx-own: 1\r\n\r\n";
            [hint.repeat(20).into_bytes(), upstream::ok("at last")].concat()
        }
        "/trailers" => {
            let (head, rest) = (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n",
                "5\r\nhello\r\n0\r\n",
            );
            format!("{head}{rest}x-sum: 9\r\ncontent-length: 5\r\nconnection: close\r\n\r\n")
                .into_bytes()
        }
        _ => upstream::ok(&format!("got {}", body.len())),
    });
    let origin = origin(&scene, &format!("http://{address}"), "");
    let (statuses, _, body, _) =
        responses(&ask(&scene, origin.address, request("GET", "/hints", &[("te", "trailers")])));
    assert_eq!((&*statuses, &*body), (&[103, 103, 103, 103, 200][..], &b"at last"[..]));
    let (statuses, _, body, trailers) =
        responses(&ask(&scene, origin.address, request("GET", "/trailers", &[])));
    assert_eq!((&*statuses, &*body), (&[200][..], &b"hello"[..]));
    let trailers: Vec<_> = trailers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(trailers, ["x-sum"]);
    let expect = request("POST", "/", &[("expect", "100-continue"), ("content-length", "5")]);
    let sent = [expect, data(b"hello")].concat();
    let (statuses, _, body, _) = responses(&ask(&scene, origin.address, sent));
    assert_eq!((&*statuses, &*body), (&[100, 200][..], &b"got 5"[..]));
}

/// A server that grants WebSockets at `/echo`, and sends back what comes. At the other paths it does what their names
/// say.
fn websocket_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve_websocket(stream.unwrap()));
        }
    });
    address
}

fn serve_websocket(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if !matches!(reader.read_line(&mut head), Ok(1..)) {
            return;
        }
    }
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let key = head.lines().find_map(|line| line.strip_prefix("sec-websocket-key: "));
    let is_whole = head.starts_with("GET ")
        && key.is_some()
        && head.contains("\r\nupgrade: websocket\r\n")
        && head.contains("\r\nconnection: upgrade\r\n")
        && head.contains("\r\nsec-websocket-version: 13\r\n");
    let guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let sum = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{}{guid}", key.unwrap_or("")).as_bytes());
    let mut accept = BASE64_STANDARD.encode(sum);
    if path == "/wrong-proof" {
        accept = accept.to_lowercase() + "x";
    }
    let protocol = if path == "/no-upgrade" { "h2c" } else { "websocket" };
    let mut switch = format!("HTTP/1.1 101 Switching Protocols\r\nupgrade: {protocol}\r\n");
    write!(switch, "connection: Upgrade\r\nsec-websocket-accept: {accept}\r\n").unwrap();
    write!(switch, "sec-websocket-protocol: chat\r\n\r\n").unwrap();
    match &*path {
        "/refuses" => {
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno").unwrap();
            return;
        }
        "/page" => return stream.write_all(&upstream::ok("a page")).unwrap(),
        _ if !is_whole => {
            return stream.write_all(b"HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n\r\n").unwrap();
        }
        _ => stream.write_all(switch.as_bytes()).unwrap(),
    }
    // Whoever has gone ends it.
    if path == "/echo" {
        std::io::copy(&mut reader, &mut stream).ok();
    } else {
        reader.read_exact(&mut [0; 1]).ok();
    }
}

#[test]
fn a_websocket_over_http3_becomes_one_over_http1() {
    let scene = scene();
    let address = websocket_server();
    let origin = origin(&scene, &format!("http://{address}"), "");
    let open = |path| {
        let mut lines = extended("websocket", path);
        lines.extend([("sec-websocket-version", "13"), ("origin", "https://localhost")]);
        headers(&lines)
    };
    // More than one window of this gateway, in both directions, while the other one goes on.
    let bytes: Vec<u8> = (0..300_000_u32).map(|it| u8::try_from(it % 253).unwrap()).collect();
    let sent = [open("/echo"), data(&bytes)].concat();
    let seen = ask(&scene, origin.address, sent);
    let (statuses, head, body, _) = responses(&seen);
    assert_eq!((&*statuses, body.len(), &*seen.streams[0].1), (&[200][..], 300_000, "finished"));
    assert_eq!(body, bytes);
    assert_eq!(head.headers["sec-websocket-protocol"], "chat");
    assert!(!head.headers.contains_key("sec-websocket-accept"), "{head:?}");
    for (path, status) in
        [("/refuses", 403), ("/page", 502), ("/wrong-proof", 502), ("/no-upgrade", 502)]
    {
        let (statuses, ..) = responses(&ask(&scene, origin.address, open(path)));
        assert_eq!(statuses, [status], "{path}");
    }
    // Another protocol is no WebSocket, and neither is CONNECT.
    for lines in [extended("websockets", "/echo"), extended("connect-udp", "/echo")] {
        assert_eq!(responses(&ask(&scene, origin.address, headers(&lines))).0, [501]);
    }
    // This server closes the WebSocket when the first byte has come.
    let sent = [open("/closes"), data(b"x")].concat();
    let seen = ask_and_wait(&scene, origin.address, sent);
    assert_eq!((responses(&seen).0, &*seen.streams[0].1), (vec![200], "finished"));
    eventually("no WebSocket is left", || {
        metric(&origin, "tandem_upstream_websockets_open") == Some(0)
    });
}

#[test]
fn a_websocket_over_tcp_passes_and_no_other_protocol_does() {
    let scene = scene();
    let address = websocket_server();
    let address = format!("http://{address}");
    let (origin, _) = crate::servers(&scene, &address);
    let open = |path: &str, upgrade: &str| {
        let mut tls = tcp::connect(&scene, origin.address);
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: {upgrade}\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        tls.write_all(head.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            tls.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        (String::from_utf8(head).unwrap(), tls)
    };
    let (head, mut tls) = open("/echo", "websocket");
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains("\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{head}");
    for text in ["hello", "again"] {
        tls.write_all(text.as_bytes()).unwrap();
        let mut came = [0; 5];
        tls.read_exact(&mut came).unwrap();
        assert_eq!(&came, text.as_bytes());
    }
    for (path, upgrade, status) in [
        ("/echo", "h2c", 400),
        ("/echo", "websocket, h2c", 400),
        ("/refuses", "websocket", 403),
        ("/wrong-proof", "websocket", 502),
        ("/no-upgrade", "websocket", 502),
    ] {
        let (head, _) = open(path, upgrade);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {upgrade}: {head}");
    }
}

#[test]
fn operators_see_a_server_that_is_down_and_clients_learn_why() {
    let scene = scene();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let origin = origin(
        &scene,
        &format!("http://localhost:{}", address.port()),
        "--upstream-health /health",
    );
    let ready = || admin(&origin, "/readyz");
    eventually("the origin says that the server is down", || {
        ready().contains("the server behind the site is down")
    });
    assert_eq!(metric(&origin, "tandem_upstream_up"), Some(0));
    let (statuses, head, ..) = responses(&ask(&scene, origin.address, request("GET", "/", &[])));
    assert_eq!(statuses, [502]);
    assert_eq!(head.headers["proxy-status"], "tandem;error=connection_refused");
    eventually("the failure is counted", || {
        metric(&origin, "tandem_upstream_failures_total{cause=\"connection_refused\"}") >= Some(1)
    });
    // It comes up at one of the addresses of its name, and works when its path says so.
    let listener = TcpListener::bind(address).unwrap();
    let (works, is_asked) = std::sync::mpsc::channel::<()>();
    thread::spawn(move || {
        let mut is_broken = true;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            let mut head = [0; 2000];
            let len = stream.read(&mut head).unwrap_or(0);
            let is_health = head[..len].starts_with(b"GET /health ");
            is_broken = is_broken && !(is_health && is_asked.try_recv().is_ok());
            let status = if is_health && is_broken { "500 Broken" } else { "200 OK" };
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).ok(); // a client may have gone
        }
    });
    let (statuses, ..) = responses(&ask(&scene, origin.address, request("GET", "/", &[])));
    assert_eq!(statuses, [200], "requests are passed on whatever the checks have found");
    assert!(ready().contains("is down"), "{}", ready());
    works.send(()).unwrap();
    eventually("the origin is ready", || ready().contains("ready"));
}

#[test]
fn what_is_no_request_over_http3_never_reaches_the_server() {
    let scene = scene();
    let (address, asked) = upstream::server(|_, body| upstream::ok(&format!("got {}", body.len())));
    let origin = origin(&scene, &format!("http://{address}"), "");
    let ask = |lines: &[(&str, &str)], body: &[u8]| {
        let sent = [headers(lines), data(body)].concat();
        let seen = ask(&scene, origin.address, sent);
        let (statuses, ..) = responses(&seen);
        (statuses.first().copied(), seen.streams[0].1.clone())
    };
    let begin = [(":method", "POST"), (":scheme", "https"), (":authority", "a"), (":path", "/")];
    assert_eq!(ask(&begin, b"hello").0, Some(200), "the table's requests differ in one thing");
    asked.take();
    let hidden = "5\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n";
    let (malformed, refused) = ((None, "reset with 270"), |status| (Some(status), "finished"));
    for (name, value, expected) in [
        ("transfer-encoding", "chunked", malformed),
        ("connection", "content-length", malformed),
        ("upgrade", "websocket", malformed),
        ("Content-Length", "5", malformed),
        ("content-length", "6", malformed),
        ("content-length", "4", malformed),
        ("content-length", "+5", refused(400)),
        ("content-length", "5, 6", refused(400)),
        ("content-length", "-5", refused(400)),
        ("content-length", "99999999999", refused(413)),
        ("content-length", hidden, malformed),
        ("x", hidden, malformed),
        ("x\r\ny", "z", malformed),
        ("host", "b", malformed),
        (":path", "/\r\nx: y", malformed),
        (":path", "/ HTTP/1.1", malformed),
        (":path", "http://b/", malformed),
        (":authority", "a\r\nx: y", malformed),
        (":authority", "b@a", malformed),
        (":method", "CONNECT", malformed),
        (":method", "TRACE", refused(501)),
        (":method", "GET /hidden HTTP/1.1\r\nx:", malformed),
    ] {
        let mut lines = begin.to_vec();
        match lines.iter_mut().find(|line| line.0 == name) {
            Some(line) => line.1 = value,
            None => lines.push((name, value)),
        }
        let (status, end) = ask(&lines, b"hello");
        assert_eq!((status, &*end), expected, "{name}: {value:?}");
        // A body of another length is cut, so that the server knows that it is not whole.
        let came = asked.take();
        assert!(came.is_empty(), "{name}: {value:?}: {came:?}");
    }
    assert_eq!(ask(&begin, b"hello").0, Some(200));
}
