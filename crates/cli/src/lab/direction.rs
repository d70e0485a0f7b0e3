use serde::Serialize;
use tandem_netem::LinkStats;

/// Counters of one direction in JSON. For packets, `entered + duplicated = delivered + dropped +
/// held`. Bytes are those of IP packets.
#[derive(Debug, Serialize)]
pub(super) struct DirectionCounters {
    entered_packets: u64,
    entered_bytes: u64,
    delivered_packets: u64,
    delivered_bytes: u64,
    dropped_loss_packets: u64,
    dropped_queue_packets: u64,
    dropped_codel_packets: u64,
    dropped_outage_packets: u64,
    dropped_mtu_packets: u64,
    /// Packets that were still in the link at the end.
    held_packets: u64,
    late_packets: u64,
    duplicated_packets: u64,
    queued_max_bytes: u64,
}

impl DirectionCounters {
    /// The counters of the first link of a direction, which is its only link here.
    pub(super) fn of_first(links: &[LinkStats]) -> Self {
        let stats = links.first().copied().unwrap_or_default();
        Self {
            entered_packets: stats.entered.packets,
            entered_bytes: stats.entered.bytes.get(),
            delivered_packets: stats.delivered.packets,
            delivered_bytes: stats.delivered.bytes.get(),
            dropped_loss_packets: stats.dropped_loss.packets,
            dropped_queue_packets: stats.dropped_queue.packets,
            dropped_codel_packets: stats.dropped_codel.packets,
            dropped_outage_packets: stats.dropped_outage.packets,
            dropped_mtu_packets: stats.dropped_mtu.packets,
            held_packets: stats.held.packets,
            late_packets: stats.reordered.packets,
            duplicated_packets: stats.duplicated.packets,
            queued_max_bytes: stats.queued_max.get(),
        }
    }
}
