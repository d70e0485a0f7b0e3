//! Proxies that vanish and come back at any time, while packets are lost.

use std::time::Duration;

use tandem_lab::Seed;
use tandem_node::{
    client::{Repair, TunnelMode},
    error::ClientError,
    quic::{DatagramTransport, ResetSecret},
};
use tandem_units::{ByteCount, Ratio};

use crate::{
    MS,
    scenario::{Scenario, certificate},
};

/// Downloads through a proxy that is killed at a random time and comes back after another. Returns
/// the error, if the download failed.
fn restarted(seed: u64) -> Option<ClientError> {
    let random = |part: u64, most: u64| Seed(seed).derive(part).0 % most;
    let mut scenario = Scenario::new(seed, 1 + usize::try_from(random(0, 2)).unwrap());
    scenario.mode = match random(1, 6) {
        0 => TunnelMode::Mst,
        1 => TunnelMode::Rmdt(Repair::default()),
        2 => TunnelMode::Forward,
        3 => TunnelMode::Uack { both_ways: true },
        _ => TunnelMode::Mdt,
    };
    let sealed = [DatagramTransport::Sealed, DatagramTransport::Quic];
    scenario.datagrams = [sealed[usize::try_from(random(8, 2)).unwrap()]; 2];
    scenario.reset_secret = (random(2, 2) == 0).then_some(ResetSecret([7; 32]));
    scenario.file = ByteCount::new(1_000_000);
    scenario.access.loss = Ratio::of(5, 100).into();
    let mut testbed = scenario.testbed();
    testbed.run_until_fetched(ByteCount::new(random(3, 900_000)));
    for again in 0..=random(4, 2) {
        let number = usize::try_from(random(5 + 10 * again, scenario.proxies as u64)).unwrap();
        testbed.world.kill(testbed.proxies[number]);
        let down = u32::try_from(random(6 + 10 * again, 3000)).unwrap();
        testbed.world.run_for(MS * down);
        let proxy = scenario.proxy(&certificate(), number + 1);
        testbed.world.replace(testbed.proxies[number], proxy);
        testbed.world.run_for(Duration::from_millis(random(7 + 10 * again, 4000)));
    }
    let outcome = testbed.finish();
    outcome.result.err()
}

#[test]
fn downloads_outlive_restarts_at_any_time_with_loss() {
    // With seed 4 the origin's first packet over its new path is lost. With seed 15 the near proxy
    // vanishes in the moment in which the client ends.
    for seed in 1..=30 {
        assert_eq!(restarted(seed), None, "seed {seed}");
    }
}
