//! A server's certificate, and whether it requests one from clients.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ServerConfig,
    crypto::ring::Ticketer,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tandem_node::quic::ResetSecret;
use x509_parser::prelude::ASN1Time;

use super::{
    DevelopmentIdentity, acme::AcmeSetup, certificate, development::LOOPBACK_NAMES, pem, provider,
};
use crate::{
    files::FileError,
    process::{WriteError, say},
    tls::TlsError,
};

/// Where the certificate of a server comes from.
#[derive(Debug, Serialize)]
#[serde(untagged, rename_all_fields = "kebab-case")]
pub enum ServerTlsSetup {
    /// The operator's certificate.
    Files {
        /// Certificate chain.
        cert: PathBuf,
        /// Private key.
        key: PathBuf,
    },
    /// A certificate that clients trust by its bytes alone, so that its names and its end do not matter.
    Pinned {
        /// The certificate and its private key.
        file: PathBuf,
    },
    /// A certificate that this server gets and renews.
    Acme(AcmeSetup),
    /// A certificate made at the start.
    Development {
        /// The file for the CA.
        #[serde(skip_serializing_if = "Option::is_none")]
        write_ca: Option<PathBuf>,
        /// Names besides loopback's.
        name: Vec<String>,
    },
}

/// A certificate chain and its key.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// The file of the chain, if the certificate is the operator's.
    file: Option<PathBuf>,
    /// The CA in PEM, and where it goes, if the certificate is for development.
    development: Option<(String, Option<PathBuf>)>,
    names: Vec<String>,
}

impl ServerTlsSetup {
    /// Reads or makes the certificate. Writes nothing.
    pub fn identity(&self) -> Result<Identity, TlsError> {
        match self {
            Self::Files { cert, key } => Ok(Identity {
                chain: pem::certificates(cert)?,
                key: pem::private_key(key)?,
                file: Some(cert.clone()),
                development: None,
                names: Vec::new(),
            }),
            Self::Pinned { file } => Ok(Identity {
                chain: pem::certificates(file)?,
                key: pem::private_key(file)?,
                file: None,
                development: None,
                names: Vec::new(),
            }),
            Self::Acme(acme) => acme_identity(acme),
            Self::Development { write_ca, name } => {
                let made = DevelopmentIdentity::new(name)?;
                Ok(Identity {
                    chain: vec![made.certificate],
                    key: made.key,
                    file: None,
                    development: Some((made.ca_pem, write_ca.clone())),
                    names: name.clone(),
                })
            }
        }
    }

    /// The files that are read again when they change.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::Files { cert, key } => vec![cert.clone(), key.clone()],
            Self::Pinned { file } => vec![file.clone()],
            Self::Acme(acme) => vec![acme.file()],
            Self::Development { .. } => Vec::new(),
        }
    }

    /// Reads the certificate and the key again. A development certificate stays as it is.
    pub fn reread(&self, identity: &Identity) -> Result<Identity, TlsError> {
        match self {
            Self::Files { .. } | Self::Pinned { .. } => self.identity(),
            Self::Acme(acme) if acme.file().exists() => self.identity(),
            Self::Acme(_) | Self::Development { .. } => Ok(identity.clone()),
        }
    }

    /// Says what [`Self::reread`] and its caller have read.
    pub fn reloaded(&self, others: &[&str]) -> String {
        match self {
            Self::Files { .. } | Self::Pinned { .. } | Self::Acme(_) => {
                let all: Vec<_> = ["certificate", "key"].iter().chain(others).copied().collect();
                format!("reloaded: {}", all.join(", "))
            }
            Self::Development { .. } if others.is_empty() => {
                "nothing to reload: the development certificate stays".to_owned()
            }
            Self::Development { .. } => {
                format!("reloaded: {}; the development certificate stays", others.join(", "))
            }
        }
    }

    /// TLS as this setup says; with `client_ca`, only for clients with a certificate of that CA.
    pub fn server_config(
        &self,
        identity: &Identity,
        client_ca: Option<&Path>,
    ) -> Result<ServerConfig, TlsError> {
        let chain = identity.chain.clone();
        let key = identity.key.clone_key();
        server_config(chain, key, client_ca).map_err(|error| {
            let TlsError::Tls(error) = error else { return error };
            let (file, reason) = match self {
                Self::Files { cert, key } => {
                    (cert.clone(), format!("does not work with {}: {error}", key.display()))
                }
                Self::Pinned { file } => (file.clone(), no_match(&error)),
                Self::Acme(acme) => (acme.file(), no_match(&error)),
                Self::Development { .. } => return error.into(),
            };
            FileError::Pem { file, reason }.into()
        })
    }
}

