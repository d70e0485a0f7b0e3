use std::{os::unix::fs::PermissionsExt, path::Path};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;

fn hello(path: &str) -> Answer {
    match path {
        "/hello" => text(StatusCode::OK, "hello\n"),
        _ => text(StatusCode::NOT_FOUND, "no such page\n"),
    }
}

/// Sends these bytes and returns everything that comes back.
async fn exchange(listener: &AdminListener, request: &str) -> String {
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    drop(stream.read_to_string(&mut answer).await); // a reset ends an answer too
    answer
}

fn listener() -> AdminListener {
    AdminListener::bind(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap()
}

/// Runs a client while a listener serves.
async fn served<T>(listener: &AdminListener, client: impl Future<Output = T>) -> T {
    tokio::select! {
        () = listener.serve(hello) => unreachable!(),
        result = client => result,
    }
}

#[tokio::test]
async fn requests_are_answered_with_security_fields_and_the_connection_ends() {
    let listener = listener();
    served(&listener, async {
        let answer = exchange(&listener, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello\n"));
        for field in ["nosniff", "x-frame-options: DENY", "cache-control: no-store", "close"] {
            assert!(answer.contains(field), "no {field}: {answer}");
        }
        assert!(!answer.contains("access-control"), "{answer}");
        let answer = exchange(&listener, "HEAD /hello HTTP/1.1\r\nHost: [::1]:1\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n"));
        for (request, status) in [
            ("GET /other HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_owned(), 404),
            (
                "POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".to_owned(),
                405,
            ),
            ("GET /hello HTTP/1.1\r\nHost: rebound.example\r\n\r\n".to_owned(), 421),
            ("GET /hello HTTP/1.1\r\n\r\n".to_owned(), 421),
            (format!("GET /{} HTTP/1.1\r\n", "a".repeat(100_000)), 431),
            (format!("GET / HTTP/1.1\r\nHost: localhost\r\nA: {}\r\n", "a".repeat(20_000)), 431),
            (format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "A: b\r\n".repeat(100)), 431),
            ("\u{16}\u{3}\u{1}\r\n\r\n".to_owned(), 400),
        ] {
            let answer = exchange(&listener, &request).await;
            // What was too long is still being sent when the connection ends, which may reset it.
            let is_cut = answer.is_empty() && request.len() > HEAD_MAX;
            let says = answer.starts_with(&format!("HTTP/1.1 {status} "));
            assert!(is_cut || says, "{status}: {answer}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn slow_clients_keep_nobody_out_for_long() {
    let listener = listener();
    served(&listener, async {
        let address = listener.local_addr().unwrap();
        let mut slow = Vec::new();
        for _ in 0..2 * CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /hello HTTP/1.1\r\nHost: local").await.unwrap();
            slow.push(stream);
        }
        let answer = exchange(&listener, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        assert!(answer.ends_with("hello\n"), "{answer}");
    })
    .await;
}

#[tokio::test]
async fn silent_connections_do_not_delay_a_probe() {
    let listener = listener();
    served(&listener, async {
        let address = listener.local_addr().unwrap();
        let mut silent = Vec::new();
        for _ in 0..5 * CONNECTIONS_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = exchange(&listener, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        assert!(answer.ends_with("hello\n"), "{answer}");
        // No silent connection has had to end by its own time.
        let last = silent.last().unwrap();
        let error = last.try_read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    })
    .await;
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_unix_socket_is_for_its_group_and_replaces_an_unused_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // it leaves its file
    let address = Address::Unix(path.clone());
    let listener = AdminListener::bind(&address).unwrap();
    assert_eq!(mode(&path), 0o660);
    served(&listener, async {
        assert_eq!(&get(&address, "/hello").await.unwrap()[..], b"hello\n");
        let error = get(&address, "/other").await.unwrap_err();
        assert!(matches!(error, ClientError::Status(StatusCode::NOT_FOUND)), "{error}");
        let error = AdminListener::bind(&address).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
    })
    .await;
    drop(listener);
    assert!(!path.exists());
    let error = get(&address, "/hello").await.unwrap_err();
    assert!(matches!(error, ClientError::Connect(_)), "{error}");
    std::fs::write(&path, "precious").unwrap();
    assert!(AdminListener::bind(&address).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}
