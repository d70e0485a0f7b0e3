//! TLS of clients. It counts the certificates that were checked, which is how often a session was not resumed.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::Result;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};

use crate::tunnel::Protocol;

#[derive(Debug)]
pub struct Verifier {
    webpki: Arc<WebPkiServerVerifier>,
    checked: AtomicUsize,
}

impl Verifier {
    pub fn new(ca: &str) -> Result<Arc<Self>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(ca)?)?;
        let webpki = WebPkiServerVerifier::builder(roots.into()).build()?;
        Ok(Arc::new(Self { webpki, checked: AtomicUsize::new(0) }))
    }

    pub fn checked(&self) -> usize {
        self.checked.load(Ordering::Relaxed)
    }

    pub fn config(
        self: &Arc<Self>,
        protocol: Protocol,
        resumption: Resumption,
    ) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS13]);
        let verifier: Arc<Self> = self.clone();
        let mut config =
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        config.alpn_protocols = protocol.alpn();
        config.resumption = resumption;
        Arc::new(config)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.checked.fetch_add(1, Ordering::Relaxed);
        self.webpki.verify_server_cert(end_entity, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
