use std::{collections::VecDeque, io::ErrorKind, net::SocketAddr};

use bytes::{Bytes, BytesMut};
use tandem_node::{
    Output,
    node::{
        FileError, FileId, FileMeta, Progress, QueryId, Received, ResolveError, SocketId,
        SocketKind, Transmit,
    },
};
use tandem_units::{ByteCount, Rate, Ratio};

use super::{
    run::{STALL_STEP, STALLS_FREE},
    *,
};
use crate::{
    Contents, TraceDigest,
    endpoints::{EchoHost, SenderHost, Shot, SinkHost},
    trace::PathEnd,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn delay(delay: Duration) -> LinkConfig {
    LinkConfig { delay, ..LinkConfig::default() }
}

/// A node that emits the outputs of a test and keeps the answers.
#[derive(Debug, Default)]
struct Script {
    asks: VecDeque<(Output, Vec<u8>)>,
    answers: Vec<(Instant, Input)>,
    deadline: Deadline,
}

#[derive(Debug, Default)]
enum Deadline {
    #[default]
    Never,
    /// The node asks to be woken once at this time.
    At(Instant),
    /// The node asks to be woken at the current time, this number of times in a row.
    Past(u32),
}

impl Script {
    fn new(asks: impl IntoIterator<Item = Output>) -> Self {
        Self { asks: asks.into_iter().map(|ask| (ask, Vec::new())).collect(), ..Self::default() }
    }

    fn listen(local: &str) -> Self {
        Self::new([Output::OpenSocket {
            socket: SocketId(0),
            kind: SocketKind::Listen(addr(local)),
        }])
    }

    fn send(&mut self, payload: &[u8], destination: &str, segment_size: Option<usize>) {
        let destination = addr(destination);
        let size = payload.len();
        let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size };
        let transmit = Output::Transmit { socket: SocketId(0), transmit };
        self.asks.push_back((transmit, payload.to_vec()));
    }

    fn payloads(&self) -> Vec<&[u8]> {
        let payloads = self.answers.iter().filter_map(|(_, input)| match input {
            Input::Datagram(received) => Some(&received.payload[..]),
            _ => None,
        });
        payloads.collect()
    }
}

impl Node for Script {
    fn handle(&mut self, now: Instant, input: Input) {
        if let (Input::Timeout, Deadline::At(_)) = (&input, &self.deadline) {
            self.deadline = Deadline::Never;
        }
        self.answers.push((now, input));
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        if let Some((ask, bytes)) = self.asks.pop_front() {
            buf.extend(bytes);
            return ask;
        }
        match &mut self.deadline {
            Deadline::Never | Deadline::Past(0) => Output::Wait(None),
            Deadline::At(at) => Output::Wait(Some(*at)),
            Deadline::Past(times) => {
                *times -= 1;
                Output::Wait(Some(now))
            }
        }
    }
}

fn sender(target: &str, count: u32) -> SenderHost {
    SenderHost::new(addr(target), Shot::every(10 * MS, count, 1222))
}

#[test]
fn an_echo_takes_two_delays_and_two_serialisation_times() {
    let mut world = World::new(Seed(1));
    let echo = world.add_host("echo", ["10.0.0.2"], EchoHost::new(7));
    let sender = world.add_host("sender", ["10.0.0.1"], sender("10.0.0.2:7", 3));
    let rate = |mbps| LinkConfig { capacity: Rate::from_mbps(mbps).into(), ..delay(20 * MS) };
    world.route(sender, echo, vec![rate(10)]); // 1250 bytes: 1 ms
    world.route(echo, sender, vec![rate(5)]); // 2 ms
    assert!(world.run_until(SECOND, |world| world.node(sender).replies().len() == 3));
    let start = world.start();
    let times = world.node(sender).replies().iter().map(|reply| reply.at - start);
    assert_eq!(times.collect::<Vec<_>>(), [43 * MS, 53 * MS, 63 * MS]);
    assert_eq!(world.node(echo).echoed(), 3);
    assert_eq!(world.link_stats(sender, echo)[0].delivered.bytes, ByteCount::new(3750));
}

