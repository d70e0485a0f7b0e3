//! Tests of tunnels under changing addresses, dead peers, outages, many flows and greedy flows.
//! Every test runs twice, and both runs must be the same packet by packet.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "an error here fails the test")]

mod choosing;
mod ech;
mod families;
mod fleets;
mod flows;
mod nat;
mod own_flows;
mod programs;
mod restarts;
#[path = "../tunnel/scenario.rs"]
mod scenario;
mod starts;

use std::time::Duration;

use nat::{ELSEWHERE, Nat};
use programs::{forward, lost_hops, program};
use scenario::{Outcome, Scenario, Testbed, certificate};
use tandem_lab::{
    LinkConfig, NameAnswer,
    endpoints::{EchoHost, Shot},
};
use tandem_node::{
    client::{Repair, TunnelMode},
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

/// Runs until a quarter of the file has arrived, performs an action, and runs to the end. Returns
/// the outcome and the time from the action to the end.
fn disturb(
    scenario: &Scenario,
    testbed: &mut Testbed,
    act: impl FnOnce(&mut Testbed),
) -> (Outcome, Duration) {
    testbed.run_until_fetched(ByteCount::new(scenario.file.get() / 4));
    let before = testbed.world.elapsed();
    act(testbed);
    (testbed.finish(), testbed.world.elapsed().saturating_sub(before))
}

/// Blocks all packets to and from the first proxy.
fn cut(testbed: &mut Testbed, duration: Duration) {
    let (client, proxy) = (testbed.client, testbed.proxies[0]);
    testbed.world.block(client, proxy, duration);
    testbed.world.block(proxy, client, duration);
}

#[test]
fn a_chain_of_three_hops_works_with_default_settings() {
    for loss in [Ratio::ZERO, Ratio::of(5, 100)] {
        let uack = TunnelMode::Uack { both_ways: true };
        for mode in [TunnelMode::Mdt, TunnelMode::Mst, TunnelMode::Forward, uack] {
            let file = ByteCount::new(500_000);
            let mut scenario = Scenario { file, mode, ..Scenario::new(1, 3) };
            scenario.access.loss = loss.into();
            let outcome = scenario.download();
            assert_eq!(outcome.lost, [], "{mode:?} with a loss of {loss}");
            assert_eq!(outcome.report().connections.len(), 4);
            let completion = outcome.report().completion;
            let most = if mode == uack { 5 } else { 4 }; // with luck as bad as that of this seed
            assert!(completion < most * scenario.ideal(), "{mode:?}, {loss}: {completion:?}");
        }
    }
}

#[test]
fn a_download_goes_on_when_a_nat_chooses_another_port_or_address() {
    let uack = TunnelMode::Uack { both_ways: true };
    let (rmdt, tecc) = (TunnelMode::Rmdt(Repair::default()), TunnelMode::Tecc(Repair::default()));
    // With loss, it changes in the midst of repairs. With these seeds packets are lost that validate the new address.
    for (mode, datagrams, loss_percent, seeds) in [
        (TunnelMode::Mdt, [Quic; 2], 0, &[1][..]),
        (TunnelMode::Mdt, [Sealed; 2], 0, &[1]),
        (TunnelMode::Mdt, [Sealed; 2], 5, &[8]),
        (TunnelMode::Mst, [Quic; 2], 0, &[1]),
        (TunnelMode::Forward, [Quic; 2], 0, &[1]),
        (uack, [Quic; 2], 0, &[1]),
        (rmdt, [Quic; 2], 5, &[1]),
        (rmdt, [Sealed; 2], 5, &[1, 6]),
        (tecc, [Quic; 2], 5, &[1]),
        (tecc, [Sealed; 2], 5, &[1, 11, 15]),
    ] {
        for &seed in seeds {
            for rebind in [Nat::rebind_port, |nat: &mut Nat| nat.rebind(ELSEWHERE)] {
                let mut scenario = Scenario { mode, datagrams, ..Scenario::new(seed, 1) };
                scenario.access.loss = Ratio::of(loss_percent, 100).into();
                goes_on_behind_a_nat(&scenario, rebind);
            }
        }
    }
}

fn goes_on_behind_a_nat(scenario: &Scenario, rebind: fn(&mut Nat)) {
    let (outcome, took) = scenario.run(|testbed| {
        let nat = Nat::add(scenario, testbed);
        let result = disturb(scenario, testbed, |testbed| rebind(testbed.world.node_mut(nat)));
        let repaired = testbed.world.node_mut(testbed.proxies[0]).stats().repaired.sent_again;
        let repairs = matches!(scenario.mode, TunnelMode::Rmdt(_) | TunnelMode::Tecc(_));
        assert_eq!(repaired > 20, repairs, "{:?}: {repaired}", scenario.mode);
        result
    });
    let what = format!("{:?}, {:?}, {:?}", scenario.mode, scenario.datagrams, scenario.seed);
    assert_eq!(outcome.lost, [], "{what}");
    assert_eq!(outcome.report().connections[0].datagrams, scenario.datagrams[0], "{what}");
    assert_eq!(outcome.report().bytes, scenario.file.get());
    assert!(took < 4 * SECOND, "{what}: {took:?}");
}

#[test]
fn a_download_goes_on_when_the_client_moves_to_a_slower_network() {
    for datagrams in [[Quic; 2], [Sealed; 2]] {
        goes_on_in_a_slower_network(&Scenario { datagrams, ..Scenario::new(1, 1) });
    }
}

fn goes_on_in_a_slower_network(scenario: &Scenario) {
    let (outcome, took) = scenario.run(|testbed| {
        let nat = Nat::add(scenario, testbed);
        disturb(scenario, testbed, |testbed| {
            let (client, nat) = (testbed.client, nat);
            testbed.world.node_mut(nat).rebind(ELSEWHERE);
            let capacity = Rate::from_mbps(3).into();
            let mobile = LinkConfig { capacity, delay: 60 * MS, ..LinkConfig::default() };
            testbed.world.connect(client, nat, mobile);
        })
    });
    assert_eq!(outcome.lost, []);
    assert_eq!(outcome.report().bytes, scenario.file.get());
    assert!(took < 12 * SECOND, "{took:?}");
}

#[test]
fn the_packets_of_local_programs_keep_passing_when_a_nat_chooses_another_port() {
    for datagrams in [[Quic; 2], [Sealed; 2]] {
        keep_passing_when_a_nat_chooses_another_port(&Scenario {
            datagrams,
            ..Scenario::new(1, 1)
        });
    }
}

fn keep_passing_when_a_nat_chooses_another_port(scenario: &Scenario) {
    scenario.run(|testbed| {
        let nat = Nat::add(scenario, testbed);
        testbed.world.add_host("echo", ["10.0.0.8"], EchoHost::new(programs::TARGET_PORT));
        forward(scenario, testbed, &["10.0.0.8"]);
        let shots = Shot::every(20 * MS, 500, 200);
        let programs = ["10.0.0.70", "10.0.0.71"].map(|ip| program(testbed, ip, 0, shots.clone()));
        for _ in 0..4 {
            testbed.world.run_for(2 * SECOND);
            testbed.world.node_mut(nat).rebind_port();
        }
        testbed.world.run_for(4 * SECOND);
        assert_eq!(lost_hops(testbed), [] as [&str; 0]);
        for program in programs {
            let replies = testbed.world.node(program).replies().len();
            // At most the packets on their way at each of the four changes of the port, for 40 ms
            // each, are lost.
            assert!(replies >= 500 - 4 * 4, "{replies} of 500");
        }
        testbed.world.trace().digest()
    });
}

#[test]
fn a_proxy_that_dies_silently_is_noticed_and_the_next_one_taken() {
    for mode in [TunnelMode::Mdt, TunnelMode::Mst] {
        for down in [5 * SECOND, 15 * SECOND] {
            let scenario = Scenario { mode, ..Scenario::new(1, 1) };
            let (outcome, took) = scenario.run(|testbed| {
                disturb(&scenario, testbed, |testbed| {
                    let proxy = testbed.proxies[0];
                    testbed.world.kill(proxy);
                    cut(testbed, down);
                    testbed.world.run_for(down);
                    testbed.world.replace(proxy, scenario.proxy(&certificate(), 1));
                })
            });
            assert_eq!(outcome.report().bytes, scenario.file.get());
            assert!(!outcome.lost.is_empty());
            let limit = Limits::default().tunnel_idle.max(down) + 12 * SECOND;
            assert!(took < limit, "{mode:?}, down for {down:?}: {took:?}");
        }
    }
}

#[test]
fn a_download_outlives_twenty_seconds_without_a_network() {
    for proxies in [1, 2] {
        let scenario = Scenario::new(1, proxies);
        let (outcome, took) = scenario
            .run(|testbed| disturb(&scenario, testbed, |testbed| cut(testbed, 20 * SECOND)));
        assert_eq!(outcome.report().bytes, scenario.file.get());
        assert!((20 * SECOND..35 * SECOND).contains(&took), "{proxies} proxies: {took:?}");
    }
}

#[test]
fn a_download_whose_reader_pauses_for_minutes_goes_on() {
    for proxies in [0, 1] {
        let scenario = Scenario::new(1, proxies);
        let (outcome, took) = scenario.run(|testbed| {
            disturb(&scenario, testbed, |testbed| {
                let came = |testbed: &Testbed| testbed.world.body(testbed.client).bytes();
                testbed.world.node_mut(testbed.client).hold_body(true);
                let before = came(testbed);
                for _ in 0..36 {
                    testbed.world.run_for(5 * SECOND);
                    testbed.world.node_mut(testbed.client).ping();
                }
                assert_eq!(came(testbed), before);
                testbed.world.node_mut(testbed.client).hold_body(false);
            })
        });
        assert_eq!(outcome.lost, []);
        assert_eq!(outcome.report().bytes, scenario.file.get());
        assert!((180 * SECOND..190 * SECOND).contains(&took), "{proxies} proxies: {took:?}");
    }
}

#[test]
fn a_download_over_several_streams_outlives_a_restarted_proxy() {
    let mode = TunnelMode::Msgt(8);
    let mut scenario = Scenario { mode, ..Scenario::new(1, 1) };
    scenario.access.loss = Ratio::of(5, 100).into();
    let (outcome, took) = scenario.run(|testbed| {
        disturb(&scenario, testbed, |testbed| {
            let proxy = testbed.proxies[0];
            testbed.world.replace(proxy, scenario.proxy(&certificate(), 1));
        })
    });
    assert_eq!(outcome.report().bytes, scenario.file.get());
    assert!(!outcome.lost.is_empty());
    assert!(took < Limits::default().tunnel_idle + 12 * SECOND, "{took:?}");
}

#[test]
fn a_download_waits_for_a_far_proxy_that_is_away_for_a_while() {
    for mode in [TunnelMode::Mdt, TunnelMode::Mst] {
        let scenario = Scenario { mode, ..Scenario::new(1, 2) };
        let (outcome, took) = scenario.run(|testbed| {
            disturb(&scenario, testbed, |testbed| {
                // The near proxy learns by ICMP that the port is closed, and ends the flow.
                let far = testbed.proxies[1];
                testbed.world.kill(far);
                testbed.world.run_for(5 * SECOND);
                testbed.world.replace(far, scenario.proxy(&certificate(), 2));
            })
        });
        assert_eq!(outcome.report().bytes, scenario.file.get(), "{mode:?}");
        assert!(!outcome.lost.is_empty(), "{mode:?}");
        assert!(took < 15 * SECOND, "{mode:?}: {took:?}");
    }
}

#[test]
fn a_proxy_that_cannot_resolve_for_a_while_is_asked_again() {
    let scenario = Scenario { reset_secret: Some(ResetSecret([7; 32])), ..Scenario::new(1, 1) };
    let (outcome, took) = scenario.run(|testbed| {
        disturb(&scenario, testbed, |testbed| {
            let found = NameAnswer::After(MS, Ok(vec!["10.0.0.9".parse().unwrap()]));
            let failing = NameAnswer::After(MS, Err(ResolveError::Unreachable));
            testbed.world.set_name("origin.test", failing);
            testbed.world.replace(testbed.proxies[0], scenario.proxy(&certificate(), 1));
            testbed.world.run_for(3 * SECOND);
            testbed.world.set_name("origin.test", found);
        })
    });
    assert_eq!(outcome.report().bytes, scenario.file.get());
    assert!(took < 15 * SECOND, "{took:?}");
}

#[test]
fn a_proxy_that_does_not_answer_a_repair_is_given_up_and_replaced() {
    let limits = Limits { dns_timeout: 3600 * SECOND, ..Limits::default() };
    let scenario = Scenario { limits, ..Scenario::new(1, 2) };
    let (outcome, took) = scenario.run(|testbed| {
        disturb(&scenario, testbed, |testbed| {
            // The client requests the far proxy from the near proxy again, which waits for its name
            // server.
            testbed.world.set_name("proxy2.test", NameAnswer::Never);
            let far = testbed.proxies[1];
            testbed.world.kill(far);
            testbed.world.run_for(5 * SECOND);
            testbed.world.replace(far, scenario.proxy(&certificate(), 2));
            let found = NameAnswer::After(MS, Ok(vec!["10.0.0.3".parse().unwrap()]));
            testbed.world.set_name("proxy2.test", found);
        })
    });
    assert_eq!(outcome.report().bytes, scenario.file.get());
    let limit = Limits::default().setup_timeout + 10 * SECOND;
    assert!(took < limit, "{took:?}");
}

#[test]
fn a_name_server_that_answers_late_disturbs_no_tunnel() {
    let (setup_timeout, dns_timeout) = (2 * SECOND, 2 * SECOND);
    let limits = Limits { setup_timeout, dns_timeout, ..Limits::default() };
    let file = ByteCount::new(8_000_000);
    let scenario = Scenario { file, limits, ..Scenario::new(1, 1) };
    let (outcome, _) = scenario.run(|testbed| {
        disturb(&scenario, testbed, |testbed| {
            // Each attempt is given up before its own answer comes, and receives the answer of the
            // attempt before.
            let late = NameAnswer::After(3 * SECOND, Ok(vec!["10.0.0.2".parse().unwrap()]));
            testbed.world.set_name("proxy1.test", late);
            testbed.world.replace(testbed.proxies[0], scenario.proxy(&certificate(), 1));
        })
    });
    assert_eq!(outcome.report().bytes, scenario.file.get());
    let [ClientError::ConnectionLost { .. }, ClientError::NoAnswer { .. }] = &*outcome.lost else {
        panic!("{:?}", outcome.lost)
    };
}
