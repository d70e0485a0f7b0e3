//! The errors of experiments, as one line for a person and one exit code for a script.

use std::{path::PathBuf, process::ExitCode};

use tandem_emulate::{RelayError, TunError};
use tandem_experiments::{
    figure::UnknownFigure,
    plan::PlanError,
    run::RunError,
    sweep::{ResultsError, SweepError},
};
use tandem_netem::{RateTraceError, SyntheticError};

use super::CliError;

/// Why an experiment could not be run, or why its results are invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LabError {
    /// More runs than one command takes.
    #[error(
        "more than {max} runs; `tandem lab sweep` takes more, and can be interrupted and continued"
    )]
    TooManyRuns {
        /// The largest number that is allowed.
        max: u64,
    },
    /// A file is not a trace.
    #[error(transparent)]
    Trace(#[from] RateTraceError),
    /// A trace cannot be made.
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
    /// A plan of runs is wrong.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A run cannot be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// There is no such figure.
    #[error(transparent)]
    Figure(#[from] UnknownFigure),
    /// A file of results cannot be used.
    #[error(transparent)]
    Results(ResultsError),
    /// A folder without figures and results.
    #[error(
        "{} has neither figures (.svg) nor results of runs (.jsonl); `tandem lab figure --out DIR` \
         and `tandem lab sweep --out DIR/NAME.jsonl` make some",
        folder.display()
    )]
    NothingToReport {
        /// Which folder.
        folder: PathBuf,
    },
    /// A folder with more files than a page can show.
    #[error("{} has more than {max} files; name a smaller folder", folder.display())]
    TooManyFiles {
        /// Which folder.
        folder: PathBuf,
        /// The limit.
        max: usize,
    },
    /// The user ended it before all runs were run.
    #[error(
        "interrupted: {finished} of {of} runs are in {}; the same command runs the others",
        file.display()
    )]
    Unfinished {
        /// Where they are.
        file: PathBuf,
        /// The number of them.
        finished: u64,
        /// The number of all runs.
        of: u64,
    },
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
    /// A run or its result failed.
    #[error(transparent)]
    Sweep(SweepError),
    /// An emulated link between UDP sockets could not begin or go on.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// An emulated link between TUN devices could not begin or go on.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// An emulated link violated its rules.
    #[error(
        "the verifier found {count} violations of the rules of links: the results are not valid"
    )]
    Violations {
        /// The number of them.
        count: u64,
    },
}

impl From<SweepError> for LabError {
    fn from(error: SweepError) -> Self {
        match error {
            SweepError::Results(error) => error.into(),
            error @ SweepError::Run { .. } => Self::Sweep(error),
        }
    }
}

impl From<ResultsError> for LabError {
    fn from(error: ResultsError) -> Self {
        match error {
            ResultsError::Write { .. } => Self::Sweep(error.into()),
            error => Self::Results(error),
        }
    }
}

impl From<RelayError> for CliError {
    fn from(error: RelayError) -> Self {
        Self::Lab(error.into())
    }
}

impl From<TunError> for CliError {
    fn from(error: TunError) -> Self {
        Self::Lab(error.into())
    }
}

impl LabError {
    /// As [`CliError::exit_code`](super::CliError::exit_code).
    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Sweep(_) | Self::Relay(_) | Self::Tun(_) => ExitCode::from(1),
            Self::Violations { .. } => ExitCode::from(3),
            Self::Unfinished { .. } | Self::Interrupted => ExitCode::from(130),
            _ => ExitCode::from(2),
        }
    }
}
