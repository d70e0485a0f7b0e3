use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
};
use tandem_node::tls::{KeyExchange, ServerTrust};

/// A certificate for the hosts of a world. It has the same bytes in every run, because its size
/// determines the number of packets in a handshake. Its private key is part of the source code, so
/// it must not be used outside of virtual time.
#[derive(Debug)]
pub struct TestCertificate {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
    key_exchange: KeyExchange,
}

/// An Ed25519 private key in PKCS #8 (RFC 8410 §7): a fixed header, then 32 bytes.
const KEY: &[u8; 48] = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20\
                        no secret: for virtual time only";

impl TestCertificate {
    /// A self-signed certificate for these DNS names and IP addresses.
    ///
    /// # Panics
    /// It panics if one of the names is not a DNS name.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let key = PrivatePkcs8KeyDer::from(KEY.to_vec());
        let pair = KeyPair::try_from(&key).expect("the key above is valid");
        let names: Vec<_> = names.into_iter().map(str::to_owned).collect();
        let params = CertificateParams::new(names).expect("the names are DNS names");
        let certificate = params.self_signed(&pair).expect("the key can sign");
        let key_exchange = KeyExchange::Classical;
        Self { certificate: certificate.der().clone(), key, key_exchange }
    }

    /// The same certificate for hosts that agree on their keys in this way. [`TestCertificate::new`] has the classical
    /// one, so that a `ClientHello` is one packet, as it was when the papers were written.
    #[must_use]
    pub fn with_key_exchange(self, key_exchange: KeyExchange) -> Self {
        Self { key_exchange, ..self }
    }

    /// The TLS configuration of a server that presents this certificate.
    ///
    /// # Panics
    /// It never panics, because the key belongs to the certificate.
    pub fn server(&self) -> ServerConfig {
        let config = ServerConfig::builder_with_provider(provider(self.key_exchange))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has suites of TLS 1.3");
        config
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key().into())
            .expect("the key belongs to the certificate")
    }

    /// The TLS configuration of a client that trusts only this certificate.
    ///
    /// # Panics
    /// It never panics, because the certificate is valid.
    pub fn client(&self) -> ClientConfig {
        self.trust().tls
    }

    /// The same, and what the client needs for servers that take an Encrypted `ClientHello`.
    ///
    /// # Panics
    /// It never panics, because the certificate is valid.
    pub fn trust(&self) -> ServerTrust {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("the certificate is valid");
        let roots = Arc::new(roots);
        let trust = ServerTrust::new(provider(self.key_exchange), move |builder| {
            Ok(builder.with_root_certificates(roots.clone()).with_no_client_auth())
        });
        trust.expect("the provider has suites of TLS 1.3")
    }
}

fn provider(key_exchange: KeyExchange) -> Arc<CryptoProvider> {
    let kx_groups = tandem_node::tls::provider(key_exchange).kx_groups.clone();
    Arc::new(CryptoProvider { kx_groups, ..ring::default_provider() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_is_the_same_every_time() {
        let certificate = || TestCertificate::new(["origin.test", "10.0.0.1"]).certificate;
        assert_eq!(certificate(), certificate());
    }

    #[test]
    fn it_makes_a_server_and_a_client() {
        let certificate = TestCertificate::new(["origin.test"]);
        certificate.server();
        certificate.client();
    }
}
