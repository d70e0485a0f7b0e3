//! Tests of whole tunnels in virtual time: client, proxies, origin and an impaired access link.
//! Every test runs twice, and both runs must be the same packet by packet.

mod ab_test;
mod auto;
mod chains;
mod ends;
mod feedback;
mod jitter;
mod repair;
mod round_trips;
mod scenario;
mod shared_address;
mod sizes;
mod transport;
mod upload;

use std::time::Duration;

use scenario::{Outcome, PrintedSeed, Scenario, Testbed, certificate};
use tandem_congestion::ControllerName;
use tandem_lab::{
    LinkConfig, NameAnswer, QueueConfig, Reorder,
    endpoints::{EchoHost, SenderHost, Shot},
};
use tandem_node::{
    Input,
    client::{ForwardConfig, Order, Repair, TunnelMode},
    error::ClientError,
    limits::Limits,
    node::ResolveError,
    quic::{
        DatagramTransport::{Quic, Sealed},
        ResetSecret,
    },
};
use tandem_units::{ByteCount, Rate, Ratio};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A tunnel that retransmits lost datagrams.
fn rmdt() -> TunnelMode {
    TunnelMode::Rmdt(Repair::default())
}

/// The same with reports to the origin.
fn tecc() -> TunnelMode {
    TunnelMode::Tecc(Repair { order: Order::Window, ..Repair::default() })
}

/// Flow completion time in percent of the ideal, rounded down.
fn percent_of_ideal(scenario: &Scenario) -> u128 {
    let completion = scenario.download().report().completion;
    completion.as_nanos() * 100 / scenario.ideal().as_nanos()
}

fn lossy(seed: u64, proxies: usize) -> Scenario {
    let mut scenario = Scenario::new(seed, proxies);
    scenario.access.loss = Ratio::of(5, 100).into();
    scenario
}

/// Runs until a quarter of the file has arrived, performs an action, and runs to the end. Returns
/// the outcome and the time from the action to the end.
fn disturb(scenario: &Scenario, act: impl Fn(&mut Testbed)) -> (Outcome, Duration) {
    let quarter = ByteCount::new(scenario.file.get() / 4);
    scenario.run(|testbed| {
        testbed.run_until_fetched(quarter);
        let before = testbed.world.elapsed();
        act(testbed);
        (testbed.finish(), testbed.world.elapsed().saturating_sub(before))
    })
}

#[test]
fn a_direct_download_comes_close_to_the_ideal() {
    let file = ByteCount::new(10_000_000);
    let percent = percent_of_ideal(&Scenario { file, ..Scenario::new(1, 0) });
    assert!((100..=115).contains(&percent), "{percent}% of the ideal time");
}

#[test]
fn a_download_through_a_proxy_takes_hardly_longer_than_a_direct_one() {
    let file = ByteCount::new(10_000_000);
    let percent = percent_of_ideal(&Scenario { file, ..Scenario::new(1, 1) });
    assert!((100..=120).contains(&percent), "{percent}% of the ideal time");
}

#[test]
fn a_direct_download_gets_through_five_percent_of_loss() {
    for seed in 1..=3 {
        let percent = percent_of_ideal(&lossy(seed, 0));
        assert!((100..=200).contains(&percent), "seed {seed}: {percent}% of the ideal time");
    }
}

#[test]
fn a_download_through_a_proxy_gets_through_five_percent_of_loss() {
    for seed in 1..=3 {
        let percent = percent_of_ideal(&lossy(seed, 1));
        assert!((100..=200).contains(&percent), "seed {seed}: {percent}% of the ideal time");
    }
}

#[test]
fn a_download_gets_through_two_proxies() {
    for scenario in [Scenario::new(1, 2), lossy(1, 2)] {
        let percent = percent_of_ideal(&scenario);
        assert!((100..=200).contains(&percent), "{percent}% of the ideal time");
    }
}

#[test]
fn reordering_slows_a_download_little() {
    for proxies in [0, 1] {
        let mut scenario = Scenario::new(1, proxies);
        scenario.access.reorder = Some(Reorder { ratio: Ratio::of(5, 100), extra_delay: 5 * MS });
        let percent = percent_of_ideal(&scenario);
        assert!((100..=150).contains(&percent), "{proxies} proxies: {percent}% of the ideal time");
    }
}

