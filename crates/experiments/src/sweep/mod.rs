//! Runs a plan on all cores, and goes on where an earlier sweep was ended.

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

pub use results::{Results, ResultsError, Torn, read_results};

/// A plan, what is known of its runs, and the file where that stands.
#[derive(Debug)]
pub struct Sweep<'a> {
    plan: &'a Plan,
    results: Results,
    finished: Vec<bool>,
    found: Found,
}

/// What was in the file before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Runs of this plan, which need not run again.
    pub finished: u64,
    /// Runs that this plan does not have. They stay.
    pub others: u64,
    /// A last line that an interrupted sweep did not finish; it was cut off.
    pub torn: Option<Torn>,
}

/// Why a sweep ended before its plan.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The file of the results cannot be used.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A run cannot be run.
    #[error("{error}; the run was: {run}")]
    Run {
        /// Why.
        error: RunError,
        /// The command that repeats it.
        run: String,
    },
}

impl<'a> Sweep<'a> {
    /// Opens the file of the results, or makes it, and gives each of its runs that the plan has to
    /// `known`, once.
    pub fn open(
        plan: &'a Plan,
        file: &Path,
        mut known: impl FnMut(&RunRecord),
    ) -> Result<Self, ResultsError> {
        let numbers: BTreeMap<_, _> = plan.runs().map(|run| digest(&run)).zip(0_usize..).collect();
        let mut finished = vec![false; usize::try_from(plan.len()).unwrap_or(usize::MAX)];
        let mut found = Found::default();
        let (results, torn) = Results::open(file, |record| {
            let number = numbers.get(&digest(&record.parameters)).copied();
            match number.and_then(|number| finished.get_mut(number)) {
                Some(finished) if !*finished => {
                    *finished = true;
                    found.finished += 1;
                    known(&record);
                }
                Some(_) => {} // twice in the file
                None => found.others += 1,
            }
        })?;
        found.torn = torn;
        Ok(Self { plan, results, finished, found })
    }

    /// What was in the file before.
    pub fn found(&self) -> Found {
        self.found
    }

    /// Runs what is missing on this many threads until `stop` is true. A run that has begun is
    /// finished; its line is in the file before `done` sees it.
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

/// Reads the traces that the plan's runs follow.
pub fn load_traces(plan: &Plan) -> Result<TraceStore, RunError> {
    let mut seen = BTreeSet::new();
    let is_new = |run: &Parameters| seen.insert((run.trace.clone(), run.uplink_trace.clone()));
    let runs: Vec<_> = plan.runs().filter(is_new).collect();
    TraceStore::load(&runs)
}

/// Runs what `runs` yields, and gives what was measured to `done` on the calling thread, in the
/// order in which runs end. No more runs are held than there are threads.
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

/// One run without its time series, which a sweep does not keep.
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
