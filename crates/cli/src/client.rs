//! `tandem client`.

use std::{path::PathBuf, time::Duration};

use clap::ArgMatches;
use serde::Serialize;
use tandem_net::{Application, DriverOptions, driver};
use tandem_node::{
    ClientConfig,
    client::{FlowConfig, ForwardConfig, Task},
    error::ClientError,
    mode::{Mode, Oversize},
    node::Event,
};
use tandem_units::HumanDuration;
use tandem_wire::FeedbackField;
use tracing::{trace, warn};

use crate::{
    advice,
    carried::Carried,
    config::{
        Forward, Layered, RepairSettings, RepairSetup, Settings, TransportSettings, TransportSetup,
        Via, Within, WorkFor,
    },
    error::{CliError, ConfigError},
    hops::{self, GroupStreams, Retries},
    mode,
    run::{self, Signals},
    text,
    tls::{ClientTlsSettings, ClientTlsSetup},
};

const EXAMPLES: &str = "\
Examples:
  tandem client --via https://proxy.example --token-file token --udp 127.0.0.1:5353=192.0.2.53:53
      Programs that send DNS to 127.0.0.1:5353 reach the server behind the proxy.
  tandem client --config client.toml
      The settings come from a file; `tandem generate config client` prints an example of one.";

/// Carry UDP packets of local programs through one or more proxies.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Client {
    #[command(flatten)]
    settings: Layered<ClientSettings>,
}

impl Client {
    /// Runs until a signal ends it or the tunnel fails.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let setup = self.settings.load()?;
        let config = setup.to_node()?;
        if let Some(checked) = self.settings.checked(&setup, &config.limits) {
            return text::print(checked.trim_end());
        }
        setup.warn();
        let mut node = tandem_node::Client::new(config).map_err(ConfigError::from)?;
        node.check_targets();
        if setup.require_mode {
            node.require_mode();
        }
        let mut tunnel = Tunnel { end: Ok(()), retries: Retries::default() };
        let finished = run::runtime()?.block_on(async {
            let mut signals = Signals::new()?;
            let options = DriverOptions::default();
            Ok::<_, CliError>(driver::run(node, &mut tunnel, options, signals.any()).await)
        })?;
        if let Err(error) = tunnel.end
            && error != ClientError::Interrupted
        {
            return Err(CliError::Client { error });
        }
        let mut finished = run::after_grace(finished)?;
        let carried = Carried::from(&finished.node.stats());
        if setup.json {
            return text::print(serde_json::to_string(&carried).expect("numbers are JSON"));
        }
        text::say(carried);
        Ok(())
    }
}

/// Tells the user what becomes of the tunnel.
struct Tunnel {
    end: Result<(), ClientError>,
    retries: Retries,
}

impl<N> Application<N> for Tunnel {
    fn event(&mut self, event: Event) {
        match event {
            Event::Listening(address) => run::say_listening(address),
            Event::TooLarge { local, len, fits } => warn!(
                %local, bytes = len, fits,
                "a packet was dropped because it does not fit the tunnel; further ones are only \
                 counted. Let the program send smaller packets, or let large ones go in capsules \
                 (--oversize capsule)"
            ),
            Event::HopUp { hop, authority, setup, agreement } => {
                self.retries = Retries::default();
                hops::say_up(hop, &authority, setup, agreement);
            }
            Event::HopLost { error, retry_in, .. } => {
                if self.retries.is_news(&error) {
                    warn!("{}", hops::trying_again(&error, retry_in));
                }
            }
            Event::ModeChanged { authority, agreement, .. } => {
                warn!(authority, "the tunnel now runs in mode {agreement}");
            }
            Event::FlowFailed { listen, error } => {
                warn!(%listen, "{error}{}", advice::try_this(&error));
            }
            Event::Closed(result) => self.end = result,
            Event::TunnelInfo { local, info } => trace!(%local, ?info, "report on the tunnel"),
            Event::ResponseStarted { .. } | Event::Fetched(_) => {}
        }
    }
}

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ClientSettings {
    /// Proxy, as https://HOST:PORT or as a URI template; for a chain, repeat it or give several with
    /// spaces between, nearest proxy first
    #[arg(long, value_name = "URL", env = "TANDEM_VIA", value_delimiter = ' ')]
    via: Vec<Via>,

    #[arg(
        long, value_name = "LISTEN=TARGET", env = "TANDEM_UDP", value_delimiter = ',',
        help = "Listen on a local UDP address and send the packets that arrive there through the tunnel \
                to HOST:PORT; repeatable, or several with commas between",
        long_help = format!(
            "Listen on a local UDP address and send the packets that arrive there through the tunnel to \
             HOST:PORT; repeatable, or several with commas between. At its end, ;u=0 (first) to ;u=7 \
             (last) sets the urgency among all listeners, and ;w={} to ;w={} the share among listeners of \
             the same urgency: one with ;w=2 has twice that of one with ;w=1",
            FeedbackField::WEIGHT.start(),
            FeedbackField::WEIGHT.end(),
        )
    )]
    udp: Vec<Forward>,

    /// File whose first token is sent to every proxy; repeat it to name one file for each --via
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE", value_delimiter = ',')]
    token_file: Vec<PathBuf>,

    #[arg(long, value_name = "TIME", env = "TANDEM_TIMEOUT", help = hops::timeout_help())]
    timeout: Option<HumanDuration>,

    #[arg(
        long, value_name = "TIME", env = "TANDEM_RETRY",
        help = hops::retry_help("without end, but files have to exist")
    )]
    retry: Option<HumanDuration>,

    /// How payloads travel through the tunnel [default: mdt]
    ///
    /// Mode tecc is for programs that embed a client and take the reports from it: this program does
    /// not use them.
    #[arg(long, env = "TANDEM_MODE", value_parser = mode::parser(mode::is_of_tunnels))]
    mode: Option<Mode>,

    /// End with an error if a proxy grants another mode
    #[arg(long, value_name = "BOOL", env = "TANDEM_REQUIRE_MODE", help_heading = "Tunnel",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    require_mode: Option<bool>,

    #[arg(
        long, value_name = "N", env = "TANDEM_GROUP_STREAMS", help_heading = "Tunnel",
        help = hops::group_streams_help()
    )]
    group_streams: Option<Within<GroupStreams>>,

    /// What becomes of packets that fit no datagram of the tunnel [default: auto]
    ///
    /// auto: they go in capsules if the proxy agrees, as Tandem's do; those of QUIC connections are
    /// dropped, because QUIC finds out by probing what fits. capsule: they go in capsules to any proxy.
    /// drop: they are dropped. The program warns when it drops some.
    #[arg(
        long,
        env = "TANDEM_OVERSIZE",
        value_name = "auto|capsule|drop",
        help_heading = "Tunnel"
    )]
    oversize: Option<Oversize>,

    /// When the client ends, print as one JSON object what it has carried and dropped
    #[arg(long, value_name = "BOOL", env = "TANDEM_JSON",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    json: Option<bool>,

    #[command(flatten, next_help_heading = "Repair")]
    repair: RepairSettings,

    #[command(flatten, next_help_heading = "TLS")]
    tls: ClientTlsSettings,

    #[command(flatten, next_help_heading = "Congestion control")]
    transport: TransportSettings,
}

