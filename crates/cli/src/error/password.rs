//! Why there is no hash of a password.

use std::io;

use tandem_node::{password::PasswordError, proxy::TokenNameError};

/// Why `tandem generate password` fails. No error shows the password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PasswordFault {
    /// It is too short or too long.
    #[error(transparent)]
    Password(PasswordError),
    /// The user cannot have this name.
    #[error(transparent)]
    Name(TokenNameError),
    /// It was typed in two ways.
    #[error("the two passwords differ; try again")]
    Different,
    /// It could not be read.
    #[error("cannot read the password: {0}")]
    Input(io::Error),
}
