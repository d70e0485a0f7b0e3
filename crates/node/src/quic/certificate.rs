//! What the certificate of a client calls it.

use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::proxy::is_own_name;

/// The common name of a certificate's subject. A certificate whose common name cannot stand in a log, or is that
/// of clients that show nothing, is called after its fingerprint.
pub(super) fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    common_name(certificate).or_else(|| {
        let digest = digest(&SHA256, certificate);
        let start = digest.as_ref().first_chunk().copied().map(u64::from_be_bytes)?;
        Some(format!("cert-{start:016x}"))
    })
}

fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let names = parsed.subject().iter_common_name();
    let mut names = names.filter_map(|name| name.as_str().ok());
    names.next().filter(|name| is_own_name(name)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn named(name: &str) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name.remove(DnType::CommonName);
        if !name.is_empty() {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        let key = KeyPair::generate().unwrap();
        name_of(params.self_signed(&key).unwrap().der()).unwrap()
    }

    #[test]
    fn a_client_is_called_after_its_subject_or_its_fingerprint() {
        assert_eq!(named("alice@example.org"), "alice@example.org");
        let long = "x".repeat(129);
        for unusable in
            ["", "two words", "line\nbreak", "\u{1b}[2J", "\u{e4}", "anyone", long.as_str()]
        {
            let name = named(unusable);
            assert!(name.starts_with("cert-") && name.len() == 21, "{unusable:?}: {name}");
        }
        assert_ne!(named(""), named(""));
    }
}
