//! Bearer tokens, which clients show to proxies in `Proxy-Authorization: Bearer TOKEN` (RFC 6750).

use std::fmt;

/// A secret that lets a client use a proxy. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// The error for a text that is not a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has 16 to 512 characters out of A-Z a-z 0-9 - . _ ~ + / and = at the end")]
pub struct TokenError;

impl Token {
    /// Parses a bearer token (`b64token` of RFC 6750 §2.1). It must have at least 16 characters, so
    /// that it cannot be guessed over the network.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let body = text.trim_end_matches('=');
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
        if !(16..=512).contains(&text.len()) || !body.bytes().all(allowed) {
            return Err(TokenError);
        }
        Ok(Self(text.to_owned()))
    }

    /// Whether a peer showed this token. Compares without stopping at the first difference.
    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        let own = self.0.as_bytes();
        own.len() == shown.len() && own.iter().zip(shown).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
    }

    /// The value of the `Proxy-Authorization` field.
    pub(crate) fn field_value(&self) -> String {
        format!("Bearer {}", self.0)
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
}
