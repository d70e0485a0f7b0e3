//! `tandem origin`.

use std::{
    cell::RefCell,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Serialize;
use tandem_net::{DriverOptions, DriverStats, Files, clock};
use tandem_node::{
    BusyNodes, OriginConfig,
    limits::Limits,
    quic::{Returning, ServerTls, Transport},
};
use tandem_units::ByteCount;

use crate::{
    acme::Renewals,
    admin::{self, Admin, AdminAddr, BUSIEST, Role},
    config::{Layered, ListenAddr, Settings, TransportSettings, TransportSetup, Within, WorkFor},
    descriptors,
    error::{CliError, ConfigError, FileError},
    fleet::{FleetSettings, FleetSetup},
    memory::{self, MemoryBound},
    paths::Paths,
    peps,
    server::{self, Change, Changes, ServeError, SetupError},
    takeover::Address,
    text,
    threads::Threads,
    tls::{Identity, ServerTlsSettings, ServerTlsSetup, Stamps},
};

const EXAMPLES: &str = "\
Examples:
  tandem origin --listen [::]:443 --root www --cert cert.pem --key key.pem
      A file server; a folder is served as its index.html.
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
        let setup = self.settings.load()?;
        let read = Stamps::of(&setup.tls.files());
        let identity = setup.tls.identity()?;
        let config = setup.to_node(&identity)?;
        identity.report();
        let files = Files::below(&setup.root);
        let files = files.map_err(|error| {
            SetupError::from(FileError::Unreadable { file: setup.root.clone(), error })
        })?;
        if let Some(checked) = self.settings.checked(&setup, &config.limits) {
            return text::print(checked.trim_end());
        }
        descriptors::raise();
        let paths = setup.paths()?.map(Mutex::new);
        let admin =
            Admin::new(setup.admin.as_ref(), Role::Origin, setup.threads.0, &config.limits, None);
        let tick = (paths.is_some() || admin.is_some()).then_some(admin::INTERVAL);
        let (nodes, address) = setup.nodes(&config, &files, tick)?;
        // A process that cannot take over has written nothing.
        identity.announce()?;
        let changes =
            OriginChanges { setup: &setup, identity: &identity, renewals: RefCell::default() };
        let look = |index, origin: &mut tandem_node::Origin, driver: &DriverStats| {
            if let Some(admin) = &admin {
                admin.note(index, origin.status(BUSIEST), driver);
            }
            if let Some(paths) = &paths {
                let mut paths = paths.lock().unwrap_or_else(PoisonError::into_inner);
                paths.tell(index, &origin.take_path_reports());
                if let Some(admin) = &admin {
                    admin.note_paths(paths.totals());
                }
            }
        };
        Ok(server::serve(nodes, address, (&changes, read), look, admin.as_ref())?)
    }
}

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct OriginSettings {
    /// Address and UDP port to listen on; port 0 stands for any free port
    #[arg(long, value_name = "ADDR", env = "TANDEM_LISTEN")]
    listen: Option<ListenAddr>,

    /// Folder whose files are served
    #[arg(long, value_name = "DIR", env = "TANDEM_ROOT")]
    root: Option<PathBuf>,

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
    /// ID for a PEP without a key, which is heard but not followed (docs/pep.md)
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
    type Setup = OriginSetup;
    const SUBCOMMAND: &'static str = "origin";
    const REQUIRED: &'static [&'static str] = &["listen", "root"];
}

/// The settings that the origin runs with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct OriginSetup {
    listen: ListenAddr,
    root: PathBuf,
    takes_uploads: bool,
    memory: Within<MemoryBound>,
    threads: Within<Threads>,
    #[serde(flatten)]
    fleet: FleetSetup,
    #[serde(flatten)]
    tls: ServerTlsSetup,
    #[serde(flatten)]
    transport: TransportSetup,
    #[serde(skip_serializing_if = "Option::is_none")]
    peps: Option<PathBuf>,
    json: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin: Option<AdminAddr>,
}

impl TryFrom<OriginSettings> for OriginSetup {
    type Error = ConfigError;

