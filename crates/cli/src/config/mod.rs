//! Where settings come from: the command line before the environment before the file before the
//! defaults ([ADR 22](../../../../docs/design/adr/0022-layered-settings.md)).
//!
//! One struct for each subcommand ([`Settings`]) is parsed by clap from flags, from the environment and
//! from the file, so that a flag, its help, its variable and its key are one. Every field is optional
//! there; `TryFrom` turns the struct into the checked setup that runs, and that `--check` prints.

mod effective;
mod example;
mod file;
mod forward;
mod repair;

mod transport;
mod values;

use std::{marker::PhantomData, path::PathBuf};

use clap::{ArgMatches, Args, Command, FromArgMatches, builder::Resettable};
use serde::Serialize;
pub(crate) use tandem_files::setting::{Setting, ValueError, Within};
use tandem_node::limits::Limits;

use crate::error::ConfigError;
pub(crate) use example::example;
pub(crate) use forward::{Forward, Target};
pub(crate) use repair::{RepairSettings, RepairSetup};
pub(crate) use transport::{TransportSettings, transport_for, transport_of_origin};
pub(crate) use values::{HopVia, HttpsUrl, ListenAddr, Prefix, RuleArg, Via};

/// Settings of a subcommand, none of which is required yet.
pub(crate) trait Settings: Args {
    /// The settings in their checked form.
    type Setup: Serialize + TryFrom<Self, Error = ConfigError>;

    /// Name of the subcommand.
    const SUBCOMMAND: &'static str;

    /// The settings without which the subcommand does not run.
    const REQUIRED: &'static [&'static str];

    /// Settings of which at least one is required.
    const ONE_OF: &'static [&'static str] = &[];

    /// Removes settings of the file that a flag or a variable excludes, although it does not set them.
    fn yield_to(&mut self, _given: &ArgMatches) {}
}

/// Where the configuration file is, and whether to run at all.
#[derive(Debug, Args)]
struct ConfigArgs {
    /// TOML file with settings, whose keys have the names of the flags
    ///
    /// A line is listen = "0.0.0.0:443", for example. Flags and environment variables take precedence.
    /// `tandem generate config` prints a file with every key.
    #[arg(
        long, value_name = "FILE", env = "TANDEM_CONFIG", help_heading = Resettable::Reset
    )]
    config: Option<PathBuf>,

    /// Check everything, print the configuration that is in force and exit
    #[arg(long, help_heading = Resettable::Reset)]
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
    /// The file's settings, overwritten by flags and variables, in their checked form.
    pub(crate) fn load(&self) -> Result<S::Setup, ConfigError> {
        let settings = match self.args.config.as_deref() {
            None => S::from_arg_matches(&self.given),
            Some(path) => {
                let mut settings: S = file::read(path)?;
                settings.yield_to(&self.given);
                settings.update_from_arg_matches(&self.given).map(|()| settings)
            }
        };
        settings.expect("clap has checked the values").try_into()
    }

    /// Whether a flag or a variable sets this.
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.given.contains_id(flag)
    }

    /// The configuration that is in force, if the user asks for it instead of a run.
    pub(crate) fn checked(&self, setup: &S::Setup, limits: &Limits) -> Option<String> {
        self.args.check.then(|| effective::text::<S>(setup) + &effective::limits(limits))
    }

    /// The same of a role that is no node, and so has no limits but its settings.
    #[cfg(feature = "pep-kernel")]
    pub(crate) fn checked_alone(&self, setup: &S::Setup) -> Option<String> {
        self.args.check.then(|| effective::text::<S>(setup))
    }
}

impl<S: Settings> Args for Layered<S> {
    fn augment_args(command: Command) -> Command {
        ConfigArgs::augment_args(S::augment_args(command))
    }

    fn augment_args_for_update(command: Command) -> Command {
        ConfigArgs::augment_args_for_update(S::augment_args_for_update(command))
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

/// The settings of a file, without those of flags and variables.
pub(crate) fn from_file<S: Settings>(file: &std::path::Path) -> Result<S, ConfigError> {
    file::read(file)
}

/// The settings of a file with this text, in their checked form.
#[cfg(test)]
pub(crate) fn from_text<S: Settings>(text: &str) -> Result<S::Setup, ConfigError> {
    file::parse::<S>(std::path::Path::new("test.toml"), text)?.try_into()
}

#[cfg(test)]
mod tests;