#[test]
fn duplicated_packets_do_no_harm() {
    for proxies in [0, 1] {
        let mut scenario = Scenario::new(1, proxies);
        scenario.access.duplicate = Ratio::of(5, 100);
        let percent = percent_of_ideal(&scenario);
        assert!((100..=140).contains(&percent), "{proxies} proxies: {percent}% of the ideal time");
    }
}

#[test]
fn timers_that_are_up_to_a_millisecond_late_do_no_harm() {
    let mut scenario = Scenario::new(1, 1);
    scenario.timer_granularity = Some(MS);
    let percent = percent_of_ideal(&scenario);
    assert!((100..=140).contains(&percent), "{percent}% of the ideal time");
}

#[test]
fn another_seed_loses_other_packets() {
    assert_ne!(lossy(1, 1).download().digest, lossy(2, 1).download().digest);
}

#[test]
fn a_download_outlives_three_seconds_without_a_network() {
    for proxies in [0, 1] {
        let (outcome, took) = disturb(&Scenario::new(1, proxies), |testbed| {
            let first = testbed.proxies.first().map_or(testbed.origin.id(), |proxy| proxy.id());
            testbed.world.block(testbed.client, first, 3 * SECOND);
            testbed.world.block(first, testbed.client, 3 * SECOND);
        });
        assert_eq!(outcome.report().status, 200);
        assert!((3 * SECOND..12 * SECOND).contains(&took), "{proxies} proxies: {took:?}");
    }
}

#[test]
fn a_target_that_goes_away_ends_its_flow_at_once() {
    let (outcome, took) = disturb(&Scenario::new(1, 1), |testbed| {
        testbed.world.kill(testbed.origin);
    });
    assert!(matches!(outcome.error(), ClientError::FlowClosed { .. }), "{outcome:?}");
    assert!(took < SECOND, "{took:?}");
}

#[test]
fn a_target_that_was_never_there_ends_its_flow_at_once() {
    for proxies in [1, 2] {
        let outcome = Scenario::new(1, proxies).run(|testbed| {
            testbed.world.kill(testbed.origin);
            testbed.finish()
        });
        assert!(matches!(outcome.error(), ClientError::FlowClosed { .. }), "{outcome:?}");
        let error = outcome.error().to_string();
        assert!(error.contains("the target refused the connection"), "{error}");
    }
}

#[test]
fn a_proxy_that_is_down_is_named_by_the_proxy_before_it() {
    let outcome = Scenario::new(1, 2).run(|testbed| {
        testbed.world.kill(testbed.proxies[1]);
        testbed.finish()
    });
    let ClientError::FlowClosed { peer, target, reason, .. } = outcome.error() else {
        panic!("{outcome:?}");
    };
    assert!(peer.contains('1') && target.contains("2"), "{peer} {target}");
    assert!(reason.contains("connection_refused"), "{reason}");
}

#[test]
fn a_download_outlives_a_restarted_proxy() {
    for (proxies, restarted) in [(1, 0), (2, 0), (2, 1)] {
        let scenario = Scenario::new(1, proxies);
        let (outcome, took) = disturb(&scenario, |testbed| {
            let proxy = testbed.proxies[restarted];
            testbed.world.replace(proxy, scenario.proxy(&certificate(), restarted + 1));
        });
        assert_eq!(outcome.report().bytes, scenario.file.get());
        let limit = Limits::default().tunnel_idle + 5 * SECOND;
        assert!(took < limit, "{proxies} proxies, number {restarted} restarted: {took:?}");
    }
}

#[test]
fn a_proxy_that_restarts_with_its_secret_says_so_at_once() {
    let secret = ResetSecret([7; 32]);
    let scenario = Scenario { reset_secret: Some(secret), ..Scenario::new(1, 1) };
    let (outcome, took) = disturb(&scenario, |testbed| {
        let proxy = testbed.proxies[0];
        testbed.world.replace(proxy, scenario.proxy(&certificate(), 1));
    });
    assert_eq!(outcome.report().bytes, scenario.file.get());
    assert!(took < Limits::default().tunnel_idle, "{took:?}");
}