#[test]
fn time_stands_still_when_nothing_runs_and_stops_at_the_limit() {
    let mut world = World::new(Seed(1));
    world.run_for(SECOND);
    assert_eq!(world.elapsed(), SECOND);
    assert!(!world.run_until(SECOND, |_| false));
    assert_eq!(world.elapsed(), 2 * SECOND);
    assert!(world.run_until(SECOND, |_| true));
    assert_eq!(world.elapsed(), 2 * SECOND);
}

fn lossy_run(seed: u64) -> (TraceDigest, usize) {
    let mut world = World::new(Seed(seed));
    let echo = world.add_host("echo", ["10.0.0.2"], EchoHost::new(7));
    let sender = world.add_host("sender", ["10.0.0.1"], sender("10.0.0.2:7", 100));
    let duplicate = Ratio::of(1, 20);
    world.connect(
        sender,
        echo,
        LinkConfig { loss: Ratio::of(1, 10).into(), duplicate, ..delay(20 * MS) },
    );
    world.run_for(5 * SECOND);
    (world.trace().digest(), world.node(sender).replies().len())
}

#[test]
fn the_same_seed_gives_the_same_packets_and_another_seed_others() {
    assert_eq!(lossy_run(1), lossy_run(1));
    assert_ne!(lossy_run(1).0, lossy_run(2).0);
}

#[test]
fn a_new_host_does_not_change_the_random_draws_of_others() {
    let lost = |with_another: bool| {
        let mut world = World::new(Seed(3));
        let sink = world.add_host("sink", ["10.0.0.2"], SinkHost::new(7));
        let sender = world.add_host("sender", ["10.0.0.1"], sender("10.0.0.2:7", 100));
        let lossy = LinkConfig { loss: Ratio::of(1, 5).into(), ..delay(MS) };
        if with_another {
            let other = world.add_host("other", ["10.0.0.3"], SinkHost::new(7));
            world.connect(other, sender, lossy.clone());
        }
        world.connect(sender, sink, lossy);
        world.run_for(2 * SECOND);
        let arrivals = world.node(sink).arrivals();
        arrivals.iter().map(|arrival| arrival.payload.clone()).collect::<Vec<_>>()
    };
    assert_eq!(lost(false), lost(true));
}

#[test]
fn the_trace_records_time_direction_and_size() {
    let mut world = World::new(Seed(1));
    world.keep_trace();
    let sink = world.add_host("sink", ["10.0.0.2"], SinkHost::new(7));
    let sender = world.add_host("sender", ["10.0.0.1"], sender("10.0.0.2:7", 1));
    world.connect(sender, sink, delay(20 * MS));
    world.run_for(SECOND);
    let entries = world.trace().entries().iter();
    let entries = entries.map(|e| (e.at, e.end, e.from, e.to, e.size.get())).collect::<Vec<_>>();
    let (from, to) = (sender.id(), sink.id());
    let sent = (Duration::ZERO, PathEnd::Sent, from, to, 1250);
    assert_eq!(entries, [sent, (20 * MS, PathEnd::Delivered, from, to, 1250)]);
}

#[test]
fn hosts_that_share_a_path_share_its_rate() {
    let mut world = World::new(Seed(1));
    let a = world.add_host("a", ["10.0.0.1"], sender("10.0.0.9:7", 1));
    let b = world.add_host("b", ["10.0.0.2"], sender("10.0.0.9:7", 1));
    let sink = world.add_host("sink", ["10.0.0.9"], SinkHost::new(7));
    let capacity = Rate::from_mbps(10).into();
    let path = world.route(a, sink, vec![LinkConfig { capacity, ..LinkConfig::default() }]);
    world.route_over(b, sink, &[path]);
    world.run_for(SECOND);
    assert_eq!(world.node(sink).arrivals()[1].at, world.start() + 2 * MS);
}

