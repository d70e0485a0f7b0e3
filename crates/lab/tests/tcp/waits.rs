//! Programs that ask for a connection while the tunnel is lost: each gets an answer, and soon.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tandem_lab::{
    LinkConfig, TestCertificate,
    endpoints::{Behaviour, EchoHost, SenderHost, Shot, TcpProgram, TcpTask},
};
use tandem_node::{
    Event, Input, Node, Output,
    client::{FlowConfig, ForwardConfig, Task, TcpService},
    error::ClientError,
    limits::Limits,
    proxy::Access,
    quic::ResetSecret,
    tcp::{ListenerId, TcpId, TcpInput, TcpOutput},
};

use crate::{
    bed::{MS, PORT, SECOND, TARGET_RTT, add_target, failures, target_ip},
    scenario::{LOOPBACK, PrintedSeed, Scenario, Testbed, certificate},
};

/// The longest wait of a program for an answer.
const ANSWERED: Duration = Duration::from_secs(8);

/// The longest wait for a connection through a proxy that was replaced at once.
const CONNECTED: Duration = Duration::from_secs(3);

const TCP: TcpId = TcpId(1);

/// The target of UDP flows.
const UDP_TARGET: &str = "10.0.0.8";

/// Where the client listens for programs: on its loopback address, which stays when it moves. The last one is of a
/// program that starts a client of its own.
const FORWARD: SocketAddr = local(1, 6000);
const PROXY: SocketAddr = local(1, 6001);
const UDP: SocketAddr = local(1, 5000);
const STARTER: SocketAddr = local(2, 1);

const fn local(host: u16, port: u16) -> SocketAddr {
    let ip = std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host);
    SocketAddr::new(IpAddr::V6(ip), port)
}

/// A program that says something, and notes the answer.
struct Asker {
    words: Bytes,
    outputs: VecDeque<TcpOutput>,
    answer: BytesMut,
    /// Whether the connection has ended.
    has_ended: bool,
}

impl Asker {
    fn new(first: TcpOutput, words: &[u8]) -> Self {
        Self {
            words: Bytes::copy_from_slice(words),
            outputs: VecDeque::from([first]),
            answer: BytesMut::new(),
            has_ended: false,
        }
    }

    /// One that connects to the client's proxy port.
    fn connecting(words: &[u8]) -> Self {
        Self::new(TcpOutput::Connect { tcp: TCP, peer: PROXY, user: None }, words)
    }

    /// One that starts a client, and has the other end of its standard input and output.
    fn starting(words: &[u8]) -> Self {
        Self::new(TcpOutput::Listen { listener: ListenerId(0), address: STARTER }, words)
    }
}

impl Node for Asker {
    fn handle(&mut self, _: Instant, input: Input) {
        match input {
            Input::Tcp(TcpInput::Listening { listener, .. }) => {
                self.outputs.push_back(TcpOutput::Accept { listener, tcp: TCP });
            }
            Input::Tcp(TcpInput::Opened { .. }) => {
                let data = std::mem::take(&mut self.words);
                self.outputs.push_back(TcpOutput::Write { tcp: TCP, data });
                self.outputs.push_back(TcpOutput::Read { tcp: TCP, max: 1000 });
            }
            Input::Tcp(TcpInput::Read { data, .. }) if !data.is_empty() => {
                self.answer.extend_from_slice(&data);
                self.outputs.push_back(TcpOutput::Read { tcp: TCP, max: 1000 });
            }
            Input::Tcp(TcpInput::Read { .. } | TcpInput::Failed { .. }) => self.has_ended = true,
            _ => {}
        }
    }

    fn poll(&mut self, _: Instant, _: &mut Vec<u8>) -> Output {
        self.outputs.pop_front().map_or(Output::Wait(None), Output::Tcp)
    }
}

/// The way in which a program asks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asks {
    Socks5,
    Connect,
    Get,
    /// A connection to a port that the client forwards (`--tcp`).
    Forward,
    /// A UDP association, whose socket is the client's own.
    Associate,
    /// Packets to a port that the client forwards (`--udp`). The program repeats them.
    Udp,
    /// A program starts a client for one connection, and uses its standard input and output (`--stdio`).
    Stdio,
}

const ALL_WAYS: [Asks; 7] = [
    Asks::Socks5,
    Asks::Connect,
    Asks::Get,
    Asks::Forward,
    Asks::Associate,
    Asks::Udp,
    Asks::Stdio,
];

