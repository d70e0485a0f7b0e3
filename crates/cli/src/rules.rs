//! The rules of `tandem client` for what goes through the tunnel: flags, and the files that they name.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;
use tandem_files::{
    Fault,
    pvd::{Document, Expected, LEN_MAX, Origin, PvdError},
    rules,
};
use tandem_node::client::rules::{Rule, Rules};
use tandem_server::{files::FileError, users::unix};
use time::OffsetDateTime;

use crate::{
    config::{HopVia, RuleArg},
    error::ConfigError,
    text,
};

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct RuleSettings {
    /// Send what programs ask --proxy for through the tunnel, directly, or nowhere: ACTION=HOST or
    /// ACTION=HOST:PORTS, with proxy, direct or refuse as ACTION; repeatable, or several with commas between
    ///
    /// HOST is a name, *.DOMAIN (the domain and all names below it), an address, a prefix such as 10.0.0.0/8, or *.
    /// PORTS is one port, or FIRST-LAST. The first rule that matches decides. Rules of --rules come after these, and
    /// those of --pvd last. With any of the three, this machine itself and the private addresses around it are reached
    /// directly unless a rule says otherwise; loopback always is. Without them, everything goes through the tunnel.
    /// `tandem route HOST:PORT` says what becomes of a target.
    #[arg(
        long,
        value_name = "RULE",
        env = "TANDEM_RULE",
        value_delimiter = ',',
        help_heading = "Local proxy"
    )]
    pub(crate) rule: Vec<RuleArg>,

    /// File with further rules, one on a line; it is read at the start
    #[arg(long, value_name = "FILE", env = "TANDEM_RULES", help_heading = "Local proxy")]
    pub(crate) rules: Option<PathBuf>,

    /// File with the proxy's configuration document (PvD, draft-ietf-intarea-proxy-config), which `tandem up` fetches;
    /// its rules come last
    #[arg(long, value_name = "FILE", env = "TANDEM_PVD", help_heading = "Local proxy")]
    pub(crate) pvd: Option<PathBuf>,
}

/// The checked form of [`RuleSettings`].
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct RuleSetup {
    rule: Vec<RuleArg>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pvd: Option<PathBuf>,
}

impl From<RuleSettings> for RuleSetup {
    fn from(RuleSettings { rule, rules, pvd }: RuleSettings) -> Self {
        Self { rule, rules, pvd }
    }
}

impl RuleSetup {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.rule.is_empty() && self.rules.is_none() && self.pvd.is_none()
    }

    /// The rules, with those of the files. `via`: the proxies of the tunnel. `None`: everything goes through it.
    pub(crate) fn read(&self, via: &[HopVia]) -> Result<Option<Rules>, ConfigError> {
        if self.is_empty() {
            return Ok(None);
        }
        let mut own: Vec<_> = self.rule.iter().map(|rule| rule.0.clone()).collect();
        if let Some(file) = &self.rules {
            own.extend(read_rules(file)?);
        }
        let proxy = via.last().map(|via| Origin::of(&via.templates().0));
        let document = self.pvd.as_deref().map(|file| read_document(file, proxy.as_slice()));
        let document = document.transpose()?;
        let document = document.flatten().map(|document| document.rules).unwrap_or_default();
        Ok(Some(Rules { own, document, ..Rules::default() }))
    }
}

/// The rules of a file.
fn read_rules(file: &Path) -> Result<Vec<Rule>, ConfigError> {
    let text = read(file, RULES_LEN_MAX)?;
    let text = String::from_utf8_lossy(&text);
    rules::parse(&text).map_err(|Fault { line, reason }| {
        let (key, seen) = (None, None);
        FileError::InFile { file: file.to_owned(), line, key, seen, reason }.into()
    })
}

/// The most bytes of a file with rules: a guard against naming the wrong file.
const RULES_LEN_MAX: u64 = 1_000_000;

/// Reads the configuration document of the proxy with this origin. One that has expired has no effect.
fn read_document(file: &Path, origins: &[Origin]) -> Result<Option<Document>, ConfigError> {
    let text = read(file, LEN_MAX as u64)?;
    // The user has named the file, and so says that it is the document of this proxy.
    let expected = Expected { host: None, origins, now: now() };
    match Document::parse(&text, expected) {
        Ok(document) => Ok(Some(document)),
        Err(error @ PvdError::Expired { .. }) => {
            text::say(format_args!(
                "warning: {}: {error}; its rules are not used: `tandem up` fetches a new one",
                file.display()
            ));
            Ok(None)
        }
        Err(error) => Err(FileError::Pvd { file: file.to_owned(), error }.into()),
    }
}

/// The present time.
pub(crate) fn now() -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + unix()
}

fn read(file: &Path, max: u64) -> Result<Vec<u8>, ConfigError> {
    let unreadable = |error| FileError::Unreadable { file: file.to_owned(), error };
    let len = fs::metadata(file).map_err(unreadable)?.len();
    if len > max {
        return Err(FileError::TooLong { file: file.to_owned(), len, max }.into());
    }
    Ok(fs::read(file).map_err(unreadable)?)
}
