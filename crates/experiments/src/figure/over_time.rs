//! Lines of one run over time: of both layers, of both queues, or of all flows.

use super::{Measure, Point, Series};
use crate::run::{RunRecord, Sample};

/// One line of a run: its name, and its value in a sample.
type Line = (&'static str, fn(&Sample) -> Option<f64>);

/// The lines of a measure. A measure with one value for each run has none.
#[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bytes")]
const fn lines(measure: Measure) -> &'static [Line] {
    match measure {
        Measure::PacingRate => &[
            ("end to end", |sample| sample.e2e_pacing_mbps),
            ("tunnel", |sample| sample.tunnel_pacing_mbps),
        ],
        Measure::Srtt => &[
            ("end to end", |sample| sample.e2e_srtt_ms),
            ("tunnel", |sample| sample.tunnel_srtt_ms),
        ],
        Measure::Queue => &[
            ("tunnel", |sample| Some(sample.tunnel_queue_bytes as f64 / 1e3)),
            ("access link", |sample| Some(sample.link_queue_bytes as f64 / 1e3)),
        ],
        _ => &[],
    }
}

/// The lines of the first of these runs that kept samples, in the panel with this number.
pub(super) fn series(panel: usize, measure: Measure, records: &[&RunRecord]) -> Vec<Series> {
    let Some(record) = records.iter().find(|record| !record.series.is_empty()) else {
        return Vec::new();
    };
    let mode = record.parameters.mode;
    if measure == Measure::Throughput {
        return throughput(panel, record);
    }
    let line = |(name, value): &Line| {
        let point = |sample: &Sample| value(sample).map(|value| point(sample.at_s, value));
        let points = record.series.iter().filter_map(point).collect();
        Series { panel, mode, variant: Some((*name).to_owned()), points }
    };
    lines(measure).iter().map(line).filter(|series| !series.points.is_empty()).collect()
}

fn point(x: f64, value: f64) -> Point {
    let x_text = format!("{x:.2}s");
    Point { x, x_text, value, low: value, high: value, runs: 1, completed: 1 }
}

/// The approximate number of points of a line.
const THROUGHPUT_POINTS: usize = 60;

/// The body bits per second of each flow from one point to the next.
#[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bytes")]
fn throughput(panel: usize, record: &RunRecord) -> Vec<Series> {
    let mode = record.parameters.mode;
    let every = record.series.len().div_ceil(THROUGHPUT_POINTS).max(1);
    let moments = || record.series.iter().zip(&record.flow_bytes).step_by(every);
    let between = |number: usize, first: (&Sample, &Vec<u64>), last: (&Sample, &Vec<u64>)| {
        let arrived = |bytes: &[u64]| bytes.get(number).copied().unwrap_or_default();
        let bytes = arrived(last.1).saturating_sub(arrived(first.1));
        let seconds = last.0.at_s - first.0.at_s;
        point(last.0.at_s, bytes as f64 * 8.0 / 1e6 / seconds)
    };
    let line = |number: usize| {
        let pairs = moments().zip(moments().skip(1));
        let points = pairs.map(|(first, last)| between(number, first, last)).collect();
        Series { panel, mode, variant: Some(format!("flow {}", number + 1)), points }
    };
    (0..record.flows.len()).map(line).collect()
}