/// What happens to the proxy.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Happens {
    /// Another process takes its place at once.
    Replaced,
    /// It dies, and none takes its place.
    Dies,
    /// The network drops all packets.
    Silent,
    /// It takes no new requests, and ends when those that it has are done.
    Drained,
    /// A server with another certificate takes its place.
    Strange,
    /// The next one asks for a token, which the client does not have.
    Closed,
    /// The client's host has no network any longer.
    NoNetwork,
    /// The client's host is in another network.
    Moves,
}

const ALL_EVENTS: [Happens; 8] = [
    Happens::Replaced,
    Happens::Moves,
    Happens::Dies,
    Happens::Silent,
    Happens::Drained,
    Happens::Strange,
    Happens::Closed,
    Happens::NoNetwork,
];

impl Happens {
    fn happen(self, scenario: &Scenario, testbed: &mut Testbed) {
        let (client, proxy, for_good) = (testbed.client, testbed.proxies[0], 1000 * SECOND);
        match self {
            Self::Replaced => testbed.world.replace(proxy, scenario.proxy(&certificate(), 1)),
            Self::Dies => testbed.world.kill(proxy),
            Self::Silent => {
                testbed.world.block(client, proxy, for_good);
                testbed.world.block(proxy, client, for_good);
            }
            Self::Drained => testbed.world.input(proxy, Input::Shutdown),
            Self::Strange => {
                let strange = TestCertificate::new(["portal.test"]);
                testbed.world.replace(proxy, scenario.proxy(&strange, 1));
            }
            Self::Closed => {
                let mut closed = scenario.proxy(&certificate(), 1);
                closed.set_access(Access::Tokens(Vec::new()));
                testbed.world.replace(proxy, closed);
            }
            Self::NoNetwork => move_to(testbed, &[LOOPBACK]),
            Self::Moves => move_to(testbed, &["10.99.0.1", LOOPBACK]),
        }
    }
}

/// Gives the client these addresses, and tells it.
fn move_to(testbed: &mut Testbed, addresses: &[&str]) {
    testbed.world.change_addresses(testbed.client, addresses.iter().copied());
    testbed.world.input(testbed.client, Input::NetworkChanged);
}

/// Makes the client serve programs, and waits for the tunnel.
fn serve(scenario: &Scenario, testbed: &mut Testbed) {
    let udp = vec![ForwardConfig::new(UDP, UDP_TARGET, PORT)];
    let mut node = scenario.client(Task::Forward(udp));
    let target = FlowConfig::new(target_ip(0), PORT);
    node.add_tcp_service(TcpService::Forward { listen: FORWARD, target });
    node.add_tcp_service(TcpService::Proxy { listen: PROXY, password: None });
    testbed.world.replace(testbed.client, node);
    add_target(testbed, 0, Behaviour::Echo);
    let echo = testbed.world.add_host("echo", [UDP_TARGET], EchoHost::new(PORT));
    let far = LinkConfig { delay: TARGET_RTT / 2, ..LinkConfig::default() };
    testbed.world.connect(testbed.proxies[0], echo, far);
    testbed.world.run_for(2 * SECOND);
}

/// Starts a client for the standard input and output of another program, with the settings of the command line.
fn start_for_stdio(scenario: &Scenario, testbed: &mut Testbed) {
    let (retry, setup_timeout) = (Some(Duration::ZERO), Limits::STDIO_SETUP);
    let limits = Limits { retry, setup_timeout, ..scenario.limits.clone() };
    // With the seed of the client before, the proxy would take it for that one.
    let scenario = Scenario { limits, seed: PrintedSeed(2), ..scenario.clone() };
    let mut node = scenario.client(Task::Forward(Vec::new()));
    node.add_tcp_service(TcpService::Stdio { target: FlowConfig::new(target_ip(0), PORT) });
    testbed.world.set_stdio(testbed.client, STARTER);
    testbed.world.replace(testbed.client, node);
}

/// Whether the answer grants the connection. `None`: it is no answer.
fn grants(asks: Asks, answer: &[u8]) -> Option<bool> {
    match asks {
        Asks::Socks5 | Asks::Associate => {
            answer.strip_prefix(&[5, 0, 5]).map(|reply| reply[0] == 0)
        }
        // What the target echoes is no response, so that a GET fails behind a proxy that works.
        Asks::Connect | Asks::Get => {
            let answer = answer.strip_prefix(b"HTTP/1.1 ")?;
            assert!(
                [&b"200"[..], b"403", b"502", b"503", b"504"].contains(&&answer[..3]),
                "{answer:?}"
            );
            Some(answer.starts_with(b"200"))
        }
        Asks::Stdio => (!answer.is_empty()).then_some(true),
        Asks::Forward | Asks::Udp => None,
    }
}

