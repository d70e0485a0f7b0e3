//! Where settings come from: the command line before the environment before the file before the
//! defaults ([ADR 22](../../../../docs/adr/0022-layered-settings.md)).
//!
//! One struct for each subcommand ([`Settings`]) is parsed by clap (flags and environment) and by serde
//! (file), so that a flag, its help, its variable and its key stand together. Every field is optional
//! there; `TryFrom` turns the struct into the checked setup that runs, and that `--check` prints.

mod file;
mod repair;
mod transport;
mod values;
mod within;

use std::{marker::PhantomData, path::PathBuf};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::{Serialize, de::DeserializeOwned};

use crate::error::ConfigError;

pub(crate) use repair::{RepairSettings, RepairSetup};
pub(crate) use transport::{TransportSettings, TransportSetup, WorkFor};
pub(crate) use values::{Forward, HttpsUrl, ListenAddr, Prefix, Via};
pub(crate) use within::{Setting, Within};

/// Settings of a subcommand, none of which is required yet.
pub(crate) trait Settings: Default + DeserializeOwned + Args {
    /// Every path. In a file, a path is relative to the file's folder.
    fn paths_mut(&mut self) -> Vec<&mut PathBuf>;

    /// Removes settings of the file that a flag or a variable excludes, although it does not set them.
    fn yield_to(&mut self, _given: &ArgMatches) {}
}

/// Where the configuration file is, and whether to run at all.
#[derive(Debug, Args)]
struct ConfigArgs {
    /// TOML file with settings; its keys are named as the flags, which take precedence, as do the
    /// environment variables
    #[arg(long, value_name = "FILE", env = "TANDEM_CONFIG")]
    config: Option<PathBuf>,

    /// Check everything, print the configuration that results and exit
    #[arg(long)]
    check: bool,
}

/// The settings of a subcommand as clap found them, and the name of the file that has the others.
#[derive(Debug)]
pub(crate) struct Layered<S> {
    args: ConfigArgs,
    /// Flags and variables.
    given: ArgMatches,
    settings: PhantomData<S>,
}

impl<S: Settings> Layered<S> {
    /// The file's settings, or the defaults without a file, overwritten by flags and variables.
    pub(crate) fn load(&self) -> Result<S, ConfigError> {
        let mut settings: S = self.args.config.as_deref().map_or(Ok(S::default()), file::read)?;
        settings.yield_to(&self.given);
        settings.update_from_arg_matches(&self.given).expect("clap has checked the values");
        Ok(settings)
    }

    /// Whether to print the configuration instead of running.
    pub(crate) fn is_check_only(&self) -> bool {
        self.args.check
    }
}

impl<S: Settings> Args for Layered<S> {
    fn augment_args(command: Command) -> Command {
        S::augment_args(ConfigArgs::augment_args(command))
    }

    fn augment_args_for_update(command: Command) -> Command {
        S::augment_args_for_update(ConfigArgs::augment_args_for_update(command))
    }
}

impl<S: Settings> FromArgMatches for Layered<S> {
    fn from_arg_matches(given: &ArgMatches) -> Result<Self, clap::Error> {
        let args = ConfigArgs::from_arg_matches(given)?;
        Ok(Self { args, given: given.clone(), settings: PhantomData })
    }

    fn update_from_arg_matches(&mut self, given: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(given)?;
        Ok(())
    }
}

/// The text of a configuration file that means this setup.
pub(crate) fn to_toml(setup: &impl Serialize) -> String {
    toml::to_string(setup).expect("a setup is a table of texts, numbers and lists")
}

/// Fails unless [`Settings::paths_mut`] has every flag whose value is a path.
#[cfg(test)]
pub(crate) fn assert_every_path_is_listed<S: Settings>() {
    let command = S::augment_args(Command::new("test"));
    let is_path = |argument: &&clap::Arg| argument.get_value_hint() == clap::ValueHint::AnyPath;
    let flags: Vec<_> =
        command.get_arguments().filter(is_path).filter_map(clap::Arg::get_long).collect();
    let line = flags.iter().map(|flag| format!("--{flag}=path"));
    let given = command.clone().get_matches_from(["test".to_owned()].into_iter().chain(line));
    let mut settings = S::from_arg_matches(&given).unwrap();
    assert_eq!(settings.paths_mut().len(), flags.len(), "{flags:?}");
}
