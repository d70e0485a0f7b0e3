//! Secrets that let a client use a proxy: a token on each line, after its name if it has one, or a name and the hash of
//! a password. `#` begins a comment line.

use std::collections::BTreeMap;

use tandem_node::{
    password::{NamedPassword, PasswordHash},
    proxy::{NamedToken, Token},
};

use crate::Fault;

/// What a text has.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// The tokens.
    pub tokens: Vec<NamedToken>,
    /// The hashes of passwords.
    pub passwords: Vec<NamedPassword>,
}

enum Secret {
    Token(NamedToken),
    Password(NamedPassword),
}

impl Secret {
    fn name(&self) -> &str {
        match self {
            Self::Token(token) => token.name(),
            Self::Password(password) => password.name(),
        }
    }
}

/// Parses all secrets of a text. There may be none. No two have the same name.
pub fn parse(text: &str) -> Result<Secrets, Fault> {
    let mut secrets = Secrets::default();
    let mut lines = BTreeMap::new();
    for (line, text) in crate::lines(text) {
        let wrong = |reason| Fault { line, reason };
        let secret = parse_line(text, line).map_err(wrong)?;
        if let Some(first) = lines.insert(secret.name().to_owned(), line) {
            return Err(wrong(format!("line {first} has the same name")));
        }
        match secret {
            Secret::Token(token) => secrets.tokens.push(token),
            Secret::Password(password) => secrets.passwords.push(password),
        }
    }
    Ok(secrets)
}

/// Reads `TOKEN`, `NAME TOKEN` or `NAME HASH`. A token without a name is called after its line. The error does not
/// show the text.
fn parse_line(text: &str, line: usize) -> Result<Secret, String> {
    let default = format!("token-{line}");
    let words: Vec<_> = text.split_whitespace().collect();
    let (name, token) = match words.as_slice() {
        [name, hash] if hash.starts_with(PasswordHash::PREFIX) => {
            let hash = PasswordHash::parse(hash).map_err(|error| error.to_string())?;
            let password = NamedPassword::new(name, hash).map_err(|error| error.to_string())?;
            return Ok(Secret::Password(password));
        }
        [hash] if hash.starts_with(PasswordHash::PREFIX) => {
            return Err("the hash of a password stands after the name of its user".to_owned());
        }
        [token] => (default.as_str(), *token),
        [name, token] => (*name, *token),
        _ => return Err("a line has a token, or a name and a token".to_owned()),
    };
    let token = Token::parse(token).map_err(|error| match Token::parse(name) {
        Ok(_) => "the name stands before the token".to_owned(),
        Err(_) => error.to_string(),
    })?;
    let token = NamedToken::new(name, token);
    token.map(Secret::Token).map_err(|error| format!("{error}; it stands before the token"))
}
