//! The folder of a setup. A new setup is written into a folder of its own, and then takes the place of the old one at
//! once.
//!
//! `current` is a link to the folder of the setup that is in force, and the link changes in one step. Whenever the
//! program is interrupted, the old setup or the new one is whole.

use std::{
    env,
    ffi::OsStr,
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tandem_server::process::{WriteError, secret};

use crate::{
    error::{CliError, UpError},
    link::Link,
};

/// The link to the setup that is in force.
const CURRENT: &str = "current";

/// What the link is called until it takes the place of the one before.
const NEXT: &str = "current.next";

/// What the names of the folders of setups begin with.
const SETUP: &str = "setup-";

/// The rules of the user, which stay when a setup is replaced.
const RULES: &str = "rules";

/// The longest path of a Unix socket in bytes (`sun_path` of Linux, with its NUL).
const SOCKET_PATH_MAX: usize = 107;

/// The folder of the program in the user's configuration.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

/// What is kept of a setup besides the configuration of the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    /// The link of the proxy, with the token if there is one.
    pub(super) link: String,
    /// The other origins whose proxies may be used.
    pub(super) also: Vec<String>,
    /// Where programs find the client.
    pub(super) listen: String,
    /// Whether the proxy is asked for its configuration document.
    pub(super) has_document: bool,
}

impl Kept {
    /// The link. `None`: it is broken.
    pub(super) fn link(&self) -> Option<Link> {
        self.link.parse().ok()
    }
}

/// The folder that a variable of the environment names, if it is set to an absolute path. The XDG Base Directory
/// Specification ignores relative ones.
pub(super) fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|it| it.is_absolute())
}

/// The folder of the user's configurations (XDG Base Directory Specification).
pub(super) fn config_home() -> Option<PathBuf> {
    absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))
}

/// A setup as texts of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    /// The name of each file, and what is in it.
    pub(super) files: Vec<(&'static str, String)>,
}

impl Folder {
    /// That of the user who runs the program.
    pub(crate) fn of_user() -> Result<Self, UpError> {
        Ok(Self { path: config_home().ok_or(UpError::NoHome)?.join("tandem") })
    }

    /// The configuration of the client that is set up.
    pub(crate) fn config(&self) -> Option<PathBuf> {
        let file = self.current().join("client.toml");
        file.exists().then_some(file)
    }

    pub(super) fn current(&self) -> PathBuf {
        self.path.join(CURRENT)
    }

    /// Where the client that is set up shows what it does. `None`: no path is short enough for a socket.
    pub(super) fn socket(&self) -> Option<PathBuf> {
        let runtime = absolute("XDG_RUNTIME_DIR").filter(|it| it.is_dir());
        let socket = runtime.as_ref().unwrap_or(&self.path).join("tandem-client.sock");
        (socket.as_os_str().len() <= SOCKET_PATH_MAX).then_some(socket)
    }

    /// What is kept of the setup in force. `None`: there is none.
    pub(super) fn kept(&self) -> Result<Option<Kept>, UpError> {
        let file = self.current().join("up.json");
        let refused = |reason: String| UpError::Setup { file: file.clone(), reason };
        match fs::read_to_string(&file) {
            Ok(text) => match serde_json::from_str(&text) {
                Ok(kept) => Ok(Some(kept)),
                Err(error) => {
                    Err(refused(format!("line {}: not what `tandem up` writes", error.line())))
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(refused(error.to_string())),
        }
    }

    /// Whether this setup is in force. It does not matter when the configuration document expires.
    pub(super) fn has(&self, setup: &Setup) -> bool {
        let current = self.current();
        let has = |(name, text): &(&str, String)| {
            fs::read_to_string(current.join(name)).is_ok_and(|it| it == *text || is_same(&it, text))
        };
        let count = fs::read_dir(&current).map_or(0, Iterator::count);
        count == setup.files.len() && setup.files.iter().all(has)
    }

    /// Writes a setup, and puts it in force at once. Only the owner can read it.
    pub(super) fn put(&self, setup: &Setup) -> Result<(), CliError> {
        self.make()?;
        // It is removed again if the rest fails. Only its owner can look into it.
        let mut builder = tempfile::Builder::new();
        builder.prefix(SETUP).permissions(fs::Permissions::from_mode(0o700));
        let folder = builder.tempdir_in(&self.path).map_err(CliError::write(&self.path))?;
        self.write(folder.path(), setup)?;
        let name = folder.path().file_name().unwrap_or_default().to_owned();
        self.switch(&name)?;
        drop(folder.keep()); // it is in force, and only its path is dropped
        self.remove_others(Some(&name))
    }

    fn write(&self, folder: &Path, setup: &Setup) -> Result<(), CliError> {
        for (name, text) in &setup.files {
            let file = folder.join(name);
            let mut opened = secret::create_new(&file).map_err(WriteError::of(&file))?;
            let written = io::Write::write_all(&mut opened, text.as_bytes());
            written.and_then(|()| opened.sync_all()).map_err(WriteError::of(&file))?;
        }
        let rules = self.path.join(RULES);
        if !rules.exists() {
            secret::write_new(&rules, RULES_TEXT, 0o600)?;
        }
        Ok(())
    }

    /// Lets the link `current` lead to the folder with this name.
    fn switch(&self, name: &OsStr) -> Result<(), CliError> {
        let (next, current) = (self.path.join(NEXT), self.current());
        gone(&next, fs::remove_file(&next))?;
        symlink(name, &next).map_err(CliError::write(&next))?;
        fs::rename(&next, &current).map_err(CliError::write(&current))
    }

    /// Makes the folder itself, which only its owner can look into.
    fn make(&self) -> Result<(), CliError> {
        let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.path);
        made.map_err(CliError::write(&self.path))
    }

    /// Removes the folders of setups that are not in force.
    fn remove_others(&self, kept: Option<&OsStr>) -> Result<(), CliError> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(CliError::write(&self.path))?,
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let is_setup = name.to_string_lossy().starts_with(SETUP);
            if is_setup && Some(name.as_os_str()) != kept {
                gone(&entry.path(), fs::remove_dir_all(entry.path()))?;
            }
        }
        Ok(())
    }

    /// Removes the setup and its token. The rules of the user stay.
    pub(super) fn forget(&self) -> Result<(), CliError> {
        let current = self.current();
        gone(&current, fs::remove_file(&current))?;
        self.remove_others(None)
    }
}

