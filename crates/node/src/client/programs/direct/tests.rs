use std::{net::Ipv4Addr, time::Duration};

use bytes::BytesMut;

use super::*;
use crate::{
    client::{
        Client,
        programs::tests::{connects, programs, sends, tcp_output, with_port, with_port_at},
        rules::{ALL_PORTS, Carries, HostMatch, Rule},
    },
    node::{Event, Input, Node, Received},
    tcp::{TcpAddresses, TcpInput},
    test_start,
};

/// A client whose rules send everything directly but what they refuse, and a program at its proxy port.
struct Bed {
    client: Client,
    now: Instant,
    program: TcpId,
}

fn rules() -> Rules {
    let refuse = Rule {
        action: Action::Refuse,
        hosts: vec![HostMatch::Name("refused.example".to_owned())],
        ports: vec![ALL_PORTS],
        carries: Carries::BOTH,
    };
    Rules { own: vec![refuse], document: Vec::new(), otherwise: Action::Direct }
}

impl Bed {
    fn new() -> Self {
        let now = test_start();
        let (mut client, program) = with_port(now, None);
        client.set_rules(rules());
        connects(&mut client, now, program, 1);
        Self { client, now, program }
    }

    /// With a program of another host.
    fn of_other_host() -> Self {
        let now = test_start();
        let (mut client, program) = with_port_at(now, "0.0.0.0:1080", None);
        client.set_rules(rules());
        let peer: SocketAddr = "192.0.2.7:40000".parse().unwrap();
        let result = Ok(TcpAddresses::from(peer));
        client.handle(now, Input::Tcp(TcpInput::Opened { tcp: program, result }));
        Self { client, now, program }
    }

    fn tcp(&mut self, input: TcpInput) {
        self.client.handle(self.now, Input::Tcp(input));
    }

    /// The program asks for a name by SOCKS5, which a client without a password answers at once.
    fn asks_for(&mut self, host: &str, port: u16) {
        let len = u8::try_from(host.len()).unwrap();
        let request = [&[5, 1, 0, 5, 1, 0, 3, len][..], host.as_bytes(), &port.to_be_bytes()];
        sends(&mut self.client, self.now, self.program, &request.concat());
    }

    /// The next attempt to reach a target.
    fn attempt(&mut self) -> (TcpId, String) {
        loop {
            let output = tcp_output(&mut self.client).expect("an attempt");
            if let TcpOutput::Connect { tcp, peer, .. } = output {
                return (tcp, peer.to_string());
            }
        }
    }

    /// The name that is looked up.
    fn looks_up(&mut self) -> (QueryId, String) {
        let mut outputs = self.client.outputs.drain(..);
        let found = outputs.find_map(|output| match output {
            Output::Resolve { query, host } => Some((query, host)),
            _ => None,
        });
        found.expect("a look-up")
    }

    fn resolved(&mut self, query: QueryId, addresses: &[&str]) {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let (result, progress) = (Ok(addresses), Progress::Complete);
        self.client.handle(self.now, Input::Resolved { query, result, progress });
    }

    /// What is written to a connection, and how it ends.
    fn written(&mut self, tcp: TcpId) -> (Vec<u8>, &'static str) {
        let (mut bytes, mut end) = (Vec::new(), "open");
        while let Some(output) = tcp_output(&mut self.client) {
            match output {
                TcpOutput::Write { tcp: of, data } if of == tcp => bytes.extend_from_slice(&data),
                TcpOutput::Finish(of) if of == tcp => end = "finished",
                TcpOutput::Close(of) if of == tcp => end = "closed",
                TcpOutput::Reset(of) if of == tcp => end = "reset",
                _ => {}
            }
        }
        (bytes, end)
    }

    /// The reply of SOCKS5 that the program gets after its method.
    fn reply(&mut self) -> u8 {
        let (bytes, _) = self.written(self.program);
        assert_eq!(bytes.get(..3), Some(&[5, 0, 5][..]), "{bytes:?}");
        bytes[3]
    }

