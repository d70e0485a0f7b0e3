//! Clients that choose among several proxies, and move on to another.

use std::time::Duration;

use tandem_lab::{Handle, LinkConfig, NameAnswer, World};
use tandem_node::{
    Client, ClientConfig, Event, Input, Proxy, client::HopConfig, error::ClientError,
    limits::Limits, node::ServiceEndpoint,
};
use tandem_units::ByteCount;
use tandem_wire::Template;

use crate::{
    MS, SECOND, cut,
    scenario::{Outcome, Scenario, Testbed, certificate},
};

const SEEDS: std::ops::RangeInclusive<u64> = 1..=20;

/// A client, an origin, and three proxies of which the client uses one. One-way delays to the proxies are
/// 20 ms plus those given.
fn bed(scenario: &Scenario, extra: [Duration; 3]) -> Testbed {
    let mut testbed = scenario.testbed();
    let (client, origin) = (testbed.client, testbed.origin);
    for number in 2..=3 {
        let ip = format!("10.0.0.{}", number + 1);
        let proxy = scenario.proxy(&certificate(), number);
        let proxy = testbed.world.add_host(&format!("proxy{number}"), [&*ip], proxy);
        testbed.proxies.push(proxy);
        let answer = Ok(vec![ip.parse().unwrap()]);
        let answer = NameAnswer::After(Duration::ZERO, answer);
        testbed.world.set_name(&format!("proxy{number}.test"), answer);
    }
    for (proxy, delay) in testbed.proxies.iter().zip(extra) {
        let far = LinkConfig { delay, ..LinkConfig::default() };
        testbed.world.route(client, *proxy, vec![scenario.access.clone(), far.clone()]);
        testbed.world.route(*proxy, client, vec![far, scenario.access.clone()]);
        let beyond = LinkConfig { delay: 50 * MS, ..LinkConfig::default() };
        testbed.world.connect(*proxy, origin, beyond);
    }
    testbed
}

/// A scenario in which only the start takes time.
fn small(seed: u64) -> Scenario {
    Scenario { file: ByteCount::new(100_000), ..Scenario::new(seed, 1) }
}

/// Replaces the client by one with these hops. Each hop is a list of proxies by their numbers.
fn choose_from(scenario: &Scenario, testbed: &mut Testbed, hops: &[&[usize]]) {
    let template = |number: &usize| Template::default_for(&format!("proxy{number}.test")).unwrap();
    let hop = |proxies: &&[usize]| HopConfig {
        others: proxies[1..].iter().map(template).collect(),
        mode: scenario.mode,
        ..HopConfig::new(template(&proxies[0]), certificate().client())
    };
    let config = ClientConfig {
        hops: hops.iter().map(hop).collect(),
        task: Scenario::fetch(),
        limits: scenario.limits.clone(),
        seed: Some(scenario.seed.0),
    };
    testbed.world.replace(testbed.client, Client::new(config).unwrap());
}

/// The proxies of the tunnels that were established, with the time of each.
fn used(world: &World, client: Handle<Client>) -> Vec<(Duration, String)> {
    let up = |(at, event): &(Duration, Event)| match event {
        Event::HopUp { authority, .. } => Some((*at, authority.clone())),
        _ => None,
    };
    world.events(client).iter().filter_map(up).collect()
}

fn names(testbed: &Testbed) -> Vec<String> {
    used(&testbed.world, testbed.client).into_iter().map(|(_, name)| name).collect()
}

fn kill_silently(testbed: &mut Testbed, proxy: Handle<Proxy>) {
    testbed.world.kill(proxy);
    let client = testbed.client;
    testbed.world.block(client, proxy, 1000 * SECOND);
    testbed.world.block(proxy, client, 1000 * SECOND);
}

/// Downloads through one of three proxies of which the first is the nearest. After a quarter of the file, acts
/// on it. Returns the outcome, the names of the proxies that were used, and the longest time without a
/// tunnel.
fn moved(seed: u64, act: impl Fn(&mut Testbed)) -> (Outcome, Vec<String>, Duration) {
    let scenario = Scenario::new(seed, 1);
    scenario.run(|testbed| {
        *testbed = bed(&scenario, [Duration::ZERO, 10 * MS, 30 * MS]);
        choose_from(&scenario, testbed, &[&[3, 1, 2]]);
        testbed.run_until_fetched(ByteCount::new(scenario.file.get() / 4));
        assert_eq!(names(testbed), ["proxy1.test"], "seed {seed}");
        let before = testbed.world.elapsed();
        act(testbed);
        let outcome = testbed.finish();
        let up = used(&testbed.world, testbed.client);
        let last = up.last().map(|(at, _)| *at).unwrap();
        (outcome, names(testbed), last.saturating_sub(before))
    })
}

