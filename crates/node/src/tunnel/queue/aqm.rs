//! Keeps the queue of a flow short by dropping payloads that have not been sent yet.
//!
//! As `CoDel` (RFC 8289) does, it looks at how long payloads have waited when they leave, drops one at
//! a time, and drops more often when a few have not helped. It differs in two ways, because what
//! waits here belongs to one sender, whose RTT is not known, and comes out in order far behind:
//!
//! - A sender that is new, or was gone, doubles its rate each RTT until the first drop. That comes as
//!   soon as the newest payload is expected to wait long, and not when the oldest has.
//! - After a drop the sender has as long to hear of it as the queue is long, and an RTT.
//!
//! All times but one are those during which the tunnel hears acknowledgements: what an outage held up
//! does not stand for a sender that is too fast.
//!
//! `docs/adr/0019` has the measurements.

use std::time::{Duration, Instant};

/// The wait that is expected when a sender is braked for the first time.
const FIRST: Duration = Duration::from_millis(40);

/// The wait above which it is braked again. As long as an RTT that is long: a sender that halves what
/// it has on its way then still fills the link.
const TARGET: Duration = Duration::from_millis(130);

/// Beside the queue itself, the time that a sender needs to hear of a drop and to act on it.
const INTERVAL: Duration = Duration::from_millis(200);

/// A sender that was not braked for so long may have begun anew.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// So many drops one sender needs after a start: two or three, and one to spare. When they do not
/// help, it is not one sender, or none that heeds loss, and it is dropped from ever faster.
const PATIENCE: u32 = 4;

/// A queue that is shorter is short however long it takes to send: a tunnel whose rate has just begun
/// to grow, at its start or after an outage, needs something to send to find out what the path carries.
const BYTES_LEAST: usize = 64_000;

/// Waits that are shorter say nothing of the rate at which the queue is emptied.
const WAIT_LEAST: Duration = Duration::from_millis(10);

/// A payload at the head of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Oldest {
    /// When it came, in time during which acknowledgements came.
    pub(super) since: Duration,
    /// Bytes that waited then.
    pub(super) ahead: usize,
    /// Bytes that wait behind it now.
    pub(super) behind: usize,
}

/// Says of each payload at the head of a flow's queue whether it is to be dropped.
#[derive(Debug, Default)]
pub(super) struct Aqm {
    /// When it dropped last.
    last: Option<Instant>,
    /// No drop before this, in time during which acknowledgements came.
    next: Duration,
    /// Drops since the wait was last below the target.
    count: u32,
}

impl Aqm {
    /// To be asked once of each. `heard`: the time during which acknowledgements came.
    pub(super) fn drops(&mut self, now: Instant, heard: Duration, oldest: Oldest) -> bool {
        let wait = heard.saturating_sub(oldest.since);
        if wait < WAIT_LEAST || oldest.behind < BYTES_LEAST {
            self.count = 0;
            return false;
        }
        let expected = expected(wait, oldest);
        let is_new = self.last.is_none_or(|last| now > last + FORGOTTEN);
        let is_too_long = if is_new { expected >= FIRST } else { wait >= TARGET };
        if !is_too_long {
            self.count = 0;
            return false;
        }
        if heard < self.next {
            return false;
        }
        self.count = self.count.saturating_add(1);
        let excess = self.count.saturating_sub(PATIENCE - 1);
        self.last = Some(now);
        self.next = heard + by_root(INTERVAL + wait.max(expected), excess);
        true
    }
}

/// How long the newest payload will wait: what was ahead of the first has gone while it waited.
fn expected(wait: Duration, Oldest { ahead, behind, .. }: Oldest) -> Duration {
    let nanos = wait.as_nanos().saturating_mul(behind as u128) / (ahead.max(1) as u128);
    // Not longer than anybody waits, so that sums of times fit their type.
    let wait = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    wait.min(Duration::from_secs(1))
}

/// By the square root of a count, but of at least 1, in whole nanoseconds, rounded down.
fn by_root(time: Duration, count: u32) -> Duration {
    let square = time.as_nanos().saturating_mul(time.as_nanos()) / u128::from(count.max(1));
    Duration::from_nanos(u64::try_from(square.isqrt()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A queue of payloads of 1000 bytes from which one leaves each millisecond, and when it
    /// dropped, in ms. `queue`: how long the first has waited, in ms, and bytes behind it.
    fn drops(queue: impl Fn(u32) -> (u32, usize), end_ms: u32) -> Vec<u32> {
        #[expect(clippy::disallowed_methods, reason = "there is no other way to get an Instant")]
        let start = Instant::now();
        let mut aqm = Aqm::default();
        let is_dropped = |at_ms: &u32| {
            let (wait, behind) = queue(*at_ms);
            let heard = FORGOTTEN + *at_ms * MS;
            let ahead = wait as usize * 1000;
            let oldest = Oldest { since: heard.saturating_sub(wait * MS), ahead, behind };
            aqm.drops(start + *at_ms * MS, heard, oldest)
        };
        (0..end_ms).filter(is_dropped).collect()
    }

    #[test]
    fn a_sender_that_doubles_its_rate_is_braked_before_anything_has_waited_long() {
        // The first that waited for 22 ms has 66 ms of others behind it.
        let dropped = drops(|at_ms| (at_ms, at_ms as usize * 3000), 100);
        assert_eq!(dropped, [22]);
    }

    #[test]
    fn a_queue_that_stands_whatever_is_done_is_dropped_from_ever_faster() {
        let dropped = drops(|_| (200, 200_000), 2500);
        // 200 ms and the queue's 200 ms, from the fifth on by the roots of 2, 3 and so on.
        assert_eq!(dropped, [0, 400, 800, 1200, 1600, 1883, 2114, 2314, 2493]);
    }

    #[test]
    fn a_queue_below_the_target_loses_one_at_first_and_then_nothing() {
        assert_eq!(drops(|_| (129, 129_000), 5000), [0]);
    }

    #[test]
    fn a_short_queue_loses_nothing() {
        assert_eq!(drops(|_| (59, 59_000), 5000), [0_u32; 0]);
        assert_eq!(drops(|_| (9, 1_000_000), 5000), [0_u32; 0]);
        // However slow the link is.
        assert_eq!(drops(|_| (5000, 63_000), 5000), [0_u32; 0]);
    }

    #[test]
    fn a_sender_that_was_gone_is_braked_early_again() {
        let dropped = drops(|at_ms| (if at_ms % 11_000 == 0 { 100 } else { 20 }, 100_000), 30_000);
        assert_eq!(dropped.len(), 3, "{dropped:?}");
    }
}
