//! `tandem proxy`.

use std::{
    cell::RefCell, ops::RangeInclusive, os::unix::net::UnixStream, path::PathBuf, sync::Arc,
};

use serde::Serialize;
use tandem_net::{DriverOptions, DriverStats, Listeners, clock};
use tandem_node::{
    BusyNodes, ProxyConfig,
    limits::Limits,
    mode::Oversize,
    proxy::{TargetPolicy, TcpPorts, Users},
    quic::{Returning, ServerTls, Transport},
};
use tandem_units::HumanDuration;

use crate::{
    acme::Renewals,
    admin::{self, Admin, AdminAddr, BUSIEST, Role},
    config::{
        Layered, ListenAddr, Prefix, Setting, Settings, Target, TransportSettings, TransportSetup,
        Via, Within, WorkFor,
    },
    descriptors,
    error::{CliError, ConfigError},
    fleet::{FleetSettings, FleetSetup},
    memory::{self, MemoryBound},
    proxy_pep::{ProxyPepSettings, ProxyPepSetup},
    server::{self, Change, Changes, ServeError, SetupError},
    takeover::Address,
    text,
    threads::Threads,
    tls::{Identity, ServerTlsSettings, ServerTlsSetup, Stamps},
    users::{Keeper, UsersSettings, UsersSetup, say_unusable},
};

const EXAMPLES: &str = "\
Examples:
  tandem proxy --listen [::]:443 --cert cert.pem --key key.pem --token-file tokens
      A proxy to public addresses, for clients with a token.
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
        let setup = self.settings.load()?;
        setup.run(|limits| self.settings.checked(&setup, limits))
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
    #[arg(long, value_name = "BOOL", env = "TANDEM_ALLOW_ANYONE",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_anyone: Option<bool>,

    /// Show the addresses of clients in the log, to trace abuse
    #[arg(long, value_name = "BOOL", env = "TANDEM_LOG_CLIENTS",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    log_clients: Option<bool>,

    /// URI template of the proxy; requests must match its path [default: the template of RFC 9298]
    #[arg(long, value_name = "TEMPLATE", env = "TANDEM_TEMPLATE")]
    template: Option<Via>,

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
    #[arg(long, value_name = "ADDR|unix:PATH", env = "TANDEM_ADMIN", help_heading = "Monitoring")]
    admin: Option<AdminAddr>,

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
    type Setup = ProxySetup;
    const SUBCOMMAND: &'static str = "proxy";
    const REQUIRED: &'static [&'static str] = &["listen"];
}

/// The interval between two reports on a tunnel.
#[derive(Clone, Copy, Debug)]
struct FeedbackInterval;

impl Setting for FeedbackInterval {
    type Value = HumanDuration;
    const ALLOWED: RangeInclusive<HumanDuration> =
        HumanDuration(*ProxyConfig::FEEDBACK_INTERVAL.start())
            ..=HumanDuration(*ProxyConfig::FEEDBACK_INTERVAL.end());
}

/// The settings that the proxy runs with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ProxySetup {
    listen: ListenAddr,
    /// The only target, which `tandem serve` has.
    #[serde(skip)]
    service: Option<Target>,
    allow_target: Vec<Prefix>,
    tcp_ports: TcpPorts,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_ca: Option<PathBuf>,
    allow_anyone: bool,
    log_clients: bool,
    template: Via,
    drain: HumanDuration,
    hand_over: HumanDuration,
    #[serde(skip_serializing_if = "Option::is_none")]
    feedback_interval: Option<Within<FeedbackInterval>>,
    oversize: Oversize,
    memory: Within<MemoryBound>,
    threads: Within<Threads>,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin: Option<AdminAddr>,
    #[serde(flatten)]
    fleet: FleetSetup,
    #[serde(flatten)]
    users: UsersSetup,
    #[serde(flatten)]
    pep: ProxyPepSetup,
    #[serde(flatten)]
    tls: ServerTlsSetup,
    #[serde(flatten)]
    transport: TransportSetup,
}

impl TryFrom<ProxySettings> for ProxySetup {
    type Error = ConfigError;

