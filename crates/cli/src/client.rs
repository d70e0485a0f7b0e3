//! `tandem client`.

use std::{path::PathBuf, time::Duration};

use clap::ArgMatches;
use serde::Serialize;
use tandem_node::{
    ClientConfig,
    client::{FlowConfig, Task},
    limits::Limits,
    mode::{Mode, Oversize},
};
use tandem_server::{
    admin::AdminAddr,
    transport::{TransportSetup, WorkFor},
};
use tandem_units::HumanDuration;

use crate::{
    carried::Carried,
    carrier,
    config::{
        HopVia, Layered, RepairSettings, RepairSetup, Settings, TransportSettings, Within,
        transport_for,
    },
    error::{CliError, ConfigError},
    hops::{self, GroupStreams, Rights},
    mode,
    programs::{ProgramSettings, ProgramSetup},
    rules::{RuleSettings, RuleSetup},
    text,
    tls::{ClientTlsSettings, ClientTlsSetup},
};

const EXAMPLES: &str = "\
Examples:
  tandem client --via https://proxy.example --token-file token --proxy 127.0.0.1:1080
      Every program that knows proxies can use the tunnel, by ALL_PROXY=socks5h://127.0.0.1:1080.
  tandem client --via https://proxy.example --token-file token --tcp 127.0.0.1:2222=host.example:22
      `ssh -p 2222 127.0.0.1` reaches the SSH server of host.example.
  tandem client --via https://proxy.example --token-file token --udp 127.0.0.1:5353=192.0.2.53:53
      Programs that send DNS to 127.0.0.1:5353 reach the server behind the proxy.
  tandem client --config client.toml
      The settings come from a file; `tandem generate config client` prints an example of one.";

/// Carry UDP packets and TCP connections of local programs through one or more proxies.
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
        let services = hops::read_when_written(setup.retry, || setup.programs.tcp())?;
        let rules = hops::read_when_written(setup.retry, || setup.rules.read(&setup.via))?;
        if let Some(checked) = self.settings.checked(&setup, &config.limits) {
            let checked = checked.trim_end();
            return text::print(format_args!(
                "{checked}\n# No packet was sent; `tandem ping` tests the connection."
            ));
        }
        setup.warn();
        let mut node = carrier::node(config, services)?;
        node.check_targets();
        if let Some(rules) = rules {
            node.set_rules(rules);
        }
        if setup.require_mode {
            node.require_mode();
        }
        if setup.trace_requests {
            node.trace_requests();
        }
        let stats = carrier::carry(
            node,
            (setup.programs.has_stdio(), setup.transport.pause),
            setup.admin.as_ref(),
        )?;
        let carried = Carried::from(&stats);
        if setup.json {
            return text::print(serde_json::to_string(&carried).expect("numbers are JSON"));
        }
        if !setup.programs.has_stdio() {
            text::say(carried);
        }
        Ok(())
    }

    /// Whether the client stands in for a connection, so that it says nothing as long as all goes well.
    pub(crate) fn is_quiet(&self) -> bool {
        self.settings.has("stdio")
    }
}

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ClientSettings {
    /// Proxy, as https://HOST:PORT or as a URI template; for a chain, repeat it or give several with
    /// spaces between, nearest proxy first
    ///
    /// Several with commas between are alternatives for one hop: the client uses the nearest one that works,
    /// and another one if it drains, dies or is silent. The HTTPS records of the first proxy's name have the
    /// same effect.
    #[arg(long, value_name = "URL", env = "TANDEM_VIA", value_delimiter = ' ')]
    pub(crate) via: Vec<HopVia>,

    #[command(flatten)]
    programs: ProgramSettings,

    #[command(flatten)]
    pub(crate) rules: RuleSettings,

    /// File whose first token is sent to every proxy; repeat it to name one file for each --via
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE", value_delimiter = ',')]
    token_file: Vec<PathBuf>,

    /// File with the key with which the client shows every proxy who it is (RFC 9729; `tandem generate concealed-key`
    /// makes one)
    #[arg(long, value_name = "FILE", env = "TANDEM_CONCEALED_KEY", help_heading = "TLS")]
    concealed_key: Option<PathBuf>,

    #[arg(long, value_name = "TIME", env = "TANDEM_TIMEOUT", help = hops::timeout_help(" (10s with --stdio)"))]
    timeout: Option<HumanDuration>,

    #[arg(
        long, value_name = "TIME", env = "TANDEM_RETRY",
        help = hops::retry_help("without end, and not at all with --stdio; files have to exist")
    )]
    retry: Option<HumanDuration>,

    /// How payloads travel through the tunnel [default: auto]
    ///
    /// Mode tecc is for programs that embed a client and take the reports from it: this program does
    /// not use them.
    #[arg(long, env = "TANDEM_MODE", value_parser = mode::parser(mode::is_of_tunnels))]
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

    /// Send a random identifier with each request (W3C Trace Context), and log it
    ///
    /// Servers log it too. Each request has an identifier of its own, so that only this program knows which of them
    /// belong together.
    #[arg(long, value_name = "BOOL", env = "TANDEM_TRACE_REQUESTS", help_heading = "Tests and tracing",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    trace_requests: Option<bool>,

    /// When the client ends, print as one JSON object what it has carried and dropped
    #[arg(long, value_name = "BOOL", env = "TANDEM_JSON",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    json: Option<bool>,

    /// Show what happens in this client, for `tandem top`, /metrics and /readyz, at this loopback address or
    /// Unix socket; everybody who can reach it sees the targets of all programs
    #[arg(long, value_name = "ADDR|unix:PATH", env = "TANDEM_ADMIN", help_heading = "Monitoring")]
    admin: Option<AdminAddr>,

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
    const REQUIRED: &'static [&'static str] = &["via"];
    const ONE_OF: &'static [&'static str] = &ProgramSettings::ONE_OF;

    fn yield_to(&mut self, given: &ArgMatches) {
        self.tls.yield_to(given);
    }
}

