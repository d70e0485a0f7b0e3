//! The site over HTTP/1.1 and TCP.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use rustls::{ClientConnection, StreamOwned};

use crate::{ca, prober::client_tls, scene, servers, support::Scene, upstream};

/// A TLS connection.
pub(crate) type Tls = StreamOwned<ClientConnection, TcpStream>;

pub(crate) fn connect(scene: &Scene, server: SocketAddr) -> Tls {
    let stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut tls = client_tls(&ca(scene));
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let session = ClientConnection::new(Arc::new(tls), "localhost".try_into().unwrap()).unwrap();
    StreamOwned::new(session, stream)
}

/// Sends a request as the last one of its connection, and returns what comes until the server closes it, without the
/// date.
pub(crate) fn exchange(scene: &Scene, server: SocketAddr, request: &str) -> String {
    let mut tls = connect(scene, server);
    let (first, rest) = request.split_once('\n').unwrap();
    tls.write_all(format!("{first}\nconnection: close\r\n{rest}").as_bytes()).unwrap();
    let mut came = Vec::new();
    tls.read_to_end(&mut came).ok(); // it may be reset
    let text = String::from_utf8_lossy(&came).into_owned();
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with("date: ")).collect();
    lines.join("\n") + "\n"
}

#[test]
fn a_browser_gets_the_site_and_learns_where_http3_is() {
    let scene = scene();
    let (_origin, proxies) = servers(&scene, "root");
    let server = proxies[1].1.address;
    let page = exchange(&scene, server, "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n");
    for words in
        ["HTTP/1.1 200 OK\n", "A garden", "content-type: text/html; charset=utf-8", "etag: "]
    {
        assert!(page.contains(words), "{page}");
    }
    assert!(page.contains(&format!("alt-svc: h3=\":{}\"; ma=86400", server.port())), "{page}");
    let mut tls = connect(&scene, server);
    for _ in 0..3 {
        tls.write_all(b"HEAD /large HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            tls.read_exact(&mut byte).unwrap();
            head.extend_from_slice(&byte);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.contains("content-length: 300000"), "{head}");
    }
    assert_eq!(tls.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    let large = exchange(&scene, server, "GET /large HTTP/1.0\r\n\r\n");
    assert!(large.starts_with("HTTP/1.0 200 OK\n") && large.len() > 200_000);
}

/// Requests that a plain web server answers too, and the status of the answer.
const REQUESTS: [(&str, u16); 24] = [
    ("GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", 200),
    ("GET /missing HTTP/1.1\r\nhost: localhost\r\n\r\n", 404),
    ("GET /folder HTTP/1.1\r\nhost: localhost\r\n\r\n", 301),
    (
        "GET /.well-known/masque/udp/192.0.2.1/53/ HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: connect-udp\r\ncapsule-protocol: ?1\r\n\r\n",
        404,
    ),
    ("CONNECT 192.0.2.1:443 HTTP/1.1\r\nhost: 192.0.2.1:443\r\n\r\n", 405),
    (
        "CONNECT 192.0.2.1:443 HTTP/1.1\r\nhost: 192.0.2.1:443\r\nproxy-authorization: Bearer 0123456789abcdef0123\r\n\r\n",
        405,
    ),
    ("GET http://192.0.2.1/ HTTP/1.1\r\nhost: 192.0.2.1\r\n\r\n", 200),
    ("OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n", 405),
    ("TRACE / HTTP/1.1\r\nhost: localhost\r\n\r\n", 405),
    ("POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\nhello", 405),
    ("GET / HTTP/1.1\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
    (
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        405,
    ),
    (
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        400,
    ),
    ("POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nhost: localhost\r\nx-a: b\r\n c: d\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nhost : localhost\r\n\r\n", 400),
    ("GET /\x00 HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nhost: localhost\r\nx: \x00\r\n\r\n", 400),
    ("\x16\x03\x01\r\n\r\n", 400),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("GET / HTTP/1.1\nhost: localhost\n\n", 200),
    ("GET /../../etc/passwd HTTP/1.1\r\nhost: localhost\r\n\r\n", 404),
];

#[test]
fn every_request_has_the_answer_of_an_origin_over_tcp_too() {
    let scene = scene();
    let (origin, proxies) = servers(&scene, "root");
    for (request, status) in REQUESTS {
        let answer = |server: SocketAddr| {
            let answer = exchange(&scene, server, request);
            answer.replace(&format!("h3=\":{}\"", server.port()), "h3=PORT")
        };
        let expected = answer(origin.address);
        assert!(expected.contains(&format!(" {status} ")), "{request:?}: {expected}");
        for (access, proxy) in &proxies {
            assert_eq!(answer(proxy.address), expected, "{request:?} with {access}");
        }
    }
    let huge = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "a".repeat(100_000));
    let many = format!("GET / HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "x: y\r\n".repeat(500));
    for request in [huge, many] {
        let answer = exchange(&scene, origin.address, &request);
        // The connection ends with what the server has not read, which may overtake the answer.
        assert!(answer.trim().is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
}

#[test]
fn no_request_is_hidden_in_another_one() {
    let scene = scene();
    let (address, asked) = upstream::server(|_, body| upstream::ok(&format!("got {}", body.len())));
    let (_, proxies) = servers(&scene, &format!("http://{address}"));
    let server = proxies[1].1.address;
    for (request, status, passed) in [
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello", 200, 1),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            200,
            1,
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
            200,
            1,
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\ncontent-length: 35\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
            400,
            0,
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            400,
            0,
        ),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400, 0),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +5\r\n\r\nhello", 400, 0),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999\r\n\r\n", 413, 0),
        ("GET / HTTP/1.1\r\nhost: a\r\nx: y\r\n\tGET /hidden\r\n\r\n", 400, 0),
        ("CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n", 501, 0),
        ("TRACE / HTTP/1.1\r\nhost: a\r\n\r\n", 501, 0),
        ("GET / HTTP/1.1\r\nhost: a b\r\n\r\n", 400, 0),
    ] {
        let answer = exchange(&scene, server, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
        let came = asked.take();
        assert_eq!(came.len(), passed, "{request:?}: {came:?}");
        for (head, body) in came {
            assert!(!head.contains("hidden") && body == b"hello", "{request:?}: {head}");
        }
    }
}