    fn try_from(settings: ProxySettings) -> Result<Self, ConfigError> {
        let listen = settings.listen.ok_or(ConfigError::Missing {
            key: "listen",
            value: "ADDR",
            variable: "TANDEM_LISTEN",
        })?;
        let allow_anyone = settings.allow_anyone.unwrap_or_default();
        let users = UsersSetup::try_from(settings.users)?;
        let client_ca = settings.client_ca.as_ref().map(|_| "client-ca");
        let access_control = users.access_setting().or(client_ca);
        if let Some(second) = access_control.filter(|_| allow_anyone) {
            return Err(ConfigError::Conflict {
                first: "allow-anyone",
                second,
                reason: "the one serves every client, the other only some",
            });
        }
        if !listen.is_loopback() && access_control.is_none() && !allow_anyone {
            return Err(ConfigError::OpenProxy { listen: listen.0 });
        }
        Ok(Self {
            listen,
            service: None,
            allow_target: settings.allow_target,
            tcp_ports: settings.tcp_ports.unwrap_or_default(),
            client_ca: settings.client_ca,
            allow_anyone,
            log_clients: settings.log_clients.unwrap_or_default(),
            template: settings.template.unwrap_or_else(|| Via(ProxyConfig::default_template())),
            drain: settings.drain.unwrap_or(HumanDuration(Limits::default().drain)),
            hand_over: settings.hand_over.unwrap_or(HumanDuration(Limits::default().hand_over)),
            feedback_interval: settings.feedback_interval,
            oversize: settings.oversize.unwrap_or_default(),
            memory: MemoryBound::or_default(settings.memory),
            threads: Threads::or_default(settings.threads),
            admin: settings.admin,
            fleet: settings.fleet.try_into()?,
            users,
            pep: settings.pep.try_into()?,
            tls: settings.tls.try_into()?,
            transport: TransportSetup::new(settings.transport, WorkFor::Tunnel)?,
        })
    }
}

impl ProxySetup {
    /// A proxy with one target, for clients that have one of the tokens in a file.
    pub(crate) fn of_service(
        target: Target,
        listen: ListenAddr,
        (tls, token_file): (ServerTlsSetup, PathBuf),
        transport: TransportSetup,
    ) -> Self {
        Self {
            listen,
            service: Some(target),
            allow_target: Vec::new(),
            tcp_ports: TcpPorts::default(),
            client_ca: None,
            allow_anyone: false,
            log_clients: false,
            template: Via(ProxyConfig::default_template()),
            drain: HumanDuration(Limits::default().drain),
            hand_over: HumanDuration(Limits::default().hand_over),
            feedback_interval: None,
            oversize: Oversize::default(),
            memory: MemoryBound::or_default(None),
            threads: Threads::or_default(None),
            admin: None,
            fleet: FleetSetup::default(),
            users: UsersSetup::of_tokens(token_file),
            pep: ProxyPepSetup::default(),
            tls,
            transport,
        }
    }

    /// Runs the proxy until a signal ends it. `checked` returns what to print instead of a run, if that
    /// was asked for.
    pub(crate) fn run(
        &self,
        checked: impl FnOnce(&Limits) -> Option<String>,
    ) -> Result<(), CliError> {
        let read = Stamps::of(&self.certificate_files());
        let identity = self.tls.identity()?;
        let config = self.to_node(&identity)?;
        identity.report();
        let (limits, open_files) = self.limits();
        if let Some(checked) = checked(&limits) {
            return text::print(checked.trim_end());
        }
        self.users.warn();
        self.users.check_store()?;
        descriptors::say(open_files, limits.sockets);
        let users = Some(&config.users);
        let admin = Admin::new(self.admin.as_ref(), Role::Proxy, self.threads.0, &limits, users);
        let (nodes, address) = self.nodes(&config, limits)?;
        // A process that cannot take over has written nothing.
        identity.announce()?;
        let keeper = Keeper::start(config.users.clone())?;
        let look = |index, proxy: &mut tandem_node::Proxy, driver: &DriverStats| {
            if let Some(admin) = &admin {
                admin.note(index, proxy.status(BUSIEST), driver);
            }
        };
        let changes = ProxyChanges {
            setup: self,
            identity: &identity,
            users: &config.users,
            keeper: &keeper,
            renewals: RefCell::default(),
        };
        Ok(server::serve(nodes, address, (&changes, read), look, admin.as_ref())?)
    }

    /// The files that are read again when they change.
    fn certificate_files(&self) -> Vec<PathBuf> {
        self.tls.files().into_iter().chain(self.client_ca.clone()).collect()
    }

    /// A proxy for each thread. They listen at the same address.
    fn nodes(
        &self,
        config: &ProxyConfig,
        limits: Limits,
    ) -> Result<(Vec<(tandem_node::Proxy, DriverOptions)>, Address), ServeError> {
        let tls = ServerTls::new(config.tls.clone())?;
        let grace = server::grace(&limits);
        let memory_in_use = Some(memory::gauge());
        memory::warn_of_group(self.memory.0);
        let tick = self.admin.as_ref().map(|_| admin::INTERVAL);
        let limits = limits.divided_by(self.threads.0);
        // The clones of the configuration share what is in use.
        let mut nodes = Vec::new();
        let fleet = config.transport.fleet.as_ref();
        let address = Address::open(self.listen.0, self.threads, fleet)?;
        for listener in address.listeners() {
            let (steering, other_process) = (listener.steering(), address.other_process());
            let reset_secret = address.reset_secret(config.transport.reset_secret.as_ref());
            let config = ProxyConfig {
                transport: Transport {
                    steering,
                    other_process,
                    reset_secret,
                    ..config.transport.clone()
                },
                limits: limits.clone(),
                ..config.clone()
            };
            let node = tandem_node::Proxy::with_tls(config, &tls)?;
            let listener = Some(listener);
            let options =
                DriverOptions { listener, grace, memory_in_use, tick, ..DriverOptions::default() };
            nodes.push((node, options));
        }
        Ok((nodes, address))
    }

