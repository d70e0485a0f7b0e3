//! `tandem proxy`.

use std::path::PathBuf;

use tandem_files::setting::{Setting, Within};
use tandem_node::{
    limits::Limits,
    mode::Oversize,
    proxy::{AbTest, LogFlows, TcpPorts},
};
use tandem_server::{
    Setup,
    admin::AdminAddr,
    capacity::{MemoryBound, Threads},
    role::{FeedbackInterval, ProxyRole},
    transport::WorkFor,
};
use tandem_units::HumanDuration;

use super::{
    Served, fleet::FleetSettings, pep::ProxyPepSettings, serve, site::SiteSettings,
    tls::ServerTlsSettings, users::UsersSettings,
};
use crate::{
    config::{Layered, ListenAddr, Prefix, Settings, TransportSettings, Via, transport_for},
    error::{CliError, ConfigError},
};

const EXAMPLES: &str = "\
Examples:
  tandem proxy --listen [::]:443 --cert cert.pem --key key.pem --token-file tokens
      A proxy to public addresses, for clients with a token.
  tandem proxy --config proxy.toml --site www --secret-path path
      A web site to everybody, and a proxy to users with a token who know the path.
  tandem proxy --listen 127.0.0.1:8443 --allow-target 127.0.0.0/8,::1
      A proxy for tests on this machine; its clients need --insecure.";

/// Run a proxy for UDP (CONNECT-UDP, RFC 9298) and TCP (CONNECT).
///
/// Without --allow-target the proxy reaches only public addresses. To listen on an address that is not
/// loopback, it needs --token-file, --client-ca or --allow-anyone.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Proxy {
    #[command(flatten)]
    settings: Layered<ProxySettings>,
}

