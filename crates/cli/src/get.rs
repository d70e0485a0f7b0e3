//! `tandem get`.

use std::{
    num::NonZeroU8,
    path::{Path, PathBuf},
};

use tandem_node::{
    Client, ClientConfig,
    client::{FetchConfig, Task},
};
use tandem_units::HumanDuration;

use crate::{
    config::{
        GroupStreams, HttpsUrl, RepairSettings, RepairSetup, TransportSettings, TransportSetup,
        UploadSize, Via, WorkFor,
    },
    download::Download,
    error::{CliError, ConfigError},
    fetch::fetch,
    hops,
    outcome::{Mode, Outcome},
    progress::{Bars, Show},
    run::{self, Signals},
    text,
    tls::{ClientTlsSettings, ClientTlsSetup},
};

/// Fetch a URL over HTTP/3, directly or through proxies.
///
/// Until the file is complete it is called FILE.part. With --upload zeros are sent there instead, to
/// see how fast that goes.
#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    /// What to fetch, or where to send to: an https URL
    url: HttpsUrl,

    /// Where the file goes; - is standard output
    #[arg(short, long, value_name = "FILE", required_unless_present = "upload")]
    output: Option<PathBuf>,

    /// Send so many zeros (PUT) instead of fetching, at most 10 GB, to an origin that takes uploads.
    /// In modes tecc and tecc-paper they follow what this end of the tunnel can send
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["output", "streams"])]
    upload: Option<UploadSize>,

    /// Proxy as https://HOST:PORT or URI template; repeat for a chain, nearest proxy first
    #[arg(long, value_name = "URL", env = "TANDEM_VIA", value_delimiter = ' ')]
    via: Vec<Via>,

    /// How to travel [default: mdt with --via, direct without]
    #[arg(long)]
    mode: Option<Mode>,

    /// Request streams of mode msgt, 2 to 16 [default: 8]
    #[arg(long, value_name = "N", env = "TANDEM_GROUP_STREAMS")]
    group_streams: Option<GroupStreams>,

    #[command(flatten)]
    repair: RepairSettings,

    /// Fetch so many ranges of the file at a time, each on a stream of its own [default: 1]
    #[arg(long, value_name = "N")]
    streams: Option<NonZeroU8>,

    /// Show the first token of this file to the proxies; or repeat, one file for each --via
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE", value_delimiter = ' ')]
    token_file: Vec<PathBuf>,

    /// Give up on a server that is silent for so long [default: 10s at first, then 30s]
    #[arg(long, value_name = "TIME", env = "TANDEM_TIMEOUT")]
    timeout: Option<HumanDuration>,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,

    /// No progress bar
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    tls: ClientTlsSettings,

    #[command(flatten)]
    transport: TransportSettings,
}

impl Get {
    /// Fetches, and prints what was measured.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let Plan { config, tls, mode, hops } = self.plan()?;
        // Nothing comes back of an upload.
        let download = Download::to(self.output.as_deref().unwrap_or(Path::new("-")))?;
        tls.warn();
        let show = if self.quiet || self.json { Show::Never } else { Show::OnTerminal };
        let bar = Bars::new(show).add("get", "connecting");
        let node = Client::new(config).map_err(ConfigError::from)?;
        let fetched = run::runtime()?.block_on(async {
            let mut signals = Signals::new()?;
            fetch(node, download, &bar, &mut signals).await
        });
        bar.clear();
        let (report, sha256) = fetched?;
        let sha256 = self.upload.is_none().then_some(sha256);
        let outcome = Outcome::new(self.url.to_string(), mode, hops, &report, sha256);
        let shown = if self.json {
            serde_json::to_string(&outcome).expect("numbers and texts are JSON")
        } else {
            outcome.summary(self.output.as_deref())
        };
        if self.writes_to_stdout() {
            text::say(shown); // so that it does not mix with the file
            Ok(())
        } else {
            text::print(shown)
        }
    }

    fn plan(&self) -> Result<Plan, ConfigError> {
        let mode = match (self.mode, self.via.is_empty()) {
            (Some(mode), true) if mode.is_tunnel() => {
                let first = mode.setting();
                let reason = "a tunnel needs a proxy at its other end";
                return Err(ConfigError::Incomplete { first, second: "via", reason });
            }
            (Some(Mode::Direct), false) => {
                let reason = "a direct download has no proxy";
                return Err(ConfigError::Conflict { first: "mode direct", second: "via", reason });
            }
            (Some(mode), _) => mode,
            (None, true) => Mode::Direct,
            (None, false) => Mode::Mdt,
        };
        let streams = self.streams.map_or(1, NonZeroU8::get);
        if streams > 1 && self.writes_to_stdout() {
            let reason = "ranges arrive interleaved, standard output wants them in order";
            return Err(ConfigError::Conflict { first: "streams", second: "output -", reason });
        }
        let tls_setup = ClientTlsSetup::try_from(self.tls.clone())?;
        let tls = tls_setup.read()?;
        // With an upload we are the sender whom reports concern.
        let follows = mode.follower().filter(|_| self.upload.is_some());
        let work = if follows.is_some() { WorkFor::Origin } else { WorkFor::EndToEnd };
        let mut settings = self.transport.clone();
        settings.controller = settings.controller.or(follows);
        let transport = TransportSetup::new(settings, work)?;
        let fetch = FetchConfig {
            streams: streams.into(),
            upload: self.upload.map(|size| size.0),
            transport: transport.to_node("get", work),
            ..FetchConfig::new(
                self.url.host(),
                self.url.port(),
                self.url.path(),
                tls.origin.clone(),
            )
        };
        let repair = RepairSetup::new(self.repair, mode)?;
        let tunnel = mode.tunnel(repair.to_node(), self.group_streams).unwrap_or_default();
        let transport = TransportSetup::new(self.transport.clone(), WorkFor::Tunnel)?;
        let hops = hops::hops(&self.via, &tls, &transport, &self.token_file, tunnel)?;
        let count = hops.len();
        let limits = hops::limits(self.timeout);
        let config = ClientConfig { hops, task: Task::Fetch(Box::new(fetch)), limits, seed: None };
        Ok(Plan { config, tls: tls_setup, mode, hops: count })
    }

    fn writes_to_stdout(&self) -> bool {
        self.output.as_deref() == Some(Path::new("-"))
    }
}

/// The checked form of the flags.
struct Plan {
    config: ClientConfig,
    tls: ClientTlsSetup,
    mode: Mode,
    hops: usize,
}
