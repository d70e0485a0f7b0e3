//! The authentication scheme Concealed (RFC 9729): a client signs what only its TLS connection yields, so that a server
//! learns who it is without asking, and nobody else can use what it has sent. Both ends use Ed25519.

use std::{fmt, sync::Arc};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, header, uri::Authority};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use tandem_wire::VarInt;

use crate::{
    proxy::is_own_name,
    quic::Connection,
    token::{NamedToken, TokenNameError, is_same},
};

/// `ed25519` in TLS's registry of signature schemes (RFC 8446 §4.2.3).
const ED25519_SCHEME: u16 = 0x0807;

/// RFC 9729 §3: "the label is set to "EXPORTER-HTTP-Concealed-Authentication"".
const LABEL: &[u8] = b"EXPORTER-HTTP-Concealed-Authentication";

/// RFC 9729 §3.3: what stands before the part of the exporter's output that is signed.
const CONTEXT: &[u8] = b"HTTP Concealed Authentication";

/// The port of an authority that has none (RFC 9110 §4.2.2).
const HTTPS_PORT: u16 = 443;

/// The length of a public key, and of the seed of a private one (RFC 8032 §5.1.5).
pub const KEY_LEN: usize = 32;

/// The length of the part of the exporter's output that is signed, and of all of it (RFC 9729 §3.2).
const SIGNED_LEN: usize = 32;
const EXPORTED_LEN: usize = 48;

/// The key with which a client shows who it is. It is never printed.
#[derive(Clone)]
pub struct ConcealedKey {
    name: String,
    pair: Arc<Ed25519KeyPair>,
}

impl ConcealedKey {
    /// The key of this user, from its seed.
    ///
    /// # Errors
    ///
    /// The name is none for a user.
    #[expect(clippy::missing_panics_doc, reason = "a seed has 32 bytes, whatever they are")]
    pub fn new(name: &str, seed: &[u8; KEY_LEN]) -> Result<Self, TokenNameError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed)
            .expect("a seed has 32 bytes, whatever they are");
        check_name(name)?;
        Ok(Self { name: name.to_owned(), pair: Arc::new(pair) })
    }

    /// What a proxy has to know of it.
    #[expect(clippy::missing_panics_doc, reason = "a public key of Ed25519 has 32 bytes")]
    pub fn user(&self) -> ConcealedUser {
        let key = self
            .pair
            .public_key()
            .as_ref()
            .try_into()
            .expect("a public key of Ed25519 has 32 bytes");
        ConcealedUser { name: self.name.clone(), key }
    }

    /// The value of the field for requests to this authority on a connection. `None`: its handshake is not complete.
    pub(crate) fn field_value(
        &self,
        connection: &Connection,
        authority: &str,
    ) -> Option<HeaderValue> {
        let user = self.user();
        let exported = Exported::of(connection, &user, authority)?;
        let proof = self.pair.sign(&exported.signed());
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let value = format!(
            "Concealed k={}, a={}, s={ED25519_SCHEME}, v={}, p={}",
            encode(self.name.as_bytes()),
            encode(&user.key),
            encode(exported.verification()),
            encode(proof.as_ref()),
        );
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl fmt::Debug for ConcealedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConcealedKey({}, ..)", self.name)
    }
}

fn check_name(name: &str) -> Result<(), TokenNameError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_name = (1..=NamedToken::NAME_MAX).contains(&name.len()) && name.bytes().all(allowed);
    if is_name && is_own_name(name) { Ok(()) } else { Err(TokenNameError) }
}

/// A user whom a proxy knows by a public key. The key ID is the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcealedUser {
    name: String,
    key: [u8; KEY_LEN],
}

impl ConcealedUser {
    /// The user of a public key.
    ///
    /// # Errors
    ///
    /// The name is none for a user.
    pub fn new(name: &str, key: [u8; KEY_LEN]) -> Result<Self, TokenNameError> {
        check_name(name)?;
        Ok(Self { name: name.to_owned(), key })
    }

    /// The name of the user.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The public key (RFC 8032 §5.1.5).
    pub const fn key(&self) -> &[u8; KEY_LEN] {
        &self.key
    }
}

