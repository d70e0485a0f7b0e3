//! Whatever the path does, each fate is told once, what is acknowledged has arrived, and nothing stays in flight.

use std::time::Duration;

use proptest::prelude::*;
use tandem_congestion::ControllerName;

use crate::{
    model::{Link, Load, World},
    owner::Fate,
};

fn link() -> impl Strategy<Value = Link> {
    let rate = prop::option::of((100_000..20_000_000_u64, 3_000..500_000_u64));
    (
        (0..200_000_u64, prop_oneof![Just(0), 0..100_000_u64]),
        prop_oneof![Just(0), 0..300_u32],
        prop_oneof![Just(0), 0..200_u32],
        prop_oneof![Just(0), 0..300_u32],
        rate,
        (0..3000_u64, prop_oneof![Just(0), 0..3000_u64]),
        any::<bool>(),
    )
        .prop_map(
            |((delay, jitter), lost, duplicated, marked, rate, (from, len), clears_ecn)| {
                let ms = Duration::from_millis;
                Link {
                    delay: Duration::from_micros(delay),
                    jitter: Duration::from_micros(jitter),
                    lost,
                    duplicated,
                    marked,
                    rate,
                    outage: ms(from)..ms(from + len),
                    clears_ecn,
                }
            },
        )
}

fn load() -> impl Strategy<Value = Load> {
    (0..1500_u64, 10..20_000_u64, 1..200_u64, (0..1300_usize, 1..1300_usize)).prop_map(
        |(datagrams, micros, burst, (start, len))| Load {
            datagrams,
            interval: Duration::from_micros(micros),
            burst,
            len: start..start + len,
        },
    )
}

fn controller() -> impl Strategy<Value = ControllerName> {
    prop::sample::select(vec![
        ControllerName::Bbr1,
        ControllerName::Bbr1Tunnel,
        ControllerName::Tecc,
        ControllerName::Mdcc,
        ControllerName::NewReno,
        ControllerName::Off,
    ])
}

proptest! {
    #[test]
    fn fates_are_told_once_and_are_true(
        controller in controller(),
        loads in (load(), load()),
        links in (link(), link()),
        seed: u64,
    ) {
        let mut world = World::new(controller, [(loads.0, links.0), (loads.1, links.1)], seed);
        world.run(Duration::from_secs(600));
        world.check();
        prop_assert!(world.is_done(), "{:?}", world.ends.each_ref().map(|it| it.transport.counts()));
        let seconds = (world.now - world.start).as_secs() + 1;
        for end in &world.ends {
            let transport = &end.transport;
            prop_assert_eq!(transport.bytes_in_flight().get(), 0);
            prop_assert_eq!(transport.next_timeout(), None, "an idle transport has no timer");
            prop_assert!(end.timeouts <= 1500 * seconds, "{} wakes", end.timeouts);
            let counts = transport.counts().recovery;
            let told = end.owner.count(Fate::Lost) + end.owner.count(Fate::LateAcked);
            prop_assert!(told == 0 || counts.lost_packets > 0);
            prop_assert!(transport.memory() < 8000, "{} bytes when idle", transport.memory());
        }
    }
}
