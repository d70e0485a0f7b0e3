use std::{io, time::Duration};

use bytes::BytesMut;

use super::*;
use crate::{
    client::{ClientConfig, HopConfig, Life, Task},
    limits::Limits,
    node::{Output, Received, SocketId},
    tcp::{TcpInput, TcpOutput},
    test_start,
};

/// A client with one service, before its tunnel is up.
fn client(service: TcpService) -> Client {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let template = tandem_wire::Template::default_for("proxy.test").unwrap();
    let mut client = Client::new(ClientConfig {
        hops: vec![HopConfig::new(template, tls)],
        task: Task::Forward(Vec::new()),
        limits: Limits::default(),
        seed: Some(1),
    })
    .unwrap();
    client.add_tcp_service(service);
    client.listen_tcp();
    client.life = Life::Running;
    client
}

/// The next output about a TCP connection.
fn tcp_output(client: &mut Client) -> Option<TcpOutput> {
    while let Some(output) = client.outputs.pop_front() {
        if let Output::Tcp(output) = output {
            return Some(output);
        }
    }
    None
}

fn with_stdio() -> (Client, TcpId) {
    let mut client = client(TcpService::Stdio { target: FlowConfig::new("target.test", 22) });
    let Some(TcpOutput::OpenStdio(tcp)) = tcp_output(&mut client) else { panic!("not asked") };
    (client, tcp)
}

/// A client with a proxy port, and a program that has connected to it.
fn with_program(now: Instant) -> (Client, TcpId) {
    let (mut client, accepted) = with_port(now, None);
    connects(&mut client, now, accepted, 1);
    (client, accepted)
}

/// A client with a proxy port, and the name of the next program's connection.
fn with_port(now: Instant, password: Option<&str>) -> (Client, TcpId) {
    let listen = ([127, 0, 0, 1], 1080).into();
    let password = password.map(|password| Arc::new(Password::parse(password).unwrap()));
    let mut client = client(TcpService::Proxy { listen, password });
    let Some(TcpOutput::Listen { listener, .. }) = tcp_output(&mut client) else { panic!() };
    client.on_tcp(now, TcpInput::Listening { listener, result: Ok(listen) });
    let Some(TcpOutput::Accept { tcp, .. }) = tcp_output(&mut client) else { panic!() };
    (client, tcp)
}

/// Lets a program connect from 127.0.0.`host`. Returns the name of the next program's connection.
fn connects(client: &mut Client, now: Instant, tcp: TcpId, host: u8) -> TcpId {
    let result = Ok(([127, 0, 0, host], 40_000).into());
    client.on_tcp(now, TcpInput::Opened { tcp, result });
    let Some(TcpOutput::Accept { tcp, .. }) = tcp_output(client) else { panic!() };
    tcp
}

/// Lets a program send bytes.
fn sends(client: &mut Client, now: Instant, tcp: TcpId, data: &[u8]) {
    client.on_tcp(now, TcpInput::Read { tcp, data: Bytes::copy_from_slice(data) });
}

#[test]
fn the_standard_input_is_asked_for_once_however_often_the_tunnel_is_rebuilt() {
    let (mut client, tcp) = with_stdio();
    client.on_tcp(test_start(), TcpInput::Opened { tcp, result: Ok(([0, 0, 0, 0], 0).into()) });
    client.listen_tcp();
    assert!(tcp_output(&mut client).is_none());
}

#[test]
fn a_client_without_its_standard_input_ends() {
    let (mut client, tcp) = with_stdio();
    client.on_tcp(test_start(), TcpInput::Opened { tcp, result: Err(io::ErrorKind::NotFound) });
    let Life::Ending { result, .. } = client.life else { panic!("it does not end") };
    assert_eq!(result, Err(ClientError::Stdio(io::ErrorKind::NotFound)));
}

/// SOCKS5 without a password, and a UDP ASSOCIATE request of a program that does not say its port.
const ASSOCIATE: &[u8] = &[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0];

#[test]
fn a_program_that_asks_for_nothing_is_closed_in_time() {
    let begin = test_start();
    let silence = Limits::default().program_silence;
    for (sent, is_closed) in
        [(&b""[..], true), (b"GET http", true), (&[5, 1], true), (ASSOCIATE, false)]
    {
        let (mut client, tcp) = with_program(begin);
        if !sent.is_empty() {
            sends(&mut client, begin, tcp, sent);
        }
        client.handle_timeout(begin + silence / 2);
        assert!(client.tcp.programs.contains_key(&tcp), "{sent:?}");
        client.handle_timeout(begin + silence);
        assert_eq!(!client.tcp.programs.contains_key(&tcp), is_closed, "{sent:?}");
        let closes = std::iter::from_fn(|| tcp_output(&mut client));
        let closes = closes.filter(|it| matches!(it, TcpOutput::Close(which) if *which == tcp));
        assert_eq!(closes.count(), usize::from(is_closed), "{sent:?}");
    }
}

#[test]
fn an_association_takes_datagrams_only_from_its_program() {
    let begin = test_start();
    let (mut client, tcp) = with_program(begin);
    sends(&mut client, begin, tcp, ASSOCIATE);
    let socket = client.outputs.iter().find_map(|output| match output {
        Output::OpenSocket { socket, .. } => Some(*socket),
        _ => None,
    });
    let socket = socket.expect("a socket for the datagrams");
    let relay = ([127, 0, 0, 1], 50_000).into();
    assert!(client.on_association(begin, socket, Ok(relay)));
    let datagram = |from: &str, socket: SocketId| Received {
        socket,
        remote: from.parse().unwrap(),
        local_ip: None,
        ecn: None,
        payload: BytesMut::from(&[0, 0, 0, 1, 192, 0, 2, 1, 0, 53, b'x'][..]),
    };
    for (from, dropped) in [
        ("127.0.0.2:6000", 1),
        ("[::1]:6000", 2),
        ("127.0.0.1:6000", 2),
        ("127.0.0.1:6001", 3), // the first datagram has shown the program's port
        ("127.0.0.1:6000", 3),
        ("[::ffff:127.0.0.1]:6000", 4),
    ] {
        assert!(client.from_associated(begin, datagram(from, socket)).is_none());
        assert_eq!(client.stats.dropped.unknown_flow, dropped, "{from}");
    }
    let other = datagram("127.0.0.1:6000", SocketId(socket.0 + 1));
    assert!(client.from_associated(begin, other).is_some(), "of another socket");
}

/// SOCKS5 with the user and the password `a:b`.
const GUESS: &[u8] = &[5, 1, 2, 1, 1, b'a', 1, b'b'];

#[test]
fn a_host_that_guesses_passwords_is_slowed_down_alone() {
    let begin = test_start();
    let (mut client, mut tcp) = with_port(begin, Some("user:secret"));
    let mut answers = |client: &mut Client, now, host| {
        let next = connects(client, now, tcp, host);
        sends(client, now, tcp, GUESS);
        let outputs = std::iter::from_fn(|| tcp_output(client)).collect::<Vec<_>>();
        assert!(!client.tcp.programs.contains_key(&tcp));
        tcp = next;
        outputs.iter().any(|it| matches!(it, TcpOutput::Write { .. }))
    };
    for _ in 0..Limits::default().guesses {
        assert!(answers(&mut client, begin, 1), "a refusal");
    }
    assert!(!answers(&mut client, begin, 1), "no answer");
    assert!(answers(&mut client, begin, 2), "another host");
    assert!(answers(&mut client, begin + Duration::from_secs(2), 1));
}
