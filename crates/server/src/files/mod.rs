//! Files that settings name: tokens, keys and PEPs.

pub mod concealed;
mod error;
pub mod peps;
pub mod pvd;
pub mod tokens;

use std::{fs, io, path::Path};

pub use self::error::FileError;

/// Reads a file of at most this number of bytes, with [`fs::read`] or [`fs::read_to_string`].
pub fn read_bounded<'f, T>(
    file: &'f Path,
    max: u64,
    read: impl FnOnce(&'f Path) -> io::Result<T>,
) -> Result<T, FileError> {
    let unreadable = |error| FileError::Unreadable { file: file.to_owned(), error };
    let len = fs::metadata(file).map_err(unreadable)?.len();
    if len > max {
        return Err(FileError::TooLong { file: file.to_owned(), len, max });
    }
    read(file).map_err(unreadable)
}
