//! The results of a run.

use serde::{Deserialize, Serialize};

use super::{Parameters, Sample};
use crate::summary::statistics;

/// The results of a run: one object of `lab run --json` and one line of a sweep's results.
///
/// Seconds are rounded to microseconds, milliseconds to microseconds, ratios to 10^-6. Bytes are
/// those of IP packets unless stated otherwise. *Tunnel* is the connection between client and first
/// proxy, *end-to-end* (E2E) the one between client and origin. With an upload the client sends.
/// Fields of the origin then describe the client's end of the E2E connection, fields of the first
/// proxy describe the client's end of the tunnel, and the body arrives at the origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The parameters of the run.
    #[serde(flatten)]
    pub parameters: Parameters,
    /// Whether everything arrived within the time limit.
    pub completed: bool,
    /// Flow completion time (FCT): from the first packet of the E2E connection to the last byte. It
    /// is null if the flow did not complete, and the mean of several flows.
    pub fct_s: Option<f64>,
    /// Completion time of the last flow: the longest of the flows' completion times, or that of the
    /// only flow. It is null if the run did not complete.
    #[serde(default)]
    pub fct_last_s: Option<f64>,
    /// The flow completion time without the handshake.
    pub fct_without_handshake_s: Option<f64>,
    /// Set-up time of the tunnel, before `fct_s` begins.
    pub tunnel_setup_s: Option<f64>,
    /// The ideal completion time of the download; null if there is none. On a trace it counts from
    /// the set-up of the tunnel, or from the start of the run if the run did not complete.
    pub ideal_s: Option<f64>,
    /// The ratio `fct_s / ideal_s`.
    pub fct_over_ideal: Option<f64>,
    /// Bytes of body that arrived.
    pub body_bytes: u64,
    /// Body bits per second, from the first packet to the end, or during the measurement with the
    /// workload `sharing`.
    pub goodput_mbps: f64,
    /// Body bits per second of all `others` together: during the measurement with the workload
    /// `sharing`, and otherwise from the start of the first flow to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others_mbps: Option<f64>,
    /// Share of the origin's packets that it declared lost, and whose contents it retransmitted.
    pub e2e_retransmit_ratio: f64,
    /// Share of the first proxy's packets whose contents it retransmitted; 0 if the tunnel does not
    /// retransmit.
    pub tunnel_retransmit_ratio: f64,
    /// Share of the first proxy's packets that it declared lost.
    pub tunnel_lost_ratio: f64,
    /// Reports that the first proxy sent.
    #[serde(default)]
    pub feedback_sent: u64,
    /// Reports that the origins followed.
    #[serde(default, alias = "feedback_used")]
    pub feedback_followed: u64,
    /// Share of the origin's packets that were declared lost but arrived, so that their contents
    /// were delivered twice.
    pub duplicate_ratio: f64,
    /// What the chain of tunnels costs, for transfers of the client itself.
    #[serde(flatten)]
    pub chain: ChainRecord,
    /// Counters of a tunnel of mode rmdt.
    #[serde(flatten)]
    pub repair: RepairRecord,
    /// What the origin has learnt from the PEP; only with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domains: Option<DomainRecord>,
    /// Mean over time of the encoded bytes in the first proxy's tunnel queue.
    pub tunnel_queue_mean_bytes: f64,
    /// The largest number of bytes in that queue.
    pub tunnel_queue_max_bytes: u64,
    /// Mean over time of the origin's smoothed RTT.
    pub e2e_srtt_mean_ms: f64,
    /// The largest value of that RTT.
    pub e2e_srtt_max_ms: f64,
    /// Mean over time of the first proxy's smoothed RTT.
    pub tunnel_srtt_mean_ms: f64,
    /// The largest value of that RTT.
    pub tunnel_srtt_max_ms: f64,
    /// The access link towards the client.
    #[serde(flatten, with = "prefix_downlink")]
    pub downlink: LinkRecord,
    /// The access link towards the proxy.
    #[serde(flatten, with = "prefix_uplink")]
    pub uplink: LinkRecord,
    /// Percentiles 0 to 100, nearest rank, of the one-way delays of the UDP payloads that the origin
    /// sent, in microseconds; only with `local_program` or datagrams.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packet_delay_percentiles_us: Vec<u64>,
    /// Number of violations that the verifier found. A run with violations is invalid.
    pub violations: u64,
    /// Virtual time of the run.
    pub elapsed_s: f64,
    /// SHA-256 over time, direction and size of every packet. Two runs with the same digest have
    /// the same traffic.
    pub digest: String,
    /// The record of each flow, if there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowRecord>,
    /// Jain's index of fairness over the flows' goodput while all flows ran, if there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jain_index: Option<f64>,
    /// Evenly spaced samples of both layers over time. Their number is at most `samples`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Sample>,
    /// Bytes of body that had arrived at the time of each sample of `series`, for each flow that
    /// had begun. They are only recorded if there were several flows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flow_bytes: Vec<Vec<u64>>,
}

/// What a chain of tunnels costs the first client's access link, by the definitions of the paper on nested
/// acknowledgements (ANRW '25, §5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChainRecord {
    /// Share of all bytes, in both directions, that tunnels add.
    pub chain_overhead_ratio: f64,
    /// Share of all bytes that are acknowledgements because of tunnels.
    pub chain_ack_ratio: f64,
    /// ACK frames of all tunnels for each end-to-end packet with data.
    pub chain_acks_per_packet: f64,
    /// Packets of the end-to-end connection that contain nothing but ACK frames, for each packet with data.
    pub e2e_acks_per_packet: f64,
}

