//! The settings of a [`Client`](super::Client), with defaults for tunnels.

use std::{fmt, sync::Arc};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::BuilderVerifierExt;
use tandem_node::{
    client::{HopConfig, Template, TunnelMode},
    limits::Limits,
    proxy::Token,
    tls::{KeyExchange, ServerTrust, provider},
};

use super::ClientError;
use crate::driver::DriverOptions;

/// The settings of a [`Client`](super::Client) with one proxy. The defaults are right for tunnels:
/// the system's CAs, no token, mode `mdt`.
#[derive(Clone)]
pub struct ClientOptions {
    url: String,
    token: Option<String>,
    ca: Option<Vec<u8>>,
    mode: TunnelMode,
    pub(super) requires_mode: bool,
    pub(super) limits: Limits,
    pub(super) driver: DriverOptions,
}

impl ClientOptions {
    /// The proxy with this URL: `https://HOST:PORT`, or a URI template with `{target_host}` and
    /// `{target_port}` (RFC 9298 §2).
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            token: None,
            ca: None,
            mode: TunnelMode::default(),
            requires_mode: false,
            limits: Limits::default(),
            driver: DriverOptions::default(),
        }
    }

    /// Shows this token to the proxy.
    #[must_use]
    pub fn token(self, token: impl Into<String>) -> Self {
        Self { token: Some(token.into()), ..self }
    }

    /// Trusts the CA certificates of this PEM text instead of the system's.
    #[must_use]
    pub fn ca(self, pem: impl Into<Vec<u8>>) -> Self {
        Self { ca: Some(pem.into()), ..self }
    }

    /// Asks the proxy for this mode. A proxy that does not have it grants another one, which
    /// [`UdpFlow::agreement`](super::UdpFlow::agreement) tells.
    #[must_use]
    pub const fn mode(mut self, mode: TunnelMode) -> Self {
        self.mode = mode;
        self
    }

    /// Ends the client with an error if the proxy grants another mode than was asked for.
    #[must_use]
    pub const fn require_mode(mut self) -> Self {
        self.requires_mode = true;
        self
    }

    /// Sets the bounds on what the client uses. [`Limits::retry`] says for how long it tries to
    /// connect.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the options of the driver, for example another resolver.
    #[must_use]
    pub fn driver(self, driver: DriverOptions) -> Self {
        Self { driver, ..self }
    }

    /// The settings of the hop to the proxy.
    pub(super) fn hop(&self) -> Result<HopConfig, ClientError> {
        let template = Template::of_proxy(&self.url)
            .map_err(|error| ClientError::Url { url: self.url.as_str().into(), error })?;
        let token = self.token.as_deref().map(Token::parse).transpose()?;
        let ServerTrust { tls, ech } = self.trust()?;
        let hop = HopConfig::new(template, tls);
        Ok(HopConfig { token, mode: self.mode, ech: Some(ech), ..hop })
    }

    /// TLS 1.3 with the CAs that were chosen.
    fn trust(&self) -> Result<ServerTrust, ClientError> {
        let provider = provider(KeyExchange::Hybrid);
        let Some(pem) = &self.ca else {
            let system = ServerTrust::new(provider, |builder| {
                Ok(builder.with_platform_verifier()?.with_no_client_auth())
            });
            return system.map_err(|error| fault(&error));
        };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| fault(&error))?;
            roots.add(certificate).map_err(|error| fault(&error))?;
        }
        if roots.is_empty() {
            return Err(ClientError::Trust("the PEM text has no certificate".into()));
        }
        let roots = Arc::new(roots);
        let given = ServerTrust::new(provider, move |builder| {
            Ok(builder.with_root_certificates(roots.clone()).with_no_client_auth())
        });
        given.map_err(|error| fault(&error))
    }
}

fn fault(error: &dyn fmt::Display) -> ClientError {
    ClientError::Trust(error.to_string().into())
}

impl fmt::Debug for ClientOptions {
    /// Leaves out the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("url", &self.url)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
