//! `tandem get`.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use tandem_net::clock;
use tandem_node::{
    Client, ClientConfig,
    client::{FetchConfig, HopConfig, Resume, Task},
    limits::Limits,
    mode::Mode,
    node::FetchReport,
};
use tandem_server::{
    process::{self, Signals},
    transport::{TransportSetup, WorkFor},
};
use tandem_units::ByteCount;

use crate::{
    config::{
        HopVia, HttpsUrl, RepairSettings, RepairSetup, Setting, TransportSettings, Within,
        transport_for,
    },
    download::{Download, Sha256Hex, Wanted},
    error::{CliError, ConfigError, TransferError},
    fetch::fetch,
    hops::{self, GroupStreams, ReachSettings},
    mode,
    outcome::Outcome,
    patience::PatienceSettings,
    progress::{Bar, Bars, Progress, Show},
    qlog,
    redirect::{MaxRedirs, Redirects},
    text,
    tls::{ClientTlsSettings, ClientTlsSetup},
};

const EXAMPLES: &str = "\
Examples:
  tandem get https://origin.example/file -o file
      A download without a tunnel.
  tandem get https://origin.example/file -o file --via https://proxy.example
      A download through a proxy, with a tunnel that repairs losses.
  tandem get -O https://origin.example/a.iso https://origin.example/b.iso
      Two downloads, to a.iso and b.iso in this folder.";

/// Fetch URLs over HTTP/3, with or without proxies.
///
/// Until the file is complete, its bytes are in FILE.tandem-part. A device or a pipe is written in
/// place. With --upload the program sends zeros to the URL instead, which measures uploads.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct Get {
    /// https URLs to fetch one after the other, or to send to with --upload
    #[arg(required = true, value_name = "URL")]
    urls: Vec<HttpsUrl>,

    /// File to write; - stands for standard output
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["upload", "remote_name"])]
    output: Option<PathBuf>,

    /// Write each file into this folder, under the last part of the path of its URL
    #[arg(short = 'O', long, conflicts_with = "output")]
    remote_name: bool,

    #[arg(
        long, value_name = "BYTES", conflicts_with_all = ["output", "remote_name", "streams"],
        help = "Send this many zero bytes instead of fetching, to measure an upload",
        long_help = format!(
            "Send this many zero bytes (PUT, at most {}) to an origin that accepts uploads, instead of \
             fetching. In modes tecc and tecc-paper the upload follows reports of this end of the tunnel",
            UploadSize::ALLOWED.end(),
        )
    )]
    upload: Option<Within<UploadSize>>,

    /// Continue an unfinished download of the same URL to the same FILE, if the origin still has the
    /// same file; otherwise start at the beginning
    #[arg(short = 'C', long = "continue", conflicts_with = "upload")]
    resume: bool,

    #[arg(
        long, value_name = "N", help_heading = "Limits", help = MaxRedirs::help(
            "Number of redirects to follow; only https URLs are followed, and by uploads only 307 and \
             308",
            MaxRedirs::DEFAULT,
        )
    )]
    max_redirs: Option<Within<MaxRedirs>>,

    /// Proxy, as https://HOST:PORT or as a URI template; for a chain, repeat it or give several with
    /// spaces between, nearest proxy first
    ///
    /// Several with commas between are alternatives for one hop: the client uses the nearest one that works,
    /// and another one if it drains, dies or is silent. The HTTPS records of the first proxy's name have the
    /// same effect.
    #[arg(long, value_name = "URL", env = "TANDEM_VIA", value_delimiter = ' ')]
    via: Vec<HopVia>,

    /// How payloads travel [default: auto with --via, mft without]
    #[arg(long, env = "TANDEM_MODE", value_parser = mode::parser(mode::is_of_clients))]
    mode: Option<Mode>,

    /// How payloads travel through the tunnels behind the first proxy of a chain [default: uack if the
    /// first is uack, else forward; with --require-mode as through the first]
    #[arg(long, env = "TANDEM_BEYOND", help_heading = "Tunnel", value_name = "MODE",
          hide_possible_values = true, value_parser = mode::parser(mode::is_of_tunnels))]
    beyond: Option<Mode>,

    /// End with an error if a proxy grants another mode
    #[arg(long, value_name = "BOOL", env = "TANDEM_REQUIRE_MODE", help_heading = "Tunnel",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    require_mode: Option<bool>,

    #[arg(
        long, value_name = "N", env = "TANDEM_GROUP_STREAMS", help_heading = "Tunnel",
        help = hops::group_streams_help()
    )]
    group_streams: Option<Within<GroupStreams>>,

    /// Number of ranges of the file to fetch at the same time, each on its own stream [default: 1]
    #[arg(long, value_name = "N")]
    streams: Option<Within<Streams>>,

    #[command(flatten)]
    reach: ReachSettings,

    /// Send a random identifier with each request (W3C Trace Context), and log it
    ///
    /// Servers log it too. Each request has an identifier of its own, so that only this program knows which of them
    /// belong together.
    #[arg(long, value_name = "BOOL", env = "TANDEM_TRACE_REQUESTS", help_heading = "Tests and tracing",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    trace_requests: Option<bool>,

    /// Print the result as one JSON object
    #[arg(long, env = "TANDEM_JSON")]
    json: bool,

    /// Print nothing but errors; with --json also the result
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten, next_help_heading = "Limits")]
    patience: PatienceSettings,

    #[command(flatten, next_help_heading = "Repair")]
    repair: RepairSettings,

    #[command(flatten, next_help_heading = "TLS")]
    tls: ClientTlsSettings,

    #[command(flatten, next_help_heading = "Congestion control")]
    transport: TransportSettings,
}

