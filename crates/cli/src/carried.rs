//! What a client has carried for local programs, as it says when it ends.

use std::fmt;

use serde::Serialize;
use tandem_node::stats::Stats;

/// The counters of `tandem client`; the object of its `--json`. Packets are those of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Carried {
    /// Flows of local programs.
    flows: u64,
    /// Packets that entered the tunnel.
    to_target_packets: u64,
    /// Bytes of UDP payload that entered the tunnel.
    to_target_bytes: u64,
    /// Packets that left the tunnel for programs.
    to_client_packets: u64,
    /// Bytes of UDP payload that left the tunnel for programs.
    to_client_bytes: u64,
    /// Packets that were dropped here because they did not fit the tunnel.
    dropped_too_large: u64,
    /// Packets that were dropped here because the tunnel's queue was full.
    dropped_queue_full: u64,
    /// Packets that were dropped here for other reasons.
    dropped_other: u64,
}

impl From<&Stats> for Carried {
    fn from(stats: &Stats) -> Self {
        let dropped = &stats.dropped;
        Self {
            flows: stats.flows,
            to_target_packets: stats.to_target_datagrams,
            to_target_bytes: stats.to_target_bytes,
            to_client_packets: stats.to_client_datagrams,
            to_client_bytes: stats.to_client_bytes,
            dropped_too_large: dropped.too_large,
            dropped_queue_full: dropped.queue_full,
            dropped_other: dropped.total() - dropped.too_large - dropped.queue_full,
        }
    }
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flows, to_target_packets, to_client_packets, .. } = self;
        write!(f, "carried {to_target_packets} packets to targets and {to_client_packets} back, ")?;
        write!(f, "in {flows} flows; dropped {} that did not fit, ", self.dropped_too_large)?;
        let others = self.dropped_queue_full + self.dropped_other;
        write!(f, "and {others} for other reasons")
    }
}
