//! Clients that start before their servers, and requests that are refused.

use std::time::Duration;

use tandem_lab::{Handle, NameAnswer, World, endpoints::Shot};
use tandem_node::{
    Client, Event,
    client::{ForwardConfig, Task},
    error::ClientError,
    limits::Limits,
};
use tandem_units::ByteCount;

use crate::{
    MS, SECOND,
    programs::{Streamer, TARGET_PORT, forward, listener, program},
    scenario::{Scenario, Testbed, certificate},
};

/// A scenario whose client tries again for this time.
fn retrying(proxies: usize, retry: Duration) -> Scenario {
    let limits = Limits { retry: Some(retry), ..Limits::default() };
    Scenario { limits, file: ByteCount::new(100_000), ..Scenario::new(1, proxies) }
}

/// Makes the client carry packets to this target, after it has checked the target.
fn check(scenario: &Scenario, testbed: &mut Testbed, host: &str) {
    let config = ForwardConfig::new(listener(0), host, TARGET_PORT);
    let mut client = scenario.client(Task::Forward(vec![config]));
    client.check_targets();
    testbed.world.replace(testbed.client, client);
}

fn events(testbed: &Testbed) -> impl Iterator<Item = &Event> {
    testbed.world.events(testbed.client).iter().map(|(_, event)| event)
}

/// The error with which the client ended.
fn end(testbed: &Testbed) -> Option<&ClientError> {
    events(testbed).find_map(|event| match event {
        Event::Closed(Err(error)) => Some(error),
        _ => None,
    })
}

fn is_up(client: Handle<Client>) -> impl Fn(&World) -> bool {
    move |world| world.events(client).iter().any(|(_, event)| matches!(event, Event::HopUp { .. }))
}

#[test]
fn a_download_waits_for_servers_that_start_later() {
    for proxies in [0, 1, 2] {
        let scenario = retrying(proxies, 20 * SECOND);
        let (outcome, took) = scenario.run(|testbed| {
            // Each server that is missing is found missing in its turn.
            testbed.world.kill(testbed.origin);
            for proxy in &testbed.proxies {
                testbed.world.kill(*proxy);
            }
            for number in 1..=proxies {
                testbed.world.run_for(3 * SECOND);
                let proxy = scenario.proxy(&certificate(), number);
                testbed.world.replace(testbed.proxies[number - 1], proxy);
            }
            testbed.world.run_for(3 * SECOND);
            testbed.world.replace(testbed.origin, scenario.origin(&certificate()));
            (testbed.finish(), testbed.world.elapsed())
        });
        assert_eq!(outcome.report().bytes, scenario.file.get(), "{proxies} proxies");
        assert!(outcome.lost.len() > proxies, "{proxies} proxies: {:?}", outcome.lost);
        assert!(took < 20 * SECOND, "{proxies} proxies: {took:?}");
    }
}

#[test]
fn a_download_waits_for_servers_that_do_not_answer() {
    for proxies in [0, 1] {
        let mut scenario = retrying(proxies, 20 * SECOND);
        scenario.limits.setup_timeout = 2 * SECOND;
        let outcome = scenario.run(|testbed| {
            let first = testbed.proxies.first().map_or(testbed.origin.id(), |proxy| proxy.id());
            testbed.world.block(testbed.client, first, 7 * SECOND);
            testbed.finish()
        });
        assert_eq!(outcome.report().bytes, scenario.file.get(), "{proxies} proxies");
        let is_silence = |error: &ClientError| matches!(error, ClientError::NoAnswer { .. });
        assert!(!outcome.lost.is_empty() && outcome.lost.iter().all(is_silence), "{outcome:?}");
    }
}

