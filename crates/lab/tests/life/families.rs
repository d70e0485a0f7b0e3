//! Targets of UDP flows with addresses of both families, of which some cannot be reached. No packet can be lost for
//! that: a resolver asks each question once, and from another port each time.

use std::{net::SocketAddr, time::Duration};

use tandem_lab::{
    NameAnswer,
    endpoints::{EchoHost, Shot},
};
use tandem_node::Event;

use crate::{
    MS, SECOND,
    programs::{TARGET_PORT, forward, numbers, program},
    scenario::{Scenario, Testbed},
};

/// Addresses without a listener, and addresses where an echo server listens. A target's name resolves to some of both.
const DEAF_6: &str = "2001:db8::7";
const DEAF_6_TOO: &str = "2001:db8::77";
const DEAF_4: &str = "10.0.0.7";
const ECHO_6: &str = "2001:db8::8";
const ECHO_4: &str = "10.0.0.8";

/// The parts of a name server's answer: milliseconds after the question, and the addresses.
type Parts = &'static [(u64, &'static [&'static str])];

/// Adds the targets, and makes the client forward packets to a name with these addresses.
fn serve(scenario: &Scenario, testbed: &mut Testbed, parts: Parts) {
    let world = &mut testbed.world;
    world.change_addresses(testbed.proxies[0], ["10.0.0.2", "2001:db8::2"]);
    world.add_host("deaf", [DEAF_6, DEAF_6_TOO, DEAF_4], EchoHost::new(TARGET_PORT + 1));
    for (name, ip) in [("echo by IPv6", ECHO_6), ("echo by IPv4", ECHO_4)] {
        let address = SocketAddr::new(ip.parse().unwrap(), TARGET_PORT);
        world.add_host(name, [ip], EchoHost::at(address));
    }
    let parts = parts.iter().map(|(after, addresses)| {
        let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        (Duration::from_millis(*after), addresses)
    });
    world.set_name("target.test", NameAnswer::Parts(parts.collect()));
    forward(scenario, testbed, &["target.test"]);
}

/// What the client was told of flows that failed.
fn failures(testbed: &Testbed) -> Vec<String> {
    let events = testbed.world.events(testbed.client).iter();
    let errors = events.filter_map(|(_, event)| match event {
        Event::FlowFailed { error, .. } => Some(error.to_string()),
        _ => None,
    });
    errors.collect()
}

/// Answers, and whether the target can be reached by one of them.
const ANSWERS: &[(Parts, bool)] = &[
    (&[(0, &[DEAF_6, ECHO_4])], true),
    (&[(0, &[DEAF_4, ECHO_6])], true),
    (&[(0, &[DEAF_6, DEAF_6_TOO, DEAF_4, ECHO_4])], true),
    (&[(0, &[DEAF_6]), (300, &[ECHO_4])], true),
    (&[(0, &[DEAF_6]), (300, &[DEAF_4]), (600, &[ECHO_4])], true),
    (&[(0, &[DEAF_6, DEAF_4])], false),
    (&[(0, &[DEAF_6]), (300, &[])], false),
    (&[(0, &[DEAF_6]), (300, &[DEAF_4])], false),
];

#[test]
fn a_flow_goes_on_with_the_next_address_if_the_target_is_refused_before_it_has_answered() {
    for &(parts, works) in ANSWERS {
        let scenario = Scenario::new(1, 1);
        scenario.run(|testbed| {
            serve(&scenario, testbed, parts);
            let resolver = program(testbed, "10.1.0.1", 0, Shot::every(SECOND, 1, 40));
            let game = program(testbed, "10.1.0.2", 0, Shot::every(100 * MS, 20, 40));
            testbed.world.run_for(4 * SECOND);
            let came = [resolver, game].map(|program| numbers(&testbed.world, program));
            let failures = failures(testbed);
            if works {
                assert_eq!(came[0], [0], "{parts:?}");
                // While addresses are awaited or tried, no more than a few packets are kept.
                let is_late = parts.len() > 1;
                let missing = 20 - came[1].len();
                assert!(missing == 0 || is_late && missing < 8, "{parts:?}: {came:?}");
                assert_eq!(came[1][..4], [0, 1, 2, 3], "{parts:?}");
                assert_eq!(failures, [""; 0], "{parts:?}");
            } else {
                assert_eq!(came, [[], []] as [[u64; 0]; 2], "{parts:?}");
                let is_told = |it: &String| it.contains("refused the connection");
                assert!(!failures.is_empty() && failures.iter().all(is_told), "{failures:?}");
            }
            let proxy = testbed.proxies[0];
            let stats = testbed.world.inspect(proxy).stats();
            assert!(stats.flows_open == if works { 2 } else { 0 }, "{parts:?}: {stats:?}");
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn a_flow_goes_on_by_ipv4_if_the_route_by_ipv6_vanishes_before_the_target_has_answered() {
    let scenario = Scenario::new(2, 1);
    scenario.run(|testbed| {
        serve(&scenario, testbed, &[(0, &[ECHO_6, ECHO_4])]);
        let proxy = testbed.proxies[0];
        let hole = testbed.world.add_host("hole", ["2001:db8::9"], EchoHost::new(TARGET_PORT));
        let both = ["2001:db8::9", ECHO_4].map(|ip| ip.parse().unwrap());
        let answer = NameAnswer::After(Duration::ZERO, Ok(both.into()));
        testbed.world.set_name("target.test", answer);
        testbed.world.block(proxy, hole, 1000 * SECOND);
        let game = program(testbed, "10.1.0.2", 0, Shot::every(100 * MS, 20, 40));
        testbed.world.run_for(SECOND);
        assert_eq!(numbers(&testbed.world, game), [] as [u64; 0]);
        testbed.world.change_addresses(proxy, ["10.0.0.2"]);
        testbed.world.run_for(SECOND);
        assert!(numbers(&testbed.world, game).len() >= 10, "{:?}", numbers(&testbed.world, game));
        assert_eq!(failures(testbed), [""; 0]);
        testbed.world.trace().digest()
    });
}

/// The other end may have a state that the program relies on.
#[test]
fn a_flow_ends_if_a_target_that_has_answered_is_refused() {
    let scenario = Scenario::new(3, 1);
    scenario.run(|testbed| {
        serve(&scenario, testbed, &[(0, &[ECHO_6, ECHO_4])]);
        let game = program(testbed, "10.1.0.2", 0, Shot::every(100 * MS, 20, 40));
        testbed.world.run_for(SECOND);
        let before = numbers(&testbed.world, game).len();
        assert!(before >= 8, "{before}");
        let proxy = testbed.proxies[0];
        testbed.world.change_addresses(proxy, ["10.0.0.2"]);
        testbed.world.run_for(200 * MS);
        assert_eq!(failures(testbed).len(), 1, "{:?}", failures(testbed));
        testbed.world.trace().digest()
    });
}
