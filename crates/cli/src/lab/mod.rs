//! `tandem lab`.

mod emulator;
mod link_args;
mod relay;

use crate::error::CliError;

pub(crate) use emulator::{Emulator, Links};

/// Emulate networks.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Lab {
    Relay(relay::Relay),
}

impl Lab {
    pub(crate) fn run(self) -> Result<(), CliError> {
        match self {
            Self::Relay(relay) => relay.run(),
        }
    }
}
