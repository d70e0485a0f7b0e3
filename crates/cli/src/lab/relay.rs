//! `tandem lab relay`.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use serde::Serialize;
use tandem_emulate::{RelayCounters, UdpRelay};
use tandem_netem::Seed;
use tandem_server::process::{self, Signals, log, say_listening};

use super::{direction::DirectionCounters, link_args::LinkArgs};
use crate::{config::ListenAddr, error::CliError, text};

const EXAMPLES: &str = "\
Examples:
  tandem lab relay --listen 127.0.0.1:8444 --to 127.0.0.1:8443 --rate 10Mbit/s --delay 20ms
      A client that uses port 8444 reaches the proxy at port 8443 over a slow link.
  tandem lab relay --listen 127.0.0.1:8444 --to 127.0.0.1:8443 --loss bursts:5%,4
      Four packets on average are lost at a time.";

/// Emulate a link between UDP sockets: datagrams to --listen go to --to, and answers come back.
///
/// All clients share the link. Sizes are those of IP packets: UDP payload and 28 bytes. Prints
/// counters as one JSON object when a signal ends it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Relay {
    /// Address and UDP port to listen at; port 0 is any free port
    #[arg(long, value_name = "ADDR")]
    listen: ListenAddr,

    /// Address and UDP port of the target
    #[arg(long, value_name = "ADDR")]
    to: SocketAddr,

    #[command(flatten)]
    link: LinkArgs,
}

impl Relay {
    /// Runs until a signal comes.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let links = self.link.links()?;
        let mut relay = UdpRelay::bind(self.listen.0, self.to, links, Seed(self.link.seed))?;
        let stop = Arc::new(AtomicBool::new(false));
        let runtime = process::runtime()?;
        let mut signals = runtime.block_on(async { Signals::new() })?;
        log::use_own_thread()?;
        say_listening(relay.local_addr());
        let worker = {
            let stop = stop.clone();
            thread::spawn(move || relay.run(&stop))
        };
        runtime.block_on(signals.any());
        stop.store(true, Ordering::Relaxed);
        let counters = worker.join().expect("the relay does not panic")?;
        text::print(
            serde_json::to_string(&CountersJson::from(&counters)).expect("numbers are JSON"),
        )
    }
}

/// The counters in JSON. Bytes are those of IP packets.
#[derive(Debug, Serialize)]
struct CountersJson {
    to_target: DirectionCounters,
    to_client: DirectionCounters,
    clients: u64,
    refused_clients: u64,
}

impl From<&RelayCounters> for CountersJson {
    fn from(counters: &RelayCounters) -> Self {
        Self {
            to_target: DirectionCounters::of_first(&counters.to_target),
            to_client: DirectionCounters::of_first(&counters.to_client),
            clients: counters.clients,
            refused_clients: counters.refused_clients,
        }
    }
}
