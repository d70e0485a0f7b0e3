use std::time::{Duration, Instant};

use tandem_units::ByteCount;

use super::{Fifo, QueueLimit, Queued};

/// `CoDel` (RFC 8289), an active queue management (AQM) algorithm. It drops packets from the head
/// of a standing queue. `CoDel` measures the time that a packet spent in the queue when the packet
/// leaves. Once this time has been above the target for an interval, `CoDel` drops one packet, and
/// then one at each time that the control law sets, until the queue is short again. The names are
/// those of the pseudo-code in §5, without their trailing underscores.
///
/// The control law, `t + INTERVAL / sqrt(count)`, is computed in whole nanoseconds, rounded down.
#[derive(Debug)]
pub(crate) struct CoDel<T> {
    limit: QueueLimit,
    times: Times,
    /// The size of a full packet. A queue of at most this size counts as short even if its packets
    /// are old, because a slow link must not run dry.
    maxpacket: ByteCount,
    fifo: Fifo<T>,
    /// The time at which the time in the queue will have been above the target for an interval.
    first_above_time: Option<Instant>,
    dropping: bool,
    /// The time of the next drop.
    drop_next: Option<Instant>,
    /// Number of drops since the dropping state began. It may start from the drop rate of the
    /// previous dropping state.
    count: u64,
    /// The value of `count` when the dropping state began.
    lastcount: u64,
}

/// The two parameters of `CoDel`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) target: Duration,
    pub(super) interval: Duration,
}

impl<T> CoDel<T> {
    pub(super) const fn new(limit: QueueLimit, times: Times, maxpacket: ByteCount) -> Self {
        Self {
            limit,
            times,
            maxpacket,
            fifo: Fifo::new(),
            first_above_time: None,
            dropping: false,
            drop_next: None,
            count: 0,
            lastcount: 0,
        }
    }

    pub(super) fn push(&mut self, packet: Queued<T>, mut dropped: impl FnMut(Queued<T>)) {
        if self.fifo.has_room(self.limit, &packet) {
            self.fifo.push(packet);
        } else {
            dropped(packet);
        }
    }

    /// The function `deque()` of the pseudo-code.
    pub(super) fn pop(
        &mut self,
        now: Instant,
        mut dropped: impl FnMut(Queued<T>),
    ) -> Option<Queued<T>> {
        let (mut packet, mut ok_to_drop) = self.take(now);
        if self.dropping {
            self.dropping = ok_to_drop;
            while let Some(at) = self.drop_next.filter(|at| self.dropping && *at <= now) {
                dropped(packet?);
                (packet, ok_to_drop) = self.take(now);
                if ok_to_drop {
                    self.count += 1;
                    self.drop_next = Some(self.control_law(at));
                } else {
                    self.dropping = false;
                }
            }
        } else if ok_to_drop {
            dropped(packet?);
            (packet, _) = self.take(now);
            self.dropping = true;
            // If the queue has soon grown again, dropping resumes at the previous drop rate.
            let delta = self.count - self.lastcount;
            let is_recent = |at: Instant| now.duration_since(at) < 16 * self.times.interval;
            self.count = if delta > 1 && self.drop_next.is_some_and(is_recent) { delta } else { 1 };
            self.drop_next = Some(self.control_law(now));
            self.lastcount = self.count;
        }
        packet
    }

    /// The function `dodequeue()` of the pseudo-code: it returns the oldest packet, and whether it
    /// may be dropped.
    fn take(&mut self, now: Instant) -> (Option<Queued<T>>, bool) {
        let Some(packet) = self.fifo.pop() else {
            self.first_above_time = None;
            return (None, false);
        };
        let sojourn_time = now.duration_since(packet.since);
        if sojourn_time < self.times.target || self.fifo.len() <= self.maxpacket {
            self.first_above_time = None;
            return (Some(packet), false);
        }
        let first_above_time = *self.first_above_time.get_or_insert(now + self.times.interval);
        (Some(packet), first_above_time <= now)
    }

    /// The time of the next drop after `at`. `count` is at least 1.
    fn control_law(&self, at: Instant) -> Instant {
        let interval = self.times.interval.as_nanos();
        let square = interval.saturating_mul(interval) / u128::from(self.count.max(1));
        at + Duration::from_nanos(u64::try_from(square.isqrt()).unwrap_or(u64::MAX))
    }

    pub(super) const fn fifo(&self) -> &Fifo<T> {
        &self.fifo
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Packet, base_instant};