/// Whether a program has got an answer, and whether it is the connection.
type Answer = Box<dyn Fn(&Testbed) -> Option<bool>>;

impl Asks {
    /// Starts a program that asks.
    fn begin(self, scenario: &Scenario, testbed: &mut Testbed) -> Answer {
        let began = testbed.world.elapsed();
        let words: &[u8] = match self {
            Self::Socks5 => &[5, 1, 0, 5, 1, 0, 1, 10, 0, 0, 20, 0, 7],
            Self::Associate => &[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0],
            Self::Connect => b"CONNECT 10.0.0.20:7 HTTP/1.1\r\nHost: 10.0.0.20:7\r\n\r\n",
            Self::Get => b"GET http://10.0.0.20:7/ HTTP/1.1\r\nHost: 10.0.0.20:7\r\n\r\n",
            Self::Forward => {
                let program = TcpProgram::new(vec![TcpTask::new(FORWARD, 1000)]);
                let program = testbed.world.add_host("program", ["fd00::2"], program);
                return Box::new(move |testbed| {
                    let report = testbed.world.node(program).reports().next()?;
                    report.result.map(|result| result.is_ok())
                });
            }
            Self::Udp => {
                let program = SenderHost::new(UDP, Shot::every(500 * MS, 60, 100));
                let program = testbed.world.add_host("program", ["fd00::2"], program);
                return Box::new(move |testbed| {
                    let came = !testbed.world.node(program).replies().is_empty();
                    // UDP has no answer that would tell this program that its packets go nowhere.
                    let is_over = testbed.world.elapsed() >= began + ANSWERED;
                    (came || is_over).then_some(came)
                });
            }
            Self::Stdio => {
                let starter = Asker::starting(b"hello");
                let starter = testbed.world.add_host("starter", ["fd00::2"], starter);
                start_for_stdio(scenario, testbed);
                return Box::new(move |testbed| {
                    let mut events = testbed.world.events(testbed.client).iter();
                    let has_ended =
                        events.any(|(at, it)| *at >= began && matches!(it, Event::Closed(_)));
                    let starter = testbed.world.node(starter);
                    let has_ended = has_ended || starter.has_ended;
                    grants(self, &starter.answer).or(has_ended.then_some(false))
                });
            }
        };
        let asker = testbed.world.add_host("asker", ["fd00::2"], Asker::connecting(words));
        Box::new(move |testbed| {
            let asker = testbed.world.node(asker);
            grants(self, &asker.answer).or(asker.has_ended.then_some(false))
        })
    }
}

/// Lets a program ask `asked` milliseconds after the event; a negative number is a time before it. Returns how long the
/// program waits for its answer, and whether it gets the connection.
fn wait(asks: Asks, happens: Happens, asked: i64) -> (Duration, bool) {
    let secret = Some(ResetSecret([1; 32]));
    let scenario = Scenario { reset_secret: secret, ..Scenario::new(1, 1) };
    scenario.run(|testbed| {
        serve(&scenario, testbed);
        let distance = Duration::from_millis(asked.unsigned_abs());
        let (began, is_answered);
        if asked < 0 {
            began = testbed.world.now();
            is_answered = asks.begin(&scenario, testbed);
            testbed.world.run_for(distance);
            happens.happen(&scenario, testbed);
        } else {
            happens.happen(&scenario, testbed);
            testbed.world.run_for(distance);
            began = testbed.world.now();
            is_answered = asks.begin(&scenario, testbed);
        }
        while testbed.world.now() < began + 30 * SECOND {
            if let Some(is_granted) = is_answered(testbed) {
                return (testbed.world.now() - began, is_granted);
            }
            testbed.world.run_for(10 * MS);
        }
        panic!("{asks:?}, {happens:?}, {asked} ms: no answer");
    })
}

