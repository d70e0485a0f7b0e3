use std::time::{Duration, Instant};

use tandem_units::ByteCount;

/// A number of packets and their bytes.
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

/// Counters of the packets of a link.
///
/// At any time `entered + duplicated = delivered + dropped_* + held`, in packets and in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets that entered the link.
    pub entered: Traffic,
    /// Packets that left the link at its far end.
    pub delivered: Traffic,
    /// Packets that came while the link was off.
    pub dropped_outage: Traffic,
    /// Packets that were larger than the MTU.
    pub dropped_mtu: Traffic,
    /// Packets that the queue dropped for lack of room, at its tail or at its head.
    pub dropped_queue: Traffic,
    /// Packets that `CoDel` dropped although the queue had room for them.
    pub dropped_codel: Traffic,
    /// Packets that were lost by chance.
    pub dropped_loss: Traffic,
    /// Copies that the link made.
    pub duplicated: Traffic,
    /// Packets that were delayed so that later packets overtake them. Copies of them are not
    /// counted.
    pub reordered: Traffic,
    /// Packets that are in the link now: queued, in transmission or on their way to the far end.
    pub held: Traffic,
    /// Packets that went through the bottleneck.
    pub carried: Traffic,
    /// Bytes that wait in the queue now, without the packet in transmission, as the queue's limit
    /// counts them.
    pub queued: ByteCount,
    /// The largest number of bytes that ever waited in the queue.
    pub queued_max: ByteCount,
    /// Sum of the times in the queue and in transmission, over all packets that were carried.
    pub sojourn_sum: Duration,
    /// The longest of these times.
    pub sojourn_max: Duration,
    /// Total length of the busy periods that have ended. A busy period is a time during which
    /// packets are queued or in transmission.
    pub busy_before: Duration,
    /// Start of the current busy period, if there is one.
    pub busy_since: Option<Instant>,
}

impl LinkStats {
    /// The time, up to `now`, during which packets were queued or in transmission. A link without a
    /// bottleneck is never busy.
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