#[test]
fn a_download_that_has_nothing_to_say_goes_on_behind_a_restarted_proxy() {
    // The client's request is acknowledged, and it need not update its windows yet. Only the origin
    // sends, to the end of the old tunnel.
    let secret = ResetSecret([7; 32]);
    let file = ByteCount::new(200_000);
    let scenario = Scenario { file, reset_secret: Some(secret), ..Scenario::new(1, 1) };
    let (outcome, took) = disturb(&scenario, |testbed| {
        testbed.world.replace(testbed.proxies[0], scenario.proxy(&certificate(), 1));
    });
    assert_eq!(outcome.report().bytes, scenario.file.get());
    assert!(took < 5 * SECOND, "{took:?}");
}

#[test]
fn a_restarted_proxy_serves_a_new_download() {
    let scenario = Scenario::new(1, 1);
    let (outcome, _) = disturb(&scenario, |testbed| {
        testbed.world.replace(testbed.proxies[0], scenario.proxy(&certificate(), 1));
        // With the same seed the origin would mistake it for the old connection.
        let other_seed = Scenario { seed: PrintedSeed(2), ..scenario.clone() };
        testbed.world.replace(testbed.client, other_seed.client(Scenario::fetch()));
    });
    assert_eq!(outcome.report().bytes, scenario.file.get());
}

#[test]
fn a_proxy_that_shuts_down_lets_a_download_go_on() {
    let (outcome, _) = disturb(&Scenario::new(1, 1), |testbed| {
        testbed.world.input(testbed.proxies[0], Input::Shutdown);
    });
    assert_eq!(outcome.lost, [], "{outcome:?}");
    assert_eq!(outcome.report().status, 200);
}

#[test]
fn a_path_that_shrinks_costs_seconds_and_not_the_tunnel() {
    for (mode, datagrams) in
        [(TunnelMode::Mdt, [Quic; 2]), (TunnelMode::Mdt, [Sealed; 2]), (TunnelMode::Mst, [Quic; 2])]
    {
        let scenario = Scenario { mode, datagrams, ..Scenario::new(1, 1) };
        let (outcome, took) = disturb(&scenario, |testbed| {
            // The link now carries 1250 bytes of UDP payload, so a tunnel's packets no longer pass.
            let access = LinkConfig { mtu: Some(ByteCount::new(1278)), ..scenario.access.clone() };
            testbed.world.route(testbed.client, testbed.proxies[0], vec![access.clone()]);
            testbed.world.route(testbed.proxies[0], testbed.client, vec![access]);
        });
        assert_eq!(outcome.report().bytes, scenario.file.get(), "{mode:?}");
        assert!(took < 8 * SECOND, "{mode:?}: {took:?}");
    }
}

#[test]
fn random_loss_never_makes_a_tunnel_drop_its_own_packets() {
    for seed in 1..=3 {
        let mut scenario = lossy(seed, 1);
        scenario.access.loss = Ratio::of(10, 100).into();
        scenario.run(|testbed| {
            let outcome = testbed.finish();
            let dropped = testbed.world.node_mut(testbed.proxies[0]).stats().dropped;
            assert!(dropped.too_large < 20, "seed {seed}: {dropped:?}");
            outcome
        });
    }
}

#[test]
fn capsules_carry_a_download_through_loss_without_a_repair_end_to_end() {
    let scenario = Scenario { mode: TunnelMode::Mst, ..lossy(1, 1) };
    scenario.run(|testbed| {
        let outcome = testbed.finish();
        let stats = testbed.world.node_mut(testbed.origin).stats();
        assert!(stats.lost_packets * 200 < stats.sent_packets, "{stats:?}");
        outcome
    });
}

#[test]
fn capsules_that_wait_out_of_order_do_not_end_the_tunnel() {
    // Without congestion control each capsule is sent at once. 2 MB of capsules wait for a lost
    // one.
    for seed in 1..=2 {
        let controller = ControllerName::Off;
        let mut scenario = Scenario { mode: TunnelMode::Mst, controller, ..Scenario::new(seed, 1) };
        scenario.access.capacity = Rate::from_mbps(50).into();
        scenario.access.queue = QueueConfig::Infinite;
        scenario.access.loss = Ratio::of(1, 100).into();
        scenario.file = ByteCount::new(10_000_000);
        let outcome = scenario.download();
        assert_eq!(outcome.lost, [], "seed {seed}");
    }
}

