//! Files that settings name: tokens and PEPs.

mod error;
pub mod peps;
pub mod pvd;
pub mod tokens;

pub use self::error::FileError;
