//! Delivery reports agree with the datagrams that the receiver has decoded.

mod engines;

use std::time::Duration;

use proptest::prelude::*;
use tandem_congestion::ControllerName;

use self::engines::{Conditions, Engines, Incident, Outcome};
use super::Delivery;

fn incidents() -> impl Strategy<Value = Vec<(Duration, Incident)>> {
    let incident = prop_oneof![
        Just(Incident::NewPort),
        Just(Incident::NewAddress),
        Just(Incident::KeyUpdate),
        (1220_usize..1500).prop_map(Incident::PathCarries),
    ];
    prop::collection::vec(((200_u64..3000).prop_map(Duration::from_millis), incident), 0..6)
}

fn conditions() -> impl Strategy<Value = Conditions> {
    let path = (0_u32..25, 0_u32..10, 1_u64..60, 0_u64..30);
    let traffic = (64_usize..1500, 20_u64..600, 500_u64..20_000);
    let controller = prop::sample::select(ControllerName::ALL.to_vec());
    (any::<u64>(), controller, path, traffic, incidents()).prop_map(
        |(
            seed,
            controller,
            (loss, repeat, delay, jitter),
            (longest, datagrams, interval),
            events,
        )| {
            // A datagram that fits only the old path would block all others without end.
            let moves = events.iter().any(|(_, event)| *event == Incident::NewAddress);
            Conditions {
                seed,
                controller,
                loss_percent: loss,
                repeat_percent: repeat,
                delay: Duration::from_millis(delay),
                jitter: Duration::from_millis(jitter),
                longest: if moves { longest.min(1100) } else { longest },
                datagrams,
                interval: Duration::from_micros(interval),
                events,
            }
        },
    )
}

/// Checks the rules that hold under all conditions.
fn check(outcome: &Outcome) -> Result<(), TestCaseError> {
    prop_assert_eq!(outcome.reported_twice, 0);
    for id in outcome.with(Delivery::Acked) {
        prop_assert!(
            outcome.received.contains_key(&id),
            "{} was acknowledged, but never arrived",
            id
        );
    }
    prop_assert_eq!(outcome.with(Delivery::Unknown).count(), 0);
    prop_assert!(outcome.received.values().all(|&times| times == 1));
    prop_assert!(outcome.is_accounted_for(), "{}", outcome.summary());
    // An engine that could not validate a new path sends nearly nothing, not even acknowledgements.
    let must_end = outcome.has_good_path() && !outcome.has_moved;
    prop_assert!(outcome.is_complete() || !must_end, "{}", outcome.summary());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, max_shrink_time: 10_000, ..ProptestConfig::default() })]
    #[test]
    fn delivery_reports_agree_with_the_decoded_datagrams(conditions in conditions()) {
        for outcome in Engines::new(conditions).run() {
            check(&outcome)?;
        }
    }

    #[test]
    fn without_reordering_only_lost_datagrams_are_reported_as_lost(mut conditions in conditions()) {
        conditions.jitter = Duration::ZERO;
        conditions.events.retain(|(_, event)| matches!(event, Incident::KeyUpdate));
        for outcome in Engines::new(conditions).run() {
            check(&outcome)?;
            // Only lost acknowledgements cause spurious losses, because there is no reordering.
            let (spurious, lost) = (outcome.spurious(), outcome.with(Delivery::Lost).count());
            let is_seldom = spurious * 20 <= lost;
            prop_assert!(is_seldom || !outcome.has_good_path(), "{} of {}", spurious, lost);
        }
    }
}

#[test]
fn datagrams_sent_before_a_migration_are_reported_too() {
    for incident in [Incident::NewPort, Incident::NewAddress] {
        let conditions = Conditions {
            seed: 1,
            controller: ControllerName::Bbr1,
            loss_percent: 0,
            repeat_percent: 0,
            delay: Duration::from_millis(20),
            jitter: Duration::ZERO,
            longest: 1000,
            datagrams: 1000,
            interval: Duration::from_millis(1),
            events: vec![(Duration::from_millis(250), incident)],
        };
        for outcome in Engines::new(conditions).run() {
            assert!(outcome.has_moved && outcome.is_complete(), "{incident:?}");
            assert_eq!(outcome.with(Delivery::Acked).count() as u64, outcome.taken);
        }
    }
}

#[test]
fn what_an_engine_could_not_send_in_time_is_accounted_for() {
    let conditions = |seed| Conditions {
        seed,
        controller: ControllerName::NewReno,
        loss_percent: 17,
        repeat_percent: 6,
        delay: Duration::from_millis(44),
        jitter: Duration::from_millis(3),
        longest: 1479,
        datagrams: 456,
        interval: Duration::from_micros(4942),
        events: vec![(Duration::from_millis(313), Incident::PathCarries(1410))],
    };
    for outcome in (0..20).flat_map(|seed| Engines::new(conditions(seed)).run()) {
        check(&outcome).unwrap_or_else(|error| panic!("{error}"));
    }
}
