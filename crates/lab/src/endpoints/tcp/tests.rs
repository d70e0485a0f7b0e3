use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use tandem_netem::{LinkConfig, Seed};

use super::*;
use crate::{Handle, World};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const RTT: Duration = Duration::from_millis(40);

fn server_address() -> SocketAddr {
    "10.0.0.2:80".parse().unwrap()
}

/// A server with this behaviour and a program with these tasks, 20 ms from each other.
fn world(
    behaviour: Behaviour,
    tasks: Vec<TcpTask>,
) -> (World, Handle<TcpServer>, Handle<TcpProgram>) {
    let mut world = World::new(Seed(1));
    let server = world.add_host("server", ["10.0.0.2"], TcpServer::new(80, behaviour));
    let program = world.add_host("program", ["10.0.0.1"], TcpProgram::new(tasks));
    world.connect(server, program, LinkConfig { delay: RTT / 2, ..LinkConfig::default() });
    (world, server, program)
}

/// Runs one connection to its end, and returns the reports of the program and of the server.
fn run(behaviour: Behaviour, task: TcpTask) -> (TcpReport, Option<TcpReport>) {
    let (mut world, server, program) = world(behaviour, vec![task]);
    world.run_for(200 * SECOND);
    let program = *world.node(program).report(0);
    (program, world.node(server).reports().next().copied())
}

fn send(bytes: u64) -> TcpTask {
    TcpTask::new(server_address(), bytes)
}

#[test]
fn an_echo_comes_back_whole_and_both_ends_finish() {
    let (program, server) = run(Behaviour::Echo, send(1_000_000));
    for report in [program, server.unwrap()] {
        assert_eq!((report.sent, report.received), (1_000_000, 1_000_000));
        assert!(report.is_intact);
        assert_eq!(report.result, Some(Ok(())));
    }
    assert_eq!(program.opened, Some(program.began + RTT));
    assert_eq!(program.first_byte, Some(program.began + 2 * RTT));
}

#[test]
fn a_source_sends_its_bytes_whether_the_program_has_finished_or_not() {
    for finishes in [true, false] {
        let (program, server) = run(Behaviour::Source(300_000), TcpTask { finishes, ..send(7) });
        assert_eq!((program.received, program.is_intact), (300_000, true));
        assert_eq!(program.result, Some(Ok(())));
        let server = server.unwrap();
        assert_eq!((server.received, server.is_intact), (7, true));
        assert_eq!(server.result, Some(Ok(())));
    }
}

#[test]
fn responses_follow_complete_requests() {
    let behaviour = Behaviour::Respond { request: 100, response: 5000 };
    let (program, _) = run(behaviour, send(350));
    assert_eq!((program.received, program.is_intact), (3 * 5000, true));
    assert_eq!(program.result, Some(Ok(())));
}

#[test]
fn a_slow_reader_reads_at_its_rate_and_a_deaf_one_never() {
    let slow = Behaviour::Slow { bytes: 1000, interval: 10 * MS };
    let (program, server) = run(slow, send(1_000_000));
    assert_eq!(server.unwrap().received, 1_000_000);
    let duration = program.duration().unwrap();
    assert!((10 * SECOND..11 * SECOND).contains(&duration), "{duration:?}");

    let (program, server) = run(Behaviour::Deaf, send(1_000_000));
    assert_eq!((program.sent, server.unwrap().received), (256_000, 0));
    assert_eq!(program.result, None);
}

#[test]
fn resets_and_refusals_reach_the_program() {
    let (program, server) = run(Behaviour::ResetAfter(1000), send(5000));
    assert_eq!(program.result, Some(Err(ErrorKind::ConnectionReset)));
    assert_eq!(server.unwrap().result, Some(Err(ErrorKind::ConnectionAborted)));
    let (program, server) = run(Behaviour::Refuse, send(5000));
    assert_eq!(program.result, Some(Err(ErrorKind::ConnectionRefused)));
    assert_eq!(server, None);
}

#[test]
fn a_program_resets_when_it_is_told_to() {
    let (mut world, server, program) = world(Behaviour::Deaf, vec![send(100)]);
    world.run_for(SECOND);
    let now = world.now();
    world.node_mut(program).reset(now, 0);
    world.run_for(SECOND);
    let result = world.node(program).report(0).result;
    assert_eq!(result, Some(Err(ErrorKind::ConnectionAborted)));
    assert_eq!(world.tcp_connections(program), 0);
    assert_eq!(world.tcp_connections(server), 1, "the server does not read and does not know");
}

#[test]
fn connections_begin_at_their_times() {
    let tasks = (0..3).map(|number| TcpTask { after: number * SECOND, ..send(10) });
    let (mut world, server, program) = world(Behaviour::Echo, tasks.collect());
    assert!(world.run_until(10 * SECOND, |world| world.node(program).is_done()));
    let began = world.node(program).reports().map(|report| report.began - world.start());
    assert_eq!(began.collect::<Vec<_>>(), [Duration::ZERO, SECOND, 2 * SECOND]);
    assert_eq!(world.node(server).received(), 30);
}

#[test]
fn a_typist_measures_each_round_trip() {
    let (mut world, server, _) = world(Behaviour::Echo, Vec::new());
    let typist = TcpTypist::new(server_address(), 15 * MS, 10, 20);
    let typist = world.add_host("typist", ["10.0.0.3"], typist);
    world.connect(typist, server, LinkConfig { delay: 5 * MS, ..LinkConfig::default() });
    world.run_for(SECOND);
    assert_eq!(world.node(typist).round_trips(), [10 * MS; 10]);
    assert_eq!(world.node(typist).report().and_then(|report| report.result), Some(Ok(())));
}

#[test]
fn a_changed_byte_is_noticed() {
    let mut stream =
        stream::Stream::new(crate::World::new(Seed(1)).now(), stream::name_of(0), Reading::All);
    let now = stream.report.began;
    let tcp = stream::name_of(0);
    let data = bytes::Bytes::from_static(b"not the pattern");
    stream.handle(now, tandem_node::tcp::TcpInput::Read { tcp, data });
    assert!(!stream.report.is_intact);
}
