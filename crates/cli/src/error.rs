//! What can go wrong, as one line for a person and one exit code for a script.

use std::{
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    process::ExitCode,
};

use tandem_congestion::{ControllerName, TeccConfigError};
use tandem_emulate::{RelayError, TunError};
use tandem_experiments::{
    figure::UnknownFigure,
    plan::PlanError,
    run::RunError,
    sweep::{ResultsError, SweepError},
};
use tandem_netem::{RateTraceError, SyntheticError};
use tandem_node::error::ClientError;

use crate::{advice, config::ListenAddr};

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
    /// A run or its result failed.
    #[error(transparent)]
    Sweep(SweepError),
    /// An emulated link violated its rules.
    #[error(
        "the verifier found {count} violations of the rules of links: the results are not valid"
    )]
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
    /// 1 failed, 2 usage or configuration, 3 a violation of the rules of links, 130 interrupted; 0 if
    /// only the reader of our output went away.
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

/// What is wrong with flags, environment, configuration file or a file that they name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// More runs than one command takes.
    #[error(
        "more than {max} runs; `tandem lab sweep` takes more, and can be interrupted and continued"
    )]
    TooManyRuns {
        /// The most.
        max: u64,
    },
    /// A file is no trace.
    #[error(transparent)]
    Trace(#[from] RateTraceError),
    /// A trace cannot be made.
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
    /// A file that is needed cannot be read.
    #[error("cannot read {}: {error}", file.display())]
    Unreadable {
        /// Which file.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Too long to be what it should be.
    #[error("{} has {len} bytes; allowed: at most {max}", file.display())]
    TooLong {
        /// Which file.
        file: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// A line of the configuration file is wrong.
    #[error("{}:{line}: {}{}{reason}", file.display(), prefix(.key.as_deref()), prefix(.seen.as_deref()))]
    InFile {
        /// Which file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Key, with its table.
        key: Option<String>,
        /// What stands there.
        seen: Option<String>,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// Something required was given nowhere.
    #[error("{key} is missing: give --{key} {value}, {variable}, or {key} in the file of --config")]
    Missing {
        /// Name of the flag and key.
        key: &'static str,
        /// What the value is called.
        value: &'static str,
        /// Environment variable.
        variable: &'static str,
    },
    /// A time is too short or too long.
    #[error("{name} = {seen}; allowed: {allowed}")]
    TimeOutOfRange {
        /// Name of the flag and key.
        name: &'static str,
        /// What was given.
        seen: tandem_units::HumanDuration,
        /// What would be allowed.
        allowed: &'static str,
    },
    /// Two settings contradict each other.
    #[error("{first} and {second} cannot be used together: {reason}")]
    Conflict {
        /// One.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// One setting needs another one.
    #[error("{first} needs {second}: {reason}")]
    Incomplete {
        /// What was given.
        first: &'static str,
        /// What was not.
        second: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// Anybody could use the proxy, and nobody said that this is meant.
    #[error(
        "listen = {listen} lets others use this proxy: give --token-file FILE or --client-ca FILE, \
         or --allow-anyone if everybody may"
    )]
    OpenProxy {
        /// Where it listens.
        listen: ListenAddr,
    },
    /// Switched off where nothing else would control congestion.
    #[error(
        "controller = off is only for tunnels, whose flows have congestion control of their own; \
         allowed here: bbr1, bbr1-tunnel, newreno, cubic, bbr3"
    )]
    ControllerOff,
    /// A sender that follows reports of a tunnel, where none come.
    #[error(
        "controller = {seen} is for origins, to whom clients of mode tecc tell of their tunnels; \
         allowed here: bbr1, bbr1-tunnel, newreno, cubic, bbr3"
    )]
    ControllerTecc {
        /// The controller.
        seen: ControllerName,
    },
    /// A setting of how origins use reports is not allowed.
    #[error("tecc: {0}")]
    Tecc(#[from] TeccConfigError),
    /// A number is too small or too large.
    #[error("{name} = {seen}; allowed: {} to {}", allowed.start(), allowed.end())]
    OutOfRange {
        /// Name of the flag and key.
        name: &'static str,
        /// The number.
        seen: u32,
        /// What would be allowed.
        allowed: RangeInclusive<u32>,
    },
    /// A folder that should be there is not.
    #[error("{what} = {}: no such folder; make it first, or name another", path.display())]
    NoFolder {
        /// Name of the flag and key.
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// A certificate, a key or their combination cannot be used.
    #[error("{}: {reason}", file.display())]
    Pem {
        /// Which file.
        file: PathBuf,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// TLS refuses the settings.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The system trusts nobody.
    #[error("no CA certificates on this system ({0}): install them, or give --ca FILE")]
    NoSystemCa(rustls::Error),
    /// A name that no certificate can be made for.
    #[error("name = {name:?} is neither a host name nor an IP address")]
    Name {
        /// The name.
        name: String,
    },
    /// A line of a token file is wrong. Does not show what was seen: it is a secret.
    #[error("{}:{line}: {reason}", file.display())]
    Token {
        /// Which file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// A token file without a token.
    #[error("{} has no token; put one on a line of its own", file.display())]
    NoToken {
        /// Which file.
        file: PathBuf,
    },
    /// Neither one token file for all proxies nor one for each.
    #[error("{files} token files for {proxies} proxies; allowed: one for all, or one for each")]
    TokenFiles {
        /// How many files.
        files: usize,
        /// How many proxies.
        proxies: usize,
    },
    /// Where the download is to go is no good.
    #[error("output = {}: {reason}", path.display())]
    Output {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        reason: &'static str,
    },
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
    /// The node refuses the settings.
    #[error(transparent)]
    Node(#[from] tandem_node::quic::ConfigError),
}

fn prefix(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!("{text}: "))
}
