//! The panels of a figure: the tables `[[panel]]` of its plan.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use serde_with::{OneOrMany, serde_as};

use super::{Measure, Point, Series, flows, over_time};
use crate::{
    run::{Mode, RunRecord, heeds},
    summary::{PairedRatio, fields, magnitude, paired_ratio, statistics},
};

/// One chart of a figure. It has a line for each mode and for each value of `lines`.
#[serde_as]
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Panel {
    /// Its title.
    pub title: String,
    /// The kind of chart.
    #[serde(default)]
    pub chart: Chart,
    /// The parameter along the x axis, the quantity of a distribution, or `time`.
    pub x: String,
    /// The label of the axis, with its unit.
    pub x_label: String,
    /// The scale of the x axis.
    #[serde(default)]
    pub x_scale: Scale,
    /// The quantity along the y axis.
    pub y: Measure,
    /// The label of the axis, with its unit.
    pub y_label: String,
    /// The scale of the y axis.
    #[serde(default)]
    pub y_scale: Scale,
    /// The statistic of it that is shown.
    #[serde(default)]
    pub show: Show,
    /// A parameter. Each of its values has a line of its own, in modes that use the parameter.
    pub lines: Option<String>,
    /// The modes that have a line. All modes have one if none is named. Other modes only serve for
    /// comparison.
    #[serde(default)]
    pub modes: Vec<Mode>,
    /// The lines with which each run is compared, seed by seed. They are named by their mode, or by
    /// their name such as `rmdt off`. The y axis then shows the increase over the lowest of these
    /// lines at that point, in per cent.
    #[serde_as(as = "OneOrMany<_>")]
    #[serde(default)]
    pub relative_to: Vec<String>,
    /// Parameters that runs must have to belong to the panel. The text `largest` means the largest
    /// value of all runs.
    #[serde(default)]
    pub only: BTreeMap<String, String>,
}

/// The kind of chart of a panel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Chart {
    /// A point for each x, with error bars.
    #[default]
    Points,
    /// A cumulative distribution: the mean of each percentile over all runs.
    Distribution,
    /// Both layers, both queues or all flows over time, for one run of each mode. The run must keep
    /// [`samples`](crate::run::Parameters::samples). With [`Panel::lines`], the throughput of one run for each
    /// value of that parameter.
    Time,
    /// Mean and percentiles of the completion times of all flows of all runs, side by side.
    Flows,
}

/// The scale of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Equal steps. The axis includes zero.
    #[default]
    Linear,
    /// Equal factors (a logarithmic axis).
    Log,
}

/// The statistic over runs that differ only in their seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Show {
    /// The mean, with its 95 % confidence interval.
    #[default]
    Mean,
    /// The 99th percentile, or the largest value of fewer than 100 runs.
    Tail,
}

/// The panels of a figure's plan.
pub(super) fn panels(plan: &str) -> Vec<Panel> {
    #[derive(Deserialize)]
    struct Panels {
        panel: Vec<Panel>,
    }
    let panels: Panels = toml::from_str(plan).expect("a test parses each plan of ours");
    panels.panel
}

