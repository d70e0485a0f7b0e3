//! What survives restarts: the account, and the certificate with its key.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use instant_acme::AccountCredentials;
use serde::{Deserialize, Serialize};

use crate::{
    process::WriteError,
    tls::{AcmeSetup, Validity, life_of},
};

/// Only the owner can read what is in the folder.
const MODE: u32 = 0o600;

/// A certificate is renewed when this part of its life is left, as its issuers recommend.
const LAST_PART: u32 = 3;

/// The folder of a setup.
pub(super) struct Folder<'a> {
    setup: &'a AcmeSetup,
}

/// An account, and the directory that it is at.
#[derive(Serialize, Deserialize)]
struct AcmeAccount {
    directory: String,
    credentials: AccountCredentials,
}

impl<'a> Folder<'a> {
    pub(super) fn new(setup: &'a AcmeSetup) -> Self {
        Self { setup }
    }

    /// When a certificate has to be ordered. That is at once if there is none for all names.
    pub(super) fn due(&self) -> SystemTime {
        let Some(Validity { from, until, names }) = life_of(&self.setup.file()) else {
            return UNIX_EPOCH;
        };
        let has = |name: &String| names.iter().any(|other| other.eq_ignore_ascii_case(name));
        let has_all = self.setup.acme_domain.iter().all(has);
        let time =
            |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let last_part = (time(until).duration_since(time(from)).unwrap_or_default()) / LAST_PART;
        if has_all { time(until) - last_part } else { UNIX_EPOCH }
    }

    /// The account at the directory of the setup, if there is one.
    pub(super) fn account(&self) -> Option<AccountCredentials> {
        let text = fs::read(self.account_file()).ok()?;
        let account: AcmeAccount = serde_json::from_slice(&text).ok()?;
        (account.directory == self.setup.acme_directory).then_some(account.credentials)
    }

    pub(super) fn keep_account(&self, credentials: AccountCredentials) -> Result<(), WriteError> {
        let account = AcmeAccount { directory: self.setup.acme_directory.clone(), credentials };
        let text = serde_json::to_vec(&account).expect("all keys are strings");
        self.replace(&self.account_file(), &text)
    }

    pub(super) fn forget_account(&self) {
        if let Err(error) = fs::remove_file(self.account_file()) {
            tracing::debug!(%error, "the account stays");
        }
    }

    /// Replaces the certificate and its key together, so that nobody reads one without the other.
    pub(super) fn keep_certificate(&self, chain: &str, key: &str) -> Result<(), WriteError> {
        self.replace(&self.setup.file(), format!("{chain}\n{key}").as_bytes())
    }

    fn account_file(&self) -> PathBuf {
        self.setup.acme_folder.join("account.json")
    }

    fn replace(&self, file: &Path, contents: &[u8]) -> Result<(), WriteError> {
        let write = || -> io::Result<()> {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.setup.acme_folder)?;
            let new = file.with_extension("new");
            // A crash may have left one, whose mode or owner need not be ours.
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut opened =
                OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
            opened.write_all(contents)?;
            opened.sync_all()?;
            fs::rename(&new, file)
        };
        write().map_err(WriteError::of(file))
    }
}
