//! TLS 1.3 of servers: certificates from files, or made for development, and what clients need of that too.

mod acme;
mod certificate;
mod development;
mod error;
pub mod pem;
mod server;
mod watch;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

pub use self::acme::AcmeSetup;
pub use self::certificate::utc;
#[cfg(feature = "acme")]
pub(crate) use self::certificate::{Validity, life_of};
pub use self::development::{DevelopmentIdentity, LOOPBACK_NAMES, check_names};
pub use self::error::TlsError;
pub use self::server::{Identity, ServerTlsSetup, server_config};
pub use self::watch::{Stamps, Watch, looks};
use crate::process::SystemError;

/// ring, TLS 1.3 only. AES-128-GCM first: it is the fastest with AES instructions, and its margin is
/// large enough (RFC 9001 §6.6 limits how much a key may encrypt, for AES-128 and AES-256 alike).
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..ring::default_provider()
    })
}

/// Random bytes of the operating system, for keys.
pub fn random<const LEN: usize>() -> Result<[u8; LEN], SystemError> {
    let mut bytes = [0; LEN];
    let random = provider().secure_random.fill(&mut bytes);
    random.map_err(|_| SystemError {
        what: "get random numbers",
        error: std::io::Error::other("the system has none"),
    })?;
    Ok(bytes)
}