/// Whether two configuration documents say the same, but for the time when they expire.
fn is_same(one: &str, other: &str) -> bool {
    let without_expiry = |text: &str| {
        let mut document: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).ok()?;
        document.remove("expires")?;
        Some(document)
    };
    without_expiry(one).is_some_and(|one| Some(one) == without_expiry(other))
}

/// The text with which the file of the user's rules begins.
const RULES_TEXT: &str = "\
# Your rules for what goes through the tunnel, one on a line; the first that matches decides, before the rules of the
# proxy. `tandem up` keeps this file, and `tandem route HOST:PORT` says what becomes of a target. Examples:
#   direct=*.lan
#   proxy=10.8.0.0/16:22
#   refuse=ads.example
";

/// Whether something is removed now. It need not have been there.
fn gone(path: &Path, removed: io::Result<()>) -> Result<(), CliError> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CliError::write(path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(text: &str) -> Setup {
        Setup { files: vec![("client.toml", text.to_owned()), ("token", "t".to_owned())] }
    }

    #[test]
    fn a_setup_takes_the_place_of_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder { path: dir.path().join("tandem") };
        assert!(folder.kept().unwrap().is_none() && folder.config().is_none());
        folder.put(&setup("one")).unwrap();
        assert!(folder.has(&setup("one")) && !folder.has(&setup("two")));
        fs::write(folder.path.join(RULES), "direct=*\n").unwrap();
        fs::create_dir(folder.path.join("setup-of-one-that-was-interrupted")).unwrap();
        folder.put(&setup("two")).unwrap();
        assert!(folder.has(&setup("two")));
        let mut names: Vec<_> = fs::read_dir(&folder.path).unwrap().flatten().collect();
        names.retain(|it| it.file_name().to_string_lossy().starts_with(SETUP));
        assert_eq!(names.len(), 1, "{names:?}");
        let token = folder.current().join("token");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&token), mode(&names[0].path()), mode(&folder.path)),
            (0o600, 0o700, 0o700)
        );
        folder.forget().unwrap();
        assert!(folder.config().is_none() && !token.exists());
        assert_eq!(fs::read_to_string(folder.path.join(RULES)).unwrap(), "direct=*\n");
        folder.forget().unwrap();
    }

    #[test]
    fn documents_that_expire_at_another_time_are_the_same() {
        let document = |expires: u32, more: &str| format!("{{\"expires\":\"{expires}\"{more}}}");
        assert!(is_same(&document(1, ""), &document(2, "")));
        assert!(!is_same(&document(1, ""), &document(1, ",\"proxies\":[]")));
        assert!(!is_same("via = 1", "via = 1"), "only documents have an end");
    }

    #[test]
    fn what_is_kept_is_read_or_the_line_is_named_without_its_text() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder { path: dir.path().to_owned() };
        let text = "{\"link\": \"tandem://:0123456789abcdef@p\",\n \"also\": 7}";
        folder.put(&Setup { files: vec![("up.json", text.to_owned())] }).unwrap();
        let error = folder.kept().unwrap_err().to_string();
        assert!(error.contains("line 2") && !error.contains("0123"), "{error}");
    }
}
