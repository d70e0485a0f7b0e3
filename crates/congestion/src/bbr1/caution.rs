//! Careful probes. A queue that holds far less than the path loses most of what a probe with a gain of
//! 2 sends beyond the bandwidth, and no such probe finds more.

use tandem_units::Rate;

use super::gain;
use crate::Factor;

/// The growth of the bandwidth after which probes have their full gain again.
const GROWTH: Factor = Factor::from_thousandths(1100);

/// The share of the bandwidth below which they have it again, too: the link has become another one.
const SLUMP: Factor = Factor::from_percent(50);

/// Whether probes must be careful.
#[derive(Clone, Debug, Default)]
pub(super) struct Caution {
    /// The bandwidth at which a probe with the full gain overflowed a short queue.
    since: Option<Rate>,
}

impl Caution {
    /// Begins: a probe at `bandwidth` has overflowed a short queue.
    pub(super) fn begin(&mut self, bandwidth: Option<Rate>) {
        self.since = self.since.or(bandwidth);
    }

    /// Ends: the queue is long.
    pub(super) const fn end(&mut self) {
        self.since = None;
    }

    /// Ends if the bandwidth is no longer what it was.
    pub(super) fn on_round(&mut self, bandwidth: Option<Rate>) {
        self.since = self.since.filter(|&since| {
            bandwidth.is_some_and(|now| now < GROWTH.of_rate(since) && now > SLUMP.of_rate(since))
        });
    }

    /// Returns the gain of a probe whose full gain is `up`; that of the draft while there is caution.
    pub(super) fn gain(&self, up: Factor) -> Factor {
        if self.since.is_some() { up.min(gain::FULL_BANDWIDTH) } else { up }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Factor = Factor::from_percent(200);
    const CAREFUL: Factor = Factor::from_percent(125);

    #[test]
    fn probes_are_careful_until_the_bandwidth_has_changed() {
        for (mbps, gain) in [(50, FULL), (51, CAREFUL), (109, CAREFUL), (110, FULL)] {
            let mut caution = Caution::default();
            assert_eq!(caution.gain(FULL), FULL);
            caution.begin(Some(Rate::from_mbps(100)));
            assert_eq!(caution.gain(FULL), CAREFUL);
            caution.on_round(Some(Rate::from_mbps(mbps)));
            assert_eq!(caution.gain(FULL), gain, "{mbps} Mbit/s");
        }
    }

    #[test]
    fn a_second_overflow_does_not_move_the_bandwidth_that_ends_caution() {
        let mut caution = Caution::default();
        caution.begin(Some(Rate::from_mbps(100)));
        caution.begin(Some(Rate::from_mbps(109)));
        caution.on_round(Some(Rate::from_mbps(110)));
        assert_eq!(caution.gain(FULL), FULL);
    }

    #[test]
    fn a_long_queue_ends_caution_and_a_smaller_gain_stays() {
        let mut caution = Caution::default();
        caution.begin(Some(Rate::from_mbps(100)));
        assert_eq!(caution.gain(Factor::from_percent(110)), Factor::from_percent(110));
        caution.end();
        assert_eq!(caution.gain(FULL), FULL);
    }
}
