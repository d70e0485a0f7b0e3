//! The errors of the program, as one line for a person and one exit code for a script.
//!
//! Each room has its own errors in a file here, so that this room needs no other one.

mod config;
#[cfg(feature = "lab")]
mod demo;
#[cfg(feature = "lab")]
mod lab;
mod password;
#[cfg(feature = "pep-kernel")]
mod pep;
mod profile;
#[cfg(feature = "lab")]
mod qlogs;
mod top;
mod transfer;
mod up;

use std::{io, path::Path, process::ExitCode};

use tandem_server::{
    ServeError, SetupError,
    files::FileError,
    process::{SystemError, WriteError},
    tls::TlsError,
    users::StoreError,
};

#[cfg(feature = "pep-kernel")]
pub(crate) use self::pep::PepError;
pub(crate) use self::{
    config::ConfigError,
    password::PasswordFault,
    profile::ProfileError,
    top::TopError,
    transfer::{NoResult, TransferError},
    up::UpError,
};
#[cfg(feature = "lab")]
pub(crate) use self::{
    config::end_to_end_controllers, demo::DemoError, lab::LabError, qlogs::QlogError,
};

/// Why a subcommand failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tunnel or a fetch failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// A server cannot begin or go on.
    #[error(transparent)]
    Server(ServeError),
    /// There is no such profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// There is no hash of a password.
    #[error(transparent)]
    Password(#[from] PasswordFault),
    /// A file could not be written or renamed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Standard output could not be written.
    #[error("cannot write to standard output: {0}")]
    Stdout(io::Error),
    /// The operating system refused something else that the program needs.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Qlogs cannot be drawn.
    #[cfg(feature = "lab")]
    #[error(transparent)]
    Qlog(#[from] QlogError),
    /// A client cannot be set up, shown or ended.
    #[error(transparent)]
    Up(#[from] UpError),
    /// There is nothing to see of a server.
    #[error(transparent)]
    Top(#[from] TopError),
    /// A PEP does not run.
    #[cfg(feature = "pep-kernel")]
    #[error(transparent)]
    Pep(#[from] PepError),
    /// A demonstration failed.
    #[cfg(feature = "lab")]
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// An experiment could not be run, or its results are invalid.
    #[cfg(feature = "lab")]
    #[error(transparent)]
    Lab(#[from] LabError),
}

impl From<ServeError> for CliError {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Setup(error) => Self::Config(error.into()),
            ServeError::Node { error } => Self::Transfer(TransferError::Client { error }),
            error => Self::Server(error),
        }
    }
}

impl From<FileError> for CliError {
    fn from(error: FileError) -> Self {
        Self::Config(error.into())
    }
}

impl From<TlsError> for CliError {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::Write(error) => Self::Write(error),
            error => Self::Config(error.into()),
        }
    }
}

impl From<SetupError> for CliError {
    fn from(error: SetupError) -> Self {
        Self::Config(error.into())
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Self::Server(error.into())
    }
}

impl From<NoResult> for CliError {
    fn from(error: NoResult) -> Self {
        Self::Transfer(error.into())
    }
}

impl CliError {
    /// 1: it failed; 2: the command line or the configuration is wrong; 3: an emulated link violated its
    /// rules; 130: it was interrupted; 0: only the reader of the output is gone.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            _ if self.is_silent() => ExitCode::SUCCESS,
            Self::Config(_) | Self::Profile(_) | Self::Password(_) => ExitCode::from(2),
            Self::Transfer(error) => error.exit_code(),
            Self::Up(error) => error.exit_code(),
            #[cfg(feature = "lab")]
            Self::Lab(error) => error.exit_code(),
            _ => ExitCode::from(1),
        }
    }

    /// Whether to print nothing, because the reader of the output is gone.
    pub(crate) fn is_silent(&self) -> bool {
        match self {
            Self::Stdout(error) | Self::Transfer(TransferError::BodyToStdout(error)) => {
                error.kind() == io::ErrorKind::BrokenPipe
            }
            _ => false,
        }
    }

    /// Whether what comes next would fail too, or is not wanted any more.
    pub(crate) fn concerns_all(&self) -> bool {
        match self {
            Self::Transfer(error) => error.is_interrupted() || self.is_silent(),
            _ => true,
        }
    }

    /// A failed write of this file.
    pub(crate) fn write(file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Write(WriteError::of(file)(error))
    }
}
