//! `tandem lab`.

mod direction;
mod emulator;
mod link;
mod link_args;
mod relay;
mod tun;
mod wait;

use crate::error::CliError;

pub(crate) use emulator::{Emulator, Links};
pub(crate) use tun::TunError;

/// Emulate networks.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Lab {
    Relay(relay::Relay),
    Link(link::Link),
}

impl Lab {
    pub(crate) fn run(self) -> Result<(), CliError> {
        match self {
            Self::Relay(relay) => relay.run(),
            Self::Link(link) => link.run(),
        }
    }
}
