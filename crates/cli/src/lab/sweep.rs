//! `tandem lab sweep`.

use std::{
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    thread,
};

use tandem_experiments::{
    plan::{Plan, Variant},
    run::RunRecord,
    summary::Summaries,
    sweep::{self, Found, Sweep as Runs, Torn},
};

use super::{runs_bar::RunsBar, stop, table};
use crate::{
    error::{CliError, ConfigError, LabError},
    progress::Show,
    text,
};

/// The largest size of a plan in bytes, which guards against a wrong file.
const PLAN_LEN_MAX: u64 = 1_000_000;

/// Run every combination of the values in a plan, on all cores.
///
/// PLAN is TOML: its keys are the flags of `lab run` with _ for -, each with a value or a list of
/// values. Each run becomes a line of JSON in one file. An interrupted sweep continues when the
/// same command is run again.
#[derive(Debug, clap::Args)]
pub(crate) struct Sweep {
    /// File that defines the runs
    plan: PathBuf,

    /// File for the results, one line for each run [default: PLAN with .jsonl]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,

    #[arg(long, help = "Run the short version, which the plan's table [short] describes")]
    short: bool,

    #[command(flatten)]
    how: How,

    /// Print a line of JSON for each combination instead of a table
    #[arg(long)]
    json: bool,
}

/// The flags for many runs.
#[derive(Debug, clap::Args)]
pub(super) struct How {
    /// Runs at a time [default: one for each core]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// No progress bar and no notices
    #[arg(short, long)]
    quiet: bool,
}

impl Sweep {
    /// Runs the missing runs and summarizes all runs.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let variant = if self.short { Variant::Short } else { Variant::Full };
        let plan = read_plan(&self.plan, variant)?;
        let file = self.out.unwrap_or_else(|| self.plan.with_extension("jsonl"));
        let mut summaries = Summaries::new(columns(&plan));
        plan.runs().for_each(|run| summaries.expect(&run));
        let stop = stop::on_signal()?;
        self.how.run_all(&plan, &file, &stop, |record| summaries.add(record))?;
        if self.json {
            for summary in summaries.summaries() {
                text::print(serde_json::to_string(&summary).expect("numbers and texts are JSON"))?;
            }
        } else {
            print_table(&summaries)?;
        }
        let violations = summaries.summaries().iter().map(|summary| summary.violations).sum();
        refuse_violations(violations)
    }
}

/// Prints the table of summaries, and a note below it if not all runs completed.
pub(super) fn print_table(summaries: &Summaries) -> Result<(), CliError> {
    text::print(table::markdown(&summaries.table()))?;
    summaries.note().map_or(Ok(()), |note| text::print(format_args!("\n{note}")))
}

/// The varied keys, or the mode if there are none.
fn columns(plan: &Plan) -> Vec<String> {
    let varied: Vec<_> = plan.varied().map(str::to_owned).collect();
    if varied.is_empty() { vec!["mode".to_owned()] } else { varied }
}

fn read_plan(path: &Path, variant: Variant) -> Result<Plan, CliError> {
    let unreadable = |error| ConfigError::Unreadable { file: path.to_owned(), error };
    let len = fs::metadata(path).map_err(unreadable)?.len();
    if len > PLAN_LEN_MAX {
        return Err(ConfigError::TooLong { file: path.to_owned(), len, max: PLAN_LEN_MAX }.into());
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    Ok(Plan::parse(path, &text, variant).map_err(LabError::from)?)
}

/// Refuses results with violations, because a simulation that broke its own rules is invalid.
pub(super) fn refuse_violations(violations: u64) -> Result<(), CliError> {
    if violations == 0 { Ok(()) } else { Err(LabError::Violations { count: violations }.into()) }
}

impl How {
    /// Runs the runs that are missing in the file, with a progress bar, until `stop` is true.
    /// `each` is called once for every run of the plan, with the runs in the file first.
    pub(super) fn run_all(
        &self,
        plan: &Plan,
        file: &Path,
        stop: &AtomicBool,
        mut each: impl FnMut(&RunRecord),
    ) -> Result<(), CliError> {
        let traces = sweep::load_traces(plan).map_err(LabError::from)?;
        let mut runs = Runs::open(plan, file, &mut each).map_err(LabError::from)?;
        let found = runs.found();
        if !self.quiet {
            say_found(file, found);
        }
        let show = if self.quiet { Show::Never } else { Show::OnTerminal };
        let bar = RunsBar::new(show, plan.len(), found.finished);
        let mut finished = found.finished;
        let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let ended = runs.run(&traces, self.jobs.unwrap_or(cores), stop, |record| {
            finished += 1;
            bar.advance();
            each(record);
        });
        bar.clear();
        ended.map_err(LabError::from)?;
        if finished < plan.len() {
            let (file, of) = (file.to_owned(), plan.len());
            return Err(LabError::Unfinished { file, finished, of }.into());
        }
        Ok(())
    }
}

fn say_found(file: &Path, Found { finished, others: _, torn }: Found) {
    let file = file.display();
    if let Some(Torn { bytes }) = torn {
        text::say(format_args!(
            "{file}: cut off its last line, {bytes} bytes that an interrupted sweep left unfinished"
        ));
    }
    if finished > 0 {
        text::say(format_args!("{file}: {finished} runs of this plan are there already"));
    }
}
