//! The monotonic clock, which only this function reads.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "an emulator works in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
