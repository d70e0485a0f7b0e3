//! A certificate for development: made at each start, signed by a CA of its own.
//!
//! The CA's certificate can be written to a file for the other side. Its private key signs once and
//! is then forgotten, so that a client with the file trusts this one server and no other. No
//! private key is ever written.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

/// A day before now, for clocks that differ.
const VALID_BEFORE: Duration = Duration::from_secs(24 * 60 * 60);

/// A year: longer than a server for development runs.
const VALID_AFTER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Names that every development certificate has.
pub(crate) const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// A server's certificate and key, and the CA that vouches for it.
#[derive(Debug)]
pub(crate) struct DevelopmentIdentity {
    /// The certificate, signed by the CA.
    pub(crate) certificate: CertificateDer<'static>,
    /// Its private key.
    pub(crate) key: PrivateKeyDer<'static>,
    /// The CA's certificate.
    pub(crate) ca: CertificateDer<'static>,
    /// The CA's certificate in PEM.
    pub(crate) ca_pem: String,
}

impl DevelopmentIdentity {
    /// For loopback and these names.
    pub(crate) fn new(names: &[String]) -> Result<Self, rcgen::Error> {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_key = KeyPair::generate()?;
        ca.distinguished_name.push(DnType::CommonName, ca_name(&ca_key));
        set_validity(&mut ca);
        let ca_certificate = ca.self_signed(&ca_key)?;
        let issuer = Issuer::new(ca, ca_key);

        let loopback = LOOPBACK_NAMES.into_iter().map(str::to_owned);
        let names: Vec<String> = loopback.chain(names.iter().cloned()).collect();
        let mut leaf = CertificateParams::new(names)?;
        leaf.distinguished_name.push(DnType::CommonName, "Tandem development server");
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        set_validity(&mut leaf);
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &issuer)?;
        Ok(Self {
            certificate: certificate.der().clone(),
            key: key.into(),
            ca: ca_certificate.der().clone(),
            ca_pem: ca_certificate.pem(),
        })
    }
}

/// Another name for each key: a CA of the same name with another key would be taken for this one,
/// and its signature called bad.
fn ca_name(key: &KeyPair) -> String {
    let digest = format!("{:x}", Sha256::digest(key.public_key_raw()));
    format!("Tandem development CA {digest:.8}")
}

fn set_validity(params: &mut CertificateParams) {
    #[expect(clippy::disallowed_methods, reason = "certificates are valid in calendar time")]
    let now = SystemTime::now();
    params.not_before = (now - VALID_BEFORE).into();
    params.not_after = (now + VALID_AFTER).into();
}