impl Settings for ClientSettings {
    type Setup = ClientSetup;
    const SUBCOMMAND: &'static str = "client";
    const REQUIRED: &'static [&'static str] = &["via", "udp"];

    fn yield_to(&mut self, given: &ArgMatches) {
        self.tls.yield_to(given);
    }
}

/// The settings that the client runs with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ClientSetup {
    via: Vec<Via>,
    udp: Vec<Forward>,
    token_file: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<HumanDuration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<HumanDuration>,
    mode: Mode,
    require_mode: bool,
    group_streams: Within<GroupStreams>,
    oversize: Oversize,
    json: bool,
    #[serde(flatten)]
    repair: RepairSetup,
    #[serde(flatten)]
    tls: ClientTlsSetup,
    #[serde(flatten)]
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
        let mode = settings.mode.unwrap_or_default();
        Ok(Self {
            via: settings.via,
            udp: settings.udp,
            token_file: settings.token_file,
            timeout: settings.timeout,
            retry: settings.retry,
            mode,
            require_mode: settings.require_mode.unwrap_or_default(),
            group_streams: hops::group_streams(settings.group_streams),
            oversize: settings.oversize.unwrap_or_default(),
            json: settings.json.unwrap_or_default(),
            repair: RepairSetup::new(settings.repair, mode),
            tls: settings.tls.try_into()?,
            transport: TransportSetup::new(settings.transport, WorkFor::Tunnel)?,
        })
    }
}

impl ClientSetup {
    fn to_node(&self) -> Result<ClientConfig, ConfigError> {
        let forward = |forward: &Forward| ForwardConfig {
            listen: forward.listen.0,
            flow: FlowConfig {
                urgency: forward.urgency,
                weight: forward.weight,
                oversize: self.oversize,
                ..FlowConfig::new(&*forward.target_host, forward.target_port)
            },
        };
        let mode = self.mode.tunnel(self.repair.to_node(), self.group_streams.0);
        let mode = mode.unwrap_or_default();
        let tls = hops::read_when_written(self.retry, || self.tls.read())?;
        let hops = || hops::hops(&self.via, &tls, &self.transport, &self.token_file, mode);
        // A client is often started with the machine, and its proxy later.
        let retry = self.retry.unwrap_or(HumanDuration(Duration::MAX));
        Ok(ClientConfig {
            hops: hops::read_when_written(self.retry, hops)?,
            task: Task::Forward(self.udp.iter().map(forward).collect()),
            limits: hops::limits(self.timeout, Some(retry)),
            seed: None,
        })
    }

    fn warn(&self) {
        self.tls.warn();
        for forward in self.udp.iter().filter(|forward| !forward.listen.is_loopback()) {
            let listen = forward.listen;
            text::say(format_args!(
                "warning: {listen} is not a loopback address: other hosts can send through this tunnel"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::from_text;

    #[test]
    fn a_file_has_the_modes_of_tunnels() {
        let error = from_text::<ClientSettings>("mode = \"mft\"").unwrap_err().to_string();
        let allowed = "mdt, mst, msgt, rmdt, tecc, tecc-paper";
        assert_eq!(error, format!("test.toml:1: mode: \"mft\": allowed: {allowed}"));
        let text = "mode = \"tecc-paper\"\nvia = \"https://p\"\nudp = \"127.0.0.1:0=a:1\"";
        assert_eq!(from_text::<ClientSettings>(text).unwrap().mode, Mode::TeccPaper);
    }
}
