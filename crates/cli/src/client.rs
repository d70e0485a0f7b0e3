//! `tandem client`.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tandem_net::{Application, DriverOptions, driver};
use tandem_node::{
    ClientConfig,
    client::{ForwardConfig, Task},
    error::ClientError,
    node::Event,
};
use tandem_units::HumanDuration;
use tracing::{info, trace, warn};

use crate::{
    config::{
        ConfigArgs, Forward, GroupStreams, RepairSettings, RepairSetup, Settings,
        TransportSettings, TransportSetup, Via, WorkFor, or_list, to_toml,
    },
    error::{CliError, ConfigError},
    hops,
    outcome::Mode,
    run::{self, Signals},
    text,
    tls::{ClientTlsSettings, ClientTlsSetup},
};

/// Carry local UDP traffic through one or more proxies.
#[derive(Debug, clap::Args)]
pub(crate) struct Client {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    settings: ClientSettings,
}

impl Client {
    /// Runs until a signal comes or the tunnel fails.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let setup = ClientSetup::try_from(self.config.load(self.settings)?)?;
        let config = setup.to_node()?;
        if self.config.is_check_only() {
            return text::print(to_toml(&setup).trim_end());
        }
        setup.warn();
        let node = tandem_node::Client::new(config).map_err(ConfigError::from)?;
        let mut tunnel = Tunnel(Ok(()));
        let finished = run::runtime()?.block_on(async {
            let mut signals = Signals::new()?;
            let options = DriverOptions::default();
            Ok::<_, CliError>(driver::run(node, &mut tunnel, options, signals.any()).await)
        })?;
        match tunnel.0 {
            Ok(()) | Err(ClientError::Interrupted) => run::after_grace(finished).map(drop),
            Err(error) => Err(CliError::Client { error }),
        }
    }
}

/// How the tunnel ended.
struct Tunnel(Result<(), ClientError>);

impl<N> Application<N> for Tunnel {
    fn event(&mut self, event: Event) {
        match event {
            Event::Listening(address) => run::say_listening(address),
            Event::HopUp { hop, authority, setup } => info!(hop, authority, ?setup, "tunnel up"),
            Event::HopLost { hop, error } => warn!(hop, %error, "tunnel broken, building it anew"),
            Event::Closed(result) => self.0 = result,
            Event::TunnelInfo { local, info } => trace!(%local, ?info, "the tunnel told"),
            Event::ResponseStarted { .. } | Event::Fetched(_) => {}
        }
    }
}

/// Flags, and keys of the file.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct ClientSettings {
    /// Proxy as https://HOST:PORT or URI template; repeat for a chain, nearest proxy first
    #[arg(long, value_name = "URL", env = "TANDEM_VIA", value_delimiter = ' ')]
    via: Vec<Via>,

    /// Listen at a local UDP address and carry what comes to HOST:PORT; with ;u=0 (first) to ;u=7
    /// (last) it goes before or after that of other listeners, and with ;w=1 to ;w=64 a program gets
    /// so many times the share of one with ;w=1; repeatable
    #[arg(long, value_name = "LISTEN=TARGET", env = "TANDEM_UDP", value_delimiter = ' ')]
    udp: Vec<Forward>,

    /// Show the first token of this file to the proxies; or repeat, one file for each --via
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE", value_delimiter = ' ')]
    token_file: Vec<PathBuf>,

    /// Give up on a server that is silent for so long [default: 10s at first, then 30s]
    #[arg(long, value_name = "TIME", env = "TANDEM_TIMEOUT")]
    timeout: Option<HumanDuration>,

    /// How payloads travel through the tunnel: mdt, mst, msgt, rmdt, or tecc, which is for programs
    /// that embed a client: this one takes the proxy's reports and passes them on to nobody [default:
    /// mdt]
    #[arg(long, env = "TANDEM_MODE", value_parser = tunnel_mode)]
    mode: Option<Mode>,

    /// Request streams of each flow in mode msgt, 2 to 16 [default: 8]
    #[arg(long, value_name = "N", env = "TANDEM_GROUP_STREAMS")]
    group_streams: Option<GroupStreams>,

    #[command(flatten)]
    repair: RepairSettings,

    #[command(flatten)]
    tls: ClientTlsSettings,

    #[command(flatten)]
    transport: TransportSettings,
}

