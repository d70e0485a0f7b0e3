//! What is wrong with settings, and with the files that they name, as one line for a person.

use std::{io, path::PathBuf};

use tandem_congestion::{ControllerName, TeccConfigError};
use tandem_experiments::{
    figure::UnknownFigure, plan::PlanError, run::RunError, sweep::ResultsError,
};
use tandem_netem::{RateTraceError, SyntheticError};
use tandem_node::mode::Mode;

use super::ListenAddr;

/// What is wrong with flags, environment, configuration file or a file that they name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// More runs than one command takes.
    #[error("more than {max} runs; `tandem lab sweep` takes more, and goes on when it was ended")]
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
    /// A mode that is a tunnel, and no proxy for it.
    #[error("mode {mode} needs via: a tunnel needs a proxy at its other end")]
    NoProxy {
        /// The mode.
        mode: Mode,
    },
    /// A proxy, and a mode that is no tunnel.
    #[error("mode {mode} and via cannot be used together: without a tunnel there is no proxy")]
    NoTunnel {
        /// The mode.
        mode: Mode,
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
