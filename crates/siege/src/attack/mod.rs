//! The attacks, each with its own arguments and bounds.

use std::sync::{Mutex, PoisonError};

pub(crate) mod churn;
pub(crate) mod connections;
pub(crate) mod descriptors;
pub(crate) mod gaps;
pub(crate) mod guesses;
pub(crate) mod handshakes;
pub(crate) mod memory;
pub(crate) mod restart;
pub(crate) mod rush;
pub(crate) mod soak;

/// Changes or reads what several tasks count.
fn count<C, T>(counts: &Mutex<C>, change: impl FnOnce(&mut C) -> T) -> T {
    change(&mut counts.lock().unwrap_or_else(PoisonError::into_inner))
}
