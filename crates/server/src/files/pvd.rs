//! The configuration document of a proxy (PvD), as its operator has written it.

use std::{fs, path::Path};

use serde_json::{Map, Value};
use tandem_files::pvd::{LEN_MAX, parse_own};

use crate::files::FileError;

/// Reads the members of a document.
pub fn read(file: &Path) -> Result<Map<String, Value>, FileError> {
    let text = super::read_bounded(file, LEN_MAX as u64, fs::read)?;
    parse_own(&text).map_err(|error| FileError::Pvd { file: file.to_owned(), error })
}
