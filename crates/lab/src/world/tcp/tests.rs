use std::collections::VecDeque;

use bytes::Bytes;
use tandem_node::{Node, Output};

use super::*;
use crate::{Handle, LinkConfig, NetworkStats, Seed, TraceDigest};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DELAY: Duration = Duration::from_millis(20);
const LISTENER: ListenerId = ListenerId(0);
/// The name of every connection in these tests, at both ends.
const TCP: TcpId = TcpId(1);

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A node that emits the outputs of a test and keeps what it is told.
#[derive(Debug, Default)]
struct Script {
    asks: VecDeque<TcpOutput>,
    told: Vec<(Instant, String)>,
    received: Vec<u8>,
}

impl Script {
    fn new(asks: impl IntoIterator<Item = TcpOutput>) -> Self {
        Self { asks: asks.into_iter().collect(), ..Self::default() }
    }

    fn listening(address: &str) -> Self {
        Self::new([
            TcpOutput::Listen { listener: LISTENER, address: addr(address) },
            TcpOutput::Accept { listener: LISTENER, tcp: TCP },
        ])
    }
}

impl Node for Script {
    fn handle(&mut self, now: Instant, input: Input) {
        let Input::Tcp(input) = input else { panic!("{input:?}") };
        self.told.push((
            now,
            match &input {
                TcpInput::Listening { result, .. } => {
                    format!("listening {:?}", result.map_err(|error| error.kind))
                }
                TcpInput::Opened { result, .. } => {
                    let result = result.map(|addresses| addresses.peer);
                    format!("opened {:?}", result.map_err(|error| error.kind))
                }
                TcpInput::Read { data, .. } => {
                    self.received.extend(data);
                    format!("read {}", data.len())
                }
                TcpInput::Written { bytes, .. } => format!("written {bytes}"),
                TcpInput::Failed { error, .. } => format!("failed {error:?}"),
                TcpInput::UdpPorts { result, .. } => format!("ports {result:?}"),
            },
        ));
    }

    fn poll(&mut self, _now: Instant, _buf: &mut Vec<u8>) -> Output {
        self.asks.pop_front().map_or(Output::Wait(None), Output::Tcp)
    }
}

/// A program and a server, 20 ms from each other.
struct Bed {
    world: World,
    program: Handle<Script>,
    server: Handle<Script>,
}

impl Bed {
    /// The server listens, and the program does nothing.
    fn new() -> Self {
        let mut world = World::new(Seed(1));
        let program = world.add_host("program", ["10.0.0.1"], Script::default());
        let server = world.add_host("server", ["10.0.0.2"], Script::listening("10.0.0.2:80"));
        world.connect(program, server, LinkConfig { delay: DELAY, ..LinkConfig::default() });
        Self { world, program, server }
    }

    /// The program has connected, and nobody has been told anything since.
    fn connected() -> Self {
        let mut bed = Self::new();
        bed.ask(bed.program, connect("10.0.0.2:80"));
        bed.world.run_for(2 * DELAY);
        bed.take(bed.program);
        bed.take(bed.server);
        bed
    }

    fn ask(&mut self, host: Handle<Script>, output: TcpOutput) {
        self.world.node_mut(host).asks.push_back(output);
        self.world.run_for(Duration::ZERO);
    }

    /// What a host was told since the last call, with the time in ms since the start.
    fn take(&mut self, host: Handle<Script>) -> Vec<(u128, String)> {
        let start = self.world.start();
        let told = std::mem::take(&mut self.world.inspect(host).told);
        told.into_iter().map(|(at, what)| ((at - start).as_millis(), what)).collect()
    }

    fn run(&mut self) {
        self.world.run_for(SECOND);
    }
}

fn connect(peer: &str) -> TcpOutput {
    TcpOutput::Connect { tcp: TCP, peer: addr(peer), user: None }
}

fn write(data: &[u8]) -> TcpOutput {
    TcpOutput::Write { tcp: TCP, data: Bytes::copy_from_slice(data) }
}

const fn read(max: usize) -> TcpOutput {
    TcpOutput::Read { tcp: TCP, max }
}

fn told(list: &[(u128, &str)]) -> Vec<(u128, String)> {
    list.iter().map(|(at, what)| (*at, (*what).to_owned())).collect()
}

