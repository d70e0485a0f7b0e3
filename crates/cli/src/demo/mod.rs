//! `tandem demo`.

mod file;
mod gauges;
mod journey;
mod live;
mod modes;
mod network;
mod pages;
mod prose;
mod result;
mod runner;
mod sample;
mod series;
mod server;
mod stage;
mod table;
mod view;
mod watch;

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use clap::ValueEnum;
use tandem_congestion::ControllerName;
use tandem_netem::{LinkConfig, QueueConfig, QueueLimit, Seed};
use tandem_units::{ByteCount, HumanDuration, Rate, Ratio};

use self::{journey::Journey, runner::Runner};
use crate::{
    error::{CliError, end_to_end_controllers},
    text,
};

const EXAMPLES: &str = "\
Examples:
  tandem demo --modes mft,tecc --loss 2%
      Two modes over a better link.
  tandem demo --size 2MB --rate 50Mbit/s --json
      A short comparison for a program.";

/// See what a tunnel gains over a bad link: client, proxy and server in one process.
///
/// The demo has three parts, which take less than 90 seconds together: a download from an ordinary server
/// without a tunnel and through one; short requests without a tunnel and with a proxy and a server that
/// cooperate; and the same download in each mode, as a table.
///
/// Files travel over real UDP sockets on loopback, across an emulated link between client and proxy and
/// another one between proxy and server. The demo needs no root and no set-up.
///
/// On a terminal it draws, while a download runs, the pacing rate, the smoothed RTT and the losses of the
/// server's connection (end-to-end, E2E) and of the tunnel, and the tunnel's queue; --series writes rates,
/// RTTs and the queue to a file. `tandem get --help` explains the modes.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Demo {
    /// Parts to show [default: all of them, or only "modes" if --modes is given]
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    parts: Option<Vec<DemoPart>>,

    /// Size of the file
    #[arg(long, value_name = "BYTES", default_value = "5MB")]
    size: ByteCount,

    /// Rate of the link between client and proxy, in each direction
    #[arg(long, value_name = "RATE", default_value = "10Mbit/s")]
    rate: Rate,

    /// RTT between client and proxy
    #[arg(long, value_name = "TIME", default_value = "40ms")]
    client_rtt: HumanDuration,

    /// RTT between proxy and server
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    origin_rtt: HumanDuration,

    /// Share of packets that are lost at random between client and proxy, in each direction
    #[arg(long, value_name = "RATIO", default_value = "5%")]
    loss: Ratio,

    /// Length of the queue in front of the link between client and proxy
    #[arg(long, value_name = "BYTES", default_value = "150kB", help_heading = "Link")]
    queue: ByteCount,

    /// Seed of the random losses and of the file's contents
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Tests and tracing")]
    seed: u64,

    /// Modes to compare, in this order: mft, mdt, mst, msgt, rmdt, tecc or tecc-paper. MODE:ORDER
    /// also sets the order in which a tunnel with retransmission releases payloads (off, window or
    /// ordered), and MODE@CONTROLLER the server's congestion controller
    /// (default: mft,mdt,mst,rmdt,tecc,rmdt:off@cubic,rmdt@cubic)
    #[arg(long, value_name = "MODES", value_delimiter = ',')]
    modes: Option<Vec<Journey>>,

    /// Congestion controller of all connections: bbr1, bbr1-tunnel, newreno, cubic or bbr3. Where a
    /// part or a mode names another one for the server, the server has that one
    #[arg(long, value_name = "NAME", default_value = "bbr1", value_parser = controller,
          help_heading = "Congestion control")]
    controller: ControllerName,

    /// CSV file for pacing rate and smoothed RTT of both layers and for the tunnel's queue over time, with
    /// one line for each sample of each download of the parts "server" and "modes"
    #[arg(long, value_name = "FILE", help_heading = "Tests and tracing")]
    series: Option<PathBuf>,

    /// Print the results as one JSON array. Each object names its part
    #[arg(long)]
    json: bool,

    /// Draw no progress on the terminal, and print only the results
    #[arg(short, long)]
    quiet: bool,
}

/// A part of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum DemoPart {
    /// A download from an ordinary server
    Server,
    /// Short requests
    Pages,
    /// A table of all modes
    Modes,
}