#[test]
fn the_nearest_proxy_of_a_list_is_used_in_any_order() {
    let orders: [&[usize]; 6] =
        [&[1, 2, 3], &[1, 3, 2], &[2, 1, 3], &[2, 3, 1], &[3, 1, 2], &[3, 2, 1]];
    for seed in SEEDS {
        let scenario = small(seed);
        for order in orders {
            let outcome = scenario.run(|testbed| {
                *testbed = bed(&scenario, [100 * MS, Duration::ZERO, 40 * MS]);
                choose_from(&scenario, testbed, &[order]);
                let outcome = testbed.finish();
                assert_eq!(names(testbed), ["proxy2.test"], "seed {seed}, {order:?}");
                outcome
            });
            assert_eq!(outcome.lost, []);
            // At most two intervals of 10 ms passed before the nearest was tried.
            let setup = outcome.report().setup;
            assert!(setup < 40 * MS * 2 + 30 * MS, "seed {seed}, {order:?}: {setup:?}");
        }
    }
}

#[test]
fn proxies_that_are_dead_or_refuse_delay_a_start_by_less_than_a_second() {
    for seed in SEEDS {
        for is_silent in [true, false] {
            let scenario = small(seed);
            let outcome = scenario.run(|testbed| {
                *testbed = bed(&scenario, [Duration::ZERO, Duration::ZERO, 100 * MS]);
                choose_from(&scenario, testbed, &[&[1, 2, 3]]);
                for proxy in [testbed.proxies[0], testbed.proxies[1]] {
                    testbed.world.kill(proxy);
                    if is_silent {
                        kill_silently(testbed, proxy);
                    }
                }
                let outcome = testbed.finish();
                assert_eq!(names(testbed), ["proxy3.test"], "seed {seed}");
                outcome
            });
            assert_eq!(outcome.lost, []);
            let setup = outcome.report().setup;
            assert!(setup < SECOND, "seed {seed}: {setup:?}");
        }
    }
}

#[test]
fn many_dead_proxies_are_given_up_three_at_a_time() {
    let scenario = Scenario::new(1, 1);
    let outcome = scenario.run(|testbed| {
        *testbed = bed(&scenario, [Duration::ZERO; 3]);
        let dead: Vec<_> = (0..31).map(|last| format!("10.9.0.{last}:443")).collect();
        let alive = ["10.0.0.2:443".to_owned()];
        let endpoint = |address: &String| ServiceEndpoint {
            priority: 1,
            addresses: vec![address.parse().unwrap()],
            ech: None,
        };
        let far = ServiceEndpoint { priority: 2, ..endpoint(&alive[0]) };
        let endpoints = dead.iter().take(9).map(endpoint).chain([far]);
        testbed.world.set_service("proxy1.test", endpoints.collect());
        choose_from(&scenario, testbed, &[&[1]]);
        testbed.finish()
    });
    assert_eq!(outcome.lost, []);
    let setup = outcome.report().setup;
    assert!((6 * SECOND..8 * SECOND).contains(&setup), "{setup:?}");
}

#[test]
fn an_address_of_the_proxy_that_comes_late_is_tried() {
    let scenario = small(1);
    // The client has no IPv6, or the first address is that of a proxy that is dead.
    for (first, late, expected) in [
        ("2001:db8::1", 50 * MS, 50 * MS),
        ("2001:db8::1", 9 * SECOND, 9 * SECOND),
        ("10.0.0.3", 20 * MS, 250 * MS),
        ("10.0.0.3", 3 * SECOND, 3 * SECOND),
    ] {
        let outcome = scenario.run(|testbed| {
            *testbed = bed(&scenario, [Duration::ZERO; 3]);
            testbed.world.block(testbed.client, testbed.proxies[1], 1000 * SECOND);
            let address = |text: &str| vec![text.parse().unwrap()];
            let parts = vec![(Duration::ZERO, address(first)), (late, address("10.0.0.2"))];
            testbed.world.set_name("proxy1.test", NameAnswer::Parts(parts));
            choose_from(&scenario, testbed, &[&[1]]);
            testbed.finish()
        });
        assert_eq!(outcome.lost, [], "{first}, {late:?}");
        let setup = outcome.report().setup;
        assert!((expected..expected + SECOND).contains(&setup), "{first}, {late:?}: {setup:?}");
    }
}