/// Which of these users sends a request with these fields to this authority on a connection. `None`: none of them, for
/// whatever reason.
///
/// RFC 9729 §6.3: "If any of the above checks fail, the backend MUST treat it as if the Authorization (or
/// Proxy-Authorization) header field was missing."
pub(crate) fn identify<'a>(
    users: &'a [ConcealedUser],
    (fields, authority): (&HeaderMap, &str),
    connection: &Connection,
) -> Option<&'a ConcealedUser> {
    let names = [header::AUTHORIZATION, header::PROXY_AUTHORIZATION];
    let mut shown = names.iter().flat_map(|name| fields.get_all(name)).filter_map(Shown::parse);
    let shown = shown.next()?;
    let user =
        users.iter().find(|user| user.name.as_bytes() == shown.key_id && user.key == *shown.key)?;
    let exported = Exported::of(connection, user, authority)?;
    let is_of_connection = is_same(exported.verification(), &shown.verification);
    let key = UnparsedPublicKey::new(&ED25519, &user.key);
    (is_of_connection && key.verify(&exported.signed(), &shown.proof).is_ok()).then_some(user)
}

/// The parameters of a field (RFC 9729 §4).
struct Shown {
    key_id: Vec<u8>,
    key: Vec<u8>,
    verification: Vec<u8>,
    proof: Vec<u8>,
}

impl Shown {
    /// `None`: it is another scheme, or a parameter is missing, there twice or malformed.
    ///
    /// RFC 9729 §6.1: "If any parameter is missing or fails to parse, the frontend MUST ignore the entire Authorization
    /// (or Proxy-Authorization) header field."
    fn parse(value: &HeaderValue) -> Option<Self> {
        let (scheme, parameters) = value.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("concealed") {
            return None;
        }
        let (mut key_id, mut key, mut scheme, mut verification, mut proof) =
            (None, None, None, None, None);
        for parameter in parameters.split(',') {
            let (name, value) = parameter.trim_matches([' ', '\t']).split_once('=')?;
            let place = match name.trim_end_matches([' ', '\t']).to_ascii_lowercase().as_str() {
                "k" => &mut key_id,
                "a" => &mut key,
                "v" => &mut verification,
                "p" => &mut proof,
                "s" => &mut scheme,
                // We have no realm, and know no other parameters.
                _ => return None,
            };
            if place.replace(value.trim_start_matches([' ', '\t'])).is_some() {
                return None;
            }
        }
        let decode = |text: Option<&str>| BASE64_URL_SAFE_NO_PAD.decode(text?).ok();
        (scheme? == ED25519_SCHEME.to_string()).then_some(())?;
        Some(Self {
            key_id: decode(key_id)?,
            key: decode(key)?,
            verification: decode(verification)?,
            proof: decode(proof)?,
        })
    }
}

/// The output of TLS's exporter.
struct Exported([u8; EXPORTED_LEN]);

impl Exported {
    /// `None`: the handshake is not complete, or the authority is malformed.
    fn of(connection: &Connection, user: &ConcealedUser, authority: &str) -> Option<Self> {
        let mut output = [0; EXPORTED_LEN];
        connection.export(&mut output, LABEL, &context(user, authority)?).then_some(Self(output))
    }

    /// What is signed (RFC 9729 §3.3).
    fn signed(&self) -> Vec<u8> {
        let (signed, _) = self.0.split_at(SIGNED_LEN);
        [&[b' '; 64][..], CONTEXT, &[0], signed].concat()
    }

    fn verification(&self) -> &[u8] {
        self.0.split_at(SIGNED_LEN).1
    }
}

