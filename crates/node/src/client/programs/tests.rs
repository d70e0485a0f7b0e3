use std::{io, sync::Arc, time::Duration};

use bytes::BytesMut;

use super::*;
use crate::{
    client::{
        Client, ClientConfig, ClientPhase, FlowConfig, HopConfig, Task, Work, local::Password,
    },
    node::{Input, Node},
    tcp::{TcpId, TcpOutput},
    test_start,
};

/// A client with one service, before its tunnel is up.
pub(super) fn client(service: TcpService) -> Client {
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
    listen(&mut client);
    client.life = ClientPhase::Running;
    client
}

pub(super) fn programs(client: &Client) -> &Programs {
    match &client.work {
        Work::Programs(programs) => programs,
        Work::Transfer(_) => panic!("it has programs"),
    }
}

/// Opens what programs use: first the listeners, and the standard input when the tunnel is up.
fn listen(client: &mut Client) {
    let open = |programs: &mut Programs, cx: &mut Context<'_>| {
        programs.tcp.listen(cx);
        programs.tcp.open_stdio(cx);
    };
    client.with_programs(test_start(), open).unwrap();
}

/// Lets the socket of an association be open. `false`: it is not one.
fn opened(client: &mut Client, now: Instant, socket: SocketId) -> bool {
    let result = Ok(([127, 0, 0, 1], 50_000).into());
    let opened = client.with_programs(now, |programs, cx| {
        programs.tcp.on_association(socket, result, &mut programs.flows, cx)
    });
    opened.unwrap()
}

/// Lets a datagram of a program come. What is not for an association is returned.
fn from_program(client: &mut Client, now: Instant, received: Received) -> Option<Received> {
    let other = client.with_programs(now, |programs, cx| {
        programs.tcp.associations.from_program(received, &mut programs.flows, cx)
    });
    other.unwrap()
}

/// The next output about a TCP connection.
pub(super) fn tcp_output(client: &mut Client) -> Option<TcpOutput> {
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
pub(super) fn with_port(now: Instant, password: Option<&str>) -> (Client, TcpId) {
    with_port_at(now, "127.0.0.1:1080", password)
}

/// The same with this address of the proxy port.
pub(super) fn with_port_at(now: Instant, listen: &str, password: Option<&str>) -> (Client, TcpId) {
    let listen = listen.parse().unwrap();
    let password = password.map(|password| Arc::new(Password::parse(password).unwrap()));
    let mut client = client(TcpService::Proxy { listen, password });
    let Some(TcpOutput::Listen { listener, .. }) = tcp_output(&mut client) else { panic!() };
    client.handle(now, Input::Tcp(TcpInput::Listening { listener, result: Ok(listen) }));
    let Some(TcpOutput::Accept { tcp, .. }) = tcp_output(&mut client) else { panic!() };
    (client, tcp)
}

/// Lets a program connect from 127.0.0.`host`. Returns the name of the next program's connection.
pub(super) fn connects(client: &mut Client, now: Instant, tcp: TcpId, host: u8) -> TcpId {
    let result = Ok(SocketAddr::from(([127, 0, 0, host], 40_000)).into());
    client.handle(now, Input::Tcp(TcpInput::Opened { tcp, result }));
    let Some(TcpOutput::Accept { tcp, .. }) = tcp_output(client) else { panic!() };
    tcp
}

/// Lets a program send bytes.
pub(super) fn sends(client: &mut Client, now: Instant, tcp: TcpId, data: &[u8]) {
    client.handle(now, Input::Tcp(TcpInput::Read { tcp, data: Bytes::copy_from_slice(data) }));
}

#[test]
fn the_standard_input_is_asked_for_once_however_often_the_tunnel_is_rebuilt() {
    let (mut client, tcp) = with_stdio();
    client.handle(
        test_start(),
        Input::Tcp(TcpInput::Opened {
            tcp,
            result: Ok(SocketAddr::from(([0, 0, 0, 0], 0)).into()),
        }),
    );
    listen(&mut client);
    assert!(tcp_output(&mut client).is_none());
}

#[test]
fn a_client_without_its_standard_input_ends() {
    let (mut client, tcp) = with_stdio();
    client.handle(
        test_start(),
        Input::Tcp(TcpInput::Opened { tcp, result: Err(io::ErrorKind::NotFound.into()) }),
    );
    let ClientPhase::Ending { result, .. } = client.life else { panic!("it does not end") };
    assert_eq!(result, Err(ClientError::Stdio(io::ErrorKind::NotFound.into())));
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
        assert!(programs(&client).tcp.programs.contains_key(&tcp), "{sent:?}");
        client.handle_timeout(begin + silence);
        assert_eq!(!programs(&client).tcp.programs.contains_key(&tcp), is_closed, "{sent:?}");
        let closes = std::iter::from_fn(|| tcp_output(&mut client));
        let closes = closes.filter(|it| matches!(it, TcpOutput::Close(which) if *which == tcp));
        assert_eq!(closes.count(), usize::from(is_closed), "{sent:?}");
    }
}