#[test]
fn a_route_leads_over_several_paths_in_turn() {
    let mut world = World::new(Seed(1));
    let near = world.add_host("near", ["10.0.0.1"], sender("10.0.0.9:7", 1));
    let far = world.add_host("far", ["10.0.0.2"], sender("10.0.0.9:7", 1));
    let sink = world.add_host("sink", ["10.0.0.9"], SinkHost::new(7));
    let access = world.route(near, sink, vec![delay(5 * MS)]);
    let long_way = world.route(far, sink, vec![delay(20 * MS)]);
    world.route_over(far, sink, &[long_way, access]);
    world.run_for(SECOND);
    let at = |number: usize| world.node(sink).arrivals()[number].at - world.start();
    assert_eq!((at(0), at(1)), (5 * MS, 25 * MS));
    assert_eq!(world.link_stats(far, sink).len(), 2);
    assert_eq!(world.path_stats(access)[0].delivered.packets, 2);
}

#[test]
fn a_sender_to_a_closed_port_is_refused_after_a_round_trip() {
    let mut world = World::new(Seed(1));
    let other = world.add_host("other", ["10.0.0.2"], SinkHost::new(7));
    let sender = world.add_host("sender", ["10.0.0.1"], sender("10.0.0.2:8", 1000));
    world.connect(sender, other, delay(20 * MS));
    assert!(world.run_until(SECOND, |world| world.node(sender).failure().is_some()));
    assert_eq!(world.node(sender).failure(), Some(ErrorKind::ConnectionRefused));
    assert_eq!(world.elapsed(), 40 * MS);
    assert_eq!(world.link_stats(other, sender)[0].delivered.bytes, ByteCount::new(56));
}

#[test]
fn an_unconnected_socket_receives_no_error_for_a_closed_port() {
    let mut world = World::new(Seed(1));
    world.add_host("other", ["10.0.0.2"], SinkHost::new(7));
    let script = world.add_host("script", ["10.0.0.1"], Script::listen("0.0.0.0:9"));
    world.run_for(MS);
    world.node_mut(script).send(b"hello", "10.0.0.2:8", None);
    world.run_for(SECOND);
    assert_eq!(world.network_stats().refused, 1);
    assert_eq!(world.node(script).answers.len(), 1, "the only answer is that the socket is open");
}

#[test]
fn a_connected_socket_receives_only_from_its_peer() {
    let mut world = World::new(Seed(1));
    let kind = SocketKind::Connected(addr("10.0.0.2:7"));
    let socket = SocketId(0);
    let a = world.add_host("a", ["10.0.0.1"], Script::new([Output::OpenSocket { socket, kind }]));
    let b = world.add_host("b", ["10.0.0.2", "10.0.0.3"], Script::listen("10.0.0.2:7"));
    let c = world.add_host("c", ["10.0.0.4"], Script::listen("10.0.0.4:7"));
    world.run_for(MS);
    world.node_mut(c).send(b"from c", "10.0.0.1:49152", None);
    world.node_mut(b).send(b"from b", "10.0.0.1:49152", None);
    world.run_for(MS);
    assert_eq!(world.node(a).payloads(), [b"from b"]);
}

#[test]
fn a_batch_is_cut_into_datagrams_and_the_last_may_be_shorter() {
    let mut world = World::new(Seed(1));
    let a = world.add_host("a", ["10.0.0.1"], Script::listen("0.0.0.0:1"));
    let b = world.add_host("b", ["10.0.0.2"], Script::listen("0.0.0.0:2"));
    world.run_for(MS);
    world.node_mut(a).send(b"abcdefgh", "10.0.0.2:2", Some(3));
    world.node_mut(a).send(b"", "10.0.0.2:2", None);
    world.run_for(MS);
    let expected: [&[u8]; 4] = [b"abc", b"def", b"gh", b""];
    assert_eq!(world.node(b).payloads(), expected);
    let (_, Input::Datagram(received)) = &world.node(b).answers[1] else { panic!("no datagram") };
    assert_eq!(received.remote, addr("10.0.0.1:1"));
    assert_eq!(received.local_ip, Some("10.0.0.2".parse().unwrap()));
}

#[test]
fn a_packet_to_an_unknown_address_vanishes() {
    let mut world = World::new(Seed(1));
    let sender = world.add_host("sender", ["10.0.0.1"], sender("10.0.0.2:8", 5));
    world.run_for(SECOND);
    assert_eq!(world.network_stats().unroutable, 5);
    assert_eq!(world.node(sender).failure(), None);
}

