use std::time::Duration;

use hdrhistogram::Histogram;

/// A histogram of durations. Its error is at most a hundredth of a duration or a microsecond,
/// whichever is more. It takes 13 kB of memory for any number of durations.
#[derive(Clone, Debug)]
pub struct DurationHistogram(Histogram<u32>);

/// The longest duration that is distinguished, in microseconds: an hour. Longer durations count as
/// this one.
const LONGEST_MICROS: u64 = 3_600_000_000;

/// The number of significant decimal digits.
const DIGITS: u8 = 2;

impl DurationHistogram {
    /// The number of durations that were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The duration that this percentage of all durations does not exceed, rounded up; `None` before
    /// the first one.
    pub fn percentile(&self, percent: u8) -> Option<Duration> {
        let quantile = f64::from(percent.min(100)) / 100.0;
        let micros = (!self.0.is_empty()).then(|| self.0.value_at_quantile(quantile))?;
        Some(Duration::from_micros(micros))
    }

    /// Adds a duration.
    pub fn record(&mut self, duration: Duration) {
        let micros = duration.as_nanos().div_ceil(1000);
        self.0.saturating_record(u64::try_from(micros).unwrap_or(u64::MAX));
    }
}

impl Default for DurationHistogram {
    fn default() -> Self {
        let histogram = Histogram::new_with_max(LONGEST_MICROS, DIGITS);
        Self(histogram.expect("the histogram supports an hour with two digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_to_a_hundredth() {
        let mut histogram = DurationHistogram::default();
        assert_eq!((histogram.count(), histogram.percentile(50)), (0, None));
        for millis in 1..=1000 {
            histogram.record(Duration::from_millis(millis));
        }
        for (percent, millis) in [(0, 1), (5, 50), (50, 500), (95, 950), (99, 990), (100, 1000)] {
            let (seen, exact) =
                (histogram.percentile(percent).unwrap(), Duration::from_millis(millis));
            assert!(exact <= seen && seen <= exact + exact / 100, "{percent}%: {seen:?}");
        }
        assert_eq!(histogram.count(), 1000);
    }

    #[test]
    fn a_duration_above_an_hour_counts_as_an_hour() {
        let mut histogram = DurationHistogram::default();
        for duration in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            histogram.record(duration);
        }
        let micro = Duration::from_micros(1);
        assert_eq!(
            (histogram.percentile(0), histogram.percentile(50)),
            (Some(Duration::ZERO), Some(micro))
        );
        assert!(histogram.percentile(100).unwrap() >= Duration::from_secs(3600));
    }
}