/// A client whose program at this address has asked for an association, and the socket of the association.
fn with_association(now: Instant, program: &str) -> (Client, TcpId, SocketId) {
    with_request(now, program, ASSOCIATE)
}

/// The same with this request.
fn with_request(now: Instant, program: &str, request: &[u8]) -> (Client, TcpId, SocketId) {
    let (mut client, tcp) = with_port(now, None);
    let program: SocketAddr = program.parse().unwrap();
    client.handle(now, Input::Tcp(TcpInput::Opened { tcp, result: Ok(program.into()) }));
    sends(&mut client, now, tcp, request);
    let socket = client.outputs.iter().find_map(|output| match output {
        Output::OpenSocket { socket, .. } => Some(*socket),
        _ => None,
    });
    let socket = socket.expect("a socket for the datagrams");
    assert!(opened(&mut client, now, socket));
    client.outputs.clear();
    (client, tcp, socket)
}

/// A datagram for 192.0.2.1:53.
fn datagram(from: &str, socket: SocketId) -> Received {
    Received {
        socket,
        remote: from.parse().unwrap(),
        local_ip: None,
        ecn: None,
        payload: BytesMut::from(&[0, 0, 0, 1, 192, 0, 2, 1, 0, 53, b'x'][..]),
    }
}

/// The connections of whose users' ports the driver was asked.
fn questions(client: &mut Client) -> Vec<TcpId> {
    let outputs = std::iter::from_fn(|| tcp_output(client));
    outputs
        .filter_map(|it| if let TcpOutput::FindUdpPorts(tcp) = it { Some(tcp) } else { None })
        .collect()
}

#[test]
fn an_association_off_loopback_takes_datagrams_only_from_its_programs_host() {
    let begin = test_start();
    let (mut client, _, socket) = with_association(begin, "192.0.2.9:40000");
    for (from, dropped) in [
        ("192.0.2.8:6000", 1),
        ("[::1]:6000", 2),
        ("192.0.2.9:6000", 2),
        ("192.0.2.9:6001", 2), // the program has another socket
        ("[::ffff:192.0.2.9]:6000", 2),
    ] {
        assert!(from_program(&mut client, begin, datagram(from, socket)).is_none());
        assert_eq!(client.stats.dropped.unknown_flow, dropped, "{from}");
        assert_eq!(questions(&mut client), [], "{from}");
    }
    let other = datagram("192.0.2.9:6000", SocketId(socket.0 + 1));
    assert!(from_program(&mut client, begin, other).is_some(), "of another socket");
}

#[test]
fn an_address_in_the_request_limits_an_association_only_if_it_is_the_programs_own() {
    let begin = test_start();
    let request = |ip: [u8; 4], port: u16| {
        let mut request = vec![5, 1, 0, 5, 3, 0, 1];
        request.extend(ip);
        request.extend(port.to_be_bytes());
        request
    };
    for (ip, port, from, is_served) in [
        ([0, 0, 0, 0], 0, "192.0.2.9:6000", true),
        ([0, 0, 0, 0], 6001, "192.0.2.9:6000", true),
        // The address of the target, or one behind a NAT.
        ([192, 0, 2, 1], 53, "192.0.2.9:6000", true),
        ([192, 0, 2, 9], 0, "192.0.2.9:6000", true),
        ([192, 0, 2, 9], 6000, "192.0.2.9:6000", true),
        ([192, 0, 2, 9], 6001, "192.0.2.9:6000", false),
    ] {
        let (mut client, _, socket) = with_request(begin, "192.0.2.9:40000", &request(ip, port));
        from_program(&mut client, begin, datagram(from, socket));
        let what = format!("{ip:?}:{port}");
        assert_eq!(client.stats.dropped.unknown_flow, u64::from(!is_served), "{what}");
        // On loopback the owner of a port is known, and nothing else matters.
        let (mut client, tcp, socket) = with_request(begin, "127.0.0.1:40000", &request(ip, port));
        from_program(&mut client, begin, datagram("127.0.0.1:6000", socket));
        client.handle(begin, Input::Tcp(TcpInput::UdpPorts { tcp, result: Ok(Box::new([6000])) }));
        assert_eq!(client.stats.dropped.unknown_flow, 0, "{what}");
    }
}

