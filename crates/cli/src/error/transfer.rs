//! Why a transfer failed, as one line for a person.

use std::{io, path::PathBuf, process::ExitCode};

use tandem_node::{StrangerText, error::ClientError};
use tandem_server::process::{SystemError, WriteError};
use tandem_units::{ByteCount, HumanDuration};

use crate::{advice, config::HttpsUrl};

/// Why nothing, or only a part of a file, was transferred.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    /// A tunnel or a fetch failed.
    #[error("{}{}", advice::with_dates(&.error.to_string()), advice::try_this(.error))]
    Client {
        /// The cause.
        error: ClientError,
    },
    /// The server has nothing to measure with at this path.
    #[error(
        "{url}: status {status}; for a speed test, start tandem origin with --speedtest, or give the URL of a large \
         file and --only download"
    )]
    NoSpeedtest {
        /// The URL.
        url: StrangerText,
        /// The HTTP status code.
        status: u16,
    },
    /// The origin does not answer over UDP.
    #[error(
        "{error}{}; tandem get speaks HTTP/3 only, which runs over UDP: if this server has HTTP over TCP only, use \
         curl, and for a tunnel tandem client --proxy 127.0.0.1:1080 with curl --proxy socks5h://127.0.0.1:1080",
        advice::try_this(.error)
    )]
    NotOverUdp {
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
        cause: Box<TransferError>,
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
    /// The fetched file could not be written or renamed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The operating system refused something else.
    #[error(transparent)]
    System(#[from] SystemError),
    /// A node ended without a result.
    #[error(transparent)]
    NoResult(#[from] NoResult),
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
    /// The node refuses its settings.
    #[error(transparent)]
    Node(#[from] tandem_node::quic::ConfigError),
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
}

/// A node ended without a result.
#[derive(Debug, thiserror::Error)]
#[error("the {role} ended without a result; please report this with the output of RUST_LOG=debug")]
pub(crate) struct NoResult {
    /// Which node.
    pub(crate) role: &'static str,
}

impl TransferError {
    /// Adds to an error of the origin itself, rather than of a proxy, that only HTTP/3 is spoken with it.
    pub(crate) fn over_udp(self, url: &HttpsUrl) -> Self {
        let Self::Client { error } = self else { return self };
        let is_silent = match &error {
            ClientError::Refusing { peer, .. } | ClientError::NoAnswer { peer, .. } => {
                *peer == url.authority()
            }
            ClientError::FlowClosed { target, .. } => {
                target.unescaped() == format!("{}:{}", url.host(), url.port())
            }
            _ => false,
        };
        if is_silent { Self::NotOverUdp { error } } else { Self::Client { error } }
    }

    /// Whether the user ended the transfer.
    pub(super) fn is_interrupted(&self) -> bool {
        match self {
            Self::Client { error: ClientError::Interrupted } | Self::Interrupted => true,
            Self::Partial { cause, .. } => cause.is_interrupted(),
            _ => false,
        }
    }

    /// As [`CliError::exit_code`](super::CliError::exit_code).
    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            _ if self.is_interrupted() => ExitCode::from(130),
            Self::Partial { cause, .. } => cause.exit_code(),
            Self::Node(_) => ExitCode::from(2),
            _ => ExitCode::from(1),
        }
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
