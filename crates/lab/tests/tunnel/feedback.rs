//! Tests of the reports on a tunnel after a failure.

use std::time::Duration;

use tandem_congestion::ControllerName;
use tandem_lab::LinkConfig;
use tandem_node::{
    Input, Stats,
    client::TunnelMode,
    quic::{LossDetection, ResetSecret},
    tls::KeyExchange,
};
use tandem_units::{ByteCount, Ratio};

use crate::{
    scenario::{Outcome, Scenario, Testbed, certificate},
    tecc,
};

/// A download of 8 MB whose origin follows reports.
fn scenario(proxies: usize) -> Scenario {
    Scenario {
        file: ByteCount::new(8_000_000),
        mode: tecc(),
        controller: ControllerName::Bbr1Tunnel,
        origin_controller: ControllerName::Tecc,
        ..Scenario::new(1, proxies)
    }
}

/// The result of a download with a failure half-way.
#[derive(Debug, PartialEq)]
struct Seen {
    outcome: Outcome,
    /// The counters of the origin at the failure and at the end.
    origin: [Stats; 2],
    client: Stats,
}

impl Seen {
    /// The numbers of reports that the origin followed before and after the failure.
    fn used(&self) -> (u64, u64) {
        let [before, after] = self.origin.map(|stats| stats.feedback.followed);
        (before, after - before)
    }

    fn assert_nothing_odd(&self) {
        for feedback in [self.origin[1].feedback, self.client.feedback] {
            assert_eq!(feedback.malformed, 0, "{feedback:?}");
            // Reports that the tunnel retransmits come late: 5 to 10 % of them with 5 % loss, in six
            // seeds. Some come with the last words of the client.
            assert!(feedback.stale * 9 <= feedback.followed, "{feedback:?}");
        }
    }
}

fn half_way(scenario: &Scenario, act: impl Fn(&mut Testbed)) -> Seen {
    let half = ByteCount::new(scenario.file.get() / 2);
    scenario.run(|testbed| {
        testbed.run_until_fetched(half);
        let origin = testbed.origin;
        let before = testbed.world.node_mut(origin).stats();
        act(testbed);
        let outcome = testbed.finish();
        assert!(outcome.result.is_ok(), "{outcome:?}");
        let client = testbed.world.node_mut(testbed.client).stats();
        Seen { outcome, origin: [before, testbed.world.node_mut(origin).stats()], client }
    })
}

#[test]
fn reports_come_several_times_in_an_end_to_end_round_trip() {
    for (proxies, loss_percent) in [(1, 0), (1, 5), (2, 0)] {
        let mut scenario = scenario(proxies);
        scenario.access.loss = Ratio::of(loss_percent, 100).into();
        let seen = half_way(&scenario, |_| {});
        seen.assert_nothing_odd();
        let took = seen.outcome.report().completion;
        // The proxy reports once in 40 ms at most, and the client passes on two reports in 140 ms,
        // and 16 more. The last of two proxies has an RTT of 60 ms to the client.
        let [interval, rtt] = if proxies == 1 { [40, 140] } else { [60, 160] };
        let most = (took.as_millis() / interval).min(took.as_millis() * 2 / rtt + 16);
        let used = u128::from(seen.origin[1].feedback.followed);
        let place = format!("{proxies} proxies, {loss_percent} % loss");
        assert!((most / 2..=most + 5).contains(&used), "{place}: {used} of {most} in {took:?}");
    }
}

#[test]
fn reports_flow_again_after_a_proxy_has_restarted() {
    let reset_secret = Some(ResetSecret([7; 32]));
    for (proxies, restarted) in [(1, 0), (2, 0), (2, 1)] {
        let scenario = Scenario { reset_secret: reset_secret.clone(), ..scenario(proxies) };
        let seen = half_way(&scenario, |testbed| {
            let proxy = testbed.proxies[restarted];
            testbed.world.replace(proxy, scenario.proxy(&certificate(), restarted + 1));
        });
        assert_eq!(seen.outcome.lost.len(), 1, "{seen:?}");
        seen.assert_nothing_odd();
        let (before, after) = seen.used();
        assert!(before > 30 && after > 30, "{proxies} proxies: {before} before, {after} after");
    }
}

