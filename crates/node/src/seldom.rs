//! A rate limit for warnings, so that no peer can fill the log.

use std::time::{Duration, Instant};

/// The shortest time between two warnings of one kind. An operator who watches the log sees each
/// problem soon, and a lasting problem adds 360 lines per hour.
const INTERVAL: Duration = Duration::from_secs(10);

/// Limits the rate of one kind of warning. The first one is due at once. The later ones are due at
/// most once every ten seconds.
#[derive(Debug, Default)]
pub struct Seldom {
    /// When the next warning is due; `None` before the first one.
    next: Option<Instant>,
    left_out: u64,
}

impl Seldom {
    /// Returns whether a warning is due. If it is, returns how many warnings were left out since
    /// the last one. The caller writes this number in its warning.
    pub fn due(&mut self, now: Instant) -> Option<u64> {
        if self.next.is_some_and(|next| now < next) {
            self.left_out += 1;
            return None;
        }
        self.next = Some(now + INTERVAL);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_warning_is_due_at_once_and_later_ones_say_how_many_were_left_out() {
        #[expect(clippy::disallowed_methods, reason = "only the differences matter")]
        let start = Instant::now();
        let mut seldom = Seldom::default();
        for (millis, due) in [
            (0, Some(0)),
            (0, None),
            (1, None),
            (9_999, None),
            (10_000, Some(3)),
            (19_999, None),
            (50_000, Some(1)),
            (60_000, Some(0)),
        ] {
            let now = start + Duration::from_millis(millis);
            assert_eq!(seldom.due(now), due, "after {millis} ms");
        }
    }
}
