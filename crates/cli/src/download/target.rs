//! What the path of `--output` leads to.

use std::{
    fs::{self, File, Metadata},
    io::{self, Seek},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The most symbolic links in a row that are followed, as Linux does.
const LINKS_MAX: usize = 40;

/// Where the bytes of a download go.
#[derive(Debug)]
pub(super) enum DownloadTarget {
    /// Standard output.
    Stdout,
    /// A regular file, or none yet. Symbolic links in the path are followed.
    File(PathBuf),
    /// A device, a pipe or a socket, which is written in place and never replaced.
    Special {
        file: File,
        /// Whether bytes can be written in any order.
        can_seek: bool,
    },
}

impl DownloadTarget {
    /// Finds out where the bytes go. The error says why they cannot go there.
    pub(super) fn of(output: &Path) -> Result<Self, String> {
        if output == Path::new("-") {
            return Ok(Self::Stdout);
        }
        match fs::metadata(output) {
            Ok(meta) if meta.is_dir() => Err("is a folder; give the name of a file".to_owned()),
            Ok(meta) if meta.is_file() => match real_path(output, &meta) {
                Some(path) => Ok(Self::File(path)),
                None => Self::in_place(output),
            },
            Ok(_) => Self::in_place(output),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                let path = end_of_links(output)?;
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                if folder.is_some_and(|folder| !folder.is_dir()) {
                    return Err("its folder does not exist".to_owned());
                }
                Ok(Self::File(path))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn in_place(output: &Path) -> Result<Self, String> {
        let file = File::options().write(true).open(output);
        let mut file = file.map_err(|error| format!("it cannot be written: {error}"))?;
        let can_seek = file.stream_position().is_ok();
        Ok(Self::Special { file, can_seek })
    }
}

/// The path of a regular file without symbolic links. `None`: the file has no path, like a deleted
/// file that is still open as `/dev/fd/N`.
fn real_path(output: &Path, meta: &Metadata) -> Option<PathBuf> {
    if !output.is_symlink() {
        return Some(output.to_owned());
    }
    let path = fs::canonicalize(output).ok()?;
    let real = fs::metadata(&path).ok()?;
    ((real.dev(), real.ino()) == (meta.dev(), meta.ino())).then_some(path)
}

/// The path to which symbolic links lead whose last one leads to no file.
fn end_of_links(output: &Path) -> Result<PathBuf, String> {
    let mut path = output.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(next) = fs::read_link(&path) else { return Ok(path) };
        path = path.parent().map_or_else(|| next.clone(), |folder| folder.join(&next));
    }
    Err("it is a circle of symbolic links".to_owned())
}
