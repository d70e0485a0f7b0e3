//! Tests of tunnels on links whose delay varies by more than the RTT.

#![expect(clippy::unwrap_used, reason = "an error here fails the test")]

use std::time::Duration;

use tandem_congestion::ControllerName;
use tandem_node::client::TunnelMode;
use tandem_units::{ByteCount, Rate};

use super::{MS, rmdt};
use crate::scenario::Scenario;

/// The time of downloads of 8 MB over a link of 50 Mbit/s with an RTT of 4 ms and jitter of up to 30 ms in each
/// direction, over four seeds.
fn time(proxies: usize, mode: TunnelMode) -> Duration {
    let download = |seed| {
        let mut scenario = Scenario::new(seed, proxies);
        scenario.mode = mode;
        scenario.controller = ControllerName::Bbr1Tunnel;
        scenario.file = ByteCount::new(8_000_000);
        scenario.access.capacity = Rate::from_mbps(50).into();
        scenario.access.delay = 2 * MS;
        scenario.access.jitter = 30 * MS;
        scenario.download().result.unwrap().completion
    };
    (1..=4).map(download).sum()
}

#[test]
fn a_tunnel_keeps_its_rate_where_the_delay_varies_by_several_rtts() {
    let without = time(0, TunnelMode::Mdt);
    for mode in [TunnelMode::Mdt, rmdt()] {
        let tunnelled = time(1, mode);
        assert!(tunnelled < without * 7 / 5, "{mode:?}: {tunnelled:?} instead of {without:?}");
    }
}
