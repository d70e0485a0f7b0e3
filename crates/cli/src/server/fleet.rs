//! The settings of a machine in a fleet behind a load balancer.

use std::path::PathBuf;

use tandem_server::fleet::{FleetSetup, ServerId};

use crate::error::ConfigError;

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct FleetSettings {
    /// File that all machines of a fleet behind a load balancer have (tandem generate fleet); the load balancer
    /// routes packets by connection IDs, which name the machine (docs/guide/fleet.md)
    #[arg(long, value_name = "FILE", env = "TANDEM_FLEET_FILE", help_heading = "Fleet")]
    fleet_file: Option<PathBuf>,

    /// Number of this machine in its fleet, in hexadecimal digits, such as 0a01
    #[arg(long, value_name = "HEX", env = "TANDEM_SERVER_ID", help_heading = "Fleet")]
    server_id: Option<ServerId>,
}

impl TryFrom<FleetSettings> for FleetSetup {
    type Error = ConfigError;

    fn try_from(settings: FleetSettings) -> Result<Self, ConfigError> {
        let FleetSettings { fleet_file, server_id } = settings;
        let incomplete =
            |first, second, reason| Err(ConfigError::Incomplete { first, second, reason });
        match (&fleet_file, &server_id) {
            (Some(_), None) => incomplete(
                "fleet-file",
                "server-id HEX",
                "each machine of a fleet has its own number",
            ),
            (None, Some(_)) => incomplete(
                "server-id",
                "fleet-file FILE",
                "the file says how connection IDs name the machine",
            ),
            _ => Ok(Self { fleet_file, server_id }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_setting_needs_the_other() {
        for settings in [
            FleetSettings { fleet_file: Some("fleet.toml".into()), server_id: None },
            FleetSettings { fleet_file: None, server_id: Some("01".parse().unwrap()) },
        ] {
            let error = FleetSetup::try_from(settings).unwrap_err();
            assert!(matches!(error, ConfigError::Incomplete { .. }), "{error}");
        }
    }
}
