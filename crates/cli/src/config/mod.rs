//! Where settings come from: flags before environment before file before defaults.
//!
//! One struct per subcommand ([`Settings`]) is parsed by clap (flags and environment) and by serde
//! (file), so that a flag, its help, its variable and its key stand together. Every field is
//! optional there; `TryFrom` turns it into the checked setup that runs, and that `--check` prints.

mod file;
mod repair;
mod transport;
mod values;

use std::path::PathBuf;

use serde::{Serialize, de::DeserializeOwned};

use crate::error::ConfigError;

pub(crate) use repair::{RepairSettings, RepairSetup};
pub(crate) use transport::{TransportSettings, TransportSetup, WorkFor};
pub(crate) use values::{Forward, GroupStreams, HttpsUrl, ListenAddr, Prefix, UploadSize, Via};

/// Settings of a subcommand, none of them required yet.
pub(crate) trait Settings: Default + DeserializeOwned {
    /// Takes from `lower` what is not set here.
    #[must_use]
    fn or(self, lower: Self) -> Self;

    /// Every path, because in a file it is relative to the file's folder.
    fn paths_mut(&mut self) -> Vec<&mut PathBuf>;
}

/// Where the configuration file is, and whether to run at all.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// TOML file; its keys are named like the flags, and flags and environment go first
    #[arg(long, value_name = "FILE", env = "TANDEM_CONFIG")]
    config: Option<PathBuf>,

    /// Check everything, print the effective configuration and exit
    #[arg(long)]
    check: bool,
}

impl ConfigArgs {
    /// Flags and environment, completed from the file.
    pub(crate) fn load<S: Settings>(&self, flags: S) -> Result<S, ConfigError> {
        match &self.config {
            None => Ok(flags),
            Some(path) => Ok(flags.or(file::read(path)?)),
        }
    }

    /// Whether to print the configuration instead of running.
    pub(crate) fn is_check_only(&self) -> bool {
        self.check
    }
}

/// The text of a configuration file that means this setup.
pub(crate) fn to_toml(setup: &impl Serialize) -> String {
    toml::to_string(setup).expect("a setup is a table of texts, numbers and lists")
}

/// The higher list, or the lower one if the higher is empty: lists replace, they do not add.
pub(crate) fn or_list<T>(higher: Vec<T>, lower: Vec<T>) -> Vec<T> {
    if higher.is_empty() { lower } else { higher }
}
