//! A server from its settings to its end.

use std::{net::SocketAddr, path::PathBuf};

use tandem_net::{DriverOptions, site::Upstream};
use tandem_node::{
    limits::Limits,
    quic::{Returning, ServerTls, Transport},
};

use super::{changes::Changes, orders::Orders, run};
use crate::{
    admin::{self, Admin},
    capacity::memory,
    error::{ServeError, SetupError},
    process::say_listening,
    role::Role,
    setup::Setup,
    site::SiteOverTcp,
    takeover::Address,
    tls::{Identity, Stamps},
};

/// Runs a server until a signal ends it, which is not an error. A second signal ends it at once.
///
/// A thread that does not come back to its event loop is an error in the log. The others go on.
///
/// SIGHUP lets the server read its files again, and those of its certificate are read again when they have changed.
/// SIGUSR2 lets another process take over the address, in which the program is started again with the same arguments.
pub fn serve<R: Role>(role: &R, setup: &Setup) -> Result<(), ServeError> {
    Prepared::new(role, setup)?.serve()
}

/// A server whose settings are good, and that has written nothing.
pub struct Prepared<'a, R: Role> {
    role: &'a R,
    setup: &'a Setup,
    /// The look at the files of the certificate after which they were read.
    read: Stamps,
    identity: Identity,
    transport: Transport,
    config: R::Config,
    tls: ServerTls,
    limits: Limits,
}

impl<'a, R: Role> Prepared<'a, R> {
    /// Reads all files.
    pub fn new(role: &'a R, setup: &'a Setup) -> Result<Self, ServeError> {
        let read = Stamps::of(&certificate_files(role, setup));
        let identity = setup.tls.identity()?;
        let transport = Transport {
            reset_secret: identity.reset_secret(),
            fleet: setup.fleet.to_node()?,
            returning: Some(Returning::new()),
            ..setup.transport.to_node(R::NAME.as_str(), R::WORK)
        };
        let tls = setup.tls.server_config(&identity, role.client_ca())?;
        let config = role.config(setup.listen, tls.clone())?;
        let tls = ServerTls::new(tls)?;
        identity.report();
        let limits = role.limits(setup);
        Ok(Self { role, setup, read, identity, transport, config, tls, limits })
    }

    /// The limits that are in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// As [`serve()`].
    pub fn serve(self) -> Result<(), ServeError> {
        self.run(Orders::of_signals, say_listening)
    }

    /// Runs the server until its orders end it. `on_listening` gets its address.
    pub(super) fn run(
        self,
        orders: impl FnOnce() -> Result<Orders, ServeError>,
        on_listening: impl Fn(SocketAddr) + Sync,
    ) -> Result<(), ServeError> {
        let Self { identity, config, limits, .. } = &self;
        let (role, setup) = (self.role, self.setup);
        role.check(limits)?;
        let (threads, users) = (setup.threads.0, R::users(config));
        let upstream = R::upstream(config);
        let behind = admin::Behind { users, upstream: upstream.map(Upstream::watch) };
        let admin = Admin::new(setup.admin.as_ref(), R::NAME, threads, limits, behind);
        let (nodes, address) = self.nodes()?;
        // A process that cannot take over has written nothing.
        identity.announce()?;
        let listen = address.local_addr().unwrap_or(setup.listen);
        let site = role.site_over_tcp(config);
        let site = site.map(|(content, tls)| SiteOverTcp::new(listen, content, tls.clone()));
        let running = role.start(config, setup)?;
        let changes = Changes::new(role, setup, (identity, &running), site);
        let look = |index, node: &mut R::Node, driver: &_| {
            R::look(&running, (index, node), driver, admin.as_ref());
        };
        let (on_listening, admin) = (&on_listening, admin.as_ref());
        let seen = run::Seen { look: &look, on_listening, admin, upstream };
        run::run(nodes, address, (&changes, self.read.clone()), &seen, orders)
    }

    /// A node for each thread. They listen at the same address.
    fn nodes(&self) -> Result<(run::Nodes<R::Node>, Address), ServeError> {
        let Self { role, setup, transport, config, limits, .. } = self;
        let grace = run::grace(limits);
        let memory_in_use = Some(memory::gauge(setup.memory.0));
        memory::warn_of_group(setup.memory.0);
        let is_watched = setup.admin.is_some() || role.is_watched();
        let tick = is_watched.then_some(admin::INTERVAL);
        let limits = limits.clone().divided_by(setup.threads.0);
        let address = Address::open(setup.listen, setup.threads, transport.fleet.as_ref())?;
        let mut nodes = Vec::new();
        for listener in address.listeners() {
            let transport = Transport {
                steering: listener.steering(),
                other_process: address.other_process(),
                reset_secret: address.reset_secret(transport.reset_secret.as_ref()),
                ..transport.clone()
            };
            let (node, site) = role.node(config, &self.tls, (transport, limits.clone()))?;
            let listener = Some(listener);
            let default = DriverOptions::default();
            let pause = setup.transport.pause.0;
            let options =
                DriverOptions { listener, site, grace, memory_in_use, tick, pause, ..default };
            nodes.push((node, options));
        }
        Ok((nodes, address))
    }
}

/// The files that are read again when they change.
pub(super) fn certificate_files<R: Role>(role: &R, setup: &Setup) -> Vec<PathBuf> {
    let ca = role.client_ca().map(Into::into);
    setup.tls.files().into_iter().chain(ca).collect()
}

/// The certificate in the files, and TLS with it: for QUIC, and for TCP.
pub(super) fn reread<R: Role>(
    role: &R,
    setup: &Setup,
    identity: &Identity,
) -> Result<(Identity, ServerTls, rustls::ServerConfig), SetupError> {
    let new = setup.tls.reread(identity)?;
    let tls = setup.tls.server_config(&new, role.client_ca())?;
    Ok((new, ServerTls::new(tls.clone())?, tls))
}
