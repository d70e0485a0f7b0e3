//! Certificates and keys from PEM files.

use std::path::{Path, PathBuf};

use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

use crate::{files::FileError, process::secret::warn_if_shared};

/// Every certificate of a file, at least one.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let certificates = certificates.map_err(|error| explain(file, error, "CERTIFICATE"))?;
    if certificates.is_empty() {
        return Err(explain(file, pem::Error::NoItemsFound, "CERTIFICATE"));
    }
    Ok(certificates)
}

/// The first private key of a file. Warns if others on this machine can read the file.
pub fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    warn_if_shared(file, "the private key");
    PrivateKeyDer::from_pem_file(file).map_err(|error| explain(file, error, "PRIVATE KEY"))
}

/// The certificates of these files as trust anchors.
pub fn roots(files: &[PathBuf]) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for file in files {
        for certificate in certificates(file)? {
            roots.add(certificate).map_err(|error| FileError::Pem {
                file: file.clone(),
                reason: format!("not a CA certificate: {error}"),
            })?;
        }
    }
    Ok(roots)
}

fn explain(file: &Path, error: pem::Error, section: &str) -> FileError {
    match error {
        pem::Error::Io(error) => FileError::Unreadable { file: file.to_owned(), error },
        pem::Error::NoItemsFound => FileError::Pem {
            file: file.to_owned(),
            reason: format!("no {section} section; allowed: PEM"),
        },
        error => FileError::Pem {
            file: file.to_owned(),
            reason: format!("{error}; allowed: PEM with a {section} section"),
        },
    }
}