impl Get {
    /// Whether only errors are printed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Fetches, and prints the measurements. A URL that fails does not keep the others from being fetched.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let plan = self.plan()?;
        let outputs = self.urls.iter().map(|url| self.output_of(url));
        let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
        if !self.quiet {
            plan.tls.warn();
        }
        let mut failed: Option<CliError> = None;
        for (url, output) in self.urls.iter().zip(&outputs) {
            let Err(error) = self.run_one(&plan, url, output) else { continue };
            if let Some(earlier) = failed.replace(error) {
                text::say(format_args!("error: {earlier}"));
            }
            if failed.as_ref().is_some_and(CliError::concerns_all) {
                break;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Where the file of a URL goes.
    fn output_of(&self, url: &HttpsUrl) -> Result<PathBuf, ConfigError> {
        let refused = |path: &Path, reason: &str| {
            Err(ConfigError::Output { path: path.to_owned(), reason: reason.to_owned() })
        };
        match &self.output {
            _ if self.remote_name => match url.file_name() {
                Some(name) => Ok(name.into()),
                None => refused(
                    Path::new(&url.path()),
                    "this URL does not end with the name of a file; give one with --output FILE",
                ),
            },
            Some(file) if self.urls.len() > 1 && file != Path::new("-") => {
                refused(file, "several URLs do not fit into one file; use --remote-name")
            }
            Some(file) => Ok(file.clone()),
            None => Ok("-".into()), // the response to an upload has no body
        }
    }

    fn run_one(&self, plan: &CheckedGet, url: &HttpsUrl, output: &Path) -> Result<(), CliError> {
        let text = url.to_string();
        let in_ranges = self.streams.is_some_and(|Within(streams)| streams > 1);
        let wanted = Wanted { url: &text, in_ranges, resume: self.resume };
        let mut download = Download::to(output, wanted)?;
        let show = if self.quiet || self.json { Show::Never } else { Show::OnTerminal };
        let name = url.file_name().unwrap_or_else(|| url.host());
        let bar = Bars::new(show).add(&name, "connecting");
        let fetched = process::runtime()?.block_on(self.fetch((plan, url), &mut download, &bar));
        bar.clear();
        let fetched = fetched.and_then(|fetched| Ok((fetched, download.finish()?)));
        let (fetched, sha256) = fetched.map_err(|error| download.explain(error))?;
        let followed = fetched.report.feedback.followed;
        let outcome = fetched.outcome(plan, sha256.filter(|_| self.upload.is_none()));
        let outcome = if self.upload.is_some() { outcome.of_upload(followed) } else { outcome };
        if let Some(dir) = &self.transport.qlog_dir {
            qlog::write_chain(dir, &outcome)?;
        }
        self.print(&outcome, output)
    }

    /// Fetches from the URL, or from the one that it redirects to.
    async fn fetch(
        &self,
        (plan, url): (&CheckedGet, &HttpsUrl),
        download: &mut Download,
        bar: &Bar,
    ) -> Result<Fetched, TransferError> {
        let mut signals = Signals::new()?;
        let mut patience = self.patience.begin(clock::now());
        let max = self.max_redirs.map_or(MaxRedirs::DEFAULT, |Within(max)| max);
        let mut redirects = Redirects::new(max, self.upload.is_some());
        let mut url = url.clone();
        loop {
            let resume = download.resume().cloned();
            let mut node = Client::new(plan.client(&url, resume))?;
            if self.require_mode.unwrap_or_default() {
                node.require_mode();
            }
            if self.trace_requests.unwrap_or_default() {
                node.trace_requests();
            }
            let pause = self.transport.pause.unwrap_or_default();
            match Box::pin(fetch(node, download, bar, (&mut patience, &mut signals), pause)).await {
                Ok(report) => {
                    let resumed_bytes = download.resume().map_or(0, |resume| resume.offset);
                    let redirects = redirects.followed;
                    return Ok(Fetched { url, redirects, resumed_bytes, report });
                }
                Err(error) => {
                    let next = redirects.follow(&url, error);
                    url = next.map_err(|error| error.over_udp(&url))?;
                }
            }
            bar.say(format!("redirected to {url}"));
        }
    }

    fn print(&self, outcome: &Outcome, output: &Path) -> Result<(), CliError> {
        let shown = if self.json {
            serde_json::to_string(outcome).expect("numbers and texts are JSON")
        } else if self.quiet {
            return Ok(());
        } else {
            outcome.summary(self.upload.is_none().then_some(output))
        };
        if self.writes_to_stdout() {
            text::say(shown); // so that it does not mix with the file
            Ok(())
        } else {
            text::print(shown)
        }
    }

    fn plan(&self) -> Result<CheckedGet, ConfigError> {
        let mode = mode_of(self.mode, !self.via.is_empty(), self.upload.is_some())?;
        let streams = self.streams.map_or(1, |Within(streams)| streams);
        let Some(url) = self.urls.first() else { return Err(ConfigError::NoUrl) };
        let tls_setup = ClientTlsSetup::try_from(self.tls.clone())?;
        let tls = hops::read_when_written(self.reach.retry, || tls_setup.read())?;
        let (transport, work) = end_to_end(&self.transport, mode, self.upload.is_some())?;
        let fetch = FetchConfig {
            streams: streams.into(),
            upload: self.upload.map(|Within(size)| size),
            transport: transport.to_node("get", work),
            ech: Some(tls.origin.ech.clone()),
            ..FetchConfig::new(url.host(), url.port(), url.path(), tls.origin.tls.clone())
        };
        let require_mode = self.require_mode.unwrap_or_default();
        let beyond = hops::beyond(self.beyond, &self.via, (mode, require_mode))?;
        let repair = repair_of(self.repair, mode, self.upload.is_some());
        let modes = hops::Modes::new(
            (mode, beyond),
            RepairSetup::new(repair, mode),
            hops::group_streams(self.group_streams),
        );
        let transport = transport_for(self.transport.clone(), WorkFor::Tunnel)?;
        let hops = || hops::hops(&self.via, &tls, &transport, self.reach.rights(), modes);
        let hops = hops::read_when_written(self.reach.retry, hops)?;
        let limits = self.reach.limits();
        Ok(CheckedGet { fetch, hops, limits, tls: tls_setup, mode })
    }

    fn writes_to_stdout(&self) -> bool {
        self.output.as_deref() == Some(Path::new("-"))
    }
}

/// The mode of a transfer that was chosen, or the default, if it fits the proxies.
pub(crate) fn mode_of(
    chosen: Option<Mode>,
    has_proxies: bool,
    is_upload: bool,
) -> Result<Mode, ConfigError> {
    let default = if has_proxies { Mode::default() } else { Mode::Mft };
    let mode = match chosen.unwrap_or(default) {
        // The sender of an upload is this program, which follows reports.
        Mode::Auto if is_upload => Mode::Tecc,
        mode => mode,
    };
    match (mode.has_tunnel(), has_proxies) {
        (true, false) => Err(ConfigError::NoProxy { mode }),
        (false, true) => Err(ConfigError::NoTunnel { mode }),
        (true, true) | (false, false) => Ok(mode),
    }
}

/// The settings of the connection to the origin.
pub(crate) fn end_to_end(
    settings: &TransportSettings,
    mode: Mode,
    is_upload: bool,
) -> Result<(TransportSetup, WorkFor), ConfigError> {
    // The sender of an upload is this program, so that reports on the tunnel are for it.
    let follows = mode.origin_controller().filter(|_| is_upload);
    let work = if follows.is_some() { WorkFor::Origin } else { WorkFor::EndToEnd };
    let mut settings = settings.clone();
    settings.controller = settings.controller.or(follows);
    Ok((transport_for(settings, work)?, work))
}

/// How the tunnel of a transfer repairs losses.
pub(crate) fn repair_of(mut repair: RepairSettings, mode: Mode, is_upload: bool) -> RepairSettings {
    if is_upload && mode.has_patient_origin() {
        // This program sends the body, and waits for repairs itself.
        repair.resequence.get_or_insert(mode.usual_order());
    }
    repair
}

/// Ranges of a file that are fetched at the same time.
#[derive(Clone, Copy, Debug)]
struct Streams;

impl Setting for Streams {
    type Value = u8;
    const ALLOWED: RangeInclusive<u8> = 1..=u8::MAX;
}

/// The bytes of an upload, which are as many as an origin accepts.
#[derive(Clone, Copy, Debug)]
struct UploadSize;

impl Setting for UploadSize {
    type Value = ByteCount;
    const ALLOWED: RangeInclusive<ByteCount> = ByteCount::ZERO..=ByteCount::new(Limits::UPLOAD);
}

/// The checked form of the flags.
struct CheckedGet {
    fetch: FetchConfig,
    hops: Vec<HopConfig>,
    limits: Limits,
    tls: ClientTlsSetup,
    mode: Mode,
}

impl CheckedGet {
    /// A client that fetches from this URL.
    fn client(&self, url: &HttpsUrl, resume: Option<Resume>) -> ClientConfig {
        let fetch = FetchConfig {
            host: url.host(),
            port: url.port(),
            path: url.path(),
            resume,
            ..self.fetch.clone()
        };
        let task = Task::Fetch(Box::new(fetch));
        ClientConfig { hops: self.hops.clone(), task, limits: self.limits.clone(), seed: None }
    }
}

/// A complete fetch.
struct Fetched {
    /// The URL after all redirects.
    url: HttpsUrl,
    redirects: u8,
    /// Bytes that an earlier download had fetched.
    resumed_bytes: u64,
    report: FetchReport,
}

impl Fetched {
    fn outcome(self, plan: &CheckedGet, sha256: Option<Sha256Hex>) -> Outcome {
        let Self { url, redirects, resumed_bytes, report } = self;
        let outcome = Outcome::new(url.to_string(), plan.mode, plan.hops.len(), &report, sha256);
        Outcome { redirects, resumed_bytes, bytes: outcome.bytes + resumed_bytes, ..outcome }
    }
}
