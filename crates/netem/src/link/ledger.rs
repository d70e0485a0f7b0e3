use std::time::Instant;

use tandem_units::ByteCount;

use super::LinkStats;
use crate::{
    DurationHistogram,
    queue::Queued,
    verifier::{LinkVerifier, Violation, What},
};

/// Counts what happens in a link, as it happens.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    stats: LinkStats,
    /// Packets in the queue and in transmission.
    at_bottleneck: u64,
    /// Times in the queue and in transmission. A link without a bottleneck has none.
    sojourns: Option<Box<DurationHistogram>>,
    verifier: Option<Box<LinkVerifier>>,
}

impl Ledger {
    /// Lets a verifier check all events from now on.
    pub(super) fn verify(&mut self, verifier: LinkVerifier) {
        self.verifier = Some(Box::new(verifier));
    }

    /// The number of violations that the verifier found, and the first of them.
    pub(super) fn violations(&self) -> (u64, Vec<Violation>) {
        let verifier = self.verifier.as_ref();
        verifier.map_or((0, Vec::new()), |verifier| verifier.violations(&self.stats))
    }

    pub(super) const fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Times in the queue and in transmission. They are `None` until the first packet has left the
    /// bottleneck.
    pub(super) fn sojourns(&self) -> Option<&DurationHistogram> {
        self.sojourns.as_deref()
    }

    /// A packet entered the link.
    pub(super) fn entered(&mut self, now: Instant, size: ByteCount) {
        self.log(now, What::Entered, size);
        self.stats.entered.count(size);
        self.stats.held.count(size);
    }

    /// A packet was dropped, for the reason `why`.
    pub(super) fn dropped(&mut self, now: Instant, why: What, size: ByteCount) {
        self.log(now, why, size);
        self.stats.held.uncount(size);
        let stats = &mut self.stats;
        let dropped = match why {
            What::DroppedOutage => &mut stats.dropped_outage,
            What::DroppedMtu => &mut stats.dropped_mtu,
            What::DroppedQueue => &mut stats.dropped_queue,
            What::DroppedCoDel => &mut stats.dropped_codel,
            _ => &mut stats.dropped_loss,
        };
        dropped.count(size);
    }

    /// A packet entered the bottleneck.
    pub(super) fn offered<T>(&mut self, now: Instant, packet: &Queued<T>) {
        self.log(now, What::Queued, packet.packet.size);
        self.at_bottleneck += 1;
        self.stats.busy_since.get_or_insert(now);
    }

    /// The queue dropped a packet, which may be the packet that was just offered.
    pub(super) fn dropped_from_queue<T>(&mut self, now: Instant, why: What, packet: &Queued<T>) {
        self.dropped(now, why, packet.packet.size);
        self.leave_bottleneck(now);
    }

    /// The first bit of a packet was sent.
    pub(super) fn started<T>(&mut self, now: Instant, packet: &Queued<T>) {
        self.log(now, What::Started, packet.packet.size);
    }

    /// The last bit of a packet was sent.
    pub(super) fn carried<T>(&mut self, now: Instant, packet: &Queued<T>) {
        self.log(now, What::Carried, packet.packet.size);
        self.stats.carried.count(packet.packet.size);
        let sojourn = now.duration_since(packet.since);
        self.sojourns.get_or_insert_default().record(sojourn);
        self.stats.sojourn_sum += sojourn;
        self.stats.sojourn_max = self.stats.sojourn_max.max(sojourn);
        self.leave_bottleneck(now);
    }

    /// Whether nothing is queued or in transmission.
    pub(super) const fn is_idle(&self) -> bool {
        self.at_bottleneck == 0
    }

    /// A packet was delayed so that later packets overtake it.
    pub(super) fn reordered(&mut self, size: ByteCount) {
        self.stats.reordered.count(size);
    }

    /// A packet was duplicated.
    pub(super) fn duplicated(&mut self, now: Instant, size: ByteCount) {
        self.log(now, What::Duplicated, size);
        self.stats.duplicated.count(size);
        self.stats.held.count(size);
    }

    /// A packet left the link at its far end.
    pub(super) fn delivered(&mut self, now: Instant, size: ByteCount) {
        self.log(now, What::Delivered, size);
        self.stats.held.uncount(size);
        self.stats.delivered.count(size);
    }

    fn log(&mut self, now: Instant, what: What, size: ByteCount) {
        if let Some(verifier) = &mut self.verifier {
            verifier.log(now, what, size);
        }
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
