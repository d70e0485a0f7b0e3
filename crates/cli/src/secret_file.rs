//! Files with secrets, which no other user of the machine should read.

use std::path::Path;

use crate::text;

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
