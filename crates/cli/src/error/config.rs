//! Errors of settings and of the files that they name, as one line for a person.

use std::{fs, io, net::SocketAddr, path::PathBuf};

use tandem_congestion::{ControllerName, TeccConfigError};
use tandem_node::{client::local::PasswordError, mode::Mode};
use tandem_server::{SetupError, files::FileError, tls::TlsError};

/// An error of the command line, the environment, the configuration file or a file that they name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// A file that a setting names cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no TLS with these settings.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A required setting is missing.
    #[error("{key} is missing: give --{key} {value}, {variable}, or {key} in the file of --config")]
    Missing {
        /// Name of the flag and key.
        key: &'static str,
        /// Name of the value.
        value: &'static str,
        /// Environment variable.
        variable: &'static str,
    },
    /// The URL of an ACME directory is not one.
    #[cfg(feature = "acme")]
    #[error("acme-directory: \"{url}\": allowed: a URL that begins with https://")]
    AcmeDirectory {
        /// What was given.
        url: String,
    },
    /// Two settings contradict each other.
    #[error("{first} and {second} cannot be used together: {reason}")]
    Conflict {
        /// One setting.
        first: &'static str,
        /// The other setting.
        second: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// One setting needs another one.
    #[error("{first} needs {second}: {reason}")]
    Incomplete {
        /// The setting that was given.
        first: &'static str,
        /// The setting that is missing.
        second: &'static str,
        /// The reason.
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
    /// Nothing can be drawn.
    #[error(
        "standard output and standard error are no terminal of 80 columns and 20 lines, on which a picture \
         can be drawn: use a larger window, or --json"
    )]
    NoTerminal,
    /// A client without anything to carry.
    #[error(
        "there is nothing to carry: give --udp LISTEN=TARGET, --tcp LISTEN=TARGET, --proxy LISTEN or \
         --stdio TARGET, or one of udp, tcp, proxy and stdio in the file of --config"
    )]
    NothingToCarry,
    /// Other hosts could use a client's local proxy without a password.
    #[error(
        "proxy = {listen} lets other hosts use this tunnel: give --proxy-password-file FILE, whose first \
         line is USER:PASSWORD, or listen on a loopback address such as 127.0.0.1:{}",
        listen.port()
    )]
    OpenLocalProxy {
        /// Where it listens.
        listen: SocketAddr,
    },
    /// A file with the password of a local proxy is wrong. The error does not show the password.
    #[error("{}:1: {error}", file.display())]
    Password {
        /// Which file.
        file: PathBuf,
        /// The error, and what is allowed.
        error: PasswordError,
    },
    /// The file of the other end's pair cannot be read.
    #[error(
        "cannot read {}: {error}: copy the file client.pem here from the machine on which `tandem serve` \
         runs, which makes it at its first start, or name it with --pair FILE",
        file.display()
    )]
    NoPair {
        /// Which file.
        file: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A file of a pair is wrong. The error does not show the token.
    #[error("{}: {reason}; copy it again from the machine on which `tandem serve` runs", file.display())]
    Pair {
        /// Which file.
        file: PathBuf,
        /// The error.
        reason: String,
    },
    /// The folder of a pair has the file for the other end, but not the files from which it was made.
    #[error(
        "{} is there, but server.pem and tokens, from which it was made, are not beside it, and nothing \
         was written: name another folder with --pair DIR, or remove this file to make a new pair",
        file.display()
    )]
    HalfPair {
        /// The file for the other end.
        file: PathBuf,
    },
    /// Congestion control is off where nothing else would control congestion.
    #[error(
        "controller = off is only for tunnels, whose flows have their own congestion control; allowed \
         here: {}",
        end_to_end_controllers()
    )]
    ControllerOff,
    /// A controller that follows reports on a tunnel, or PEPs, where there are no reports.
    #[error(
        "controller = {seen} is for origins, which receive reports on tunnels from clients of mode \
         tecc, or messages of PEPs; allowed here: {}",
        end_to_end_controllers()
    )]
    ControllerTecc {
        /// The controller.
        seen: ControllerName,
    },
    /// A parameter of the controllers that follow reports is not allowed.
    #[error("tecc: {0}")]
    Tecc(#[from] TeccConfigError),
    /// The system has no CA certificates.
    #[error("no CA certificates on this system ({0}): install them, or give --ca FILE")]
    NoSystemCa(rustls::Error),
    /// More ranges of servers than a PEP takes.
    #[cfg(feature = "pep-kernel")]
    #[error("{servers} ranges of servers; allowed: at most {max}")]
    TooManyServers {
        /// How many were given.
        servers: usize,
        /// The limit.
        max: usize,
    },
    /// Neither one token file for all proxies nor one for each.
    #[error("{files} token files for {proxies} proxies; allowed: one for all, or one for each")]
    TokenFiles {
        /// How many files.
        files: usize,
        /// How many proxies.
        proxies: usize,
    },
    /// There is nothing to fetch. The parser sees to it that there is.
    #[error("give a URL")]
    NoUrl,
    /// The download cannot be written to this path.
    #[error("output = {}: {reason}", path.display())]
    Output {
        /// The path.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// A server or a node refuses the settings.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

impl ConfigError {
    /// Whether a file does not exist or is empty, so that another program may be about to write it.
    pub(crate) fn is_missing_file(&self) -> bool {
        match self {
            Self::File(error) | Self::Tls(TlsError::File(error)) => error.is_missing(),
            Self::Password { file, .. } => {
                fs::metadata(file).is_ok_and(|metadata| metadata.len() == 0)
            }
            _ => false,
        }
    }
}

/// The controllers that every connection may have.
pub(crate) fn end_to_end_controllers() -> String {
    let names = ControllerName::ALL.into_iter();
    let names = names.filter(|name| {
        !name.takes_reports() && !name.follows_peps() && *name != ControllerName::Off
    });
    names.map(ControllerName::as_str).collect::<Vec<_>>().join(", ")
}

impl From<rustls::Error> for ConfigError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error.into())
    }
}

impl From<tandem_node::quic::ConfigError> for ConfigError {
    fn from(error: tandem_node::quic::ConfigError) -> Self {
        Self::Setup(error.into())
    }
}