    fn try_from(settings: OriginSettings) -> Result<Self, ConfigError> {
        let transport = TransportSetup::of_origin(settings.transport, settings.tecc)?;
        if transport.follows_peps() && settings.peps.is_none() {
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
        Ok(Self {
            listen: settings.listen.ok_or(missing("listen", "ADDR", "TANDEM_LISTEN"))?,
            root: settings.root.ok_or(missing("root", "DIR", "TANDEM_ROOT"))?,
            takes_uploads: settings.takes_uploads.unwrap_or(false),
            memory: MemoryBound::or_default(settings.memory),
            threads: Threads::or_default(settings.threads),
            fleet: settings.fleet.try_into()?,
            tls: settings.tls.try_into()?,
            transport,
            peps: settings.peps,
            json: has_json,
            admin: settings.admin,
        })
    }
}

impl OriginSetup {
    /// An origin for each thread. They listen at the same address.
    fn nodes(
        &self,
        config: &OriginConfig,
        files: &Files,
        tick: Option<Duration>,
    ) -> Result<(Vec<(tandem_node::Origin, DriverOptions)>, Address), ServeError> {
        let grace = server::grace(&config.limits);
        let memory_in_use = Some(memory::gauge());
        memory::warn_of_group(self.memory.0);
        let limits = config.limits.clone().divided_by(self.threads.0);
        let mut nodes = Vec::new();
        let fleet = config.transport.fleet.as_ref();
        let address = Address::open(self.listen.0, self.threads, fleet)?;
        for listener in address.listeners() {
            let (steering, other_process) = (listener.steering(), address.other_process());
            let reset_secret = address.reset_secret(config.transport.reset_secret.as_ref());
            let config = OriginConfig {
                transport: Transport {
                    steering,
                    other_process,
                    reset_secret,
                    ..config.transport.clone()
                },
                limits: limits.clone(),
                ..config.clone()
            };
            let node = tandem_node::Origin::new(config)?;
            let (listener, files) = (Some(listener), Some(files.clone()));
            let options = DriverOptions {
                listener,
                files,
                grace,
                memory_in_use,
                tick,
                ..DriverOptions::default()
            };
            nodes.push((node, options));
        }
        Ok((nodes, address))
    }

    /// What tells of the paths to clients. `None`: there are no PEPs.
    fn paths(&self) -> Result<Option<Paths>, ServeError> {
        if self.peps.is_none() {
            return Ok(None);
        }
        Paths::new(self.json, self.transport.qlog_dir()).map(Some)
    }

    fn to_node(&self, identity: &Identity) -> Result<OriginConfig, SetupError> {
        if !self.root.is_dir() {
            return Err(FileError::NoFolder { what: "root", path: self.root.clone() }.into());
        }
        Ok(OriginConfig {
            transport: Transport {
                reset_secret: identity.reset_secret(),
                fleet: self.fleet.to_node()?,
                returning: Some(Returning::new()),
                peps: self.peps.as_deref().map(peps::read).transpose()?,
                ..self.transport.to_node("origin", WorkFor::Origin)
            },
            takes_uploads: self.takes_uploads,
            limits: Limits { memory: self.memory.0.get(), ..Limits::default() },
            ..OriginConfig::new(self.listen.0, self.tls.server_config(identity, None)?)
        })
    }
}

/// How an origin changes while it runs.
struct OriginChanges<'a> {
    setup: &'a OriginSetup,
    identity: &'a Identity,
    renewals: RefCell<Option<Renewals>>,
}

impl Changes<tandem_node::Origin> for OriginChanges<'_> {
    fn reload(&self) -> Result<(Change<tandem_node::Origin>, String), SetupError> {
        Ok((self.renew()?, self.setup.tls.reloaded(&[])))
    }

    fn certificate_files(&self) -> Vec<PathBuf> {
        self.setup.tls.files()
    }

    fn renew(&self) -> Result<Change<tandem_node::Origin>, SetupError> {
        let OriginSetup { tls, .. } = self.setup;
        let new = tls.reread(self.identity)?;
        let tls = ServerTls::new(tls.server_config(&new, None)?)?;
        new.report();
        Ok(Arc::new(move |origin: &mut tandem_node::Origin| origin.set_tls(&tls)))
    }

    fn begin(&self, _: Option<UnixStream>) -> Result<(), ServeError> {
        self.renewals.replace(self.setup.tls.renewals());
        Ok(())
    }

    fn hand_over(&self, _: UnixStream, busy: BusyNodes) -> Change<tandem_node::Origin> {
        self.renewals.take();
        Arc::new(move |origin: &mut tandem_node::Origin| {
            origin.hand_over(clock::now(), busy.clone());
        })
    }

    fn take_back(&self) -> Change<tandem_node::Origin> {
        self.renewals.replace(self.setup.tls.renewals());
        Arc::new(tandem_node::Origin::take_back)
    }
}