#[test]
fn a_client_gives_up_when_its_time_is_over() {
    for (proxies, retry) in
        [(0, 3 * SECOND), (1, 3 * SECOND), (0, Duration::ZERO), (1, Duration::ZERO)]
    {
        let scenario = retrying(proxies, retry);
        let (outcome, took) = scenario.run(|testbed| {
            for proxy in &testbed.proxies {
                testbed.world.kill(*proxy);
            }
            testbed.world.kill(testbed.origin);
            (testbed.finish(), testbed.world.elapsed())
        });
        assert!(matches!(outcome.error(), ClientError::Refusing { .. }), "{outcome:?}");
        assert_eq!(outcome.lost.is_empty(), retry.is_zero(), "{outcome:?}");
        assert!(outcome.lost.len() < 10, "{outcome:?}");
        assert!((retry..retry + SECOND).contains(&took), "{took:?}");
    }
}

#[test]
fn an_origin_that_is_not_there_is_not_asked_without_a_pause() {
    let scenario = retrying(1, 10 * SECOND);
    let outcome = scenario.run(|testbed| {
        testbed.world.kill(testbed.origin);
        testbed.finish()
    });
    assert!(matches!(outcome.error(), ClientError::FlowClosed { .. }), "{outcome:?}");
    assert!((2..10).contains(&outcome.lost.len()), "{outcome:?}");
}

