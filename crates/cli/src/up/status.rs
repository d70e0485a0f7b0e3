//! `tandem status`.

use std::fmt;

use serde::Serialize;
use tandem_net::admin::{Address, get};
use tandem_server::{
    admin::client::{ClientNow, ClientState},
    process,
};

use super::{
    folder::{Folder, Kept},
    service::{self, Systemd},
};
use crate::{
    error::{CliError, UpError},
    text, top,
};

/// Show what `tandem up` has set up, and whether it works.
///
/// Exit code 1 says that there is no tunnel.
#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    /// Print the result as one JSON object
    #[arg(long, env = "TANDEM_JSON")]
    json: bool,
}

/// The object of `status --json`.
#[derive(Debug, Serialize)]
struct Seen {
    /// The proxy; `null` if nothing is set up.
    proxy: Option<String>,
    /// Where programs find the client.
    listen: Option<String>,
    /// The process ID of the client; `null` if none runs.
    process: Option<i32>,
    /// Whether it is a unit of systemd.
    is_unit: bool,
    /// What the client says of itself, as `tandem top --json` has it; `null` if it does not answer.
    client: Option<ClientNow>,
}

impl Status {
    /// Prints what is known. Fails if there is no tunnel.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let folder = Folder::of_user()?;
        let kept = folder.kept()?;
        let socket = folder.socket();
        let process = service::process_at(socket.as_deref());
        let client = match (process, socket) {
            (Some(_), Some(socket)) => {
                let answer = process::runtime()?.block_on(get(&Address::Unix(socket), "/api/now"));
                answer.ok().and_then(|json| top::read_client(&json))
            }
            _ => None,
        };
        let link = kept.as_ref().and_then(Kept::link);
        let seen = Seen {
            proxy: link.map(|link| link.authority()),
            listen: kept.map(|kept| kept.listen),
            process,
            is_unit: process.is_some() && Systemd::of_user().is_some_and(|it| it.is_active()),
            client,
        };
        let json = || serde_json::to_string(&seen).expect("texts and numbers are JSON");
        text::print(if self.json { json() } else { seen.to_string() })?;
        if seen.is_up() { Ok(()) } else { Err(UpError::NotUp.into()) }
    }
}

impl Seen {
    fn is_up(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.state == ClientState::Up)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(proxy), Some(listen)) = (&self.proxy, &self.listen) else {
            return f.write_str("nothing is set up: `tandem up NAME` sets a client up");
        };
        write!(f, "proxy    {proxy}\nlisten   {listen}\nclient   ")?;
        let Some(process) = self.process else {
            return f.write_str("does not run: `tandem up` starts it");
        };
        write!(f, "process {process}{}", if self.is_unit { ", a unit of systemd" } else { "" })?;
        let Some(client) = &self.client else {
            return f.write_str("\ntunnel   unknown: it does not answer");
        };
        let state = match client.state {
            ClientState::Up => "up",
            ClientState::Connecting => "connecting",
            ClientState::Away => "lost; the client tries again",
        };
        write!(f, "\ntunnel   {state} for {:.0} s", client.state_for_s)?;
        if let Some(hop) = client.hops.first().filter(|hop| hop.is_up) {
            write!(f, ", RTT {:.1} ms", hop.rtt_s * 1e3)?;
        }
        if let Some(error) = client.error.as_ref().filter(|_| !self.is_up()) {
            write!(f, "\nerror    {error}")?;
        }
        Ok(())
    }
}
