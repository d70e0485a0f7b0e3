//! A/B tests of modes: how long the transfers of the users in each arm took, and what that says.

use tandem_node::proxy::{Arm, TransferTimes, Transfers};

use super::now::AbTimes;

/// The fewest transfers in each of two arms for which there is a confidence interval. It is that of a normal
/// distribution, which fewer need not have.
const TRANSFERS_MIN: u64 = 30;

/// The 97.5th percentile of the normal distribution, for an interval that has the true value in 95 of 100 tests.
const Z: f64 = 1.959_964;

/// How long transfers of one arm take, as a part of those of another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AbRatio {
    /// The ratio of the geometric means. Below 1, the transfers of the arm are faster.
    pub ratio: f64,
    /// The ends of its confidence interval of 95 %. `None`: an arm has fewer than 30 transfers.
    pub interval: Option<(f64, f64)>,
}

impl AbTimes {
    /// The geometric mean in seconds.
    pub fn geometric_mean_s(&self) -> f64 {
        self.log_mean.exp()
    }

    /// The times as a part of those of another arm. The transfers count as independent of each other.
    pub fn over(&self, other: &Self) -> AbRatio {
        let difference = self.log_mean - other.log_mean;
        let has_enough = self.transfers.min(other.transfers) >= TRANSFERS_MIN;
        let part = |times: &Self| times.log_variance / float(times.transfers.max(1));
        let half = Z * (part(self) + part(other)).sqrt();
        let interval = ((difference - half).exp(), (difference + half).exp());
        AbRatio { ratio: difference.exp(), interval: has_enough.then_some(interval) }
    }

    /// Adds the times of another server.
    pub fn add(&mut self, other: &Self) {
        let (ours, theirs) = (float(self.transfers), float(other.transfers));
        let all = ours + theirs;
        if all == 0.0 {
            return;
        }
        let distance = other.log_mean - self.log_mean;
        let squares = self.log_variance * (ours - 1.0).max(0.0)
            + other.log_variance * (theirs - 1.0).max(0.0)
            + distance * distance * ours * theirs / all;
        self.mean_s = (self.mean_s * ours + other.mean_s * theirs) / all;
        self.log_mean = (self.log_mean * ours + other.log_mean * theirs) / all;
        self.log_variance = squares / (all - 1.0).max(1.0);
        self.transfers += other.transfers;
    }
}

/// The times of all nodes: those of each arm and size with a transfer.
pub(super) fn times<'a>(nodes: impl Iterator<Item = &'a Transfers>) -> Vec<AbTimes> {
    let mut sums: Vec<(Arm, &str, TransferTimes)> = Transfers::default().rows().collect();
    for node in nodes {
        for ((.., sum), (.., times)) in sums.iter_mut().zip(node.rows()) {
            sum.add(&times);
        }
    }
    sums.retain(|(.., times)| times.count > 0);
    sums.into_iter().map(|(arm, size, times)| of(arm, size, times)).collect()
}

fn of(arm: Arm, size: &str, times: TransferTimes) -> AbTimes {
    let count = float(times.count);
    let log_mean = float(times.logs) / 1e6 / count;
    let squares = float(times.log_squares) / 1e6 - log_mean * log_mean * count;
    AbTimes {
        mode: arm.name().to_owned(),
        size: size.to_owned(),
        transfers: times.count,
        mean_s: float(times.micros) / 1e6 / count,
        log_mean: log_mean - 1e6_f64.ln(), // from microseconds
        log_variance: squares.max(0.0) / (count - 1.0).max(1.0),
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
const fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The times in these seconds.
    fn of_seconds(seconds: &[f64]) -> AbTimes {
        let mut sum = TransferTimes::default();
        for seconds in seconds {
            sum.add(&TransferTimes::of(Duration::from_secs_f64(*seconds)));
        }
        of(Arm::Tecc, "1 to 10 MB", sum)
    }

    fn assert_close(one: f64, other: f64, what: &str) {
        assert!((one - other).abs() < 1e-4, "{what}: {one}, {other}");
    }

    #[test]
    fn means_and_variance_are_those_of_the_times() {
        let times = of_seconds(&[1.0, 2.0, 4.0]);
        assert_eq!(times.transfers, 3);
        assert_close(times.mean_s, 7.0 / 3.0, "mean");
        assert_close(times.geometric_mean_s(), 2.0, "geometric mean");
        assert_close(times.log_variance, 2_f64.ln().powi(2), "variance");
    }

    #[test]
    fn the_times_of_two_servers_are_those_of_all_transfers() {
        let (one, other) = ([0.5, 1.5, 9.0, 0.1], [3.0, 4.0]);
        let mut sum = of_seconds(&one);
        sum.add(&of_seconds(&other));
        let all = of_seconds(&[&one[..], &other].concat());
        assert_eq!(sum.transfers, all.transfers);
        assert_close(sum.mean_s, all.mean_s, "mean");
        assert_close(sum.log_mean, all.log_mean, "mean of logarithms");
        assert_close(sum.log_variance, all.log_variance, "variance");
        let before = sum.clone();
        sum.add(&AbTimes::default());
        assert_eq!(sum, before);
    }

    #[test]
    fn a_ratio_has_an_interval_if_both_arms_have_enough_transfers() {
        let slow: Vec<_> = (0..40).map(|it| 2.0 * f64::from(it % 4 + 1)).collect();
        let fast: Vec<_> = slow.iter().map(|it| it / 2.0).collect();
        let AbRatio { ratio, interval } = of_seconds(&fast).over(&of_seconds(&slow));
        assert_close(ratio, 0.5, "ratio");
        let (low, high) = interval.unwrap();
        assert_close(low * high, 0.25, "symmetric for logarithms");
        let deviation = of_seconds(&fast).log_variance.sqrt();
        assert_close(high, 0.5 * (Z * deviation * (2.0_f64 / 40.0).sqrt()).exp(), "upper end");
        assert_eq!(of_seconds(&fast[..29]).over(&of_seconds(&slow)).interval, None);
    }
}