#[test]
fn without_any_proxy_that_works_the_client_ends_with_a_cause() {
    let scenario = Scenario::new(1, 1);
    let outcome = scenario.run(|testbed| {
        *testbed = bed(&scenario, [Duration::ZERO; 3]);
        choose_from(&scenario, testbed, &[&[1, 2, 3]]);
        testbed.world.set_name("proxy2.test", NameAnswer::Never);
        for proxy in testbed.proxies.clone() {
            testbed.world.kill(proxy);
        }
        testbed.finish()
    });
    let timeout = Limits::default().setup_timeout;
    let peer = "proxy1.test".to_owned();
    assert_eq!(outcome.error(), &ClientError::NoAnswer { peer, timeout });
}

#[test]
fn a_download_leaves_a_proxy_that_drains_before_it_ends() {
    for seed in SEEDS {
        let (outcome, names, took) = moved(seed, |testbed| {
            testbed.world.input(testbed.proxies[0], Input::Shutdown);
        });
        assert_eq!(outcome.report().bytes, 2_000_000);
        assert_eq!(names, ["proxy1.test", "proxy2.test"], "seed {seed}");
        assert_eq!(outcome.lost.len(), 1);
        assert!(outcome.lost[0].to_string().contains("is shutting down"), "{:?}", outcome.lost);
        // The handshake with the other takes place beside the tunnel, which is in use for that long.
        assert!(took < SECOND, "seed {seed}: {took:?}");
    }
}

#[test]
fn a_download_leaves_a_proxy_that_dies_before_its_connection_times_out() {
    for seed in SEEDS {
        let (outcome, names, took) = moved(seed, |testbed| {
            let proxy = testbed.proxies[0];
            kill_silently(testbed, proxy);
        });
        assert_eq!(outcome.report().bytes, 2_000_000);
        assert_eq!(names, ["proxy1.test", "proxy2.test"], "seed {seed}");
        assert!(outcome.lost[0].to_string().contains("is silent"), "{:?}", outcome.lost);
        let idle = Limits::default().tunnel_idle;
        assert!(took < idle / 2 + SECOND, "seed {seed}: {took:?}");
    }
}

#[test]
fn a_download_outlives_the_death_of_one_proxy_after_the_other() {
    for seed in SEEDS {
        let (outcome, names, _) = moved(seed, |testbed| {
            for number in 0..2 {
                let proxy = testbed.proxies[number];
                testbed.world.kill(proxy); // its port is closed, which ICMP tells
                testbed.world.run_for(3 * SECOND);
            }
        });
        assert_eq!(outcome.report().bytes, 2_000_000);
        assert_eq!(names, ["proxy1.test", "proxy2.test", "proxy3.test"], "seed {seed}");
    }
}

#[test]
fn a_client_whose_network_pauses_keeps_its_proxy_or_loses_no_time() {
    for seed in SEEDS {
        let (outcome, _, took) = moved(seed, |testbed| {
            for proxy in testbed.proxies.clone() {
                let client = testbed.client;
                testbed.world.block(client, proxy, 7 * SECOND);
                testbed.world.block(proxy, client, 7 * SECOND);
            }
        });
        assert_eq!(outcome.report().bytes, 2_000_000);
        assert!(took < 12 * SECOND, "seed {seed}: {took:?}");
    }
}

#[test]
fn a_name_that_is_found_late_is_known_when_the_first_proxy_falls_silent() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        *testbed = bed(&scenario, [Duration::ZERO; 3]);
        let late = NameAnswer::After(300 * MS, Ok(vec!["10.0.0.3".parse().unwrap()]));
        testbed.world.set_name("proxy2.test", late);
        choose_from(&scenario, testbed, &[&[1, 2]]);
        testbed.run_until_fetched(ByteCount::new(scenario.file.get() / 4));
        let proxy = testbed.proxies[0];
        kill_silently(testbed, proxy);
        let outcome = testbed.finish();
        assert_eq!(names(testbed), ["proxy1.test", "proxy2.test"]);
        assert!(outcome.lost[0].to_string().contains("is silent"), "{:?}", outcome.lost);
        outcome
    });
}

