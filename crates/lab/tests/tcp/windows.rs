//! Connections over paths that have many more bytes in flight than one stream's window has room for.

use std::{io::ErrorKind, time::Duration};

use tandem_lab::{
    Handle,
    endpoints::{Behaviour, TcpServer},
};
use tandem_netem::LossModel;
use tandem_units::{ByteCount, Rate, Ratio};

use crate::{
    bed::{MS, SECOND, finish, program, report, serve, server_report, task},
    scenario::{Scenario, Testbed},
};

/// With 100 Mbit/s and a round trip of a second, 12.5 MB are in flight.
fn long() -> Scenario {
    let mut scenario = Scenario::new(1, 1);
    scenario.access.capacity = Rate::from_mbps(100).into();
    scenario.access.delay = 500 * MS;
    scenario
}

/// The buffers of programs and targets, with which no TCP connection is a bottleneck.
const TCP_BUFFER: ByteCount = ByteCount::new(4_000_000);

const BULK: u64 = 100_000_000;

/// [`BULK`] takes 8 s at 100 Mbit/s, and the start of the connection with its losses about 15 s. With
/// 2 MB in flight it would take 50 s.
const LIMIT: Duration = Duration::from_secs(30);

/// Lets a program upload to a target, and checks that everything comes in time.
fn fills(testbed: &mut Testbed, number: u8, target: usize, server: Handle<TcpServer>) {
    let program = program(testbed, number, vec![task(target, BULK)]);
    finish(testbed, program, 120 * SECOND);
    let server = server_report(testbed, server);
    assert_eq!((server.received, server.is_intact), (BULK, true));
    let duration = report(testbed, program).duration().unwrap();
    assert!(duration < LIMIT, "{duration:?}");
}

#[test]
fn one_upload_fills_a_long_path() {
    let scenario = long();
    scenario.run(|testbed| {
        testbed.world.set_tcp_buffer(TCP_BUFFER);
        let servers = serve(&scenario, testbed, &[Behaviour::Sink.into()]);
        fills(testbed, 1, 0, servers[0]);
        testbed.world.trace().digest()
    });
}

#[test]
fn one_download_fills_a_long_path_that_loses_packets() {
    let mut scenario = long();
    scenario.access.loss = LossModel::Bernoulli(Ratio::of(1, 100));
    scenario.run(|testbed| {
        testbed.world.set_tcp_buffer(TCP_BUFFER);
        serve(&scenario, testbed, &[Behaviour::Source(BULK).into()]);
        let program = program(testbed, 1, vec![task(0, 10)]);
        finish(testbed, program, 120 * SECOND);
        let report = report(testbed, program);
        assert_eq!((report.received, report.is_intact), (BULK, true));
        assert!(report.duration().unwrap() < LIMIT, "{:?}", report.duration());
        testbed.world.trace().digest()
    });
}

#[test]
fn connections_that_nobody_reads_stop_no_other_on_a_long_path() {
    let mut scenario = long();
    scenario.access.delay = 100 * MS;
    scenario.run(|testbed| {
        testbed.world.set_tcp_buffer(TCP_BUFFER);
        let servers = serve(&scenario, testbed, &[Behaviour::Deaf.into(), Behaviour::Sink.into()]);
        let first = program(testbed, 1, vec![task(1, BULK)]);
        testbed.world.run_for(5 * SECOND);
        let deaf = [2, 3, 4, 5, 6, 7].map(|number| program(testbed, number, vec![task(0, BULK)]));
        finish(testbed, first, 120 * SECOND);
        let second = program(testbed, 8, vec![task(1, BULK)]);
        finish(testbed, second, 120 * SECOND);
        let mut held = 0;
        for program in deaf {
            let report = report(testbed, program);
            assert_eq!(report.result, None);
            held += report.sent;
        }
        // The buffers of TCP at both ends, the window of each stream, and all streams that continue them.
        assert!(held < 6 * (2 * TCP_BUFFER.get() + 2_600_000) + 50_000_000, "{held} bytes");
        for report in testbed.world.node(servers[1]).reports() {
            assert_eq!((report.received, report.is_intact), (BULK, true));
        }
        testbed.world.trace().digest()
    });
}

#[test]
fn a_reset_ends_a_connection_whose_bytes_are_on_several_streams() {
    let scenario = long();
    scenario.run(|testbed| {
        testbed.world.set_tcp_buffer(TCP_BUFFER);
        let targets = [Behaviour::ResetAfter(20_000_000), Behaviour::Sink];
        let servers = serve(&scenario, testbed, &targets.map(Into::into));
        for number in 1..=3 {
            let aborted = program(testbed, number, vec![task(0, BULK)]);
            finish(testbed, aborted, 120 * SECOND);
            assert_eq!(report(testbed, aborted).result, Some(Err(ErrorKind::ConnectionReset)));
        }
        // The streams of the connections that were reset are not missing now.
        fills(testbed, 4, 1, servers[1]);
        testbed.world.trace().digest()
    });
}
