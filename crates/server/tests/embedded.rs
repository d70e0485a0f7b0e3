//! A program that embeds a whole proxy.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::{net::UdpSocket, thread};

use tandem_net::{Client, ClientOptions};
use tandem_server::{
    Embedded, ServeError, Setup,
    role::{OriginRole, ProxyRole},
    tls::{DevelopmentIdentity, ServerTlsSetup},
    transport::WorkFor,
};

/// Starts a target that sends one packet back, and returns its port.
fn start_echo() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = [0; 1500];
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        socket.send_to(buffer.get(..len).unwrap(), from).unwrap();
    });
    port
}

/// A certificate for loopback in a folder.
fn certificate(folder: &tempfile::TempDir) -> (ServerTlsSetup, String) {
    let identity = DevelopmentIdentity::new(&[]).unwrap();
    identity.write(folder.path()).unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    (ServerTlsSetup::Files { cert, key }, identity.ca_pem)
}

#[test]
fn a_program_embeds_a_proxy_in_twenty_lines() {
    let folder = tempfile::tempdir().unwrap();
    let (tls, ca) = certificate(&folder);
    let setup = Setup::new("127.0.0.1:0".parse().unwrap(), tls, WorkFor::Tunnel);
    let allow_target = vec!["127.0.0.0/8".parse().unwrap()];
    let role = ProxyRole { allow_target, ..ProxyRole::default() };
    let proxy = Embedded::start(role, setup).unwrap();

    let url = format!("https://{}", proxy.address());
    let answer = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let client = Client::connect(ClientOptions::new(url).ca(ca)).await.unwrap();
        let flow = client.open_udp("127.0.0.1", start_echo()).await.unwrap();
        flow.send(b"hello").await.unwrap();
        let answer = flow.recv().await.unwrap();
        client.close().await.unwrap();
        answer
    });
    assert_eq!(&answer[..], b"hello");
    proxy.end().unwrap();
}

#[test]
fn a_server_that_cannot_begin_says_why() {
    let listen = "127.0.0.1:0".parse().unwrap();
    let development = || ServerTlsSetup::Development { write_ca: None, name: Vec::new() };
    let setup = Setup::new(listen, development(), WorkFor::Origin);
    let origin = OriginRole::new("/there/is/no/such/folder".into());
    let error = Embedded::start(origin, setup).unwrap_err().to_string();
    assert!(error.contains("root = /there/is/no/such/folder: no such folder"), "{error}");

    let open = Setup::new("[::]:0".parse().unwrap(), development(), WorkFor::Tunnel);
    let error = Embedded::start(ProxyRole::default(), open).unwrap_err();
    assert!(matches!(error, ServeError::Setup(_)), "{error}");
    assert!(error.to_string().contains("lets other hosts use this proxy"), "{error}");
}
