//! Access to a proxy, by tokens in `Proxy-Authorization: Bearer TOKEN` (RFC 9110 §11.7, RFC 6750).

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

/// The clients that may use a proxy.
#[derive(Clone, Debug)]
pub enum Access {
    /// Every client that reaches the proxy. This is for loopback, or for operators who ask for it
    /// explicitly.
    Anyone,
    /// The clients that send one of these tokens.
    Tokens(Vec<Token>),
}

impl Access {
    /// Whether a request with this `Proxy-Authorization` field may use the proxy. The check takes
    /// the same time for each wrong token of the same length.
    pub fn permits(&self, authorization: Option<&[u8]>) -> bool {
        let Self::Tokens(tokens) = self else { return true };
        let Some((scheme, shown)) = authorization.and_then(|value| value.split_at_checked(7))
        else {
            return false;
        };
        // RFC 9110 §11.1: the scheme is case-insensitive.
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return false;
        }
        tokens.iter().fold(false, |found, token| found | same(token.0.as_bytes(), shown))
    }
}

/// Compares two values without stopping at the first difference.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_token_is_let_in() {
        let access = Access::Tokens(vec![Token::parse("0123456789abcdef").unwrap()]);
        for (value, permitted) in [
            (Some("Bearer 0123456789abcdef"), true),
            (Some("bearer 0123456789abcdef"), true),
            (Some("Bearer 0123456789abcdeg"), false),
            (Some("Bearer 0123456789abcdef0"), false),
            (Some("Basic 0123456789abcdef"), false),
            (Some("Bearer"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(access.permits(value.map(str::as_bytes)), permitted, "{value:?}");
        }
        assert!(Access::Anyone.permits(None));
    }

    #[test]
    fn a_token_is_long_enough_and_is_never_printed() {
        for bad in ["short", "0123456789 abcdef", "0123456789abcdef\n", "=0123456789abcdef"] {
            assert_eq!(Token::parse(bad), Err(TokenError), "{bad:?}");
        }
        let token = Token::parse("c2VjcmV0LXNlY3JldA==").unwrap();
        assert!(!format!("{token:?}").contains("c2V"));
    }
}
