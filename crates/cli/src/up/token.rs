//! Asks for a token or a link.

use tandem_node::proxy::Token;

use crate::{ask, error::UpError};

/// The most bytes of a line of the standard input: more than the longest link.
const LINE_MAX: u64 = 40_000;

/// Asks for the token of a proxy. `None`: nothing was given.
pub(super) fn ask(proxy: &str) -> Result<Option<Token>, UpError> {
    let line = ask::line(&format!("Token for {proxy}: "), LINE_MAX).map_err(UpError::Input)?;
    parse(&line)
}

/// Asks for a link, which may have a token.
pub(super) fn ask_link() -> Result<String, UpError> {
    ask::line("Link: ", LINE_MAX).map_err(UpError::Input)
}

/// A token, perhaps after the name of a user as in a token file. `None`: nothing.
fn parse(text: &str) -> Result<Option<Token>, UpError> {
    let words: Vec<_> = text.split_whitespace().collect();
    match words.as_slice() {
        [] => Ok(None),
        [token] | [_, token] => Token::parse(token).map(Some).map_err(|_| UpError::TokenForm),
        _ => Err(UpError::TokenForm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_token_and_perhaps_a_name_before_it() {
        for (text, expected) in [
            ("0123456789abcdef\n", Ok(Some("0123456789abcdef"))),
            ("alice 0123456789abcdef", Ok(Some("0123456789abcdef"))),
            ("", Ok(None)),
            (" \n", Ok(None)),
            ("short", Err(())),
            ("a b 0123456789abcdef", Err(())),
            ("0123456789abcde\u{1b}", Err(())),
        ] {
            let token = parse(text).map_err(|_| ());
            let token = token.as_ref().map(|it| it.as_ref().map(Token::reveal));
            assert_eq!(token.map_err(|error| *error), expected, "{text:?}");
        }
    }
}
