//! Runs a plan on all cores, and continues an earlier sweep that was interrupted.

mod part;
mod results;

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use sha2::{Digest, Sha256};

use crate::{
    plan::{Plan, canonical},
    run::{self, Parameters, RunError, RunRecord, TraceStore},
};

pub use part::{Part, PartError};
pub use results::{Results, ResultsError, Torn, read_results};

/// A plan, the runs of it that are finished, and the file with their results.
#[derive(Debug)]
pub struct Sweep<'a> {
    plan: &'a Plan,
    results: Results,
    /// The number of each run that belongs to the sweep.
    numbers: BTreeMap<[u8; 32], usize>,
    /// Whether a run need not begin any more.
    finished: Vec<bool>,
    found: Found,
}

/// The contents of the file before the sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of finished runs of this plan, which are not repeated.
    pub finished: u64,
    /// Number of runs that do not belong to this plan, or to this part of it. They stay in the file.
    pub others: u64,
    /// An incomplete last line of an interrupted sweep. It was removed.
    pub torn: Option<Torn>,
}

/// The reason for which a sweep ended before its plan.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The file of the results cannot be used.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A run could not begin.
    #[error("{error}; the run was: {run}")]
    Run {
        /// The cause.
        error: RunError,
        /// The command that repeats the run.
        run: String,
    },
}

impl<'a> Sweep<'a> {
    /// Opens or creates the file of results for a part of a plan, and passes each run in it that belongs to the part
    /// to `known`, once.
    pub fn open(
        plan: &'a Plan,
        part: Part,
        file: &Path,
        mut known: impl FnMut(&RunRecord),
    ) -> Result<Self, ResultsError> {
        let runs = plan.runs().zip(0_usize..).filter(|&(_, number)| part.has(number));
        let numbers: BTreeMap<_, _> = runs.map(|(run, number)| (digest(&run), number)).collect();
        let len = usize::try_from(plan.len()).unwrap_or(usize::MAX);
        let mut finished: Vec<_> = (0..len).map(|number| !part.has(number)).collect();
        let mut found = Found::default();
        let (results, torn) = Results::open(file, |record| {
            if note(&numbers, &mut finished, &mut found, &record) {
                known(&record);
            }
        })?;
        found.torn = torn;
        Ok(Self { plan, results, numbers, finished, found })
    }

    /// Copies the runs of another file of results that belong to this sweep and are not finished yet, and passes
    /// each to `known`. The other file stays as it is.
    pub fn merge(
        &mut self,
        other: &Path,
        mut known: impl FnMut(&RunRecord),
    ) -> Result<(), ResultsError> {
        let Self { results, numbers, finished, found, .. } = self;
        let mut copied = Ok(());
        read_results(other, |record| {
            if copied.is_ok() && note(numbers, finished, found, &record) {
                copied = results.append(&record);
                known(&record);
            }
        })?;
        copied
    }

    /// How many runs belong to the sweep.
    pub fn len(&self) -> u64 {
        self.numbers.len() as u64
    }

    /// Whether no runs belong to the sweep.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The contents of the file before the sweep.
    pub fn found(&self) -> Found {
        self.found
    }

    /// Runs the missing runs on this number of threads until `stop` is true. A run that has begun
    /// is finished. Its line is in the file before `done` is called.
    pub fn run(
        &mut self,
        traces: &TraceStore,
        jobs: NonZeroUsize,
        stop: &AtomicBool,
        mut done: impl FnMut(&RunRecord),
    ) -> Result<(), SweepError> {
        let Self { plan, results, finished, .. } = self;
        let missing = plan.runs().zip(finished.iter()).filter(|(_, finished)| !**finished);
        let missing = missing.map(|(run, _)| run);
        run_all(missing, traces, jobs, stop, |record| {
            results.append(record)?;
            done(record);
            Ok(())
        })
    }
}

/// Notes a run that is in a file. Returns whether it is the first with these parameters that belongs to the sweep.
fn note(
    numbers: &BTreeMap<[u8; 32], usize>,
    finished: &mut [bool],
    found: &mut Found,
    record: &RunRecord,
) -> bool {
    let number = numbers.get(&digest(&record.parameters)).copied();
    let Some(finished) = number.and_then(|number| finished.get_mut(number)) else {
        found.others += 1;
        return false;
    };
    let is_first = !std::mem::replace(finished, true);
    found.finished += u64::from(is_first);
    is_first
}

/// Reads the traces that the plan's runs follow.
pub fn load_traces(plan: &Plan) -> Result<TraceStore, RunError> {
    let mut seen = BTreeSet::new();
    let is_new = |run: &Parameters| seen.insert((run.trace.clone(), run.uplink_trace.clone()));
    let runs: Vec<_> = plan.runs().filter(is_new).collect();
    TraceStore::load(&runs)
}

/// Runs the runs that `runs` yields, and passes their records to `done` on the calling thread, in
/// the order in which they end. At most one run per thread is in memory.
pub fn run_all(
    runs: impl Iterator<Item = Parameters> + Send,
    traces: &TraceStore,
    jobs: NonZeroUsize,
    stop: &AtomicBool,
    mut done: impl FnMut(&RunRecord) -> Result<(), SweepError>,
) -> Result<(), SweepError> {
    let runs = Mutex::new(runs);
    let next = || {
        let mut runs = runs.lock().unwrap_or_else(PoisonError::into_inner);
        if stop.load(Ordering::Relaxed) { None } else { runs.next() }
    };
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(0);
        for _ in 0..jobs.get() {
            let (sender, next, traces) = (sender.clone(), &next, traces);
            scope.spawn(move || {
                while let Some(parameters) = next() {
                    let measured = measure(&parameters, traces);
                    if sender.send(measured).is_err() {
                        return; // the receiver has ended
                    }
                }
            });
        }
        drop(sender);
        receiver.into_iter().try_for_each(|measured| done(&measured?))
    })
}

/// Runs one run, without its time series, which a sweep does not keep.
fn measure(parameters: &Parameters, traces: &TraceStore) -> Result<RunRecord, SweepError> {
    match run::run(parameters, traces) {
        Ok(outcome) => Ok(outcome.record),
        Err(error) => Err(SweepError::Run { error, run: parameters.command() }),
    }
}

fn digest(parameters: &Parameters) -> [u8; 32] {
    Sha256::digest(canonical(parameters)).into()
}

#[cfg(test)]
mod tests;
