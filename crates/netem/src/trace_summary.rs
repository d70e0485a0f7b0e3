use std::time::Duration;

use tandem_units::Rate;

use crate::{OPPORTUNITY, RateTrace};

/// The length of the windows over which percentiles of the rate are taken.
const WINDOW_MS: u32 = 500;

/// The key figures of a trace. Rates count 1504 bytes for each line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSummary {
    /// The length of the trace.
    pub duration: Duration,
    /// The number of opportunities.
    pub lines: usize,
    /// Mean rate, in bit/s.
    pub mean: u64,
    /// 5th percentile of the rates over 500 ms, in bit/s. Only whole windows count. If there are
    /// none, this is the mean.
    pub low: u64,
    /// 95th percentile of the same rates.
    pub high: u64,
    /// The longest time without an opportunity, in a trace that repeats.
    pub longest_gap: Duration,
}

impl RateTrace {
    /// The key figures of the trace.
    pub fn summary(&self) -> TraceSummary {
        let lines = self.lines_ms();
        let gaps =
            lines.iter().zip(std::iter::once(&0).chain(lines)).map(|(at, before)| at - before);
        let mean = Rate::bits_per_second(self.mean_rate());
        let mut windows = self.windows();
        windows.sort_unstable();
        TraceSummary {
            duration: self.duration(),
            lines: lines.len(),
            mean,
            low: percentile(&windows, 5).unwrap_or(mean),
            high: percentile(&windows, 95).unwrap_or(mean),
            longest_gap: Duration::from_millis(gaps.max().unwrap_or_default().into()),
        }
    }

    /// The rates over whole windows, in bit/s. An opportunity at the border belongs to the window
    /// that ends there.
    fn windows(&self) -> Vec<u64> {
        let length_ms = self.lines_ms().last().copied().unwrap_or_default();
        let mut windows = vec![0; (length_ms / WINDOW_MS) as usize];
        for at_ms in self.lines_ms() {
            if let Some(bits) = windows.get_mut((at_ms.saturating_sub(1) / WINDOW_MS) as usize) {
                *bits += OPPORTUNITY.get() * 8 * 1000 / u64::from(WINDOW_MS);
            }
        }
        windows
    }
}

/// A percentile, interpolated linearly between the two nearest of the sorted values and rounded
/// down.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    let (index, rest) = (last * percent / 100, (last * percent % 100) as u64);
    let (left, right) = (*sorted.get(index)?, *sorted.get((index + 1).min(last))?);
    Some(left + (right - left) * rest / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_equals_a_calculation_by_hand() {
        // The windows have 1, 2, 0 and 5 opportunities. One opportunity per window is 24 064 bit/s.
        let lines = vec![500, 501, 1000, 1501, 1600, 1700, 1800, 2000, 2100];
        let summary = RateTrace::from_millis(lines).unwrap().summary();
        let one = 24_064;
        assert_eq!(
            summary,
            TraceSummary {
                duration: Duration::from_millis(2100),
                lines: 9,
                mean: 9 * 12_032 * 1000 / 2100,
                low: one * 15 / 100,
                high: 2 * one + 3 * one * 85 / 100,
                longest_gap: Duration::from_millis(501),
            }
        );
    }

    #[test]
    fn the_percentiles_of_a_short_trace_are_its_mean() {
        let summary = RateTrace::from_millis(vec![0, 0, 40]).unwrap().summary();
        assert_eq!((summary.low, summary.high), (summary.mean, summary.mean));
        assert_eq!(summary.longest_gap, Duration::from_millis(40));
    }
}
