//! How many round trips pass until a download begins.

use std::time::Duration;

use tandem_lab::{LinkConfig, World};
use tandem_node::{
    Event,
    client::{Oversize, TunnelMode},
    tls::KeyExchange,
};

use crate::{
    MS, rmdt,
    scenario::{Scenario, Testbed},
    tecc,
};

/// Links that have no rate, so that nothing but round trips takes time.
fn scenario(proxies: usize, mode: TunnelMode) -> Scenario {
    let access = LinkConfig { delay: 20 * MS, ..LinkConfig::default() };
    Scenario { access, mode, ..Scenario::new(1, proxies) }
}

/// The time until the client gets the head of the response.
fn until_response(scenario: &Scenario) -> Duration {
    until_response_after(scenario, |_| {})
}

/// The same after an action at the beginning.
fn until_response_after(scenario: &Scenario, act: impl Fn(&mut Testbed)) -> Duration {
    scenario.run(|testbed| {
        act(testbed);
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
fn each_hop_costs_one_round_trip_and_the_origin_two() {
    // The RTTs to the three proxies, and to the origin through as many of them. A hop costs its handshake. Requests
    // leave with its end, because the SETTINGS of the proxy come with it, and the first packet of the next connection
    // leaves with the request.
    let to_proxy = [40 * MS, 60 * MS, 80 * MS];
    let to_origin = [140 * MS, 140 * MS, 160 * MS, 180 * MS];
    let uack = TunnelMode::Uack { both_ways: true };
    let modes = [TunnelMode::Mdt, TunnelMode::Mst, rmdt(), tecc(), TunnelMode::Forward, uack];
    for (mode, key_exchange) in modes.into_iter().flat_map(|mode| {
        [KeyExchange::Classical, KeyExchange::Hybrid].map(|key_exchange| (mode, key_exchange))
    }) {
        for (proxies, to_origin) in to_origin.into_iter().enumerate() {
            let hops: Duration = to_proxy.iter().take(proxies).sum();
            let scenario = Scenario { key_exchange, ..scenario(proxies, mode) };
            let (took, least) = (until_response(&scenario), hops + 2 * to_origin);
            let case = format!("{mode:?}, {key_exchange:?}, {proxies} proxies");
            // A report may reach the origin just before it answers. The first five packets then leave at the rate that
            // the tunnel knows by then, and not together.
            let most = if mode == tecc() { 20 * MS } else { 12 * MS };
            assert!(took < least + most, "{case}: {took:?} of {least:?}");
        }
    }
}

#[test]
fn a_proxy_that_promises_no_size_costs_one_round_trip_more() {
    // The first packets of the origin's connection were too large for what the proxy promises, so that it begins again.
    for mode in [TunnelMode::Mdt, rmdt(), TunnelMode::Forward] {
        let scenario = Scenario { oversize: Oversize::Drop, ..scenario(1, mode) };
        let (took, least) = (until_response(&scenario), 2 * (40 * MS + 140 * MS));
        assert!(took >= least && took < least + 12 * MS, "{mode:?}: {took:?} of {least:?}");
        assert!(scenario.download().result.is_ok(), "{mode:?}");
    }
}

#[test]
fn a_lost_first_packet_costs_a_third_of_a_second() {
    for proxies in [0, 1] {
        let scenario = scenario(proxies, TunnelMode::Mdt);
        let took = until_response_after(&scenario, |testbed| {
            let first = testbed.proxies.first().map_or(testbed.origin.id(), |proxy| proxy.id());
            testbed.world.block(testbed.client, first, 100 * MS);
        });
        let least = until_response(&scenario) + 300 * MS;
        assert!(
            took >= least && took < least + 12 * MS,
            "{proxies} proxies: {took:?} of {least:?}"
        );
    }
}
