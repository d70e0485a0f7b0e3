//! JSON Web Tokens (RFC 7519), which an issuer signs and a proxy checks with the issuer's public keys (RFC 7517). The
//! proxies of a fleet then need no common store.

mod verifier;

use std::time::{Duration, Instant};

use jsonwebtoken::{
    Algorithm, DecodingKey, Validation, decode, decode_header,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse},
};
use serde_json::{Map, Value};

use super::{
    access::{Claim, Denied, Shown},
    users::is_own_name,
};

/// The public keys of an issuer of JSON Web Tokens, and what else a token must say.
#[derive(Clone, Debug)]
pub struct JwtKeys {
    keys: Vec<Key>,
    rules: JwtRules,
}

/// What a JSON Web Token must say beside its signature and its times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JwtRules {
    /// The issuer (`iss`). `None`: any.
    pub issuer: Option<String>,
    /// One of the token's audiences (`aud`). With `None`, a token must have no audience. RFC 7519 §4.1.3: "If the
    /// principal processing the claim does not identify itself with a value in the "aud" claim when this claim is
    /// present, then the JWT MUST be rejected."
    pub audience: Option<String>,
    /// The type (`typ`) in the header, such as `at+jwt` (RFC 9068 §2.1). `None`: a token that has none, or that of an
    /// access token or of any token ([`TYPES`](JwtKeys::TYPES)).
    pub token_type: Option<String>,
    /// The claim that names the user's group. A token without it is of a user without a group.
    pub group_claim: Option<String>,
}

#[derive(Clone, Debug)]
struct Key {
    jwk: Jwk,
    decoding: DecodingKey,
    algorithms: Vec<Algorithm>,
}

/// The error for a text that is no set of keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtKeysError {
    /// The text is no JSON, or no JWK Set.
    #[error("it is no JWK Set (RFC 7517): {0}")]
    Malformed(String),
    /// A key cannot be used.
    #[error("key {number} of the set cannot be used: {reason}")]
    Key {
        /// The number of the key, counted from 1.
        number: usize,
        /// The reason.
        reason: String,
    },
    /// There is no key for signatures.
    #[error(
        "it has no key for signatures; allowed: RSA keys of 2048 to 8192 bits, P-256, P-384 and Ed25519"
    )]
    NoKey,
}

/// By how much the clock of an issuer may differ from that of a proxy.
const LEEWAY: Duration = Duration::from_secs(30);

/// The longest token. Issuers that put many claims into a token need 2 to 4 kB, and a request of twice this length
/// is refused anyway.
const LEN_MAX: usize = 8192;

/// The longest time for which a flow may go on without another look at its token.
const UNTIL_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A claim of tokens that report events, such as the end of a session. RFC 8417 §2.2: "It also SHOULD NOT be possible
/// to confuse" them with others.
const EVENTS: &str = "events";

impl JwtKeys {
    /// The types of tokens that are accepted unless [`JwtRules::token_type`] names one. Others are for another purpose,
    /// such as the `logout+jwt` of `OpenID` Connect (RFC 8725 §3.11).
    pub const TYPES: [&str; 2] = ["at+jwt", "JWT"];

    /// Reads a JWK Set. Keys that are not for signatures, and keys of kinds that are unknown here, are left out. RFC
    /// 7517 §5: "Implementations SHOULD ignore JWKs within a JWK Set that use "kty" (key type) values that are not
    /// understood by them".
    pub fn parse(text: &str, rules: JwtRules) -> Result<Self, JwtKeysError> {
        // An error says that there is a provider already, which is this one.
        verifier::PROVIDER.install_default().ok();
        let malformed = |error: serde_json::Error| JwtKeysError::Malformed(error.to_string());
        let set: JwkSet = serde_json::from_str(text).map_err(malformed)?;
        let mut keys: Vec<Key> = Vec::new();
        for (jwk, number) in set.keys.into_iter().zip(1..) {
            let wrong = |reason: &str| JwtKeysError::Key { number, reason: reason.to_owned() };
            let algorithms = algorithms(&jwk);
            if algorithms.is_empty() {
                continue;
            }
            let id = &jwk.common.key_id;
            if keys.iter().any(|key| key.jwk.common.key_id == *id) {
                return Err(wrong("another key has the same \"kid\", or both have none"));
            }
            let decoding =
                DecodingKey::from_jwk(&jwk).map_err(|error| wrong(&error.to_string()))?;
            for &algorithm in &algorithms {
                verifier::check(algorithm, &decoding)
                    .map_err(|_| wrong("an RSA key has 2048 to 8192 bits"))?;
            }
            keys.push(Key { jwk, decoding, algorithms });
        }
        if keys.is_empty() { Err(JwtKeysError::NoKey) } else { Ok(Self { keys, rules }) }
    }

    /// Whether a key is still in the set. What the set says beside the key, such as its ID, may have changed.
    pub(super) fn has(&self, key: &AlgorithmParameters) -> bool {
        self.keys.iter().any(|own| own.jwk.algorithm == *key)
    }

