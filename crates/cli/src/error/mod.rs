//! The errors of the program, as one line for a person and one exit code for a script.

mod config;
mod lab;

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use tandem_emulate::{RelayError, TunError};
use tandem_node::{StrangerText, error::ClientError};
use tandem_units::{ByteCount, HumanDuration};

pub(crate) use self::{
    config::{ConfigError, end_to_end_controllers},
    lab::LabError,
};
use crate::{admin::AdminAddr, advice, users::StoreError};

/// Why a subcommand failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tunnel or a fetch failed.
    #[error("{}{}", advice::with_dates(&.error.to_string()), advice::try_this(.error))]
    Client {
        /// The cause.
        error: ClientError,
    },
    /// A redirect cannot be followed.
    #[error("{url}: status {status} redirects to {location}: {reason}")]
    Redirect {
        /// The URL of the request.
        url: StrangerText,
        /// The HTTP status code.
        status: u16,
        /// Where it leads.
        location: StrangerText,
        /// The reason.
        reason: StrangerText,
    },
    /// A fetch failed after a part of the file had arrived.
    #[error(
        "{cause}; the first {bytes} bytes are in {}{}", part.display(), hint(*.can_continue)
    )]
    Partial {
        /// The cause.
        cause: Box<CliError>,
        /// The number of bytes that are there, from the start without a gap.
        bytes: u64,
        /// Where they are.
        part: PathBuf,
        /// Whether `--continue` can fetch the rest.
        can_continue: bool,
    },
    /// The fetched file could not be written to standard output.
    #[error("cannot write the file to standard output: {0}")]
    BodyToStdout(io::Error),
    /// A file could not be written or renamed.
    #[error("cannot write {}: {error}", file.display())]
    Write {
        /// Which file.
        file: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// A file or a folder could not be read.
    #[error("cannot read {}: {error}", file.display())]
    Unreadable {
        /// Which one.
        file: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// No qlog of a client is there.
    #[error("{}", no_qlogs(.folders, .chain.as_deref()))]
    NoQlogs {
        /// Where.
        folders: Vec<PathBuf>,
        /// The chain of connections that was asked for.
        chain: Option<String>,
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
    /// This process cannot take over from the one that started it.
    #[error("cannot take over: {reason}; restart the server instead")]
    TakeOver {
        /// The reason.
        reason: String,
    },
    /// The admin listener cannot be opened.
    #[error("cannot listen at {address} (--admin): {error}")]
    Admin {
        /// The address to listen on.
        address: AdminAddr,
        /// The cause.
        error: io::Error,
    },
    /// An admin listener does not answer.
    #[error("{address}: {error}; is there a proxy or an origin with --admin {address}?")]
    NoAnswer {
        /// The address.
        address: AdminAddr,
        /// The cause.
        error: tandem_net::admin::ClientError,
    },
    /// A server takes no new connections.
    #[error(
        "{address}: the server takes no new connections: it starts or drains, memory is short, or a thread is stuck; \
         its log says more"
    )]
    NotReady {
        /// The address of its admin listener.
        address: AdminAddr,
    },
    /// What answers is no server of this version.
    #[error("{address}: the answer is not that of a Tandem server of this version: {error}")]
    ForeignAnswer {
        /// The address.
        address: AdminAddr,
        /// The cause.
        error: StrangerText,
    },
    /// The store of what users have used cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The operating system refused something else that the program needs.
    #[error("cannot {what}: {error}")]
    System {
        /// The refused action.
        what: &'static str,
        /// The cause.
        error: io::Error,
    },
    /// The file that arrived is not the file that was sent.
    #[error("SHA-256 of the file that arrived is {received}, but {sent} was sent")]
    Corrupt {
        /// The hash of the file that arrived.
        received: String,
        /// The hash of the file that was sent.
        sent: String,
    },
    /// A PEP cannot begin or go on.
    #[error("{reason}; `tandem pep --check` with the same settings tells what this machine lacks")]
    Pep {
        /// The cause.
        reason: String,
    },
    /// A PEP would not run on this machine.
    #[error("this machine lacks something that a PEP needs; see above")]
    PepNotReady,
    /// A node ended without a result.
    #[error(
        "the {role} ended without a result; please report this with the output of RUST_LOG=debug"
    )]
    NoResult {
        /// Which node.
        role: &'static str,
    },
    /// A transfer was not complete in time.
    #[error("the transfer was not complete after {time} (--max-time)")]
    MaxTime {
        /// The time.
        time: HumanDuration,
    },
    /// A transfer made too little progress.
    #[error(
        "the transfer was given up: it carried {bytes} in {time} (--speed-time and --speed-limit)"
    )]
    TooSlow {
        /// The bytes in this time.
        bytes: ByteCount,
        /// The time.
        time: HumanDuration,
    },
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
    /// An experiment could not be run, or its results are invalid.
    #[error(transparent)]
    Lab(#[from] LabError),
}

impl CliError {
    /// 1: it failed; 2: the command line or the configuration is wrong; 3: an emulated link violated its
    /// rules; 130: it was interrupted; 0: only the reader of the output is gone.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) => ExitCode::from(2),
            Self::Client { error: ClientError::Interrupted } | Self::Interrupted => {
                ExitCode::from(130)
            }
            Self::Partial { cause, .. } => cause.exit_code(),
            Self::Stdout(_) if self.is_silent() => ExitCode::SUCCESS,
            Self::Lab(error) => error.exit_code(),
            _ => ExitCode::from(1),
        }
    }

    /// Whether to print nothing, because the reader of the output is gone.
    pub(crate) fn is_silent(&self) -> bool {
        match self {
            Self::Stdout(error) => error.kind() == io::ErrorKind::BrokenPipe,
            _ => false,
        }
    }

    /// A failed write of this file.
    pub(crate) fn write(file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Write { file: file.to_owned(), error }
    }
}

fn no_qlogs(folders: &[PathBuf], chain: Option<&str>) -> String {
    let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let folders = folders.join(", ");
    match chain {
        Some(chain) => format!("{folders}: no qlog of a client has the tandem_chain {chain}"),
        None => format!(
            "{folders}: there is no qlog of a client; `tandem get` and `tandem client` write one with --qlog-dir DIR"
        ),
    }
}

/// How to go on after a part of a file has arrived.
fn hint(can_continue: bool) -> &'static str {
    if can_continue {
        ": repeat the command with --continue to fetch the rest"
    } else {
        ", but the origin sent no validator (ETag) with which a download can be continued"
    }
}
