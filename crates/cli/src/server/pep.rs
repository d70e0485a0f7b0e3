//! The settings that make a proxy a PEP.

use std::path::PathBuf;

use tandem_pep::Servers;
use tandem_server::role::ProxyPepSetup;

use crate::error::ConfigError;

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ProxyPepSettings {
    /// File with the PEP that the proxy is: ID KEY; it then tells the servers of --pep-server which of
    /// their QUIC packets it has received (docs/guide/pep.md)
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
