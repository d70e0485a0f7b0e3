//! `tandem generate`, for packagers: manual pages and shell completions from the flags themselves.

use std::{fs, path::PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::{
    Cli, client::ClientSettings, config::example, error::CliError, origin::OriginSettings,
    proxy::ProxySettings, text,
};

/// Print the files that packages ship besides the program.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Generate {
    /// Write a manual page for each subcommand into a folder
    Man {
        /// An existing folder
        dir: PathBuf,
    },
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print a configuration file with every setting and its meaning, for --config
    Config {
        /// Which subcommand
        subcommand: Configurable,
    },
}

/// A subcommand with a configuration file.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Configurable {
    /// The CONNECT-UDP proxy
    Proxy,
    /// The HTTP/3 file server
    Origin,
    /// The client that carries UDP packets
    Client,
}

impl Generate {
    pub(crate) fn run(self) -> Result<(), CliError> {
        match self {
            Self::Man { dir } => {
                clap_mangen::generate_to(visible(Cli::command()), &dir)
                    .map_err(CliError::write(&dir))?;
                let pages = fs::read_dir(&dir).map_err(CliError::write(&dir))?.count();
                text::print(format_args!("{pages} files in {}", dir.display()))
            }
            Self::Config { subcommand } => {
                let text = match subcommand {
                    Configurable::Proxy => example::<ProxySettings>(),
                    Configurable::Origin => example::<OriginSettings>(),
                    Configurable::Client => example::<ClientSettings>(),
                };
                text::print(text.trim_end())
            }
            Self::Completions { shell } => {
                let mut out = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "tandem", &mut out);
                text::print(String::from_utf8_lossy(&out).trim_end())
            }
        }
    }
}

/// Without `help` and the hidden commands, which need no manual page.
fn visible(command: Command) -> Command {
    command.disable_help_subcommand(true)
}
