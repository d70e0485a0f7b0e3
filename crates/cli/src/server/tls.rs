//! The settings of a server's certificate.

use std::path::PathBuf;

use clap::builder::Resettable;
use tandem_server::tls::{ServerTlsSetup, check_names};

#[cfg(feature = "acme")]
use super::acme::AcmeSettings;
use crate::error::ConfigError;

/// Flags of a server, and keys of its file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ServerTlsSettings {
    /// Certificate chain in PEM (`tandem generate certificate` makes one); without it, each start makes a
    /// certificate for development
    #[arg(long, value_name = "FILE", env = "TANDEM_CERT", help_heading = Resettable::Reset)]
    cert: Option<PathBuf>,

    /// Private key of the certificate in PEM
    #[arg(long, value_name = "FILE", env = "TANDEM_KEY", help_heading = Resettable::Reset)]
    key: Option<PathBuf>,

    /// File to write the CA of the development certificate to; clients trust it with --ca
    #[arg(long, value_name = "FILE", env = "TANDEM_WRITE_CA")]
    write_ca: Option<PathBuf>,

    /// Host name or IP address for the development certificate, besides localhost; repeatable
    #[arg(long, value_name = "NAME", env = "TANDEM_NAME", value_delimiter = ',')]
    name: Vec<String>,

    #[cfg(feature = "acme")]
    #[command(flatten)]
    acme: AcmeSettings,
}

impl TryFrom<ServerTlsSettings> for ServerTlsSetup {
    type Error = ConfigError;

    fn try_from(settings: ServerTlsSettings) -> Result<Self, ConfigError> {
        #[cfg(feature = "acme")]
        let acme = settings.acme;
        let ServerTlsSettings { cert, key, write_ca, name, .. } = settings;
        #[cfg(feature = "acme")]
        if let Some(acme) = acme.check()? {
            let (second, reason) = ("acme-folder", "the certificate comes from one of them");
            let others = [
                ("cert", cert.is_some()),
                ("key", key.is_some()),
                ("write-ca", write_ca.is_some()),
                ("name", !name.is_empty()),
            ];
            return match others.into_iter().find(|(_, is_set)| *is_set) {
                Some((first, _)) => Err(ConfigError::Conflict { first, second, reason }),
                None => Ok(Self::Acme(acme)),
            };
        }
        let reason = "a certificate is used with its private key";
        match (cert, key) {
            (Some(_), None) => {
                Err(ConfigError::Incomplete { first: "cert", second: "key", reason })
            }
            (None, Some(_)) => {
                Err(ConfigError::Incomplete { first: "key", second: "cert", reason })
            }
            (Some(cert), Some(key)) => {
                let reason = "it belongs to development certificates, and a certificate was given";
                if write_ca.is_some() {
                    return Err(ConfigError::Conflict {
                        first: "write-ca",
                        second: "cert",
                        reason,
                    });
                }
                if !name.is_empty() {
                    return Err(ConfigError::Conflict { first: "name", second: "cert", reason });
                }
                Ok(Self::Files { cert, key })
            }
            (None, None) => {
                check_names(&name)?;
                Ok(Self::Development { write_ca, name })
            }
        }
    }
}