impl Proxy {
    /// Runs until a signal ends it.
    pub(crate) fn run(self) -> Result<(), CliError> {
        serve(&self.settings)
    }
}

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ProxySettings {
    /// Address and UDP port to listen on; port 0 stands for any free port
    #[arg(long, value_name = "ADDR", env = "TANDEM_LISTEN")]
    listen: Option<ListenAddr>,

    /// Also reach targets in this address range; repeatable, or several with commas between [default: public addresses
    /// only]
    #[arg(long, value_name = "CIDR", env = "TANDEM_ALLOW_TARGET", value_delimiter = ',')]
    allow_target: Vec<Prefix>,

    /// Ports to which the proxy opens TCP connections: all, none, or a list such as 443,8000-8999
    /// [default: all but 25, to which mail servers listen]
    #[arg(long, value_name = "PORTS", env = "TANDEM_TCP_PORTS")]
    tcp_ports: Option<TcpPorts>,

    /// Serve clients whose certificate was issued by a CA in this PEM file
    #[arg(long, value_name = "FILE", env = "TANDEM_CLIENT_CA", help_heading = "TLS")]
    client_ca: Option<PathBuf>,

    /// Serve every client that can reach the proxy
    #[arg(long, value_name = "BOOL", env = "TANDEM_ALLOW_ANYONE", help_heading = "Users",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_anyone: Option<bool>,

    /// Show the addresses of clients in the log, to trace abuse
    #[arg(long, value_name = "BOOL", env = "TANDEM_LOG_CLIENTS", help_heading = "Monitoring",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    log_clients: Option<bool>,

    /// What the log says of each flow: none (nothing), users (whose it is, when it opens and closes, and what it
    /// carries), targets (also where to) [default: users]
    ///
    /// With targets, the log is a list of all that the users visit. Tell them, and keep it no longer than you need it.
    #[arg(
        long,
        value_name = "none|users|targets",
        env = "TANDEM_LOG_FLOWS",
        help_heading = "Monitoring"
    )]
    log_flows: Option<LogFlows>,

    /// Compare modes: give each user who asks for mode tecc one of these, in these parts [default: all get tecc]
    ///
    /// rmdt is tecc without reports to the origin, mdt has no repair either. The same user always gets the same mode.
    /// How long their transfers take is in the metrics and on the page of --admin, and `tandem ab` compares them.
    #[arg(long, value_name = "MODE=PART,...", env = "TANDEM_AB_TEST", help_heading = "Monitoring")]
    ab_test: Option<AbTest>,

    /// URI template of the proxy; requests must match its path [default: the template of RFC 9298]
    #[arg(long, value_name = "TEMPLATE", env = "TANDEM_TEMPLATE", help_heading = "Tunnel")]
    template: Option<Via>,

    /// JSON file with the configuration document (PvD) that the proxy serves at /.well-known/pvd, and with which
    /// `tandem up` sets clients up [default: one with the usual templates; none with --template]
    ///
    /// Everybody can read it. Its keys are those of draft-ietf-intarea-proxy-config, for example rules for what clients
    /// send through this proxy. The proxy adds identifier, expires and prefixes if they are missing.
    #[arg(long, value_name = "FILE", env = "TANDEM_PVD", help_heading = "Tunnel")]
    pvd: Option<PathBuf>,

    /// Serve no configuration document (PvD)
    #[arg(long, value_name = "BOOL", env = "TANDEM_NO_PVD", help_heading = "Tunnel",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_pvd: Option<bool>,

    #[arg(
        long, value_name = "TIME", env = "TANDEM_DRAIN", help_heading = "Limits",
        help = format!(
            "Time for which open flows may go on after a signal has stopped the proxy; a second signal \
             ends them at once [default: {}]",
            HumanDuration(Limits::default().drain),
        )
    )]
    drain: Option<HumanDuration>,

    #[arg(
        long, value_name = "TIME", env = "TANDEM_HAND_OVER", help_heading = "Limits",
        help = format!(
            "Time for which connections may stay at this process after SIGUSR2 has let another one take over \
             [default: {}]",
            HumanDuration(Limits::default().hand_over),
        )
    )]
    hand_over: Option<HumanDuration>,

    #[arg(
        long, value_name = "TIME", env = "TANDEM_FEEDBACK_INTERVAL", help_heading = "Feedback",
        help = FeedbackInterval::help(
            "Least interval between two reports on a tunnel to a client of mode tecc",
            "the tunnel's least RTT",
        )
    )]
    feedback_interval: Option<Within<FeedbackInterval>>,

    /// What becomes of packets from targets that fit no datagram of a tunnel [default: auto]
    ///
    /// auto: they go in capsules to clients that ask for it, as Tandem's do. capsule: they go in
    /// capsules to every client. drop: they are dropped. A target is told with ICMP what fits, if the
    /// proxy has the right to open raw sockets.
    #[arg(
        long,
        value_name = "auto|capsule|drop",
        env = "TANDEM_OVERSIZE",
        help_heading = "Tunnel"
    )]
    oversize: Option<Oversize>,

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

    /// Show operators what happens: a page at /, metrics for Prometheus at /metrics, and /healthz and
    /// /readyz, at this loopback address or Unix socket; everybody who can reach it can read them
    #[arg(long, value_name = "ADDR|unix:PATH", env = "TANDEM_ADMIN")]
    admin: Option<AdminAddr>,

    #[command(flatten, next_help_heading = "Site")]
    site: SiteSettings,

    #[command(flatten, next_help_heading = "Users")]
    users: UsersSettings,

    #[command(flatten)]
    fleet: FleetSettings,

    #[command(flatten)]
    pep: ProxyPepSettings,

    #[command(flatten, next_help_heading = "TLS")]
    tls: ServerTlsSettings,

    #[command(flatten, next_help_heading = "Congestion control")]
    transport: TransportSettings,
}

impl Settings for ProxySettings {
    type Setup = Served<ProxyRole>;
    const SUBCOMMAND: &'static str = "proxy";
    const REQUIRED: &'static [&'static str] = &["listen"];
}

impl TryFrom<ProxySettings> for Served<ProxyRole> {
    type Error = ConfigError;

