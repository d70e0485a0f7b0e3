//! The roles of servers: what a proxy has, and an origin, that the other one has not.

mod origin;
mod paths;
mod pep;
mod proxy;

use std::{net::SocketAddr, os::unix::net::UnixStream, path::Path, sync::Arc};

use tandem_net::{
    DriverStats,
    site::{SiteContent, Upstream},
};
use tandem_node::{
    Serves,
    limits::Limits,
    proxy::Users,
    quic::{ServerTls, Transport},
};

pub use self::{
    origin::{OriginConfig, OriginRole, OriginRunning},
    pep::ProxyPepSetup,
    proxy::{FeedbackInterval, ProxyRole, ProxyRoleConfig, ProxyRunning},
};
use crate::{
    admin::{self, Admin},
    error::{ServeError, SetupError},
    setup::Setup,
    transport::WorkFor,
};

/// What changes at each node.
pub type Change<N> = Arc<dyn Fn(&mut N) + Send + Sync>;

/// What has been read again, and what to call it.
pub struct Reloaded<N> {
    /// The change at each node.
    pub change: Change<N>,
    /// What has been read.
    pub what: Vec<&'static str>,
}

/// What a server is, besides what all servers are.
pub trait Role: Sync {
    /// Its nodes.
    type Node: Serves + Send + 'static;
    /// What its nodes are made from.
    type Config;
    /// What runs beside its nodes.
    type Running: Sync;

    /// What operators see that it is.
    const NAME: admin::RoleName;
    /// What its connections carry.
    const WORK: WorkFor;

    /// The CA of clients, if they need a certificate.
    fn client_ca(&self) -> Option<&Path> {
        None
    }

    /// Whether its nodes are looked at once a second although no operator looks.
    fn is_watched(&self) -> bool {
        false
    }

    /// The users of a proxy.
    fn users(_: &Self::Config) -> Option<&Users> {
        None
    }

    /// Reads its files. Writes nothing.
    fn config(
        &self,
        listen: SocketAddr,
        tls: rustls::ServerConfig,
    ) -> Result<Self::Config, SetupError>;

    /// The limits that are in force.
    fn limits(&self, setup: &Setup) -> Limits;

    /// A node with this share of the address and of the limits, and the content of its site.
    fn node(
        &self,
        config: &Self::Config,
        tls: &ServerTls,
        share: (Transport, Limits),
    ) -> Result<(Self::Node, Option<SiteContent>), SetupError>;

    /// Says what an operator should know before it runs, and fails if it must not run.
    fn check(&self, _: &Limits) -> Result<(), ServeError> {
        Ok(())
    }

    /// The site that is served over HTTP/1.1 and TCP too, at the address of the nodes, and the TLS for it.
    fn site_over_tcp<'a>(
        &self,
        config: &'a Self::Config,
    ) -> Option<(&'a SiteContent, &'a rustls::ServerConfig)>;

    /// The HTTP server without which it is of no use, if there is one.
    fn upstream(_: &Self::Config) -> Option<&Upstream> {
        None
    }

    /// Starts what runs beside the nodes.
    fn start(&self, config: &Self::Config, setup: &Setup) -> Result<Self::Running, ServeError>;

    /// Looks at a node, which has an index.
    fn look(
        running: &Self::Running,
        node: (usize, &mut Self::Node),
        driver: &DriverStats,
        admin: Option<&Admin>,
    );

    /// Reads its files again, without those of the certificate.
    fn reload(&self, running: &Self::Running) -> Result<Reloaded<Self::Node>, SetupError>;

    /// Opens what only one process may have open. `usage`: the process that this one has taken over from tells there
    /// what users use. An error says that the server must not serve.
    fn begin(&self, _: &Self::Running, _usage: Option<UnixStream>) -> Result<(), ServeError> {
        Ok(())
    }

    /// Closes what [`Self::begin`] has opened, because another process has taken over. What users use is told there.
    fn hand_over(_: &Self::Running, _usage: UnixStream) {}
}
