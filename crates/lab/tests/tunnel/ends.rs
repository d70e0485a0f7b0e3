//! The ends of tunnels: what was said last arrives.

use std::time::Duration;

use tandem_lab::{
    Handle, LinkConfig, World,
    endpoints::{EchoHost, SenderHost, Shot, SinkHost},
};
use tandem_node::{
    Event, Input, Node,
    client::{ForwardConfig, TunnelMode},
};
use tandem_units::{ByteCount, Ratio};

use crate::{
    MS, SECOND, rmdt,
    scenario::{Scenario, Testbed},
};

/// All ways in which payloads travel.
fn modes() -> [TunnelMode; 4] {
    [TunnelMode::Mdt, TunnelMode::Mst, TunnelMode::Msgt(4), rmdt()]
}

/// How long a host that has much to do leaves packets in its sockets. It is longer than an RTT.
const BUSY: Duration = Duration::from_millis(70);

/// A client that carries the packets of a program to a target. The program sends one every 10 ms.
fn streaming<N: Node + 'static>(
    scenario: &Scenario,
    target: N,
) -> (Testbed, Handle<N>, Handle<SenderHost>) {
    let mut testbed = scenario.testbed();
    let target = testbed.world.add_host("target", ["10.0.0.8"], target);
    let forward =
        ForwardConfig::new("10.0.0.1:5000".parse().expect("an address"), "10.0.0.8".to_owned(), 9);
    testbed.forward(scenario, vec![forward]);
    let shots = Shot::every(10 * MS, 200, 200);
    let sender = SenderHost::new("10.0.0.1:5000".parse().expect("an address"), shots);
    let program = testbed.world.add_host("program", ["10.0.0.7"], sender);
    testbed.world.connect(program, testbed.client, LinkConfig::default());
    (testbed, target, program)
}

#[test]
fn what_came_before_a_tunnels_end_is_relayed() {
    for mode in modes() {
        for pause in [Duration::ZERO, BUSY] {
            let mut scenario = Scenario::new(1, 1);
            scenario.mode = mode;
            // The client does not wait for the proxy's acknowledgement, as a client of others may.
            scenario.limits.last_words = Duration::ZERO;
            let (mut testbed, sink, program) = streaming(&scenario, SinkHost::new(9));
            testbed.world.run_for(SECOND);
            if !pause.is_zero() {
                testbed.world.make_busy(testbed.proxies[0], pause);
            }
            testbed.world.run_for(SECOND / 2);
            testbed.world.input(testbed.client, Input::Shutdown);
            let sent = testbed.world.node(program).sent();
            testbed.world.run_for(SECOND);
            let arrived = testbed.world.node(sink).arrivals().len() as u64;
            assert_eq!(arrived, sent, "{mode:?}, {pause:?}");
            let stats = testbed.world.node_mut(testbed.proxies[0]).stats();
            assert_eq!(stats.connections_open, 0, "{mode:?}, {pause:?}");
            assert_eq!(stats.flows_ended.with_connection, 1, "{mode:?}, {pause:?}");
        }
    }
}

#[test]
fn payloads_that_waited_for_missing_ones_leave_when_the_tunnel_ends() {
    let mut scenario = Scenario { mode: rmdt(), ..Scenario::new(1, 1) };
    scenario.limits.last_words = Duration::ZERO;
    let (mut testbed, sink, program) = streaming(&scenario, SinkHost::new(9));
    testbed.world.run_for(SECOND);
    let before = testbed.world.node(program).sent();
    testbed.world.block(testbed.client, testbed.proxies[0], 15 * MS);
    testbed.world.run_for(40 * MS);
    testbed.world.input(testbed.client, Input::Shutdown);
    let sent = testbed.world.node(program).sent();
    testbed.world.run_for(SECOND);
    let arrived = testbed.world.node(sink).arrivals().len() as u64;
    assert!(arrived < sent, "nothing was missing");
    assert!(arrived >= before + 2, "{arrived} of {sent} arrived, {before} of them before");
}

#[test]
fn what_came_before_a_proxy_shuts_down_is_relayed() {
    for mode in modes() {
        let mut scenario = Scenario::new(1, 1);
        scenario.mode = mode;
        scenario.limits.drain = Duration::ZERO;
        let (mut testbed, sink, program) = streaming(&scenario, SinkHost::new(9));
        testbed.world.run_for(SECOND);
        testbed.world.make_busy(testbed.proxies[0], BUSY);
        testbed.world.run_for(SECOND / 2);
        // The proxy ends in the same turn in which it gets these packets.
        let sent = testbed.world.node(program).sent();
        testbed.world.run_for(25 * MS);
        testbed.world.input(testbed.proxies[0], Input::Shutdown);
        testbed.world.run_for(3 * BUSY);
        let arrived = testbed.world.node(sink).arrivals().len() as u64;
        assert!(arrived >= sent, "{mode:?}: {arrived} of {sent}");
    }
}

#[test]
fn what_came_before_a_proxys_end_reaches_programs() {
    for mode in modes() {
        let mut scenario = Scenario::new(1, 1);
        scenario.mode = mode;
        scenario.limits.drain = 400 * MS;
        let (mut testbed, _, program) = streaming(&scenario, EchoHost::new(9));
        testbed.world.run_for(SECOND);
        testbed.world.make_busy(testbed.client, BUSY);
        testbed.world.input(testbed.proxies[0], Input::Shutdown);
        let is_lost = |world: &World| {
            let mut events = world.events(testbed.client).iter();
            events.any(|(_, event)| matches!(event, Event::HopLost { .. }))
        };
        assert!(testbed.world.run_until(2 * SECOND, is_lost), "{mode:?}");
        testbed.world.run_for(BUSY);
        let sent = testbed.world.node_mut(testbed.proxies[0]).stats().to_client_datagrams;
        let arrived = testbed.world.node(program).replies().len() as u64;
        assert!(sent > 100, "{mode:?}: {sent}");
        assert_eq!(arrived, sent, "{mode:?}");
    }
}

#[test]
fn the_origin_and_every_proxy_learn_at_once_that_a_client_has_gone() {
    for mode in modes() {
        for (proxies, loss) in [(1, 0), (2, 0), (3, 0), (2, 5)] {
            for pause in [Duration::ZERO, BUSY] {
                let file = ByteCount::new(48);
                let mut scenario = Scenario { file, mode, ..Scenario::new(1, proxies) };
                if mode != TunnelMode::Mdt {
                    scenario.access.loss = Ratio::of(loss, 100).into(); // which mdt does not repair
                }
                scenario.run(|testbed| {
                    if !pause.is_zero() {
                        for proxy in testbed.proxies.clone() {
                            testbed.world.make_busy(proxy, pause);
                        }
                    }
                    let outcome = testbed.finish();
                    assert_eq!(outcome.report().bytes, 48);
                    testbed.world.run_for(SECOND);
                    let open = testbed.world.node_mut(testbed.origin).stats().connections_open;
                    assert_eq!(open, 0, "{mode:?}, {proxies} proxies, {pause:?}: the origin");
                    for proxy in testbed.proxies.clone() {
                        let open = testbed.world.node_mut(proxy).stats().connections_open;
                        assert_eq!(open, 0, "{mode:?}, {proxies} proxies, {pause:?}: a proxy");
                    }
                    outcome
                });
            }
        }
    }
}
