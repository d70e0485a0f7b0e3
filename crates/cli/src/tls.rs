//! TLS of clients: the CAs that a client trusts, and the certificate that it sends.

use std::{path::PathBuf, sync::Arc};

use clap::{ArgMatches, builder::Resettable};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};
use rustls_platform_verifier::Verifier;
use serde::Serialize;
use serde_with::{DisplayFromStr, serde_as};
use sha2::{Digest, Sha256};
use tandem_node::tls::ServerTrust;
use tandem_server::tls::{pem, provider};

use crate::{error::ConfigError, link::Fingerprint, text};

/// Flags of a client, and keys of its file.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ClientTlsSettings {
    /// Trust the CA certificates of this PEM file instead of the system's; repeatable, or
    /// several with commas between
    #[arg(long, value_name = "FILE", env = "TANDEM_CA", value_delimiter = ',', help_heading = Resettable::Reset)]
    ca: Vec<PathBuf>,

    /// Trust the proxy whose certificate has this SHA-256 fingerprint, and no other, whatever its name is; for a
    /// proxy without a domain
    ///
    /// It has 64 hexadecimal digits, perhaps with colons between, as `openssl x509 -fingerprint -sha256` prints it.
    #[arg(long, value_name = "HEX", env = "TANDEM_PROXY_SHA256")]
    proxy_sha256: Option<Fingerprint>,

    /// Do not check the server's certificate; for tests only
    #[arg(long, value_name = "BOOL", env = "TANDEM_INSECURE", help_heading = Resettable::Reset,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    insecure: Option<bool>,

    /// Certificate chain in PEM to send to proxies that request one
    #[arg(long, value_name = "FILE", env = "TANDEM_CLIENT_CERT")]
    client_cert: Option<PathBuf>,

    /// Private key of the client certificate in PEM
    #[arg(long, value_name = "FILE", env = "TANDEM_CLIENT_KEY")]
    client_key: Option<PathBuf>,
}

impl ClientTlsSettings {
    /// Each of `ca`, `insecure` and `proxy-sha256` excludes the others in a file.
    pub(crate) fn yield_to(&mut self, given: &ArgMatches) {
        if ["ca", "insecure", "proxy_sha256"].iter().any(|id| given.contains_id(id)) {
            (self.ca, self.insecure, self.proxy_sha256) = (Vec::new(), None, None);
        }
    }
}

/// The checked form of [`ClientTlsSettings`].
#[serde_as]
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ClientTlsSetup {
    ca: Vec<PathBuf>,
    #[serde_as(as = "Option<DisplayFromStr>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_sha256: Option<Fingerprint>,
    insecure: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_cert: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key: Option<PathBuf>,
}

impl TryFrom<ClientTlsSettings> for ClientTlsSetup {
    type Error = ConfigError;

    fn try_from(settings: ClientTlsSettings) -> Result<Self, ConfigError> {
        let ClientTlsSettings { ca, proxy_sha256, insecure, client_cert, client_key } = settings;
        let insecure = insecure.unwrap_or_default();
        if insecure && !ca.is_empty() {
            let reason = "insecure turns the check against a CA off";
            return Err(ConfigError::Conflict { first: "ca", second: "insecure", reason });
        }
        if insecure && proxy_sha256.is_some() {
            let (first, second) = ("proxy-sha256", "insecure");
            let reason = "insecure turns the check of the certificate off";
            return Err(ConfigError::Conflict { first, second, reason });
        }
        let reason = "a certificate is used with its private key";
        match (&client_cert, &client_key) {
            (Some(_), None) => {
                Err(ConfigError::Incomplete { first: "client-cert", second: "client-key", reason })
            }
            (None, Some(_)) => {
                Err(ConfigError::Incomplete { first: "client-key", second: "client-cert", reason })
            }
            (None, None) | (Some(_), Some(_)) => {
                Ok(Self { ca, proxy_sha256, insecure, client_cert, client_key })
            }
        }
    }
}

impl ClientTlsSetup {
    /// Trust in these CAs, or in those of the system if there are none, without a certificate of the
    /// client.
    pub(crate) fn trusting(ca: Vec<PathBuf>) -> Self {
        Self::of_proxy(ca, None)
    }

    /// The same, or trust in the proxy whose certificate has this fingerprint.
    pub(crate) fn of_proxy(ca: Vec<PathBuf>, proxy_sha256: Option<Fingerprint>) -> Self {
        Self { ca, proxy_sha256, insecure: false, client_cert: None, client_key: None }
    }

