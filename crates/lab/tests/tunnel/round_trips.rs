//! How many round trips pass until a download begins.

use std::time::Duration;

use tandem_lab::{LinkConfig, World};
use tandem_node::{Event, client::TunnelMode};

use crate::{MS, rmdt, scenario::Scenario, tecc};

/// The time until the client gets the head of the response. Links have no rate, so that nothing but round trips
/// takes time.
fn until_response(proxies: usize, mode: TunnelMode) -> Duration {
    let access = LinkConfig { delay: 20 * MS, ..LinkConfig::default() };
    let scenario = Scenario { access, mode, ..Scenario::new(1, proxies) };
    scenario.run(|testbed| {
        let client = testbed.client;
        let has_come = |world: &World| {
            let mut events = world.events(client).iter();
            events.any(|(_, event)| matches!(event, Event::ResponseStarted { .. }))
        };
        assert!(testbed.world.run_until(Duration::from_secs(2), has_come), "no response");
        testbed.world.elapsed()
    })
}

#[test]
fn each_hop_costs_two_round_trips_and_the_origin_two() {
    // The RTTs to the three proxies, and to the origin through as many of them. A hop costs its handshake, and the
    // grant of the flow to the next peer. Requests leave with the end of the handshake, because the SETTINGS of the
    // proxy come with it.
    let to_proxy = [40 * MS, 60 * MS, 80 * MS];
    let to_origin = [140 * MS, 140 * MS, 160 * MS, 180 * MS];
    let uack = TunnelMode::Uack { both_ways: true };
    for mode in [TunnelMode::Mdt, TunnelMode::Mst, rmdt(), tecc(), TunnelMode::Forward, uack] {
        for (proxies, to_origin) in to_origin.into_iter().enumerate() {
            let hops: Duration = to_proxy.iter().take(proxies).sum();
            let took = until_response(proxies, mode);
            let least = 2 * (hops + to_origin);
            assert!(took < least + 12 * MS, "{mode:?}, {proxies} proxies: {took:?} of {least:?}");
        }
    }
}
