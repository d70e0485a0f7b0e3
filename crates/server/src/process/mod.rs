//! What any process of Tandem has: an event loop, signals, lines on standard error, and files that threads of their
//! own write, so that no thread that carries packets waits for a reader or a disk
//! ([ADR 57](../../../../docs/design/adr/0057-nobody-waits-for-a-reader.md)).

mod error;
pub mod log;
pub mod outlet;
pub mod qlog;
mod runtime;
pub mod secret;

use std::fmt::Display;

pub use self::{
    error::{SystemError, WriteError},
    runtime::{Signals, after_grace, listen, runtime, say_listening},
};

/// Writes a line to standard error, in the form of the log. A failure is counted, because there is no other place to
/// report it; `eprintln!` would panic.
pub fn say(line: impl Display) {
    log::put(log::line(&line.to_string()).as_bytes());
}