/// The settings that the client runs with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ClientSetup {
    via: Vec<HopVia>,
    #[serde(flatten)]
    programs: ProgramSetup,
    #[serde(flatten)]
    rules: RuleSetup,
    token_file: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concealed_key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<HumanDuration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<HumanDuration>,
    mode: Mode,
    #[serde(skip_serializing_if = "Option::is_none")]
    beyond: Option<Mode>,
    require_mode: bool,
    group_streams: Within<GroupStreams>,
    oversize: Oversize,
    trace_requests: bool,
    json: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin: Option<AdminAddr>,
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
        if settings.via.is_empty() {
            let (key, value, variable) = ("via", "URL", "TANDEM_VIA");
            return Err(ConfigError::Missing { key, value, variable });
        }
        let programs = ProgramSetup::try_from(settings.programs)?;
        let rules = RuleSetup::from(settings.rules);
        if !rules.is_empty() && !programs.has_proxy() {
            let reason = "rules are for what programs ask the proxy that listens there for";
            return Err(ConfigError::Incomplete { first: "rule", second: "proxy", reason });
        }
        let json = settings.json.unwrap_or_default();
        if json && programs.has_stdio() {
            let reason = "standard output carries the data of the connection";
            return Err(ConfigError::Conflict { first: "json", second: "stdio", reason });
        }
        let mode = settings.mode.unwrap_or_default();
        let require_mode = settings.require_mode.unwrap_or_default();
        let beyond = hops::beyond(settings.beyond, &settings.via, (mode, require_mode))?;
        let beyond = (settings.via.len() > 1).then_some(beyond);
        Ok(Self {
            via: settings.via,
            programs,
            rules,
            token_file: settings.token_file,
            concealed_key: settings.concealed_key,
            timeout: settings.timeout,
            retry: settings.retry,
            mode,
            beyond,
            require_mode,
            group_streams: hops::group_streams(settings.group_streams),
            oversize: settings.oversize.unwrap_or_default(),
            trace_requests: settings.trace_requests.unwrap_or_default(),
            json,
            admin: settings.admin,
            repair: RepairSetup::new(settings.repair, mode),
            tls: settings.tls.try_into()?,
            transport: transport_for(settings.transport, WorkFor::Tunnel)?,
        })
    }
}

impl ClientSetup {
    fn to_node(&self) -> Result<ClientConfig, ConfigError> {
        let modes = (self.mode, self.beyond.unwrap_or(self.mode));
        let modes = hops::Modes::new(modes, self.repair, self.group_streams);
        let tls = hops::read_when_written(self.retry, || self.tls.read())?;
        let concealed_key = self.concealed_key.as_deref();
        let rights = Rights { token_files: &self.token_file, concealed_key };
        let hops = || hops::hops(&self.via, &tls, &self.transport, rights, modes);
        // A client is often started with the machine, and its proxy later.
        let usual = if self.programs.has_stdio() { Duration::ZERO } else { Duration::MAX };
        let mut limits = hops::limits(self.timeout, self.retry, Some(usual));
        if self.programs.has_stdio() && self.timeout.is_none() {
            limits.setup_timeout = Limits::STDIO_SETUP;
        }
        let oversize = self.oversize;
        Ok(ClientConfig {
            hops: hops::read_when_written(self.retry, hops)?,
            task: Task::Forward(self.programs.udp(|flow| FlowConfig { oversize, ..flow })),
            limits,
            seed: None,
        })
    }

    fn warn(&self) {
        self.tls.warn();
        self.programs.warn();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::from_text;

    #[test]
    fn a_file_has_the_modes_of_tunnels() {
        let error = from_text::<ClientSettings>("mode = \"mft\"").unwrap_err().to_string();
        let allowed = "mdt, forward, uack, mst, msgt, rmdt, tecc, tecc-paper, auto";
        assert_eq!(error, format!("test.toml:1: mode: \"mft\": allowed: {allowed}"));
        let text = "mode = \"tecc-paper\"\nvia = \"https://p\"\nudp = \"127.0.0.1:0=a:1\"";
        assert_eq!(from_text::<ClientSettings>(text).unwrap().mode, Mode::TeccPaper);
    }
}