#[test]
fn each_socket_of_a_program_gets_the_answers_of_the_targets_that_it_asks() {
    let begin = test_start();
    let (mut client, _, socket) = with_association(begin, "192.0.2.9:40000");
    let mut other = datagram("192.0.2.9:6001", socket);
    other.payload[7] = 2; // 192.0.2.2
    from_program(&mut client, begin, datagram("192.0.2.9:6000", socket));
    from_program(&mut client, begin, other);
    let flows: Vec<_> = programs(&client).flows.all().map(|(source, _)| *source).collect();
    let answers = flows.into_iter().map(|source| {
        let answer = client.with_programs(begin, |programs, cx| {
            programs.to_program(source, Bytes::from_static(b"x"), &mut Vec::new(), cx)
        });
        let Some(Some(Output::Transmit { transmit, .. })) = answer else { panic!("no answer") };
        transmit.destination.port()
    });
    assert_eq!(answers.collect::<Vec<_>>(), [6000, 6001]);
}

#[test]
fn an_association_is_at_the_address_that_its_program_reaches() {
    let begin = test_start();
    for (listen, here, expected) in [
        ("0.0.0.0:1080", Some("10.0.0.1"), "10.0.0.1"),
        ("[::]:1080", Some("::ffff:10.0.0.1"), "10.0.0.1"),
        ("[::]:1080", Some("2001:db8::1"), "2001:db8::1"),
        ("10.0.0.7:1080", Some("10.0.0.7"), "10.0.0.7"),
        ("[::]:1080", None, "::"),
    ] {
        let (mut client, tcp) = with_port_at(begin, listen, None);
        let peer = "192.0.2.9:40000".parse().unwrap();
        let local = here.map(|here| here.parse().unwrap());
        let result = Ok(crate::tcp::TcpAddresses { peer, local });
        client.handle(begin, Input::Tcp(TcpInput::Opened { tcp, result }));
        sends(&mut client, begin, tcp, ASSOCIATE);
        let opened = client.outputs.iter().find_map(|output| match output {
            Output::OpenSocket { kind: SocketKind::Listen(address), .. } => Some(address.ip()),
            _ => None,
        });
        assert_eq!(opened, Some(expected.parse().unwrap()), "{listen}");
    }
}

#[test]
fn an_association_on_loopback_takes_datagrams_only_from_ports_of_its_programs_user() {
    let begin = test_start();
    let (mut client, tcp, socket) = with_association(begin, "127.0.0.1:40000");
    let dropped = |client: &Client| client.stats.dropped.unknown_flow;
    let program = |client: &Client| programs(client).tcp.associations.program_of(socket);
    let answer = |client: &mut Client, now, ports: &[u16]| {
        client.handle(now, Input::Tcp(TcpInput::UdpPorts { tcp, result: Ok(ports.into()) }));
    };
    // A stranger's datagram is the first. One question is enough for all that comes meanwhile.
    for from in ["127.0.0.1:7000", "127.0.0.1:6000", "[::ffff:127.0.0.1]:6001", "127.0.0.2:6000"] {
        assert!(from_program(&mut client, begin, datagram(from, socket)).is_none());
    }
    assert_eq!((dropped(&client), program(&client)), (1, None), "another address of loopback");
    assert_eq!(questions(&mut client), [tcp]);
    answer(&mut client, begin, &[6000, 6001]);
    // What came before the question is decided. The others came later and may need another look.
    assert_eq!(dropped(&client), 2);
    assert_eq!(program(&client), Some("[::ffff:127.0.0.1]:6001".parse().unwrap()), "the latest");
    assert_eq!(questions(&mut client), []);
    // Known ports are served at once, and the answers go to the latest.
    from_program(&mut client, begin, datagram("127.0.0.1:6000", socket));
    assert_eq!(program(&client), Some("127.0.0.1:6000".parse().unwrap()));
    // A port that was opened after the look.
    from_program(&mut client, begin, datagram("127.0.0.1:6002", socket));
    assert_eq!(questions(&mut client), [tcp]);
    answer(&mut client, begin, &[6000, 6002]);
    assert_eq!(program(&client), Some("127.0.0.1:6002".parse().unwrap()));
    assert_eq!(dropped(&client), 2);
}

#[test]
fn what_comes_after_a_question_waits_for_the_next_answer() {
    let begin = test_start();
    let (mut client, tcp, socket) = with_association(begin, "[::1]:40000");
    from_program(&mut client, begin, datagram("[::1]:7000", socket));
    assert_eq!(questions(&mut client), [tcp]);
    from_program(&mut client, begin, datagram("[::1]:6000", socket));
    assert_eq!(questions(&mut client), [], "one at a time");
    client.handle(begin, Input::Tcp(TcpInput::UdpPorts { tcp, result: Ok(Box::new([])) }));
    assert_eq!(client.stats.dropped.unknown_flow, 1, "the first is a stranger's");
    assert_eq!(questions(&mut client), [tcp]);
    client.handle(begin, Input::Tcp(TcpInput::UdpPorts { tcp, result: Ok(Box::new([6000])) }));
    assert_eq!(client.stats.dropped.unknown_flow, 1);
    assert!(programs(&client).tcp.associations.program_of(socket).is_some());
}

