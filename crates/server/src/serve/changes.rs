//! How a server changes while it runs.

use std::{cell::RefCell, os::unix::net::UnixStream, path::PathBuf, sync::Arc};

use tandem_net::clock;
use tandem_node::{BusyNodes, Serves};

use super::prepared::{certificate_files, reread};
use crate::{
    acme::{self, Renewals},
    error::{ServeError, SetupError},
    process::say,
    role::{Change, Reloaded, Role},
    setup::Setup,
    site::SiteOverTcp,
    tls::Identity,
};

/// How the nodes of a server change while they run.
pub(super) struct Changes<'a, R: Role> {
    role: &'a R,
    setup: &'a Setup,
    identity: &'a Identity,
    running: &'a R::Running,
    /// The site over TCP, which is no node's.
    site: Option<SiteOverTcp>,
    renewals: RefCell<Option<Renewals>>,
}

impl<'a, R: Role> Changes<'a, R> {
    pub(super) fn new(
        role: &'a R,
        setup: &'a Setup,
        (identity, running): (&'a Identity, &'a R::Running),
        site: Option<SiteOverTcp>,
    ) -> Self {
        Self { role, setup, identity, running, site, renewals: RefCell::default() }
    }

    /// Reads all files again. Also returns what to tell the operator. Nothing changes unless all of them are good.
    pub(super) fn reload(&self) -> Result<(Change<R::Node>, String), SetupError> {
        let (new, tls, over_tcp) = reread(self.role, self.setup, self.identity)?;
        let Reloaded { change, what } = self.role.reload(self.running)?;
        self.set_tls_of_site(over_tcp);
        new.report();
        let change = move |node: &mut R::Node| {
            node.set_tls(&tls);
            change(node);
        };
        Ok((Arc::new(change), self.setup.tls.reloaded(&what)))
    }

    /// The files of the certificate.
    pub(super) fn certificate_files(&self) -> Vec<PathBuf> {
        certificate_files(self.role, self.setup)
    }

    /// Reads the files of the certificate again.
    pub(super) fn renew(&self) -> Result<Change<R::Node>, SetupError> {
        let (new, tls, over_tcp) = reread(self.role, self.setup, self.identity)?;
        self.set_tls_of_site(over_tcp);
        new.report();
        Ok(Arc::new(move |node: &mut R::Node| node.set_tls(&tls)))
    }

    fn set_tls_of_site(&self, tls: rustls::ServerConfig) {
        if let Some(site) = &self.site {
            site.set_tls(tls);
        }
    }

    /// Opens what only one process may have open. `usage`: the process that this one has taken over from tells there
    /// what users use. An error says that a server must not serve.
    pub(super) fn begin(&self, usage: Option<UnixStream>) -> Result<(), ServeError> {
        self.renewals.replace(acme::renewals(&self.setup.tls));
        self.site.as_ref().map_or(Ok(()), SiteOverTcp::begin)?;
        self.role.begin(self.running, usage)
    }

    /// Closes what [`Self::begin`] has opened, because another process has taken over. What users use is told there.
    pub(super) fn hand_over(&self, usage: UnixStream, busy: BusyNodes) -> Change<R::Node> {
        R::hand_over(self.running, usage);
        if let Some(site) = &self.site {
            site.end();
        }
        self.renewals.take();
        Arc::new(move |node: &mut R::Node| node.hand_over(clock::now(), busy.clone()))
    }

    /// Opens again what [`Self::hand_over`] has closed, because the other process has died.
    pub(super) fn take_back(&self) -> Change<R::Node> {
        // What users have used is still in memory.
        if let Err(error) = self.begin(None) {
            say(format_args!("error: {error}"));
        }
        Arc::new(R::Node::take_back)
    }
}
