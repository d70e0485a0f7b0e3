//! Lines of one run over time: of both layers, of both queues, or of all flows. Or the throughput of several
//! runs, each of which is a line.

use super::{Measure, Point, Series, panel::value};
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

/// The lines of the first of these runs that kept samples, in the panel with this number. With the name of a
/// parameter, the throughput of the first run with each of its values.
pub(super) fn series(
    panel: usize,
    (measure, parameter): (Measure, Option<&str>),
    records: &[&RunRecord],
) -> Vec<Series> {
    if let Some(parameter) = parameter {
        return throughput_by(panel, parameter, records);
    }
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
fn throughput(panel: usize, record: &RunRecord) -> Vec<Series> {
    let mode = record.parameters.mode;
    let line = |number: usize| {
        let of_flow = |bytes: &Vec<u64>| bytes.get(number).copied().unwrap_or_default();
        let points = rates(record, record.flow_bytes.iter().map(of_flow));
        Series { panel, mode, variant: Some(format!("flow {}", number + 1)), points }
    };
    (0..record.flows.len()).map(line).collect()
}

/// The body bits per second of all flows together, for the first run with each value of a parameter.
fn throughput_by(panel: usize, parameter: &str, records: &[&RunRecord]) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    for record in records.iter().filter(|record| !record.series.is_empty()) {
        let variant = Some(value(record, parameter).1);
        if lines.iter().all(|line| line.variant != variant) {
            let points = rates(record, record.series.iter().map(|sample| sample.body_bytes));
            lines.push(Series { panel, mode: record.parameters.mode, variant, points });
        }
    }
    lines
}

/// The bits per second from one point to the next. `arrived` is what has arrived at each sample.
#[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bytes")]
fn rates(record: &RunRecord, arrived: impl Iterator<Item = u64> + Clone) -> Vec<Point> {
    let every = record.series.len().div_ceil(THROUGHPUT_POINTS).max(1);
    let moments = record.series.iter().map(|sample| sample.at_s).zip(arrived).step_by(every);
    let pairs = moments.clone().zip(moments.skip(1));
    let rate = |((first, before), (last, after)): ((f64, u64), (f64, u64))| {
        let bytes = after.saturating_sub(before);
        point(last, bytes as f64 * 8.0 / 1e6 / (last - first))
    };
    pairs.map(rate).collect()
}
