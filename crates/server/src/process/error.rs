//! What the operating system refuses to any part of the program.

use std::{
    io,
    path::{Path, PathBuf},
};

/// The operating system refused something that the program needs.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {error}")]
pub struct SystemError {
    /// The refused action.
    pub what: &'static str,
    /// The cause.
    pub error: io::Error,
}

impl SystemError {
    /// A thread that does not start.
    pub fn thread(error: io::Error) -> Self {
        Self { what: "start a thread", error }
    }
}

/// A file could not be written or renamed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {error}", file.display())]
pub struct WriteError {
    /// Which file.
    pub file: PathBuf,
    /// The cause.
    pub error: io::Error,
}

impl WriteError {
    /// A failed write of this file.
    pub fn of(file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self { file: file.to_owned(), error }
    }
}
