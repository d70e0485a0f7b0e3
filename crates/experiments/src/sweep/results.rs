use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use crate::run::RunRecord;

/// The longest line of a record. The limit guards against other files.
const LINE_LEN_MAX: u64 = 1 << 20;

/// The beginning of every line.
const HEAD: &[u8] = b"{\"mode\":\"";

/// A file with one record in each line, to which records are added. It is locked against other
/// processes.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
}

/// An incomplete line: its sweep was interrupted while it wrote the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Its length.
    pub bytes: u64,
}

/// The reason for which a file of results cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// It cannot be read.
    #[error("cannot read {}: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// It cannot be written.
    #[error("cannot write to {}: {error}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// Another sweep writes to it.
    #[error("another sweep writes to {}; wait for its end, or choose another file", file.display())]
    InUse {
        /// The file.
        file: PathBuf,
    },
    /// It holds other contents, which stay unchanged.
    #[error("{}:{line}: not the result of a run ({reason}); nothing was written: choose another file, or move this one away", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// Line, from 1.
        line: u64,
        /// The error in the line.
        reason: String,
    },
}

impl Results {
    /// Opens or creates a file, and passes each record in it to `each`. An incomplete last line is
    /// removed.
    pub fn open(
        path: &Path,
        each: impl FnMut(RunRecord),
    ) -> Result<(Self, Option<Torn>), ResultsError> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = file.map_err(|error| write_error(path, error))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(ResultsError::InUse { file: path.to_owned() });
        }
        let torn = read(path, &file, each)?;
        let results = Self { path: path.to_owned(), file };
        if let Some(Torn { bytes }) = torn {
            results.cut_off(bytes).map_err(|error| write_error(path, error))?;
        }
        Ok((results, torn))
    }

    /// Adds a record. The line is written in one call, so that only a failure of the machine can
    /// leave it incomplete.
    #[expect(clippy::missing_panics_doc, reason = "a record is texts and numbers")]
    pub fn append(&mut self, record: &RunRecord) -> Result<(), ResultsError> {
        let mut line = serde_json::to_vec(record).expect("a record is texts and numbers");
        line.push(b'\n');
        self.file.write_all(&line).map_err(|error| write_error(&self.path, error))
    }

    fn cut_off(&self, bytes: u64) -> io::Result<()> {
        let len = (&self.file).seek(SeekFrom::End(0))?;
        self.file.set_len(len.saturating_sub(bytes))
    }
}

/// Passes each record of a file to `each` without changing the file.
pub fn read_results(
    path: &Path,
    each: impl FnMut(RunRecord),
) -> Result<Option<Torn>, ResultsError> {
    let file = File::open(path);
    let file = file.map_err(|error| ResultsError::Read { file: path.to_owned(), error })?;
    read(path, &file, each)
}

fn read(
    path: &Path,
    file: &File,
    mut each: impl FnMut(RunRecord),
) -> Result<Option<Torn>, ResultsError> {
    let mut reader = BufReader::new(file);
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let read = (&mut reader).take(LINE_LEN_MAX).read_until(b'\n', &mut text);
        read.map_err(|error| ResultsError::Read { file: path.to_owned(), error })?;
        if text.is_empty() {
            break;
        }
        if text.last() != Some(&b'\n') && is_begun(&text) {
            return Ok(Some(Torn { bytes: text.len() as u64 }));
        }
        match serde_json::from_slice(&text) {
            Ok(record) => each(record),
            Err(error) => {
                let (file, reason) = (path.to_owned(), error.to_string());
                return Err(ResultsError::Foreign { file, line, reason });
            }
        }
    }
    Ok(None)
}

/// Whether a text could be the beginning of a record.
fn is_begun(text: &[u8]) -> bool {
    let len = text.len().min(HEAD.len());
    (text.len() as u64) < LINE_LEN_MAX && text.get(..len) == HEAD.get(..len)
}

fn write_error(path: &Path, error: io::Error) -> ResultsError {
    ResultsError::Write { file: path.to_owned(), error }
}