    fn is_empty(&self) -> bool {
        let direct = &programs(&self.client).flows.direct;
        direct.ways.is_empty()
            && direct.by_query.is_empty()
            && direct.by_attempt.is_empty()
            && direct.due.is_empty()
            && direct.udp == 0
    }

    fn waits(&mut self, time: Duration) {
        self.now += time;
        self.client.handle(self.now, Input::Timeout);
    }
}

const TARGET: Result<TcpAddresses, OsError> = Ok(TcpAddresses {
    peer: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 5)), 80),
    local: None,
});

/// A program whose target is reached, after it was told so.
fn connected() -> (Bed, TcpId) {
    let mut bed = Bed::new();
    bed.asks_for("10.0.0.5", 80);
    let (target, peer) = bed.attempt();
    assert_eq!(peer, "10.0.0.5:80");
    bed.tcp(TcpInput::Opened { tcp: target, result: TARGET });
    assert_eq!(bed.reply_after_attempt(), 0);
    (bed, target)
}

impl Bed {
    /// The reply, when the answer about the method has been taken already.
    fn reply_after_attempt(&mut self) -> u8 {
        let (bytes, _) = self.written(self.program);
        assert_eq!(bytes.first(), Some(&5), "{bytes:?}");
        bytes[1]
    }
}

#[test]
fn bytes_pass_in_both_directions_until_both_ends_have_finished() {
    let (mut bed, target) = connected();
    let program = bed.program;
    let read = |tcp, text: &'static [u8]| TcpInput::Read { tcp, data: Bytes::from_static(text) };
    bed.tcp(read(program, b"question"));
    assert_eq!(bed.written(target), (b"question".to_vec(), "open"));
    bed.tcp(read(target, b"answer"));
    assert_eq!(bed.written(program), (b"answer".to_vec(), "open"));
    bed.tcp(read(program, b""));
    assert_eq!(bed.written(target), (Vec::new(), "finished"));
    bed.tcp(read(target, b"more"));
    assert_eq!(bed.written(program), (b"more".to_vec(), "open"));
    bed.tcp(read(target, b""));
    assert_eq!(bed.written(program).1, "closed");
    assert!(bed.is_empty() && programs(&bed.client).tcp.programs.is_empty());
}

#[test]
fn a_slow_end_stops_only_the_reading_of_the_other() {
    let (mut bed, target) = connected();
    let program = bed.program;
    let much = Bytes::from(vec![0; 300_000]);
    bed.tcp(TcpInput::Read { tcp: target, data: much.clone() });
    let reads = |bed: &mut Bed, of: TcpId| {
        let mut any = false;
        while let Some(output) = tcp_output(&mut bed.client) {
            any |= matches!(output, TcpOutput::Read { tcp, .. } if tcp == of);
        }
        any
    };
    assert!(!reads(&mut bed, target), "the program has not taken it");
    bed.tcp(TcpInput::Written { tcp: program, bytes: much.len() });
    assert!(reads(&mut bed, target));
    bed.tcp(TcpInput::Read { tcp: program, data: much.clone() });
    assert!(!reads(&mut bed, program), "the target has not taken it");
    bed.tcp(TcpInput::Written { tcp: target, bytes: much.len() });
    assert!(reads(&mut bed, program));
}

#[test]
fn an_end_that_fails_ends_the_other() {
    let error = io::ErrorKind::ConnectionReset;
    let (mut bed, target) = connected();
    let program = bed.program;
    bed.tcp(TcpInput::Failed { tcp: target, error });
    assert_eq!(bed.written(program).1, "reset");
    assert!(bed.is_empty());
    let (mut bed, target) = connected();
    let program = bed.program;
    bed.tcp(TcpInput::Failed { tcp: program, error });
    assert_eq!(bed.written(target).1, "reset");
    assert!(bed.is_empty());
    let (mut bed, target) = connected();
    bed.client.handle(bed.now, Input::Shutdown);
    assert_eq!(bed.written(target).1, "reset");
    assert!(bed.is_empty());
}

