//! `tandem top`.

mod picture;

use std::{thread, time::Duration};

use tandem_net::admin::get;

use self::picture::Picture;
use crate::{
    admin::{AdminAddr, Now},
    demo::Screen,
    error::{CliError, ConfigError},
    run::runtime,
    text,
};

const EXAMPLES: &str = "\
Examples:
  tandem top
      Shows a server that runs on this machine with --admin 127.0.0.1:9433.
  ssh -L 9433:localhost:9433 proxy.example
      Then tandem top shows a server of another machine.
  tandem top unix:/run/tandem/admin --json
      Prints one snapshot for programs.
  tandem top unix:/run/tandem/admin --ready
      Fails while the server takes no new connections.";

/// How often the picture is drawn again.
const INTERVAL: Duration = Duration::from_secs(1);

/// Show what a running proxy or origin does, until Ctrl-C.
///
/// The server needs --admin. The same is on a page for browsers at that address.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Top {
    /// Where the server's --admin listens
    #[arg(value_name = "ADMIN", env = "TANDEM_ADMIN", default_value = "127.0.0.1:9433")]
    admin: AdminAddr,

    /// Print one snapshot as JSON
    #[arg(long)]
    json: bool,

    /// Print nothing, and fail unless the server takes new connections, as /readyz says
    ///
    /// For the health checks of containers, which cannot send a request themselves.
    #[arg(long, conflicts_with = "json")]
    ready: bool,
}

impl Top {
    /// Draws until a signal ends the program.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let runtime = runtime()?;
        let ask = || {
            let answer = runtime.block_on(get(&self.admin.0, "/api/now"));
            answer.map_err(|error| CliError::NoAnswer { address: self.admin.clone(), error })
        };
        if self.json {
            let json = ask()?;
            self.parse(&json)?;
            return text::print(String::from_utf8_lossy(&json));
        }
        let mut now = self.parse(&ask()?)?;
        if self.ready {
            let address = self.admin;
            return if now.is_ready { Ok(()) } else { Err(CliError::NotReady { address }) };
        }
        let mut screen = Screen::open().ok_or(ConfigError::NoTerminal)?;
        loop {
            screen.draw(Picture { now: &now });
            thread::sleep(INTERVAL);
            now = self.parse(&ask()?)?;
        }
    }

    fn parse(&self, json: &[u8]) -> Result<Now, CliError> {
        serde_json::from_slice(json)
            .map_err(|error| CliError::ForeignAnswer { address: self.admin.clone(), error })
    }
}
