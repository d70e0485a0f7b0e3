use std::time::{Duration, Instant};

use tandem_units::ByteCount;

use super::{Fifo, QueueLimit, Queued};

/// `CoDel` (RFC 8289): drops from the head while a queue stands.
///
/// §5: a packet's time in the queue is looked at when it leaves. Once it has been above the target
/// for an interval, one packet is dropped, and then one each time that the control law sets, until
/// the queue is short again. The pseudo-code's names are kept, without their trailing underscores.
///
/// The control law, `t + INTERVAL / sqrt(count)`, is computed in whole nanoseconds, rounded down.
#[derive(Debug)]
pub(crate) struct CoDel<T> {
    limit: QueueLimit,
    times: Times,
    /// A queue of no more than this is short, however old its packets are: §5.5 lets a link
    /// always keep one full packet.
    maxpacket: ByteCount,
    fifo: Fifo<T>,
    /// When the time in the queue will have been above the target for an interval.
    first_above_time: Option<Instant>,
    dropping: bool,
    /// When to drop next.
    drop_next: Option<Instant>,
    /// Drops since the dropping began, or what is taken over from the last time.
    count: u64,
    /// `count` when the dropping began.
    lastcount: u64,
}

/// The two parameters.
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

    /// `deque()` of §5.6.
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
                self.count += 1;
                (packet, ok_to_drop) = self.take(now);
                if ok_to_drop {
                    self.drop_next = Some(self.control_law(at));
                } else {
                    self.dropping = false;
                }
            }
        } else if ok_to_drop {
            dropped(packet?);
            (packet, _) = self.take(now);
            self.dropping = true;
            // A queue that has grown again soon is dropped from at the rate that was enough before.
            let delta = self.count - self.lastcount;
            let is_recent = |at: Instant| now.duration_since(at) < 16 * self.times.interval;
            self.count = if delta > 1 && self.drop_next.is_some_and(is_recent) { delta } else { 1 };
            self.drop_next = Some(self.control_law(now));
            self.lastcount = self.count;
        }
        packet
    }

    /// `dodequeue()` of §5.6: the oldest packet, and whether it may be dropped.
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

    /// §5.7. `count` is at least 1.
    fn control_law(&self, at: Instant) -> Instant {
        let interval = self.times.interval.as_nanos();
        let square = interval.saturating_mul(interval) / u128::from(self.count.max(1));
        at + Duration::from_nanos(u64::try_from(square.isqrt()).unwrap_or(u64::MAX))
    }

    pub(super) const fn fifo(&self) -> &Fifo<T> {
        &self.fifo
    }
}
