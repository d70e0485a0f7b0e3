//! A certificate for development and tests, signed by a CA of its own.
//!
//! The CA's private key signs once and is then forgotten, so that a client with the CA's certificate
//! trusts this one server certificate and no other.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use sha2::{Digest, Sha256};
use x509_parser::prelude::ASN1Time;

use super::certificate;
use crate::{
    files::FileError,
    process::{WriteError, secret::write_new},
    tls::TlsError,
};

/// A day before now, for clocks that differ.
const VALID_BEFORE: Duration = Duration::from_secs(24 * 60 * 60);

/// A year: longer than a server for development runs.
const VALID_AFTER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Names that every development certificate has.
pub const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// A server's certificate and key, and the CA that vouches for it.
#[derive(Debug)]
pub struct DevelopmentIdentity {
    /// The certificate, signed by the CA.
    pub certificate: CertificateDer<'static>,
    /// Its private key.
    pub key: PrivateKeyDer<'static>,
    /// The CA's certificate.
    pub ca: CertificateDer<'static>,
    /// The CA's certificate in PEM.
    pub ca_pem: String,
    certificate_pem: String,
}

impl DevelopmentIdentity {
    /// For loopback and these names.
    pub fn new(names: &[String]) -> Result<Self, TlsError> {
        check_names(names)?;
        // Nothing else can be wrong.
        Self::make(names).map_err(|_| TlsError::Name { name: names.join(" ") })
    }

    fn make(names: &[String]) -> Result<Self, rcgen::Error> {
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
            certificate_pem: certificate.pem(),
        })
    }

    /// Writes `ca.pem`, `cert.pem` and `key.pem` into a folder, which it makes if there is none. No
    /// file is overwritten, and only the owner can read the key. Returns what to tell the user.
    ///
    /// # Panics
    ///
    /// Never: a key that was made here can be written.
    pub fn write(&self, folder: &Path) -> Result<String, TlsError> {
        fs::create_dir_all(folder).map_err(WriteError::of(folder))?;
        let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| folder.join(name));
        if let Some(file) = [&ca, &cert, &key].into_iter().find(|file| file.exists()) {
            return Err(FileError::Exists { file: file.clone() }.into());
        }
        let key_pair = KeyPair::try_from(&self.key).expect("it was made here");
        write_new(&key, key_pair.serialize_pem(), 0o600)?;
        write_new(&cert, &self.certificate_pem, 0o644)?;
        write_new(&ca, &self.ca_pem, 0o644)?;
        let chain = [self.certificate.clone()];
        let report = certificate::inspect(&chain, &cert, ASN1Time::now());
        let summary = report.map(|report| report.summary).unwrap_or_default();
        let [ca, cert, key] = [ca, cert, key].map(|file: PathBuf| file.display().to_string());
        Ok(format!("{summary}\nservers:  --cert {cert} --key {key}\nclients:  --ca {ca}"))
    }
}

/// Fails unless every name can be that of a server.
pub fn check_names(names: &[String]) -> Result<(), TlsError> {
    let is_bad = |name: &&String| ServerName::try_from(name.as_str()).is_err();
    match names.iter().find(is_bad) {
        Some(name) => Err(TlsError::Name { name: name.clone() }),
        None => Ok(()),
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
