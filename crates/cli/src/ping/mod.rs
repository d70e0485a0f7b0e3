//! `tandem ping`.

mod probing;
mod summary;

use std::{ops::RangeInclusive, time::Duration};

use clap::ArgGroup;
use tandem_net::DriverOptions;
use tandem_node::{
    Client, ClientConfig,
    client::{HopConfig, Task},
    error::ClientError,
    limits::Limits,
    mode::Mode,
};
use tandem_server::process;
use tandem_units::HumanDuration;
use tokio::sync::oneshot;

use self::{probing::Probing, summary::Summary};
use crate::{
    config::{RepairSettings, Setting, Target, Within},
    error::{CliError, TransferError},
    text,
    through::{ThroughSettings, run_until},
};

const EXAMPLES: &str = "\
Examples:
  tandem ping --via https://proxy.example --token-file token
      Is the proxy there, does it accept the token, and how far away is it?
  tandem ping --via https://proxy.example --token-file token git.example:22
      How long does a TCP connection to git.example take through the tunnel?

What is measured:
  Without a target, each line is the time from a request until the proxy's answer. The request asks for
  something that no proxy opens, with the token, so that the proxy answers at once.
  With a target, each line is the time from the request for a TCP connection until the proxy says that the
  target has accepted it: the tunnel's RTT, the look-up of a name by the proxy, and the RTT from there to
  the target. The connection then ends, and no byte is sent on it.
  The last line has the RTT that QUIC measures on the connection to each proxy. A lost packet is sent
  again, so that it does not make an answer fail but late.";

/// Test the way to a proxy, and through it to a target.
///
/// It connects to the proxy, shows the token, and measures how long answers take.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, group(ArgGroup::new("proxies").args(["via"]).required(true)))]
pub(crate) struct Ping {
    /// Target to which TCP connections are opened; without one, only the proxy is asked
    #[arg(value_name = "HOST:PORT")]
    target: Option<Target>,

    #[arg(short, long, value_name = "N", help = Count::help("Number of requests", COUNT))]
    count: Option<Within<Count>>,

    #[arg(
        short, long, value_name = "TIME",
        help = Interval::help("Time from one request to the next", HumanDuration(INTERVAL))
    )]
    interval: Option<Within<Interval>>,

    #[arg(
        short = 'W', long, value_name = "TIME",
        help = Wait::help("Time after which a request counts as not answered", HumanDuration(WAIT))
    )]
    wait: Option<Within<Wait>>,

    /// Print the result as one JSON object
    #[arg(long, env = "TANDEM_JSON")]
    json: bool,

    #[command(flatten)]
    through: ThroughSettings,
}

const COUNT: u32 = 5;
const INTERVAL: Duration = Duration::from_secs(1);
/// A proxy gives a target up after 10 s, and says so.
const WAIT: Duration = Duration::from_secs(15);

/// The number of requests.
#[derive(Clone, Copy, Debug)]
struct Count;

impl Setting for Count {
    type Value = u32;
    const ALLOWED: RangeInclusive<u32> = 1..=100_000;
}

/// The time from one request to the next. A proxy counts requests for its users' limits.
#[derive(Clone, Copy, Debug)]
struct Interval;

impl Setting for Interval {
    type Value = HumanDuration;
    const ALLOWED: RangeInclusive<HumanDuration> =
        HumanDuration(Duration::from_millis(10))..=HumanDuration(Duration::from_secs(3600));
}

/// The time after which a request counts as not answered.
#[derive(Clone, Copy, Debug)]
struct Wait;

impl Setting for Wait {
    type Value = HumanDuration;
    const ALLOWED: RangeInclusive<HumanDuration> =
        HumanDuration(Duration::from_millis(10))..=HumanDuration(Duration::from_secs(60));
}

/// What is asked, how often and for how long.
#[derive(Clone, Debug)]
struct Plan {
    target: Option<Target>,
    count: u32,
    interval: Duration,
    wait: Duration,
    /// Whether each answer has a line.
    is_shown: bool,
}

/// Asks a proxy once whether it carries UDP and accepts the token. Says nothing. Returns how long the answer took, in
/// milliseconds.
pub(crate) async fn ask_once(hop: HopConfig, limits: Limits) -> Result<f64, CliError> {
    let plan = Plan { target: None, count: 1, interval: INTERVAL, wait: WAIT, is_shown: false };
    let (hops, task) = (vec![hop], Task::Forward(Vec::new()));
    let node = Client::new(ClientConfig { hops, task, limits, seed: None });
    let (summary, end) = probe(node.map_err(TransferError::from)?, plan, 1).await?;
    end.map_err(|error| TransferError::Client { error })?;
    Ok(summary.mean_ms())
}

impl Ping {
    /// Asks, and prints each answer and a summary.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let through = self.through.read(Mode::Auto, RepairSettings::default())?;
        let plan = Plan {
            target: self.target,
            count: self.count.map_or(COUNT, |Within(count)| count),
            interval: self.interval.map_or(INTERVAL, |Within(interval)| interval.into()),
            wait: self.wait.map_or(WAIT, |Within(wait)| wait.into()),
            is_shown: !self.json,
        };
        let hops = through.hops.len();
        let node = Client::new(ClientConfig {
            hops: through.hops,
            task: Task::Forward(Vec::new()),
            limits: through.limits,
            seed: None,
        });
        let mut node = node.map_err(TransferError::from)?;
        node.only_probes();
        let (summary, end) = process::runtime()?.block_on(probe(node, plan, hops))?;
        if summary.answered > 0 {
            let json = || serde_json::to_string(&summary).expect("numbers and texts are JSON");
            text::print(if self.json { json() } else { summary.to_string() })?;
        }
        end.map_err(|error| TransferError::Client { error }.into())
    }
}

/// Runs the client until all requests have been answered or given up, or until a signal.
async fn probe(
    node: Client,
    plan: Plan,
    hops: usize,
) -> Result<(Summary, Result<(), ClientError>), CliError> {
    let (done, is_done) = oneshot::channel();
    let mut probing = Probing::new(plan, hops, done);
    let is_interrupted = run_until(node, &mut probing, DriverOptions::default(), is_done).await?;
    let (summary, end) = probing.finish()?;
    let end = if is_interrupted { Err(ClientError::Interrupted) } else { end };
    Ok((summary, end))
}