    fn try_from(settings: ProxySettings) -> Result<Self, ConfigError> {
        let listen = settings.listen.ok_or(ConfigError::Missing {
            key: "listen",
            value: "ADDR",
            variable: "TANDEM_LISTEN",
        })?;
        let usual = ProxyRole::default();
        let mut role = ProxyRole {
            allow_target: settings.allow_target.into_iter().map(|prefix| prefix.0).collect(),
            tcp_ports: settings.tcp_ports.unwrap_or_default(),
            client_ca: settings.client_ca,
            allow_anyone: settings.allow_anyone.unwrap_or_default(),
            log_clients: settings.log_clients.unwrap_or_default(),
            log_flows: settings.log_flows.unwrap_or_default(),
            ab_test: settings.ab_test,
            template: settings.template.map_or(usual.template, |template| template.0),
            pvd: settings.pvd,
            no_pvd: settings.no_pvd.unwrap_or_default(),
            drain: settings.drain.unwrap_or(usual.drain),
            hand_over: settings.hand_over.unwrap_or(usual.hand_over),
            feedback_interval: settings.feedback_interval,
            oversize: settings.oversize.unwrap_or_default(),
            users: settings.users.try_into()?,
            ..usual
        };
        if let Some(second) = role.access_setting().filter(|_| role.allow_anyone) {
            return Err(ConfigError::Conflict {
                first: "allow-anyone",
                second,
                reason: "the one serves every client, the other only some",
            });
        }
        let anyone = role.allow_anyone.then_some("allow-anyone");
        role.site = settings.site.check(role.access_setting().or(anyone))?;
        role.check_access(listen.0)?;
        // Strangers must not see by a long first flight of packets that a site is more than that.
        let is_site = role.site.site.is_some();
        let usual_of = if is_site { WorkFor::Origin } else { WorkFor::Tunnel };
        let fleet = settings.fleet.try_into()?;
        role.pep = settings.pep.try_into()?;
        let setup = Setup {
            listen: listen.0,
            memory: MemoryBound::or_default(settings.memory),
            threads: Threads::or_default(settings.threads),
            admin: settings.admin,
            fleet,
            tls: settings.tls.try_into()?,
            transport: transport_for(settings.transport, usual_of)?,
        };
        Ok(Self { setup, role })
    }
}

#[cfg(test)]
mod tests {
    use tandem_congestion::ControllerName;

    use super::*;
    use crate::config::from_text;

    fn check(toml: &str) -> Result<Served<ProxyRole>, ConfigError> {
        from_text::<ProxySettings>(toml)
    }

    #[test]
    fn only_loopback_is_open_without_access_control() {
        for (listen, is_open) in [
            ("127.0.0.1:0", true),
            ("127.8.8.8:443", true),
            ("[::1]:443", true),
            ("[::ffff:127.0.0.1]:443", true),
            ("0.0.0.0:443", false),
            ("[::]:443", false),
            ("192.0.2.1:443", false),
        ] {
            let listen = format!("listen = \"{listen}\"");
            let setup = check(&listen);
            assert_eq!(setup.is_ok(), is_open, "{listen}: {setup:?}");
            for access in ["allow-anyone = true", "token-file = \"t\"", "client-ca = \"c\""] {
                assert!(check(&format!("{listen}\n{access}")).is_ok(), "{listen}, {access}");
            }
        }
    }

    #[test]
    fn a_site_has_the_congestion_control_of_an_origin() {
        let common = "listen = \"[::1]:1\"\ntoken-file = \"t\"";
        for (site, controller, initial_window) in [
            ("", ControllerName::Bbr1Tunnel, 32),
            ("site = \"www\"", ControllerName::Bbr1, 10),
            ("site = \"www\"\ncontroller = \"cubic\"", ControllerName::Cubic, 10),
        ] {
            let transport = check(&format!("{common}\n{site}")).unwrap().setup.transport;
            assert_eq!(transport.controller, controller, "{site}");
            assert_eq!(transport.initial_window.0, initial_window, "{site}");
        }
    }

    #[test]
    fn access_control_and_none_is_a_contradiction() {
        let setup = check("listen = \"[::1]:1\"\nallow-anyone = true\ntoken-file = \"t\"");
        assert!(matches!(setup, Err(ConfigError::Conflict { .. })), "{setup:?}");
    }

    #[test]
    fn reports_come_neither_too_often_nor_too_seldom() {
        for (interval, is_allowed) in
            [("4ms", false), ("5ms", true), ("1s", true), ("1001ms", false), ("0s", false)]
        {
            let file = format!("feedback-interval = \"{interval}\"\nlisten = \"[::1]:1\"");
            let error = check(&file).map(|_| ()).map_err(|error| error.to_string());
            let place = format!("test.toml:1: feedback-interval: \"{interval}\": ");
            let refused = Err(place + "out of range; allowed: 5ms to 1s");
            assert_eq!(error, if is_allowed { Ok(()) } else { refused }, "{interval}");
        }
    }
}
