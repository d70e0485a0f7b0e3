//! The destination of a download: a `.part` file, which is renamed when it is complete, or standard
//! output.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::error::{CliError, ConfigError};

/// Piece in which a file is read back to be hashed, in bytes.
const READ_BACK_LEN: usize = 256 * 1024;

/// Where the bytes go, and their SHA-256 as far as they came in order.
#[derive(Debug)]
pub(crate) struct Download {
    sink: Sink,
    hasher: Sha256,
    /// Bytes from the start that are in `hasher`.
    hashed: u64,
    received: u64,
}

#[derive(Debug)]
enum Sink {
    File {
        path: PathBuf,
        part: PathBuf,
        /// Made when the first byte comes, so that a failure before leaves nothing behind.
        file: Option<File>,
    },
    Stdout,
}

impl Download {
    /// To a file, or to standard output if the name is `-`. Fails at once if the file cannot be written.
    pub(crate) fn to(output: &Path) -> Result<Self, ConfigError> {
        let sink = if output == Path::new("-") {
            Sink::Stdout
        } else {
            let refused = |reason| ConfigError::Output { path: output.to_owned(), reason };
            if output.is_dir() {
                return Err(refused("is a folder; give the name of a file"));
            }
            let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
            if folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(refused("its folder does not exist"));
            }
            let mut part = OsString::from(output);
            part.push(".part");
            Sink::File { path: output.to_owned(), part: part.into(), file: None }
        };
        Ok(Self { sink, hasher: Sha256::new(), hashed: 0, received: 0 })
    }

    /// Writes bytes that begin at `offset`. Standard output needs them in order.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        match &mut self.sink {
            Sink::File { part, file, .. } => open(file, part)?.write_all_at(data, offset)?,
            Sink::Stdout => io::stdout().lock().write_all(data)?,
        }
        if offset == self.hashed {
            self.hasher.update(data);
            self.hashed += data.len() as u64;
        }
        self.received += data.len() as u64;
        Ok(())
    }

    /// The download is complete: gives the file its name and returns its SHA-256.
    pub(crate) fn finish(mut self) -> Result<Sha256Hex, CliError> {
        match &mut self.sink {
            Sink::Stdout => io::stdout().flush().map_err(CliError::Stdout)?,
            Sink::File { path, part, file } => {
                let mut file = open(file, part).map_err(CliError::write(part))?;
                file.seek(SeekFrom::Start(self.hashed)).map_err(CliError::write(part))?;
                hash_rest(&mut file, &mut self.hasher).map_err(CliError::write(part))?;
                fs::rename(&*part, &*path).map_err(CliError::write(path))?;
            }
        }
        Ok(Sha256Hex::of(self.hasher))
    }

    /// Adds to an error the part of the file that is left.
    pub(crate) fn explain(&self, cause: CliError) -> CliError {
        match &self.sink {
            Sink::File { part, file: Some(_), .. } => CliError::Partial {
                cause: Box::new(cause),
                bytes: self.received,
                part: part.clone(),
            },
            Sink::File { file: None, .. } | Sink::Stdout => cause,
        }
    }

    /// An error of [`Self::write`], with the name of what could not be written.
    pub(crate) fn write_error(&self, error: io::Error) -> CliError {
        match &self.sink {
            Sink::File { part, .. } => CliError::write(part)(error),
            Sink::Stdout => CliError::Stdout(error),
        }
    }
}

/// Opens the file when it is first needed. It can be read too, to be hashed.
fn open<'a>(file: &'a mut Option<File>, part: &Path) -> io::Result<&'a File> {
    if file.is_none() {
        let options = &mut File::options();
        *file = Some(options.read(true).write(true).create(true).truncate(true).open(part)?);
    }
    Ok(file.as_ref().expect("just opened"))
}

fn hash_rest(file: &mut impl Read, hasher: &mut Sha256) -> io::Result<()> {
    let mut piece = vec![0; READ_BACK_LEN];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(len) => hasher.update(piece.get(..len).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A SHA-256 as it is printed: 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Sha256Hex(pub(crate) String);

impl Sha256Hex {
    /// The hash of the bytes that the hasher has read.
    pub(crate) fn of(hasher: Sha256) -> Self {
        Self(format!("{:x}", hasher.finalize()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of "abc" (FIPS 180-2, appendix B.1).
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn the_order_of_arrival_does_not_matter() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("file");
            let mut download = Download::to(&path).unwrap();
            for offset in order {
                let byte = b'a' + u8::try_from(offset).unwrap();
                download.write(offset, &[byte]).unwrap();
                assert!(!path.exists());
            }
            assert_eq!(download.finish().unwrap().0, ABC, "{order:?}");
            assert_eq!(fs::read(&path).unwrap(), b"abc");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn nothing_is_left_behind_before_the_first_byte() {
        let dir = tempfile::tempdir().unwrap();
        let download = Download::to(&dir.path().join("file")).unwrap();
        let error = download.explain(CliError::Interrupted);
        assert!(matches!(error, CliError::Interrupted));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_error_names_the_part_that_arrived() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut download = Download::to(&path).unwrap();
        download.write(0, b"ab").unwrap();
        let error = download.explain(CliError::Interrupted).to_string();
        assert!(error.contains("2 bytes") && error.contains("file.part"), "{error}");
        assert!(!path.exists());
    }

    #[test]
    fn an_empty_file_is_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        Download::to(&path).unwrap().finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn a_bad_output_is_refused_before_anything_is_fetched() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Download::to(dir.path()).is_err());
        assert!(Download::to(&dir.path().join("no/file")).is_err());
    }
}
