//! `tandem proxy` and `tandem origin`: the settings of servers, which `tandem_server` runs.

#[cfg(feature = "acme")]
mod acme;
mod fleet;
mod origin;
mod pep;
mod proxy;
mod site;
mod tls;
mod users;

use serde::Serialize;
use tandem_node::limits::Limits;
use tandem_server::{Prepared, Setup, role::Role};

pub(crate) use self::{
    origin::{Origin, OriginSettings},
    proxy::{Proxy, ProxySettings},
};
use crate::{
    config::{Layered, Settings},
    error::CliError,
    text,
};

/// The settings that a server runs with.
#[derive(Debug, Serialize)]
pub(crate) struct Served<R> {
    #[serde(flatten)]
    pub(crate) setup: Setup,
    #[serde(flatten)]
    pub(crate) role: R,
}

/// Runs a server with these settings until a signal ends it, or prints them if that was asked for.
fn serve<R: Role>(settings: &Layered<impl Settings<Setup = Served<R>>>) -> Result<(), CliError> {
    let served = settings.load()?;
    served.run(|limits| settings.checked(&served, limits))
}

impl<R: Role> Served<R> {
    /// Runs the server until a signal ends it. `checked` returns what to print instead of a run, if that was asked
    /// for.
    pub(crate) fn run(
        &self,
        checked: impl FnOnce(&Limits) -> Option<String>,
    ) -> Result<(), CliError> {
        let server = Prepared::new(&self.role, &self.setup)?;
        if let Some(checked) = checked(server.limits()) {
            return text::print(checked.trim_end());
        }
        Ok(server.serve()?)
    }
}