#[test]
fn a_connection_opens_after_a_round_trip_and_both_ends_learn_the_address_of_the_other() {
    let mut bed = Bed::new();
    bed.ask(bed.program, connect("10.0.0.2:80"));
    bed.run();
    assert_eq!(bed.take(bed.program), told(&[(40, "opened Ok(10.0.0.2:80)")]));
    let server = told(&[(0, "listening Ok(10.0.0.2:80)"), (20, "opened Ok(10.0.0.1:49152)")]);
    assert_eq!(bed.take(bed.server), server);
    assert_eq!(bed.world.tcp_connections(bed.program), 1);
    assert_eq!(bed.world.network_stats(), NetworkStats::default());
}

#[test]
fn bytes_come_in_order_and_as_many_at_a_time_as_are_asked_for() {
    let mut bed = Bed::connected();
    bed.ask(bed.program, write(b"hello "));
    bed.ask(bed.program, write(b"world"));
    assert_eq!(bed.take(bed.program), told(&[(40, "written 6"), (40, "written 5")]));
    bed.ask(bed.server, read(3));
    bed.run();
    assert_eq!(bed.take(bed.server), told(&[(60, "read 3")]));
    bed.ask(bed.server, read(100));
    bed.ask(bed.program, write(b"!"));
    bed.run();
    assert_eq!(bed.take(bed.server), told(&[(1040, "read 8")]));
    bed.ask(bed.server, read(100));
    assert_eq!(bed.world.node(bed.server).received, b"hello world!");
}

#[test]
fn a_reader_that_does_not_read_stops_the_writer_and_then_lets_it_go_on() {
    let mut bed = Bed::connected();
    bed.world.set_tcp_buffer(ByteCount::new(10));
    bed.ask(bed.program, write(b"0123456789abcdef"));
    bed.ask(bed.program, TcpOutput::Finish(TCP));
    bed.run();
    assert_eq!(bed.take(bed.program), told(&[(40, "written 10")]));
    bed.ask(bed.server, read(4));
    bed.run();
    assert_eq!(bed.take(bed.program), told(&[(1060, "written 4")]), "a delay after the read");
    for at_most in [10, 10, 10] {
        bed.ask(bed.server, read(at_most));
        bed.run();
    }
    assert_eq!(bed.world.node(bed.server).received, b"0123456789abcdef");
    let server = bed.take(bed.server);
    let server: Vec<_> = server.iter().map(|(_, what)| &what[..]).collect();
    assert_eq!(server, ["read 4", "read 10", "read 2", "read 0"]);
}

#[test]
fn each_direction_ends_for_itself() {
    let mut bed = Bed::connected();
    bed.ask(bed.server, read(100));
    bed.ask(bed.program, write(b"question"));
    bed.ask(bed.program, TcpOutput::Finish(TCP));
    bed.ask(bed.program, read(100));
    bed.run();
    bed.ask(bed.server, read(100));
    bed.ask(bed.server, write(b"answer"));
    bed.ask(bed.server, TcpOutput::Close(TCP));
    bed.run();
    let server = told(&[(60, "read 8"), (1040, "read 0"), (1040, "written 6")]);
    assert_eq!(bed.take(bed.server)[..2], server[..2]);
    bed.ask(bed.program, read(100));
    assert_eq!(
        bed.take(bed.program),
        told(&[(40, "written 8"), (1060, "read 6"), (2040, "read 0")])
    );
    bed.ask(bed.program, TcpOutput::Close(TCP));
    assert_eq!(bed.world.tcp.ends.len(), 0, "nothing is left of the connection");
}

#[test]
fn nobody_listens_nobody_is_there_or_nobody_answers() {
    for (peer, expected) in [
        ("10.0.0.2:81", (40, "opened Err(ConnectionRefused)")),
        ("10.0.0.3:80", (0, "opened Err(HostUnreachable)")),
        ("[2001:db8::2]:80", (0, "opened Err(NetworkUnreachable)")),
    ] {
        let mut bed = Bed::new();
        bed.ask(bed.program, connect(peer));
        bed.run();
        assert_eq!(bed.take(bed.program), told(&[expected]), "{peer}");
        assert_eq!(bed.world.tcp_connections(bed.program), 0);
        assert_eq!(bed.world.tcp.ends.len(), 0);
    }
    let mut bed = Bed::new();
    bed.world.block(bed.program, bed.server, 200 * SECOND);
    bed.ask(bed.program, connect("10.0.0.2:80"));
    bed.world.run_for(300 * SECOND);
    assert_eq!(bed.take(bed.program), told(&[(127_000, "opened Err(TimedOut)")]));
}

