//! What one flow carries for its user.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{EachWay, account::Account};

/// A direction through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Direction {
    ToTarget,
    ToClient,
}

/// Whether something of a flow may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum MeterVerdict {
    Pass,
    /// It comes faster than the user's rate, and is to be dropped. It was counted.
    OverRate,
    /// The user has carried as many bytes in this month as it may. The flow is to be ended.
    MonthUsed,
}

/// What one flow carries. It is added to the user's account in portions, so that threads do not write to the same
/// memory for each packet.
#[derive(Debug)]
pub(in crate::proxy) struct Meter {
    account: Arc<Account>,
    pending: [Pending; 2],
    /// When the last portion was added.
    added_at: Option<Instant>,
    /// The bytes that were added.
    added: EachWay,
    began: Instant,
    /// When something has passed last.
    last: Instant,
}

#[derive(Debug, Default)]
struct Pending {
    bytes: u64,
    datagrams: u64,
}

/// The largest portion in bytes: two batches of a socket. It bounds how far a user can exceed the bytes of a month
/// with each flow.
const PORTION: u64 = 128 * 1024;

/// The longest time between two portions, if the flow carries something.
const PORTION_TIME: Duration = Duration::from_millis(100);

impl Meter {
    pub(in crate::proxy) fn new(now: Instant, account: Arc<Account>) -> Self {
        let (pending, added) = Default::default();
        Self { account, pending, added_at: None, added, began: now, last: now }
    }

    /// The bytes of the whole flow.
    pub(in crate::proxy) fn bytes(&self) -> EachWay {
        let [to_target, to_client] = &self.pending;
        EachWay {
            to_target: self.added.to_target + to_target.bytes,
            to_client: self.added.to_client + to_client.bytes,
        }
    }

    /// The time from the request until something has passed last.
    pub(in crate::proxy) fn active(&self) -> Duration {
        self.last - self.began
    }

    /// Counts a UDP payload, unless it comes faster than the user's rate.
    pub(in crate::proxy) fn datagram(
        &mut self,
        now: Instant,
        direction: Direction,
        bytes: usize,
    ) -> MeterVerdict {
        if !self.account.bucket(direction).take(self.account.clock.nanos(now), bytes) {
            self.dropped(direction);
            return MeterVerdict::OverRate;
        }
        self.count(now, direction, bytes, 1)
    }

    /// Counts bytes that have passed already, of UDP payloads or of a TCP connection.
    pub(in crate::proxy) fn passed(
        &mut self,
        now: Instant,
        direction: Direction,
        (bytes, datagrams): (usize, u64),
    ) -> MeterVerdict {
        self.account.bucket(direction).charge(self.account.clock.nanos(now), bytes);
        self.count(now, direction, bytes, datagrams)
    }

    /// Counts a UDP payload that was dropped because it came faster than the user's rate.
    pub(in crate::proxy) fn dropped(&self, direction: Direction) {
        self.account.count_over_rate(direction);
    }

    /// The time for which nothing may pass that is not dropped, because of the user's rate.
    pub(in crate::proxy) fn wait(&self, now: Instant, direction: Direction) -> Option<Duration> {
        self.account.bucket(direction).wait(self.account.clock.nanos(now))
    }

    fn count(
        &mut self,
        now: Instant,
        way: Direction,
        bytes: usize,
        datagrams: u64,
    ) -> MeterVerdict {
        self.last = now;
        let [to_target, to_client] = &mut self.pending;
        let pending = if way == Direction::ToTarget { to_target } else { to_client };
        pending.bytes += bytes as u64;
        pending.datagrams += datagrams;
        let is_due = |added| now.saturating_duration_since(added) >= PORTION_TIME;
        if pending.bytes < PORTION && !self.added_at.is_none_or(is_due) {
            return MeterVerdict::Pass;
        }
        self.added_at = Some(now);
        self.add();
        if self.account.has_used_month() { MeterVerdict::MonthUsed } else { MeterVerdict::Pass }
    }

    fn add(&mut self) {
        self.added = self.bytes();
        let directions = [Direction::ToTarget, Direction::ToClient];
        for (direction, pending) in directions.into_iter().zip(&mut self.pending) {
            let Pending { bytes, datagrams } = std::mem::take(pending);
            if (bytes, datagrams) != (0, 0) {
                self.account.add(direction, bytes, datagrams);
            }
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.add();
    }
}