#[test]
fn names_are_looked_up_and_their_addresses_tried_one_after_another() {
    let mut bed = Bed::new();
    bed.asks_for("target.example", 443);
    let (query, host) = bed.looks_up();
    assert_eq!(host, "target.example");
    bed.resolved(query, &["2001:db8::1", "192.0.2.1"]);
    let (first, peer) = bed.attempt();
    assert_eq!(peer, "[2001:db8::1]:443");
    let result = Err(io::ErrorKind::NetworkUnreachable.into());
    bed.tcp(TcpInput::Opened { tcp: first, result });
    let (second, peer) = bed.attempt();
    assert_eq!(peer, "192.0.2.1:443");
    bed.tcp(TcpInput::Opened { tcp: second, result: TARGET });
    assert_eq!(bed.reply_after_attempt(), 0);
}

#[test]
fn failures_have_their_replies() {
    let refused = io::ErrorKind::ConnectionRefused;
    let mut bed = Bed::new();
    bed.asks_for("10.0.0.5", 80);
    let (tcp, _) = bed.attempt();
    bed.tcp(TcpInput::Opened { tcp, result: Err(refused.into()) });
    assert_eq!(bed.reply_after_attempt(), 5, "connection refused");
    assert!(bed.is_empty());

    let mut bed = Bed::new();
    bed.asks_for("refused.example", 80);
    assert_eq!(bed.reply(), 2, "not allowed by a rule");

    let mut bed = Bed::new();
    bed.asks_for("nobody.example", 80);
    let (query, _) = bed.looks_up();
    let (result, progress) = (Err(ResolveError::NotFound), Progress::Complete);
    bed.client.handle(bed.now, Input::Resolved { query, result, progress });
    assert_eq!(bed.reply_after_attempt(), 4, "the name has no address");
    assert!(bed.is_empty());

    let mut bed = Bed::new();
    bed.asks_for("slow.example", 80);
    bed.looks_up();
    bed.waits(Duration::from_secs(11));
    assert_eq!(bed.reply_after_attempt(), 4, "no name server answers");
    assert!(bed.is_empty());

    let mut bed = Bed::new();
    bed.asks_for("10.0.0.5", 80);
    let (tcp, _) = bed.attempt();
    bed.waits(Duration::from_secs(11));
    assert!(programs(&bed.client).flows.direct.by_attempt.is_empty());
    let outputs: Vec<_> = std::iter::from_fn(|| tcp_output(&mut bed.client)).collect();
    assert!(outputs.iter().any(|it| matches!(it, TcpOutput::Close(of) if *of == tcp)));
}

#[test]
fn a_program_of_another_host_does_not_reach_the_services_of_this_one() {
    for host in ["127.0.0.1", "0.0.0.0", "localhost", "a.localhost"] {
        let mut bed = Bed::of_other_host();
        bed.asks_for(host, 80);
        assert_eq!(bed.reply(), 2, "{host}");
        assert!(bed.is_empty());
        let mut bed = Bed::new();
        bed.asks_for(host, 80);
        bed.attempt();
    }
    let mut bed = Bed::of_other_host();
    bed.asks_for("rebinding.example", 80);
    let (query, _) = bed.looks_up();
    bed.resolved(query, &["127.0.0.1", "::1"]);
    assert_eq!(bed.reply_after_attempt(), 2);
    assert!(bed.is_empty());
    let mut bed = Bed::of_other_host();
    bed.asks_for("mixed.example", 80);
    let (query, _) = bed.looks_up();
    bed.resolved(query, &["127.0.0.1", "192.0.2.1"]);
    assert_eq!(bed.attempt().1, "192.0.2.1:80");
}

/// A datagram of SOCKS5 to 10.0.0.5:53.
const QUESTION: &[u8] = &[0, 0, 0, 1, 10, 0, 0, 5, 0, 53, b'?'];

