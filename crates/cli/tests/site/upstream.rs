//! A site that comes from an HTTP server.

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use tandem_wire::qpack::encode_field_section;

use crate::{
    SECRET, ask, differences,
    prober::Seen,
    probes::{self, headers},
    scene, servers,
    support::Scene,
};

/// What a server behind a site has got.
#[derive(Clone, Default)]
pub(crate) struct Asked(Arc<Mutex<Vec<Request>>>);

/// The head of a request, and its body.
type Request = (String, Vec<u8>);

impl Asked {
    /// The heads of requests and their bodies, since the last call.
    pub(crate) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// An HTTP server whose answers are the bytes that `answer` makes of a request's head and body. It serves connections
/// one after another in threads, and closes those whose answer says `Connection: close`.
pub(crate) fn server(
    answer: impl Fn(&str, &[u8]) -> Vec<u8> + Send + Sync + 'static,
) -> (SocketAddr, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, answer) = (Asked::default(), Arc::new(answer));
    let seen = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, seen, answer) = (stream.unwrap(), seen.clone(), answer.clone());
            thread::spawn(move || serve(stream, &seen, &*answer));
        }
    });
    (address, asked)
}

fn serve(stream: TcpStream, seen: &Asked, answer: &impl Fn(&str, &[u8]) -> Vec<u8>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            // A client that has gone ends the connection.
            if !matches!(reader.read_line(&mut head), Ok(1..)) {
                return;
            }
        }
        let lower = head.to_ascii_lowercase();
        let len =
            lower.split("\r\ncontent-length: ").nth(1).map(|rest| rest.lines().next().unwrap());
        let mut body = vec![0; len.map_or(0, |len| len.parse().unwrap())];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        if lower.contains("transfer-encoding: chunked") {
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|len| len > 0) {
                let len = usize::from_str_radix(line.trim(), 16).unwrap();
                let mut chunk = vec![0; len + 2];
                reader.read_exact(&mut chunk).unwrap();
                body.extend_from_slice(&chunk[..len]);
                line.clear();
                if len == 0 {
                    break;
                }
            }
        }
        let bytes = answer(&head, &body);
        seen.0.lock().unwrap().push((head, body));
        if stream.write_all(&bytes).is_err()
            || bytes.windows(17).any(|it| it.eq_ignore_ascii_case(b"connection: close"))
        {
            return;
        }
    }
}

/// A whole answer.
pub(crate) fn ok(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A site as others have it, where the answer follows from the path.
fn garden(head: &str, body: &[u8]) -> Vec<u8> {
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    match (method, path) {
        ("HEAD", _) => b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\nserver: garden\r\n\r\n".to_vec(),
        ("POST", _) => ok(&format!("got {}", body.len())),
        (_, "/" | "/index.html") => ok("<h1>A garden</h1>"),
        (_, "/large") => {
            let mut all = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: x-own\r\nx-own: 1\r\n\r\n".to_vec();
            for _ in 0..100 {
                all.extend_from_slice(format!("bb8\r\n{}\r\n", "x".repeat(3000)).as_bytes());
            }
            [all, b"0\r\n\r\n".to_vec()].concat()
        }
        _ => {
            b"HTTP/1.1 404 Not Found\r\nserver: garden\r\ncontent-length: 5\r\n\r\nnone\n".to_vec()
        }
    }
}

#[test]
fn no_probe_tells_a_proxy_from_an_origin_before_the_same_server() {
    let scene = scene();
    let (address, _) = server(garden);
    let (origin, proxies) = servers(&scene, &format!("http://{address}"));
    let (access, proxy) = &proxies[1];
    let (probes, different) =
        differences(&scene, (&origin, proxy), &probes::all(SECRET), Seen::with_bodies);
    assert!(
        different.is_empty(),
        "with {access}, {} of {probes}:\n{}",
        different.len(),
        different.join("\n")
    );
}

/// The status, the fields and the body of the first answer.
fn answer(seen: &Seen) -> (u16, Vec<(String, String)>, Vec<u8>, String) {
    let (data, end) = &seen.streams[0];
    let mut decoder = tandem_wire::FrameDecoder::new(tandem_wire::StreamKind::Request, 1 << 20);
    decoder.push(data.clone().into());
    let (mut head, mut body) = (None, Vec::new());
    while let Ok(Some(frame)) = decoder.next() {
        match frame {
            tandem_wire::Frame::Headers(section) => {
                head = Some(tandem_wire::ResponseHead::decode(section, 1 << 20).unwrap());
            }
            tandem_wire::Frame::Data(data) => body.extend_from_slice(&data),
            _ => {}
        }
    }
    let head = head.unwrap_or_else(|| panic!("no answer: {end}"));
    let fields = head
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    (head.status.as_u16(), fields.collect(), body, end.clone())
}

fn get(
    scene: &Scene,
    server: SocketAddr,
    path: &str,
) -> (u16, Vec<(String, String)>, Vec<u8>, String) {
    let lines = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "garden.example"),
        (":path", path),
    ];
    answer(&ask(scene, server, headers(&lines)))
}

