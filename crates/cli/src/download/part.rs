//! The file that a download writes until it is complete.
//!
//! Beside the target `X`, `X.tandem-part` has the bytes, and `X.tandem-state` says what they are the
//! beginning of. The program that writes the part holds a lock on it.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use http::HeaderValue;
use rustix::{
    fs::{FlockOperation, OFlags, flock},
    io::Errno,
};
pub(super) use tandem_files::download::State;
use tandem_node::client::Resume;

/// The longest state that is read, in bytes. A URL and a validator are shorter.
const STATE_MAX: u64 = 64 * 1024;

/// The part of a download beside its target.
#[derive(Debug)]
pub(super) struct PartFile {
    target: PathBuf,
    path: PathBuf,
    state_path: PathBuf,
    /// The part, which this program has locked. An earlier download may have left it.
    file: Option<File>,
    /// The state that an earlier download left.
    left: Option<State>,
}

/// Reads the state that an earlier download left.
fn read_state(path: &Path) -> Option<State> {
    let mut text = String::new();
    open(File::options().read(true), path)
        .and_then(|file| file.take(STATE_MAX).read_to_string(&mut text))
        .ok()?;
    State::parse(&text)
}

impl PartFile {
    /// The part beside this target. The error says why the target cannot be downloaded to now.
    pub(super) fn beside(target: PathBuf) -> Result<Self, String> {
        let beside = |ending| {
            let mut name = OsString::from(&target);
            name.push(ending);
            PathBuf::from(name)
        };
        let (path, state_path) = (beside(".tandem-part"), beside(".tandem-state"));
        let left = read_state(&state_path);
        if left.is_none() && is_there(&state_path) {
            return Err(not_ours(&state_path));
        }
        let mut part = Self { target, path, state_path, file: None, left };
        if is_there(&part.path) {
            part.take_over()?;
        }
        Ok(part)
    }

    /// Takes over a part that an earlier download left, and changes nothing in it.
    fn take_over(&mut self) -> Result<(), String> {
        let (path, shown) = (&self.path, self.path.display());
        if !fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()) {
            return Err(not_ours(path));
        }
        let file = open(File::options().read(true).write(true), path);
        let file = file.map_err(|error| format!("{shown} cannot be opened: {error}"))?;
        let busy = || {
            format!(
                "another download to it is running, which writes {shown}: wait until it ends, or \
                 choose another name"
            )
        };
        lock(&file).map_err(|_| busy())?;
        // The other download may have ended between the two calls, and renamed the file.
        let same = |meta: fs::Metadata| Some((meta.dev(), meta.ino()));
        let (ours, there) = (file.metadata().ok(), fs::symlink_metadata(path).ok());
        if ours.clone().and_then(same) != there.and_then(same) {
            return Err(busy());
        }
        // A program that was killed before it wrote the state has left an empty part.
        if self.left.is_none() && ours.is_none_or(|meta| meta.len() > 0) {
            return Err(not_ours(path));
        }
        self.file = Some(file);
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// What an earlier download of this URL left. The error names the URL of another download.
    pub(super) fn left(&self, url: &str) -> Result<Option<Resume>, String> {
        let (Some(file), Some(state)) = (&self.file, &self.left) else { return Ok(None) };
        if state.url != url {
            return Err(format!(
                "{} has the beginning of {}: without --continue it is replaced",
                self.path.display(),
                state.url
            ));
        }
        let len = file.metadata().map_or(0, |meta| meta.len());
        let offset = state.complete.map_or(len, |complete| complete.min(len));
        let validator = state.validator.as_deref().map(HeaderValue::from_str);
        if offset == 0 {
            return Ok(None);
        }
        let Some(Ok(validator)) = validator else {
            tracing::warn!(
                "the origin sent no validator (ETag) with the bytes that are there, so the \
                 download starts at the beginning"
            );
            return Ok(None);
        };
        Ok(Some(Resume { offset, validator }))
    }

    /// Makes the part, or takes the one that is there, and keeps its first `offset` bytes.
    pub(super) fn begin(&mut self, offset: u64, state: &State) -> io::Result<&File> {
        if self.file.is_none() {
            let options = &mut File::options();
            let file = open(options.read(true).write(true).create_new(true), &self.path)?;
            lock(&file)?;
            self.file = Some(file);
        }
        let file = self.file()?;
        // The old bytes go before a new state could be taken for theirs.
        if offset == 0 {
            file.set_len(0)?;
        }
        self.save(state)?;
        self.file()
    }

    /// The part, after [`Self::begin`].
    pub(super) fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether a part is there that this program may write.
    pub(super) fn is_there(&self) -> bool {
        self.file.is_some()
    }

    /// Writes the state, as a whole or not at all.
    pub(super) fn save(&self, state: &State) -> io::Result<()> {
        let folder = self.state_path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        file.write_all(state.to_string().as_bytes())?;
        file.persist(&self.state_path)?;
        Ok(())
    }

    /// Gives the part the name of the target, and the permissions of the file that it replaces.
    pub(super) fn complete(&self) -> io::Result<()> {
        if let Ok(replaced) = fs::metadata(&self.target) {
            self.file()?.set_permissions(replaced.permissions())?;
        }
        fs::rename(&self.path, &self.target)?;
        self.forget_state();
        Ok(())
    }

    /// Removes a part that is of no use.
    pub(super) fn discard(&mut self) {
        if self.file.take().is_some() && fs::remove_file(&self.path).is_ok() {
            self.forget_state();
        }
    }

    /// Removes the state. A state without a part has no effect, so a failure does not matter.
    fn forget_state(&self) {
        if fs::remove_file(&self.state_path).is_err() {}
    }
}

/// Whether there is anything of this name. A link counts even if it leads nowhere.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Opens a file of ours, which is never a link and never a pipe.
fn open(options: &mut fs::OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.custom_flags(flags.bits().cast_signed()).open(path)
}

/// Locks a part, so that no other program of ours writes it. A file system without locks is no
/// error.
fn lock(file: &File) -> io::Result<()> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(Errno::WOULDBLOCK.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn not_ours(path: &Path) -> String {
    format!(
        "{} is there, and no unfinished download left it: move it away, or choose another name",
        path.display()
    )
}
