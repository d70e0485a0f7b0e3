//! What can go wrong, as one line for a person and one exit code for a script.

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use tandem_emulate::{RelayError, TunError};
use tandem_experiments::sweep::{ResultsError, SweepError};
use tandem_node::error::ClientError;

use crate::advice;
pub(crate) use crate::config::ConfigError;

/// Why a subcommand did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The user can fix it on the command line or in a file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tunnel or a fetch failed.
    #[error("{error}{}", advice::try_this(.error))]
    Client {
        /// Why.
        error: ClientError,
    },
    /// A fetch failed when a part of the file was already there.
    #[error("{cause}; the {bytes} bytes that arrived are in {}", part.display())]
    Partial {
        /// Why.
        cause: Box<CliError>,
        /// How much arrived.
        bytes: u64,
        /// Where it is.
        part: PathBuf,
    },
    /// A file could not be written or renamed.
    #[error("cannot write {}: {error}", file.display())]
    Write {
        /// Which file.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Standard output could not be written.
    #[error("cannot write to standard output: {0}")]
    Stdout(io::Error),
    /// An emulated link between UDP sockets could not begin or go on.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// An emulated link between TUN devices could not begin or go on.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// The operating system refused something else that we cannot do without.
    #[error("cannot {what}: {error}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
    /// The file that arrived is not the file that was sent.
    #[error("SHA-256 of the file that arrived is {received}, but {sent} was sent")]
    Corrupt {
        /// Of what arrived.
        received: String,
        /// Of what was sent.
        sent: String,
    },
    /// A node stopped without a word.
    #[error(
        "the {role} ended without a result; please report this with the output of RUST_LOG=debug"
    )]
    NoResult {
        /// Which node.
        role: &'static str,
    },
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
    /// The user ended it before all runs were run.
    #[error(
        "interrupted: {finished} of {of} runs are in {}; the same command runs the others",
        file.display()
    )]
    Unfinished {
        /// Where they are.
        file: PathBuf,
        /// How many.
        finished: u64,
        /// Of how many.
        of: u64,
    },
    /// Runs did not end as they should.
    #[error(transparent)]
    Sweep(SweepError),
    /// The lab broke its own rules.
    #[error("the verifier found {count} things that cannot be: the results are worth nothing")]
    Violations {
        /// How many.
        count: u64,
    },
}

impl From<SweepError> for CliError {
    fn from(error: SweepError) -> Self {
        match error {
            SweepError::Results(error) => error.into(),
            error @ SweepError::Run { .. } => Self::Sweep(error),
        }
    }
}

impl From<ResultsError> for CliError {
    fn from(error: ResultsError) -> Self {
        match error {
            ResultsError::Write { .. } => Self::Sweep(error.into()),
            error => ConfigError::Results(error).into(),
        }
    }
}

impl CliError {
    /// 1 failed, 2 usage or configuration, 3 the lab broke its own rules, 130 interrupted; 0 if only the reader of our output went
    /// away.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) => ExitCode::from(2),
            Self::Client { error: ClientError::Interrupted }
            | Self::Interrupted
            | Self::Unfinished { .. } => ExitCode::from(130),
            Self::Partial { cause, .. } => cause.exit_code(),
            Self::Stdout(_) if self.is_silent() => ExitCode::SUCCESS,
            Self::Violations { .. } => ExitCode::from(3),
            _ => ExitCode::from(1),
        }
    }

    /// Whether there is nothing to say, because nobody reads our output any more.
    pub(crate) fn is_silent(&self) -> bool {
        match self {
            Self::Stdout(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Partial { cause, .. } => cause.is_silent(),
            _ => false,
        }
    }

    /// The same without what is left of the file.
    #[must_use]
    pub(crate) fn without_part(self) -> Self {
        match self {
            Self::Partial { cause, .. } => *cause,
            error => error,
        }
    }

    /// A failed write of this file.
    pub(crate) fn write(file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Write { file: file.to_owned(), error }
    }
}
