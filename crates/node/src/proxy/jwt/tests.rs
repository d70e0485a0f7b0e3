use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use ring::{
    hmac,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair},
};
use serde_json::json;

use super::*;
use crate::test_start;

const NOW: u64 = 1_800_000_000;

/// An issuer with one key.
struct Issuer {
    key: Ed25519KeyPair,
    id: &'static str,
}

impl Issuer {
    fn new(id: &'static str, seed: u8) -> Self {
        Self { key: Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap(), id }
    }

    fn jwk(&self) -> Value {
        let x = BASE64.encode(self.key.public_key());
        json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": self.id, "use": "sig" })
    }

    fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({ "alg": "EdDSA", "kid": self.id }), claims)
    }

    fn token_with(&self, header: &Value, claims: &Value) -> String {
        let text = part(header) + "." + &part(claims);
        let signature = BASE64.encode(self.key.sign(text.as_bytes()));
        text + "." + &signature
    }
}

fn part(value: &Value) -> String {
    BASE64.encode(value.to_string())
}

fn set(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

fn claims() -> Value {
    json!({ "sub": "alice", "exp": NOW + 60 })
}

fn with(name: &str, value: impl Into<Value>) -> Value {
    let mut claims = claims();
    claims[name] = value.into();
    claims
}

fn check(keys: &JwtKeys, token: &str) -> Result<Claim, Denied> {
    keys.check(test_start(), Some(Duration::from_secs(NOW)), token.as_bytes())
}

#[test]
fn a_token_names_its_user_and_its_group_until_it_expires() {
    let issuer = Issuer::new("a", 1);
    let rules = JwtRules { group_claim: Some("team".to_owned()), ..JwtRules::default() };
    let keys = JwtKeys::parse(&set(&[issuer.jwk()]), rules).unwrap();
    let now = test_start();
    let token = issuer.token(&with("team", "staff"));
    let claim = keys.check(now, Some(Duration::from_secs(NOW)), token.as_bytes()).unwrap();
    assert_eq!((claim.name.as_str(), claim.group.as_deref()), ("alice", Some("staff")));
    assert_eq!(claim.until, Some(now + Duration::from_secs(60) + LEEWAY));
    let Shown::Signed(key) = claim.shown else { panic!("a key has signed it") };
    assert!(keys.has(&key));
    let others = JwtKeys::parse(&set(&[Issuer::new("a", 2).jwk()]), JwtRules::default()).unwrap();
    assert!(!others.has(&key), "another key with the same ID");
    assert_eq!(keys.check(now, None, token.as_bytes()), Err(Denied::WrongToken), "no clock");
}

#[test]
fn only_what_the_issuer_has_signed_and_means_for_now_is_accepted() {
    let issuer = Issuer::new("a", 1);
    let rules = JwtRules {
        issuer: Some("me".to_owned()),
        audience: Some("proxy".to_owned()),
        ..JwtRules::default()
    };
    let keys = JwtKeys::parse(&set(&[issuer.jwk(), Issuer::new("b", 2).jwk()]), rules).unwrap();
    let claims = |name: &str, value: Value| {
        let mut claims = json!({ "sub": "alice", "exp": NOW + 60, "iss": "me", "aud": "proxy" });
        claims[name] = value;
        claims
    };
    for (name, value, expected) in [
        ("aud", json!(["other", "proxy"]), Ok(())),
        ("aud", json!("other"), Err(Denied::WrongToken)),
        ("aud", json!(null), Err(Denied::WrongToken)),
        ("iss", json!("you"), Err(Denied::WrongToken)),
        ("iss", json!(7), Err(Denied::WrongToken)),
        ("sub", json!("two words"), Err(Denied::WrongToken)),
        ("sub", json!("x".repeat(129)), Err(Denied::WrongToken)),
        ("sub", json!("anyone"), Err(Denied::WrongToken)),
        ("sub", json!(["alice"]), Err(Denied::WrongToken)),
        ("exp", json!(NOW - 29), Ok(())),
        ("exp", json!(NOW - 30), Err(Denied::Expired)),
        ("exp", json!(1e300), Err(Denied::WrongToken)),
        ("exp", json!(1e18), Ok(())),
        ("exp", json!(-1), Err(Denied::WrongToken)),
        ("exp", json!("1900000000"), Err(Denied::WrongToken)),
        ("exp", json!(null), Err(Denied::WrongToken)),
        ("nbf", json!(NOW + 30), Ok(())),
        ("nbf", json!(NOW + 31), Err(Denied::Expired)),
        ("nbf", json!("soon"), Err(Denied::WrongToken)),
    ] {
        let result = check(&keys, &issuer.token(&claims(name, value.clone()))).map(|_| ());
        assert_eq!(result, expected, "{name}: {value}");
    }
    let good = claims("x", json!(1));
    assert!(check(&keys, &Issuer::new("b", 1).token(&good)).is_err(), "signed by another key");
    assert!(check(&keys, &Issuer::new("c", 1).token(&good)).is_err(), "an unknown ID");
    let token = issuer.token(&good);
    for wrong in ["", ".", "..", "a.b", "a.b.c.d", &token[1..], &token[..token.len() - 2]] {
        assert!(check(&keys, wrong).is_err(), "{wrong:?}");
    }
    let huge = issuer.token(&claims("x", json!("x".repeat(LEN_MAX))));
    assert!(check(&keys, &huge).is_err());
}

#[test]
fn an_audience_needs_a_proxy_that_is_meant() {
    let issuer = Issuer::new("a", 1);
    let keys = JwtKeys::parse(&set(&[issuer.jwk()]), JwtRules::default()).unwrap();
    assert!(check(&keys, &issuer.token(&claims())).is_ok());
    assert!(check(&keys, &issuer.token(&with("aud", "proxy"))).is_err());
}

#[test]
fn a_token_for_another_purpose_is_refused() {
    let issuer = Issuer::new("a", 1);
    let accepts = |expected: Option<&str>, token_type: Option<&str>, claims: &Value| {
        let token_type_of_rules = expected.map(str::to_owned);
        let rules = JwtRules { token_type: token_type_of_rules, ..JwtRules::default() };
        let keys = JwtKeys::parse(&set(&[issuer.jwk()]), rules).unwrap();
        let mut header = json!({ "alg": "EdDSA", "kid": "a" });
        if let Some(token_type) = token_type {
            header["typ"] = json!(token_type);
        }
        check(&keys, &issuer.token_with(&header, claims)).is_ok()
    };
    for (expected, token_type, is_accepted) in [
        (None, None, true),
        (None, Some("JWT"), true),
        (None, Some("jwt"), true),
        (None, Some("at+jwt"), true),
        (None, Some("application/at+JWT"), true),
        (None, Some("logout+jwt"), false),
        (None, Some("secevent+jwt"), false),
        (None, Some("dpop+jwt"), false),
        (None, Some(""), false),
        (Some("at+jwt"), Some("at+jwt"), true),
        (Some("at+jwt"), Some("application/AT+JWT"), true),
        (Some("application/at+jwt"), Some("at+jwt"), true),
        // An ID token has this type, or none.
        (Some("at+jwt"), Some("JWT"), false),
        (Some("at+jwt"), None, false),
        (Some("proxy+jwt"), Some("proxy+jwt"), true),
    ] {
        let result = accepts(expected, token_type, &claims());
        assert_eq!(result, is_accepted, "{expected:?}, {token_type:?}");
    }
    // Issuers made tokens for the end of a session before these had a type.
    let event = "http://schemas.openid.net/event/backchannel-logout";
    assert!(!accepts(None, Some("JWT"), &with("events", json!({ event: {} }))));
}

#[test]
fn a_token_that_needs_an_extension_is_refused() {
    let issuer = Issuer::new("a", 1);
    let keys = JwtKeys::parse(&set(&[issuer.jwk()]), JwtRules::default()).unwrap();
    let mut header = json!({ "alg": "EdDSA", "kid": "a", "exp": NOW });
    assert!(check(&keys, &issuer.token_with(&header, &claims())).is_ok());
    for critical in [json!(["exp"]), json!([]), json!("exp")] {
        header["crit"] = critical;
        let token = issuer.token_with(&header, &claims());
        assert_eq!(check(&keys, &token), Err(Denied::WrongToken), "{header}");
    }
}

#[test]
fn a_key_that_is_published_in_another_way_is_the_same_key() {
    let issuer = Issuer::new("a", 1);
    let keys = JwtKeys::parse(&set(&[issuer.jwk()]), JwtRules::default()).unwrap();
    let claim = check(&keys, &issuer.token(&claims())).unwrap();
    let Shown::Signed(key) = claim.shown else { panic!("a key has signed it") };
    let mut jwk = issuer.jwk();
    jwk["alg"] = json!("EdDSA");
    jwk["key_ops"] = json!(["verify"]);
    jwk["kid"] = json!("a-2026");
    let keys = JwtKeys::parse(&set(&[jwk]), JwtRules::default()).unwrap();
    assert!(keys.has(&key));
}

#[test]
fn a_token_cannot_choose_a_weaker_algorithm() {
    let issuer = Issuer::new("a", 1);
    let keys = JwtKeys::parse(&set(&[issuer.jwk()]), JwtRules::default()).unwrap();
    let public = issuer.key.public_key().as_ref();
    let jwk = issuer.jwk().to_string();
    for (alg, secret) in [
        ("none", None),
        ("NONE", None),
        ("HS256", Some(public)),
        ("HS256", Some(jwk.as_bytes())),
        ("ES256", Some(public)),
        ("RS256", Some(public)),
    ] {
        let text = part(&json!({ "alg": alg, "kid": "a" })) + "." + &part(&claims());
        let sign = |secret| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), text.as_bytes());
        let signature = secret.map(|secret| BASE64.encode(sign(secret))).unwrap_or_default();
        let token = format!("{text}.{signature}");
        assert_eq!(check(&keys, &token), Err(Denied::WrongToken), "{alg}");
    }
}