#[test]
fn a_blocked_path_drops_packets_and_recovers() {
    let mut world = World::new(Seed(1));
    let sink = world.add_host("sink", ["10.0.0.2"], SinkHost::new(7));
    let sender = world.add_host("sender", ["10.0.0.1"], sender("10.0.0.2:7", 10));
    world.connect(sender, sink, delay(20 * MS));
    world.run_for(5 * MS);
    world.block(sender, sink, 50 * MS); // drops the packets of 10, 20, ... 50 ms
    world.run_for(SECOND);
    assert_eq!(world.node(sink).arrivals().len(), 5);
    assert_eq!(world.network_stats().blocked, 5);
}

#[test]
fn a_killed_host_refuses_and_its_successor_answers() {
    let mut world = World::new(Seed(1));
    let echo = world.add_host("echo", ["10.0.0.2"], EchoHost::new(7));
    let sender = world.add_host("sender", ["10.0.0.1"], sender("10.0.0.2:7", 10));
    world.connect(sender, echo, delay(MS));
    world.run_for(55 * MS);
    world.replace(echo, EchoHost::new(7));
    world.run_for(SECOND);
    assert_eq!(world.node(echo).echoed(), 4);
    assert_eq!(world.node(sender).replies().len(), 10);

    world.kill(echo);
    world.replace(sender, super::tests::sender("10.0.0.2:7", 10));
    world.run_for(SECOND);
    assert_eq!(world.node(sender).failure(), Some(ErrorKind::ConnectionRefused));
    assert_eq!(world.network_stats().refused, 1);
}

#[test]
fn an_answer_to_a_killed_node_does_not_reach_its_successor() {
    let mut world = World::new(Seed(1));
    world.set_name("slow.test", NameAnswer::After(20 * MS, Err(ResolveError::NotFound)));
    let ask = Output::Resolve { query: QueryId(0), host: "slow.test".to_owned() };
    let script = world.add_host("script", ["10.0.0.1"], Script::new([ask]));
    world.run_for(10 * MS);
    world.replace(script, Script::default());
    world.run_for(SECOND);
    assert!(world.node(script).answers.is_empty());
}

#[test]
fn a_closed_port_refuses_a_known_sender() {
    let mut world = World::new(Seed(1));
    let echo = world.add_host("echo", ["10.0.0.2"], EchoHost::new(7));
    let sender = world.add_host("sender", ["10.0.0.1"], sender("10.0.0.2:7", 10));
    world.connect(sender, echo, delay(MS));
    world.run_for(55 * MS);
    world.close_port(echo, 7);
    world.run_for(SECOND);
    assert_eq!(world.node(sender).replies().len(), 6);
    assert_eq!(world.node(sender).failure(), Some(ErrorKind::ConnectionRefused));
}

#[test]
fn a_name_may_be_answered_in_parts() {
    let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
    let mut world = World::new(Seed(1));
    let parts = vec![(MS, vec![ip(7)]), (20 * MS, vec![ip(8)]), (30 * MS, Vec::new())];
    world.set_name("slow.test", NameAnswer::Parts(parts));
    world.set_name("empty.test", NameAnswer::Parts(vec![(MS, Vec::new())]));
    let ask = |(host, query): (&str, u64)| Output::Resolve {
        query: QueryId(query),
        host: host.to_owned(),
    };
    let asks = [("slow.test", 0), ("10.0.0.9", 1), ("empty.test", 2)].map(ask);
    let script = world.add_host("script", ["10.0.0.1"], Script::new(asks));
    world.run_for(SECOND);
    let mut answers = vec![Vec::new(); 3];
    for (_, input) in &world.node(script).answers {
        let Input::Resolved { query, result, progress } = input else { panic!("{input:?}") };
        answers[usize::try_from(query.0).unwrap()].push((result.clone(), *progress));
    }
    let (partial, complete) = (Progress::Partial, Progress::Complete);
    let expected = [
        (Ok(vec![ip(7)]), partial),
        (Ok(vec![ip(7), ip(8)]), partial),
        (Ok(vec![ip(7), ip(8)]), complete),
    ];
    assert_eq!(answers[0], expected);
    assert_eq!(answers[1], [(Ok(vec![ip(9)]), complete)]);
    assert_eq!(answers[2], [(Err(ResolveError::NotFound), complete)]);
}

