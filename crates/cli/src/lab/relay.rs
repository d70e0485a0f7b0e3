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
use tandem_lab::{Capacity, LinkConfig, LinkStats, QueueConfig, QueueLimit, Reorder, Seed};
use tandem_units::{ByteCount, HumanDuration, Rate, Ratio};

use super::{Emulator, Links, emulator::Counters};
use crate::{
    config::ListenAddr,
    error::CliError,
    run::{self, Signals, say_listening},
    text,
};

/// Emulate a link between UDP sockets: what comes to --listen goes to --to, and answers back.
///
/// All clients share the link. Sizes count as IP packets: UDP payload and 28 bytes. Prints counters
/// as one JSON object when a signal ends it.
#[derive(Debug, clap::Args)]
pub(crate) struct Relay {
    /// Address and UDP port to listen at; port 0 is any free port
    #[arg(long, value_name = "ADDR")]
    listen: ListenAddr,

    /// Address and UDP port of the target
    #[arg(long, value_name = "ADDR")]
    to: SocketAddr,

    /// Rate in each direction, such as 10Mbit/s [default: unlimited]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// Propagation delay in each direction, half of what it adds to the RTT
    #[arg(long, value_name = "TIME", default_value = "0s")]
    delay: HumanDuration,

    /// Share of packets that is lost at random, in each direction
    #[arg(long, value_name = "RATIO", default_value = "0%")]
    loss: Ratio,

    /// Bytes that wait in front of the link, in each direction; more are dropped
    #[arg(long, value_name = "BYTES", default_value = "150kB")]
    queue: ByteCount,

    /// Share of packets that is late, in each direction
    #[arg(long, value_name = "RATIO", default_value = "0%")]
    reorder: Ratio,

    /// How late
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    reorder_delay: HumanDuration,

    /// Share of packets that arrives twice, in each direction
    #[arg(long, value_name = "RATIO", default_value = "0%")]
    duplicate: Ratio,

    /// What random loss, lateness and duplication follow from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl Relay {
    /// Runs until a signal comes.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let links = Links::symmetric(&[self.link()]);
        let mut emulator = Emulator::bind(self.listen, self.to, links, Seed(self.seed))?;
        let stop = Arc::new(AtomicBool::new(false));
        let runtime = run::runtime()?;
        let mut signals = runtime.block_on(async { Signals::new() })?;
        say_listening(emulator.local_addr());
        let worker = {
            let stop = stop.clone();
            thread::spawn(move || emulator.run(&stop))
        };
        runtime.block_on(signals.any());
        stop.store(true, Ordering::Relaxed);
        let counters = worker.join().expect("the emulator does not panic")?;
        text::print(serde_json::to_string(&Report::from(&counters)).expect("numbers are JSON"))
    }

    fn link(&self) -> LinkConfig {
        let reorder = Reorder { ratio: self.reorder, extra_delay: self.reorder_delay.into() };
        LinkConfig {
            capacity: self.rate.map_or(Capacity::Unlimited, Capacity::Constant),
            delay: self.delay.into(),
            loss: self.loss.into(),
            queue: QueueConfig::DropTail(QueueLimit::bytes(self.queue)),
            reorder: (self.reorder > Ratio::ZERO).then_some(reorder),
            duplicate: self.duplicate,
            ..LinkConfig::default()
        }
    }
}

/// What became of the packets. Bytes are those of IP packets.
#[derive(Debug, Serialize)]
struct Report {
    to_target: Direction,
    to_client: Direction,
    clients: u64,
    refused_clients: u64,
}

#[derive(Debug, Serialize)]
struct Direction {
    entered_packets: u64,
    entered_bytes: u64,
    delivered_packets: u64,
    delivered_bytes: u64,
    dropped_loss_packets: u64,
    dropped_queue_packets: u64,
    late_packets: u64,
    duplicated_packets: u64,
    queued_max_bytes: u64,
}

impl From<&Counters> for Report {
    fn from(counters: &Counters) -> Self {
        let direction = |links: &[LinkStats]| {
            let stats = links.first().copied().unwrap_or_default();
            Direction {
                entered_packets: stats.entered.packets,
                entered_bytes: stats.entered.bytes.get(),
                delivered_packets: stats.delivered.packets,
                delivered_bytes: stats.delivered.bytes.get(),
                dropped_loss_packets: stats.dropped_loss.packets,
                dropped_queue_packets: stats.dropped_queue.packets,
                late_packets: stats.reordered.packets,
                duplicated_packets: stats.duplicated.packets,
                queued_max_bytes: stats.queued_max.get(),
            }
        };
        Self {
            to_target: direction(&counters.to_target),
            to_client: direction(&counters.to_client),
            clients: counters.clients,
            refused_clients: counters.refused_clients,
        }
    }
}
