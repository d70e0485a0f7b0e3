//! Reads a configuration file; errors name the line and the key.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use serde_path_to_error::Segment;
use toml::de::DeTable;

use super::Settings;
use crate::error::ConfigError;

/// Most bytes of a configuration file: a guard against naming the wrong file.
const FILE_LEN_MAX: u64 = 1_000_000;

/// Reads and parses a file. Paths in it become relative to its folder.
pub(super) fn read<S: Settings>(path: &Path) -> Result<S, ConfigError> {
    let unreadable = |error| ConfigError::Unreadable { file: path.to_owned(), error };
    let len = fs::metadata(path).map_err(unreadable)?.len();
    if len > FILE_LEN_MAX {
        return Err(ConfigError::TooLong { file: path.to_owned(), len, max: FILE_LEN_MAX });
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    let mut settings: S = parse(path, &text)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    for path in settings.paths_mut() {
        *path = folder.join(&*path);
    }
    Ok(settings)
}

fn parse<S: Settings>(path: &Path, text: &str) -> Result<S, ConfigError> {
    let document = toml::Deserializer::parse(text)
        .map_err(|error| located(path, text, error.span(), None, &error))?;
    serde_path_to_error::deserialize(document).map_err(|error| {
        let (key, error) = (error.path(), error.inner());
        let span = span_of(text, key).or_else(|| error.span());
        located(path, text, span, Some(key.to_string()), error)
    })
}

fn located(
    path: &Path,
    text: &str,
    span: Option<Range<usize>>,
    key: Option<String>,
    error: &toml::de::Error,
) -> ConfigError {
    let span = span.unwrap_or_default();
    ConfigError::InFile {
        file: PathBuf::from(path),
        line: line_of(text, span.start),
        // A path of no segments is printed as a dot.
        key: key.filter(|key| key != "."),
        seen: seen(text, span),
        reason: error.message().replace('\n', "; "),
    }
}

/// The place of a value. The parser's own errors name only the place of a whole list.
fn span_of(text: &str, key: &serde_path_to_error::Path) -> Option<Range<usize>> {
    let document = DeTable::parse(text).ok()?;
    let mut segments = key.iter();
    let Segment::Map { key } = segments.next()? else { return None };
    let mut value = document.get_ref().get(key.as_str())?;
    for segment in segments {
        value = match segment {
            Segment::Map { key } => value.get_ref().get(key.as_str())?,
            Segment::Seq { index } => value.get_ref().get(*index)?,
            Segment::Enum { .. } | Segment::Unknown => break,
        };
    }
    Some(value.span())
}

/// Number of the line that holds this byte, from 1.
fn line_of(text: &str, offset: usize) -> usize {
    text.get(..offset).unwrap_or(text).matches('\n').count() + 1
}

/// The text of the place, if it is short enough to be quoted.
fn seen(text: &str, span: Range<usize>) -> Option<String> {
    let seen = text.get(span)?.trim();
    (!seen.is_empty() && seen.len() <= 80 && !seen.contains('\n')).then(|| seen.to_owned())
}
