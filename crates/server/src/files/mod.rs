//! Files that settings name: secrets, tokens, and PEPs.

mod error;
pub mod peps;
pub mod secret;
pub mod tokens;

pub use self::error::FileError;