/// The context of the exporter (RFC 9729 §3.1). `None`: the authority is malformed.
fn context(user: &ConcealedUser, authority: &str) -> Option<Vec<u8>> {
    let authority: Authority = authority.parse().ok()?;
    let port = match authority.port() {
        Some(port) => port.as_str().parse().ok()?,
        None if authority.as_str() == authority.host() => HTTPS_PORT,
        None => return None, // there is a port that is no port
    };
    if authority.as_str().contains('@') {
        return None;
    }
    let host = authority.host().to_ascii_lowercase();
    let mut context = ED25519_SCHEME.to_be_bytes().to_vec();
    let string = |context: &mut Vec<u8>, bytes: &[u8]| {
        VarInt::saturating_from(bytes.len() as u64).encode(context);
        context.extend_from_slice(bytes);
    };
    string(&mut context, user.name.as_bytes());
    string(&mut context, &user.key);
    string(&mut context, b"https");
    string(&mut context, host.as_bytes());
    context.extend_from_slice(&port.to_be_bytes());
    string(&mut context, b""); // no realm
    Some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> ConcealedUser {
        ConcealedKey::new("alice", &[7; 32]).unwrap().user()
    }

    #[test]
    fn the_context_is_that_of_the_rfc() {
        let user = user();
        let expected = |host: &str, port: u16| {
            let len = u8::try_from(host.len()).unwrap();
            [
                &[0x08, 0x07, 5][..],
                b"alice",
                &[32],
                user.key(),
                &[5],
                b"https",
                &[len],
                host.as_bytes(),
                &port.to_be_bytes(),
                &[0],
            ]
            .concat()
        };
        for (authority, host, port) in [
            ("proxy.example", "proxy.example", 443),
            ("Proxy.Example:8443", "proxy.example", 8443),
            ("[2001:db8::1]:443", "[2001:db8::1]", 443),
            ("192.0.2.1", "192.0.2.1", 443),
            // The authority of a request for a TCP connection is its target.
            ("right.invalid:0", "right.invalid", 0),
        ] {
            assert_eq!(context(&user, authority), Some(expected(host, port)), "{authority}");
        }
        assert_eq!(context(&user, "user@proxy.example"), None);
        assert_eq!(context(&user, "proxy.example:65536"), None);
        assert_eq!(context(&user, ""), None);
    }

    #[test]
    fn what_is_signed_is_that_of_the_rfc() {
        let exported = Exported([1; EXPORTED_LEN]);
        let signed = exported.signed();
        // RFC 9729 §3.3.
        let expected = [&[0x20; 64][..], b"HTTP Concealed Authentication\0", &[0x01; 32]].concat();
        assert_eq!(signed, expected);
        assert_eq!(exported.verification(), [1; 16]);
    }

    #[test]
    fn only_whole_and_unambiguous_fields_are_read() {
        let read = |value: &str| {
            let shown = Shown::parse(&HeaderValue::from_str(value).unwrap());
            shown.map(|it| String::from_utf8(it.key_id).unwrap())
        };
        // RFC 9729 §5, without line wrapping.
        let example = "Concealed k=YmFzZW1lbnQ, a=VGhpcyBpcyBh-HB1YmxpYyBrZXkgaW4gdXNl_GhlcmU, s=2055, \
                       v=dmVyaWZpY2F0aW9u_zE2Qg, \
                       p=SW5zZXJ0_HNpZ25hdHVyZSBvZiBub25jZSBoZXJlIHdoaWNoIHRha2VzIDUxMiBiaXRz-GZvciBFZDI1NTE5IQ";
        assert_eq!(read(example).as_deref(), Some("basement"));
        assert_eq!(
            read(&example.replacen("Concealed", "cOnCeAlEd", 1)).as_deref(),
            Some("basement")
        );
        for (from, to) in [
            ("Concealed", "Bearer"),
            ("k=YmFzZW1lbnQ, ", ""),
            (", s=2055", ""),
            ("s=2055", "s=02055"),
            ("s=2055", "s=1027"),
            ("s=2055", "s=2055, s=2055"),
            ("s=2055", "s=2055, realm=x"),
            ("k=YmFzZW1lbnQ", "k=YmFzZW1lbnQ="),
            ("k=YmFzZW1lbnQ", "k=\"YmFzZW1lbnQ\""),
            ("k=YmFzZW1lbnQ", "k=YmFz+W1lbnQ"),
            ("a=", "a:"),
        ] {
            let wrong = example.replacen(from, to, 1);
            assert_ne!(wrong, example);
            assert_eq!(read(&wrong), None, "{wrong}");
        }
    }
}
