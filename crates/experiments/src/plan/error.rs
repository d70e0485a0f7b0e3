use std::path::PathBuf;

use super::RUNS_MAX;

/// What is wrong with a plan, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The file is not TOML.
    #[error("{}:{line}: {reason}", file.display())]
    Syntax {
        /// Which file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// No parameter of a run has this name.
    #[error("{}:{line}: unknown key {key:?}; allowed: {allowed}", file.display())]
    UnknownKey {
        /// Which file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// Every key.
        allowed: String,
    },
    /// A value that its key cannot have.
    #[error("{}:{line}: {key} = {seen}: {reason}", file.display())]
    Value {
        /// Which file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// What stands there.
        seen: String,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// A list of no values would make a plan of no runs.
    #[error("{}:{line}: {key} has no values; allowed: a value, or a list of one or more", file.display())]
    EmptyList {
        /// Which file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
    },
    /// More runs than a plan may have.
    #[error("{}: a plan of {runs} runs; allowed: at most {RUNS_MAX}", file.display())]
    TooManyRuns {
        /// Which file.
        file: PathBuf,
        /// How many; as many as can be counted, if there are more.
        runs: u64,
    },
    /// Values that are good each by itself, but not together.
    #[error("{}:{line}: {combination}: {reason}", file.display())]
    Impossible {
        /// Which file.
        file: PathBuf,
        /// Line, from 1: of the key that the reason names, else of the first that varies.
        line: usize,
        /// The values of what varies, or that it is so in every run.
        combination: String,
        /// What is wrong, and what is allowed.
        reason: String,
    },
}
