use std::time::Instant;

use tandem_units::ByteCount;

use super::LinkStats;
use crate::queue::Queued;

/// Counts what happens in a link, as it happens.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    stats: LinkStats,
    /// Packets in the queue and in transmission.
    at_bottleneck: u64,
}

/// Why a packet goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drop {
    Outage,
    Mtu,
    Loss,
    Queue,
    CoDel,
}

impl Ledger {
    pub(super) const fn stats(&self) -> LinkStats {
        self.stats
    }

    /// A packet came to the link.
    pub(super) fn entered(&mut self, _now: Instant, size: ByteCount) {
        self.stats.entered.count(size);
        self.stats.held.count(size);
    }

    /// A packet vanished outside of the bottleneck.
    pub(super) fn dropped(&mut self, _now: Instant, why: Drop, size: ByteCount) {
        self.stats.held.uncount(size);
        let stats = &mut self.stats;
        let dropped = match why {
            Drop::Outage => &mut stats.dropped_outage,
            Drop::Mtu => &mut stats.dropped_mtu,
            Drop::Loss => &mut stats.dropped_loss,
            Drop::Queue => &mut stats.dropped_queue,
            Drop::CoDel => &mut stats.dropped_codel,
        };
        dropped.count(size);
    }

    /// A packet came to the bottleneck.
    pub(super) fn offered<T>(&mut self, now: Instant, _packet: &Queued<T>) {
        self.at_bottleneck += 1;
        self.stats.busy_since.get_or_insert(now);
    }

    /// The queue dropped a packet, maybe the one that was just offered.
    pub(super) fn dropped_from_queue<T>(&mut self, now: Instant, why: Drop, packet: &Queued<T>) {
        self.dropped(now, why, packet.packet.size);
        self.leave_bottleneck(now);
    }

    /// The last bit of a packet was sent.
    pub(super) fn carried<T>(&mut self, now: Instant, packet: &Queued<T>) {
        self.stats.carried.count(packet.packet.size);
        let sojourn = now.duration_since(packet.since);
        self.stats.sojourn_sum += sojourn;
        self.stats.sojourn_max = self.stats.sojourn_max.max(sojourn);
        self.leave_bottleneck(now);
    }

    /// Whether nothing is queued or in transmission.
    pub(super) const fn is_idle(&self) -> bool {
        self.at_bottleneck == 0
    }

    /// A packet was made late.
    pub(super) fn reordered(&mut self, size: ByteCount) {
        self.stats.reordered.count(size);
    }

    /// A packet was copied.
    pub(super) fn duplicated(&mut self, _now: Instant, size: ByteCount) {
        self.stats.duplicated.count(size);
        self.stats.held.count(size);
    }

    /// A packet left the link at its far end.
    pub(super) fn delivered(&mut self, _now: Instant, size: ByteCount) {
        self.stats.held.uncount(size);
        self.stats.delivered.count(size);
    }

    fn leave_bottleneck(&mut self, now: Instant) {
        self.at_bottleneck -= 1;
        if self.at_bottleneck == 0
            && let Some(since) = self.stats.busy_since.take()
        {
            self.stats.busy_before += now.duration_since(since);
        }
    }
}
