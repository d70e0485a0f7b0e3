//! Tests that run the examples.

#[path = "../examples/origin_on_noq.rs"]
#[allow(dead_code, reason = "a test calls what `main` does")]
mod origin_on_noq;

use tandem_units::Rate;

use crate::origin_on_noq::Step;

#[test]
fn an_origin_on_noq_sends_at_the_reported_rate() {
    let steps = origin_on_noq::run().expect("loopback works");
    assert_eq!(steps.len(), 3);
    for Step { reported, pacing } in steps {
        // The rate is one packet per RTT above the reported one, and lower if the machine is too
        // slow.
        let ratio = pacing.bits_per_second() * 100 / reported.bits_per_second();
        assert!((50..150).contains(&ratio), "reported {reported}, sends at {pacing}");
        assert!(pacing < Rate::from_mbps(20));
    }
}
