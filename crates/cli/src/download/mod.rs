//! The destination of a download: a file, which gets its name when it is complete, or a device, a
//! pipe or standard output, which are written in place.

mod outflow;
mod part;
mod target;

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::{fd::AsFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    task::{Context, Poll},
};

use http::HeaderValue;
use sha2::{Digest, Sha256};
use tandem_node::client::Resume;
use tandem_server::process::WriteError;

use self::{
    outflow::Outflow,
    part::{PartFile, State},
    target::DownloadTarget,
};
use crate::error::{ConfigError, TransferError};

/// Piece in which a file is read back to be hashed, in bytes.
const READ_BACK_LEN: usize = 256 * 1024;

/// What the user wants of a download.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// The URL.
    pub(crate) url: &'a str,
    /// Whether bytes may arrive out of order, because several ranges are fetched at once.
    pub(crate) in_ranges: bool,
    /// Whether to continue what an earlier download left.
    pub(crate) resume: bool,
}

/// Where the bytes go, and their SHA-256 as far as they came in order.
#[derive(Debug)]
pub(crate) struct Download {
    output: PathBuf,
    sink: Sink,
    in_ranges: bool,
    /// What an earlier download left, until the origin has said whether it continues it.
    resume: Option<Resume>,
    hasher: Sha256,
    /// Bytes from the start that are in `hasher`.
    hashed: u64,
    /// Bytes from the start that are there without a gap.
    complete: u64,
    /// The end of the last byte that is there.
    end: u64,
}

#[derive(Debug)]
enum Sink {
    File {
        part: Box<PartFile>,
        state: State,
        /// Whether the part has the bytes of this download. It has them from the first byte on, so
        /// that a failure before it changes nothing.
        has_begun: bool,
    },
    /// A device whose bytes can be written in any order.
    Device(File),
    /// A device, a pipe or a socket, in order.
    Special(Outflow),
    Stdout(Outflow),
}

impl Download {
    /// To a file, or to standard output if the name is `-`. Fails at once if it cannot be written.
    pub(crate) fn to(output: &Path, wanted: Wanted<'_>) -> Result<Self, ConfigError> {
        let refused = |reason| ConfigError::Output { path: output.to_owned(), reason };
        let flow = |file: io::Result<File>| {
            file.and_then(Outflow::to).map_err(|error| refused(error.to_string()))
        };
        let sink = match DownloadTarget::of(output).map_err(refused)? {
            DownloadTarget::Stdout => Sink::Stdout(flow(stdout())?),
            DownloadTarget::Special { file, can_seek: true } => Sink::Device(file),
            DownloadTarget::Special { file, can_seek: false } => Sink::Special(flow(Ok(file))?),
            DownloadTarget::File(path) => {
                let part = Box::new(PartFile::beside(path).map_err(refused)?);
                Sink::File { part, state: State::new(wanted.url), has_begun: false }
            }
        };
        let resume = match &sink {
            Sink::File { part, .. } if wanted.resume => part.left(wanted.url).map_err(refused)?,
            Sink::Device(_) | Sink::Special(_) | Sink::Stdout(_) if wanted.resume => {
                let reason = "--continue needs a file, of which a part is there";
                return Err(refused(reason.to_owned()));
            }
            Sink::Special(_) | Sink::Stdout(_) if wanted.in_ranges => {
                return Err(refused(format!(
                    "with --streams, ranges arrive interleaved, and --output {} takes bytes in order \
                     only",
                    output.display()
                )));
            }
            Sink::File { .. } | Sink::Device(_) | Sink::Special(_) | Sink::Stdout(_) => None,
        };
        Ok(Self {
            output: output.to_owned(),
            sink,
            in_ranges: wanted.in_ranges,
            resume,
            hasher: Sha256::new(),
            hashed: 0,
            complete: 0,
            end: 0,
        })
    }

    /// What an earlier download left, to be continued.
    pub(crate) fn resume(&self) -> Option<&Resume> {
        self.resume.as_ref()
    }

    /// The origin sends the file from this position on.
    pub(crate) fn answered(&mut self, start: u64, validator: Option<&HeaderValue>) {
        if let Some(Resume { validator: old, .. }) = self.resume.take_if(|_| start == 0) {
            let reason = if validator == Some(&old) {
                "the origin sends no ranges"
            } else {
                "the origin has another file now"
            };
            tracing::warn!("{reason}, so the download starts at the beginning");
        }
        (self.complete, self.end) = (start, start);
        if let Sink::File { state, .. } = &mut self.sink {
            let text = validator.and_then(|validator| validator.to_str().ok());
            state.validator = text.map(str::to_owned);
            state.complete = self.in_ranges.then_some(start);
        }
    }