#[test]
fn a_single_proxy_is_not_left() {
    let scenario = Scenario::new(1, 1);
    let outcome = scenario.run(|testbed| {
        testbed.run_until_fetched(ByteCount::new(scenario.file.get() / 4));
        cut(testbed, 8 * SECOND);
        testbed.finish()
    });
    assert_eq!(outcome.lost, []);
}

#[test]
fn records_say_which_proxies_come_first() {
    for seed in SEEDS {
        for (is_first_alive, expected) in [(true, "10.0.0.4:443"), (false, "10.0.0.3:443")] {
            let scenario = small(seed);
            scenario.run(|testbed| {
                // The server of the first priority is farther than that of the second.
                *testbed = bed(&scenario, [Duration::ZERO, Duration::ZERO, 60 * MS]);
                let endpoint = |priority, address: &str| ServiceEndpoint {
                    priority,
                    addresses: vec![address.parse().unwrap()],
                    ech: None,
                };
                let endpoints = vec![endpoint(7, "10.0.0.3:443"), endpoint(1, "10.0.0.4:443")];
                testbed.world.set_service("proxy1.test", endpoints);
                choose_from(&scenario, testbed, &[&[1]]);
                if !is_first_alive {
                    let proxy = testbed.proxies[2];
                    kill_silently(testbed, proxy);
                }
                let outcome = testbed.finish();
                // The certificate is that of the name that the user gave.
                assert_eq!(names(testbed), ["proxy1.test"], "seed {seed}");
                let number = if expected == "10.0.0.4:443" { 2 } else { 1 };
                assert!(
                    testbed.world.inspect(testbed.proxies[number]).stats().to_target_datagrams > 0
                );
                let setup = outcome.report().setup;
                assert!(setup < SECOND, "seed {seed}: {setup:?}");
                outcome
            });
        }
    }
}

#[test]
fn the_certificate_is_checked_for_the_name_and_not_for_its_target() {
    let scenario = Scenario::new(1, 1);
    let outcome = scenario.run(|testbed| {
        // The target has a certificate for its own name only.
        let addresses = vec!["10.0.0.2:443".parse().unwrap()];
        let endpoints = vec![ServiceEndpoint { priority: 1, addresses, ech: None }];
        testbed.world.set_service("proxy9.test", endpoints);
        choose_from(&scenario, testbed, &[&[9]]);
        testbed.finish()
    });
    assert!(matches!(outcome.error(), ClientError::Tls { .. }), "{:?}", outcome.error());
}

#[test]
fn a_proxy_that_refuses_tunnels_for_now_is_left() {
    let scenario = Scenario::new(1, 1);
    let outcome = scenario.run(|testbed| {
        *testbed = bed(&scenario, [Duration::ZERO, 10 * MS, 30 * MS]);
        let limits = Limits { queries: 0, ..scenario.limits.clone() };
        let busy = Scenario { limits, ..scenario.clone() };
        testbed.world.replace(testbed.proxies[0], busy.proxy(&certificate(), 1));
        choose_from(&scenario, testbed, &[&[1, 2, 3]]);
        let outcome = testbed.finish();
        assert_eq!(names(testbed), ["proxy2.test"]);
        outcome
    });
    let [ClientError::Refused { status: 503, .. }] = &*outcome.lost else {
        panic!("{:?}", outcome.lost)
    };
}

#[test]
fn the_proxies_of_a_later_hop_are_tried_in_order() {
    for seed in SEEDS {
        let scenario = small(seed);
        let outcome = scenario.run(|testbed| {
            *testbed = bed(&scenario, [Duration::ZERO; 3]);
            choose_from(&scenario, testbed, &[&[1], &[2, 3]]);
            testbed.world.kill(testbed.proxies[1]);
            let outcome = testbed.finish();
            assert_eq!(names(testbed).last().unwrap(), "proxy3.test", "seed {seed}");
            outcome
        });
        assert_eq!(outcome.report().bytes, 100_000);
    }
}
