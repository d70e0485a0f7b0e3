//! The cryptography of TLS 1.3 that clients and servers use.

use std::{fmt, sync::Arc};

use rustls::{
    ClientConfig, ConfigBuilder, WantsVerifier,
    client::{EchConfig, EchMode},
    crypto::{CryptoProvider, aws_lc_rs, ring},
    pki_types::EchConfigListBytes,
    version::TLS13,
};

/// How a client and a server agree on a secret. They use the first way that both of them know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyExchange {
    /// X25519MLKEM768 (RFC 10024) first. Traffic that is recorded today then stays secret even from somebody who has a
    /// large quantum computer later. A `ClientHello` takes two packets. A peer that does not know it gets one of the
    /// ways of [`Self::Classical`].
    #[default]
    Hybrid,
    /// X25519 first, then the curves P-256 and P-384. A `ClientHello` fits one packet.
    Classical,
}

/// The cryptography of TLS 1.3: that of ring, and ML-KEM-768 of AWS-LC.
///
/// AES-128-GCM comes first: it is the fastest with AES instructions, and its margin is large enough (RFC 9001 §6.6
/// limits how much a key may encrypt, for AES-128 and AES-256 alike).
pub fn provider(key_exchange: KeyExchange) -> Arc<CryptoProvider> {
    let mut provider = CryptoProvider {
        cipher_suites: vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..ring::default_provider()
    };
    if key_exchange == KeyExchange::Hybrid {
        provider.kx_groups.insert(0, aws_lc_rs::kx_group::X25519MLKEM768);
    }
    Arc::new(provider)
}

/// TLS 1.3 of a client towards one kind of servers.
#[derive(Clone, Debug)]
pub struct ServerTrust {
    /// The settings without ECH.
    pub tls: ClientConfig,
    /// Those for a server that takes an Encrypted `ClientHello`.
    pub ech: EchTls,
}

impl ServerTrust {
    /// `finish` says whom the client trusts and how it identifies itself.
    ///
    /// # Errors
    ///
    /// That of `finish`, or the cryptography has no TLS 1.3.
    pub fn new(
        cryptography: Arc<CryptoProvider>,
        finish: impl Fn(
            ConfigBuilder<ClientConfig, WantsVerifier>,
        ) -> Result<ClientConfig, rustls::Error>
        + Send
        + Sync
        + 'static,
    ) -> Result<Self, rustls::Error> {
        let make = move |ech: Option<EchMode>| {
            let builder = ClientConfig::builder_with_provider(cryptography.clone());
            finish(match ech {
                Some(ech) => builder.with_ech(ech)?,
                None => builder.with_protocol_versions(&[&TLS13])?,
            })
        };
        let tls = make(None)?;
        Ok(Self { tls, ech: EchTls(Arc::new(move |ech| make(Some(ech)))) })
    }
}

/// Makes the settings of TLS for a server that takes an Encrypted `ClientHello` (ECH, RFC 9849). They hold for one
/// configuration of the server only, so that they are made when that is known. A server that rejects ECH is checked by
/// its public name.
#[derive(Clone)]
pub struct EchTls(Arc<MakeTls>);

type MakeTls = dyn Fn(EchMode) -> Result<ClientConfig, rustls::Error> + Send + Sync;

impl EchTls {
    /// The settings for a server with one of these configurations (`ECHConfigList`, RFC 9849 §4).
    ///
    /// # Errors
    ///
    /// None of them can be read and used.
    pub(crate) fn for_server(&self, configs: &[u8]) -> Result<ClientConfig, rustls::Error> {
        let suites = aws_lc_rs::hpke::ALL_SUPPORTED_SUITES;
        let config = EchConfig::new(EchConfigListBytes::from(configs), suites)?;
        (self.0)(EchMode::Enable(config))
    }
}

impl fmt::Debug for EchTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EchTls(..)")
    }
}

#[cfg(test)]
mod tests {
    use rustls::NamedGroup;

    use super::*;

    #[test]
    fn the_hybrid_key_exchange_comes_first_and_the_others_stay() {
        let groups = |key_exchange| {
            let groups = provider(key_exchange).kx_groups.clone();
            groups.iter().map(|group| group.name()).collect::<Vec<_>>()
        };
        let classical = [NamedGroup::X25519, NamedGroup::secp256r1, NamedGroup::secp384r1];
        assert_eq!(groups(KeyExchange::Classical), classical);
        let hybrid = groups(KeyExchange::default());
        assert_eq!(hybrid, [&[NamedGroup::X25519MLKEM768], &classical[..]].concat());
    }
}
