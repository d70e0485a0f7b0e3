//! Bearer tokens, which clients show to proxies in `Proxy-Authorization: Bearer TOKEN` (RFC 6750).

use std::{fmt, ops::Range};

use crate::proxy::{UserRules, is_own_name};

/// A secret that lets a client use a proxy. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// The error for a text that is not a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has 16 to 8192 characters out of A-Z a-z 0-9 - . _ ~ + / and = at the end")]
pub struct TokenError;

impl Token {
    /// The allowed lengths of a token. JSON Web Tokens are long.
    const LEN: Range<usize> = 16..8193;

    /// Parses a bearer token (`b64token` of RFC 6750 §2.1). It must have at least 16 characters, so
    /// that it cannot be guessed over the network.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let body = text.trim_end_matches('=');
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
        if !Self::LEN.contains(&text.len()) || !body.bytes().all(allowed) {
            return Err(TokenError);
        }
        Ok(Self(text.to_owned()))
    }

    /// The secret itself, for a place that only its owner can read.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether a peer showed this token.
    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        is_same(self.0.as_bytes(), shown)
    }

    /// The value of the `Proxy-Authorization` field.
    pub(crate) fn field_value(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

/// Whether a peer showed a secret of ours. Compares without stopping at the first difference.
pub(crate) fn is_same(own: &[u8], shown: &[u8]) -> bool {
    own.len() == shown.len() && own.iter().zip(shown).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

/// A token, and the name by which logs call its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedToken {
    name: String,
    pub(crate) token: Token,
}

/// The error for a text that is not the name of a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name of a token has 1 to {} characters out of A-Z a-z 0-9 - . _, and is not `{}`, which stands for clients \
     that show nothing",
    NamedToken::NAME_MAX,
    UserRules::ANYONE
)]
pub struct TokenNameError;

impl NamedToken {
    /// The length of the longest name. Every token is longer, so that a token can never be taken
    /// for a name, which would then appear in logs.
    pub const NAME_MAX: usize = Token::LEN.start - 1;

    /// Gives a token a name.
    pub fn new(name: &str, token: Token) -> Result<Self, TokenNameError> {
        Self::check_name(name)?;
        Ok(Self { name: name.to_owned(), token })
    }

    /// Whether a text can be the name of a token, or of a user with a password.
    pub(crate) fn check_name(name: &str) -> Result<(), TokenNameError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = (1..=Self::NAME_MAX).contains(&name.len()) && name.bytes().all(allowed);
        if !is_name || !is_own_name(name) {
            return Err(TokenNameError);
        }
        Ok(())
    }

    /// The name of the token.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The token without its name.
    pub fn into_token(self) -> Token {
        self.token
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_enough_and_is_never_printed() {
        for bad in ["short", "0123456789 abcdef", "0123456789abcdef\n", "=0123456789abcdef"] {
            assert_eq!(Token::parse(bad), Err(TokenError), "{bad:?}");
        }
        let token = Token::parse("c2VjcmV0LXNlY3JldA==").unwrap();
        assert!(!format!("{token:?}").contains("c2V"));
    }

    #[test]
    fn a_name_is_short_and_printable_and_never_a_token() {
        let token = || Token::parse("0123456789abcdef").unwrap();
        for bad in ["", "0123456789abcdef", "a b", "a\n", "ä", "a=b", "a\u{1b}[2J", "anyone"] {
            assert_eq!(NamedToken::new(bad, token()), Err(TokenNameError), "{bad:?}");
        }
        let named = NamedToken::new("alice.laptop-1", token()).unwrap();
        assert_eq!(named.name(), "alice.laptop-1");
        assert!(!format!("{named:?}").contains("0123"), "{named:?}");
    }
}