#[test]
fn a_program_that_asks_while_the_tunnel_is_lost_gets_its_connection_or_a_refusal_in_time() {
    use Happens::{Closed, Drained, Moves, Replaced};
    for asks in ALL_WAYS {
        for happens in ALL_EVENTS {
            // Milliseconds after the event. The first request is with the proxy, which connects to the target; the
            // second one is on its way.
            for asked in [-100, -10, 0, 1000, 12_000] {
                if happens == Closed && asked > 0 && asks != Asks::Stdio {
                    continue; // the client has ended
                }
                let (took, is_granted) = wait(asks, happens, asked);
                let case = format!("{asks:?}, {happens:?}, {asked} ms: {took:?}, {is_granted}");
                // For stdio, the client has just been started.
                let most = if asks == Asks::Stdio { Limits::STDIO_SETUP } else { ANSWERED };
                assert!(took <= most, "{case}");
                match (happens, asks) {
                    // What the program asks for is the client's own.
                    (_, Asks::Associate) => {
                        assert!(took <= SECOND && (is_granted || happens == Closed), "{case}");
                    }
                    // A client for one connection does not try a second time.
                    (Replaced | Moves, Asks::Stdio) if asked < 0 => {
                        assert!(took <= CONNECTED, "{case}");
                    }
                    (Replaced | Moves, _) => {
                        assert!(took <= CONNECTED, "{case}");
                        assert!(is_granted || asks == Asks::Get, "{case}");
                    }
                    // A proxy that drains may still take what is on its way.
                    (Drained, _) => assert!(!is_granted || asked < 0, "{case}"),
                    _ => assert!(!is_granted, "{case}"),
                }
            }
        }
    }
}

/// The proxy's name, port and UDP are worth a look only if nothing better is known.
#[test]
fn a_refusal_while_the_tunnel_is_away_says_why_it_is_away() {
    for (happens, reason) in [
        (Happens::Strange, "TLS with proxy1.test failed"),
        (Happens::Dies, "no program listens at proxy1.test"),
        (Happens::Silent, "the connection to proxy1.test ended: no packet for the idle timeout"),
    ] {
        let scenario = Scenario::new(3, 1);
        scenario.run(|testbed| {
            serve(&scenario, testbed);
            happens.happen(&scenario, testbed);
            testbed.world.run_for(12 * SECOND);
            let is_answered = Asks::Connect.begin(&scenario, testbed);
            testbed.world.run_for(ANSWERED + SECOND);
            assert_eq!(is_answered(testbed), Some(false), "{happens:?}");
            let failures = failures(testbed);
            assert!(failures.len() == 1 && failures[0].contains(reason), "{failures:?}");
            testbed.world.trace().digest()
        });
    }
}

/// A program that repeats its questions by UDP gets answers again as soon as there is a tunnel.
#[test]
fn a_program_that_asks_by_udp_while_the_tunnel_is_lost_gets_answers_through_the_next_one() {
    for happens in ALL_EVENTS {
        let secret = Some(ResetSecret([1; 32]));
        let scenario = Scenario { reset_secret: secret, ..Scenario::new(2, 1) };
        scenario.run(|testbed| {
            serve(&scenario, testbed);
            let program = SenderHost::new(UDP, Shot::every(500 * MS, 60, 100));
            let program = testbed.world.add_host("program", ["fd00::2"], program);
            testbed.world.run_for(2 * SECOND);
            let answers = |testbed: &Testbed| testbed.world.node(program).replies().len();
            assert!(answers(testbed) >= 3, "{happens:?}");
            happens.happen(&scenario, testbed);
            let before = answers(testbed);
            testbed.world.run_for(CONNECTED);
            let came = answers(testbed) - before;
            let goes_on = matches!(happens, Happens::Replaced | Happens::Moves | Happens::Drained);
            assert_eq!(came >= 2, goes_on, "{happens:?}: {came} answers");
            testbed.world.trace().digest()
        });
    }
}

/// The captive portal of a hotel may take the place of every server for a while.
#[test]
fn a_client_outlives_a_strange_server_in_the_place_of_its_proxy() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        serve(&scenario, testbed);
        let (proxy, strange) = (testbed.proxies[0], TestCertificate::new(["portal.test"]));
        testbed.world.replace(proxy, scenario.proxy(&strange, 1));
        testbed.world.run_for(14 * SECOND);
        testbed.world.replace(proxy, scenario.proxy(&certificate(), 1));
        testbed.world.run_for(10 * SECOND);
        let is_answered = Asks::Socks5.begin(&scenario, testbed);
        testbed.world.run_for(SECOND);
        assert_eq!(is_answered(testbed), Some(true));
        let lost = testbed.world.events(testbed.client).iter();
        let is_told =
            |event: &Event| matches!(event, Event::HopLost { error: ClientError::Tls { .. }, .. });
        assert!(lost.filter(|(_, event)| is_told(event)).count() > 0, "the client says why");
        testbed.world.trace().digest()
    });
}
