//! Clients and proxies that die.

use std::io::ErrorKind;

use tandem_lab::endpoints::Behaviour;
use tandem_node::{Event, limits::Limits};

use crate::{
    bed::{SECOND, counters, finish, program, report, serve, server_report, task},
    scenario::{Scenario, certificate},
};

const BULK: u64 = 50_000_000;

#[test]
fn a_client_that_vanishes_leaves_no_connection_to_a_target() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let targets = [Behaviour::Sink, Behaviour::Source(BULK), Behaviour::Echo];
        let servers = serve(&scenario, testbed, &targets.map(Into::into));
        let tasks = vec![task(0, BULK), task(1, 10), task(2, BULK)];
        program(testbed, 1, tasks);
        testbed.world.run_for(2 * SECOND);
        let proxy = testbed.proxies[0];
        assert_eq!(testbed.world.tcp_connections(proxy), 3);
        let (client, silence) = (testbed.client, 1000 * SECOND);
        testbed.world.block(client, proxy, silence);
        testbed.world.block(proxy, client, silence);
        testbed.world.kill(client);
        testbed.world.run_for(Limits::default().connection_idle + 5 * SECOND);
        assert_eq!(testbed.world.tcp_connections(proxy), 0);
        for server in servers {
            let result = server_report(testbed, server).result;
            assert_eq!(result, Some(Err(ErrorKind::ConnectionReset)));
        }
        let stats = testbed.world.inspect(proxy).stats().tcp;
        assert_eq!((stats.aborted, stats.open), (3, 0));
        testbed.world.trace().digest()
    });
}

#[test]
fn a_proxy_that_dies_resets_the_programs_and_new_connections_work_when_it_is_back() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let targets = [Behaviour::Sink, Behaviour::Source(BULK), Behaviour::Echo];
        let servers = serve(&scenario, testbed, &targets.map(Into::into));
        let bulk = program(testbed, 1, vec![task(0, BULK), task(1, 10), task(2, BULK)]);
        testbed.world.run_for(2 * SECOND);
        let (client, proxy) = (testbed.client, testbed.proxies[0]);
        testbed.world.kill(proxy);
        testbed.world.block(client, proxy, SECOND);
        testbed.world.block(proxy, client, SECOND);
        finish(testbed, bulk, Limits::default().tunnel_idle + 5 * SECOND);
        for report in testbed.world.node(bulk).reports() {
            assert!(report.is_intact);
            assert_eq!(report.result, Some(Err(ErrorKind::ConnectionReset)));
        }
        let came: u64 = servers.iter().map(|server| server_report(testbed, *server).received).sum();
        assert!(came > 0, "the connections were in use");
        let stats = testbed.world.inspect(client).stats().tcp;
        assert_eq!((stats.aborted, stats.finished, stats.open), (3, 0, 0));

        testbed.world.replace(proxy, scenario.proxy(&certificate(), 1));
        let after = program(testbed, 2, vec![task(2, 100_000)]);
        finish(testbed, after, 60 * SECOND);
        assert_eq!(report(testbed, after).result, Some(Ok(())));
        assert_eq!(counters(testbed).1.opened, 1);
        let lost = testbed.world.events(client).iter();
        let lost = lost.filter(|(_, event)| matches!(event, Event::HopLost { .. })).count();
        assert!(lost > 0, "the client says that the tunnel was lost");
        testbed.world.trace().digest()
    });
}