#[test]
fn requests_and_answers_pass_without_fields_about_connections() {
    let scene = scene();
    let (address, asked) = server(garden);
    let (origin, _) = servers(&scene, &format!("http://{address}"));
    let (status, fields, body, end) = get(&scene, origin.address, "/large");
    assert_eq!((status, body.len(), &*end), (200, 300_000, "finished"));
    assert_eq!(fields, [], "{fields:?}");
    let (head, _) = asked.take().pop().unwrap();
    let head = head.to_ascii_lowercase();
    for line in [
        "get /large http/1.1\r\n",
        "\r\nhost: garden.example\r\n",
        "\r\nvia: 3.0 tandem\r\n",
        "\r\nx-forwarded-for: 127.0.0.1\r\n",
        "\r\nx-forwarded-proto: https\r\n",
    ] {
        assert!(head.contains(line), "no {line:?} in {head}");
    }
    // A client cannot say who it is, and what it says to a proxy is not for the server behind it.
    let lines = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "garden.example"),
        (":path", "/form"),
        ("content-length", "5"),
        ("x-forwarded-for", "192.0.2.9"),
        ("forwarded", "for=192.0.2.9"),
        ("proxy-authorization", "Bearer x"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("expect", "100-continue"),
    ];
    let lines = lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let section = encode_field_section(lines);
    let mut request = Vec::new();
    tandem_wire::encode_headers(&section, &mut request);
    tandem_wire::encode_data_header(5, &mut request);
    request.extend_from_slice(b"hello");
    let (status, _, body, _) = answer(&ask(&scene, origin.address, request));
    assert_eq!((status, &*body), (200, &b"got 5"[..]));
    let (head, body) = asked.take().pop().unwrap();
    assert_eq!(body, b"hello");
    let head = head.to_ascii_lowercase();
    assert!(head.contains("\r\ncookie: a=1; b=2\r\n") && !head.contains("192.0.2.9"), "{head}");
    assert!(!head.contains("proxy-authorization") && !head.contains("expect"), "{head}");
}

#[test]
fn a_server_that_fails_costs_its_clients_one_answer() {
    let scene = scene();
    let many_fields = |lines: usize| {
        let mut fields = String::new();
        for line in 0..lines {
            write!(fields, "x-field-{line}: {}\r\n", "v".repeat(900)).unwrap();
        }
        format!("HTTP/1.1 200 OK\r\n{fields}content-length: 0\r\n\r\n").into_bytes()
    };
    let interim = || b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(300);
    let (address, _) = server(move |head, _| {
        match head.split(' ').nth(1).unwrap() {
        "/garbage" => b"\x16\x03\x01 no HTTP \r\n\r\nconnection: close".to_vec(),
        "/old" => b"HTTP/0.9 hello\r\n\r\nconnection: close".to_vec(),
        "/fields" => many_fields(40), // 36 kB
        "/more-fields" => many_fields(99), // 90 kB
        "/too-many-fields" => many_fields(1000),
        "/closes" => b"connection: close".to_vec(),
        "/short" => b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\nconnection: close\r\n\r\nshort".to_vec(),
        "/cut" => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n5\r\nhello\r\n".to_vec(),
        "/two-lengths" => b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello".to_vec(),
        "/switch" => b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n".to_vec(),
        "/long" => [ok("five5"), ok("hidden")].concat(),
        "/interim" => [interim(), ok("at last")].concat(),
        "/fold" => b"HTTP/1.1 200 OK\r\nx-a: b\r\n c\r\ncontent-length: 0\r\n\r\n".to_vec(),
        _ => ok("fine"),
    }
    });
    let (origin, _) = servers(&scene, &format!("http://{address}"));
    for (path, expected) in [
        ("/garbage", 502),
        ("/old", 502),
        ("/fields", 200),
        ("/more-fields", 502),
        ("/too-many-fields", 502),
        ("/closes", 502),
        ("/two-lengths", 502),
        ("/switch", 502),
        ("/interim", 200),
        ("/fold", 502),
        ("/fine", 200),
    ] {
        let (status, ..) = get(&scene, origin.address, path);
        assert_eq!(status, expected, "{path}");
    }
    // What follows an answer is not taken for the answer to another request.
    for _ in 0..5 {
        assert_eq!(get(&scene, origin.address, "/long").2, b"five5");
        assert_eq!(get(&scene, origin.address, "/fine").2, b"fine");
    }
    for path in ["/short", "/cut"] {
        let lines = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "garden.example"),
            (":path", path),
        ];
        let seen = ask(&scene, origin.address, headers(&lines));
        assert_eq!(seen.streams[0].1, "reset with 258", "{path}: H3_INTERNAL_ERROR");
    }
    // Nobody listens any more at this port.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (origin, _) = servers(&scene, &format!("http://{nobody}"));
    let (status, _, body, _) = get(&scene, origin.address, "/");
    assert_eq!((status, &*body), (502, &b"502 Bad Gateway\n"[..]));
}