#[test]
fn a_target_that_is_refused_ends_a_client_before_it_listens() {
    for (target, status, error) in
        [("192.168.0.1", 403, "destination_ip_prohibited"), ("unknown.test", 502, "dns_error")]
    {
        let scenario = retrying(1, Duration::MAX);
        scenario.run(|testbed| {
            check(&scenario, testbed, target);
            testbed.world.run_for(2 * SECOND);
            let Some(ClientError::Refused { status: seen, proxy_status, .. }) = end(testbed) else {
                panic!("{target}: {:?}", testbed.world.events(testbed.client))
            };
            assert_eq!(*seen, status);
            assert!(proxy_status.as_ref().is_some_and(|text| text.contains(error)), "{target}");
            assert!(!is_up(testbed.client)(&testbed.world), "{target}");
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn programs_use_the_flow_with_which_a_client_has_checked_its_target() {
    for proxies in [1, 2] {
        let scenario = retrying(proxies, Duration::MAX);
        scenario.run(|testbed| {
            testbed.world.add_host("echo", ["10.0.0.8"], tandem_lab::endpoints::EchoHost::new(7));
            check(&scenario, testbed, "10.0.0.8");
            let client = testbed.client;
            let is_up = move |world: &World| {
                let events = world.events(client).iter();
                events.filter(|(_, event)| matches!(event, Event::HopUp { .. })).count() == proxies
            };
            assert!(testbed.world.run_until(2 * SECOND, is_up));
            let last = testbed.proxies[proxies - 1];
            assert_eq!(testbed.world.node_mut(last).stats().flows, 1);
            let shots = Shot::every(20 * MS, 50, 200);
            let one = program(testbed, "10.0.0.70", 0, shots.clone());
            let other = program(testbed, "10.0.0.71", 0, shots);
            testbed.world.run_for(3 * SECOND);
            for program in [one, other] {
                assert_eq!(testbed.world.node(program).replies().len(), 50);
            }
            assert_eq!(testbed.world.node_mut(last).stats().flows, 2);
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn a_program_that_sends_before_the_tunnel_is_up_gets_the_flow_of_the_check() {
    let scenario = retrying(1, Duration::MAX);
    scenario.run(|testbed| {
        testbed.world.add_host("echo", ["10.0.0.8"], tandem_lab::endpoints::EchoHost::new(7));
        check(&scenario, testbed, "10.0.0.8");
        testbed.world.kill(testbed.proxies[0]);
        testbed.world.run_for(MS);
        let early = program(testbed, "10.0.0.70", 0, Shot::every(MS, 10, 200));
        testbed.world.run_for(SECOND);
        testbed.world.replace(testbed.proxies[0], scenario.proxy(&certificate(), 1));
        testbed.world.run_for(10 * SECOND);
        assert_eq!(testbed.world.node(early).replies().len(), 10, "all have waited");
        assert_eq!(testbed.world.node_mut(testbed.proxies[0]).stats().flows, 1);
        testbed.world.trace().digest()
    });
}

#[test]
fn a_client_waits_until_its_target_can_be_resolved() {
    let scenario = retrying(1, Duration::MAX);
    scenario.run(|testbed| {
        testbed.world.set_name("echo.test", NameAnswer::Never);
        check(&scenario, testbed, "echo.test");
        testbed.world.run_for(12 * SECOND);
        assert!(!is_up(testbed.client)(&testbed.world));
        let found = NameAnswer::After(MS, Ok(vec!["10.0.0.8".parse().unwrap()]));
        testbed.world.set_name("echo.test", found);
        let is_up = is_up(testbed.client);
        assert!(testbed.world.run_until(15 * SECOND, is_up));
        testbed.world.trace().digest()
    });
}

#[test]
fn a_client_that_is_refused_at_its_start_does_not_take_the_proxy_for_silent() {
    let limits = Limits { sockets: 0, setup_timeout: 2 * SECOND, ..Limits::default() };
    let scenario = retrying(1, Duration::MAX);
    let scenario = Scenario { limits: Limits { retry: Some(Duration::MAX), ..limits }, ..scenario };
    scenario.run(|testbed| {
        check(&scenario, testbed, "10.0.0.8");
        testbed.world.run_for(20 * SECOND);
        let lost: Vec<_> = events(testbed)
            .filter_map(|event| match event {
                Event::HopLost { error, .. } => Some(error.clone()),
                _ => None,
            })
            .collect();
        let is_refusal =
            |error: &ClientError| matches!(error, ClientError::Refused { status: 503, .. });
        assert!(lost.len() > 3 && lost.iter().all(is_refusal), "{lost:?}");
        assert!(!is_up(testbed.client)(&testbed.world));
        assert_eq!(testbed.world.node_mut(testbed.proxies[0]).stats().connections, 1);
        testbed.world.trace().digest()
    });
}

#[test]
fn refusals_are_told_once_and_not_provoked_by_every_packet() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        forward(&scenario, testbed, &["192.168.0.1"]);
        program(testbed, "10.0.0.70", 0, Shot::every(20 * MS, 500, 200));
        testbed.world.run_for(12 * SECOND);
        let told: Vec<_> = events(testbed)
            .filter_map(|event| match event {
                Event::FlowFailed { listen, error, .. } => Some((*listen, error.clone())),
                _ => None,
            })
            .collect();
        let [(listen, ClientError::Refused { status: 403, .. })] = &*told else {
            panic!("{told:?}")
        };
        assert_eq!(*listen, listener(0));
        let requests = testbed.world.node_mut(testbed.proxies[0]).stats().requests;
        assert!((3..12).contains(&requests), "{requests} requests");
        assert_eq!(end(testbed), None);
        testbed.world.trace().digest()
    });
}

#[test]
fn packets_of_earlier_flows_do_not_end_the_wait_after_a_refusal() {
    let limits = Limits { sockets: 2, ..Limits::default() };
    let scenario = Scenario { limits, ..Scenario::new(1, 1) };
    scenario.run(|testbed| {
        // The first program's flow receives a packet of its target every 20 ms.
        testbed.world.add_host("target", ["10.0.0.8"], Streamer::new(20 * MS, 100));
        forward(&scenario, testbed, &["10.0.0.8"]);
        let first = program(testbed, "10.0.0.70", 0, Shot::every(SECOND, 1, 100));
        testbed.world.run_for(SECOND);
        program(testbed, "10.0.0.71", 0, Shot::every(20 * MS, 500, 100));
        testbed.world.run_for(12 * SECOND);
        assert!(testbed.world.node(first).replies().len() > 500);
        let told = events(testbed).filter(|event| matches!(event, Event::FlowFailed { .. }));
        assert_eq!(told.count(), 1);
        let requests = testbed.world.node_mut(testbed.proxies[0]).stats().requests;
        assert!((4..13).contains(&requests), "{requests} requests");
        testbed.world.trace().digest()
    });
}
