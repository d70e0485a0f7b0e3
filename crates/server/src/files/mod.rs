//! Files that settings name: tokens, keys and PEPs.

pub mod concealed;
mod error;
pub mod peps;
pub mod pvd;
pub mod tokens;

pub use self::error::FileError;
