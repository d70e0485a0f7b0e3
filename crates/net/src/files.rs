//! The files below one folder that a node may read.

use std::{fs, io, os::unix::fs::FileExt, path::PathBuf, sync::Arc};

use bytes::Bytes;
use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions, OpenOptionsExt},
};
use tandem_node::node::{FileError, FileMeta};

/// The folder that a node may read.
///
/// `cap-std` resolves every name relative to the folder, which was opened at the start. On Linux it
/// uses one `openat2` call, which the kernel confines to the folder; elsewhere it resolves
/// component by component. There is no time between a check and the opening in which a link could
/// be replaced. Relative links within the folder are followed. An absolute link is always treated
/// as a link to a file outside the folder.
#[derive(Clone, Debug)]
pub struct Files {
    root: Arc<Dir>,
}

impl Files {
    /// Opens the folder `root`.
    ///
    /// # Errors
    ///
    /// The folder cannot be opened.
    pub fn below(root: impl AsRef<std::path::Path>) -> io::Result<Self> {
        let root = Arc::new(Dir::open_ambient_dir(root, ambient_authority())?);
        Ok(Self { root })
    }

    /// Opens a regular file. `path` holds the names of the folders and of the file, without
    /// separators. The call may block for the disk, but never for a pipe or a device.
    ///
    /// # Errors
    ///
    /// [`FileError::IsFolder`] for a folder, [`FileError::NotFound`] if there is no regular file
    /// with this path below the root, [`FileError::Io`] for other errors.
    pub fn open(&self, path: &[String]) -> Result<(OpenFile, FileMeta), FileError> {
        if path.is_empty() {
            return Err(FileError::IsFolder);
        }
        if !path.iter().all(|segment| is_plain_name(segment)) {
            return Err(FileError::NotFound);
        }
        let path: PathBuf = path.iter().collect();
        let mut options = OpenOptions::new();
        // Without O_NONBLOCK, opening a FIFO blocks until another process opens it for writing.
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
    /// Reads `len` bytes from `offset`, or fewer if the file ends before. The call may block for
    /// the disk.
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

/// Returns whether a segment of a path is a plain name. The node guarantees this; the check is
/// repeated here to protect the file system.
fn is_plain_name(segment: &str) -> bool {
    !matches!(segment, "" | "." | "..") && !segment.contains(['/', '\\', '\0'])
}

fn file_error(error: &io::Error) -> FileError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            FileError::NotFound
        }
        // An error of the operating system has a number. `cap-std` returns this error without a
        // number if a path leads out of the folder.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => FileError::NotFound,
        io::ErrorKind::IsADirectory => FileError::IsFolder,
        _ => FileError::Io(error.into()),
    }
}

#[cfg(test)]
mod tests;
