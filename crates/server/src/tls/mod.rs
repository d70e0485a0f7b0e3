//! TLS 1.3 of servers: certificates from files, or made for development, and what clients need of that too.

mod acme;
mod certificate;
mod development;
mod error;
pub mod pem;
mod server;
mod watch;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use tandem_node::tls::KeyExchange;

pub use self::acme::AcmeSetup;
pub use self::certificate::utc;
#[cfg(feature = "acme")]
pub(crate) use self::certificate::{Validity, life_of};
pub use self::development::{DevelopmentIdentity, LOOPBACK_NAMES, check_names};
pub use self::error::TlsError;
pub use self::server::{Identity, ServerTlsSetup, server_config};
pub use self::watch::{Stamps, Watch, looks};
use crate::process::SystemError;

/// The cryptography of TLS 1.3, with the hybrid key exchange.
pub fn provider() -> Arc<CryptoProvider> {
    tandem_node::tls::provider(KeyExchange::Hybrid)
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
