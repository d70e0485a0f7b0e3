//! Readers that are slow, or do not read, and what they cost others.

use tandem_lab::{
    Handle, LinkConfig,
    endpoints::{Behaviour, EchoHost, Reading, SenderHost, Shot, TcpProgram, TcpServer, TcpTask},
};
use tandem_node::{Event, client::ForwardConfig};
use tandem_units::Rate;

use crate::{
    bed::{MS, PORT, SECOND, finish, program, report, serve, serve_beside, server_report, task},
    scenario::{Scenario, Testbed},
};

/// What one connection may hold on its way: the window of its stream (16 MB), the buffers of TCP at both
/// ends (256 kB each), what the receiving node has written (256 kB), and the queue before the stream.
const HELD_MAX: u64 = 17_500_000;

const BULK: u64 = 100_000_000;

/// A link on which the bound on what one connection holds is reached in a few seconds.
fn fast() -> Scenario {
    let mut scenario = Scenario::new(1, 1);
    scenario.access.capacity = Rate::from_mbps(100).into();
    scenario
}

/// Lets many short connections and a UDP flow use the tunnel, and checks that nothing delays them.
fn others_go_on(testbed: &mut Testbed, echo: usize) {
    let tasks = (0..50).map(|number| TcpTask { after: number * 50 * MS, ..task(echo, 5000) });
    let others: Handle<TcpProgram> = program(testbed, 9, tasks.collect());
    let shots = Shot::every(20 * MS, 100, 200);
    let udp = SenderHost::new("10.0.0.1:5000".parse().unwrap(), shots);
    let udp = testbed.world.add_host("UDP program", ["10.0.1.8"], udp);
    testbed.world.run_for(4 * SECOND);
    let reports: Vec<_> = testbed.world.node(others).reports().copied().collect();
    assert_eq!(reports.len(), 50);
    for report in reports {
        assert_eq!((report.received, report.result), (5000, Some(Ok(()))));
        assert!(report.duration().unwrap() < 400 * MS, "{:?}", report.duration());
    }
    assert_eq!(testbed.world.node(udp).replies().len(), 100);
    let lost = testbed.world.events(testbed.client).iter();
    let lost = lost.filter(|(_, event)| matches!(event, Event::HopLost { .. }));
    assert_eq!(lost.map(|lost| format!("{lost:?}")).collect::<Vec<_>>(), [] as [&str; 0]);
}

/// Adds these targets of TCP connections, and beside them one that echoes UDP.
fn serve_both(
    scenario: &Scenario,
    testbed: &mut Testbed,
    targets: [Behaviour; 2],
) -> Vec<Handle<TcpServer>> {
    let echo = testbed.world.add_host("UDP echo", ["10.0.0.8"], EchoHost::new(PORT));
    testbed.world.connect(testbed.proxies[0], echo, LinkConfig::default());
    let udp = ForwardConfig::new("10.0.0.1:5000".parse().unwrap(), "10.0.0.8", PORT);
    serve_beside(scenario, testbed, &targets.map(Into::into), vec![udp])
}

#[test]
fn a_target_that_does_not_read_stops_its_own_program_and_nobody_else() {
    let scenario = fast();
    scenario.run(|testbed| {
        let targets = [Behaviour::Deaf, Behaviour::Echo];
        let servers = serve_both(&scenario, testbed, targets);
        let stuck = program(testbed, 1, vec![task(0, BULK)]);
        testbed.world.run_for(10 * SECOND);
        let sent = report(testbed, stuck).sent;
        others_go_on(testbed, 1);
        assert_eq!(report(testbed, stuck).sent, sent, "it stands still");
        assert!((500_000..HELD_MAX).contains(&sent), "{sent} bytes are held");
        assert_eq!(server_report(testbed, servers[0]).result, None);
        testbed.world.trace().digest()
    });
}

#[test]
fn a_program_that_does_not_read_stops_its_own_target_and_nobody_else() {
    let scenario = fast();
    scenario.run(|testbed| {
        let targets = [Behaviour::Source(BULK), Behaviour::Echo];
        let servers = serve_both(&scenario, testbed, targets);
        let stuck = program(testbed, 1, vec![TcpTask { reading: Reading::Nothing, ..task(0, 10) }]);
        testbed.world.run_for(10 * SECOND);
        let sent = server_report(testbed, servers[0]).sent;
        others_go_on(testbed, 1);
        assert_eq!(server_report(testbed, servers[0]).sent, sent, "it stands still");
        assert!((500_000..HELD_MAX).contains(&sent), "{sent} bytes are held");
        assert_eq!(report(testbed, stuck).received, 0);
        testbed.world.trace().digest()
    });
}

#[test]
fn many_programs_that_do_not_read_stop_nobody_else() {
    const STUCK: u64 = 80;
    let scenario = fast();
    scenario.run(|testbed| {
        serve_both(&scenario, testbed, [Behaviour::Source(8_000_000), Behaviour::Echo]);
        let tasks = (0..STUCK).map(|number| TcpTask {
            after: u32::try_from(number).unwrap() * 10 * MS,
            reading: Reading::Nothing,
            ..task(0, 10)
        });
        program(testbed, 1, tasks.collect());
        testbed.world.run_for(30 * SECOND);
        others_go_on(testbed, 1);
        testbed.world.trace().digest()
    });
}

#[test]
fn a_slow_reader_gets_every_byte_at_its_own_rate() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let slow = Behaviour::Slow { bytes: 10_000, interval: 20 * MS };
        let servers = serve(&scenario, testbed, &[slow.into()]);
        let program = program(testbed, 1, vec![task(0, 5_000_000)]);
        finish(testbed, program, 60 * SECOND);
        let server = server_report(testbed, servers[0]);
        assert_eq!((server.received, server.is_intact), (5_000_000, true));
        let duration = report(testbed, program).duration().unwrap();
        // 500 kB/s are a third of what the link carries.
        assert!((10 * SECOND..11 * SECOND).contains(&duration), "{duration:?}");
        testbed.world.trace().digest()
    });
}
