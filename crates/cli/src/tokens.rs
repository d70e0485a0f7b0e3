//! Secrets that let a client use a proxy, from a file: one on a line, `#` begins a comment line.

use std::{fs, path::Path};

use tandem_node::proxy::Token;

use crate::{error::ConfigError, text};

/// Every token of a file, at least one. Warns if others on this machine can read the file.
pub(crate) fn read_all(file: &Path) -> Result<Vec<Token>, ConfigError> {
    let unreadable = |error| ConfigError::Unreadable { file: file.to_owned(), error };
    let text = fs::read_to_string(file).map_err(unreadable)?;
    warn_if_shared(file);
    let lines = text.lines().map(str::trim).zip(1..);
    let tokens = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let tokens: Result<Vec<_>, _> = tokens
        .map(|(token, line)| {
            Token::parse(token).map_err(|error| ConfigError::Token {
                file: file.to_owned(),
                line,
                reason: error.to_string(),
            })
        })
        .collect();
    match tokens? {
        tokens if tokens.is_empty() => Err(ConfigError::NoToken { file: file.to_owned() }),
        tokens => Ok(tokens),
    }
}

/// The token that a client sends: the first one of a file.
pub(crate) fn read_first(file: &Path) -> Result<Token, ConfigError> {
    let first = read_all(file)?.into_iter().next();
    first.ok_or_else(|| ConfigError::NoToken { file: file.to_owned() })
}

#[cfg(unix)]
fn warn_if_shared(file: &Path) {
    use std::os::unix::fs::PermissionsExt;

    let mode = fs::metadata(file).map_or(0, |meta| meta.permissions().mode());
    if mode & 0o004 != 0 {
        let file = file.display();
        text::say(format_args!(
            "warning: every user of this machine can read the tokens in {file}; chmod 600 {file}"
        ));
    }
}

#[cfg(not(unix))]
fn warn_if_shared(_: &Path) {}
