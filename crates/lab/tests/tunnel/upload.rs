//! Tests of uploads through every kind of tunnel.

use tandem_congestion::ControllerName;
use tandem_node::{client::TunnelMode, error::ClientError, quic::ResetSecret};
use tandem_units::{ByteCount, Ratio};

use crate::{
    rmdt,
    scenario::{Scenario, certificate},
    tecc,
};

/// An upload of 2 MB over a link that loses 5 %.
fn lossy(proxies: usize, mode: TunnelMode) -> Scenario {
    let mut scenario =
        Scenario { uploads: true, takes_uploads: true, mode, ..Scenario::new(1, proxies) };
    scenario.access.loss = Ratio::of(5, 100).into();
    scenario
}

/// An upload over the same link whose sender follows its own end of the tunnel.
fn followed(proxies: usize) -> Scenario {
    Scenario {
        controller: ControllerName::Bbr1Tunnel,
        origin_controller: ControllerName::Tecc,
        ..lossy(proxies, tecc())
    }
}

#[test]
fn an_upload_arrives_over_a_lossy_link_in_every_mode() {
    for scenario in [
        lossy(0, TunnelMode::Mdt),
        lossy(1, TunnelMode::Mdt),
        lossy(1, TunnelMode::Mst),
        lossy(1, rmdt()),
        lossy(2, rmdt()),
        followed(1),
        followed(2),
    ] {
        let report = scenario.download().report().clone();
        assert_eq!((report.status, report.bytes), (204, 2_000_000), "{scenario:?}");
        let percent = report.completion.as_nanos() * 100 / scenario.ideal().as_nanos();
        assert!((95..=260).contains(&percent), "{percent} % of the ideal: {scenario:?}");
    }
}

#[test]
fn the_sender_of_an_upload_follows_its_own_end_of_the_tunnel_and_no_proxy_reports() {
    for proxies in [1, 2] {
        let scenario = followed(proxies);
        let (report, proxy, origin) = scenario.run(|testbed| {
            let report = testbed.finish().report().clone();
            let last = testbed.proxies[proxies - 1];
            let proxy = testbed.world.node_mut(last).stats();
            (report, proxy, testbed.world.node_mut(testbed.origin).stats())
        });
        let feedback = report.feedback;
        assert!(feedback.followed > 30 && feedback.followed == feedback.sent, "{feedback:?}");
        assert_eq!((feedback.stale, feedback.malformed), (0, 0));
        assert_eq!((proxy.feedback.sent, origin.feedback.followed), (0, 0));
        assert_eq!(origin.upload_bytes, 2_000_000);
    }
    let other = lossy(1, rmdt()).download().report().clone();
    assert_eq!((other.feedback.sent, other.feedback.followed), (0, 0));
}

#[test]
fn an_upload_goes_on_after_a_proxy_has_restarted() {
    let reset_secret = Some(ResetSecret([7; 32]));
    let scenario = Scenario { reset_secret, ..followed(1) };
    let (outcome, before) = scenario.run(|testbed| {
        let (origin, half) = (testbed.origin, ByteCount::new(1_000_000));
        let limit = std::time::Duration::from_secs(60);
        assert!(testbed.world.run_until(limit, |world| world.node(origin).uploaded() >= half));
        let before = testbed.world.node_mut(testbed.client).stats().feedback.followed;
        let proxy = testbed.proxies[0];
        testbed.world.replace(proxy, scenario.proxy(&certificate(), 1));
        (testbed.finish(), before)
    });
    assert_eq!(outcome.lost.len(), 1, "{outcome:?}");
    let used = outcome.report().feedback.followed;
    assert!(before > 10 && used > before + 10, "{before} reports before, {used} in all");
}

#[test]
fn an_origin_takes_no_uploads_unless_it_is_told_to() {
    for proxies in [0, 1] {
        let outcome =
            Scenario { takes_uploads: false, ..lossy(proxies, TunnelMode::Mdt) }.download();
        let ClientError::Status { status, url } = outcome.error() else {
            panic!("{outcome:?}");
        };
        assert_eq!((*status, &*url.to_string()), (405, "https://origin.test/file"));
    }
}
