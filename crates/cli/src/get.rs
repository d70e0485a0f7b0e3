//! `tandem get`.

use std::{
    num::NonZeroU8,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use tandem_node::{
    Client, ClientConfig,
    client::{FetchConfig, Task},
    limits::Limits,
    mode::Mode,
};
use tandem_units::{ByteCount, HumanDuration};

use crate::{
    config::{
        HttpsUrl, RepairSettings, RepairSetup, Setting, TransportSettings, TransportSetup, Via,
        Within, WorkFor,
    },
    download::Download,
    error::{CliError, ConfigError},
    fetch::fetch,
    hops::{self, GroupStreams},
    mode,
    outcome::Outcome,
    progress::{Bars, Show},
    run::{self, Signals},
    text,
    tls::{ClientTlsSettings, ClientTlsSetup},
};

/// Fetch a URL over HTTP/3, with or without proxies.
///
/// Until the file is complete, its name is FILE.part. With --upload the program sends zeros to the URL
/// instead, which measures uploads.
#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    /// https URL to fetch, or to send to with --upload
    url: HttpsUrl,

    /// File to write; - stands for standard output
    #[arg(short, long, value_name = "FILE", required_unless_present = "upload")]
    output: Option<PathBuf>,

    #[arg(
        long, value_name = "BYTES", conflicts_with_all = ["output", "streams"],
        help = format!(
            "Send this many zero bytes (PUT, at most {}) to an origin that accepts uploads, instead of \
             fetching. In modes tecc and tecc-paper the upload follows reports of this end of the tunnel",
            UploadSize::ALLOWED.end(),
        )
    )]
    upload: Option<Within<UploadSize>>,

    /// Proxy, as https://HOST:PORT or as a URI template; repeat it for a chain, nearest proxy first
    #[arg(long, value_name = "URL", env = "TANDEM_VIA", value_delimiter = ' ')]
    via: Vec<Via>,

    /// How payloads travel [default: mdt with --via, mft without]
    #[arg(long, value_parser = mode::parser(mode::is_of_clients))]
    mode: Option<Mode>,

    #[arg(
        long, value_name = "N", env = "TANDEM_GROUP_STREAMS", help = hops::group_streams_help()
    )]
    group_streams: Option<Within<GroupStreams>>,

    #[command(flatten)]
    repair: RepairSettings,

    /// Number of ranges of the file to fetch at the same time, each on its own stream [default: 1]
    #[arg(long, value_name = "N")]
    streams: Option<NonZeroU8>,

    /// File whose first token is sent to every proxy; repeat it to name one file for each --via
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE", value_delimiter = ',')]
    token_file: Vec<PathBuf>,

    #[arg(long, value_name = "TIME", env = "TANDEM_TIMEOUT", help = hops::timeout_help())]
    timeout: Option<HumanDuration>,

    #[arg(
        long, value_name = "TIME", env = "TANDEM_RETRY",
        help = hops::retry_help("0 at the start, 30s for a tunnel that breaks")
    )]
    retry: Option<HumanDuration>,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,

    /// Draw no progress bar
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    tls: ClientTlsSettings,

    #[command(flatten)]
    transport: TransportSettings,
}

impl Get {
    /// Fetches, and prints the measurements.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let Plan { config, tls, mode, hops } = self.plan()?;
        // The response to an upload has no body.
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
        let mode = self.mode()?;
        let streams = self.streams.map_or(1, NonZeroU8::get);
        if streams > 1 && self.writes_to_stdout() {
            let reason = "ranges arrive interleaved, and standard output needs them in order";
            return Err(ConfigError::Conflict { first: "streams", second: "output -", reason });
        }
        let tls_setup = ClientTlsSetup::try_from(self.tls.clone())?;
        let tls = hops::read_when_written(self.retry, || tls_setup.read())?;
        // The sender of an upload is this program, so that reports on the tunnel are for it.
        let follows = mode.origin_controller().filter(|_| self.upload.is_some());
        let work = if follows.is_some() { WorkFor::Origin } else { WorkFor::EndToEnd };
        let mut settings = self.transport.clone();
        settings.controller = settings.controller.or(follows);
        let transport = TransportSetup::new(settings, work)?;
        let fetch = FetchConfig {
            streams: streams.into(),
            upload: self.upload.map(|Within(size)| size),
            transport: transport.to_node("get", work),
            ..FetchConfig::new(
                self.url.host(),
                self.url.port(),
                self.url.path(),
                tls.origin.clone(),
            )
        };
        let repair = RepairSetup::new(self.repair, mode);
        let group_streams = hops::group_streams(self.group_streams).0;
        let tunnel = mode.tunnel(repair.to_node(), group_streams).unwrap_or_default();
        let transport = TransportSetup::new(self.transport.clone(), WorkFor::Tunnel)?;
        let hops = || hops::hops(&self.via, &tls, &transport, &self.token_file, tunnel);
        let hops = hops::read_when_written(self.retry, hops)?;
        let count = hops.len();
        let limits = hops::limits(self.timeout, self.retry);
        let config = ClientConfig { hops, task: Task::Fetch(Box::new(fetch)), limits, seed: None };
        Ok(Plan { config, tls: tls_setup, mode, hops: count })
    }

    /// The mode that was chosen, or the default, if it fits the proxies.
    fn mode(&self) -> Result<Mode, ConfigError> {
        let default = if self.via.is_empty() { Mode::Mft } else { Mode::default() };
        let mode = self.mode.unwrap_or(default);
        match (mode.has_tunnel(), self.via.is_empty()) {
            (true, true) => Err(ConfigError::NoProxy { mode }),
            (false, false) => Err(ConfigError::NoTunnel { mode }),
            (true, false) | (false, true) => Ok(mode),
        }
    }

    fn writes_to_stdout(&self) -> bool {
        self.output.as_deref() == Some(Path::new("-"))
    }
}

/// The bytes of an upload, which are as many as an origin accepts.
#[derive(Clone, Copy, Debug)]
struct UploadSize;

impl Setting for UploadSize {
    type Value = ByteCount;
    const ALLOWED: RangeInclusive<ByteCount> = ByteCount::ZERO..=ByteCount::new(Limits::UPLOAD);
}

/// The checked form of the flags.
struct Plan {
    config: ClientConfig,
    tls: ClientTlsSetup,
    mode: Mode,
    hops: usize,
}