#[test]
fn names_are_answered_in_time_or_never() {
    let ip: IpAddr = "10.0.0.7".parse().unwrap();
    let mut world = World::new(Seed(1));
    world.set_name("slow.test", NameAnswer::After(20 * MS, Ok(vec![ip])));
    world.set_name("mute.test", NameAnswer::Never);
    let hosts = ["Slow.Test", "mute.test", "unknown.test"];
    let asks = hosts
        .into_iter()
        .zip(0..)
        .map(|(host, query)| Output::Resolve { query: QueryId(query), host: host.to_owned() });
    let script = world.add_host("script", ["10.0.0.1"], Script::new(asks));
    world.run_for(SECOND);
    let start = world.start();
    let answers = world.node(script).answers.iter().map(|(at, input)| match input {
        Input::Resolved { query, result, progress: Progress::Complete } => {
            (*at - start, *query, result.clone())
        }
        _ => panic!("no answer of the resolver"),
    });
    let expected = [
        (Duration::ZERO, QueryId(2), Err(ResolveError::NotFound)),
        (20 * MS, QueryId(0), Ok(vec![ip])),
    ];
    assert_eq!(answers.collect::<Vec<_>>(), expected);
}

#[test]
fn files_are_opened_read_and_closed() {
    let contents = Contents::Generated { len: ByteCount::new(1000), seed: Seed(1) };
    let (file, offset) = (FileId(0), 900);
    let mut world = World::new(Seed(1));
    let script = world.add_host(
        "script",
        ["10.0.0.1"],
        Script::new([
            Output::OpenFile { file, path: vec!["a".to_owned(), "b".to_owned()] },
            Output::OpenFile { file: FileId(1), path: vec!["nothing".to_owned()] },
            Output::ReadFile { file, offset, len: 100 },
            Output::CloseFile(file),
            Output::ReadFile { file, offset, len: 100 },
        ]),
    );
    world.set_files(script, FileSet::new().with("a/b", contents.clone()));
    world.run_for(SECOND);
    let answers: Vec<_> = world.node(script).answers.iter().map(|(_, input)| input).collect();
    let meta = FileMeta { len: 1000, modified: None };
    assert!(matches!(answers[0], Input::FileOpened { result: Ok(m), .. } if *m == meta));
    let not_found = Err::<FileMeta, _>(FileError::NotFound);
    assert!(matches!(answers[1], Input::FileOpened { result, .. } if *result == not_found));
    let Input::FileChunk { result: Ok(bytes), .. } = answers[2] else { panic!("{answers:?}") };
    assert_eq!(*bytes, contents.read(900, 100));
    assert!(matches!(answers[3], Input::FileChunk { result: Err(FileError::NotFound), .. }));
}

#[test]
fn a_body_is_collected_and_credited_at_once() {
    let data = Bytes::from_static(b"abc");
    let mut world = World::new(Seed(1));
    let asks = [(3, data.clone()), (0, data)];
    let asks = asks.map(|(offset, data)| Output::BodyChunk { offset, data });
    let script = world.add_host("script", ["10.0.0.1"], Script::new(asks));
    world.run_for(Duration::ZERO);
    assert_eq!(world.body(script).contiguous(), 6);
    let credits = world.node(script).answers.iter();
    assert!(credits.clone().all(|(_, input)| matches!(input, Input::BodyCredit { bytes: 3 })));
    assert_eq!(credits.len(), 2);
}

#[test]
fn events_are_kept_with_their_time() {
    let mut world = World::new(Seed(1));
    world.run_for(5 * MS);
    let ask = Output::Event(Event::Listening(addr("10.0.0.1:443")));
    let script = world.add_host("script", ["10.0.0.1"], Script::new([ask]));
    world.run_for(MS);
    assert!(matches!(world.events(script), [(at, Event::Listening(_))] if *at == 5 * MS));
}

