//! Keys with which users show who they are (RFC 9729), from files: a name and a key on a line. `#` begins a comment
//! line.

use std::{fs, path::Path, str::FromStr};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use tandem_node::{
    concealed::{ConcealedKey, ConcealedUser, KEY_LEN},
    proxy::TokenNameError,
};

use crate::{
    files::FileError,
    process::{SystemError, WriteError, secret},
    tls::random,
};

/// The names and the keys of a file, each with its line.
fn read(file: &Path) -> Result<Vec<(usize, String, [u8; KEY_LEN])>, FileError> {
    let unreadable = |error| FileError::Unreadable { file: file.to_owned(), error };
    let text = fs::read_to_string(file).map_err(unreadable)?;
    let parse = |(number, line): (usize, &str)| {
        let wrong = || {
            fault(file, number, "a line has a name and a key, which has 43 characters of base64url")
        };
        let (name, key) = line.split_once([' ', '\t']).ok_or_else(wrong)?;
        let key = BASE64_URL_SAFE_NO_PAD.decode(key.trim()).ok();
        let key = key.and_then(|key| key.try_into().ok()).ok_or_else(wrong)?;
        Ok((number, name.to_owned(), key))
    };
    tandem_files::lines(&text).map(parse).collect()
}

fn fault(file: &Path, line: usize, reason: impl Into<String>) -> FileError {
    FileError::Token { file: file.to_owned(), line, reason: reason.into() }
}

/// Reads the public keys of users, of which there is at least one.
pub fn read_users(file: &Path) -> Result<Vec<ConcealedUser>, FileError> {
    let mut users = Vec::<ConcealedUser>::new();
    for (line, name, key) in read(file)? {
        if users.iter().any(|user| user.name() == name) {
            return Err(fault(file, line, "an earlier line has the same name"));
        }
        let user = ConcealedUser::new(&name, key);
        users.push(user.map_err(|error| fault(file, line, error.to_string()))?);
    }
    if users.is_empty() {
        return Err(fault(file, 1, "there is no key in it"));
    }
    Ok(users)
}

/// Reads the only private key of a file. Warns if others on this machine can read it.
pub fn read_key(file: &Path) -> Result<ConcealedKey, FileError> {
    let mut keys = read(file)?.into_iter();
    secret::warn_if_shared(file, "the key");
    let (line, name, seed) = keys.next().ok_or_else(|| fault(file, 1, "there is no key in it"))?;
    if let Some((line, ..)) = keys.next() {
        return Err(fault(file, line, "there is a second key in it"));
    }
    ConcealedKey::new(&name, &seed).map_err(|error| fault(file, line, error.to_string()))
}

/// The name of a user who gets a key.
#[derive(Clone, Debug)]
pub struct UserName(String);

impl FromStr for UserName {
    type Err = TokenNameError;

    fn from_str(name: &str) -> Result<Self, TokenNameError> {
        ConcealedUser::new(name, [0; KEY_LEN]).map(|_| Self(name.to_owned()))
    }
}

/// A key cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The system has no random numbers.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Makes a key for a user, in a file that does not exist yet. Returns the line that the proxy needs.
#[expect(clippy::missing_panics_doc, reason = "the name has been checked")]
pub fn make(UserName(name): &UserName, file: &Path) -> Result<String, MakeError> {
    let seed = random::<KEY_LEN>()?;
    let user = ConcealedKey::new(name, &seed).expect("the name has been checked").user();
    let encode = |key: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(key);
    secret::write_new(file, format!("{name} {}\n", encode(&seed)), secret::OWNER_ONLY)?;
    Ok(format!("{name} {}", encode(user.key())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_that_was_made_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (private, public) = (folder.path().join("alice.key"), folder.path().join("keys"));
        let line = make(&"alice".parse().unwrap(), &private).unwrap();
        assert_eq!(fs::metadata(&private).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(make(&"alice".parse().unwrap(), &private).is_err(), "no file is overwritten");
        fs::write(&public, format!("# users\n\n{line}\nbob {}\n", "A".repeat(43))).unwrap();
        let users = read_users(&public).unwrap();
        assert_eq!(users[0], read_key(&private).unwrap().user());
        assert_eq!(users[1].name(), "bob");
        assert!("anyone else".parse::<UserName>().is_err());
    }

    #[test]
    fn a_wrong_line_is_named_and_never_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let key = "A".repeat(43);
        for (text, words) in [
            (String::new(), ":1: there is no key"),
            (format!("{key}\n"), ":1: a line has a name and a key"),
            (format!("#\nalice {key}A\n"), ":2: a line has a name and a key"),
            (format!("alice {key}=\n"), ":1: a line has a name and a key"),
            (format!("alice {key}\nalice {key}\n"), ":2: "),
            (format!("a!b {key}\n"), ":1: the name of a token has"),
        ] {
            fs::write(file.path(), text).unwrap();
            for error in [
                read_users(file.path()).map(drop).unwrap_err().to_string(),
                read_key(file.path()).map(drop).unwrap_err().to_string(),
            ] {
                assert!(error.contains(words) && !error.contains("AAAA"), "{error}");
            }
        }
    }
}
