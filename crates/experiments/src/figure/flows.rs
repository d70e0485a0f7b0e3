//! Completion times of the flows of many runs.

use super::Point;
use crate::run::RunRecord;

/// The statistics that are drawn, from left to right: the mean, and percentiles as ranks among 10
/// 000 flows.
const DRAWN: [(&str, Option<usize>); 5] = [
    ("mean", None),
    ("median", Some(5_000)),
    ("p95", Some(9_500)),
    ("p99", Some(9_900)),
    ("p99.9", Some(9_990)),
];

/// A point for each statistic, in seconds. With `bases` it is the increase over the least of them,
/// in per cent.
#[expect(clippy::cast_precision_loss, reason = "five places")]
pub(super) fn points(records: &[&RunRecord], bases: &[Vec<&RunRecord>]) -> Vec<Point> {
    let flows = || records.iter().flat_map(|record| &record.flows);
    let (runs, completed) = (flows().count(), flows().filter(|flow| flow.completed).count());
    let ours = sorted(records);
    let bases: Vec<_> = bases.iter().map(|base| sorted(base)).collect();
    let point = |(place, (name, rank)): (usize, (&str, Option<usize>))| {
        let ours_s = drawn(&ours, rank)?;
        let least = bases.iter().filter_map(|base| drawn(base, rank)).min_by(f64::total_cmp);
        let value = least.map_or(ours_s, |least| (ours_s / least - 1.0) * 100.0);
        let x = place as f64 + 1.0;
        let (low, high) = (value, value);
        Some(Point { x, x_text: name.to_owned(), value, low, high, runs, completed })
    };
    DRAWN.into_iter().enumerate().filter_map(point).collect()
}

/// The completion times of all flows. Flows that did not complete count as the time limit.
fn sorted(records: &[&RunRecord]) -> Vec<f64> {
    let mut times: Vec<_> = records.iter().flat_map(|run| run.counted_flows_s()).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// The value at the nearest rank, or the mean.
#[expect(clippy::cast_precision_loss, reason = "exact below 2^53 flows")]
fn drawn(sorted: &[f64], rank: Option<usize>) -> Option<f64> {
    match rank {
        None if sorted.is_empty() => None,
        None => Some(sorted.iter().sum::<f64>() / sorted.len() as f64),
        Some(rank) => {
            let place = (sorted.len() * rank).div_ceil(10_000);
            sorted.get(place.checked_sub(1)?).copied()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let times: Vec<_> = (1..=1000).map(f64::from).collect();
        let seen = DRAWN.map(|(_, rank)| drawn(&times, rank));
        assert_eq!(seen, [500.5, 500.0, 950.0, 990.0, 999.0].map(Some));
        assert_eq!(drawn(&[], Some(9_900)), None);
        assert_eq!(drawn(&[], None), None);
    }
}
