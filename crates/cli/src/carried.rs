//! What a client has carried for local programs, as it says when it ends.

use std::fmt;

use serde::Serialize;
use tandem_node::stats::Stats;
use tandem_units::ByteCount;

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
    /// Packets that travelled beside the tunnels' connections in modes forward and uack, at all hops and in both
    /// directions.
    beside_packets: u64,
    /// Packets that came beside the connections and were dropped: forged, replayed or truncated ones.
    beside_refused: u64,
    /// Packets that fitted no datagram, and went in capsules.
    in_capsules: u64,
    /// Packets that were dropped here because they did not fit the tunnel.
    dropped_too_large: u64,
    /// Packets that were dropped here because the tunnel's queue was full.
    dropped_queue_full: u64,
    /// Packets that were dropped here for other reasons.
    dropped_other: u64,
    /// TCP connections of programs that were established up to their target.
    tcp_opened: u64,
    /// TCP connections that were refused, or whose target could not be reached.
    tcp_failed: u64,
    /// Programs that the local proxy refused, because they broke its protocol or did not show its
    /// password.
    tcp_programs_refused: u64,
    /// TCP connections that both ends finished.
    tcp_finished: u64,
    /// TCP connections that a program reset.
    tcp_reset: u64,
    /// TCP connections that the target reset, or that ended with the tunnel.
    tcp_aborted: u64,
    /// Bytes of TCP connections towards targets.
    tcp_to_target_bytes: u64,
    /// Bytes of TCP connections from targets.
    tcp_to_client_bytes: u64,
}

impl From<&Stats> for Carried {
    fn from(stats: &Stats) -> Self {
        let Stats { dropped, tcp, beside, .. } = stats;
        Self {
            flows: stats.flows,
            to_target_packets: stats.to_target_datagrams,
            to_target_bytes: stats.to_target_bytes,
            to_client_packets: stats.to_client_datagrams,
            beside_packets: beside.sent + beside.received,
            beside_refused: beside.refused,
            in_capsules: stats.in_capsules,
            to_client_bytes: stats.to_client_bytes,
            dropped_too_large: dropped.too_large,
            dropped_queue_full: dropped.queue_full,
            dropped_other: dropped.total() - dropped.too_large - dropped.queue_full,
            tcp_opened: tcp.opened,
            tcp_failed: tcp.failed,
            tcp_programs_refused: tcp.programs_refused,
            tcp_finished: tcp.finished,
            tcp_reset: tcp.reset,
            tcp_aborted: tcp.aborted,
            tcp_to_target_bytes: tcp.to_target_bytes,
            tcp_to_client_bytes: tcp.to_client_bytes,
        }
    }
}

impl Carried {
    fn fmt_udp(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flows, to_target_packets, to_client_packets, .. } = self;
        write!(f, "carried {to_target_packets} packets to targets and {to_client_packets} back, ")?;
        write!(f, "in {flows} flows; dropped {} that did not fit, ", self.dropped_too_large)?;
        let others = self.dropped_queue_full + self.dropped_other;
        write!(f, "and {others} for other reasons")
    }

    fn fmt_tcp(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [to, back] = [self.tcp_to_target_bytes, self.tcp_to_client_bytes].map(ByteCount::new);
        let Self { tcp_opened, tcp_failed, tcp_reset, tcp_aborted, .. } = self;
        write!(f, "carried {tcp_opened} TCP connections, with {to} to targets and {back} back; ")?;
        write!(f, "programs reset {tcp_reset} of them, {tcp_aborted} ended with their target or ")?;
        write!(f, "the tunnel, and {tcp_failed} others could not be opened")?;
        match self.tcp_programs_refused {
            0 => Ok(()),
            refused => write!(f, "; refused {refused} programs at the local proxy"),
        }
    }
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dropped = self.dropped_too_large + self.dropped_queue_full + self.dropped_other;
        let tcp = self.tcp_opened + self.tcp_failed + self.tcp_programs_refused;
        match (self.flows + dropped > 0, tcp > 0) {
            (false, false) => f.write_str("carried nothing"),
            (true, false) => self.fmt_udp(f),
            (false, true) => self.fmt_tcp(f),
            (true, true) => {
                self.fmt_udp(f)?;
                f.write_str("\n")?;
                self.fmt_tcp(f)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_node::stats::TcpStats;

    use super::*;

    #[test]
    fn each_sentence_is_said_if_there_was_something() {
        let tcp = TcpStats { opened: 3, failed: 1, to_target_bytes: 2000, ..TcpStats::default() };
        let stats = |flows, tcp| Carried::from(&Stats { flows, tcp, ..Stats::default() });
        for (carried, sentences) in [
            (stats(0, TcpStats::default()), &["carried nothing"][..]),
            (stats(1, TcpStats::default()), &["carried 0 packets"]),
            (stats(0, tcp), &["carried 3 TCP connections, with 2 kB to targets"]),
            (stats(1, tcp), &["carried 0 packets", "carried 3 TCP connections"]),
        ] {
            let said = carried.to_string();
            assert_eq!(said.lines().count(), sentences.len(), "{said}");
            for (line, sentence) in said.lines().zip(sentences) {
                assert!(line.starts_with(sentence), "{line}");
            }
        }
    }
}
