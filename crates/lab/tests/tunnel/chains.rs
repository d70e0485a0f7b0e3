//! Tests of chains of one to four proxies: the mode of each hop, and the sizes of its packets.

use std::time::Duration;

use tandem_congestion::ControllerName;
use tandem_node::{
    Event, Stats,
    client::TunnelMode,
    mode::{Agreement, Mode},
};
use tandem_units::{ByteCount, Rate, Ratio};

use crate::{
    rmdt,
    scenario::{Outcome, Scenario, Testbed},
    tecc,
};

/// A download of 1 MB through a chain, over an access link of 20 Mbit/s on Ethernet that loses some
/// packets.
fn scenario(mode: TunnelMode, proxies: usize) -> Scenario {
    let origin_controller = match mode {
        TunnelMode::Tecc(_) => ControllerName::Tecc,
        _ => ControllerName::Bbr1,
    };
    let mut scenario = Scenario {
        file: ByteCount::new(1_000_000),
        mode,
        controller: ControllerName::Bbr1Tunnel,
        origin_controller,
        ..Scenario::new(2, proxies)
    };
    scenario.access.capacity = Rate::from_mbps(20).into();
    scenario.access.loss = Ratio::of(1, 100).into();
    // An Ethernet packet of IPv6 has room for 20 bytes less than the links here, which are of IPv4.
    scenario.access.mtu = Some(ByteCount::new(1480));
    scenario
}

/// What can be seen of a download.
#[derive(Debug, PartialEq)]
struct Seen {
    outcome: Outcome,
    /// What was agreed on with each proxy.
    agreements: Vec<Agreement>,
    client: Stats,
    proxies: Vec<Stats>,
    origin: Stats,
}

fn download(scenario: &Scenario) -> Seen {
    scenario.run(|testbed| {
        let outcome = testbed.finish();
        let Testbed { world, client, proxies, origin, .. } = testbed;
        let agreement = |(_, event): &(Duration, Event)| match event {
            Event::HopUp { agreement, .. } => *agreement,
            Event::ModeChanged { .. } => panic!("{event:?}"),
            _ => None,
        };
        let agreements = world.events(*client).iter().filter_map(agreement).collect();
        let (client, origin) = (world.node_mut(*client).stats(), world.node_mut(*origin).stats());
        let proxies = proxies.iter().map(|proxy| world.node_mut(*proxy).stats()).collect();
        Seen { outcome, agreements, client, proxies, origin }
    })
}

#[test]
fn each_hop_of_a_chain_repairs_datagrams_and_reports_reach_the_origin() {
    let bounds = [
        (rmdt(), Mode::Rmdt, [1600, 1800, 2000, 2200]),
        (tecc(), Mode::Tecc, [900, 1000, 1200, 1400]),
    ];
    for (mode, name, most_ms) in bounds {
        for (proxies, most_ms) in (1..).zip(most_ms) {
            let seen = download(&scenario(mode, proxies));
            let place = format!("{name}, {proxies} proxies: {seen:?}");
            let agreement = Agreement { asked: name, granted: name, lesser: None };
            assert_eq!(seen.agreements, vec![agreement; proxies], "{place}");
            // Every payload fits a datagram of its hop, in both directions.
            let in_capsules = seen.proxies.iter().chain([&seen.client]).map(|it| it.in_capsules);
            assert_eq!(in_capsules.sum::<u64>(), 0, "{place}");
            // The access link loses some.
            assert!(seen.proxies[0].repaired.sent_again >= 8, "{place}");
            let took = seen.outcome.report().completion;
            assert!(took.as_millis() < most_ms, "{place}");
            if name == Mode::Rmdt {
                assert_eq!(seen.origin.feedback.followed, 0, "{place}");
                continue;
            }
            // The first reports of a short download are lost in some runs.
            let others = [3, 4].map(|number| {
                let Scenario { seed: other, .. } = Scenario::new(number, proxies);
                download(&Scenario { seed: other, ..scenario(mode, proxies) })
            });
            let runs = || others.iter().chain([&seen]);
            let used = runs().map(|seen| seen.origin.feedback.followed).sum::<u64>();
            let took = runs().map(|seen| seen.outcome.report().completion).sum::<Duration>();
            let is_enough = u128::from(used) * 200 >= took.as_millis(); // five in a second
            assert!(is_enough, "{used} reports in {took:?}; {place}");
        }
    }
}

#[test]
fn a_chain_works_on_a_path_with_less_than_it_starts_with() {
    for (mtu, most_ms) in [(1400, 3000), (1300, 5000)] {
        let mut scenario = scenario(tecc(), 3);
        scenario.access.mtu = Some(ByteCount::new(mtu));
        scenario.access.loss = Ratio::of(0, 100).into();
        let seen = download(&scenario);
        let report = seen.outcome.report();
        let took = report.setup + report.completion;
        assert!(took.as_millis() < most_ms, "{mtu}: {seen:?}");
        let agreement = Agreement { asked: Mode::Tecc, granted: Mode::Tecc, lesser: None };
        assert_eq!(seen.agreements, [agreement; 3], "{mtu}: {seen:?}");
        // The proxy counts the payloads that fit no datagram of the access hop.
        assert!(seen.proxies[0].in_capsules > 100, "{mtu}: {seen:?}");
        assert!(seen.origin.feedback.followed > 5, "{mtu}: {seen:?}");
    }
}

#[test]
fn larger_first_datagrams_cost_no_time() {
    // Each hop takes one of its own RTTs, which are 40, 60, 80 and 100 ms, and some time on the link.
    for (proxies, ideal_ms) in [(1, 40), (2, 100), (3, 180), (4, 280)] {
        for mode in [TunnelMode::Mdt, rmdt()] {
            let mut scenario = scenario(mode, proxies);
            scenario.access.loss = Ratio::of(0, 100).into();
            let setup = download(&scenario).outcome.report().setup.as_millis();
            assert!((ideal_ms..ideal_ms + 10).contains(&setup), "{proxies} proxies: {setup} ms");
        }
    }
}
