//! Programs that ask for a connection while the tunnel is lost: each gets an answer, and soon.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tandem_lab::{
    TestCertificate,
    endpoints::{Behaviour, EchoHost, SenderHost, Shot},
};
use tandem_node::{
    Event, Input, Node, Output,
    client::{FlowConfig, ForwardConfig, Task, TcpService},
    error::ClientError,
    proxy::Access,
    quic::ResetSecret,
    tcp::{TcpId, TcpInput, TcpOutput},
};

use crate::{
    bed::{MS, SECOND, add_target, listener, program, task},
    scenario::{Scenario, Testbed, certificate},
};

/// The longest wait of a program for an answer. A proxy that is silent is given up after 10 s.
const ANSWERED: Duration = Duration::from_millis(10_200);

/// The longest wait for a connection through a proxy that was replaced at once.
const CONNECTED: Duration = Duration::from_secs(3);

const TCP: TcpId = TcpId(1);

/// A program that says something to the client's proxy port, and notes the answer.
struct Asker {
    words: Bytes,
    outputs: VecDeque<TcpOutput>,
    answer: BytesMut,
    /// Whether the connection has ended.
    has_ended: bool,
}

impl Asker {
    fn new(words: &[u8]) -> Self {
        let connect = TcpOutput::Connect { tcp: TCP, peer: listener(1), user: None };
        Self {
            words: Bytes::copy_from_slice(words),
            outputs: VecDeque::from([connect]),
            answer: BytesMut::new(),
            has_ended: false,
        }
    }
}

impl Node for Asker {
    fn handle(&mut self, _: Instant, input: Input) {
        match input {
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

/// The protocol in which a program asks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asks {
    Socks5,
    Connect,
    Get,
    Forward,
    /// A UDP association, whose socket is the client's own.
    Associate,
}

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
            Self::NoNetwork => move_to(testbed, &[]),
            Self::Moves => move_to(testbed, &["10.99.0.1"]),
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
    let mut node = scenario.client(Task::Forward(Vec::new()));
    let target = FlowConfig::new("10.0.0.20", 7);
    node.add_tcp_service(TcpService::Forward { listen: listener(0), target });
    node.add_tcp_service(TcpService::Proxy { listen: listener(1), password: None });
    testbed.world.replace(testbed.client, node);
    add_target(testbed, 0, Behaviour::Echo);
    testbed.world.run_for(2 * SECOND);
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
        Asks::Forward => None,
    }
}

/// Whether a program has got an answer, and whether it is the connection.
type Answer = Box<dyn Fn(&Testbed) -> Option<bool>>;

impl Asks {
    /// Starts a program that asks.
    fn begin(self, testbed: &mut Testbed) -> Answer {
        let words: &[u8] = match self {
            Self::Socks5 => &[5, 1, 0, 5, 1, 0, 1, 10, 0, 0, 20, 0, 7],
            Self::Associate => &[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0],
            Self::Connect => b"CONNECT 10.0.0.20:7 HTTP/1.1\r\nHost: 10.0.0.20:7\r\n\r\n",
            Self::Get => b"GET http://10.0.0.20:7/ HTTP/1.1\r\nHost: 10.0.0.20:7\r\n\r\n",
            Self::Forward => {
                let forwarded = program(testbed, 1, vec![task(0, 1000)]);
                return Box::new(move |testbed| {
                    let report = testbed.world.node(forwarded).reports().next()?;
                    report.result.map(|result| result.is_ok())
                });
            }
        };
        let asker = testbed.world.add_host("asker", ["10.0.1.1"], Asker::new(words));
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
            is_answered = asks.begin(testbed);
            testbed.world.run_for(distance);
            happens.happen(&scenario, testbed);
        } else {
            happens.happen(&scenario, testbed);
            testbed.world.run_for(distance);
            began = testbed.world.now();
            is_answered = asks.begin(testbed);
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
    use Happens::{Closed, Dies, Drained, Moves, NoNetwork, Replaced, Silent, Strange};
    for asks in [Asks::Socks5, Asks::Connect, Asks::Get, Asks::Forward, Asks::Associate] {
        for happens in [Replaced, Moves, Dies, Silent, Drained, Strange, Closed, NoNetwork] {
            // Milliseconds after the event. The first request is on its way.
            for asked in [-10, 0, 1000, 12_000] {
                if happens == Closed && asked > 0 {
                    continue; // the client has ended
                }
                let (took, is_granted) = wait(asks, happens, asked);
                let case = format!("{asks:?}, {happens:?}, {asked} ms: {took:?}, {is_granted}");
                assert!(took <= ANSWERED, "{case}");
                match (happens, asks) {
                    // What the program asks for is the client's own, at an address that may have gone.
                    (_, Asks::Associate) => {
                        let has_address = !matches!(happens, Moves | NoNetwork | Closed);
                        assert!(took <= SECOND && (is_granted || !has_address), "{case}");
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

/// A program that repeats its questions by UDP gets answers as soon as there is a tunnel.
#[test]
fn a_program_that_asks_by_udp_while_the_tunnel_is_lost_gets_answers_through_the_next_one() {
    use Happens::{Closed, Dies, Drained, Moves, NoNetwork, Replaced, Silent, Strange};
    for happens in [Replaced, Moves, Dies, Silent, Drained, Strange, Closed, NoNetwork] {
        let secret = Some(ResetSecret([1; 32]));
        let scenario = Scenario { reset_secret: secret, ..Scenario::new(2, 1) };
        scenario.run(|testbed| {
            let listen = "10.0.0.1:5000".parse().unwrap();
            let udp = vec![ForwardConfig::new(listen, "10.0.0.8", 7)];
            testbed.world.add_host("echo", ["10.0.0.8"], EchoHost::new(7));
            testbed.world.replace(testbed.client, scenario.client(Task::Forward(udp)));
            testbed.world.run_for(SECOND);
            let shots = Shot::every(500 * MS, 60, 100);
            let program = SenderHost::new(listen, shots);
            let program = testbed.world.add_host("program", ["10.0.1.8"], program);
            testbed.world.run_for(2 * SECOND);
            let answers = |testbed: &Testbed| testbed.world.node(program).replies().len();
            assert!(answers(testbed) >= 3, "{happens:?}");
            if happens == Moves {
                // The program still reaches the client at its first address.
                move_to(testbed, &["10.99.0.1", "10.0.0.1"]);
            } else {
                happens.happen(&scenario, testbed);
            }
            let before = answers(testbed);
            testbed.world.run_for(CONNECTED);
            let came = answers(testbed) - before;
            let goes_on = matches!(happens, Replaced | Moves);
            assert_eq!(came >= 2, goes_on || happens == Drained, "{happens:?}: {came} answers");
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
        let is_answered = Asks::Socks5.begin(testbed);
        testbed.world.run_for(SECOND);
        assert_eq!(is_answered(testbed), Some(true));
        let lost = testbed.world.events(testbed.client).iter();
        let is_told =
            |event: &Event| matches!(event, Event::HopLost { error: ClientError::Tls { .. }, .. });
        assert!(lost.filter(|(_, event)| is_told(event)).count() > 0, "the client says why");
        testbed.world.trace().digest()
    });
}
