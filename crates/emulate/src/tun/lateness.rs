use std::time::Duration;

use tandem_netem::DurationHistogram;

/// The lateness of packets: the time from a packet's due time until it left the emulator. A perfect
/// emulator has a lateness of zero.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    histogram: DurationHistogram,
    max: Duration,
}

impl Lateness {
    pub(super) fn count(&mut self, lateness: Duration) {
        self.histogram.record(lateness);
        self.max = self.max.max(lateness);
    }

    /// The lateness that this percentage of packets did not exceed, rounded up by at most a
    /// hundredth or a microsecond, but never above [`Self::max`]; zero if there were no packets.
    pub fn percentile(&self, percent: u8) -> Duration {
        self.histogram.percentile(percent).unwrap_or_default().min(self.max)
    }

    /// The lateness of the latest packet.
    pub fn max(&self) -> Duration {
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn percentiles_are_exact_to_a_hundredth_and_the_maximum_is_exact() {
        let mut lateness = Lateness::default();
        assert_eq!((lateness.percentile(50), lateness.max()), (Duration::ZERO, Duration::ZERO));
        for _ in 0..98 {
            lateness.count(100 * US);
        }
        lateness.count(US / 2);
        lateness.count(5003 * US);
        for (percent, expected) in [(1, US), (2, 100 * US), (99, 100 * US), (100, 5003 * US)] {
            assert_eq!(lateness.percentile(percent), expected, "{percent} %");
        }
        assert_eq!(lateness.max(), 5003 * US);
    }

    #[test]
    fn a_lateness_above_the_range_of_the_histogram_is_counted() {
        let mut lateness = Lateness::default();
        lateness.count(Duration::from_secs(7200));
        assert_eq!(lateness.max(), Duration::from_secs(7200));
        assert!(lateness.percentile(50) >= Duration::from_secs(3600));
    }
}