impl Panel {
    /// The lines of the panel with this number, one for each mode that has a point.
    pub(super) fn series(&self, panel: usize, records: &[RunRecord]) -> Vec<Series> {
        let largest = |key: &String| {
            let values = records.iter().map(|record| value(record, key));
            values.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, text)| text).unwrap_or_default()
        };
        let resolve = |(key, text): (&String, &String)| {
            let text = if text == "largest" { largest(key) } else { text.clone() };
            (key.clone(), text)
        };
        let only: BTreeMap<_, _> = self.only.iter().map(resolve).collect();
        let belong =
            |record: &&RunRecord| only.iter().all(|(key, text)| value(record, key).1 == *text);
        let records: Vec<_> = records.iter().filter(belong).collect();
        if self.chart == Chart::Time {
            let of = |mode| {
                let of_mode = |record: &&&RunRecord| record.parameters.mode == mode;
                records.iter().filter(of_mode).copied().collect::<Vec<_>>()
            };
            let each = Mode::ALL.into_iter().filter(|mode| self.draws(*mode));
            let shown = (self.y, self.lines.as_deref());
            return each.flat_map(|mode| over_time::series(panel, shown, &of(mode))).collect();
        }
        let mut runs: Vec<_> = records.iter().map(|record| self.run(record)).collect();
        number_names(&mut runs);
        let all = lines(&runs);
        let of = |line: &Line| {
            let ours = runs.iter().filter(|run| run.is_of(line));
            ours.map(|run| run.record).collect::<Vec<_>>()
        };
        let bases: Vec<_> = all.iter().filter(|line| self.is_base(line)).collect();
        let series = all.iter().filter(|line| self.draws(line.0)).map(|line| {
            let points = match self.chart {
                Chart::Distribution => distribution(&of(line)),
                Chart::Flows => {
                    let bases: Vec<_> = bases.iter().map(|base| of(base)).collect();
                    flows::points(&of(line), &bases)
                }
                Chart::Points | Chart::Time => self.points(line, &bases, &runs),
            };
            // A mode's only line needs no name of its own.
            let is_only = all.iter().filter(|other| other.0 == line.0).count() == 1;
            let variant = line.1.clone().filter(|_| !is_only);
            Series { panel, mode: line.0, variant, points }
        });
        series.filter(|series| !series.points.is_empty()).collect()
    }

    /// Whether the panel draws lines of a mode.
    fn draws(&self, mode: Mode) -> bool {
        self.modes.is_empty() || self.modes.contains(&mode)
    }

    /// Whether other lines are compared with this one.
    fn is_base(&self, (mode, variant): &Line) -> bool {
        self.relative_to.iter().any(|base| {
            let whole = variant.as_ref().map(|variant| format!("{mode} {variant}"));
            base == mode.as_str() || Some(base) == whole.as_ref()
        })
    }

    /// The view of the panel on a run.
    fn run<'a>(&self, record: &'a RunRecord) -> PanelRun<'a> {
        let (x, x_text) = value(record, &self.x);
        let lines = self.lines.as_ref().filter(|key| heeds(record.parameters.mode, key));
        PanelRun {
            record,
            mode: record.parameters.mode,
            parameters: fields(&record.parameters),
            variant: lines.map(|key| value(record, key).1),
            x,
            x_text,
            y: self.y.of(record),
        }
    }

    fn points(&self, line: &Line, bases: &[&Line], runs: &[PanelRun<'_>]) -> Vec<Point> {
        let mut groups: Vec<(&PanelRun<'_>, Vec<&PanelRun<'_>>)> = Vec::new();
        for run in runs.iter().filter(|run| run.is_of(line)) {
            match groups.iter_mut().find(|(first, _)| first.x_text == run.x_text) {
                Some((_, group)) => group.push(run),
                None => groups.push((run, vec![run])),
            }
        }
        groups.sort_by(|(a, _), (b, _)| a.x.total_cmp(&b.x));
        groups.iter().filter_map(|(_, group)| self.point(group, bases, runs)).collect()
    }

    /// Summarizes runs that differ only in their seed as one point. The result is `None` if none of
    /// them has a value.
    fn point(
        &self,
        group: &[&PanelRun<'_>],
        bases: &[&Line],
        all: &[PanelRun<'_>],
    ) -> Option<Point> {
        let first = group.first()?;
        let values: Vec<_> = group.iter().filter_map(|run| run.y).collect();
        let (value, low, high) = if self.relative_to.is_empty() {
            let statistics = statistics(&values)?;
            match self.show {
                Show::Mean => {
                    let half = statistics.half_width.unwrap_or_default();
                    (statistics.mean, statistics.mean - half, statistics.mean + half)
                }
                Show::Tail => {
                    let tail = statistics.tail.value();
                    (tail, tail, tail)
                }
            }
        } else {
            let ratios = bases.iter().filter_map(|base| self.ratio(group, base, all));
            let ratio = ratios.max_by(|a, b| a.mean.total_cmp(&b.mean))?;
            let percent = |ratio: f64| (ratio - 1.0) * 100.0;
            (percent(ratio.mean), percent(ratio.low), percent(ratio.high))
        };
        let completed = group.iter().filter(|run| run.y.is_some() && run.record.completed).count();
        let runs = group.len();
        Some(Point { x: first.x, x_text: first.x_text.clone(), value, low, high, runs, completed })
    }
}

impl Panel {
    /// Compares runs with the runs of another line. Paired runs differ only in the mode and in the
    /// settings of its tunnel.
    fn ratio(
        &self,
        group: &[&PanelRun<'_>],
        base: &Line,
        all: &[PanelRun<'_>],
    ) -> Option<PairedRatio> {
        let (ours, theirs) = (group.first()?.mode, base.0);
        let same = |run: &PanelRun<'_>| {
            let is_line = |key: &str| self.lines.as_deref() == Some(key);
            let is_own = |key: &str| OF_MODES.contains(&key) && (ours != theirs || is_line(key));
            let is_compared =
                |key: &str| key != "mode" && heeds(ours, key) && heeds(theirs, key) && !is_own(key);
            let fields = run.parameters.iter().filter(|(key, _)| is_compared(key));
            fields.map(|(_, value)| value.to_string()).collect::<Vec<_>>()
        };
        let theirs = all.iter().filter(|run| run.is_of(base));
        let theirs: BTreeMap<_, _> = theirs.filter_map(|run| Some((same(run), run.y?))).collect();
        let pair = |run: &&PanelRun<'_>| Some((run.y?, *theirs.get(&same(run))?));
        let pairs: Vec<_> = group.iter().filter_map(pair).collect();
        match self.show {
            Show::Mean => paired_ratio(&pairs),
            Show::Tail => {
                let (ours, theirs): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
                let tail = |values: &[f64]| statistics(values).map(|it| it.tail.value());
                let mean = tail(&ours)? / tail(&theirs)?;
                Some(PairedRatio { pairs: pairs.len(), mean, low: mean, high: mean })
            }
        }
    }
}

/// The mean of each percentile of the packets' delays.
#[expect(clippy::cast_precision_loss, reason = "exact below 2^53 microseconds")]
fn distribution(ours: &[&RunRecord]) -> Vec<Point> {
    let completed = ours.iter().filter(|record| record.completed).count();
    let percentile = |percent: u32| {
        let index = usize::try_from(percent).ok()?;
        let values = ours.iter().filter_map(|run| run.packet_delay_percentiles_us.get(index));
        let values: Vec<_> = values.map(|micros| *micros as f64 / 1e3).collect();
        let x = statistics(&values)?.mean;
        let value = f64::from(percent);
        let x_text = format!("{x:.3}ms");
        let (low, high, runs) = (value, value, ours.len());
        Some(Point { x, x_text, value, low, high, runs, completed })
    };
    (0..=100).filter_map(percentile).collect()
}

/// A parameter of a run, as a number and as text. A run without a tunnel has no proxies.
pub(super) fn value(record: &RunRecord, key: &str) -> (f64, String) {
    if key == "proxies" && !record.parameters.mode.has_tunnel() {
        return (0.0, "0".to_owned());
    }
    magnitude(fields(&record.parameters).get(key).unwrap_or(&Value::Null))
}

/// A mode, and the name of the line among those of the mode, if it has several.
type Line = (Mode, Option<String>);

/// Parameters of a mode's tunnel. Modes that are compared may differ in these.
const OF_MODES: [&str; 9] = [
    "ack_delay",
    "ack_threshold",
    "beyond",
    "resequence",
    "tecc",
    "tunnel_controller",
    "tunnel_datagrams",
    "tunnel_initial_window",
    "tunnel_up_gain_percent",
];

struct PanelRun<'a> {
    record: &'a RunRecord,
    mode: Mode,
    parameters: Map<String, Value>,
    variant: Option<String>,
    x: f64,
    x_text: String,
    y: Option<f64>,
}

impl PanelRun<'_> {
    fn is_of(&self, (mode, variant): &Line) -> bool {
        self.mode == *mode && self.variant == *variant
    }
}

/// The lines of a panel, mode by mode, in the order of their runs.
fn lines(runs: &[PanelRun<'_>]) -> Vec<Line> {
    let mut lines = Vec::new();
    for mode in Mode::ALL {
        for run in runs.iter().filter(|run| run.mode == mode) {
            let line = (mode, run.variant.clone());
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

/// Numbers the values along the x axis in the order of the runs, if they are names.
#[expect(clippy::cast_precision_loss, reason = "a few names")]
fn number_names(runs: &mut [PanelRun<'_>]) {
    let mut names: Vec<String> = Vec::new();
    for run in runs.iter() {
        if !names.contains(&run.x_text) {
            names.push(run.x_text.clone());
        }
    }
    if names.len() < 2 || runs.iter().any(|run| run.x != 0.0) {
        return;
    }
    for run in runs {
        let place = names.iter().position(|name| *name == run.x_text);
        run.x = place.map_or(0.0, |place| place as f64 + 1.0);
    }
}