    /// TLS 1.3 as this setup says.
    pub(crate) fn read(&self) -> Result<ClientTls, ConfigError> {
        let provider = provider();
        let verifier: Arc<dyn ServerCertVerifier> = if self.insecure {
            Arc::new(KeyHolder::of(Trusted::Any))
        } else if self.ca.is_empty() {
            Arc::new(Verifier::new(provider.clone()).map_err(ConfigError::NoSystemCa)?)
        } else {
            trusting(pem::roots(&self.ca)?)
        };
        let of_proxy = match self.proxy_sha256 {
            Some(fingerprint) => Arc::new(KeyHolder::of(Trusted::Fingerprint(fingerprint))),
            None => verifier.clone(),
        };
        let identity = match (&self.client_cert, &self.client_key) {
            (Some(cert), Some(key)) => {
                let (chain, key) = (pem::certificates(cert)?, pem::private_key(key)?);
                Some(CertifiedKey::from_der(chain, key, &provider)?)
            }
            _ => None,
        };
        Ok(ClientTls { proxy: towards(of_proxy, identity)?, origin: towards(verifier, None)? })
    }

    /// Warns if certificates are not checked.
    pub(crate) fn warn(&self) {
        if self.insecure {
            text::say(
                "warning: --insecure: certificates are NOT checked; an attacker on the path can read \
                 and change everything",
            );
        }
    }
}

/// TLS towards both kinds of servers.
pub(crate) struct ClientTls {
    /// For proxies.
    pub(crate) proxy: ServerTrust,
    /// For origins, which never receive the client's certificate.
    pub(crate) origin: ServerTrust,
}

/// TLS 1.3 towards one kind of servers.
fn towards(
    verifier: Arc<dyn ServerCertVerifier>,
    identity: Option<CertifiedKey>,
) -> Result<ServerTrust, rustls::Error> {
    let identity = identity.map(|identity| Arc::new(SingleCertAndKey::from(identity)));
    ServerTrust::new(provider(), move |builder| {
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier.clone());
        Ok(match &identity {
            Some(identity) => builder.with_client_cert_resolver(identity.clone()),
            None => builder.with_no_client_auth(),
        })
    })
}

/// TLS 1.3 that trusts one CA, which need not be in a file.
#[cfg(feature = "lab")]
pub(crate) fn trusting_ca(ca: CertificateDer<'static>) -> Result<ClientConfig, ConfigError> {
    let mut roots = RootCertStore::empty();
    roots.add(ca)?;
    Ok(ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

fn trusting(roots: RootCertStore) -> Arc<WebPkiServerVerifier> {
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
    verifier.build().expect("there is at least one root, and no revocation list")
}

/// TLS 1.3 that trusts one server's certificate and no other, whatever the server's name is.
pub(crate) fn pinned(certificate: CertificateDer<'static>) -> Result<ClientConfig, ConfigError> {
    let verifier = KeyHolder::of(Trusted::Certificate(certificate));
    Ok(ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

/// Accepts a server that holds the key of its certificate, without a CA.
#[derive(Debug)]
struct KeyHolder {
    trusted: Trusted,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Which certificate a server may have.
#[derive(Debug)]
enum Trusted {
    /// Every one.
    Any,
    /// This one.
    Certificate(CertificateDer<'static>),
    /// The one with this fingerprint.
    Fingerprint(Fingerprint),
}

impl KeyHolder {
    fn of(trusted: Trusted) -> Self {
        Self { trusted, algorithms: provider().signature_verification_algorithms }
    }
}

impl ServerCertVerifier for KeyHolder {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_trusted = match &self.trusted {
            Trusted::Any => true,
            Trusted::Certificate(only) => only == certificate,
            Trusted::Fingerprint(Fingerprint(digest)) => {
                Sha256::digest(certificate).as_slice() == digest
            }
        };
        if !is_trusted {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("QUIC has TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use rustls::internal::msgs::codec::{Codec, Reader};

    use super::*;

    #[test]
    fn one_certificate_is_trusted_under_every_name_and_no_other() {
        let make = || {
            let params = CertificateParams::new(["a.example".to_owned()]).unwrap();
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
        };
        let (one, other) = (make(), make());
        let fingerprint = Fingerprint(Sha256::digest(&one).into());
        for trusted in [Trusted::Certificate(one.clone()), Trusted::Fingerprint(fingerprint)] {
            let verifier = KeyHolder::of(trusted);
            let verify = |certificate: &CertificateDer<'_>, chain: &[CertificateDer<'_>]| {
                let name = ServerName::try_from("b.example").unwrap();
                verifier.verify_server_cert(certificate, chain, &name, &[], UnixTime::now())
            };
            assert!(verify(&one, &[]).is_ok());
            // The pinned certificate has to be the server's own, not one of those that come with it.
            let refused = CertificateError::ApplicationVerificationFailure;
            assert_eq!(verify(&other, std::slice::from_ref(&one)).unwrap_err(), refused.into());
            // The server has to hold the certificate's key.
            let bytes = [&[8, 7, 0, 64][..], &[7; 64]].concat(); // Ed25519, and 64 bytes
            let signature = DigitallySignedStruct::read(&mut Reader::init(&bytes)).unwrap();
            assert!(verifier.verify_tls13_signature(b"message", &one, &signature).is_err());
        }
    }
}
