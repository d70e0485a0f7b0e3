//! Where certificates by ACME come from, and for which names.

use std::{net::SocketAddr, path::PathBuf};

use serde::Serialize;
#[cfg(feature = "acme")]
use url::Url;

/// Where certificates come from, and for which names.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct AcmeSetup {
    /// The names of the certificate.
    pub acme_domain: Vec<String>,
    /// Where the certificate and the account are kept.
    pub acme_folder: PathBuf,
    /// An address for mail from the certificate authority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acme_contact: Option<String>,
    /// The URL of the ACME directory.
    pub acme_directory: String,
    /// The CA of the directory itself. `None`: those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acme_ca: Option<PathBuf>,
    /// Where the certificate authority finds the proof.
    pub acme_listen: SocketAddr,
}

impl AcmeSetup {
    /// The directory of Let's Encrypt.
    #[cfg(feature = "acme")]
    pub const DIRECTORY: &str = instant_acme::LetsEncrypt::Production.url();

    /// The file that has the certificate chain and its private key.
    pub fn file(&self) -> PathBuf {
        self.acme_folder.join("certificate.pem")
    }

    /// The names of the certificate.
    pub fn names(&self) -> &[String] {
        &self.acme_domain
    }

    /// The host of the certificate authority.
    #[cfg(feature = "acme")]
    pub(crate) fn host(&self) -> String {
        let url = Url::parse(&self.acme_directory).ok();
        url.and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
    }
}
