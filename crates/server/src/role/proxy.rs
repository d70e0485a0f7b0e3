//! A proxy.

use std::{
    net::SocketAddr,
    ops::RangeInclusive,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
};

use ipnet::IpNet;
use serde::Serialize;
use serde_with::{DisplayFromStr, serde_as};
use tandem_files::setting::{Setting, Within};
use tandem_net::{DriverStats, Listeners, site::SiteContent};
use tandem_node::{
    Proxy, ProxyConfig, Serves,
    limits::Limits,
    mode::Oversize,
    proxy::{AbTest, LogFlows, ProxySite, Pvd, TargetPolicy, TcpPorts, Users},
    quic::{Mtu, ServerTls, Transport},
};
use tandem_units::HumanDuration;
use tandem_wire::Template;

use super::{ProxyPepSetup, Reloaded, Role};
use crate::{
    admin::{self, Admin, BUSIEST},
    capacity::descriptors,
    error::{ServeError, SetupError},
    files::{FileError, pvd},
    setup::Setup,
    site::{NamedPath, SiteSetup},
    transport::WorkFor,
    users::{Keeper, UsersSetup, say_unusable},
};

/// The interval between two reports on a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct FeedbackInterval;

impl Setting for FeedbackInterval {
    type Value = HumanDuration;
    const ALLOWED: RangeInclusive<HumanDuration> =
        HumanDuration(*ProxyConfig::FEEDBACK_INTERVAL.start())
            ..=HumanDuration(*ProxyConfig::FEEDBACK_INTERVAL.end());
}

/// A proxy. By default it serves every client that can reach it, and reaches only public addresses.
#[serde_as]
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProxyRole {
    /// The only target, as a host and a port. `None`: clients choose.
    #[serde(skip)]
    pub service: Option<(String, u16)>,
    /// Targets that it reaches besides public addresses.
    pub allow_target: Vec<IpNet>,
    /// The ports to which it opens TCP connections.
    pub tcp_ports: TcpPorts,
    /// The CA of clients that it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
    /// Whether it serves every client although other hosts can reach it.
    pub allow_anyone: bool,
    /// Whether the log has the addresses of clients.
    pub log_clients: bool,
    /// What the log says of flows.
    pub log_flows: LogFlows,
    /// Which of its users that ask for mode `tecc` get less, to compare how long transfers take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ab_test: Option<AbTest>,
    /// Its URI template.
    #[serde_as(as = "DisplayFromStr")]
    pub template: Template,
    /// Its configuration document (PvD). `None`: one with its own templates, if they are the usual ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvd: Option<PathBuf>,
    /// Whether it serves no configuration document.
    pub no_pvd: bool,
    /// How long open flows may go on after its end has begun.
    pub drain: HumanDuration,
    /// How long connections may stay after another process has taken over.
    pub hand_over: HumanDuration,
    /// The least interval between two reports. `None`: the tunnel's least RTT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedback_interval: Option<Within<FeedbackInterval>>,
    /// What becomes of packets that fit no datagram.
    pub oversize: Oversize,
    /// The site that it is to everybody who has no right to it.
    #[serde(flatten)]
    pub site: SiteSetup,
    /// Its users.
    #[serde(flatten)]
    pub users: UsersSetup,
    /// The PEP that it is.
    #[serde(flatten)]
    pub pep: ProxyPepSetup,
}

impl Default for ProxyRole {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            service: None,
            allow_target: Vec::new(),
            tcp_ports: TcpPorts::default(),
            client_ca: None,
            allow_anyone: false,
            log_clients: false,
            log_flows: LogFlows::default(),
            ab_test: None,
            template: ProxyConfig::default_template(),
            pvd: None,
            no_pvd: false,
            drain: HumanDuration(limits.drain),
            hand_over: HumanDuration(limits.hand_over),
            feedback_interval: None,
            oversize: Oversize::default(),
            site: SiteSetup::default(),
            users: UsersSetup::default(),
            pep: ProxyPepSetup::default(),
        }
    }
}

impl ProxyRole {
    /// The setting that decides who may use the proxy, if there is one.
    pub fn access_setting(&self) -> Option<&'static str> {
        let client_ca = self.client_ca.as_ref().map(|_| "client-ca");
        let secret_path = self.site.secret_path.as_ref().map(|_| "secret-path");
        self.users.access_setting().or(client_ca).or(secret_path)
    }

    /// Its configuration document. A template that is not the usual one may be a secret, so that no document has it
    /// unless the operator has written one.
    fn pvd(&self) -> Result<Pvd, FileError> {
        match &self.pvd {
            _ if self.no_pvd => Ok(Pvd::Nothing),
            Some(file) => Ok(Pvd::Given(Arc::new(pvd::read(file)?))),
            None if has_usual_path(&self.template) => Ok(Pvd::Own),
            None => Ok(Pvd::Nothing),
        }
    }

    /// Fails if other hosts could use the proxy, and nothing says which of them, or that all of them may.
    pub fn check_access(&self, listen: SocketAddr) -> Result<(), SetupError> {
        let is_open = self.access_setting().is_none() && !self.allow_anyone;
        if is_open && !listen.ip().to_canonical().is_loopback() {
            return Err(SetupError::OpenProxy { listen });
        }
        Ok(())
    }
}

/// Whether a template has the path of RFC 9298 §2.
fn has_usual_path(template: &Template) -> bool {
    Template::default_for(template.authority()).is_ok_and(|usual| usual == *template)
}

