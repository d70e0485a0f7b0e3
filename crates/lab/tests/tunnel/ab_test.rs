//! A/B tests at a proxy: what users get, and what is counted.

use tandem_node::{
    Stats,
    proxy::{AbTest, Arm, TransferTimes},
};
use tandem_units::Ratio;

use crate::{SECOND, rmdt, scenario::Scenario, tecc};

/// Downloads through a proxy with this test. Returns how long it took in ms, and what the proxy has counted.
fn download(scenario: &Scenario) -> (u128, Stats) {
    scenario.run(|testbed| {
        let outcome = testbed.finish();
        testbed.world.run_for(5 * SECOND);
        let proxy = *testbed.proxies.first().expect("there is one");
        let proxy = testbed.world.node_mut(proxy);
        (outcome.report().completion.as_millis(), proxy.stats())
    })
}

fn lossy(ab_test: Option<AbTest>) -> Scenario {
    let mut scenario = Scenario { mode: tecc(), ab_test, ..Scenario::new(1, 1) };
    scenario.access.loss = Ratio::of(3, 100).into();
    scenario
}

/// The rows with a transfer.
fn counted(stats: &Stats) -> Vec<(Arm, &'static str, TransferTimes)> {
    stats.transfers.rows().filter(|(.., times)| times.count > 0).collect()
}

#[test]
fn users_get_the_mode_of_their_arm_and_their_transfers_are_counted_there() {
    for (text, arm) in [
        ("tecc=1000000,mdt=1", Arm::Tecc),
        ("rmdt=1000000,tecc=1", Arm::Rmdt),
        ("mdt=1000000,tecc=1", Arm::Mdt),
    ] {
        let (completion, stats) = download(&lossy(Some(text.parse().unwrap())));
        let rows = counted(&stats);
        let [(its_arm, size, times)] = rows[..] else { panic!("{text}: {rows:?}") };
        assert_eq!((its_arm, size, times.count), (arm, "1 to 10 MB", 1), "{text}");
        // The transfer begins with the first packet of the connection inside, and ends with its last one.
        let took = u128::from(times.micros / 1000);
        assert!(took.abs_diff(completion) < 400, "{text}: {took} and {completion} ms");
        let has_reports = stats.feedback.sent > 0;
        assert_eq!(has_reports, arm == Arm::Tecc, "{text}");
        assert_eq!(stats.repaired.sent_again > 0, arm != Arm::Mdt, "{text}");
    }
}

#[test]
fn who_asks_for_less_takes_no_part_and_without_a_test_nothing_is_counted() {
    let test = Some("mdt=1000000,tecc=1".parse().unwrap());
    let (_, stats) = download(&Scenario { mode: rmdt(), ..lossy(test) });
    assert_eq!(counted(&stats), []);
    assert!(stats.repaired.sent_again > 0, "the client gets what it asks for");
    let (_, stats) = download(&lossy(None));
    assert_eq!(counted(&stats), []);
    assert!(stats.feedback.sent > 0);
}