#[test]
fn owners_of_ports_are_asked_for_again_in_time() {
    let begin = test_start();
    let known = Limits::default().owners_known;
    let (mut client, tcp, socket) = with_association(begin, "127.0.0.1:40000");
    let sends = |client: &mut Client, now| {
        let before = programs(client).tcp.associations.program_of(socket).is_some();
        from_program(client, now, datagram("127.0.0.1:6000", socket));
        (before, questions(client))
    };
    assert_eq!(sends(&mut client, begin), (false, vec![tcp]));
    client.handle(begin, Input::Tcp(TcpInput::UdpPorts { tcp, result: Ok(Box::new([6000])) }));
    assert_eq!(sends(&mut client, begin + known / 3), (true, vec![]));
    // The datagram is served, and the question is asked beside it.
    assert_eq!(sends(&mut client, begin + known / 2), (true, vec![tcp]));
    // The port belongs to somebody else now.
    client.handle(
        begin + known / 2,
        Input::Tcp(TcpInput::UdpPorts { tcp, result: Ok(Box::new([])) }),
    );
    assert_eq!(sends(&mut client, begin + known / 2), (true, vec![tcp]));
    client.handle(
        begin + known / 2,
        Input::Tcp(TcpInput::UdpPorts { tcp, result: Ok(Box::new([])) }),
    );
    assert_eq!(client.stats.dropped.unknown_flow, 1);
}

#[test]
fn an_association_is_refused_if_the_owner_is_not_known() {
    let begin = test_start();
    let (mut client, tcp, socket) = with_association(begin, "127.0.0.1:40000");
    for dropped in 1..4 {
        from_program(&mut client, begin, datagram("127.0.0.1:6000", socket));
        assert_eq!(questions(&mut client), [tcp]);
        let result = Err(io::ErrorKind::PermissionDenied);
        client.handle(begin, Input::Tcp(TcpInput::UdpPorts { tcp, result }));
        assert_eq!(client.stats.dropped.unknown_flow, dropped);
        assert_eq!(programs(&client).tcp.associations.program_of(socket), None);
    }
}

#[test]
fn a_stranger_who_floods_an_association_takes_it_no_memory_and_does_not_lock_its_program_out() {
    let begin = test_start();
    let held = Limits::default().unowned_datagrams;
    let (mut client, tcp, socket) = with_association(begin, "127.0.0.1:40000");
    for port in 10_000..20_000 {
        from_program(&mut client, begin, datagram(&format!("127.0.0.1:{port}"), socket));
    }
    from_program(&mut client, begin, datagram("127.0.0.1:6000", socket));
    assert_eq!(client.stats.dropped.unknown_flow, 10_001 - held as u64);
    assert_eq!(questions(&mut client), [tcp]);
    client.handle(begin, Input::Tcp(TcpInput::UdpPorts { tcp, result: Ok(Box::new([6000])) }));
    from_program(&mut client, begin, datagram("127.0.0.1:6000", socket));
    assert!(programs(&client).tcp.associations.program_of(socket).is_some());
    // A program that goes takes what waits with it, also while the driver looks.
    assert_eq!(questions(&mut client), [tcp]);
    client
        .handle(begin, Input::Tcp(TcpInput::Failed { tcp, error: io::ErrorKind::ConnectionReset }));
    client.handle(begin, Input::Tcp(TcpInput::UdpPorts { tcp, result: Ok(Box::new([6000])) }));
    assert_eq!(questions(&mut client), []);
    assert!(programs(&client).tcp.associations.is_empty());
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
        assert!(!programs(client).tcp.programs.contains_key(&tcp));
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

#[test]
fn a_probe_needs_a_tunnel_and_a_target_that_there_can_be() {
    let (mut client, _) = with_port(test_start(), None);
    let mut probe = |target| client.probe(test_start(), FlowId(1), target);
    assert_eq!(probe(None), Err(FlowError::NotOpen));
    assert_eq!(probe(Some(FlowConfig::new("target.test", 22))), Err(FlowError::NotOpen));
    for (host, port) in [("target.test", 0), ("", 22), ("a b", 22)] {
        let refused = probe(Some(FlowConfig::new(host, port)));
        assert!(matches!(refused, Err(FlowError::Target(_))), "{host}: {refused:?}");
    }
    client.close_flow(test_start(), FlowId(1));
    assert!(client.poll_flow_event().is_none());
}
