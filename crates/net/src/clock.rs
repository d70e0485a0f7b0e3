//! The monotonic clock, which only this module reads.

use std::time::Instant;

/// Returns the present time of the clock of all nodes in this process.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub fn now() -> Instant {
    Instant::now()
}
