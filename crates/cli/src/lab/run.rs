//! `tandem lab run`.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Write},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    thread,
};

use serde::Serialize;
use serde_json::{Map, Value};
use tandem_experiments::{
    run::{self, Mode, Parameters, RunRecord, Sample, TraceStore},
    summary::Summaries,
    sweep,
};

use super::{
    parameter_args::ParameterArgs,
    runs_bar::RunsBar,
    stop,
    sweep::{print_table, refuse_violations},
};
use crate::{
    error::{CliError, LabError},
    progress::Show,
    text,
};

/// The largest number of runs of one command. A sweep allows more, and continues after an
/// interruption.
const RUNS_MAX: u64 = 10_000;

const EXAMPLES: &str = "\
Examples:
  tandem lab run --mode mdt,rmdt,tecc --loss 5% --seeds 1..8
      The mean of eight runs in each of three modes over a bad link.
  tandem lab run --mode tecc --trace synthetic:subway --workload requests:100,100ms --json
      Many short requests over a mobile link, with the full record of the run.";

/// Run client, proxies and origin in virtual time over an emulated access link.
///
/// The nodes are the same as in production. The same flags give the same packets, bit by bit. Prints
/// a table, or with --json one object for each run.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Run {
    #[command(flatten)]
    parameters: ParameterArgs,

    /// Print a line of JSON for each run instead of a table
    #[arg(long)]
    json: bool,

    /// Write samples of tunnel and end-to-end connection over time to a file: a line of JSON for
    /// each sample, or CSV if its name ends in .csv
    #[arg(long, value_name = "FILE", help_heading = "Tests and tracing")]
    series: Option<PathBuf>,

    /// Runs at a time [default: one for each core]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
}

impl Run {
    /// Runs every mode with every seed.
    pub(crate) fn run(self) -> Result<(), CliError> {
        if self.parameters.count() > RUNS_MAX {
            return Err(LabError::TooManyRuns { max: RUNS_MAX }.into());
        }
        let runs = self.parameters.runs();
        for run in &runs {
            run::check(run).map_err(LabError::from)?;
        }
        let traces = TraceStore::load(&runs).map_err(LabError::from)?;
        let records = match &self.series {
            None => self.measure(&runs, &traces)?,
            Some(file) => measure_with_series(&runs, &traces, file)?,
        };
        let violations = records.iter().map(|record| record.violations).sum();
        if self.json {
            for record in &records {
                text::print(serde_json::to_string(record).expect("numbers and texts are JSON"))?;
            }
        } else {
            let mut summaries = Summaries::new(["mode"]);
            for record in &records {
                summaries.add(record);
            }
            print_table(&summaries)?;
        }
        refuse_violations(violations)
    }

    /// Runs the runs, and returns their records in the order of `runs`.
    fn measure(
        &self,
        runs: &[Parameters],
        traces: &TraceStore,
    ) -> Result<Vec<RunRecord>, CliError> {
        let stop = stop::on_signal()?;
        let show = if self.quiet { Show::Never } else { Show::OnTerminal };
        let bar = RunsBar::new(show, runs.len() as u64, 0);
        let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let jobs = self.jobs.unwrap_or(cores);
        let mut records: BTreeMap<(Mode, u64), RunRecord> = BTreeMap::new();
        let ended = sweep::run_all(runs.iter().cloned(), traces, jobs, &stop, |record| {
            bar.advance();
            let Parameters { mode, seed, .. } = record.parameters;
            records.insert((mode, seed), record.clone());
            Ok(())
        });
        bar.clear();
        ended.map_err(LabError::from)?;
        if records.len() < runs.len() {
            return Err(LabError::Interrupted.into());
        }
        let of = |run: &Parameters| records.remove(&(run.mode, run.seed));
        Ok(runs.iter().filter_map(of).collect())
    }
}

/// Runs one run after the other.
fn measure_with_series(
    runs: &[Parameters],
    traces: &TraceStore,
    path: &Path,
) -> Result<Vec<RunRecord>, CliError> {
    let mut file = BufWriter::new(File::create(path).map_err(CliError::write(path))?);
    let is_csv = path.extension().is_some_and(|ending| ending == "csv");
    let mut records = Vec::new();
    for run in runs {
        let outcome = run::run(run, traces).map_err(LabError::from)?;
        for (sample, number) in outcome.series.into_iter().zip(0_u64..) {
            let line = fields(&SeriesLine { mode: run.mode, seed: run.seed, sample });
            if is_csv && number == 0 && records.is_empty() {
                let names: Vec<_> = line.keys().map(String::as_str).collect();
                writeln!(file, "{}", names.join(",")).map_err(CliError::write(path))?;
            }
            let line = if is_csv { cells(&line) } else { Value::Object(line).to_string() };
            writeln!(file, "{line}").map_err(CliError::write(path))?;
        }
        records.push(outcome.record);
    }
    file.flush().map_err(CliError::write(path))?;
    Ok(records)
}

fn fields(line: &SeriesLine) -> Map<String, Value> {
    match serde_json::to_value(line) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => unreachable!("a line is a struct of texts and numbers"),
    }
}

/// The cells of a line. Numbers and names need no quotation marks. A missing value is empty.
fn cells(line: &Map<String, Value>) -> String {
    let cell = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    line.values().map(cell).collect::<Vec<_>>().join(",")
}

/// One line of `--series`.
#[derive(Serialize)]
struct SeriesLine {
    mode: Mode,
    seed: u64,
    #[serde(flatten)]
    sample: Sample,
}
