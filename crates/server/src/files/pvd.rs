//! The configuration document of a proxy (PvD), as its operator has written it.

use std::{fs, path::Path};

use serde_json::{Map, Value};
use tandem_files::pvd::{LEN_MAX, parse_own};

use crate::files::FileError;

/// Reads the members of a document.
pub fn read(file: &Path) -> Result<Map<String, Value>, FileError> {
    let unreadable = |error| FileError::Unreadable { file: file.to_owned(), error };
    let (len, max) = (fs::metadata(file).map_err(unreadable)?.len(), LEN_MAX as u64);
    if len > max {
        return Err(FileError::TooLong { file: file.to_owned(), len, max });
    }
    let text = fs::read(file).map_err(unreadable)?;
    parse_own(&text).map_err(|error| FileError::Pvd { file: file.to_owned(), error })
}