/// The modes that are a tunnel's.
const TUNNEL_MODES: &str = "mdt, mst, msgt, rmdt, tecc, tecc-paper";

/// Parses a mode that is a tunnel's.
fn tunnel_mode(text: &str) -> Result<Mode, String> {
    Mode::from_str(text, false)
        .ok()
        .filter(|mode| mode.is_tunnel())
        .ok_or_else(|| format!("{text:?} is no mode of a tunnel; allowed: {TUNNEL_MODES}"))
}

impl Settings for ClientSettings {
    fn or(self, lower: Self) -> Self {
        Self {
            via: or_list(self.via, lower.via),
            udp: or_list(self.udp, lower.udp),
            token_file: or_list(self.token_file, lower.token_file),
            timeout: self.timeout.or(lower.timeout),
            mode: self.mode.or(lower.mode),
            group_streams: self.group_streams.or(lower.group_streams),
            repair: self.repair.or(lower.repair),
            tls: self.tls.or(lower.tls),
            transport: self.transport.or(lower.transport),
        }
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let own = self.token_file.iter_mut();
        own.chain(self.tls.paths_mut()).chain(self.transport.paths_mut()).collect()
    }
}

/// What the client runs with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct ClientSetup {
    via: Vec<Via>,
    udp: Vec<Forward>,
    token_file: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<HumanDuration>,
    mode: Mode,
    #[serde(skip_serializing_if = "Option::is_none")]
    group_streams: Option<GroupStreams>,
    repair: RepairSetup,
    tls: ClientTlsSetup,
    transport: TransportSetup,
}

impl TryFrom<ClientSettings> for ClientSetup {
    type Error = ConfigError;

    fn try_from(settings: ClientSettings) -> Result<Self, ConfigError> {
        let missing = |key, value, variable| ConfigError::Missing { key, value, variable };
        if settings.via.is_empty() {
            return Err(missing("via", "URL", "TANDEM_VIA"));
        }
        if settings.udp.is_empty() {
            return Err(missing("udp", "LISTEN=TARGET", "TANDEM_UDP"));
        }
        let mode = settings.mode.unwrap_or(Mode::Mdt);
        if !mode.is_tunnel() {
            let reason =
                "local programs are carried through a tunnel: mdt, mst, msgt, rmdt or tecc";
            return Err(ConfigError::Conflict { first: "mode direct", second: "via", reason });
        }
        Ok(Self {
            via: settings.via,
            udp: settings.udp,
            token_file: settings.token_file,
            timeout: settings.timeout,
            mode,
            group_streams: settings.group_streams,
            repair: RepairSetup::new(settings.repair, mode)?,
            tls: settings.tls.try_into()?,
            transport: TransportSetup::new(settings.transport, WorkFor::Tunnel)?,
        })
    }
}

impl ClientSetup {
    fn to_node(&self) -> Result<ClientConfig, ConfigError> {
        let forward = |forward: &Forward| ForwardConfig {
            listen: forward.listen.0,
            target_host: forward.target_host.clone(),
            target_port: forward.target_port,
            urgency: forward.urgency,
            weight: forward.weight,
        };
        let mode = self.mode.tunnel(self.repair.to_node(), self.group_streams).unwrap_or_default();
        let tls = self.tls.read()?;
        Ok(ClientConfig {
            hops: hops::hops(&self.via, &tls, &self.transport, &self.token_file, mode)?,
            task: Task::Forward(self.udp.iter().map(forward).collect()),
            limits: hops::limits(self.timeout),
            seed: None,
        })
    }

    fn warn(&self) {
        self.tls.warn();
        for forward in self.udp.iter().filter(|forward| !forward.listen.is_loopback()) {
            let listen = forward.listen;
            text::say(format_args!(
                "warning: {listen} is not loopback: others can send through this tunnel"
            ));
        }
    }
}
