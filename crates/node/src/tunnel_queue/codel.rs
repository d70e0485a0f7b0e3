//! `CoDel` (RFC 8289) on the payloads of one flow that have not been sent yet.

use std::time::{Duration, Instant};

/// When a queue is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    /// The time in the queue that is no cause for concern.
    pub(super) target: Duration,
    /// For how long it may be above the target.
    pub(super) interval: Duration,
}

/// Says of each payload at the head of a queue whether it is to be dropped. The names are those of
/// RFC 8289 §5, the control law is in whole nanoseconds, rounded down.
#[derive(Debug)]
pub(super) struct CoDel {
    times: Times,
    first_above_time: Option<Instant>,
    dropping: bool,
    drop_next: Option<Instant>,
    count: u64,
    lastcount: u64,
}

impl CoDel {
    /// Has not dropped anything yet.
    pub(super) const fn new(times: Times) -> Self {
        Self {
            times,
            first_above_time: None,
            dropping: false,
            drop_next: None,
            count: 0,
            lastcount: 0,
        }
    }

    /// Whether the payload at the head, which came at `since`, is to be dropped. To be asked once of
    /// each; `is_last`: nothing waits behind it.
    pub(super) fn drops(&mut self, now: Instant, since: Instant, is_last: bool) -> bool {
        let is_above = self.is_above(now, since, is_last);
        if !self.dropping {
            if is_above {
                self.begin_dropping(now);
            }
            return is_above;
        }
        self.dropping = is_above;
        let Some(due) = self.drop_next.filter(|due| is_above && *due <= now) else { return false };
        self.count += 1;
        self.drop_next = Some(self.control_law(due));
        true
    }

    fn is_above(&mut self, now: Instant, since: Instant, is_last: bool) -> bool {
        let sojourn_time = now.saturating_duration_since(since);
        if sojourn_time < self.times.target || is_last {
            self.first_above_time = None;
            return false;
        }
        *self.first_above_time.get_or_insert(now + self.times.interval) <= now
    }

    fn begin_dropping(&mut self, now: Instant) {
        self.dropping = true;
        // A queue that has grown again soon is dropped from at the rate that was enough before.
        let delta = self.count - self.lastcount;
        let is_recent = |at: Instant| now.saturating_duration_since(at) < 16 * self.times.interval;
        self.count = if delta > 1 && self.drop_next.is_some_and(is_recent) { delta } else { 1 };
        self.lastcount = self.count;
        self.drop_next = Some(self.control_law(now));
    }

    /// `count` is at least 1.
    fn control_law(&self, at: Instant) -> Instant {
        let interval = self.times.interval.as_nanos();
        let square = interval.saturating_mul(interval) / u128::from(self.count.max(1));
        at + Duration::from_nanos(u64::try_from(square.isqrt()).unwrap_or(u64::MAX))
    }
}