#[test]
fn a_key_of_an_elliptic_curve_is_bound_to_its_algorithm() {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random);
    let key = key.unwrap();
    let (x, y) = key.public_key().as_ref()[1..].split_at(32);
    let mut jwk =
        json!({ "kty": "EC", "crv": "P-256", "x": BASE64.encode(x), "y": BASE64.encode(y) });
    let keys = JwtKeys::parse(&set(&[jwk.clone()]), JwtRules::default()).unwrap();
    let text = part(&json!({ "alg": "ES256" })) + "." + &part(&claims());
    let signature = key.sign(&random, text.as_bytes()).unwrap();
    let token = format!("{text}.{}", BASE64.encode(signature));
    assert!(check(&keys, &token).is_ok(), "the only key needs no ID");
    let two = set(&[jwk.clone(), Issuer::new("a", 1).jwk()]);
    assert!(check(&JwtKeys::parse(&two, JwtRules::default()).unwrap(), &token).is_err());
    jwk["alg"] = json!("ES384");
    assert_eq!(JwtKeys::parse(&set(&[jwk]), JwtRules::default()).unwrap_err(), JwtKeysError::NoKey);
}

#[test]
fn a_set_of_keys_is_whole_and_has_a_public_key() {
    let key = Issuer::new("a", 1).jwk();
    let whole = set(std::slice::from_ref(&key));
    let rsa = |bytes: usize| {
        let n = BASE64.encode(vec![0xff; bytes]);
        json!({ "kty": "RSA", "n": n, "e": "AQAB", "kid": "r" })
    };
    for (text, words) in [
        (whole[..whole.len() / 2].to_owned(), "no JWK Set"),
        (String::new(), "no JWK Set"),
        ("[]".to_owned(), "no JWK Set"),
        (set(&[]), "no key for signatures"),
        (set(&[json!({ "kty": "oct", "k": "AAAA" })]), "no key for signatures"),
        (set(&[json!({ "kty": "OKP", "crv": "Ed25519", "x": "AA", "use": "enc" })]), "no key"),
        (set(&[key.clone(), key.clone()]), "key 2"),
        (set(&[key.clone(), rsa(128)]), "key 2"),
        (set(&[key.clone(), rsa(2048)]), "key 2"),
    ] {
        let error = JwtKeys::parse(&text, JwtRules::default()).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    assert!(JwtKeys::parse(&set(&[key, rsa(256)]), JwtRules::default()).is_ok());
}
