//! The cryptography of JSON Web Tokens: ring's, which TLS uses too.

use jsonwebtoken::{
    Algorithm, DecodingKey, DecodingKeyKind,
    crypto::{CryptoProvider, JwtVerifier, KeyUtils},
    errors::{ErrorKind, Result},
};
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};
use signature_traits::{Error, Verifier};

/// Verifies signatures, and makes none.
pub(super) static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |&algorithm, key| {
        let key = PublicKey::new(algorithm, key).ok_or(ErrorKind::UnsupportedAlgorithm)?;
        Ok(Box::new(OneKey { algorithm, key }) as Box<dyn JwtVerifier>)
    },
    key_utils: KeyUtils::new_unimplemented(),
};

/// A public key with what it verifies.
enum PublicKey {
    Rsa(&'static RsaParameters, RsaPublicKeyComponents<Vec<u8>>),
    Other(UnparsedPublicKey<Vec<u8>>),
}

impl PublicKey {
    /// A key for an algorithm with two different keys for signing and verifying. There is none for HMAC, whose key
    /// could be a public one.
    fn new(algorithm: Algorithm, key: &DecodingKey) -> Option<Self> {
        let rsa: &RsaParameters = match algorithm {
            Algorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Algorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Algorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
            Algorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
            Algorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
            Algorithm::ES256 => return Self::other(&signature::ECDSA_P256_SHA256_FIXED, key),
            Algorithm::ES384 => return Self::other(&signature::ECDSA_P384_SHA384_FIXED, key),
            Algorithm::EdDSA => return Self::other(&signature::ED25519, key),
            _ => return None,
        };
        let DecodingKeyKind::RsaModulusExponent { n, e } = key.kind() else { return None };
        Some(Self::Rsa(rsa, RsaPublicKeyComponents { n: n.clone(), e: e.clone() }))
    }

    fn other(
        algorithm: &'static dyn signature::VerificationAlgorithm,
        key: &DecodingKey,
    ) -> Option<Self> {
        let bytes = key.try_get_as_bytes().ok()?;
        Some(Self::Other(UnparsedPublicKey::new(algorithm, bytes.to_vec())))
    }
}

struct OneKey {
    algorithm: Algorithm,
    key: PublicKey,
}

impl Verifier<Vec<u8>> for OneKey {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let result = match &self.key {
            PublicKey::Rsa(parameters, key) => key.verify(parameters, message, signature),
            PublicKey::Other(key) => key.verify(message, signature),
        };
        result.map_err(|_| Error::new())
    }
}

impl JwtVerifier for OneKey {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// The error of a key that nothing can be verified with.
pub(super) fn check(algorithm: Algorithm, key: &DecodingKey) -> Result<()> {
    let key = PublicKey::new(algorithm, key).ok_or(ErrorKind::InvalidKeyFormat)?;
    let is_long_enough = match key {
        PublicKey::Rsa(_, key) => (256..=1024).contains(&key.n.len()),
        PublicKey::Other(_) => true,
    };
    is_long_enough.then_some(()).ok_or(ErrorKind::InvalidKeyFormat.into())
}
