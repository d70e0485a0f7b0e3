use std::time::Duration;

use hdrhistogram::Histogram;

/// Times that packets spent in a queue and in transmission, to within a hundredth of each or a
/// microsecond, whichever is more. 13 kB, however many there are.
#[derive(Clone, Debug)]
pub struct Sojourns(Histogram<u32>);

/// One that is longer counts as this, in microseconds: an hour.
const LONGEST_MICROS: u64 = 3_600_000_000;

/// Significant decimal digits.
const DIGITS: u8 = 2;

impl Sojourns {
    /// How many packets.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time within which so many percent of the packets went through, rounded up; `None` before
    /// the first.
    pub fn percentile(&self, percent: u8) -> Option<Duration> {
        let quantile = f64::from(percent.min(100)) / 100.0;
        let micros = (!self.0.is_empty()).then(|| self.0.value_at_quantile(quantile))?;
        Some(Duration::from_micros(micros))
    }

    pub(super) fn record(&mut self, sojourn: Duration) {
        let micros = sojourn.as_nanos().div_ceil(1000);
        self.0.saturating_record(u64::try_from(micros).unwrap_or(u64::MAX));
    }
}

impl Default for Sojourns {
    fn default() -> Self {
        let histogram = Histogram::new_with_max(LONGEST_MICROS, DIGITS);
        Self(histogram.expect("an hour and two digits are within what it can do"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_to_a_hundredth() {
        let mut sojourns = Sojourns::default();
        assert_eq!((sojourns.count(), sojourns.percentile(50)), (0, None));
        for millis in 1..=1000 {
            sojourns.record(Duration::from_millis(millis));
        }
        for (percent, millis) in [(0, 1), (5, 50), (50, 500), (95, 950), (99, 990), (100, 1000)] {
            let (seen, exact) =
                (sojourns.percentile(percent).unwrap(), Duration::from_millis(millis));
            assert!(exact <= seen && seen <= exact + exact / 100, "{percent}%: {seen:?}");
        }
        assert_eq!(sojourns.count(), 1000);
    }

    #[test]
    fn what_is_longer_than_an_hour_counts_as_one() {
        let mut sojourns = Sojourns::default();
        for sojourn in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            sojourns.record(sojourn);
        }
        let micro = Duration::from_micros(1);
        assert_eq!(
            (sojourns.percentile(0), sojourns.percentile(50)),
            (Some(Duration::ZERO), Some(micro))
        );
        assert!(sojourns.percentile(100).unwrap() >= Duration::from_secs(3600));
    }
}
