//! Passwords that users choose themselves. A proxy knows only their hashes, and is slow to compute one, so
//! that who steals the hashes finds few passwords.

use std::fmt;

use argon2::{
    Algorithm, Argon2, Params, PasswordHash as Phc, PasswordHasher, PasswordVerifier, Version,
    password_hash::SaltString,
};

use crate::token::{NamedToken, TokenNameError};

/// The hash of a password by Argon2id (RFC 9106) in the form `$argon2id$v=19$m=KIB,t=PASSES,p=LANES$SALT$HASH` (PHC
/// string). It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(String);

/// The error for a text that is not the hash of a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the hash of a password is one of Argon2id, `$argon2id$v=19$m=..,t=..,p=..$..$..`, with {} to {} KiB, and at most \
     {} passes and {} lanes",
    PasswordHash::MEMORY_MIN,
    PasswordHash::MEMORY_MAX,
    PasswordHash::PASSES_MAX,
    PasswordHash::LANES_MAX
)]
pub struct PasswordHashError;

/// The error for a text that is too short or too long for a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a password has 8 to 128 bytes, and no control characters")]
pub struct PasswordError;

impl PasswordHash {
    const MEMORY_MIN: u32 = 8;
    /// It bounds what a check takes of a proxy's memory.
    const MEMORY_MAX: u32 = 65_536;
    const PASSES_MAX: u32 = 10;
    const LANES_MAX: u32 = 4;

    /// How each of them begins. No token does.
    pub const PREFIX: &str = "$argon2id$";

    /// Parses a hash.
    pub fn parse(text: &str) -> Result<Self, PasswordHashError> {
        let wrong = |_| PasswordHashError;
        let hash = Phc::new(text).map_err(wrong)?;
        let params = Params::try_from(&hash).map_err(wrong)?;
        let is_bounded = (Self::MEMORY_MIN..=Self::MEMORY_MAX).contains(&params.m_cost())
            && params.t_cost() <= Self::PASSES_MAX
            && params.p_cost() <= Self::LANES_MAX;
        let is_whole = hash.salt.is_some() && hash.hash.is_some();
        if !text.starts_with(Self::PREFIX) || !is_bounded || !is_whole {
            return Err(PasswordHashError);
        }
        Ok(Self(text.to_owned()))
    }

    /// The hash of a password with this random salt: 19 MiB and two passes, which takes some 20 ms.
    ///
    /// # Errors
    /// The password is too short or too long, or has control characters.
    pub fn of(password: &str, salt: [u8; 16]) -> Result<Self, PasswordError> {
        if !(8..=128).contains(&password.len()) || password.chars().any(char::is_control) {
            return Err(PasswordError);
        }
        let salt = SaltString::encode_b64(&salt).map_err(|_| PasswordError)?;
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::default());
        let hash = argon2.hash_password(password.as_bytes(), &salt).map_err(|_| PasswordError)?;
        Ok(Self(hash.to_string()))
    }

    /// The text, for the file of a proxy.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether it is the hash of this password. That takes long.
    fn is_of(&self, password: &[u8]) -> bool {
        let verify = |hash| Argon2::default().verify_password(password, &hash).is_ok();
        Phc::new(&self.0).is_ok_and(verify)
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

/// The hash of a user's password, and the user's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPassword {
    name: String,
    pub(crate) hash: PasswordHash,
}

impl NamedPassword {
    /// The password of this user. Names are those of tokens.
    pub fn new(name: &str, hash: PasswordHash) -> Result<Self, TokenNameError> {
        NamedToken::check_name(name)?;
        Ok(Self { name: name.to_owned(), hash })
    }

    /// The name of the user.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The name of a check of a password, which its answer has too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckId(pub u64);

/// A password that somebody has shown, and the hash with which it is compared. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordCheck {
    pub(crate) hash: PasswordHash,
    pub(crate) password: Vec<u8>,
    /// Whether the user exists. A check of another one takes as long, and fails.
    pub(crate) is_known: bool,
}

impl PasswordCheck {
    /// Whether the password is right. It takes tens of milliseconds and up to 64 MiB, and must not be asked for on a
    /// thread that carries packets.
    pub fn is_right(&self) -> bool {
        self.hash.is_of(&self.password) & self.is_known
    }
}

impl fmt::Debug for PasswordCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordCheck(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "correct horse", with little memory, so that tests are fast.
    const HASH: &str = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$";

    #[test]
    fn a_password_is_compared_with_its_hash() {
        let hash = PasswordHash::of("correct horse", [7; 16]).unwrap();
        assert_eq!(PasswordHash::parse(hash.reveal()).as_ref(), Ok(&hash));
        assert!(hash.reveal().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", hash.reveal());
        let check = |password: &str, is_known| {
            PasswordCheck { hash: hash.clone(), password: password.into(), is_known }.is_right()
        };
        assert!(check("correct horse", true));
        assert!(!check("correct horse", false) && !check("correct horsf", true));
        assert!(!format!("{hash:?}").contains("argon2"));
        let shown = PasswordCheck { hash, password: b"correct".into(), is_known: true };
        assert!(!format!("{shown:?}").contains("correct"));
    }

    #[test]
    fn hashes_are_whole_and_bounded() {
        let whole = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$MTIzNDU2Nzg5MDEyMzQ1Ng";
        assert!(PasswordHash::parse(whole).is_ok());
        for bad in [
            "",
            "0123456789abcdef",
            HASH,
            "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ",
            &whole.replace("argon2id", "argon2i"),
            &whole.replace("argon2id", "scrypt"),
            &whole.replace("m=8,", "m=65537,"),
            &whole.replace("m=8,", "m=4000000000,"),
            &whole.replace("t=1", "t=11"),
            &whole.replace("p=1", "p=5"),
            &whole.replace("p=1", "p=0"),
            &format!("{whole} "),
        ] {
            assert_eq!(PasswordHash::parse(bad), Err(PasswordHashError), "{bad:?}");
        }
    }

    #[test]
    fn a_password_is_neither_short_nor_long() {
        for bad in ["", "1234567", "12345678\n", &"x".repeat(129)] {
            assert_eq!(PasswordHash::of(bad, [0; 16]), Err(PasswordError), "{bad:?}");
        }
    }
}
