//! The user and the password that a client's proxy port may ask for.

use std::fmt;

use crate::token::is_same;

/// A user and a password that local programs must show. They are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Password {
    user: String,
    password: String,
}

/// The error for a text that is not a user with a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a user and a password are written as USER:PASSWORD; each has 1 to {} bytes without control \
     characters, and the user has no colon",
    Password::LEN_MAX
)]
pub struct PasswordError;

impl Password {
    /// The longest user and the longest password in bytes. RFC 1929 §2 has one byte for their
    /// lengths.
    pub const LEN_MAX: usize = 255;

    /// Parses `USER:PASSWORD`.
    ///
    /// # Errors
    ///
    /// There is no colon, or the user or the password is empty, too long, or has control
    /// characters.
    pub fn parse(text: &str) -> Result<Self, PasswordError> {
        let (user, password) = text.split_once(':').ok_or(PasswordError)?;
        let is_valid = |part: &str| {
            (1..=Self::LEN_MAX).contains(&part.len()) && !part.contains(char::is_control)
        };
        if !is_valid(user) || !is_valid(password) {
            return Err(PasswordError);
        }
        Ok(Self { user: user.to_owned(), password: password.to_owned() })
    }

    /// Whether a program showed this user and this password. The time that this takes does not
    /// depend on how much of them is right.
    pub(super) fn is(&self, user: &[u8], password: &[u8]) -> bool {
        let is_user = is_same(self.user.as_bytes(), user);
        is_same(self.password.as_bytes(), password) & is_user
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_has_a_user_and_is_never_printed() {
        for bad in
            ["", "user", "user:", ":secret", "us\ner:secret", &format!("u:{}", "x".repeat(256))]
        {
            assert_eq!(Password::parse(bad), Err(PasswordError), "{bad:?}");
        }
        let password = Password::parse("alice:sec:ret").unwrap();
        assert!(password.is(b"alice", b"sec:ret"));
        for (user, shown) in
            [("alice", "sec:re"), ("alic", "sec:ret"), ("bob", "sec:ret"), ("", "")]
        {
            assert!(!password.is(user.as_bytes(), shown.as_bytes()), "{user} {shown}");
        }
        assert_eq!(format!("{password:?}"), "Password(..)");
    }
}
