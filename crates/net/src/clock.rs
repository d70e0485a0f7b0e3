//! The monotonic clock, read in this one place.

use std::time::Instant;

/// The time, as every node in this process is told it.
#[expect(clippy::disallowed_methods, reason = "the edge of the program, where time comes from")]
pub fn now() -> Instant {
    Instant::now()
}