#[test]
fn deadlines_are_kept_exactly_or_rounded_up() {
    for (granularity, expected) in [(None, MS / 3), (Some(MS), MS)] {
        let mut world = World::new(Seed(1));
        if let Some(granularity) = granularity {
            world.set_timer_granularity(granularity);
        }
        let deadline = Deadline::At(world.now() + MS / 3);
        let script = Script { deadline, ..Script::default() };
        let script = world.add_host("script", ["10.0.0.1"], script);
        assert!(world.run_until(SECOND, |world| !world.node(script).answers.is_empty()));
        assert_eq!(world.elapsed(), expected);
        assert!(matches!(world.node(script).answers[..], [(_, Input::Timeout)]));
    }
}

#[test]
fn programs_that_wake_late_do_so_by_random_times() {
    // For each seed, the time from the first packet to its reply; the echo and the sender wake late.
    let replies = |seed| {
        let mut world = World::new(Seed(1));
        world.wake_late(4 * MS, Seed(seed));
        let echo = world.add_host("echo", ["10.0.0.2"], EchoHost::new(7));
        let sender = world.add_host("sender", ["10.0.0.1"], sender("10.0.0.2:7", 20));
        world.connect(sender, echo, delay(20 * MS));
        assert!(world.run_until(SECOND, |world| world.node(sender).replies().len() == 20));
        world
            .node(sender)
            .replies()
            .iter()
            .map(|reply| reply.at - world.start())
            .collect::<Vec<_>>()
    };
    let seen = replies(1);
    assert_eq!(seen, replies(1));
    assert_ne!(seen, replies(2));
    for (late, sent) in seen.iter().zip((0..).map(|number| 10 * MS * number)) {
        // The sender may also send each packet late, and hears of its reply late.
        let took = late.saturating_sub(sent);
        assert!((40 * MS..=52 * MS).contains(&took), "{late:?} for {sent:?}");
    }
}

#[test]
fn a_node_may_be_woken_again_at_the_same_time_but_not_for_long() {
    for (times, expected) in [(STALLS_FREE, Duration::ZERO), (STALLS_FREE + 5, 5 * STALL_STEP)] {
        let mut world = World::new(Seed(1));
        let script = Script { deadline: Deadline::Past(times), ..Script::default() };
        let script = world.add_host("script", ["10.0.0.1"], script);
        let woken = |world: &World| world.node(script).answers.len() == times as usize;
        assert!(world.run_until(SECOND, woken));
        assert_eq!(world.elapsed(), expected);
    }
}

#[test]
#[should_panic(expected = "spinner asked 10000 times in a row for a time that had passed")]
fn a_node_that_never_gets_on_is_named() {
    let mut world = World::new(Seed(1));
    let script = Script { deadline: Deadline::Past(u32::MAX), ..Script::default() };
    world.add_host("spinner", ["10.0.0.1"], script);
    world.run_for(SECOND);
}

#[test]
#[should_panic(expected = "more than 1000000 events 1s after the start")]
fn hosts_that_never_get_on_are_noticed() {
    let mut world = World::new(Seed(1));
    let a = world.add_host("a", ["10.0.0.1"], EchoHost::new(7));
    world.add_host("b", ["10.0.0.2"], EchoHost::new(7));
    world.run_for(SECOND);
    world.input(
        a,
        Input::Datagram(Received {
            socket: SocketId(0),
            remote: addr("10.0.0.2:7"),
            local_ip: None,
            ecn: None,
            payload: BytesMut::from("ping"),
        }),
    );
    world.run_for(SECOND);
}

#[test]
#[should_panic(expected = "script sends from SocketId(0), which is not open")]
fn sending_without_a_socket_is_noticed() {
    let mut world = World::new(Seed(1));
    let script = world.add_host("script", ["10.0.0.1"], Script::default());
    world.node_mut(script).send(b"hello", "10.0.0.2:8", None);
    world.run_for(SECOND);
}
