//! The users of a proxy: the files with their tokens, keys and limits, and the store of what they have used.

mod keeper;
#[cfg(not(feature = "usage-store"))]
mod left_out;
mod setup;
#[cfg(feature = "usage-store")]
mod sqlite;
mod successor;

use std::path::PathBuf;

use tandem_node::proxy::KeptUsage;

#[cfg(not(feature = "usage-store"))]
pub use self::left_out::Store;
#[cfg(feature = "usage-store")]
pub use self::sqlite::Store;
pub use self::{
    keeper::{Keeper, say_unusable, unix},
    setup::UsersSetup,
};

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the usage store {} cannot be {what}: {reason}", file.display())]
pub struct StoreError {
    file: PathBuf,
    what: &'static str,
    reason: String,
}

/// What the store has of one user in one month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What the user has used.
    pub kept: KeptUsage,
    /// The most bytes of the month.
    pub limit: Option<u64>,
}
