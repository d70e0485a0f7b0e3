//! Programs that send to thousands of UDP targets: each gets its answers, and TCP connections beside them do not wait.

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_lab::{
    Handle,
    endpoints::{Behaviour, EchoHost, TcpTask},
};
use tandem_node::{
    Input, Node, Output,
    client::{ForwardConfig, Task, TcpService, TunnelMode},
    limits::Limits,
    node::{SocketId, SocketKind, Transmit},
    tcp::{TcpId, TcpInput, TcpOutput},
};

use crate::{
    bed::{MS, PORT, SECOND, add_target, listener, program, task},
    scenario::{Scenario, Testbed},
};

const TCP: TcpId = TcpId(1);

/// How a program asks its questions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Each from another port to one address, as a resolver does.
    Ports(SocketAddr),
    /// Each to another target through one UDP association of SOCKS5, as a list of games does.
    Association(SocketAddr),
}

/// The address of a target of associations.
fn target(number: usize) -> Ipv4Addr {
    let [.., high, low] = u32::try_from(number).unwrap().to_be_bytes();
    Ipv4Addr::new(10, 8, high, low)
}

/// A program that asks questions at these times, and counts the answers.
struct Asker {
    way: Way,
    times: Vec<Duration>,
    /// The number of targets of an association, which are asked in turn.
    targets: usize,
    begin: Option<Instant>,
    asked: usize,
    outputs: VecDeque<Output>,
    /// The questions whose sockets are open.
    to_send: VecDeque<usize>,
    /// The address of the association.
    relay: Option<SocketAddr>,
    answered: Vec<bool>,
}

impl Asker {
    fn new(way: Way, times: Vec<Duration>, targets: usize) -> Self {
        let outputs = match way {
            Way::Ports(_) => VecDeque::new(),
            Way::Association(peer) => {
                VecDeque::from([Output::Tcp(TcpOutput::Connect { tcp: TCP, peer, user: None })])
            }
        };
        let answered = vec![false; times.len()];
        let to_send = VecDeque::new();
        Self { way, times, targets, begin: None, asked: 0, outputs, to_send, relay: None, answered }
    }

    /// How many of the questions from this one on have no answer.
    fn unanswered(&self, from: usize) -> usize {
        self.answered[from..].iter().filter(|is_answered| !**is_answered).count()
    }

    fn on_tcp(&mut self, input: TcpInput) {
        match input {
            TcpInput::Opened { .. } => {
                // The methods and the request together, without an address of its own.
                let data = Bytes::from_static(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]);
                self.outputs.push_back(Output::Tcp(TcpOutput::Write { tcp: TCP, data }));
                self.outputs.push_back(Output::Tcp(TcpOutput::Read { tcp: TCP, max: 1000 }));
            }
            TcpInput::Read { data, .. } => {
                if let [.., a, b, c, d, high, low] = data[..]
                    && data.len() >= 10
                {
                    let port = u16::from_be_bytes([high, low]);
                    let relay = SocketAddr::from(([a, b, c, d], port));
                    self.relay = Some(relay);
                    let kind = SocketKind::ForPeer(relay);
                    self.outputs.push_back(Output::OpenSocket { socket: SocketId(0), kind });
                } else {
                    self.outputs.push_back(Output::Tcp(TcpOutput::Read { tcp: TCP, max: 1000 }));
                }
            }
            _ => {}
        }
    }

    /// The socket, the destination and the datagram of a question.
    fn question(&self, number: usize) -> (SocketId, SocketAddr, Vec<u8>) {
        let payload = u32::try_from(number).unwrap().to_be_bytes();
        match (self.way, self.relay) {
            (Way::Association(_), Some(relay)) => {
                let mut datagram = vec![0, 0, 0, 1];
                datagram.extend(target(number % self.targets).octets());
                datagram.extend(PORT.to_be_bytes());
                datagram.extend(payload);
                (SocketId(0), relay, datagram)
            }
            (Way::Association(peer) | Way::Ports(peer), _) => {
                (SocketId(number as u64), peer, payload.to_vec())
            }
        }
    }
}

impl Node for Asker {
    fn handle(&mut self, now: Instant, input: Input) {
        self.begin.get_or_insert(now);
        match input {
            Input::Tcp(input) => self.on_tcp(input),
            Input::SocketOpened { socket, result } => {
                result.unwrap();
                if let Way::Ports(_) = self.way {
                    self.to_send.push_back(usize::try_from(socket.0).unwrap());
                } else {
                    self.begin = Some(now);
                }
            }
            Input::Datagram(received) => {
                let number = received.payload.last_chunk().unwrap();
                self.answered[u32::from_be_bytes(*number) as usize] = true;
                if let Way::Ports(_) = self.way {
                    self.outputs.push_back(Output::CloseSocket(received.socket));
                }
            }
            _ => {}
        }
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        let begin = *self.begin.get_or_insert(now);
        if let Some(output) = self.outputs.pop_front() {
            return output;
        }
        if let Some(number) = self.to_send.pop_front() {
            let (socket, destination, datagram) = self.question(number);
            buf.extend_from_slice(&datagram);
            let size = datagram.len();
            let transmit =
                Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
            return Output::Transmit { socket, transmit };
        }
        let is_ready = matches!(self.way, Way::Ports(_)) || self.relay.is_some();
        let Some(due) = self.times.get(self.asked).map(|time| begin + *time).filter(|_| is_ready)
        else {
            return Output::Wait(None);
        };
        if due > now {
            return Output::Wait(Some(due));
        }
        let number = self.asked;
        self.asked += 1;
        match self.way {
            Way::Ports(peer) => Output::OpenSocket {
                socket: SocketId(number as u64),
                kind: SocketKind::ForPeer(peer),
            },
            Way::Association(_) => {
                self.to_send.push_back(number);
                self.poll(now, buf)
            }
        }
    }
}