#[test]
fn reports_go_on_while_a_proxy_drains() {
    let seen = half_way(&scenario(1), |testbed| {
        testbed.world.input(testbed.proxies[0], Input::Shutdown);
    });
    assert_eq!(seen.outcome.lost, []);
    seen.assert_nothing_odd();
    let (before, after) = seen.used();
    // The client passes on sixteen more in the beginning.
    assert!(after * 10 > (before - 16) * 8 && after > 25, "{before} before, {after} after");
}

#[test]
fn an_outage_costs_reports_and_not_the_download() {
    let outage = Duration::from_secs(2);
    let seen = half_way(&scenario(1), |testbed| {
        let (client, proxy) = (testbed.client, testbed.proxies[0]);
        testbed.world.block(client, proxy, outage);
        testbed.world.block(proxy, client, outage);
    });
    assert_eq!(seen.outcome.lost, []);
    seen.assert_nothing_odd();
    let (before, after) = seen.used();
    assert!(after > 30, "{before} before, {after} after");
}

/// A download of 1 MB over a path that loses 5 % of the packets.
fn lossy_download(proxies: usize, mode: TunnelMode, detection: LossDetection) -> Outcome {
    let access = LinkConfig { loss: Ratio::of(5, 100).into(), ..scenario(proxies).access };
    let scenario = Scenario {
        file: ByteCount::new(1_000_000),
        access,
        mode,
        origin_detection: Some(detection),
        ..scenario(proxies)
    };
    scenario.download()
}

#[test]
fn an_origin_waits_for_repairs_only_on_connections_whose_clients_will_report() {
    use LossDetection::{AsClientsSay, BehindRepair, Rfc9002};
    // Whether the client sends reports, and the thresholds that its connection has.
    for (proxies, mode, expected, other) in [
        (0, TunnelMode::Mdt, Rfc9002, BehindRepair),
        (1, TunnelMode::Mdt, Rfc9002, BehindRepair),
        (1, crate::rmdt(), Rfc9002, BehindRepair),
        (1, tecc(), BehindRepair, Rfc9002),
        (2, tecc(), BehindRepair, Rfc9002),
    ] {
        let outcome = lossy_download(proxies, mode, AsClientsSay);
        assert_eq!(outcome, lossy_download(proxies, mode, expected), "{mode:?}, {proxies} proxies");
        assert_ne!(outcome, lossy_download(proxies, mode, other), "{mode:?}, {proxies} proxies");
    }
}

/// The packets that an origin takes for lost, and those that it sends.
fn lost_at_origin(detection: LossDetection, key_exchange: KeyExchange) -> (u64, u64) {
    let access = LinkConfig { loss: Ratio::of(5, 100).into(), ..scenario(1).access };
    let (file, origin_detection) = (ByteCount::new(2_000_000), Some(detection));
    let scenario = Scenario { file, access, origin_detection, key_exchange, ..scenario(1) };
    let stats = scenario.run(|testbed| {
        testbed.finish();
        testbed.world.node_mut(testbed.origin).stats()
    });
    (stats.lost_packets, stats.sent_packets)
}

#[test]
fn an_origin_learns_from_two_packets_that_its_client_will_report() {
    for key_exchange in [KeyExchange::Classical, KeyExchange::Hybrid] {
        let (lost, sent) = lost_at_origin(LossDetection::AsClientsSay, key_exchange);
        assert!(lost * 100 < sent, "{key_exchange:?}: {lost} of {sent}");
        let (lost, sent) = lost_at_origin(LossDetection::Rfc9002, key_exchange);
        assert!(lost * 50 > sent, "with other thresholds there is a difference: {lost} of {sent}");
    }
}

#[test]
fn clients_without_a_tunnel_notice_nothing_of_an_origin_that_follows_reports() {
    for loss_percent in [0, 1, 5] {
        for seed in 1..=3 {
            let download = |origin_controller| {
                let access =
                    LinkConfig { loss: Ratio::of(loss_percent, 100).into(), ..scenario(0).access };
                let file = ByteCount::new(1_000_000);
                Scenario { file, access, origin_controller, ..Scenario::new(seed, 0) }.download()
            };
            let took = download(ControllerName::Bbr1).report().completion;
            let with_reports = download(ControllerName::Tecc).report().completion;
            let difference = with_reports.abs_diff(took);
            assert!(
                difference <= took / 50,
                "{loss_percent} % loss, seed {seed}: {took:?}, then {with_reports:?}"
            );
        }
    }
}
