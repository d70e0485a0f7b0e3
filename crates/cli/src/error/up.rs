//! Why a client cannot be set up, shown or ended.

use std::{io, path::PathBuf, process::ExitCode};

use tandem_files::pvd::PvdError;
use tandem_node::{StrangerText, error::ClientError};

use crate::{advice, link::LinkError};

/// Why `tandem up`, `down` or `status` fails. No error shows a link, which may have a token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpError {
    /// The text begins like a link and is none.
    #[error("the link cannot be used: {0}")]
    Link(LinkError),
    /// The text names no proxy.
    #[error(
        "{0} is no proxy; allowed: a name such as proxy.example, HOST:PORT, an https URL, or a tandem:// link"
    )]
    Name(StrangerText),
    /// The environment names no folder for the configuration of the user.
    #[error("there is no place for the setup: XDG_CONFIG_HOME or HOME has to be an absolute path")]
    NoHome,
    /// Nothing was named, and nothing is set up.
    #[error("nothing is set up: name a proxy, as in `tandem up proxy.example`, or give a link")]
    NoSetup,
    /// What is set up cannot be read.
    #[error("{}: {reason}; `tandem up NAME --replace` writes it again", file.display())]
    Setup {
        /// Which file.
        file: PathBuf,
        /// The error.
        reason: String,
    },
    /// Another proxy is set up.
    #[error(
        "{old} is set up already, and nothing was changed: with --replace, {new} takes its place and its token \
         is removed"
    )]
    OtherProxy {
        /// The one that is set up.
        old: String,
        /// The one that was named.
        new: String,
    },
    /// The proxy's configuration document cannot be used.
    #[error(
        "the configuration document (PvD) of {proxy} cannot be used: {error}; with --no-pvd, `tandem up` does not ask \
         for it"
    )]
    Document {
        /// The proxy.
        proxy: String,
        /// The error.
        error: PvdError,
    },
    /// The proxy answers the request for its configuration document with a redirect.
    #[error(
        "{proxy} redirects the request for its configuration document (PvD), and such redirects are not followed; with \
         --no-pvd, `tandem up` does not ask for it"
    )]
    Redirected {
        /// The proxy.
        proxy: String,
    },
    /// The proxy asks for a token, and there is none.
    #[error(
        "{proxy} asks for a token: give a link, --token-file FILE, or write it to standard input"
    )]
    NoToken {
        /// The proxy.
        proxy: String,
    },
    /// The text does not have the form of a token.
    #[error(
        "this is no token: a token has 16 to 8192 characters out of A-Z a-z 0-9 - . _ ~ + / and = at the end"
    )]
    TokenForm,
    /// The proxy does not accept the token.
    #[error("{proxy} does not accept this token, and nothing was written")]
    WrongToken {
        /// The proxy.
        proxy: String,
    },
    /// The server cannot be reached, or cannot be trusted, or speaks something else.
    #[error("{error}{}", advice::for_setup(error, *is_pinned))]
    Server {
        /// The error.
        error: ClientError,
        /// Whether only one certificate is trusted.
        is_pinned: bool,
    },
    /// The server answers as if it were no proxy.
    #[error(
        "{proxy} answers like a web server (status {status}) and not like a proxy, and nothing was written: check the \
         name, the port, the secret path and the token. A proxy that is a web site answers so to everybody who has no \
         right to it"
    )]
    NoProxy {
        /// The server.
        proxy: String,
        /// The status of its answer.
        status: u16,
    },
    /// A client of an older setup runs in a terminal.
    #[error(
        "a client runs already, as process {process}, and nothing was changed: `tandem down` ends it"
    )]
    Runs {
        /// Its process ID.
        process: i32,
    },
    /// The client does not end.
    #[error("process {process} does not end; `kill -9 {process}` ends it at once")]
    DoesNotEnd {
        /// Its process ID.
        process: i32,
    },
    /// A command of systemd failed.
    #[error(
        "`systemctl --user {command}` failed: {reason}; --foreground runs the client without systemd"
    )]
    Systemctl {
        /// The command.
        command: String,
        /// What it said.
        reason: StrangerText,
    },
    /// The client does not begin.
    #[error("the client did not begin within {seconds} s; `journalctl --user -u {unit}` says why")]
    NotBegun {
        /// For how long `tandem up` has waited.
        seconds: u64,
        /// The unit.
        unit: &'static str,
    },
    /// There is no tunnel. The output of `tandem status` says why.
    #[error("there is no tunnel")]
    NotUp,
    /// The terminal or the standard input cannot be read.
    #[error("the token cannot be read: {0}")]
    Input(io::Error),
    /// The program cannot start itself.
    #[error("the client cannot be started: {0}")]
    Start(io::Error),
}

impl UpError {
    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Link(_)
            | Self::Name(_)
            | Self::NoHome
            | Self::NoSetup
            | Self::Setup { .. }
            | Self::OtherProxy { .. }
            | Self::TokenForm => ExitCode::from(2),
            Self::Input(error) if error.kind() == io::ErrorKind::Interrupted => ExitCode::from(130),
            _ => ExitCode::from(1),
        }
    }
}
