//! What a sender is told of its datagrams is what the receiver has decoded.

mod engines;

use std::time::Duration;

use proptest::prelude::*;
use tandem_congestion::ControllerName;

use self::engines::{Conditions, Engines, Happening, Outcome};
use super::Delivery;

fn happenings() -> impl Strategy<Value = Vec<(Duration, Happening)>> {
    let happening = prop_oneof![
        Just(Happening::NewPort),
        Just(Happening::NewAddress),
        Just(Happening::KeyUpdate),
        (1220_usize..1500).prop_map(Happening::PathCarries),
    ];
    prop::collection::vec(((200_u64..3000).prop_map(Duration::from_millis), happening), 0..6)
}

fn conditions() -> impl Strategy<Value = Conditions> {
    let path = (0_u32..25, 0_u32..10, 1_u64..60, 0_u64..30);
    let traffic = (64_usize..1500, 20_u64..600, 500_u64..20_000);
    let controller = prop::sample::select(ControllerName::ALL.to_vec());
    (any::<u64>(), controller, path, traffic, happenings()).prop_map(
        |(
            seed,
            controller,
            (loss, repeat, delay, jitter),
            (longest, datagrams, interval),
            events,
        )| {
            // A datagram that fits the path of before would keep all others waiting for ever.
            let moves = events.iter().any(|(_, event)| *event == Happening::NewAddress);
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

/// All that must hold, whatever happened.
fn check(outcome: &Outcome) -> Result<(), TestCaseError> {
    prop_assert_eq!(outcome.told_twice, 0);
    for id in outcome.with(Delivery::Acked) {
        prop_assert!(outcome.received.contains_key(&id), "{} was acknowledged, but never came", id);
    }
    prop_assert_eq!(outcome.with(Delivery::Unknown).count(), 0);
    prop_assert!(outcome.received.values().all(|&times| times == 1));
    // An engine that has not validated a new path sends hardly anything any more, not even
    // acknowledgements.
    prop_assume!(outcome.is_complete() || !outcome.has_moved);
    prop_assert!(outcome.is_complete(), "{} of {}", outcome.verdicts.len(), outcome.taken);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, max_shrink_time: 10_000, ..ProptestConfig::default() })]
    #[test]
    fn what_a_sender_is_told_is_what_the_receiver_decoded(conditions in conditions()) {
        for outcome in Engines::new(conditions).run() {
            check(&outcome)?;
        }
    }

    #[test]
    fn without_reordering_only_what_was_lost_is_called_lost(mut conditions in conditions()) {
        conditions.jitter = Duration::ZERO;
        conditions.events.retain(|(_, event)| matches!(event, Happening::KeyUpdate));
        for outcome in Engines::new(conditions).run() {
            check(&outcome)?;
            // Acknowledgements that are lost themselves make some; there is no reordering to.
            let lost = outcome.with(Delivery::Lost).count();
            prop_assert!(outcome.spurious() * 20 <= lost, "{} of {}", outcome.spurious(), lost);
        }
    }
}

#[test]
fn what_was_sent_before_the_client_moved_is_told_too() {
    for happening in [Happening::NewPort, Happening::NewAddress] {
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
            events: vec![(Duration::from_millis(250), happening)],
        };
        for outcome in Engines::new(conditions).run() {
            assert!(outcome.has_moved && outcome.is_complete(), "{happening:?}");
            assert_eq!(outcome.with(Delivery::Acked).count() as u64, outcome.taken);
        }
    }
}