/// Questions at a steady rate, from this time on.
fn steady(from: Duration, per_second: u32, number: u32) -> impl Iterator<Item = Duration> {
    (0..number).map(move |question| from + question * SECOND / per_second)
}

/// A client with a UDP listener, a TCP target and a proxy port, and a target that echoes what is sent to `targets` of
/// its addresses.
fn household(scenario: &Scenario, testbed: &mut Testbed, targets: usize) {
    let ips: Vec<_> = (0..targets).map(|number| target(number).to_string()).collect();
    let ips = ips.iter().map(String::as_str).chain(["10.0.0.8"]);
    testbed.world.add_host("echo", ips, EchoHost::new(PORT));
    let udp = vec![ForwardConfig::new("10.0.0.1:5000".parse().unwrap(), "10.0.0.8", PORT)];
    let mut node = scenario.client(Task::Forward(udp));
    let target = tandem_node::client::FlowConfig::new(crate::bed::target_ip(0), PORT);
    node.add_tcp_service(TcpService::Forward { listen: listener(0), target });
    node.add_tcp_service(TcpService::Proxy { listen: listener(1), password: None });
    testbed.world.replace(testbed.client, node);
    add_target(testbed, 0, Behaviour::Echo);
    testbed.world.run_for(SECOND);
}

fn asker(testbed: &mut Testbed, number: u8, asker: Asker) -> Handle<Asker> {
    let ip = format!("10.0.2.{number}");
    testbed.world.add_host(&format!("asker {number}"), [&*ip], asker)
}

/// What the questions of one program need.
struct Case {
    name: &'static str,
    way: Way,
    times: Vec<Duration>,
    /// The first question that must have an answer, as all later ones.
    from: usize,
    /// The streams that the proxy allows.
    streams: u32,
}

#[test]
fn thousands_of_udp_targets_leave_room_for_everybody() {
    let resolver = Way::Ports("10.0.0.1:5000".parse().unwrap());
    let games = Way::Association(listener(1));
    let few = |way| steady(Duration::ZERO, 10, 300).map(move |time| (way, time));
    let cases = [
        Case {
            name: "a resolver after a burst",
            way: resolver,
            times: steady(Duration::ZERO, 1100, 1100).chain(steady(2 * SECOND, 10, 300)).collect(),
            from: 1100,
            streams: 1024,
        },
        Case {
            name: "a resolver",
            way: resolver,
            times: steady(Duration::ZERO, 150, 3000).collect(),
            from: 0,
            streams: 1024,
        },
        Case {
            name: "a list of games",
            way: games,
            times: steady(Duration::ZERO, 300, 3000).collect(),
            from: 0,
            streams: 1024,
        },
        Case {
            name: "a resolver at a proxy that allows few streams",
            way: resolver,
            times: few(resolver).map(|(_, time)| time).collect(),
            from: 0,
            streams: 20,
        },
        Case {
            name: "a list of games at a proxy that allows few streams",
            way: games,
            times: few(games).map(|(_, time)| time).collect(),
            from: 0,
            streams: 20,
        },
    ];
    for mode in [TunnelMode::Mdt, TunnelMode::Mst] {
        for Case { name, way, times, from, streams } in &cases {
            let limits = Limits { request_streams: *streams, ..Limits::default() };
            let scenario = Scenario { limits, mode, ..Scenario::new(7, 1) };
            scenario.run(|testbed| {
                let targets = if matches!(way, Way::Association(_)) { times.len() } else { 0 };
                household(&scenario, testbed, targets);
                let asker = asker(testbed, 1, Asker::new(*way, times.clone(), targets));
                let last = *times.last().unwrap();
                let tasks = (0..).map(|number| number * 2 * SECOND).take_while(|it| *it < last);
                let tasks = tasks.map(|after| TcpTask { after, ..task(0, 1000) });
                let tcp = program(testbed, 9, tasks.collect());
                testbed.world.run_for(last + 4 * SECOND);
                let what = format!("{name}, {mode:?}");
                assert_eq!(testbed.world.node(asker).unanswered(*from), 0, "{what}");
                for report in testbed.world.node(tcp).reports() {
                    assert_eq!((report.received, report.result), (1000, Some(Ok(()))), "{what}");
                    let duration = report.duration().unwrap();
                    assert!(duration < SECOND, "{what}: a TCP connection took {duration:?}");
                }
                let client = testbed.client;
                let open = testbed.world.node_mut(client).stats().flows_open;
                assert!(open <= u64::from(*streams), "{what}: {open} flows are open");
                testbed.world.trace().digest()
            });
        }
    }
}

#[test]
fn a_program_with_many_flows_in_use_leaves_the_share_of_another() {
    let limits = Limits { request_streams: 64, ..Limits::default() };
    let scenario = Scenario { limits, ..Scenario::new(8, 1) };
    scenario.run(|testbed| {
        household(&scenario, testbed, 100);
        // 100 targets are asked again and again, so that none of their flows is ever silent.
        let busy = (0..60).flat_map(|round| (0..100).map(move |_| round * 100 * MS)).collect();
        let busy = asker(testbed, 1, Asker::new(Way::Association(listener(1)), busy, 100));
        let times = steady(3 * SECOND, 4, 8).collect();
        let other = asker(testbed, 2, Asker::new(Way::Association(listener(1)), times, 8));
        testbed.world.run_for(8 * SECOND);
        assert_eq!(testbed.world.node(other).unanswered(0), 0);
        assert!(testbed.world.node(busy).answered.iter().filter(|it| **it).count() > 3000);
        testbed.world.trace().digest()
    });
}
