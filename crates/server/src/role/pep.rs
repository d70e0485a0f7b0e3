//! A proxy that is also a PEP.

use std::path::PathBuf;

use serde::Serialize;
use tandem_node::proxy::PepSettings;
use tandem_pep::{Config, Servers, TcpForm};

use crate::files::{FileError, peps};

/// How many flows a PEP knows at a time: 1.5 kB each.
const FLOWS_MAX: usize = 10_000;

/// The PEP that a proxy is, if it is one.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProxyPepSetup {
    /// The file with the ID and the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pep_file: Option<PathBuf>,
    /// The servers that it tells what it has received.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pep_server: Vec<Servers>,
}

impl ProxyPepSetup {
    /// The PEP as a node knows it. `None`: the proxy is none.
    pub fn to_node(&self) -> Result<Option<PepSettings>, FileError> {
        let Some(file) = &self.pep_file else { return Ok(None) };
        let (id, key) = peps::read_one(file)?;
        let pep = Config { id, key, flows_max: FLOWS_MAX, tcp_form: TcpForm::default() };
        Ok(Some(PepSettings { pep, servers: self.pep_server.clone() }))
    }
}
