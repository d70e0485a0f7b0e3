//! `tandem demo`.

mod file;
mod gauges;
mod journey;
mod network;
mod sample;
mod series;
mod stage;
mod table;
mod view;
mod watch;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use serde::Serialize;
use tandem_congestion::ControllerName;
use tandem_netem::ideal_completion;
use tandem_netem::{LinkConfig, QueueConfig, QueueLimit, Seed};
use tandem_units::{ByteCount, HumanDuration, Rate, Ratio};

use self::{
    file::DemoFile,
    gauges::{Gauges, ProgressSink},
    journey::Journey,
    network::Network,
    series::Series,
    stage::Stage,
    watch::watch,
};
use crate::{
    error::{CliError, end_to_end_controllers},
    outcome::{Outcome, round, seconds},
    progress::{Bar, Bars, Show},
    run::{self, Signals},
    text,
};

const EXAMPLES: &str = "\
Examples:
  tandem demo --modes mft,tecc --loss 2%
      Two modes over a better link.
  tandem demo --size 2MB --rate 50Mbit/s --json
      A short comparison for a program.";

/// Compare the modes: origin, proxy, client and a bad link in one process.
///
/// The program downloads a file over real UDP sockets on loopback, once in each mode, across an emulated
/// link between client and proxy and another one between proxy and origin. It needs no root and no
/// set-up.
///
/// On a terminal it draws, while a download runs, the pacing rate and the smoothed RTT of the origin
/// (E2E) and of the proxy (tunnel), and the tunnel's queue; --series writes the same to a file. `tandem
/// get --help` explains the modes.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Demo {
    /// Size of the file
    #[arg(long, value_name = "BYTES", default_value = "10MB")]
    size: ByteCount,

    /// Rate of the link between client and proxy, in each direction
    #[arg(long, value_name = "RATE", default_value = "10Mbit/s")]
    rate: Rate,

    /// RTT between client and proxy
    #[arg(long, value_name = "TIME", default_value = "40ms")]
    client_rtt: HumanDuration,

    /// RTT between proxy and origin
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
    /// ordered), and MODE@CONTROLLER the origin's congestion controller
    #[arg(
        long,
        value_name = "MODES",
        value_delimiter = ',',
        default_value = "mft,mdt,mst,rmdt,tecc,rmdt:off@cubic,rmdt@cubic"
    )]
    modes: Vec<Journey>,

    /// Congestion controller of all connections: bbr1, bbr1-tunnel, newreno, cubic or bbr3. The origin of
    /// mode tecc or tecc-paper has the controller of that name
    #[arg(long, value_name = "NAME", default_value = "bbr1", value_parser = controller,
          help_heading = "Congestion control")]
    controller: ControllerName,

    /// CSV file for pacing rate and smoothed RTT of both layers and for the tunnel's queue over time, with
    /// one line for each sample of each mode
    #[arg(long, value_name = "FILE", help_heading = "Tests and tracing")]
    series: Option<PathBuf>,

    /// Print the results as one JSON array
    #[arg(long)]
    json: bool,

    /// Draw no progress on the terminal
    #[arg(short, long)]
    quiet: bool,
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
    /// Downloads the file in each mode and prints a table.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let runtime = run::runtime()?;
        let mut signals = runtime.block_on(async { Signals::new() })?;
        let mut series = self.series.as_deref().map(Series::create).transpose()?;
        let file = DemoFile::create(self.size, self.seed())?;
        if !self.json && !self.quiet {
            text::say(self.describe());
        }
        let journeys = self.distinct_journeys();
        let is_silent = self.quiet || self.json;
        let mut stage = if is_silent { None } else { Stage::open(&self, &journeys) };
        let has_bars = stage.is_none() && !is_silent;
        let bars = Bars::new(if has_bars { Show::OnTerminal } else { Show::Never });
        let journeys = journeys.into_iter().map(|it| (it, bars.add(&it.to_string(), "waiting")));
        let mut results = Vec::new();
        for (place, (journey, bar)) in journeys.collect::<Vec<_>>().into_iter().enumerate() {
            if let Some(stage) = &mut stage {
                stage.begin(place, journey);
            }
            let gauges = Arc::<Gauges>::default();
            let network = Network::start(journey, &self, &file, &gauges)?;
            let sink = ProgressSink { bar: &bar, gauges: &gauges };
            let download = || runtime.block_on(network.download(&file, &sink, &mut signals));
            let (fetched, samples) = watch(&gauges, stage.as_mut(), download)?;
            if let Some(series) = &mut series {
                series.add(journey, samples.as_slice())?;
            }
            let result = match fetched {
                Ok(outcome) => self.complete(journey, outcome, network.stop()?),
                Err(error) => {
                    bars.clear();
                    return Err(error);
                }
            };
            finish(&bar, &result);
            if let Some(stage) = &mut stage {
                stage.end(&result);
            }
            results.push(result);
        }
        drop(stage); // with the picture, before the results are printed
        text::print(if self.json {
            serde_json::to_string(&results).expect("numbers and texts are JSON")
        } else {
            table::table(&results)
        })
    }

    fn distinct_journeys(&self) -> Vec<Journey> {
        let mut seen = BTreeSet::new();
        self.modes.iter().copied().filter(|journey| seen.insert(journey.to_string())).collect()
    }

    fn describe(&self) -> String {
        let Self { size, rate, client_rtt, origin_rtt, loss, queue, controller, .. } = self;
        format!(
            "Downloading {size} over real sockets: client -- {rate}, RTT {client_rtt}, loss {loss}, \
             queue {queue} -- proxy -- RTT {origin_rtt} -- origin; controller {controller}"
        )
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

    /// Adds the values that only the demo knows: the best possible time, and the origin's counters.
    fn complete(
        &self,
        journey: Journey,
        mut outcome: Outcome,
        packets: OriginPackets,
    ) -> DemoResult {
        let ideal = seconds(ideal_completion(self.size, self.rate, self.rtt(), self.loss));
        outcome.ideal_s = Some(ideal);
        let OriginPackets { sent, lost } = packets;
        #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 packets")]
        let ratio = lost as f64 / sent.max(1) as f64;
        DemoResult {
            journey: journey.to_string(),
            origin_controller: journey.origin_controller().unwrap_or(self.controller).to_string(),
            fct_over_ideal: round(outcome.fct_s / ideal, 1e3),
            e2e_retransmit_ratio: round(ratio, 1e6),
            outcome,
        }
    }
}

fn finish(bar: &Bar, result: &DemoResult) {
    let Outcome { fct_s, goodput_mbps, .. } = result.outcome;
    bar.finish(format!("{fct_s:.2} s, {goodput_mbps:.2} Mbit/s"));
}

/// QUIC packets of the origin.
#[derive(Clone, Copy, Debug)]
struct OriginPackets {
    sent: u64,
    lost: u64,
}

/// One object of `demo --json`: what `get --json` has, and more.
#[derive(Clone, Debug, Serialize)]
struct DemoResult {
    /// The journey, as `--modes` has it.
    journey: String,
    /// The origin's congestion controller.
    origin_controller: String,
    #[serde(flatten)]
    outcome: Outcome,
    /// The flow completion time (FCT) over its ideal: `fct_s / ideal_s`.
    fct_over_ideal: f64,
    /// Share of the origin's packets that were declared lost, and whose contents were
    /// retransmitted.
    e2e_retransmit_ratio: f64,
}
