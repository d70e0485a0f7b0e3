//! Tests of tunnels of mode RMDT (MASQUE datagram tunnel with retransmission).

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test's own data")]

use std::{cell::Cell, time::Duration};

use tandem_lab::{
    LinkConfig,
    endpoints::{SenderHost, Shot},
};
use tandem_node::{
    client::{ForwardConfig, Order, Repair, TunnelMode},
    tunnel::resequence::GivenUpGaps,
};

use super::{MS, SECOND, disturb, lossy};
use crate::scenario::{Scenario, Testbed};

fn repairing(mut scenario: Scenario, repair: Repair) -> Scenario {
    scenario.mode = TunnelMode::Rmdt(repair);
    scenario
}

#[test]
fn what_a_repairing_tunnel_loses_the_origin_does_not_see() {
    for proxies in [1, 2] {
        // Payloads that leave before the agreement on repair are not repaired, so that one seed may lose some.
        let (lost, sent) = (Cell::new(0), Cell::new(0));
        for seed in 1..=4 {
            repairing(lossy(seed, proxies), Repair::default()).run(|testbed| {
                let outcome = testbed.finish();
                let origin = testbed.world.node_mut(testbed.origin).stats();
                lost.set(lost.get() + origin.lost_packets);
                sent.set(sent.get() + origin.sent_packets);
                let stats = testbed.world.node_mut(testbed.client).stats();
                assert_eq!(stats.resequenced.given_up, GivenUpGaps::default(), "{proxies} proxies");
                outcome
            });
        }
        let (lost, sent) = (lost.get(), sent.get());
        assert!(lost * 500 < sent, "{proxies} proxies: {lost} of {sent} packets");
    }
}

#[test]
fn a_repairing_tunnel_outlives_seconds_without_a_network() {
    for (order, outage) in
        [(Order::Ordered, 3 * SECOND), (Order::Window, 3 * SECOND), (Order::Off, 5 * SECOND)]
    {
        let repair = Repair { order, ..Repair::default() };
        let (outcome, took) = disturb(&repairing(lossy(1, 1), repair), |testbed| {
            let first = testbed.proxies[0];
            testbed.world.block(testbed.client, first, outage);
            testbed.world.block(first, testbed.client, outage);
        });
        assert_eq!((outcome.report().status, outcome.lost), (200, vec![]));
        assert!((outage..outage + 6 * SECOND).contains(&took), "{order}, {outage:?}: {took:?}");
    }
}

#[test]
fn outages_that_come_again_and_again_kill_no_flow() {
    let scenario = repairing(lossy(1, 1), Repair::default());
    scenario.run(|testbed| {
        let first = testbed.proxies[0];
        for _ in 0..5 {
            testbed.world.run_for(SECOND);
            testbed.world.block(testbed.client, first, 2 * SECOND);
            testbed.world.block(first, testbed.client, 2 * SECOND);
            testbed.world.run_for(2 * SECOND);
        }
        let outcome = testbed.finish();
        assert_eq!(outcome.report().bytes, scenario.file.get());
        outcome
    });
}

/// Sends a payload of a local program every 20 ms, and returns the delays of the echoes that
/// arrived.
fn echoes(repair: Option<Repair>) -> Vec<Duration> {
    let mut scenario = lossy(1, 1);
    if let Some(repair) = repair {
        scenario = repairing(scenario, repair);
    }
    scenario.run(|testbed| {
        let Testbed { world, proxies, .. } = testbed;
        let far = LinkConfig { delay: 50 * MS, ..LinkConfig::default() };
        let echo = world.add_host("echo", ["10.0.0.8"], tandem_lab::endpoints::EchoHost::new(7));
        world.connect(proxies[0], echo, far);
        let forward =
            ForwardConfig::new("10.0.0.1:5000".parse().unwrap(), "10.0.0.8".to_owned(), 7);
        testbed.forward(&scenario, vec![forward]);
        let world = &mut testbed.world;
        let shots = Shot::every(20 * MS, 500, 1000);
        let program = SenderHost::new("10.0.0.1:5000".parse().unwrap(), shots);
        let program = world.add_host("program", ["10.0.0.7"], program);
        let before = world.now();
        world.run_for(15 * SECOND);
        let replies = world.node(program).replies().iter();
        replies.map(|reply| reply.at - before).collect()
    })
}

#[test]
fn packets_of_local_programs_arrive_although_the_path_loses_some() {
    let plain = echoes(None).len();
    assert!((420..480).contains(&plain), "{plain} of 500 without repair");
    let all = echoes(Some(Repair::default()));
    assert_eq!(all.len(), 500);
    assert!(all.is_sorted());
}

#[test]
fn what_is_too_old_or_has_been_repaired_enough_is_left_alone() {
    let never = Repair { limit: Some(0), ..Repair::default() };
    let count = echoes(Some(never)).len();
    assert!((420..480).contains(&count), "{count} of 500 with a limit of 0");
    let once = Repair { limit: Some(1), ..Repair::default() };
    let count = echoes(Some(once)).len();
    assert!((490..500).contains(&count), "{count} of 500 with a limit of 1");
    // The deadline is shorter than a round trip, so no payload is retransmitted or waited for in
    // vain.
    let hasty = Repair { deadline: Some(30 * MS), ..Repair::default() };
    let replies = echoes(Some(hasty));
    assert!((420..480).contains(&replies.len()), "{} of 500 with a deadline", replies.len());
    let last = replies.last().unwrap();
    assert!(*last < 499 * 20 * MS + 400 * MS, "{last:?}");
}
