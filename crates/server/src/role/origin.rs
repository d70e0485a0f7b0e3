//! An origin.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use serde::Serialize;
use tandem_net::{
    DriverStats,
    site::{SiteContent, Upstream},
};
use tandem_node::{
    Origin, Serves,
    limits::Limits,
    quic::{Peps, ServerTls, Transport},
};

use super::{Reloaded, Role, paths::Paths};
use crate::{
    admin::{self, Admin, BUSIEST},
    capacity::descriptors,
    error::{ServeError, SetupError},
    files::peps,
    setup::Setup,
    site::{HealthPath, SiteSource},
    transport::WorkFor,
};

/// An origin, which serves the files of a folder, or what a server behind it has.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the program")]
pub struct OriginRole {
    /// Where its site comes from.
    pub root: SiteSource,
    /// What a server behind the site is asked for to find out whether it answers. `None`: for a connection only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_health: Option<HealthPath>,
    /// Whether the site is served over HTTP/1.1 and TCP too.
    pub http1: bool,
    /// Whether it takes uploads, which it counts and drops.
    pub takes_uploads: bool,
    /// Whether clients may measure their rate, with uploads and with a body of zeros.
    pub speedtest: bool,
    /// The file with the PEPs that it listens to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peps: Option<PathBuf>,
    /// Whether it prints what PEPs show on standard output.
    pub json: bool,
}

impl OriginRole {
    /// An origin of the files below a folder.
    pub fn new(root: PathBuf) -> Self {
        Self {
            root: root.into(),
            upstream_health: None,
            http1: false,
            takes_uploads: false,
            speedtest: false,
            peps: None,
            json: false,
        }
    }
}

/// What the nodes of an origin are made from.
pub struct OriginConfig {
    node: tandem_node::OriginConfig,
    site: SiteContent,
    peps: Option<Peps>,
}

/// What runs beside the nodes of an origin.
#[derive(Debug)]
pub struct OriginRunning {
    /// What tells of the paths to clients. `None`: there are no PEPs.
    paths: Option<Mutex<Paths>>,
}

impl Role for OriginRole {
    type Node = Origin;
    type Config = OriginConfig;
    type Running = OriginRunning;

    const NAME: admin::RoleName = admin::RoleName::Origin;
    const WORK: WorkFor = WorkFor::Origin;

    fn is_watched(&self) -> bool {
        self.peps.is_some()
    }

    fn config(
        &self,
        listen: SocketAddr,
        tls: rustls::ServerConfig,
    ) -> Result<OriginConfig, SetupError> {
        let site = self.root.clone().with_health(self.upstream_health.as_ref()).open("root")?;
        let peps = self.peps.as_deref().map(peps::read).transpose()?;
        let node = tandem_node::OriginConfig {
            content: self.root.content(),
            takes_uploads: self.takes_uploads,
            serves_speedtests: self.speedtest,
            ..tandem_node::OriginConfig::new(listen, tls)
        };
        Ok(OriginConfig { node, site, peps })
    }

    fn limits(&self, setup: &Setup) -> Limits {
        descriptors::raise();
        Limits { memory: setup.memory.0.get(), ..Limits::default() }
    }

    fn node(
        &self,
        config: &OriginConfig,
        tls: &ServerTls,
        (transport, limits): (Transport, Limits),
    ) -> Result<(Origin, Option<SiteContent>), SetupError> {
        let OriginConfig { node, site, peps } = config;
        let transport = Transport { peps: peps.clone(), ..transport };
        let node = tandem_node::OriginConfig { transport, limits, ..node.clone() };
        Ok((Origin::with_tls(node, tls), Some(site.apart())))
    }

    fn site_over_tcp<'a>(
        &self,
        config: &'a OriginConfig,
    ) -> Option<(&'a SiteContent, &'a rustls::ServerConfig)> {
        self.http1.then_some((&config.site, &config.node.tls))
    }

    fn upstream(config: &OriginConfig) -> Option<&Upstream> {
        match &config.site {
            SiteContent::Upstream(upstream) => Some(upstream),
            SiteContent::Folder(_) => None,
        }
    }

    fn start(&self, _: &OriginConfig, setup: &Setup) -> Result<OriginRunning, ServeError> {
        let paths = || Paths::new(self.json, setup.transport.qlog_dir());
        let paths = self.peps.as_ref().map(|_| paths()).transpose()?;
        Ok(OriginRunning { paths: paths.map(Mutex::new) })
    }

    fn look(
        running: &OriginRunning,
        (index, origin): (usize, &mut Origin),
        driver: &DriverStats,
        admin: Option<&Admin>,
    ) {
        if let Some(admin) = admin {
            admin.note(index, origin.status(BUSIEST), driver);
        }
        if let Some(paths) = &running.paths {
            let mut paths = paths.lock().unwrap_or_else(PoisonError::into_inner);
            paths.tell(index, &origin.take_path_reports());
            if let Some(admin) = admin {
                admin.note_paths(paths.totals());
            }
        }
    }

    fn reload(&self, _: &OriginRunning) -> Result<Reloaded<Origin>, SetupError> {
        Ok(Reloaded { change: Arc::new(|_: &mut Origin| {}), what: Vec::new() })
    }
}
