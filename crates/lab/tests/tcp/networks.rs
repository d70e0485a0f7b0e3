//! Tests of clients that move from one network to another, or have none for a while: TCP connections go on.

use std::time::Duration;

use tandem_lab::{
    Handle, World,
    endpoints::{Behaviour, TcpTypist},
};
use tandem_node::{Event, Input, client::TunnelMode};

use crate::{
    bed::{MS, SECOND, listener, serve},
    scenario::{Scenario, Testbed},
};

/// The addresses of the client in its two networks.
const HOME: &str = "10.0.0.1";
const MOBILE: &str = "10.99.0.1";

/// A step of a move: the addresses of the client from now on, and how long it stays there.
type Step = (&'static [&'static str], Duration);

/// A way to move, and what happens then.
struct Move {
    name: &'static str,
    steps: &'static [Step],
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const MOVES: &[Move] = &[
    Move { name: "another address is preferred", steps: &[(&[MOBILE, HOME], ms(0))] },
    Move {
        name: "another address is preferred, and the first one goes soon",
        steps: &[(&[MOBILE, HOME], ms(200)), (&[MOBILE], ms(0))],
    },
    Move { name: "another address at once", steps: &[(&[MOBILE], ms(0))] },
    Move { name: "another after 0.3 s", steps: &[(&[], ms(300)), (&[MOBILE], ms(0))] },
    Move { name: "another after 3 s", steps: &[(&[], ms(3000)), (&[MOBILE], ms(0))] },
    Move { name: "the same after 1 s", steps: &[(&[], ms(1000)), (&[HOME], ms(0))] },
    Move { name: "the same after 10 s", steps: &[(&[], ms(10_000)), (&[HOME], ms(0))] },
    Move { name: "another after 10 s", steps: &[(&[], ms(10_000)), (&[MOBILE], ms(0))] },
    Move {
        name: "there and back",
        steps: &[(&[MOBILE], ms(700)), (&[], ms(100)), (&[HOME], ms(0))],
    },
    Move {
        name: "to and fro",
        steps: &[
            (&[MOBILE, HOME], ms(120)),
            (&[HOME, MOBILE], ms(120)),
            (&[MOBILE, HOME], ms(120)),
            (&[HOME, MOBILE], ms(120)),
        ],
    },
];

/// Performs a move. `is_told`: the operating system tells the client of changes.
fn perform(testbed: &mut Testbed, steps: &[Step], is_told: bool) {
    for (addresses, stay) in steps {
        testbed.world.change_addresses(testbed.client, addresses.iter().copied());
        if is_told {
            testbed.world.input(testbed.client, Input::NetworkChanged);
        }
        testbed.world.run_for(*stay);
    }
}

/// A program that types all the time.
fn typist(testbed: &mut Testbed, number: u8) -> Handle<TcpTypist> {
    let ip = format!("10.0.1.{number}");
    let typist = TcpTypist::new(listener(0), 100 * MS, 400, 10);
    testbed.world.add_host(&format!("typist {number}"), [&*ip], typist)
}

fn lost_tunnels(testbed: &Testbed) -> usize {
    let events = testbed.world.events(testbed.client).iter();
    events.filter(|(_, event)| matches!(event, Event::HopLost { .. })).count()
}

/// A typist types through a tunnel while the client moves, and goes on within a second and a round trip.
fn check(scenario: &Scenario, way: &Move, is_told: bool) {
    let what =
        format!("{}, told: {is_told}, {:?}, {} proxies", way.name, scenario.mode, scenario.proxies);
    scenario.run(|testbed| {
        serve(scenario, testbed, &[Behaviour::Echo.into()]);
        let typist = typist(testbed, 1);
        let came = |world: &World| world.node(typist).round_trips().len();
        testbed.world.run_for(2 * SECOND);
        assert!(came(&testbed.world) > 10, "{what}");
        perform(testbed, way.steps, is_told);
        let (before, at) = (came(&testbed.world), testbed.world.elapsed());
        // What was typed last comes back, so that the connection has no gap.
        let is_well = |world: &World| came(world) >= before + 5;
        let goes_on = testbed.world.run_until(SECOND + 500 * MS, is_well);
        let after = testbed.world.elapsed().saturating_sub(at);
        assert!(
            goes_on,
            "{what}: after {after:?} {} of 5 have come",
            came(&testbed.world) - before
        );
        testbed.world.run_for(15 * SECOND);
        assert_eq!(lost_tunnels(testbed), 0, "{what}");
        let report = testbed.world.node(typist).report().unwrap();
        assert!(report.is_intact && report.result.is_none(), "{what}: {report:?}");
        assert!(came(&testbed.world) >= before + 140, "{what}: {}", came(&testbed.world) - before);
        testbed.world.trace().digest()
    });
}

#[test]
fn tcp_connections_go_on_in_another_network() {
    for way in MOVES {
        check(&Scenario::new(1, 1), way, true);
    }
}

#[test]
fn tcp_connections_go_on_if_the_operating_system_tells_nothing() {
    // A former address that still works is as good as the one that is preferred.
    for way in &MOVES[1..] {
        check(&Scenario::new(2, 1), way, false);
    }
}

/// What still arrives at the former address says nothing of where packets leave.
#[test]
fn nothing_leaves_from_the_former_address_although_packets_arrive_there() {
    let scenario = Scenario::new(6, 1);
    scenario.run(|testbed| {
        serve(&scenario, testbed, &[Behaviour::Echo.into()]);
        let typist = TcpTypist::new(listener(0), 5 * MS, 1000, 10);
        testbed.world.add_host("typist", ["10.0.1.1"], typist);
        testbed.world.run_for(2 * SECOND);
        // The last packets for the former address are on their way for less than 200 ms.
        perform(testbed, &[(&[MOBILE, HOME], 200 * MS), (&[MOBILE], SECOND)], true);
        assert_eq!(testbed.world.network_stats().unroutable, 0);
        testbed.world.trace().digest()
    });
}

#[test]
fn a_client_without_a_network_ends() {
    let scenario = Scenario::new(4, 1);
    scenario.run(|testbed| {
        serve(&scenario, testbed, &[Behaviour::Echo.into()]);
        typist(testbed, 1);
        testbed.world.run_for(2 * SECOND);
        perform(testbed, &[(&[], ms(20))], true);
        testbed.world.input(testbed.client, Input::Shutdown);
        let client = testbed.client;
        let has_ended = |world: &World| {
            let mut events = world.events(client).iter();
            events.any(|(_, event)| matches!(event, Event::Closed(_)))
        };
        assert!(testbed.world.run_until(5 * SECOND, has_ended), "the client ends");
        testbed.world.trace().digest()
    });
}

#[test]
fn tcp_connections_go_on_in_each_mode_and_through_chains() {
    let uack = TunnelMode::Uack { both_ways: true };
    for mode in [TunnelMode::Mst, TunnelMode::Forward, uack] {
        for proxies in [1, 2] {
            for way in [&MOVES[1], &MOVES[3], &MOVES[5]] {
                check(&Scenario { mode, ..Scenario::new(3, proxies) }, way, true);
            }
        }
    }
}

#[test]
fn a_path_that_drops_marked_packets_carries_a_tunnel() {
    for (to_proxy, to_client) in [(true, false), (false, true), (true, true)] {
        let what = format!("marks vanish to the proxy: {to_proxy}, to the client: {to_client}");
        let scenario = Scenario::new(4, 1);
        scenario.run(|testbed| {
            let (client, proxy) = (testbed.client, testbed.proxies[0]);
            if to_proxy {
                testbed.world.drop_marked(client, proxy);
            }
            if to_client {
                testbed.world.drop_marked(proxy, client);
            }
            let begin = testbed.world.elapsed();
            serve(&scenario, testbed, &[Behaviour::Echo.into()]);
            let is_up = testbed.world.elapsed().saturating_sub(begin);
            assert!(is_up < SECOND + 500 * MS, "{what}: up after {is_up:?}");
            let typist = typist(testbed, 1);
            testbed.world.run_for(3 * SECOND);
            let came = testbed.world.node(typist).round_trips().len();
            assert!(came > 20, "{what}: {came} round trips");
            assert_eq!(lost_tunnels(testbed), 0, "{what}");
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn tcp_connections_go_on_in_a_network_that_drops_marked_packets() {
    let scenario = Scenario::new(5, 1);
    scenario.run(|testbed| {
        serve(&scenario, testbed, &[Behaviour::Echo.into()]);
        let typist = typist(testbed, 1);
        testbed.world.run_for(2 * SECOND);
        let (client, proxy) = (testbed.client, testbed.proxies[0]);
        testbed.world.drop_marked(client, proxy);
        testbed.world.drop_marked(proxy, client);
        perform(testbed, &[(&[MOBILE], ms(0))], true);
        let before = testbed.world.node(typist).round_trips().len();
        let is_well = |world: &World| world.node(typist).round_trips().len() >= before + 5;
        assert!(testbed.world.run_until(3 * SECOND, is_well), "it goes on within 3 seconds");
        testbed.world.run_for(10 * SECOND);
        assert_eq!(lost_tunnels(testbed), 0);
        testbed.world.trace().digest()
    });
}
