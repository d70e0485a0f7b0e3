//! Secrets that let a client use a proxy: one on a line, after its name if it has one. `#` begins a comment
//! line.

use std::collections::BTreeMap;

use tandem_node::proxy::{NamedToken, Token};

use crate::Fault;

/// Parses all tokens of a text. There may be none. No two have the same name.
pub fn parse(text: &str) -> Result<Vec<NamedToken>, Fault> {
    let mut tokens = Vec::new();
    let mut lines = BTreeMap::new();
    for (text, line) in text.lines().map(str::trim).zip(1..) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let wrong = |reason| Fault { line, reason };
        let token = parse_line(text, line).map_err(wrong)?;
        if let Some(first) = lines.insert(token.name().to_owned(), line) {
            return Err(wrong(format!("line {first} has a token of the same name")));
        }
        tokens.push(token);
    }
    Ok(tokens)
}

/// Reads `TOKEN` or `NAME TOKEN`. A token without a name is called after its line. The error does not
/// show the text.
fn parse_line(text: &str, line: usize) -> Result<NamedToken, String> {
    let default = format!("token-{line}");
    let words: Vec<_> = text.split_whitespace().collect();
    let (name, token) = match words.as_slice() {
        [token] => (default.as_str(), *token),
        [name, token] => (*name, *token),
        _ => return Err("a line has a token, or a name and a token".to_owned()),
    };
    let token = Token::parse(token).map_err(|error| match Token::parse(name) {
        Ok(_) => "the name stands before the token".to_owned(),
        Err(_) => error.to_string(),
    })?;
    NamedToken::new(name, token).map_err(|error| format!("{error}; it stands before the token"))
}
