//! Access to a proxy (RFC 9110 §11.7).

use crate::token::Token;

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
        tokens.iter().fold(false, |found, token| found | token.is(shown))
    }
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
}
