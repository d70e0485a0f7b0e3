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
    sweep::{self, Found, Part, Sweep as Runs, Torn},
};
use tandem_server::files::FileError;

use super::{programs, runs_bar::RunsBar, stop, table};
use crate::{
    error::{CliError, LabError},
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

    /// Run only part INDEX, from 0, of this many parts of the plan, for a sweep over several machines [default results:
    /// PLAN with .part-INDEX.jsonl]
    #[arg(long, value_name = "INDEX/PARTS")]
    part: Option<Part>,

    /// First copy the runs of the plan that are in these files of results, such as those of parts
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "part")]
    merge: Vec<PathBuf>,

    #[command(flatten)]
    how: How,

    /// Print a line of JSON for each combination instead of a table
    #[arg(long)]
    json: bool,
}

/// The runs to make, and the file for their results.
pub(super) struct SweepWork<'a> {
    plan: &'a Plan,
    part: Part,
    file: &'a Path,
    /// Files from which results are copied.
    merge: &'a [PathBuf],
}

impl<'a> SweepWork<'a> {
    /// All runs of a plan.
    pub(super) const fn whole(plan: &'a Plan, file: &'a Path) -> Self {
        Self { plan, part: Part::WHOLE, file, merge: &[] }
    }
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
        let part = self.part.unwrap_or(Part::WHOLE);
        let extension = match self.part {
            Some(part) => format!("part-{}.jsonl", part.index()),
            None => "jsonl".to_owned(),
        };
        let file = self.out.unwrap_or_else(|| self.plan.with_extension(extension));
        let mut summaries = Summaries::new(columns(&plan));
        let runs = plan.runs().zip(0..).filter(|&(_, number)| part.has(number));
        runs.for_each(|(run, _)| summaries.expect(&run));
        let stop = stop::on_signal()?;
        let work = SweepWork { plan: &plan, part, file: &file, merge: &self.merge };
        self.how.run_all(&work, &stop, |record| summaries.add(record))?;
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
    let unreadable = |error| FileError::Unreadable { file: path.to_owned(), error };
    let len = fs::metadata(path).map_err(unreadable)?.len();
    if len > PLAN_LEN_MAX {
        return Err(FileError::TooLong { file: path.to_owned(), len, max: PLAN_LEN_MAX }.into());
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
    /// `each` is called once for every run of the work, with the runs in files first.
    pub(super) fn run_all(
        &self,
        &SweepWork { plan, part, file, merge }: &SweepWork<'_>,
        stop: &AtomicBool,
        mut each: impl FnMut(&RunRecord),
    ) -> Result<(), CliError> {
        let traces = sweep::load_traces(plan).map_err(LabError::from)?;
        for other in merge {
            // Nothing is written before all of them are known to be there.
            let opened = fs::File::open(other);
            opened.map_err(|error| FileError::Unreadable { file: other.clone(), error })?;
        }
        let mut runs = Runs::open(plan, part, file, &mut each).map_err(LabError::from)?;
        for other in merge {
            runs.merge(other, &mut each).map_err(LabError::from)?;
        }
        let (found, all) = (runs.found(), runs.len());
        if !self.quiet {
            say_found(file, found);
        }
        programs::note(file, merge, (found.finished, all))?;
        let show = if self.quiet { Show::Never } else { Show::OnTerminal };
        let bar = RunsBar::new(show, all, found.finished);
        let mut finished = found.finished;
        let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let ended = runs.run(&traces, self.jobs.unwrap_or(cores), stop, |record| {
            finished += 1;
            bar.advance();
            each(record);
        });
        bar.clear();
        ended.map_err(LabError::from)?;
        if finished < all {
            let file = file.to_owned();
            return Err(LabError::Unfinished { file, finished, of: all }.into());
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
