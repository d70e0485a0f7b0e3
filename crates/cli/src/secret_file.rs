//! Files with secrets, which no other user of the machine should read.

use std::{fs::OpenOptions, io::Write, path::Path};

use crate::{error::CliError, text};

/// Writes a file that does not exist yet, with this mode where the system has modes.
pub(crate) fn write_new(file: &Path, text: &str, mode: u32) -> Result<(), CliError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut opened = options.open(file).map_err(CliError::write(file))?;
    opened.write_all(text.as_bytes()).map_err(CliError::write(file))
}

/// Warns if users other than the owner of a file can read it. `what` says which secret is in it.
#[cfg(unix)]
pub(crate) fn warn_if_shared(file: &Path, what: &str) {
    use std::{fs, os::unix::fs::PermissionsExt};

    let mode = fs::metadata(file).map_or(0, |meta| meta.permissions().mode());
    let who = match (mode & 0o004 != 0, mode & 0o040 != 0) {
        (true, _) => "every user of this machine",
        (false, true) => "every member of the file's group",
        (false, false) => return,
    };
    let file = file.display();
    text::say(format_args!("warning: {who} can read {what} in {file}; chmod 600 {file}"));
}

#[cfg(not(unix))]
pub(crate) fn warn_if_shared(_: &Path, _: &str) {}
