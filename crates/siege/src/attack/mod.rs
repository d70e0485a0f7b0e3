//! The attacks, each with its own arguments and bounds.

pub(crate) mod connections;
pub(crate) mod gaps;
pub(crate) mod handshakes;
