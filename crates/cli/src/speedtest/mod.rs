//! `tandem speedtest`.

mod measure;
mod report;

use std::{ops::RangeInclusive, time::Duration};

use clap::ValueEnum;
use serde::Serialize;
use tandem_node::{
    Client, ClientConfig, OriginConfig,
    client::{FetchConfig, Task},
    error::ClientError,
    limits::Limits,
    mode::Mode,
};
use tandem_server::process;
use tandem_units::{ByteCount, HumanDuration};

use self::{
    measure::measure,
    report::{Measured, Report},
};
use crate::{
    config::{HttpsUrl, RepairSettings, Setting, Within},
    error::{CliError, ConfigError, TransferError},
    get::{end_to_end, mode_of, repair_of},
    mode,
    progress::{Bars, Show},
    text,
    through::ThroughSettings,
};

const EXAMPLES: &str = "\
Examples:
  tandem origin --listen [::]:4433 --root www --speedtest
      Lets everybody measure with this server, who can reach it.
  tandem speedtest https://origin.example:4433 --via https://proxy.example --token-file token
      Measures through a proxy; without --via, directly.
  tandem speedtest https://cdn.example/large-file --only download
      Measures with a file of any server that speaks HTTP/3.

What is measured:
  The rates are those of the body, without headers, after the first fifth of the time, in which the
  rate grows. The RTTs are QUIC's smoothed ones of the end-to-end connection: idle is the least, from
  the first moments, and under load is the median while the rate is measured, so that it contains the
  time in all queues on the way. Of losses, only those of packets are known that this program sends;
  with --via, these are the packets of the tunnel to the nearest proxy.";

/// Measure rates and RTTs to an origin, with or without proxies.
///
/// It downloads for some time and then uploads for as long, and says how the RTT grows meanwhile.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Speedtest {
    /// https URL of an origin with --speedtest, or of a large file
    #[arg(value_name = "URL")]
    url: HttpsUrl,

    #[arg(
        short, long, value_name = "TIME",
        help = TestTime::help("Time of each direction", HumanDuration(TIME))
    )]
    time: Option<Within<TestTime>>,

    /// Measure one direction only
    #[arg(long, value_name = "DIRECTION")]
    only: Option<Direction>,

    /// How payloads travel [default: auto with --via, mft without]
    #[arg(long, env = "TANDEM_MODE", value_parser = mode::parser(mode::is_of_clients))]
    mode: Option<Mode>,

    /// Print the result as one JSON object
    #[arg(long, env = "TANDEM_JSON")]
    json: bool,

    #[command(flatten)]
    through: ThroughSettings,
}

const TIME: Duration = Duration::from_secs(10);

/// The time of each direction.
#[derive(Clone, Copy, Debug)]
struct TestTime;

impl Setting for TestTime {
    type Value = HumanDuration;
    const ALLOWED: RangeInclusive<HumanDuration> =
        HumanDuration(Duration::from_millis(500))..=HumanDuration(Duration::from_secs(60));
}

/// The direction of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
enum Direction {
    /// From the origin.
    Download,
    /// To the origin.
    Upload,
}

impl Direction {
    const fn name(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::Upload => "upload",
        }
    }
}

impl Speedtest {
    /// Measures, and prints the result.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let mut report = Report::new(&self.url, self.through.via.len());
        for direction in [Direction::Download, Direction::Upload] {
            if self.only.is_some_and(|only| only != direction) {
                continue;
            }
            let measured = self.measure(direction)?;
            report.add(direction, measured);
        }
        let json = || serde_json::to_string(&report).expect("numbers and texts are JSON");
        text::print(if self.json { json() } else { report.to_string() })
    }

    fn measure(&self, direction: Direction) -> Result<Measured, CliError> {
        let node = Client::new(self.client(direction)?).map_err(TransferError::from)?;
        let time = self.time.map_or(TIME, |Within(time)| time.into());
        let show = if self.json { Show::Never } else { Show::OnTerminal };
        let bar = Bars::new(show).add(direction.name(), "connecting");
        let measured = process::runtime()?.block_on(measure(node, (direction, time), &bar));
        bar.clear();
        measured.map_err(|error| self.explained(error).into())
    }

    /// The error of a transfer, with what is special of speed tests.
    fn explained(&self, error: TransferError) -> TransferError {
        match error {
            TransferError::Client {
                error: ClientError::Status { status: status @ (404 | 405), .. },
            } => TransferError::NoSpeedtest { url: self.target().to_string().into(), status },
            error => error,
        }
    }

    /// The URL with which is measured. One without a path stands for what origins have for that.
    fn target(&self) -> HttpsUrl {
        if self.url.path() != "/" {
            return self.url.clone();
        }
        let url = self.url.join(OriginConfig::SPEEDTEST).ok().and_then(|url| url.try_into().ok());
        url.unwrap_or_else(|| self.url.clone())
    }

    fn client(&self, direction: Direction) -> Result<ClientConfig, ConfigError> {
        let is_upload = direction == Direction::Upload;
        let mode = mode_of(self.mode, !self.through.via.is_empty(), is_upload)?;
        let repair = repair_of(RepairSettings::default(), mode, is_upload);
        let through = self.through.read(mode, repair)?;
        let (transport, work) = end_to_end(&self.through.transport, mode, is_upload)?;
        let url = self.target();
        let fetch = FetchConfig {
            upload: is_upload.then_some(ByteCount::new(Limits::UPLOAD)),
            is_upload_measured: true,
            transport: transport.to_node("speedtest", work),
            ech: Some(through.tls.origin.ech.clone()),
            ..FetchConfig::new(url.host(), url.port(), url.path(), through.tls.origin.tls.clone())
        };
        Ok(ClientConfig {
            hops: through.hops,
            task: Task::Fetch(Box::new(fetch)),
            limits: through.limits,
            seed: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;
    use crate::help::independent_of_caller;

    #[test]
    fn a_url_without_a_path_stands_for_the_body_of_origins() {
        for (url, target) in [
            ("https://o.example", "https://o.example/.well-known/tandem-speedtest"),
            ("https://[::1]:4433/", "https://[::1]:4433/.well-known/tandem-speedtest"),
            ("https://o.example/large?x=1", "https://o.example/large?x=1"),
        ] {
            let command = Speedtest::augment_args(clap::Command::new("speedtest"));
            let given = independent_of_caller(command).try_get_matches_from(["speedtest", url]);
            let test = Speedtest::from_arg_matches(&given.unwrap()).unwrap();
            assert_eq!(test.target().to_string(), target);
        }
    }
}