/// A certificate and a key of one file that are not a pair.
fn no_match(error: &rustls::Error) -> String {
    format!("its certificate and its key do not work together: {error}")
}

/// The certificate that was issued last. Before the first one, a certificate that no client trusts lets the server
/// begin.
fn acme_identity(acme: &AcmeSetup) -> Result<Identity, TlsError> {
    let file = acme.file();
    if file.exists() {
        return Ok(Identity {
            chain: pem::certificates(&file)?,
            key: pem::private_key(&file)?,
            file: Some(file),
            development: None,
            names: Vec::new(),
        });
    }
    say(format_args!(
        "there is no certificate in {} yet; clients refuse this server until it has been issued",
        file.display()
    ));
    let made = DevelopmentIdentity::new(acme.names())?;
    let (chain, key) = (vec![made.certificate], made.key);
    Ok(Identity { chain, key, file: None, development: None, names: Vec::new() })
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self {
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            file: self.file.clone(),
            development: self.development.clone(),
            names: self.names.clone(),
        }
    }
}

impl Identity {
    /// Prints the names and the end of the operator's certificate, and warns of its faults. A server
    /// runs with an expired certificate too, because clients may run with --insecure.
    pub fn report(&self) {
        let Some(file) = &self.file else { return };
        let Some(report) = certificate::inspect(&self.chain, file, ASN1Time::now()) else { return };
        say(report.summary);
        for warning in report.warnings {
            say(format_args!("warning: {warning}"));
        }
    }

    /// A secret that outlives restarts as the private key does; none for a development certificate, which does not.
    /// Other servers may have the same key.
    pub fn reset_secret(&self) -> Option<ResetSecret> {
        let hash = Sha256::new()
            .chain_update(b"tandem: stateless resets\0")
            .chain_update(self.key.secret_der());
        self.development.is_none().then(|| ResetSecret(hash.finalize().into()))
    }

    /// Writes the CA of a development certificate to the operator's file, and prints how clients trust
    /// it.
    pub fn announce(&self) -> Result<(), WriteError> {
        let Some((ca_pem, write_ca)) = &self.development else { return Ok(()) };
        let names = LOOPBACK_NAMES.into_iter().chain(self.names.iter().map(String::as_str));
        let names = names.collect::<Vec<_>>().join(", ");
        match write_ca {
            Some(file) => {
                fs::write(file, ca_pem).map_err(WriteError::of(file))?;
                let file = file.display();
                say(format_args!(
                    "development certificate for {names}; clients trust it with --ca {file}"
                ));
            }
            None => say(format_args!(
                "development certificate for {names}; clients need --insecure; `tandem generate \
                 certificate FOLDER` makes one that clients trust with --ca, and that stays"
            )),
        }
        Ok(())
    }
}

/// TLS 1.3 with this certificate; with `client_ca`, only for clients with a certificate of that CA.
pub fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    client_ca: Option<&Path>,
) -> Result<ServerConfig, TlsError> {
    let builder =
        ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let roots = Arc::new(pem::roots(&[file.to_owned()])?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            let verifier = verifier.build().map_err(|error| FileError::Pem {
                file: file.to_owned(),
                reason: error.to_string(),
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key)?;
    // A client that comes again resumes its session (RFC 8446 §2.2), however many others have come meanwhile.
    // Without tickets that hold the session, the server would remember the last 256 sessions only. A reload
    // makes a new key for tickets, so that a client whose CA was removed cannot resume.
    config.ticketer = Ticketer::new()?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConnection};

    use super::*;

    /// Lets a client connect, and returns how.
    fn connect(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> HandshakeKind {
        let name = "localhost".try_into().unwrap();
        let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
        let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
        while client.wants_write() || server.wants_write() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets().unwrap();
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        client.handshake_kind().unwrap()
    }

    #[test]
    fn a_client_resumes_its_session_after_hundreds_of_others() {
        let identity = DevelopmentIdentity::new(&[]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(identity.ca.clone()).unwrap();
        let client = || {
            let builder = ClientConfig::builder_with_provider(provider());
            let builder = builder.with_protocol_versions(&[&TLS13]).unwrap();
            Arc::new(builder.with_root_certificates(roots.clone()).with_no_client_auth())
        };
        let new_server = || {
            let key = identity.key.clone_key();
            Arc::new(server_config(vec![identity.certificate.clone()], key, None).unwrap())
        };
        let (first, server) = (client(), new_server());
        assert_eq!(connect(&first, &server), HandshakeKind::Full);
        for _ in 0..300 {
            assert_eq!(connect(&client(), &server), HandshakeKind::Full);
        }
        assert_eq!(connect(&first, &server), HandshakeKind::Resumed);
        assert_eq!(connect(&first, &new_server()), HandshakeKind::Full, "after a reload");
    }
}
