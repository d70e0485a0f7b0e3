//! Summaries of many runs.

mod statistics;

use std::{cmp::Ordering, collections::BTreeMap};

use serde::Serialize;
use serde_json::{Map, Value};
use tandem_units::{ByteCount, HumanDuration, Rate, Ratio};

use crate::run::{Parameters, RunRecord};

pub use statistics::{PairedRatio, Statistics, Tail, paired_ratio, statistics};

/// Groups of runs that differ only in their seed, for each combination of the varied keys.
#[derive(Clone, Debug, Default)]
pub struct Summaries {
    varied: Vec<String>,
    groups: Vec<Group>,
    /// The position of the group with these values.
    places: BTreeMap<Vec<String>, usize>,
}

#[derive(Clone, Debug)]
struct Group {
    values: Vec<Value>,
    runs: u64,
    completed: u64,
    violations: u64,
    fct_s: Vec<f64>,
    fct_over_ideal: Vec<f64>,
    e2e_retransmit_ratio: Vec<f64>,
    tunnel_retransmit_ratio: Vec<f64>,
}

impl Summaries {
    /// Groups runs by these keys. The key `seed` is ignored.
    pub fn new(varied: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { varied: varied.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Groups runs by all keys in which they differ.
    pub fn of(records: &[RunRecord]) -> Self {
        let mut varied = Varied::default();
        for record in records {
            varied.see(record);
        }
        let mut summaries = Self::new(varied.keys());
        for record in records {
            summaries.add(record);
        }
        summaries.sort();
        summaries
    }

    /// Makes a group for these parameters, if there is none. Groups stay in the order in which they
    /// were made.
    pub fn expect(&mut self, parameters: &Parameters) {
        self.group(parameters);
    }

    /// Adds a run to its group.
    pub fn add(&mut self, record: &RunRecord) {
        let Some(group) = self.group(&record.parameters) else { return };
        group.runs += 1;
        group.violations += record.violations;
        group.e2e_retransmit_ratio.push(record.e2e_retransmit_ratio);
        group.tunnel_retransmit_ratio.push(record.tunnel_retransmit_ratio);
        if record.completed {
            group.completed += 1;
        }
        group.fct_s.extend(record.counted_fct_s());
        group.fct_over_ideal.extend(record.counted_fct_over_ideal());
    }

    fn group(&mut self, parameters: &Parameters) -> Option<&mut Group> {
        let fields = fields(parameters);
        let value = |key: &String| fields.get(key).cloned().unwrap_or_default();
        let values: Vec<_> = self.varied.iter().map(value).collect();
        let group = Group::new(values);
        let last = self.groups.len();
        let place = *self.places.entry(group.place()).or_insert(last);
        if place == last {
            self.groups.push(group);
        }
        self.groups.get_mut(place)
    }

    /// Sorts the groups by their values, from small to large in any unit.
    pub fn sort(&mut self) {
        self.groups.sort_by(|a, b| {
            let pairs = a.values.iter().zip(&b.values).map(|(a, b)| (magnitude(a), magnitude(b)));
            let mut orders = pairs.map(|(a, b)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        });
        self.places = self.groups.iter().map(Group::place).zip(0..).collect();
    }

    /// The summary of each group that has a run.
    pub fn summaries(&self) -> Vec<Summary> {
        self.groups.iter().filter(|group| group.runs > 0).map(|group| self.summary(group)).collect()
    }

    fn summary(&self, group: &Group) -> Summary {
        let mean = |values: &[f64]| statistics(values).map(|statistics| statistics.mean);
        let fct = statistics(&group.fct_s);
        let tail = fct.as_ref().map(|fct| fct.tail);
        Summary {
            of: self.varied.iter().cloned().zip(group.values.iter().cloned()).collect(),
            runs: group.runs,
            completed: group.completed,
            violations: group.violations,
            fct_mean_s: fct.as_ref().map(|fct| fct.mean),
            fct_mean_ci95_s: fct.as_ref().and_then(|fct| fct.half_width),
            fct_median_s: fct.as_ref().map(|fct| fct.median),
            fct_p99_s: tail.and_then(Tail::p99),
            fct_max_s: fct.as_ref().map(|fct| fct.max),
            fct_over_ideal_mean: mean(&group.fct_over_ideal),
            e2e_retransmit_ratio_mean: mean(&group.e2e_retransmit_ratio),
            tunnel_retransmit_ratio_mean: mean(&group.tunnel_retransmit_ratio),
        }
    }

    /// What to say below the table about runs that did not complete; `None` if all completed.
    pub fn note(&self) -> Option<String> {
        let count = |of: fn(&Group) -> u64| self.groups.iter().map(of).sum::<u64>();
        let counted = counted(count(|group| group.runs), count(|group| group.completed))?;
        Some(format!("{counted} Values with \"\u{2265}\" are lower bounds."))
    }

    /// The summaries as a table for people.
    pub fn table(&self) -> SummaryTable {
        SummaryTable::new(&self.varied, &self.summaries())
    }
}

/// How completion times count runs that did not complete; `None` if all completed.
pub fn counted(runs: u64, completed: u64) -> Option<String> {
    let missing = runs.checked_sub(completed).filter(|missing| *missing > 0)?;
    Some(format!(
        "Of {runs} runs, {missing} did not complete. In completion times, a flow that did not complete \
         counts as the time from its start to the time limit."
    ))
}

/// Finds the keys in which runs differ, except their seed.
#[derive(Clone, Debug, Default)]
pub struct Varied {
    first: Option<Map<String, Value>>,
    keys: Vec<String>,
}

impl Varied {
    /// Adds a run.
    pub fn see(&mut self, record: &RunRecord) {
        let fields = fields(&record.parameters);
        let Some(first) = &self.first else {
            self.first = Some(fields);
            return;
        };
        let differing = fields.iter().filter(|(key, value)| first.get(*key) != Some(*value));
        for (key, _) in differing {
            if key != "seed" && !self.keys.contains(key) {
                self.keys.push(key.clone());
            }
        }
    }

    /// The keys, with the mode first. It is the mode alone if no key differs.
    pub fn keys(mut self) -> Vec<String> {
        if self.keys.is_empty() {
            return vec!["mode".to_owned()];
        }
        self.keys.sort_by_key(|key| key != "mode");
        self.keys
    }
}

impl Group {
    /// The values as a key of the map.
    fn place(&self) -> Vec<String> {
        self.values.iter().map(Value::to_string).collect()
    }

    fn new(values: Vec<Value>) -> Self {
        Self {
            values,
            runs: 0,
            completed: 0,
            violations: 0,
            fct_s: Vec::new(),
            fct_over_ideal: Vec::new(),
            e2e_retransmit_ratio: Vec::new(),
            tunnel_retransmit_ratio: Vec::new(),
        }
    }
}

/// A summary of runs that differ only in their seed, over all runs. In times and FCT/ideal (the flow
/// completion time over its ideal), a flow that did not complete counts as the time from its start
/// to the time limit, so that they are lower bounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The values of the varied keys.
    #[serde(flatten)]
    pub of: Map<String, Value>,
    /// The number of runs.
    pub runs: u64,
    /// The number of runs that completed.
    pub completed: u64,
    /// Number of violations that the verifier found in all runs.
    pub violations: u64,
    /// Mean flow completion time.
    pub fct_mean_s: Option<f64>,
    /// Half the width of its 95 % confidence interval; null with fewer than two runs.
    pub fct_mean_ci95_s: Option<f64>,
    /// Its median.
    pub fct_median_s: Option<f64>,
    /// Its 99th percentile; null with fewer than 100 runs.
    pub fct_p99_s: Option<f64>,
    /// Its largest value.
    pub fct_max_s: Option<f64>,
    /// Mean of FCT/ideal.
    pub fct_over_ideal_mean: Option<f64>,
    /// Mean share of packets that the origin retransmitted.
    pub e2e_retransmit_ratio_mean: Option<f64>,
    /// Mean share of packets that the tunnel retransmitted.
    pub tunnel_retransmit_ratio_mean: Option<f64>,
}

/// Texts in rows and columns. Text columns come first, then columns of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryTable {
    /// Names of the columns.
    pub header: Vec<String>,
    /// The rows, with one cell for each column.
    pub rows: Vec<Vec<String>>,
}

impl SummaryTable {
    fn new(varied: &[String], summaries: &[Summary]) -> Self {
        // A column has one meaning: the largest value, unless all rows have enough runs.
        let has_p99 = summaries.iter().all(|summary| summary.fct_p99_s.is_some());
        let columns = ["runs", "completed", "mean", "± 95 %", "median"];
        let columns = columns.into_iter().chain([if has_p99 { "p99" } else { "max" }]);
        let columns = columns.chain(["FCT/ideal", "retransmitted", "by the tunnel"]);
        let keys = varied.iter().map(|key| key.replace('_', " "));
        let header = keys.chain(columns.map(str::to_owned)).collect();
        let row = |summary: &Summary| {
            let values = summary.of.values().map(plain);
            let bound = if summary.completed < summary.runs { "\u{2265} " } else { "" };
            let tail = if has_p99 { summary.fct_p99_s } else { summary.fct_max_s };
            let time = |time: Option<f64>| {
                time.map_or_else(none, |time| format!("{bound}{}", seconds(time)))
            };
            let over_ideal = |ratio: f64| format!("{bound}{ratio:.3}");
            let cells = [
                summary.runs.to_string(),
                summary.completed.to_string(),
                time(summary.fct_mean_s),
                summary.fct_mean_ci95_s.map_or_else(none, seconds),
                time(summary.fct_median_s),
                time(tail),
                summary.fct_over_ideal_mean.map_or_else(none, over_ideal),
                summary.e2e_retransmit_ratio_mean.map_or_else(none, percent),
                summary.tunnel_retransmit_ratio_mean.map_or_else(none, percent),
            ];
            values.chain(cells).collect()
        };
        Self { header, rows: summaries.iter().map(row).collect() }
    }
}

fn none() -> String {
    "-".to_owned()
}

fn seconds(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.3} s") } else { format!("{seconds:.2} s") }
}