    /// The limits that are in force, and the number of files that may be open.
    pub(crate) fn limits(&self) -> (Limits, u64) {
        let open_files = descriptors::raise();
        let mut limits = Limits {
            drain: self.drain.into(),
            hand_over: self.hand_over.into(),
            memory: self.memory.0.get(),
            ..Limits::default()
        };
        let listening = Listeners::number_of_sockets(self.threads.0);
        descriptors::limit(&mut limits, open_files, listening);
        (limits, open_files)
    }

    fn to_node(&self, identity: &Identity) -> Result<ProxyConfig, SetupError> {
        Ok(ProxyConfig {
            transport: Transport {
                reset_secret: identity.reset_secret(),
                fleet: self.fleet.to_node()?,
                returning: Some(Returning::new()),
                ..self.transport.to_node("proxy", WorkFor::Tunnel)
            },
            access: self.users.access()?,
            users: Users::new(self.users.rules()?),
            policy: TargetPolicy::allowing(
                self.allow_target.iter().map(|prefix| prefix.0).collect(),
            ),
            tcp_ports: self.tcp_ports.clone(),
            service: self.service.as_ref().map(|target| (target.host.clone(), target.port)),
            feedback_interval: self.feedback_interval.map(|Within(interval)| interval.into()),
            oversize: self.oversize,
            pep: self.pep.to_node()?,
            log_clients: self.log_clients,
            template: self.template.0.clone(),
            ..ProxyConfig::new(
                self.listen.0,
                self.tls.server_config(identity, self.client_ca.as_deref())?,
            )
        })
    }
}

/// How a proxy changes while it runs.
struct ProxyChanges<'a> {
    setup: &'a ProxySetup,
    identity: &'a Identity,
    users: &'a Users,
    keeper: &'a Keeper,
    renewals: RefCell<Option<Renewals>>,
}

impl ProxyChanges<'_> {
    /// The certificate in the files, and TLS with it.
    fn tls(&self) -> Result<(Identity, ServerTls), SetupError> {
        let ProxySetup { tls, client_ca, .. } = self.setup;
        let new = tls.reread(self.identity)?;
        let tls = ServerTls::new(tls.server_config(&new, client_ca.as_deref())?)?;
        Ok((new, tls))
    }
}

impl Changes<tandem_node::Proxy> for ProxyChanges<'_> {
    /// Reads certificate, key, CA of clients, tokens and the limits of users again. The proxy changes only if all
    /// of them are good.
    fn reload(&self) -> Result<(Change<tandem_node::Proxy>, String), SetupError> {
        let Self { setup, users, .. } = self;
        let (new, tls) = self.tls()?;
        let access = setup.users.access()?;
        users.set_rules(setup.users.rules()?);
        let change = move |proxy: &mut tandem_node::Proxy| {
            proxy.set_tls(&tls);
            proxy.set_access(access.clone());
        };
        new.report();
        let ca = setup.client_ca.as_ref().map(|_| "CA of clients");
        let others: Vec<_> = ca.into_iter().chain(setup.users.reloaded()).collect();
        Ok((Arc::new(change), setup.tls.reloaded(&others)))
    }

    fn certificate_files(&self) -> Vec<PathBuf> {
        self.setup.certificate_files()
    }

    fn renew(&self) -> Result<Change<tandem_node::Proxy>, SetupError> {
        let (new, tls) = self.tls()?;
        new.report();
        Ok(Arc::new(move |proxy: &mut tandem_node::Proxy| proxy.set_tls(&tls)))
    }

    fn begin(&self, usage: Option<UnixStream>) -> Result<(), ServeError> {
        self.renewals.replace(self.setup.tls.renewals());
        let users = &self.setup.users;
        match self.keeper.begin(users.usage_store.as_deref(), self.users, usage) {
            Err(error) if users.require_usage_store => Err(error.into()),
            Err(error) => {
                say_unusable(&error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn hand_over(&self, usage: UnixStream, busy: BusyNodes) -> Change<tandem_node::Proxy> {
        self.keeper.hand_over(usage);
        self.renewals.take();
        Arc::new(move |proxy: &mut tandem_node::Proxy| proxy.hand_over(clock::now(), busy.clone()))
    }

    fn take_back(&self) -> Change<tandem_node::Proxy> {
        // What users have used is still in memory.
        if let Err(error) = self.begin(None) {
            text::say(format_args!("error: {error}"));
        }
        Arc::new(tandem_node::Proxy::take_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::from_text;

    fn check(toml: &str) -> Result<ProxySetup, ConfigError> {
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