    /// Finds out who holds a token. `unix` is the time since 1970 at `now`, if it is known.
    pub(super) fn check(
        &self,
        now: Instant,
        unix: Option<Duration>,
        token: &[u8],
    ) -> Result<Claim, Denied> {
        if token.len() > LEN_MAX {
            return Err(Denied::WrongToken);
        }
        let header = decode_header(token).map_err(|_| Denied::WrongToken)?;
        // RFC 7515 §4.1.11: `crit` "indicates that extensions to this specification and/or [JWA] are being used that
        // MUST be understood and processed". None is understood here.
        if header.crit.is_some() {
            return Err(Denied::WrongToken);
        }
        if !self.is_for_access(header.typ.as_deref()) {
            return Err(Denied::WrongToken);
        }
        let key = self.key(header.kid.as_deref()).ok_or(Denied::WrongToken)?;
        let validation = self.validation(key);
        let token = decode::<Map<String, Value>>(token, &key.decoding, &validation);
        let claims = token.map_err(|_| Denied::WrongToken)?.claims;
        if claims.contains_key(EVENTS) {
            return Err(Denied::WrongToken);
        }
        let until = Self::times(now, unix, &claims)?;
        let name = claims.get("sub").and_then(Value::as_str).filter(|name| is_own_name(name));
        let name = name.ok_or(Denied::WrongToken)?.to_owned();
        let group = self.rules.group_claim.as_ref().and_then(|claim| claims.get(claim));
        let group = group.and_then(Value::as_str).map(str::to_owned);
        let shown = Shown::Signed(Box::new(key.jwk.algorithm.clone()));
        Ok(Claim { name, group, shown, until: Some(until) })
    }

    /// Whether a token of this type may be one for the proxy.
    fn is_for_access(&self, token_type: Option<&str>) -> bool {
        match (&self.rules.token_type, token_type) {
            (Some(expected), Some(token_type)) => is_type(token_type, expected),
            (Some(_), None) => false,
            (None, Some(token_type)) => Self::TYPES.iter().any(|it| is_type(token_type, it)),
            (None, None) => true,
        }
    }

    /// The name of the user who holds a token, and when the right ends, for a fuzz target.
    #[cfg(fuzzing)]
    pub fn holder(&self, now: Instant, unix: Duration, token: &[u8]) -> Option<(String, Instant)> {
        let claim = self.check(now, Some(unix), token).ok()?;
        Some((claim.name, claim.until.expect("a signed right ends")))
    }

    /// The key with this ID. A token without an ID is checked with the only key, if there is no other.
    fn key(&self, id: Option<&str>) -> Option<&Key> {
        match (id, self.keys.as_slice()) {
            (None, [only]) => Some(only),
            (None, _) => None,
            (Some(_), keys) => keys.iter().find(|key| key.jwk.common.key_id.as_deref() == id),
        }
    }

    /// What the library checks. The times are checked here, since a node reads no clock.
    fn validation(&self, key: &Key) -> Validation {
        let JwtRules { issuer, audience, .. } = &self.rules;
        let mut validation = Validation::default();
        validation.algorithms.clone_from(&key.algorithms);
        (validation.validate_exp, validation.validate_nbf) = (false, false);
        let mut required = vec!["sub"];
        if let Some(issuer) = issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        if let Some(audience) = audience {
            validation.set_audience(&[audience]);
            required.push("aud");
        }
        validation.set_required_spec_claims(&required);
        validation
    }

    /// Checks the times of a token. Returns when it expires.
    fn times(
        now: Instant,
        unix: Option<Duration>,
        claims: &Map<String, Value>,
    ) -> Result<Instant, Denied> {
        let unix = unix.ok_or(Denied::WrongToken)?;
        let time = |name| {
            let time = |value: &Value| Duration::try_from_secs_f64(value.as_f64()?).ok();
            claims.get(name).map(|value| time(value).ok_or(Denied::WrongToken)).transpose()
        };
        let expires = time("exp")?.ok_or(Denied::WrongToken)?.saturating_add(LEEWAY);
        // RFC 7519 §4.1.5: the time before which the token "MUST NOT be accepted for processing".
        if time("nbf")?.is_some_and(|begins| begins > unix.saturating_add(LEEWAY)) {
            return Err(Denied::Expired);
        }
        // RFC 7519 §4.1.4: the time "on or after which the JWT MUST NOT be accepted for processing".
        let left = expires.checked_sub(unix).filter(|left| !left.is_zero());
        Ok(now + left.ok_or(Denied::Expired)?.min(UNTIL_MAX))
    }
}

/// Compares two media types. RFC 7515 §4.1.9: "application/" is omitted where no other slash is in the name.
fn is_type(one: &str, other: &str) -> bool {
    let name = |name: &str| {
        let name = name.to_ascii_lowercase();
        name.strip_prefix("application/").unwrap_or(&name).to_owned()
    };
    name(one) == name(other)
}

/// The algorithms with which a key may be used, none of which has a secret that both ends know.
fn algorithms(jwk: &Jwk) -> Vec<Algorithm> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    if jwk.common.public_key_use.as_ref().is_some_and(|it| *it != PublicKeyUse::Signature) {
        return Vec::new();
    }
    let all = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => vec![RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => vec![ES256],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => vec![ES384],
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            vec![EdDSA]
        }
        _ => Vec::new(),
    };
    let Some(named) = &jwk.common.key_algorithm else { return all };
    let is_named = |algorithm: &Algorithm| match named {
        KeyAlgorithm::RS256 => *algorithm == RS256,
        KeyAlgorithm::RS384 => *algorithm == RS384,
        KeyAlgorithm::RS512 => *algorithm == RS512,
        KeyAlgorithm::PS256 => *algorithm == PS256,
        KeyAlgorithm::PS384 => *algorithm == PS384,
        KeyAlgorithm::PS512 => *algorithm == PS512,
        KeyAlgorithm::ES256 => *algorithm == ES256,
        KeyAlgorithm::ES384 => *algorithm == ES384,
        KeyAlgorithm::EdDSA => *algorithm == EdDSA,
        _ => false,
    };
    all.into_iter().filter(is_named).collect()
}

#[cfg(test)]
mod tests;
