//! Runs a client that carries what local programs give it, until a signal ends it or its work is done.

use std::time::Instant;

use tandem_net::{Application, DriverOptions, DriverStats, driver};
use tandem_node::{
    ClientConfig, ProxyConfig, client::TcpService, error::ClientError, node::Event, stats::Stats,
};
use tandem_server::{
    admin::{AdminAddr, client::ClientAdmin},
    pause::PauseSetting,
    process::{self, Signals, log},
};
use tracing::{trace, warn};

use crate::{
    advice,
    error::{CliError, ConfigError, TransferError},
    hops::{self, Retries},
};

/// The port with which a client asks for a service whose port it does not know.
pub(crate) const SERVICE_PORT: u16 = 1;

/// A client node, with the ways in which local programs give it TCP connections.
pub(crate) fn node(
    config: ClientConfig,
    services: Vec<TcpService>,
) -> Result<tandem_node::Client, ConfigError> {
    let mut node = tandem_node::Client::new(config)?;
    for service in services {
        node.add_tcp_service(service);
    }
    Ok(node)
}

/// Runs a client to its end, and shows it at the address `admin` while it runs. Returns what it has counted.
pub(crate) fn carry(
    mut node: tandem_node::Client,
    (ends_by_itself, pause): (bool, PauseSetting),
    admin: Option<&AdminAddr>,
) -> Result<Stats, CliError> {
    log::use_own_thread()?;
    let mut tunnel = TunnelLines {
        end: Ok(()),
        retries: Retries::default(),
        hops: node.status(0).hops.len(),
        admin: admin.map(ClientAdmin::start).transpose()?,
    };
    let tick = admin.map(|_| ClientAdmin::INTERVAL);
    let finished = process::runtime()?.block_on(async {
        // ssh sends SIGHUP to its ProxyCommand as soon as that closes its standard output.
        let mut signals = if ends_by_itself { Signals::with_hangup()? } else { Signals::new()? };
        let options = DriverOptions { tick, pause: pause.0, ..DriverOptions::default() };
        Ok::<_, CliError>(driver::run(node, &mut tunnel, options, signals.any()).await)
    })?;
    match tunnel.end {
        // A signal is the usual end of a client that has no end of its own.
        Err(ClientError::Interrupted) if !ends_by_itself => {}
        result => result.map_err(|error| TransferError::Client { error })?,
    }
    Ok(process::after_grace(finished)?.node.stats())
}

/// Tells the user what becomes of the tunnel.
struct TunnelLines {
    end: Result<(), ClientError>,
    retries: Retries,
    /// The number of hops.
    hops: usize,
    /// Where the client is seen.
    admin: Option<ClientAdmin>,
}

impl Application<tandem_node::Client> for TunnelLines {
    fn event(&mut self, event: Event) {
        match event {
            Event::Listening(address) => process::say_listening(address),
            Event::TooLarge { local, len, fits } => warn!(
                %local, bytes = len, fits,
                "a packet was dropped because it does not fit the tunnel; further ones are only \
                 counted. Let the program send smaller packets, or let large ones go in capsules \
                 (--oversize capsule)"
            ),
            Event::HopUp { hop, authority, setup, agreement } => {
                self.retries.on_up(hop, &authority, setup, agreement);
                if let Some(admin) = self.admin.as_mut().filter(|_| hop + 1 == self.hops) {
                    admin.note_up();
                }
            }
            Event::HopLost { error, retry_in, .. } => {
                if let Some(admin) = &mut self.admin {
                    admin.note_lost(&error, retry_in);
                }
                self.retries.on_lost(&error, retry_in);
            }
            Event::ModeChanged { authority, agreement, .. } => {
                hops::say_lesser(&authority, agreement, "now runs");
            }
            Event::FlowFailed { listen, error, left_out } => {
                let left_out = (left_out > 0).then_some(left_out);
                warn!(%listen, left_out, "{}", told(&error));
            }
            Event::Closed(result) => self.end = result,
            Event::TunnelInfo { local, info } => trace!(%local, ?info, "report on the tunnel"),
            Event::Chosen { .. } | Event::ResponseStarted { .. } | Event::Fetched(_) => {}
        }
    }

    fn tick(&mut self, _: Instant, node: &mut tandem_node::Client, _: &DriverStats) {
        if let Some(admin) = &mut self.admin {
            admin.note(&node.status(ClientAdmin::FLOWS));
        }
    }
}

/// The error in words. The name by which `tandem connect` asks for its target says nothing to users.
fn told(error: &ClientError) -> String {
    let service = format!("{}:{SERVICE_PORT}", ProxyConfig::SERVICE);
    format!("{error}{}", advice::try_this(error)).replace(&service, "its service")
}
