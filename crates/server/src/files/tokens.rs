//! Secrets that let a client use a proxy, from a file: one on a line, after its name if it has one.
//! `#` begins a comment line.

use std::{fs, path::Path};

use tandem_files::{Fault, tokens::Secrets};
use tandem_node::proxy::{NamedToken, Token};

use crate::{files::FileError, process::secret::warn_if_shared};

/// Reads all secrets of a file, of which there is at least one. Warns if others on this machine can
/// read the file.
pub fn read_all(file: &Path) -> Result<Secrets, FileError> {
    let unreadable = |error| FileError::Unreadable { file: file.to_owned(), error };
    let text = fs::read_to_string(file).map_err(unreadable)?;
    warn_if_shared(file, "the tokens");
    let secrets = tandem_files::tokens::parse(&text).map_err(|Fault { line, reason }| {
        FileError::Token { file: file.to_owned(), line, reason }
    })?;
    if secrets.tokens.is_empty() && secrets.passwords.is_empty() {
        return Err(FileError::NoToken { file: file.to_owned() });
    }
    Ok(secrets)
}

/// The token that a client sends: the first one of a file.
pub fn read_first(file: &Path) -> Result<Token, FileError> {
    let first = read_all(file)?.tokens.into_iter().next();
    first.map(NamedToken::into_token).ok_or_else(|| FileError::NoToken { file: file.to_owned() })
}

#[cfg(test)]
mod tests {
    use tandem_node::password::NamedPassword;

    use super::*;

    fn read(text: &str) -> Result<Vec<String>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        match read_all(file.path()) {
            Ok(Secrets { tokens, passwords }) => {
                let names = tokens.iter().map(NamedToken::name);
                let names = names.chain(passwords.iter().map(NamedPassword::name));
                Ok(names.map(str::to_owned).collect())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_token_has_its_own_name_or_one_of_its_line() {
        let names = read(
            "# tokens\n0123456789abcdef\n alice\t0123456789abcdeF \n\n0123456789abcdE\u{2b}\n",
        );
        assert_eq!(names.unwrap(), ["token-2", "alice", "token-5"]);
    }

    #[test]
    fn hashes_of_passwords_stand_beside_tokens() {
        let hash = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$MTIzNDU2Nzg5MDEyMzQ1Ng";
        let names = read(&format!("alice {hash}\nbob 0123456789abcdef\n")).unwrap();
        assert_eq!(names, ["bob", "alice"]);
        for (text, words) in [
            (format!("{hash}\n"), &[":1: ", "after the name"][..]),
            (format!("alice {}\n", hash.replace("m=8", "m=99999999")), &[":1: ", "KiB"]),
            (format!("alice 0123456789abcdef\nalice {hash}\n"), &[":2: ", "line 1"]),
            (format!("anyone {hash}\n"), &[":1: ", "1 to 15"]),
        ] {
            let error = read(&text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text:?}: {error}");
            assert!(!error.contains("c29t"), "{error}");
        }
    }

    #[test]
    fn a_wrong_line_is_named_and_never_shown() {
        for (text, words) in [
            ("0123456789abcdef alice\n", &[":1: ", "name stands before the token"][..]),
            ("0123456789abcdef 0123456789abcdeF\n", &[":1: ", "1 to 15", "before the token"]),
            ("alice short\n", &[":1: ", "16 to 8192"]),
            ("a 0123456789abcdef\n#\na 0123456789abcdeF\n", &[":3: ", "line 1", "same name"]),
            ("token-2 0123456789abcdef\n0123456789abcdeF\n", &[":2: ", "line 1"]),
            ("a b 0123456789abcdef\n", &[":1: ", "a name and a token"]),
        ] {
            let error = read(text).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{text:?}: no {word:?} in {error}");
            }
            assert!(!error.contains("0123") && !error.contains("short"), "{error}");
        }
    }
}
