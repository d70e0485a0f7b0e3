//! `tandem lab trace`.

use std::path::PathBuf;

use serde::Serialize;
use tandem_netem::{RateTrace, Seed, SyntheticTrace, TraceSummary};
use tandem_units::{HumanDuration, Rate};

use crate::{
    error::{CliError, LabError},
    text,
};

/// Make a trace of a radio link's rate in Mahimahi's format, or summarize one.
///
/// The same seed gives the same trace. It is synthetic; it resembles measured traces of its kind in
/// mean rate, variation and outages.
#[derive(Debug, clap::Args)]
pub(crate) struct Trace {
    /// Kind of link: driving, subway, wifi or mmwave
    #[arg(value_name = "KIND", required_unless_present = "check")]
    kind: Option<SyntheticTrace>,

    /// Seed of the trace
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Length, from 1s to 10min
    #[arg(long, value_name = "TIME", default_value = "2min")]
    duration: HumanDuration,

    /// Read a trace and print a summary of it instead of making one
    #[arg(long, value_name = "FILE", conflicts_with = "kind")]
    check: Option<PathBuf>,

    /// Print the summary as JSON
    #[arg(long, requires = "check")]
    json: bool,
}

impl Trace {
    pub(crate) fn run(self) -> Result<(), CliError> {
        if let Some(file) = &self.check {
            let trace = RateTrace::read(file).map_err(LabError::from)?;
            return self.describe(&trace.summary());
        }
        let kind = self.kind.expect("clap requires a kind where there is no file");
        let trace = kind
            .generate(Seed(self.seed), self.duration.into())
            .map_err(LabError::from)?
            .to_string();
        text::print(trace.trim_end())
    }

    fn describe(&self, summary: &TraceSummary) -> Result<(), CliError> {
        let TraceSummary { duration, lines, mean, low, high, longest_gap } = *summary;
        if self.json {
            let summary = SummaryJson {
                duration_ms: duration.as_millis(),
                lines,
                mean_bits_per_second: mean,
                p5_bits_per_second: low,
                p95_bits_per_second: high,
                longest_gap_ms: longest_gap.as_millis(),
            };
            return text::print(serde_json::to_string(&summary).expect("numbers are JSON"));
        }
        let rate = |bits| Rate::from_bps(bits).map_or("0 bit/s".to_owned(), |r| r.to_string());
        text::print(format!(
            "{lines} opportunities of 1504 bytes in {}: {} on average, {} to {} in nine tenths of all \
             500 ms; longest gap {}",
            HumanDuration(duration),
            rate(mean),
            rate(low),
            rate(high),
            HumanDuration(longest_gap)
        ))
    }
}

/// The summary of a trace.
#[derive(Debug, Serialize)]
struct SummaryJson {
    duration_ms: u128,
    lines: usize,
    mean_bits_per_second: u64,
    p5_bits_per_second: u64,
    p95_bits_per_second: u64,
    longest_gap_ms: u128,
}