    const MS: Duration = Duration::from_millis(1);
    const FULL: ByteCount = ByteCount::new(1500);

    /// A queue, and the times in milliseconds at which it dropped packets.
    struct Bench {
        queue: CoDel<u64>,
        dropped_ms: Vec<u128>,
    }

    impl Bench {
        fn new() -> Self {
            let times = Times { target: 5 * MS, interval: 100 * MS };
            let queue = CoDel::new(QueueLimit::packets(1000), times, FULL);
            Self { queue, dropped_ms: Vec::new() }
        }

        fn push(&mut self, at_ms: u32) {
            let packet = Packet { size: FULL, content: 0 };
            let since = base_instant_ms(at_ms);
            self.queue.push(Queued { packet, size: FULL, since }, |_| panic!("there is room"));
        }

        /// Takes a packet from the queue, and returns whether there was one.
        fn pop(&mut self, at_ms: u32) -> bool {
            let dropped = &mut self.dropped_ms;
            self.queue.pop(base_instant_ms(at_ms), |_| dropped.push(at_ms.into())).is_some()
        }
    }

    fn base_instant_ms(at_ms: u32) -> Instant {
        static BASE: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(base_instant);
        *BASE + at_ms * MS
    }

    #[test]
    fn drops_from_a_standing_queue_follow_the_control_law() {
        let mut bench = Bench::new();
        (0..60).for_each(|_| bench.push(0));
        for at_ms in 1..=500 {
            bench.pop(at_ms);
            bench.push(at_ms);
        }
        // The time in the queue is above the target from 5 ms on, so the first drop is 100 ms
        // later. The following gaps are 100 ms divided by the square roots of 1, 2, 3 and so on.
        // The drops fall on the next packet after 205, 275.7, 333.4, 383.4, 428.2 and 469.0 ms.
        assert_eq!(bench.dropped_ms, [105, 205, 276, 334, 384, 429, 469]);
    }

    #[test]
    fn a_burst_that_drains_within_an_interval_loses_no_packet() {
        let mut bench = Bench::new();
        for burst_ms in [0, 1000, 2000] {
            (0..100).for_each(|_| bench.push(burst_ms));
            (1..=100).for_each(|after_ms| assert!(bench.pop(burst_ms + after_ms)));
            assert!(!bench.pop(burst_ms + 101));
        }
        assert!(bench.dropped_ms.is_empty());
    }

    #[test]
    fn a_queue_of_one_full_packet_is_short_even_if_the_packet_is_old() {
        let mut bench = Bench::new();
        bench.push(0);
        for round in 1..100 {
            bench.push(round * 200);
            assert!(bench.pop(round * 200 + 199));
        }
        assert!(bench.dropped_ms.is_empty());
        // With one more packet behind it, the queue is no longer short.
        bench.push(20_000);
        for round in 101..110 {
            bench.push(round * 200);
            assert!(bench.pop(round * 200 + 199));
        }
        assert!(!bench.dropped_ms.is_empty());
    }

    #[test]
    fn dropping_resumes_faster_if_the_queue_soon_grows_again() {
        // The time from the first to the second drop of the second standing queue.
        let second_gap = |pause_ms: u32| {
            let mut bench = Bench::new();
            (0..60).for_each(|_| bench.push(0));
            for at_ms in 1..=500 {
                bench.pop(at_ms);
                bench.push(at_ms);
            }
            let mut now_ms = 500;
            while bench.pop(now_ms) {} // all at once: the queue is short
            bench.dropped_ms.clear();
            now_ms += pause_ms;
            (0..60).for_each(|_| bench.push(now_ms));
            for _ in 0..300 {
                now_ms += 1;
                bench.pop(now_ms);
                bench.push(now_ms);
            }
            bench.dropped_ms[1] - bench.dropped_ms[0]
        };
        assert!(second_gap(100) < 50, "{} ms", second_gap(100));
        assert_eq!(second_gap(2000), 100);
    }

    #[test]
    fn the_control_law_divides_the_interval_by_the_square_root_of_the_count() {
        let mut bench = Bench::new();
        let start = base_instant_ms(0);
        for (count, nanos) in
            [(1, 100_000_000), (2, 70_710_678), (3, 57_735_026), (100, 10_000_000)]
        {
            bench.queue.count = count;
            let after = bench.queue.control_law(start) - start;
            assert_eq!(after.as_nanos(), nanos, "after {count}");
        }
    }
}
