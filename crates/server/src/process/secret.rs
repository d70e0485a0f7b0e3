//! Files with secrets, and files that name people, which no other user of the machine should read.
//!
//! Every file that the program creates is listed in `tests/created_files.rs`, with the reason for its mode.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
};

use crate::process::{WriteError, say};

/// The mode of files that only their owner may read.
pub const OWNER_ONLY: u32 = 0o600;

/// Creates a file that does not exist yet, such as one with the addresses of clients. Only its owner can read it,
/// whatever the umask is.
pub fn create_new(file: &Path) -> io::Result<File> {
    owner_only(OpenOptions::new().write(true).create_new(true)).open(file)
}

/// Opens a file to append to it, and creates it if it does not exist. Only its owner can read it, also if an earlier
/// version of the program has let others.
pub fn open_or_create(file: &Path) -> io::Result<File> {
    let file = owner_only(OpenOptions::new().append(true).create(true)).open(file)?;
    take_from_others(&file);
    Ok(file)
}

/// Lets only the owner read a file that exists, if it is ours.
pub fn keep_for_owner(file: &Path) {
    match File::open(file) {
        Ok(file) => take_from_others(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::debug!(%error, file = %file.display(), "its mode stays as it is"),
    }
}

fn owner_only(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, OWNER_ONLY);
    options
}

/// A file of another user keeps its mode, because only its owner may change it.
#[cfg(unix)]
fn take_from_others(file: &File) {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    let is_shared = file.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0);
    if is_shared && let Err(error) = file.set_permissions(Permissions::from_mode(OWNER_ONLY)) {
        tracing::debug!(%error, "the mode of a file stays as it is");
    }
}

#[cfg(not(unix))]
fn take_from_others(_: &File) {}

/// Writes a file that does not exist yet, with this mode where the system has modes.
pub fn write_new(file: &Path, content: impl AsRef<[u8]>, mode: u32) -> Result<(), WriteError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut opened = options.open(file).map_err(WriteError::of(file))?;
    opened.write_all(content.as_ref()).map_err(WriteError::of(file))
}

/// Warns if users other than the owner of a file can read it. `what` says which secret is in it.
#[cfg(unix)]
pub fn warn_if_shared(file: &Path, what: &str) {
    use std::{fs, os::unix::fs::PermissionsExt};

    let mode = fs::metadata(file).map_or(0, |meta| meta.permissions().mode());
    let who = match (mode & 0o004 != 0, mode & 0o040 != 0) {
        (true, _) => "every user of this machine",
        (false, true) => "every member of the file's group",
        (false, false) => return,
    };
    let file = file.display();
    say(format_args!("warning: {who} can read {what} in {file}; chmod 600 {file}"));
}

#[cfg(not(unix))]
pub fn warn_if_shared(_: &Path, _: &str) {}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn mode(file: &Path) -> u32 {
        fs::metadata(file).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn only_the_owner_reads_files_that_name_people() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        create_new(&path("new")).unwrap();
        assert_eq!(mode(&path("new")), 0o600);
        assert!(create_new(&path("new")).is_err());
        open_or_create(&path("opened")).unwrap();
        assert_eq!(mode(&path("opened")), 0o600);
        for before in [0o644, 0o640, 0o666, 0o600] {
            fs::write(path("old"), "kept").unwrap();
            let set = || fs::set_permissions(path("old"), fs::Permissions::from_mode(before));
            set().unwrap();
            open_or_create(&path("old")).unwrap();
            assert_eq!(mode(&path("old")), 0o600, "{before:o}");
            set().unwrap();
            keep_for_owner(&path("old"));
            assert_eq!(mode(&path("old")), 0o600, "{before:o}");
            assert_eq!(fs::read_to_string(path("old")).unwrap(), "kept");
        }
        keep_for_owner(&path("none"));
        assert!(!path("none").exists());
    }
}
