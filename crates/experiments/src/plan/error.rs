use std::path::PathBuf;

use super::RUNS_MAX;

/// An error in a plan, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The file is not TOML.
    #[error("{}:{line}: {reason}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The message of the parser.
        reason: String,
    },
    /// No parameter of a run has this name.
    #[error("{}:{line}: unknown key {key:?}; allowed: {allowed}", file.display())]
    UnknownKey {
        /// The file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// All keys.
        allowed: String,
    },
    /// The key does not allow this value.
    #[error("{}:{line}: {key} = {seen}: {reason}", file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The value in the file.
        seen: String,
        /// The error, and the values that are allowed.
        reason: String,
    },
    /// A list is empty, so the plan would have no runs.
    #[error("{}:{line}: {key} has no values; allowed: a value, or a list of one or more", file.display())]
    EmptyList {
        /// The file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
    },
    /// The plan has too many runs.
    #[error("{}: a plan of {runs} runs; allowed: at most {RUNS_MAX}", file.display())]
    TooManyRuns {
        /// The file.
        file: PathBuf,
        /// The number of runs, limited to the range of the type.
        runs: u64,
    },
    /// Values are allowed individually, but not in combination.
    #[error("{}:{line}: {combination}: {reason}", file.display())]
    Impossible {
        /// The file.
        file: PathBuf,
        /// Line, from 1, of the key that the reason names, or of the first varied key.
        line: usize,
        /// The values of the varied keys, or a text for every run.
        combination: String,
        /// The error, and the values that are allowed.
        reason: String,
    },
}
