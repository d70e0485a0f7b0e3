use std::time::Duration;

/// Powers of two of microseconds that are told apart, up to 8.4 s.
const BUCKETS: usize = 24;

/// How much later than due packets left the emulator: what makes it differ from its model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lateness {
    /// Packets by lateness: below 1 us, then below 2, 4, 8 us and so on; the last one is open.
    buckets: [u64; BUCKETS],
    max: Duration,
}

impl Lateness {
    pub(super) fn count(&mut self, lateness: Duration) {
        let bits = u128::BITS - lateness.as_micros().leading_zeros();
        let bucket = usize::try_from(bits).unwrap_or(BUCKETS).min(BUCKETS - 1);
        if let Some(packets) = self.buckets.get_mut(bucket) {
            *packets += 1;
        }
        self.max = self.max.max(lateness);
    }

    /// What so many percent of the packets were not later than, rounded up to a power of two of
    /// microseconds, but never above [`Self::max`]; zero if there were none.
    pub(crate) fn percentile(&self, percent: u64) -> Duration {
        let total: u64 = self.buckets.iter().sum();
        let enough = (u128::from(total) * u128::from(percent)).div_ceil(100);
        let mut seen = 0;
        for (bucket, packets) in (0..BUCKETS - 1).zip(self.buckets) {
            seen += u128::from(packets);
            if seen >= enough {
                return Duration::from_micros(1 << bucket).min(self.max);
            }
        }
        self.max
    }

    /// The latest packet.
    pub(crate) fn max(&self) -> Duration {
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn percentiles_are_rounded_up_to_powers_of_two() {
        let mut lateness = Lateness::default();
        assert_eq!((lateness.percentile(50), lateness.max()), (Duration::ZERO, Duration::ZERO));
        for _ in 0..98 {
            lateness.count(100 * US);
        }
        lateness.count(US / 2);
        lateness.count(5000 * US);
        for (percent, expected) in [(1, US), (2, 128 * US), (99, 128 * US), (100, 5000 * US)] {
            assert_eq!(lateness.percentile(percent), expected, "{percent} %");
        }
        assert_eq!(lateness.max(), 5000 * US);
    }

    #[test]
    fn what_is_later_than_the_last_power_counts_too() {
        let mut lateness = Lateness::default();
        lateness.count(Duration::from_secs(3600));
        assert_eq!(lateness.max(), Duration::from_secs(3600));
        assert_eq!(lateness.percentile(50), lateness.max());
    }
}
