//! The monotonic clock. Only this function reads it.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "an emulator works in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