#[test]
fn a_proxy_that_shuts_down_for_good_says_so() {
    let limits = Limits {
        drain: 100 * MS,
        reconnect: 2 * SECOND,
        setup_timeout: SECOND,
        ..Limits::default()
    };
    let scenario = Scenario { limits, ..Scenario::new(1, 1) };
    let (outcome, took) = disturb(&scenario, |testbed| {
        testbed.world.input(testbed.proxies[0], Input::Shutdown);
    });
    assert!(matches!(outcome.error(), ClientError::NoAnswer { .. }), "{outcome:?}");
    let Some(ClientError::ConnectionLost { reason, .. }) = outcome.lost.first() else {
        panic!("{outcome:?}")
    };
    assert!(reason.contains("shutting down"), "{reason}");
    assert!(took < 10 * SECOND, "{took:?}");
}

#[test]
fn a_target_without_an_address_is_refused_with_the_reason() {
    for (answer, status, error) in [
        (NameAnswer::After(MS, Err(ResolveError::NotFound)), 502, "dns_error"),
        (NameAnswer::Never, 504, "dns_timeout"),
    ] {
        let outcome = Scenario::new(1, 1).run(|testbed| {
            testbed.world.set_name("origin.test", answer.clone());
            testbed.finish()
        });
        let ClientError::Refused { status: seen, proxy_status, .. } = outcome.error() else {
            panic!("{outcome:?}")
        };
        assert_eq!(*seen, status);
        assert!(proxy_status.as_ref().is_some_and(|text| text.contains(error)), "{outcome:?}");
    }
}

#[test]
fn an_address_of_the_target_that_comes_late_is_used_if_the_others_have_no_route() {
    for late in [MS, 300 * MS, 9 * SECOND] {
        let outcome = Scenario::new(1, 1).run(|testbed| {
            let address = |text: &str| vec![text.parse().unwrap()];
            let parts = vec![(Duration::ZERO, address("2001:db8::1")), (late, address("10.0.0.9"))];
            testbed.world.set_name("origin.test", NameAnswer::Parts(parts));
            testbed.finish()
        });
        assert_eq!(outcome.lost, [], "{late:?}");
        let setup = outcome.report().setup + outcome.report().handshake;
        assert!((late..late + SECOND).contains(&setup), "{late:?}: {setup:?}");
    }
}

#[test]
fn the_packets_of_local_programs_go_through_the_tunnel_and_back() {
    let scenario = Scenario::new(1, 1);
    let run = || {
        let mut testbed = scenario.testbed();
        let far = LinkConfig { delay: 50 * MS, ..LinkConfig::default() };
        let echo = testbed.world.add_host("echo", ["10.0.0.8"], EchoHost::new(7));
        testbed.world.connect(testbed.proxies[0], echo, far);
        let forward =
            ForwardConfig::new("10.0.0.1:5000".parse().unwrap(), "10.0.0.8".to_owned(), 7);
        testbed.forward(&scenario, vec![forward]);
        let mut world = testbed.world;

        let program =
            SenderHost::new("10.0.0.1:5000".parse().unwrap(), Shot::every(20 * MS, 50, 1000));
        let program = world.add_host("program", ["10.0.0.7"], program);
        let before = world.now();
        world.run_for(3 * SECOND);
        let replies = world.node(program).replies().iter().zip(0..);
        let took = replies.map(|(reply, number)| reply.at - (before + 20 * MS * number));
        (took.collect::<Vec<_>>(), world.trace().digest())
    };
    let (took, digest) = run();
    assert_eq!(took.len(), 50);
    assert!(took.iter().all(|took| *took >= 140 * MS), "{took:?}");
    // The first packets take two RTTs of the proxy, because they wait for the answer to the
    // request. Later packets take one.
    assert!(took.iter().skip(5).all(|took| *took < 145 * MS), "{took:?}");
    assert_eq!(digest, run().1);
}
