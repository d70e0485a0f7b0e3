//! What an attack measured, with the bounds of some of the values.

use std::collections::BTreeMap;

use anyhow::Result;
use comfy_table::Table;
use serde::Serialize;
use tandem_units::ByteCount;

use crate::usage::Usage;

/// The number of samples from which on memory is judged.
const SAMPLES_MIN: usize = 600;

/// The growth of memory that counts as none, in MB and as a part.
const FLAT_MB: f64 = 3.0;
const FLAT_PART: f64 = 0.05;

/// The measurements of one attack.
#[derive(Serialize)]
pub(crate) struct Report {
    attack: &'static str,
    rows: Vec<MeasuredRow>,
}

/// One measured value.
#[derive(Serialize)]
struct MeasuredRow {
    what: String,
    value: f64,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<Bound>,
    holds: bool,
}

/// A bound on a value.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    /// At most this number of bytes, as megabytes.
    #[expect(clippy::cast_precision_loss, reason = "a report needs no more than 52 bits")]
    pub(crate) const fn megabytes(bytes: ByteCount) -> Self {
        Self::AtMost(bytes.get() as f64 / 1e6)
    }

    /// At most this number of bytes, as kilobytes.
    #[expect(clippy::cast_precision_loss, reason = "a report needs no more than 52 bits")]
    pub(crate) const fn kilobytes(bytes: ByteCount) -> Self {
        Self::AtMost(bytes.get() as f64 / 1e3)
    }

    /// Whether a value keeps the bound.
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }

    fn describe(self) -> String {
        match self {
            Self::AtMost(most) => format!("at most {}", number(most)),
            Self::AtLeast(least) => format!("at least {}", number(least)),
        }
    }
}

impl Report {
    pub(crate) const fn new(attack: &'static str) -> Self {
        Self { attack, rows: Vec::new() }
    }

    /// Adds a value without a bound.
    pub(crate) fn note(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        self.rows.push(MeasuredRow { what: what.into(), value, unit, bound: None, holds: true });
    }

    /// Adds a value that must keep a bound.
    pub(crate) fn check(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        bound: Bound,
    ) {
        let holds = bound.holds(value);
        self.rows.push(MeasuredRow { what: what.into(), value, unit, bound: Some(bound), holds });
    }

    /// Adds a count that must be equal to another one.
    pub(crate) fn check_all(&mut self, what: impl Into<String>, count: usize, of: usize) {
        let what = format!("{} (of {of})", what.into());
        self.check(what, float(count), "", Bound::AtLeast(float(of)));
    }

    /// Adds a count that must be zero.
    pub(crate) fn check_none(&mut self, what: impl Into<String>, count: usize) {
        self.check(what, float(count), "", Bound::AtMost(0.0));
    }

    /// Adds that no user may have failed, and prints why users have.
    pub(crate) fn check_failures(&mut self, failures: &BTreeMap<String, usize>) {
        self.check_none("users who failed", failures.values().sum());
        for (why, count) in failures {
            eprintln!("{count} users failed: {why}");
        }
    }

    /// Compares samples of memory in MB, one for each second: the median of the second tenth with
    /// that of the last one. In a short run, the attacks of the first tenth are not those of the
    /// last one, and nothing is compared.
    pub(crate) fn check_flat(&mut self, samples: &[f64]) {
        if samples.len() < SAMPLES_MIN {
            return;
        }
        let tenth = samples.len() / 10;
        let early = median(samples.get(tenth..2 * tenth).unwrap_or_default());
        let late = median(samples.get(samples.len() - tenth..).unwrap_or_default());
        self.note("memory, median of the second tenth", early, "MB");
        let most = early + FLAT_MB.max(early * FLAT_PART);
        self.check("memory, median of the last tenth", late, "MB", Bound::AtMost(most));
    }

    /// Adds what the proxy uses at this time.
    pub(crate) fn usage(&mut self, when: &str, usage: &Usage) {
        self.note(format!("memory {when}"), usage.memory_mb(), "MB");
        self.note(format!("peak of memory {when}"), usage.peak_mb(), "MB");
        self.note(format!("descriptors {when}"), float(usage.descriptors), "");
        self.note(format!("threads {when}"), float(usage.threads), "");
    }

    /// Whether every bound held.
    pub(crate) fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.holds)
    }

    /// Prints a table, or JSON on one line.
    pub(crate) fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string(self)?);
            return Ok(());
        }
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
        table.set_header([self.attack, "value", "bound", "holds"]);
        for row in &self.rows {
            let value = format!("{} {}", number(row.value), row.unit);
            let bound = row.bound.map(Bound::describe).unwrap_or_default();
            let holds = match (row.bound, row.holds) {
                (None, _) => "",
                (Some(_), true) => "yes",
                (Some(_), false) => "NO",
            };
            table.add_row([row.what.as_str(), value.trim(), &bound, holds]);
        }
        println!("{table}");
        Ok(())
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// A count as a value of a report. Counts here are far below 2^52.
#[expect(clippy::cast_precision_loss, reason = "a report needs no more than 52 bits")]
pub(crate) const fn float(count: usize) -> f64 {
    count as f64
}

fn number(value: f64) -> String {
    if value.fract().abs() < f64::EPSILON { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_grows_by_a_tenth_breaks_a_report_and_noise_does_not() {
        let noisy = |growth: f64| {
            let sample = |second: usize| 100.0 + float(second % 7) + growth * float(second) / 900.0;
            (0..1000).map(sample).collect::<Vec<_>>()
        };
        for (growth, holds) in [(0.0, true), (10.0, false)] {
            let mut report = Report::new("test");
            report.check_flat(&noisy(growth));
            assert_eq!(report.holds(), holds, "{growth}");
        }
    }

    #[test]
    fn one_broken_bound_breaks_the_report() {
        let mut report = Report::new("test");
        report.note("noted", 5.0, "");
        report.check("kept", 3.0, "", Bound::AtMost(3.0));
        report.check_all("all", 2, 2);
        assert!(report.holds());
        report.check_none("none", 1);
        assert!(!report.holds());
    }
}
