//! Access to a proxy (RFC 9110 §11.7).

use std::{fmt, time::Duration};

use crate::token::NamedToken;

/// The clients that may use a proxy.
#[derive(Clone, Debug)]
pub enum Access {
    /// Every client that reaches the proxy. This is for loopback, or for operators who ask for it
    /// explicitly, or who let TLS demand certificates from clients.
    Anyone,
    /// The clients that send one of these tokens.
    Tokens(Vec<NamedToken>),
}

/// Who uses a flow. Logs show the name and never the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum User {
    /// A client that had to show nothing.
    Anyone,
    /// A client with a certificate, called after the certificate's fingerprint.
    Certificate(String),
    /// A client that showed this token.
    Token(NamedToken),
}

/// Why a request may not use the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// The request has no token.
    NoToken,
    /// The request has a token that the proxy does not know, or another kind of credentials.
    WrongToken,
    /// Too many wrong tokens came from the client's address, so nobody looked at the request's
    /// token. It will be looked at after this time.
    Ignored(Duration),
}

impl Access {
    /// Finds out who sent a request with this `Proxy-Authorization` field. The check takes the same
    /// time for each wrong token of the same length.
    pub(super) fn permits(&self, authorization: Option<&[u8]>) -> Result<User, Denied> {
        let Self::Tokens(tokens) = self else { return Ok(User::Anyone) };
        let value = authorization.ok_or(Denied::NoToken)?;
        let (scheme, shown) = value.split_at_checked(7).ok_or(Denied::WrongToken)?;
        // RFC 9110 §11.1: the scheme is case-insensitive.
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return Err(Denied::WrongToken);
        }
        // Every token is compared, even after the right one.
        let found = tokens.iter().fold(None, |found, named| {
            let is_shown = named.token.is(shown);
            found.or(is_shown.then_some(named))
        });
        found.cloned().map(User::Token).ok_or(Denied::WrongToken)
    }

    /// Whether a user who was let in before may still use the proxy. A token may have another name
    /// than before.
    pub(super) fn still_permits(&self, user: &User) -> bool {
        match (self, user) {
            (Self::Tokens(tokens), User::Token(old)) => {
                tokens.iter().any(|named| named.token == old.token)
            }
            (Self::Tokens(_), _) => false,
            (Self::Anyone, _) => true,
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anyone => f.write_str("anyone"),
            Self::Certificate(fingerprint) => write!(f, "cert-{fingerprint}"),
            Self::Token(named) => f.write_str(named.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;

    fn named(name: &str, token: &str) -> NamedToken {
        NamedToken::new(name, Token::parse(token).unwrap()).unwrap()
    }

    #[test]
    fn only_a_known_token_is_let_in() {
        let access = Access::Tokens(vec![
            named("alice", "0123456789abcdef"),
            named("bob", "fedcba9876543210"),
        ]);
        for (value, user) in [
            (Some("Bearer 0123456789abcdef"), Ok("alice")),
            (Some("bearer 0123456789abcdef"), Ok("alice")),
            (Some("Bearer fedcba9876543210"), Ok("bob")),
            (Some("Bearer 0123456789abcdeg"), Err(Denied::WrongToken)),
            (Some("Bearer 0123456789abcdef0"), Err(Denied::WrongToken)),
            (Some("Bearer alice"), Err(Denied::WrongToken)),
            (Some("Basic 0123456789abcdef"), Err(Denied::WrongToken)),
            (Some("Bearer"), Err(Denied::WrongToken)),
            (Some(""), Err(Denied::WrongToken)),
            (None, Err(Denied::NoToken)),
        ] {
            let permitted = access.permits(value.map(str::as_bytes));
            let permitted = permitted.map(|user| user.to_string());
            assert_eq!(permitted, user.map(str::to_owned), "{value:?}");
        }
        assert_eq!(Access::Anyone.permits(None), Ok(User::Anyone));
    }

    #[test]
    fn a_renamed_token_stays_and_a_removed_one_does_not() {
        let user = User::Token(named("alice", "0123456789abcdef"));
        let renamed = Access::Tokens(vec![named("alice-2", "0123456789abcdef")]);
        assert!(renamed.still_permits(&user) && !renamed.still_permits(&User::Anyone));
        let changed = Access::Tokens(vec![named("alice", "fedcba9876543210")]);
        assert!(!changed.still_permits(&user));
        assert!(Access::Anyone.still_permits(&User::Anyone));
    }
}