fn percent(ratio: f64) -> String {
    format!("{:.2} %", ratio * 100.0)
}

/// A value without quotation marks.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => none(),
        other => other.to_string(),
    }
}

/// The parameters by name, as in JSON.
pub(crate) fn fields(parameters: &Parameters) -> Map<String, Value> {
    match serde_json::to_value(parameters) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => unreachable!("parameters are a struct of texts and numbers"),
    }
}

/// The magnitude of a value in the base unit of its kind, with its text. Texts have equal
/// magnitudes and are sorted alphabetically.
#[expect(
    clippy::cast_precision_loss,
    reason = "the loss of precision is negligible for order and axes"
)]
pub(crate) fn magnitude(value: &Value) -> (f64, String) {
    let text = plain(value);
    let number = text.parse::<f64>().ok();
    let number = number.or_else(|| text.parse::<ByteCount>().ok().map(|size| size.get() as f64));
    let number = number.or_else(|| {
        let duration = text.parse::<HumanDuration>().ok();
        duration.map(|duration| std::time::Duration::from(duration).as_secs_f64())
    });
    let number = number
        .or_else(|| text.parse::<Rate>().ok().map(|rate| rate.bits_per_second() as f64))
        .or_else(|| text.parse::<Ratio>().ok().map(Ratio::as_f64));
    (number.unwrap_or_default(), text)
}

#[cfg(test)]
mod tests;