/// What the nodes of a proxy are made from.
pub struct ProxyRoleConfig {
    node: ProxyConfig,
    /// The content of its site.
    content: Option<SiteContent>,
    /// The path below which its templates are.
    path: Option<NamedPath>,
}

/// What runs beside the nodes of a proxy.
#[derive(Debug)]
pub struct ProxyRunning {
    users: Users,
    keeper: Keeper,
}

impl Role for ProxyRole {
    type Node = Proxy;
    type Config = ProxyRoleConfig;
    type Running = ProxyRunning;

    const NAME: admin::RoleName = admin::RoleName::Proxy;
    const WORK: WorkFor = WorkFor::Tunnel;

    fn client_ca(&self) -> Option<&Path> {
        self.client_ca.as_deref()
    }

    fn users(config: &ProxyRoleConfig) -> Option<&Users> {
        Some(&config.node.users)
    }

    fn config(
        &self,
        listen: SocketAddr,
        tls: rustls::ServerConfig,
    ) -> Result<ProxyRoleConfig, SetupError> {
        self.check_access(listen)?;
        let content = self.site.site.as_ref().map(|site| site.open("site")).transpose()?;
        let path = self.site.secret_path.as_deref().map(NamedPath::read).transpose()?;
        let site = self.site.site.as_ref().map(|site| ProxySite {
            content: site.content(),
            secret_path: path.as_ref().map(|it| it.path.clone()),
        });
        let node = ProxyConfig {
            site,
            access: self.users.access()?,
            users: Users::new(self.users.rules()?),
            policy: TargetPolicy::allowing(self.allow_target.clone()),
            tcp_ports: self.tcp_ports.clone(),
            service: self.service.clone(),
            feedback_interval: self.feedback_interval.map(|Within(interval)| interval.into()),
            oversize: self.oversize,
            pep: self.pep.to_node()?,
            log_clients: self.log_clients,
            log_flows: self.log_flows,
            ab_test: self.ab_test,
            template: self.template.clone(),
            pvd: self.pvd()?,
            ..ProxyConfig::new(listen, tls)
        };
        Ok(ProxyRoleConfig { node, content, path })
    }

    fn limits(&self, setup: &Setup) -> Limits {
        let mut limits = Limits {
            drain: self.drain.into(),
            hand_over: self.hand_over.into(),
            memory: setup.memory.0.get(),
            ..Limits::default()
        };
        let listening = Listeners::number_of_sockets(setup.threads.0);
        descriptors::limit(&mut limits, descriptors::raise(), listening);
        limits
    }

    fn node(
        &self,
        config: &ProxyRoleConfig,
        tls: &ServerTls,
        (mut transport, limits): (Transport, Limits),
    ) -> Result<(Proxy, Option<SiteContent>), SetupError> {
        let ProxyRoleConfig { node, content, .. } = config;
        if content.is_some() {
            // Strangers get packets of the same sizes as from an origin. A client's first packet says how large those
            // of its tunnel are to be.
            transport.mtu = Mtu::default();
        }
        // The clones of the configuration share what is in use.
        let config = ProxyConfig { transport, limits, ..node.clone() };
        Ok((Proxy::with_tls(config, tls)?, content.as_ref().map(SiteContent::apart)))
    }

    fn check(&self, limits: &Limits) -> Result<(), ServeError> {
        self.users.warn();
        self.users.check_store()?;
        descriptors::say(descriptors::raise(), limits.sockets);
        Ok(())
    }

    fn site_over_tcp<'a>(
        &self,
        config: &'a ProxyRoleConfig,
    ) -> Option<(&'a SiteContent, &'a rustls::ServerConfig)> {
        let content = config.content.as_ref().filter(|_| self.site.http1);
        content.map(|content| (content, &config.node.tls))
    }

    fn start(&self, config: &ProxyRoleConfig, _: &Setup) -> Result<ProxyRunning, ServeError> {
        if let Some(path) = &config.path {
            path.keep()?;
        }
        let users = config.node.users.clone();
        Ok(ProxyRunning { keeper: Keeper::start(users.clone())?, users })
    }

    fn look(
        _: &ProxyRunning,
        (index, proxy): (usize, &mut Proxy),
        driver: &DriverStats,
        admin: Option<&Admin>,
    ) {
        if let Some(admin) = admin {
            admin.note(index, proxy.status(BUSIEST), driver);
        }
    }

    /// Reads CA of clients, tokens, keys and the limits of users again. The proxy changes only if all of them are good.
    fn reload(&self, running: &ProxyRunning) -> Result<Reloaded<Proxy>, SetupError> {
        let access = self.users.access()?;
        running.users.set_rules(self.users.rules()?);
        let pvd = self.pvd()?;
        let what = self.pvd.as_ref().map(|_| "configuration document");
        let change = Arc::new(move |proxy: &mut Proxy| {
            proxy.set_access(access.clone());
            proxy.set_pvd(pvd.clone());
        });
        let ca = self.client_ca.as_ref().map(|_| "CA of clients");
        Ok(Reloaded {
            change,
            what: ca.into_iter().chain(what).chain(self.users.reloaded()).collect(),
        })
    }

    fn begin(&self, running: &ProxyRunning, usage: Option<UnixStream>) -> Result<(), ServeError> {
        let ProxyRunning { users, keeper } = running;
        match keeper.begin(self.users.usage_store.as_deref(), users, usage) {
            Err(error) if self.users.require_usage_store => Err(error.into()),
            Err(error) => {
                say_unusable(&error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn hand_over(running: &ProxyRunning, usage: UnixStream) {
        running.keeper.hand_over(usage);
    }
}