/// Parses a controller that every connection may have.
fn controller(text: &str) -> Result<ControllerName, String> {
    match text.parse::<ControllerName>() {
        Ok(name) if name.takes_reports() => {
            Err(format!("{name} is for origins: give mode {name}, or MODE@{name}"))
        }
        _ => origin_controller(text),
    }
}

/// Parses a controller that an origin may have.
fn origin_controller(text: &str) -> Result<ControllerName, String> {
    match text.parse() {
        Ok(ControllerName::Off) => {
            Err(format!("\"off\" is for tunnels only; allowed: {}", end_to_end_controllers()))
        }
        Ok(controller) => Ok(controller),
        Err(error) => Err(error.to_string()),
    }
}

impl Demo {
    /// Shows each part and prints its results.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let mut runner = Runner::new(&self)?;
        self.explain(self.describe());
        let mut entries = Vec::new();
        for part in self.parts() {
            let of_part = match part {
                DemoPart::Server => server::show(&mut runner)?,
                DemoPart::Pages => pages::show(&mut runner)?,
                DemoPart::Modes => modes::show(&mut runner)?,
            };
            entries.extend(of_part);
        }
        if self.json {
            text::print(serde_json::to_string(&entries).expect("numbers and texts are JSON"))?;
        }
        Ok(())
    }

    /// The parts, each of them once and in the order in which they are explained.
    fn parts(&self) -> BTreeSet<DemoPart> {
        match &self.parts {
            Some(parts) => parts.iter().copied().collect(),
            None if self.modes.is_some() => BTreeSet::from([DemoPart::Modes]),
            None => DemoPart::value_variants().iter().copied().collect(),
        }
    }

    /// Tells a person what comes next, or what the results mean.
    fn explain(&self, text: impl std::fmt::Display) {
        if !self.is_silent() {
            text::say(text);
        }
    }

    /// Prints a result for people.
    fn print(&self, text: impl std::fmt::Display) -> Result<(), CliError> {
        if self.json { Ok(()) } else { text::print(text) }
    }

    fn is_silent(&self) -> bool {
        self.quiet || self.json
    }

    fn describe(&self) -> String {
        let Self { rate, client_rtt, origin_rtt, loss, queue, .. } = self;
        prose::wrap(&format!(
            "A client, a proxy and a server run in this process. Files travel over real sockets, and \
             emulated links lie between them. The link between client and proxy is a bad one: it has \
             {rate}, an RTT of {client_rtt}, a queue of {queue}, and it loses {loss} of the packets. \
             The link between proxy and server has an RTT of {origin_rtt}."
        ))
    }

    /// The bad link, between client and proxy.
    fn client_link(&self) -> LinkConfig {
        LinkConfig {
            capacity: self.rate.into(),
            delay: Duration::from(self.client_rtt) / 2,
            loss: self.loss.into(),
            queue: QueueConfig::DropTail(QueueLimit::bytes(self.queue)),
            ..LinkConfig::default()
        }
    }

    /// The long one, between proxy and origin.
    fn origin_link(&self) -> LinkConfig {
        LinkConfig { delay: Duration::from(self.origin_rtt) / 2, ..LinkConfig::default() }
    }

    /// The least RTT between client and origin.
    fn rtt(&self) -> Duration {
        Duration::from(self.client_rtt) + Duration::from(self.origin_rtt)
    }

    fn seed(&self) -> Seed {
        Seed(self.seed)
    }

    /// The controller of the origin in this journey.
    fn origin_controller(&self, journey: Journey) -> ControllerName {
        journey.origin_controller().unwrap_or(self.controller)
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::*;
    use crate::help;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        demo: Demo,
    }

    fn parts(line: &str) -> Vec<DemoPart> {
        let words = ["demo"].into_iter().chain(line.split_whitespace());
        let command = help::independent_of_caller(Program::command());
        let given = command.try_get_matches_from(words).unwrap();
        Program::from_arg_matches(&given).unwrap().demo.parts().into_iter().collect()
    }

    #[test]
    fn a_user_who_names_modes_sees_their_table_alone() {
        assert_eq!(parts(""), [DemoPart::Server, DemoPart::Pages, DemoPart::Modes]);
        assert_eq!(parts("--modes mft,tecc"), [DemoPart::Modes]);
        assert_eq!(parts("--modes mft --parts server,modes"), [DemoPart::Server, DemoPart::Modes]);
        assert_eq!(parts("--parts pages,server,pages"), [DemoPart::Server, DemoPart::Pages]);
    }
}
