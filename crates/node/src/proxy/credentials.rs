//! Credentials of requests (RFC 9110 §11.4), in the forms that clients use.
//!
//! Clients show a token as `Bearer TOKEN` (RFC 6750) or, if they know only a user name and a password, as
//! `Basic NAME:TOKEN` (RFC 7617), and both in `Authorization` or in `Proxy-Authorization`, whatever they ask for.

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, header};

use crate::concealed::ConcealedUser;

/// What a request shows. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    /// The user who has shown a key. Then there is no token.
    proven: Option<ConcealedUser>,
    /// The name of the user, if the client has said one.
    name: Option<Vec<u8>>,
    /// Whether the token is the user's password, as a check has found.
    is_password: bool,
    token: Vec<u8>,
}

/// Why the credentials of a request are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoCredentials {
    /// There are none, or none in a form that the proxy reads. Such a request guesses no token.
    Unread,
    /// There are several different ones. The proxy cannot know which of them count.
    Several,
}

impl Credentials {
    /// Those of a user who has shown a key (RFC 9729).
    pub(super) fn proven(user: ConcealedUser) -> Self {
        Self { proven: Some(user), name: None, is_password: false, token: Vec::new() }
    }

    /// The same after a check whether the token is the user's password.
    pub(super) fn checked(self, is_password: bool) -> Self {
        Self { is_password, ..self }
    }

    /// The name of the user whose password this is. `None`: it is no password, or not a checked one.
    pub(super) fn user_by_password(&self) -> Option<&[u8]> {
        self.name().filter(|_| self.is_password)
    }

    /// The name that is shown.
    pub(super) fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    /// The user who has shown a key.
    pub(super) const fn user(&self) -> Option<&ConcealedUser> {
        self.proven.as_ref()
    }

    /// The credentials of a request with these fields.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, NoCredentials> {
        let fields = [header::AUTHORIZATION, header::PROXY_AUTHORIZATION];
        let values = fields.iter().flat_map(|field| headers.get_all(field));
        let mut all = values.filter_map(|value| Self::parse(value.as_bytes()));
        let first = all.next().ok_or(NoCredentials::Unread)?;
        if all.all(|other| other == first) { Ok(first) } else { Err(NoCredentials::Several) }
    }

    /// Parses the value of a field. `None`: it is in no form that the proxy reads.
    fn parse(value: &[u8]) -> Option<Self> {
        let space = value.iter().position(|byte| *byte == b' ')?;
        let (scheme, shown) = value.split_at_checked(space)?;
        let shown = shown.get(1..)?;
        // RFC 9110 §11.1: the scheme is case-insensitive.
        if scheme.eq_ignore_ascii_case(b"bearer") {
            let token = shown.to_vec();
            return Some(Self { proven: None, name: None, is_password: false, token });
        }
        if !scheme.eq_ignore_ascii_case(b"basic") {
            return None;
        }
        // RFC 7617 §2: the first colon ends the name of the user.
        let pair = BASE64_STANDARD.decode(shown.trim_ascii()).ok()?;
        let colon = pair.iter().position(|byte| *byte == b':')?;
        let (name, token) = pair.split_at_checked(colon)?;
        let name = Some(name.to_vec()).filter(|name| !name.is_empty());
        let token = token.get(1..)?.to_vec();
        Some(Self { proven: None, name, is_password: false, token })
    }

    pub(super) fn token(&self) -> &[u8] {
        &self.token
    }

    /// Whether the name of this user is shown, or none.
    pub(super) fn may_be_of(&self, name: &str) -> bool {
        self.name.as_deref().is_none_or(|shown| shown == name.as_bytes())
    }
}

#[cfg(test)]
impl From<&str> for Credentials {
    fn from(value: &str) -> Self {
        Self::parse(value.as_bytes()).expect("the proxy reads it")
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn basic(pair: &[u8]) -> String {
        format!("Basic {}", BASE64_STANDARD.encode(pair))
    }

    /// The name and the token of a request with these fields.
    fn shown(fields: &[(&'static str, &str)]) -> Result<(Option<String>, String), NoCredentials> {
        let mut headers = HeaderMap::new();
        for (field, value) in fields {
            headers.append(*field, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let credentials = Credentials::of(&headers)?;
        Ok((credentials.name.map(text), text(credentials.token)))
    }

    #[test]
    fn each_form_is_read_in_both_fields() {
        let alice = (Some("alice".to_owned()), "0123456789abcdef".to_owned());
        let nameless = (None, "0123456789abcdef".to_owned());
        let pair = basic(b"alice:0123456789abcdef");
        for field in ["authorization", "proxy-authorization"] {
            for (value, expected) in [
                ("Bearer 0123456789abcdef", Ok(nameless.clone())),
                ("bEARER 0123456789abcdef", Ok(nameless.clone())),
                (&*pair, Ok(alice.clone())),
                (&*pair.replacen("Basic", "BASIC", 1), Ok(alice.clone())),
                (&*basic(b":0123456789abcdef"), Ok(nameless.clone())),
                (&*basic(b"alice:a:b"), Ok((Some("alice".to_owned()), "a:b".to_owned()))),
                (&*basic(b"no colon"), Err(NoCredentials::Unread)),
                ("Basic not base64!", Err(NoCredentials::Unread)),
                ("Basic", Err(NoCredentials::Unread)),
                ("Digest username=\"alice\"", Err(NoCredentials::Unread)),
                ("Negotiate abcd", Err(NoCredentials::Unread)),
                ("", Err(NoCredentials::Unread)),
                (" ", Err(NoCredentials::Unread)),
            ] {
                assert_eq!(shown(&[(field, value)]), expected, "{field}: {value:?}");
            }
        }
        assert_eq!(shown(&[]), Err(NoCredentials::Unread));
    }

    #[test]
    fn different_credentials_in_one_request_do_not_count() {
        let bearer = "Bearer 0123456789abcdef";
        for (first, second, expected) in [
            (bearer, bearer, None),
            (bearer, "Bearer fedcba9876543210", Some(NoCredentials::Several)),
            (bearer, &*basic(b"alice:0123456789abcdef"), Some(NoCredentials::Several)),
            (bearer, "Digest x", None),
        ] {
            for fields in [
                [("authorization", first), ("proxy-authorization", second)],
                [("proxy-authorization", second), ("authorization", first)],
                [("proxy-authorization", first), ("proxy-authorization", second)],
            ] {
                assert_eq!(shown(&fields).err(), expected, "{fields:?}");
            }
        }
    }
}
