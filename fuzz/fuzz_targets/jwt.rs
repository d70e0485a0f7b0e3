//! JSON Web Tokens and the keys of their issuer. Nobody's text is a token without the issuer's signature. A
//! token that the issuer has signed is accepted only for the user that it names, with the algorithm of the key,
//! and until it expires.
//!
//! The input is a letter and a text: a set of keys, a whole token, or a header and claims that the issuer signs,
//! which are separated by a line feed.

#![no_main]

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use libfuzzer_sys::fuzz_target;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::Value;
use tandem_node::proxy::{JwtKeys, JwtRules};

/// The time since 1970.
const NOW: Duration = Duration::from_secs(1_800_000_000);

/// The longest time for which a proxy believes a token, and the difference of clocks that it forgives.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);
const LEEWAY: Duration = Duration::from_secs(30);

/// An issuer with the keys that a proxy has of it.
struct Issuer {
    signs: Ed25519KeyPair,
    keys: JwtKeys,
    now: Instant,
}

fn issuer() -> &'static Issuer {
    static ISSUER: OnceLock<Issuer> = OnceLock::new();
    ISSUER.get_or_init(|| {
        let signs = Ed25519KeyPair::from_seed_unchecked(&[1; 32]).expect("it has 32 bytes");
        let x = BASE64.encode(signs.public_key());
        let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}","kid":"a"}}]}}"#);
        let rules = JwtRules {
            token_type: None,
            issuer: Some("me".to_owned()),
            audience: Some("proxy".to_owned()),
            group_claim: Some("team".to_owned()),
        };
        let keys = JwtKeys::parse(&set, rules).expect("the set is sound");
        #[expect(clippy::disallowed_methods, reason = "only differences to it matter")]
        let now = Instant::now();
        Issuer { signs, keys, now }
    })
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else { return };
    let Issuer { keys, now, .. } = issuer();
    match kind {
        b'k' => {
            let text = String::from_utf8_lossy(rest);
            if let Ok(keys) = JwtKeys::parse(&text, JwtRules::default()) {
                assert_eq!(keys.holder(*now, NOW, &signed(b"{}", b"{}")), None);
            }
        }
        b't' => assert_eq!(keys.holder(*now, NOW, rest), None, "nobody guesses a signature"),
        _ => {
            let mut parts = rest.splitn(2, |byte| *byte == b'\n');
            let (header, claims) = (parts.next().unwrap_or(b""), parts.next().unwrap_or(b""));
            if let Some((name, until)) = keys.holder(*now, NOW, &signed(header, claims)) {
                check(header, claims, &name, until);
            }
        }
    }
});

fn signed(header: &[u8], claims: &[u8]) -> Vec<u8> {
    let text = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
    let signature = issuer().signs.sign(text.as_bytes());
    format!("{text}.{}", BASE64.encode(signature)).into_bytes()
}

/// Checks a token that was accepted with another reader.
fn check(header: &[u8], claims: &[u8], name: &str, until: Instant) {
    let header: Value = serde_json::from_slice(header).expect("it was read before");
    let claims: Value = serde_json::from_slice(claims).expect("it was read before");
    assert_eq!(header["alg"], "EdDSA");
    assert!(header.get("crit").is_none_or(Value::is_null), "{header}");
    assert_eq!((&claims["sub"], &claims["iss"]), (&name.into(), &"me".into()));
    assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()), "{name:?}");
    let is_ours = |audience: &Value| *audience == "proxy";
    let audience = &claims["aud"];
    assert!(is_ours(audience) || audience.as_array().is_some_and(|all| all.iter().any(is_ours)));
    let expires = claims["exp"].as_f64().expect("it has an end");
    let left = until.saturating_duration_since(issuer().now);
    assert!(!left.is_zero() && left <= LONGEST, "{left:?}");
    let named = Duration::try_from_secs_f64(expires).expect("it is a time");
    assert!(NOW + left <= named.saturating_add(LEEWAY), "{left:?} for {named:?}");
}