#[test]
fn a_blocked_direction_delays_bytes_and_loses_none() {
    let mut bed = Bed::connected();
    bed.world.block(bed.program, bed.server, 3 * SECOND);
    bed.ask(bed.server, read(100));
    bed.ask(bed.program, write(b"hello"));
    bed.world.run_for(5 * SECOND);
    assert_eq!(bed.take(bed.server), told(&[(3060, "read 5")]));
}

#[test]
fn a_reset_is_told_after_the_bytes_before_it_have_been_read() {
    let mut bed = Bed::connected();
    bed.ask(bed.program, write(b"hello"));
    bed.ask(bed.program, TcpOutput::Reset(TCP));
    bed.run();
    assert_eq!(bed.take(bed.server), [], "the server has not asked to read");
    bed.ask(bed.server, read(100));
    assert_eq!(bed.take(bed.server), told(&[(1040, "read 5"), (1040, "failed ConnectionReset")]));
    assert_eq!(bed.world.tcp.ends.len(), 0);
}

#[test]
fn a_writer_learns_of_a_reset_whatever_it_has_not_read() {
    let mut bed = Bed::connected();
    bed.ask(bed.program, write(b"hello"));
    bed.ask(bed.program, TcpOutput::Reset(TCP));
    bed.run();
    bed.ask(bed.server, write(b"hello"));
    assert_eq!(bed.take(bed.server), told(&[(1040, "failed ConnectionReset")]));
}

#[test]
fn what_comes_to_a_closed_connection_is_answered_with_a_reset() {
    let mut bed = Bed::connected();
    bed.ask(bed.program, TcpOutput::Close(TCP));
    bed.run();
    bed.ask(bed.server, read(100));
    bed.ask(bed.server, write(b"hello"));
    bed.run();
    let server = told(&[(1040, "read 0"), (1040, "written 5"), (1080, "failed ConnectionReset")]);
    assert_eq!(bed.take(bed.server), server);
    assert_eq!(bed.take(bed.program), []);
}

#[test]
fn closing_with_unread_bytes_resets_after_what_was_written() {
    let mut bed = Bed::connected();
    bed.ask(bed.program, write(b"unread"));
    bed.run();
    bed.ask(bed.server, write(b"answer"));
    bed.ask(bed.server, TcpOutput::Close(TCP));
    bed.ask(bed.program, read(100));
    bed.run();
    let program = told(&[(40, "written 6"), (1060, "read 6"), (1060, "failed ConnectionReset")]);
    assert_eq!(bed.take(bed.program), program);
}

#[test]
fn a_host_that_gave_up_connecting_resets_the_late_answer() {
    for give_up in [TcpOutput::Close(TCP), TcpOutput::Reset(TCP)] {
        let mut bed = Bed::new();
        bed.ask(bed.program, connect("10.0.0.2:80"));
        bed.ask(bed.program, give_up);
        bed.run();
        assert_eq!(bed.take(bed.program), []);
        let server = bed.take(bed.server);
        assert_eq!(
            server[1..],
            told(&[(20, "opened Ok(10.0.0.1:49152)"), (60, "failed ConnectionReset")])
        );
    }
}

#[test]
fn connections_wait_for_accept_with_what_they_sent() {
    let mut bed = Bed::connected();
    let second = TcpId(2);
    bed.ask(bed.program, TcpOutput::Connect { tcp: second, peer: addr("10.0.0.2:80"), user: None });
    bed.run();
    bed.ask(bed.program, TcpOutput::Write { tcp: second, data: Bytes::from_static(b"hi") });
    bed.run();
    assert_eq!(bed.take(bed.server), []);
    bed.ask(bed.server, TcpOutput::Accept { listener: LISTENER, tcp: second });
    bed.ask(bed.server, TcpOutput::Read { tcp: second, max: 100 });
    let server = told(&[(2040, "opened Ok(10.0.0.1:49153)"), (2040, "read 2")]);
    assert_eq!(bed.take(bed.server), server);
}

