//! The settings that make a proxy a PEP.

use std::path::PathBuf;

use serde::Serialize;
use tandem_node::proxy::PepSettings;
use tandem_pep::{Config, Servers, TcpForm};

use crate::{
    error::{ConfigError, FileError},
    peps,
};

/// How many flows a PEP knows at a time: 1.5 kB each.
const FLOWS_MAX: usize = 10_000;

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ProxyPepSettings {
    /// File with the PEP that the proxy is: ID KEY; it then tells the servers of --pep-server which of
    /// their QUIC packets it has received (docs/pep.md)
    #[arg(long, value_name = "FILE", env = "TANDEM_PEP_FILE", help_heading = "Feedback")]
    pep_file: Option<PathBuf>,

    /// Servers that understand PEP-ACKs, as PREFIX or PREFIX:PORT; repeatable, or several with commas
    /// between
    #[arg(
        long,
        value_name = "SERVERS",
        env = "TANDEM_PEP_SERVER",
        value_delimiter = ',',
        help_heading = "Feedback"
    )]
    pep_server: Vec<Servers>,
}

/// The settings that the proxy runs with.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ProxyPepSetup {
    #[serde(skip_serializing_if = "Option::is_none")]
    pep_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pep_server: Vec<Servers>,
}

impl TryFrom<ProxyPepSettings> for ProxyPepSetup {
    type Error = ConfigError;

    fn try_from(settings: ProxyPepSettings) -> Result<Self, ConfigError> {
        let ProxyPepSettings { pep_file, pep_server } = settings;
        let incomplete =
            |first, second, reason| Err(ConfigError::Incomplete { first, second, reason });
        match (&pep_file, pep_server.is_empty()) {
            (Some(_), true) => {
                incomplete("pep-file", "pep-server SERVERS", "no other server is told anything")
            }
            (None, false) => incomplete(
                "pep-server",
                "pep-file FILE",
                "servers know a PEP by its ID and its key",
            ),
            _ => Ok(Self { pep_file, pep_server }),
        }
    }
}

impl ProxyPepSetup {
    pub(crate) fn to_node(&self) -> Result<Option<PepSettings>, FileError> {
        let Some(file) = &self.pep_file else { return Ok(None) };
        let (id, key) = peps::read_one(file)?;
        let pep = Config { id, key, flows_max: FLOWS_MAX, tcp_form: TcpForm::default() };
        Ok(Some(PepSettings { pep, servers: self.pep_server.clone() }))
    }
}