/// A program of another host with an association, and its socket. Nothing has to be known of its user.
fn associated() -> (Bed, SocketId) {
    let mut bed = Bed::of_other_host();
    sends(&mut bed.client, bed.now, bed.program, &[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]);
    let socket = bed.opens().expect("a socket for the association");
    let local = "192.0.2.1:50000".parse().unwrap();
    bed.client.handle(bed.now, Input::SocketOpened { socket, result: Ok(local) });
    (bed, socket)
}

impl Bed {
    /// The socket that is opened.
    fn opens(&mut self) -> Option<SocketId> {
        self.client.outputs.drain(..).find_map(|output| match output {
            Output::OpenSocket { socket, .. } => Some(socket),
            _ => None,
        })
    }

    fn receives(&mut self, socket: SocketId, remote: &str, payload: &[u8]) {
        let received = Received {
            socket,
            remote: remote.parse().unwrap(),
            local_ip: None,
            ecn: None,
            payload: BytesMut::from(payload),
        };
        self.client.handle(self.now, Input::Datagram(received));
    }

    /// The datagrams that leave: the socket, the destination and the payload.
    fn leaves(&mut self) -> Vec<(SocketId, String, Vec<u8>)> {
        let mut buf = Vec::new();
        std::iter::from_fn(|| {
            buf.clear();
            let output = self.client.poll_direct(&mut buf)?;
            let Output::Transmit { socket, transmit } = output else { panic!("{output:?}") };
            Some((socket, transmit.destination.to_string(), buf.clone()))
        })
        .collect()
    }
}

#[test]
fn datagrams_pass_in_both_directions_and_an_idle_way_ends() {
    let (mut bed, association) = associated();
    bed.client.life = crate::client::ClientPhase::Running;
    bed.receives(association, "192.0.2.7:5000", QUESTION);
    let target = bed.opens().expect("a socket for the target");
    assert!(bed.leaves().is_empty(), "it waits for its socket");
    let local = "192.0.2.1:50001".parse().unwrap();
    bed.client.handle(bed.now, Input::SocketOpened { socket: target, result: Ok(local) });
    assert_eq!(bed.leaves(), [(target, "10.0.0.5:53".to_owned(), b"?".to_vec())]);
    bed.receives(target, "10.0.0.5:53", b"!");
    let answer = [&QUESTION[..10], b"!"].concat();
    assert_eq!(bed.leaves(), [(association, "192.0.2.7:5000".to_owned(), answer)]);
    bed.waits(Duration::from_secs(100));
    bed.receives(association, "192.0.2.7:5000", QUESTION);
    assert_eq!(bed.leaves().len(), 1);
    bed.waits(Duration::from_secs(100));
    assert!(!bed.is_empty(), "something has passed since");
    bed.waits(Duration::from_secs(51));
    assert!(bed.is_empty());
    bed.client.outputs.clear();
    bed.receives(association, "192.0.2.7:5000", QUESTION);
    assert!(bed.opens().is_some(), "the next datagram opens another way");
}

#[test]
fn a_program_has_a_bounded_number_of_targets_and_its_end_closes_them() {
    let (mut bed, association) = associated();
    let most = crate::limits::Limits::default().local_flows;
    for target in 0..most + 10 {
        let [.., high, low] = target.to_be_bytes();
        let datagram = [&[0, 0, 0, 1, 10, 0, high, low, 0, 53][..], b"?"].concat();
        bed.receives(association, "192.0.2.7:5000", &datagram);
    }
    assert_eq!(programs(&bed.client).flows.direct.udp(), most);
    assert_eq!(bed.client.stats.dropped.too_many_flows, 10);
    let error = io::ErrorKind::ConnectionReset;
    bed.tcp(TcpInput::Failed { tcp: bed.program, error });
    assert!(bed.is_empty());
    let closed = bed.client.outputs.iter().filter(|it| matches!(it, Output::CloseSocket(_)));
    assert_eq!(closed.count(), most + 1);
    let told = bed.client.outputs.iter().any(|it| matches!(it, Output::Event(Event::Closed(_))));
    assert!(!told);
}
