//! `tandem origin`.

use std::path::PathBuf;

use clap::ValueHint;
use tandem_files::setting::Within;
use tandem_node::{OriginConfig, limits::Limits};
use tandem_server::{
    Setup,
    admin::AdminAddr,
    capacity::{MemoryBound, Threads},
    role::OriginRole,
    site::{HealthPath, SiteSource},
};
use tandem_units::ByteCount;

use super::{Served, fleet::FleetSettings, serve, tls::ServerTlsSettings};
use crate::{
    config::{Layered, ListenAddr, Settings, TransportSettings, transport_of_origin},
    error::{CliError, ConfigError},
};

const EXAMPLES: &str = "\
Examples:
  tandem origin --listen [::]:443 --root www --cert cert.pem --key key.pem
      A file server; a folder is served as its index.html.
  tandem origin --listen [::]:443 --root http://127.0.0.1:8080 --http1 --controller tecc
      With a certificate as above: HTTP/3 before a web server or an application, with reports for clients in mode tecc.
  tandem origin --listen 127.0.0.1:4433 --root . --controller tecc
      A server for tests on this machine that adapts to reports of clients in mode tecc.";

/// Serve the files of a folder over HTTP/3.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Origin {
    #[command(flatten)]
    settings: Layered<OriginSettings>,
}

impl Origin {
    /// Runs until a signal ends it.
    pub(crate) fn run(self) -> Result<(), CliError> {
        serve(&self.settings)
    }
}

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct OriginSettings {
    /// Address and UDP port to listen on; port 0 stands for any free port
    #[arg(long, value_name = "ADDR", env = "TANDEM_LISTEN")]
    listen: Option<ListenAddr>,

    /// Folder whose files are served, or URL of an HTTP server whose site is served
    #[arg(long, value_name = "DIR|URL", env = "TANDEM_ROOT", value_hint = ValueHint::AnyPath)]
    root: Option<SiteSource>,

    /// Path that the HTTP server of --root answers with a status of 200 to 399 while it works; without it, the server
    /// works while it accepts connections. It is asked for every two seconds, for /readyz and the metrics of --admin
    #[arg(long, value_name = "PATH", env = "TANDEM_UPSTREAM_HEALTH", help_heading = "Site")]
    upstream_health: Option<HealthPath>,

    /// Serve the site over HTTP/1.1 and TCP too, at the same port
    #[arg(long, value_name = "BOOL", env = "TANDEM_HTTP1", help_heading = "Site",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    http1: Option<bool>,

    #[arg(
        long, value_name = "BOOL", env = "TANDEM_TAKES_UPLOADS",
        num_args = 0..=1, require_equals = true, default_missing_value = "true",
        help = format!(
            "Accept uploads (PUT) of at most {} each, count their bytes and discard them, so that \
             clients can measure uploads",
            ByteCount::new(Limits::UPLOAD),
        )
    )]
    takes_uploads: Option<bool>,

    #[arg(
        long, value_name = "BOOL", env = "TANDEM_SPEEDTEST",
        num_args = 0..=1, require_equals = true, default_missing_value = "true",
        help = format!(
            "Let `tandem speedtest` measure: accept uploads as --takes-uploads does, and send {} of zeros at {} \
             to every client that asks for them",
            ByteCount::new(Limits::UPLOAD),
            OriginConfig::SPEEDTEST,
        )
    )]
    speedtest: Option<bool>,

    #[arg(
        long, value_name = "SIZE", env = "TANDEM_MEMORY", help_heading = "Limits",
        help = MemoryBound::flag_help()
    )]
    memory: Option<Within<MemoryBound>>,

    #[arg(
        long, value_name = "N", env = "TANDEM_THREADS", help_heading = "Limits",
        help = Threads::flag_help()
    )]
    threads: Option<Within<Threads>>,

    #[command(flatten)]
    fleet: FleetSettings,

    #[command(flatten, next_help_heading = "TLS")]
    tls: ServerTlsSettings,

    #[command(flatten, next_help_heading = "Congestion control")]
    transport: TransportSettings,

    /// Parameters of the controllers tecc and tecc-paper that differ from their defaults, such as
    /// q-target=60ms,theta=1Ts
    #[arg(
        long,
        value_name = "KEY=VALUE,..",
        env = "TANDEM_TECC",
        help_heading = "Congestion control"
    )]
    tecc: Option<String>,

    /// File with the PEPs on paths to clients that the origin listens to: ID KEY on each line, or only
    /// ID for a PEP without a key, which is heard but not followed (docs/guide/pep.md)
    #[arg(long, value_name = "FILE", env = "TANDEM_PEPS", help_heading = "Congestion control")]
    peps: Option<PathBuf>,

    /// With --peps, print a line of JSON for each connection every second and at its end: where its
    /// bottleneck is, and its losses and RTTs before and behind the PEP
    #[arg(long, value_name = "BOOL", env = "TANDEM_JSON", help_heading = "Results",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    json: Option<bool>,

    /// Show operators what happens: a page at /, metrics for Prometheus at /metrics, and /healthz and
    /// /readyz, at this loopback address or Unix socket; everybody who can reach it can read them
    #[arg(long, value_name = "ADDR|unix:PATH", env = "TANDEM_ADMIN", help_heading = "Monitoring")]
    admin: Option<AdminAddr>,
}

impl Settings for OriginSettings {
    type Setup = Served<OriginRole>;
    const SUBCOMMAND: &'static str = "origin";
    const REQUIRED: &'static [&'static str] = &["listen", "root"];
}

impl TryFrom<OriginSettings> for Served<OriginRole> {
    type Error = ConfigError;

    fn try_from(settings: OriginSettings) -> Result<Self, ConfigError> {
        let transport = transport_of_origin(settings.transport, settings.tecc)?;
        if transport.controller.follows_peps() && settings.peps.is_none() {
            let (first, second) = ("controller mdcc or mdcc-paper", "peps FILE");
            let reason = "it follows PEPs on the paths to clients, and is CUBIC without them";
            return Err(ConfigError::Incomplete { first, second, reason });
        }
        let has_json = settings.json.unwrap_or_default();
        if has_json && settings.peps.is_none() {
            let (first, second) = ("json", "peps FILE");
            let reason = "only PEPs show where a bottleneck is";
            return Err(ConfigError::Incomplete { first, second, reason });
        }
        let missing = |key, value, variable| ConfigError::Missing { key, value, variable };
        let listen = settings.listen.ok_or(missing("listen", "ADDR", "TANDEM_LISTEN"))?;
        let root = settings.root.ok_or(missing("root", "DIR", "TANDEM_ROOT"))?;
        if settings.upstream_health.is_some() && matches!(root, SiteSource::Folder(_)) {
            let (first, second) = ("upstream-health", "root URL");
            let reason = "a folder is no server that could be asked";
            return Err(ConfigError::Incomplete { first, second, reason });
        }
        let role = OriginRole {
            root,
            upstream_health: settings.upstream_health,
            http1: settings.http1.unwrap_or(false),
            takes_uploads: settings.takes_uploads.unwrap_or(false),
            speedtest: settings.speedtest.unwrap_or(false),
            peps: settings.peps,
            json: has_json,
        };
        let setup = Setup {
            listen: listen.0,
            memory: MemoryBound::or_default(settings.memory),
            threads: Threads::or_default(settings.threads),
            admin: settings.admin,
            fleet: settings.fleet.try_into()?,
            tls: settings.tls.try_into()?,
            transport,
        };
        Ok(Self { setup, role })
    }
}
