//! Active queue management (AQM, RFC 7567): keeps the queue of a flow short by dropping payloads
//! that have not been sent yet.
//!
//! It measures the sojourn time of each payload that leaves, drops one payload at a time, and drops
//! more often when the first drops have not helped, as `CoDel` (RFC 8289) does. It differs from
//! `CoDel` in two ways. The payloads of a queue belong to one sender whose RTT is not known, and
//! that sender learns of a drop late, because the other end of the tunnel delivers the payloads in
//! order:
//!
//! - A sender that starts, or starts again, doubles its rate each RTT until the first drop. That
//!   drop comes as soon as the newest payload is expected to wait long, not only when the oldest
//!   has waited long.
//! - The time until the next drop includes the sojourn time of the queue, because the sender learns
//!   of a drop only after the queue in front of it has drained.
//!
//! All times but one count only while the tunnel receives acknowledgements. A queue that an outage
//! built up is no sign of a sender that is too fast.
//!
//! `benchmarks/notes/short-queue-before-an-ordered-exit.md` has the measurements.

use std::time::{Duration, Instant};

/// The sojourn time, expected for the newest payload, at which a sender that starts gets its first
/// drop.
const START_TARGET: Duration = Duration::from_millis(40);

/// The sojourn time above which further payloads are dropped. It is as long as a long RTT, so that
/// a sender that halves its congestion window still fills the link.
const TARGET: Duration = Duration::from_millis(130);

/// The time that a sender needs to detect a drop and to respond, without the sojourn time of the
/// queue.
const INTERVAL: Duration = Duration::from_millis(200);

/// A sender that has seen no drop for this long counts as one that starts again.
const RESTART_AFTER: Duration = Duration::from_secs(10);

/// Drops that are a full interval apart. One sender needs two or three of them after its start, and
/// one is a reserve. If they do not help, the queue belongs to several senders or to one that does
/// not respond to loss, and the drops come faster and faster.
const FULL_INTERVAL_DROPS: u32 = 4;

/// A queue with fewer bytes counts as short, however long its sojourn time is. A tunnel whose rate
/// has just begun to grow, at its start or after an outage, needs data to send so that it can find
/// out what the path carries.
const BYTES_LEAST: usize = 64_000;

/// A shorter sojourn time is no measure of the rate at which the queue drains.
const WAIT_LEAST: Duration = Duration::from_millis(10);

/// A payload at the head of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Oldest {
    /// The `ack_time` at which the payload entered the queue.
    pub(super) since: Duration,
    /// Bytes that waited in front of it at that time.
    pub(super) ahead: usize,
    /// Bytes that wait behind it now.
    pub(super) behind: usize,
}

/// Decides for each payload at the head of a flow's queue whether to drop it.
#[derive(Debug, Default)]
pub(super) struct Aqm {
    /// When the last drop was.
    last: Option<Instant>,
    /// The earliest `ack_time` of the next drop.
    next: Duration,
    /// Drops since the sojourn time was last below the target.
    count: u32,
}

impl Aqm {
    /// Whether to drop the payload at the head. The caller asks once for each payload. `ack_time`
    /// is the time during which acknowledgements arrived, without outages.
    pub(super) fn drops(&mut self, now: Instant, ack_time: Duration, oldest: Oldest) -> bool {
        let wait = ack_time.saturating_sub(oldest.since);
        if wait < WAIT_LEAST || oldest.behind < BYTES_LEAST {
            self.count = 0;
            return false;
        }
        let expected = expected(wait, oldest);
        let is_new = self.last.is_none_or(|last| now > last + RESTART_AFTER);
        let is_too_long = if is_new { expected >= START_TARGET } else { wait >= TARGET };
        if !is_too_long {
            self.count = 0;
            return false;
        }
        if ack_time < self.next {
            return false;
        }
        self.count = self.count.saturating_add(1);
        let excess = self.count.saturating_sub(FULL_INTERVAL_DROPS - 1);
        self.last = Some(now);
        self.next = ack_time + by_root(INTERVAL + wait.max(expected), excess);
        true
    }
}

/// How long the newest payload will wait. The bytes ahead of the oldest payload left while that
/// payload waited, which gives the rate at which the queue drains.
fn expected(wait: Duration, Oldest { ahead, behind, .. }: Oldest) -> Duration {
    let nanos = wait.as_nanos().saturating_mul(behind as u128) / (ahead.max(1) as u128);
    // The bound keeps sums of times within their type.
    let wait = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    wait.min(Duration::from_secs(1))
}

/// Divides a time by the square root of a count, which is taken as at least 1. The result is in
/// whole nanoseconds, rounded down.
fn by_root(time: Duration, count: u32) -> Duration {
    let square = time.as_nanos().saturating_mul(time.as_nanos()) / u128::from(count.max(1));
    Duration::from_nanos(u64::try_from(square.isqrt()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// When a queue dropped, in ms. One payload of 1000 bytes leaves it each millisecond. `queue`
    /// returns how long the first payload has waited, in ms, and the bytes behind it.
    fn drops(queue: impl Fn(u32) -> (u32, usize), end_ms: u32) -> Vec<u32> {
        #[expect(clippy::disallowed_methods, reason = "there is no other way to get an Instant")]
        let start = Instant::now();
        let mut aqm = Aqm::default();
        let is_dropped = |at_ms: &u32| {
            let (wait, behind) = queue(*at_ms);
            let ack_time = RESTART_AFTER + *at_ms * MS;
            let ahead = wait as usize * 1000;
            let oldest = Oldest { since: ack_time.saturating_sub(wait * MS), ahead, behind };
            aqm.drops(start + *at_ms * MS, ack_time, oldest)
        };
        (0..end_ms).filter(is_dropped).collect()
    }

    #[test]
    fn a_sender_that_doubles_its_rate_sees_a_drop_before_any_payload_has_waited_long() {
        // The first payload that waited for 22 ms has 66 kB behind it.
        let dropped = drops(|at_ms| (at_ms, at_ms as usize * 3000), 100);
        assert_eq!(dropped, [22]);
    }

    #[test]
    fn drops_come_faster_while_the_queue_does_not_shrink() {
        let dropped = drops(|_| (200, 200_000), 2500);
        // The interval is 200 ms, and the queue adds 200 ms. From the fifth drop on the sum is
        // divided by the roots of 2, 3 and so on.
        assert_eq!(dropped, [0, 400, 800, 1200, 1600, 1883, 2114, 2314, 2493]);
    }

    #[test]
    fn a_queue_below_the_target_loses_one_payload_at_the_start_and_then_none() {
        assert_eq!(drops(|_| (129, 129_000), 5000), [0]);
    }

    #[test]
    fn a_short_queue_loses_nothing() {
        assert_eq!(drops(|_| (59, 59_000), 5000), [0_u32; 0]);
        assert_eq!(drops(|_| (9, 1_000_000), 5000), [0_u32; 0]);
        // A queue with few bytes loses nothing, however slow the link is.
        assert_eq!(drops(|_| (5000, 63_000), 5000), [0_u32; 0]);
    }

    #[test]
    fn a_sender_that_starts_again_sees_an_early_drop() {
        let dropped = drops(|at_ms| (if at_ms % 11_000 == 0 { 100 } else { 20 }, 100_000), 30_000);
        assert_eq!(dropped.len(), 3, "{dropped:?}");
    }
}
