//! The examples do what they say.

#[path = "../examples/origin_on_noq.rs"]
#[allow(dead_code, reason = "a test calls what `main` does")]
mod origin_on_noq;

use tandem_units::Rate;

use crate::origin_on_noq::Step;

#[test]
fn an_origin_on_bare_noq_sends_as_fast_as_it_is_told() {
    let steps = origin_on_noq::run().expect("loopback works");
    assert_eq!(steps.len(), 3);
    for Step { told, pacing } in steps {
        // A packet more an RTT, and less where the machine is too slow to send as fast.
        let ratio = pacing.bits_per_second() * 100 / told.bits_per_second();
        assert!((50..150).contains(&ratio), "told {told}, sends at {pacing}");
        assert!(pacing < Rate::from_mbps(20));
    }
}
