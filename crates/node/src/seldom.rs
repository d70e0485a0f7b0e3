//! Rate limits for lines of the log, so that no peer can fill it.

use std::time::{Duration, Instant};

use crate::limits::Limits;

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

/// Limits the rate of one kind of line that belongs to normal work: [`Limits::LOG_BURST`] at once, and then
/// [`Limits::LOG_PER_SECOND`] in each second.
#[derive(Debug, Default)]
pub struct LineBudget {
    /// When the whole burst may be written again.
    full_at: Option<Instant>,
    left_out: u64,
}

impl LineBudget {
    /// Returns whether a line may be written. If it may, returns how many were left out since the last one.
    pub fn due(&mut self, now: Instant) -> Option<u64> {
        let interval = Duration::from_secs(1) / Limits::LOG_PER_SECOND;
        let next = self.full_at.map_or(now, |full_at| full_at.max(now)) + interval;
        if next > now + interval * Limits::LOG_BURST {
            self.left_out += 1;
            return None;
        }
        self.full_at = Some(next);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_start;

    #[test]
    fn a_budget_has_a_burst_of_lines_and_then_some_in_each_second() {
        let (mut budget, start) = (LineBudget::default(), test_start());
        let mut written = |second| {
            let now = start + Duration::from_secs(second);
            let lines: Vec<_> = (0..5000).filter_map(|_| budget.due(now)).collect();
            (u32::try_from(lines.len()).unwrap(), lines[0])
        };
        assert_eq!(written(0), (Limits::LOG_BURST, 0));
        assert_eq!(written(1), (Limits::LOG_PER_SECOND, 4000));
        assert_eq!(written(1000).0, Limits::LOG_BURST, "no more than the burst is saved");
    }

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
