//! Files below one folder, as a node asks for them.

use std::{fs, io, os::unix::fs::FileExt, path::PathBuf, sync::Arc};

use bytes::Bytes;
use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions, OpenOptionsExt},
};
use tandem_node::node::{FileError, FileMeta};

/// The folder that a node may read.
///
/// Every name is resolved relative to the folder that was opened at the start, by `cap-std`: on
/// Linux with one `openat2` call that the kernel keeps below the folder, elsewhere component by
/// component. There is no moment between a check and the opening in which a link could be
/// exchanged. Links within the folder are followed if they are relative; an absolute link counts as
/// leading outside, wherever it leads.
#[derive(Clone, Debug)]
pub struct Files {
    root: Arc<Dir>,
}

impl Files {
    /// Serves what is below this folder.
    pub fn below(root: impl AsRef<std::path::Path>) -> io::Result<Self> {
        let root = Arc::new(Dir::open_ambient_dir(root, ambient_authority())?);
        Ok(Self { root })
    }

    /// Opens a regular file. Blocks while the disk does, but never for a pipe or a device.
    pub fn open(&self, path: &[String]) -> Result<(OpenFile, FileMeta), FileError> {
        if path.is_empty() {
            return Err(FileError::IsFolder);
        }
        if !path.iter().all(|segment| is_plain_name(segment)) {
            return Err(FileError::NotFound);
        }
        let path: PathBuf = path.iter().collect();
        let mut options = OpenOptions::new();
        // Without O_NONBLOCK, opening a FIFO waits until somebody writes to it.
        options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = self.root.open_with(path, &options).map_err(|error| file_error(&error))?;
        let file = file.into_std();
        let meta = file.metadata().map_err(|error| file_error(&error))?;
        if meta.is_dir() {
            return Err(FileError::IsFolder);
        }
        if !meta.is_file() {
            return Err(FileError::NotFound);
        }
        Ok((OpenFile(file), FileMeta { len: meta.len(), modified: meta.modified().ok() }))
    }
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct OpenFile(fs::File);

impl OpenFile {
    /// Reads `len` bytes from `offset`; fewer only if the file ends. Blocks while the disk does.
    pub fn read(&self, offset: u64, len: usize) -> Result<Bytes, FileError> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while let Some(room) = bytes.get_mut(filled..).filter(|room| !room.is_empty()) {
            match self.0.read_at(room, offset.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(file_error(&error)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes.into())
    }
}

/// The node promises this of every segment; it is checked again because a file system is behind it.
fn is_plain_name(segment: &str) -> bool {
    !matches!(segment, "" | "." | "..") && !segment.contains(['/', '\\', '\0'])
}

fn file_error(error: &io::Error) -> FileError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            FileError::NotFound
        }
        // The operating system has a number for this; `cap-std` refuses to leave the folder without.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => FileError::NotFound,
        io::ErrorKind::IsADirectory => FileError::IsFolder,
        kind => FileError::Io(kind),
    }
}

#[cfg(test)]
mod tests;