#[test]
fn listeners_get_free_ports_and_errors_as_usual() {
    let mut world = World::new(Seed(1));
    let listen = |number, address: &str| TcpOutput::Listen {
        listener: ListenerId(number),
        address: addr(address),
    };
    let asks = [
        listen(0, "10.0.0.1:0"),
        listen(1, "0.0.0.0:80"),
        listen(2, "10.0.0.1:80"),
        listen(3, "10.0.0.9:80"),
    ];
    let host = world.add_host("host", ["10.0.0.1"], Script::new(asks));
    world.run_for(MS);
    let told: Vec<_> = world.node(host).told.iter().map(|(_, what)| &what[..]).collect();
    assert_eq!(
        told,
        [
            "listening Ok(10.0.0.1:49152)",
            "listening Ok(0.0.0.0:80)",
            "listening Err(AddrInUse)",
            "listening Err(AddrNotAvailable)",
        ]
    );
}

#[test]
fn a_killed_process_leaves_what_it_wrote_and_then_an_end_or_a_reset() {
    for (unread, expected) in [(false, "read 0"), (true, "failed ConnectionReset")] {
        let mut bed = Bed::connected();
        if unread {
            bed.ask(bed.program, write(b"unread"));
        }
        bed.ask(bed.server, write(b"last words"));
        bed.run();
        bed.ask(bed.program, read(100));
        bed.take(bed.program);
        bed.world.kill(bed.server);
        bed.run();
        if !unread {
            bed.ask(bed.program, read(100));
        }
        let program = bed.take(bed.program);
        assert_eq!(program.last().map(|(_, what)| &what[..]), Some(expected));
        assert_eq!(bed.world.node(bed.program).received, b"last words");
    }
}

#[test]
fn a_killed_server_resets_who_waits_for_accept_and_refuses_newcomers() {
    let mut bed = Bed::connected();
    let (second, third) = (TcpId(2), TcpId(3));
    bed.ask(bed.program, TcpOutput::Connect { tcp: second, peer: addr("10.0.0.2:80"), user: None });
    bed.run();
    bed.world.kill(bed.server);
    bed.ask(bed.program, TcpOutput::Connect { tcp: third, peer: addr("10.0.0.2:80"), user: None });
    bed.run();
    let program = told(&[
        (80, "opened Ok(10.0.0.2:80)"),
        (1060, "failed ConnectionReset"),
        (1080, "opened Err(ConnectionRefused)"),
    ]);
    assert_eq!(bed.take(bed.program), program);
    assert_eq!(bed.world.tcp_connections(bed.server), 0);

    bed.world.replace(bed.server, Script::listening("10.0.0.2:80"));
    bed.ask(
        bed.program,
        TcpOutput::Connect { tcp: TcpId(4), peer: addr("10.0.0.2:80"), user: None },
    );
    bed.run();
    assert_eq!(bed.take(bed.program), told(&[(2080, "opened Ok(10.0.0.2:80)")]));
}

#[test]
fn a_busy_process_gets_no_input_about_a_connection_that_it_closed() {
    let mut bed = Bed::connected();
    bed.world.make_busy(bed.server, 100 * MS);
    bed.ask(bed.server, read(100));
    bed.ask(bed.program, write(b"hello"));
    bed.world.run_for(50 * MS); // the bytes wait for the process
    bed.ask(bed.server, TcpOutput::Close(TCP));
    bed.run();
    assert_eq!(bed.take(bed.server), []);
}

#[test]
fn the_digest_contains_the_bytes() {
    let digest = |data: &[u8]| -> TraceDigest {
        let mut bed = Bed::connected();
        bed.ask(bed.program, write(data));
        bed.run();
        bed.world.trace().digest()
    };
    assert_eq!(digest(b"one"), digest(b"one"));
    assert_ne!(digest(b"one"), digest(b"two"));
}

#[test]
fn standard_input_leads_to_the_program_that_has_started_the_process_if_there_is_one() {
    let mut bed = Bed::new();
    bed.ask(bed.program, TcpOutput::OpenStdio(TCP));
    assert_eq!(bed.take(bed.program), told(&[(0, "opened Err(Unsupported)")]));

    let starter = bed.world.add_host("starter", ["10.0.0.3"], Script::listening("10.0.0.3:1"));
    bed.world.set_stdio(bed.program, addr("10.0.0.3:1"));
    bed.ask(bed.program, TcpOutput::OpenStdio(TCP));
    assert_eq!(bed.take(bed.program), told(&[(0, "opened Ok(0.0.0.0:0)")]));
    bed.ask(bed.program, write(b"hello"));
    bed.ask(starter, read(100));
    assert_eq!(bed.world.node(starter).received, b"hello");
    bed.world.kill(bed.program);
    bed.ask(starter, read(100));
    assert_eq!(bed.take(starter).last(), told(&[(0, "read 0")]).last(), "the process has ended");
}