impl RunRecord {
    /// The flow completion time as statistics count it. A flow that did not complete counts as the
    /// time from its start to the run's time limit, which is a lower bound. The result is `None` if
    /// the workload has no completion times.
    pub fn counted_fct_s(&self) -> Option<f64> {
        if self.completed {
            return self.fct_s;
        }
        let each = self.counted_flows_s();
        match statistics(&each) {
            Some(flows) => Some(flows.mean),
            None => self.parameters.workload.has_completion().then(|| self.time_limit_s()),
        }
    }

    /// The completion time of the last flow, with the same rule.
    pub fn counted_fct_last_s(&self) -> Option<f64> {
        let longest = self.counted_flows_s().into_iter().max_by(f64::total_cmp);
        longest.or_else(|| self.counted_fct_s())
    }

    /// The ratio of [`Self::counted_fct_s`] and `ideal_s`.
    pub fn counted_fct_over_ideal(&self) -> Option<f64> {
        if self.completed {
            return self.fct_over_ideal;
        }
        Some(self.counted_fct_s()? / self.ideal_s?)
    }

    /// The completion times of several flows as statistics count them.
    pub fn counted_flows_s(&self) -> Vec<f64> {
        if !self.parameters.workload.has_completion() {
            return Vec::new();
        }
        let limit_s = self.time_limit_s();
        let counted = |flow: &FlowRecord| flow.fct_s.unwrap_or((limit_s - flow.start_s).max(0.0));
        self.flows.iter().map(counted).collect()
    }

    fn time_limit_s(&self) -> f64 {
        self.parameters.time_limit.0.as_secs_f64()
    }
}

/// What an origin has learnt of the path before a PEP (wired) and behind it (access), on its oldest
/// connection, and what really happened there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DomainRecord {
    /// PEP-ACKs that the origin used.
    pub pep_acks: u64,
    /// PEP-ACKs that it refused.
    pub refused: u64,
    /// Lost packets that the origin attributes to each domain, or to none of them.
    pub wired_lost: u64,
    /// See `wired_lost`.
    pub access_lost: u64,
    /// See `wired_lost`.
    pub unknown_lost: u64,
    /// Packets of all connections towards the clients that were really lost there.
    pub wired_lost_really: u64,
    /// See `wired_lost_really`.
    pub access_lost_really: u64,
    /// Smoothed RTT of each domain at the end.
    pub wired_srtt_ms: f64,
    /// See `wired_srtt_ms`.
    pub access_srtt_ms: f64,
    /// Share of the time in which the bottleneck was in each domain. In the rest it was the sender.
    pub wired_bottleneck_ratio: f64,
    /// See `wired_bottleneck_ratio`.
    pub access_bottleneck_ratio: f64,
}

/// Counters of a tunnel of mode RMDT (MASQUE datagram tunnel with retransmission) towards the
/// client. They are 0 in the other modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RepairRecord {
    /// Probe packets, which are retransmitted because there is nothing else to send and no
    /// acknowledgement comes.
    pub repair_probes: u64,
    /// Lost payloads that were no longer retransmitted.
    pub repair_given_up: u64,
    /// The largest number of bytes that waited at the first client's egress for missing payloads.
    pub exit_held_max_bytes: u64,
    /// Mean waiting time of payloads that waited there.
    pub exit_waited_mean_ms: f64,
    /// Missing payloads for which the egress no longer waited.
    pub exit_given_up: u64,
    /// Payloads that came to the egress more than once.
    pub exit_duplicates: u64,
    /// Payloads that active queue management (AQM) dropped from the first proxy's tunnel queue.
    pub tunnel_queue_aqm_drops: u64,
    /// Payloads that the queue dropped because it was full.
    pub tunnel_queue_full_drops: u64,
}

/// One direction of the access link. In JSON the names begin with `downlink_` or `uplink_`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// Bytes that entered the link.
    pub bytes: u64,
    /// Packets that entered the link.
    pub packets: u64,
    /// Bytes of body that arrived. Each byte counts once.
    pub payload_bytes: u64,
    /// Bytes of packets too small to carry a part of the body. They carry acknowledgements and
    /// other small frames.
    pub ack_bytes: u64,
    /// The remaining bytes: headers, handshakes, retransmissions and other traffic.
    pub header_bytes: u64,
    /// Packets lost by chance.
    pub lost_packets: u64,
    /// Packets dropped by the queue.
    pub dropped_packets: u64,
    /// The largest number of bytes in the queue.
    pub queue_max_bytes: u64,
    /// Mean time of a packet in the queue and in transmission.
    pub sojourn_mean_ms: f64,
    /// 95th percentile of that time.
    pub sojourn_p95_ms: f64,
    /// Time, from the first byte of the body to the end, during which the bottleneck was idle.
    pub idle_s: f64,
    /// The part of that time during which data waited in the sender's tunnel queue.
    pub idle_with_backlog_s: f64,
}

/// One of several flows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// The time at which the flow began, or was to begin if the tunnel was never ready.
    pub start_s: f64,
    /// Whether the whole body arrived.
    pub completed: bool,
    /// Its completion time.
    pub fct_s: Option<f64>,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// Bytes of body that arrived.
    pub body_bytes: u64,
    /// Body bits per second while the flow ran, or during the measurement with the workload
    /// `sharing`.
    pub goodput_mbps: f64,
}

serde_with::with_prefix!(prefix_downlink "downlink_");
serde_with::with_prefix!(prefix_uplink "uplink_");
