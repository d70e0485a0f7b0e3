//! The bytes of connections, and their ends: FIN in each direction, and resets.

use std::io::ErrorKind;

use tandem_lab::{
    LossModel,
    endpoints::{Behaviour, TcpTask},
};
use tandem_units::Ratio;

use crate::{
    bed::{MS, SECOND, counters, finish, program, report, serve, server_report, task},
    scenario::Scenario,
};

#[test]
fn an_echo_comes_back_whole_through_one_proxy_and_through_two() {
    for (proxies, loss) in [(1, Ratio::ZERO), (1, Ratio::of(5, 100)), (2, Ratio::of(2, 100))] {
        let mut scenario = Scenario::new(1, proxies);
        scenario.access.loss = LossModel::from(loss);
        scenario.run(|testbed| {
            let servers = serve(&scenario, testbed, &[Behaviour::Echo.into()]);
            let program = program(testbed, 1, vec![task(0, 1_000_000)]);
            finish(testbed, program, 30 * SECOND);
            testbed.world.run_for(SECOND);
            for report in [report(testbed, program), server_report(testbed, servers[0])] {
                assert_eq!((report.sent, report.received), (1_000_000, 1_000_000));
                assert!(report.is_intact);
                assert_eq!(report.result, Some(Ok(())));
            }
            for stats in <[_; 2]>::from(counters(testbed)) {
                assert_eq!((stats.opened, stats.finished, stats.open), (1, 1, 0), "{stats:?}");
                assert_eq!((stats.failed, stats.reset, stats.aborted), (0, 0, 0), "{stats:?}");
                let bytes = (stats.to_target_bytes, stats.to_client_bytes);
                assert_eq!(bytes, (1_000_000, 1_000_000));
            }
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn another_seed_gives_another_run() {
    let digest = |seed| {
        let mut scenario = Scenario::new(seed, 1);
        scenario.access.loss = Ratio::of(5, 100).into();
        scenario.run(|testbed| {
            serve(&scenario, testbed, &[Behaviour::Echo.into()]);
            let program = program(testbed, 1, vec![task(0, 100_000)]);
            finish(testbed, program, 30 * SECOND);
            testbed.world.trace().digest()
        })
    };
    assert_ne!(digest(1), digest(2));
}

#[test]
fn a_program_that_has_finished_still_receives() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let servers = serve(&scenario, testbed, &[Behaviour::Source(1_000_000).into()]);
        let program = program(testbed, 1, vec![task(0, 7)]);
        finish(testbed, program, 30 * SECOND);
        testbed.world.run_for(SECOND);
        let (program, server) = (report(testbed, program), server_report(testbed, servers[0]));
        assert_eq!((program.received, program.is_intact), (1_000_000, true));
        assert_eq!((server.received, server.is_intact), (7, true));
        // The FIN of the program arrives at once, and that of the target after all its bytes, for
        // which the link needs 800 ms.
        assert!(server.read_end.unwrap() < program.began + 300 * MS, "{server:?}");
        assert!(program.read_end.unwrap() > program.began + 800 * MS, "{program:?}");
        assert_eq!((program.result, server.result), (Some(Ok(())), Some(Ok(()))));
        testbed.world.trace().digest()
    });
}

#[test]
fn a_target_that_has_finished_still_receives() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let servers = serve(&scenario, testbed, &[Behaviour::Source(7).into()]);
        let tasks = vec![TcpTask { finishes: false, ..task(0, 1_000_000) }];
        let program = program(testbed, 1, tasks);
        finish(testbed, program, 30 * SECOND);
        testbed.world.run_for(SECOND);
        let (program, server) = (report(testbed, program), server_report(testbed, servers[0]));
        assert_eq!((server.received, server.is_intact), (1_000_000, true));
        assert_eq!((program.received, program.is_intact), (7, true));
        assert!(program.read_end.unwrap() < program.began + 300 * MS, "{program:?}");
        assert!(server.read_end.unwrap() > program.began + 800 * MS, "{server:?}");
        assert_eq!((program.result, server.result), (Some(Ok(())), Some(Ok(()))));
        testbed.world.trace().digest()
    });
}

#[test]
fn a_reset_of_the_target_reaches_the_program() {
    for proxies in [1, 2] {
        let scenario = Scenario::new(1, proxies);
        scenario.run(|testbed| {
            let servers = serve(&scenario, testbed, &[Behaviour::ResetAfter(100_000).into()]);
            let program = program(testbed, 1, vec![task(0, 1_000_000)]);
            finish(testbed, program, 10 * SECOND);
            let result = report(testbed, program).result;
            assert_eq!(result, Some(Err(ErrorKind::ConnectionReset)));
            let server = server_report(testbed, servers[0]);
            assert!(server.is_intact && server.received >= 100_000, "{server:?}");
            let (client, proxy) = counters(testbed);
            assert_eq!((proxy.reset, proxy.aborted, proxy.open), (1, 0, 0));
            assert_eq!((client.reset, client.aborted, client.open), (0, 1, 0));
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn a_reset_of_the_program_reaches_the_target() {
    for proxies in [1, 2] {
        let scenario = Scenario::new(1, proxies);
        scenario.run(|testbed| {
            let servers = serve(&scenario, testbed, &[Behaviour::Sink.into()]);
            let tasks = vec![TcpTask { finishes: false, ..task(0, 50_000) }];
            let program = program(testbed, 1, tasks);
            testbed.world.run_for(SECOND);
            assert_eq!(server_report(testbed, servers[0]).received, 50_000);
            let now = testbed.world.now();
            testbed.world.node_mut(program).reset(now, 0);
            testbed.world.run_for(SECOND);
            let server = server_report(testbed, servers[0]);
            assert_eq!(server.result, Some(Err(ErrorKind::ConnectionReset)));
            let (client, proxy) = counters(testbed);
            assert_eq!((client.reset, client.aborted, client.open), (1, 0, 0));
            assert_eq!((proxy.reset, proxy.aborted, proxy.open), (0, 1, 0));
            testbed.world.trace().digest()
        });
    }
}