    /// Writes bytes that begin at `offset`.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.begin()?;
        match &mut self.sink {
            Sink::File { part, .. } => part.file()?.write_all_at(data, offset)?,
            Sink::Device(file) => file.write_all_at(data, offset)?,
            Sink::Special(flow) | Sink::Stdout(flow) => flow.put(data)?,
        }
        let end = offset + data.len() as u64;
        if offset == self.hashed {
            self.hasher.update(data);
            self.hashed = end;
        }
        if offset == self.complete {
            self.complete = end;
        }
        self.end = self.end.max(end);
        Ok(())
    }

    /// Whether more bytes should come. Otherwise a reader has not taken what came before.
    pub(crate) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        match &self.sink {
            Sink::File { .. } | Sink::Device(_) => Poll::Ready(()),
            Sink::Special(flow) | Sink::Stdout(flow) => flow.poll_room(context),
        }
    }

    /// Waits until a reader has taken everything. A file and a device have it already.
    pub(crate) fn poll_written(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.sink {
            Sink::File { .. } | Sink::Device(_) => Poll::Ready(Ok(())),
            Sink::Special(flow) | Sink::Stdout(flow) => flow.poll_written(context),
        }
    }

    /// Makes the file, before its first byte.
    fn begin(&mut self) -> io::Result<()> {
        if let Sink::File { part, state, has_begun: has_begun @ false } = &mut self.sink {
            part.begin(self.complete, state)?;
            *has_begun = true;
        }
        Ok(())
    }

    /// The download is complete: gives the file its name and returns its SHA-256. `None`: the bytes
    /// came out of order, and cannot be read again where they went.
    pub(crate) fn finish(&mut self) -> Result<Option<Sha256Hex>, TransferError> {
        self.put_in_place().map_err(|error| self.write_error(error))?;
        let hasher = std::mem::take(&mut self.hasher);
        Ok((self.hashed == self.end).then(|| Sha256Hex::of(hasher)))
    }

    fn put_in_place(&mut self) -> io::Result<()> {
        self.begin()?;
        match &mut self.sink {
            Sink::Device(file) => file.flush(),
            Sink::Special(_) | Sink::Stdout(_) => Ok(()), // see `Self::poll_written`
            Sink::File { part, .. } => {
                let mut file = part.file()?;
                file.set_len(self.end)?;
                file.seek(SeekFrom::Start(self.hashed))?;
                hash_rest(&mut file, &mut self.hasher)?;
                self.hashed = self.end;
                part.complete()
            }
        }
    }

    /// Adds to an error the part of the file that is left, and how to go on.
    pub(crate) fn explain(&mut self, cause: TransferError) -> TransferError {
        let Sink::File { part, state, has_begun } = &mut self.sink else { return cause };
        let bytes = match (&self.resume, *has_begun) {
            (_, true) => self.complete,
            (Some(resume), false) => resume.offset,
            (None, false) => return cause,
        };
        if !part.is_there() {
            return cause;
        }
        if bytes == 0 {
            part.discard();
            return cause;
        }
        if *has_begun && self.in_ranges {
            state.complete = Some(bytes);
            if let Err(error) = part.save(state) {
                tracing::warn!(%error, "the state of the download cannot be saved");
            }
        }
        let can_continue = !*has_begun || state.validator.is_some();
        let part = part.path().to_owned();
        TransferError::Partial { cause: Box::new(cause), bytes, part, can_continue }
    }

    /// An error of [`Self::write`], with the name of what could not be written.
    pub(crate) fn write_error(&self, error: io::Error) -> TransferError {
        match &self.sink {
            Sink::File { part, .. } if part.is_there() => WriteError::of(part.path())(error).into(),
            Sink::File { part, .. } => WriteError::of(part.target())(error).into(),
            Sink::Device(_) | Sink::Special(_) => WriteError::of(&self.output)(error).into(),
            Sink::Stdout(_) => TransferError::BodyToStdout(error),
        }
    }
}

/// Standard output, without the buffer of the standard library.
fn stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
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
mod tests;
