//! The attacks, each with its own arguments and bounds.

pub(crate) mod churn;
pub(crate) mod connections;
pub(crate) mod descriptors;
pub(crate) mod gaps;
pub(crate) mod guesses;
pub(crate) mod handshakes;
pub(crate) mod memory;
pub(crate) mod soak;
