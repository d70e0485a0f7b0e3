use std::time::{Duration, Instant};

use tandem_units::ByteCount;

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of packets.
    pub packets: u64,
    /// Their bytes, as IP packets.
    pub bytes: ByteCount,
}

impl Traffic {
    /// Counts one more packet.
    pub fn count(&mut self, size: ByteCount) {
        self.packets += 1;
        self.bytes += size;
    }

    pub(crate) fn uncount(&mut self, size: ByteCount) {
        self.packets -= 1;
        self.bytes -= size;
    }
}

/// What became of the packets of a link.
///
/// At any time `entered + duplicated = delivered + dropped_* + held`, in packets and in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Came to the link.
    pub entered: Traffic,
    /// Left the link at its far end.
    pub delivered: Traffic,
    /// Came while the link was off.
    pub dropped_outage: Traffic,
    /// Were larger than the MTU.
    pub dropped_mtu: Traffic,
    /// Found the queue full, or made room for what found it full.
    pub dropped_queue: Traffic,
    /// Were dropped by the queue's `CoDel`, which had room for them.
    pub dropped_codel: Traffic,
    /// Were lost by chance.
    pub dropped_loss: Traffic,
    /// Copies that the link made.
    pub duplicated: Traffic,
    /// Were made late; a copy is as late as its original and not counted.
    pub reordered: Traffic,
    /// Are in the link now: queued, in transmission or on their way.
    pub held: Traffic,
    /// Went through the bottleneck.
    pub carried: Traffic,
    /// Bytes that wait in the queue now, without the packet in transmission, as the queue's limit
    /// counts them.
    pub queued: ByteCount,
    /// The most that ever waited in the queue.
    pub queued_max: ByteCount,
    /// Time in the queue and in transmission, summed up over all that was carried.
    pub sojourn_sum: Duration,
    /// The longest of these times.
    pub sojourn_max: Duration,
    /// How long packets were queued or in transmission, up to the last time when none was.
    pub busy_before: Duration,
    /// Since when packets have been queued or in transmission; `None` if none are.
    pub busy_since: Option<Instant>,
}

impl LinkStats {
    /// How long, up to `now`, packets were queued or in transmission. A link without a bottleneck
    /// is never busy.
    pub fn busy_time(&self, now: Instant) -> Duration {
        let current = self.busy_since.map_or(Duration::ZERO, |since| now.duration_since(since));
        self.busy_before + current
    }

    /// The mean time in the queue and in transmission, rounded down; `None` before the first packet.
    pub fn sojourn_mean(&self) -> Option<Duration> {
        let nanos = self.sojourn_sum.as_nanos().checked_div(self.carried.packets.into())?;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}
