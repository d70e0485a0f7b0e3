//! What a run measured.

use serde::{Deserialize, Serialize};

use super::{Parameters, Sample};

/// What a run measured: one object of `lab run --json` and one line of a sweep's results.
///
/// Seconds are rounded to microseconds, milliseconds to microseconds, ratios to 10^-6. Bytes are
/// those of IP packets if nothing else is said. *Tunnel* is the connection between client and first
/// proxy, *end-to-end* (E2E) the one between client and origin. With an upload the client sends: what is
/// said here of the origin is said of its end of the E2E connection, what is said of the first proxy
/// of its end of the tunnel, and what arrives at the client arrives at the origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// What the run was made of.
    #[serde(flatten)]
    pub parameters: Parameters,
    /// Whether everything arrived within the time limit.
    pub completed: bool,
    /// Flow completion time: from the first packet of the E2E connection to the last byte. Null if
    /// it did not complete; with several flows their mean.
    pub fct_s: Option<f64>,
    /// The same from the end of the handshake on.
    pub fct_without_handshake_s: Option<f64>,
    /// Set-up of the tunnel, before `fct_s` begins.
    pub tunnel_setup_s: Option<f64>,
    /// The time that the download could take at best. Null where there is no such yardstick.
    pub ideal_s: Option<f64>,
    /// `fct_s / ideal_s`.
    pub fct_over_ideal: Option<f64>,
    /// Bytes of body that arrived.
    pub body_bytes: u64,
    /// Body bits per second, from the first packet to the end; with the workload `sharing` while it
    /// is counted.
    pub goodput_mbps: f64,
    /// Body bits per second of all `others` together: while it is counted with the workload
    /// `sharing`, else from the beginning of the first flow to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others_mbps: Option<f64>,
    /// Share of the origin's packets that it declared lost, whose contents it sent again.
    pub e2e_retransmit_ratio: f64,
    /// Share of the first proxy's packets whose contents it sent again; 0 where the tunnel repairs
    /// nothing.
    pub tunnel_retransmit_ratio: f64,
    /// Share of the first proxy's packets that it declared lost.
    pub tunnel_lost_ratio: f64,
    /// Reports that the first proxy sent.
    #[serde(default)]
    pub feedback_sent: u64,
    /// Reports that the origins followed.
    #[serde(default)]
    pub feedback_used: u64,
    /// Share of the origin's packets that were declared lost but arrived: what they carried was
    /// delivered twice.
    pub duplicate_ratio: f64,
    /// What mode rmdt did.
    #[serde(flatten)]
    pub repair: RepairRecord,
    /// Mean over time of what waits in the first proxy's tunnel queue, encoded.
    pub tunnel_queue_mean_bytes: f64,
    /// The most that waited there.
    pub tunnel_queue_max_bytes: u64,
    /// Mean over time of the origin's smoothed RTT.
    pub e2e_srtt_mean_ms: f64,
    /// Its largest value.
    pub e2e_srtt_max_ms: f64,
    /// Mean over time of the first proxy's smoothed RTT.
    pub tunnel_srtt_mean_ms: f64,
    /// Its largest value.
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
    /// What the verifier found wrong; a run with anything else than 0 is worth nothing.
    pub violations: u64,
    /// Virtual time that the run took.
    pub elapsed_s: f64,
    /// SHA-256 over time, direction and size of every packet: two runs with the same digest were
    /// the same.
    pub digest: String,
    /// Each flow by itself, if there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowRecord>,
    /// Jain's index of fairness over the flows' goodput while all of them ran, if there were
    /// several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jain_index: Option<f64>,
    /// Both layers over time, as many samples as `samples` says at most, evenly spaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Sample>,
    /// Bytes of body that have arrived, of each flow that has begun, at the moment of each sample of
    /// `series`; only if there were several flows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flow_bytes: Vec<Vec<u64>>,
}

/// What a tunnel of mode rmdt did towards the client; all 0 in the other modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RepairRecord {
    /// Packets sent again because there was nothing else to send and no acknowledgement came.
    pub repair_probes: u64,
    /// Lost payloads that were sent again no more.
    pub repair_given_up: u64,
    /// The most bytes that waited at the first client's exit for what was missing before them.
    pub exit_held_max_bytes: u64,
    /// Mean time of those that waited.
    pub exit_waited_mean_ms: f64,
    /// Missing payloads that the exit waited for no more.
    pub exit_given_up: u64,
    /// Payloads that came to the exit more than once.
    pub exit_duplicates: u64,
    /// Payloads that the first proxy's tunnel queue dropped to stay short.
    pub tunnel_queue_aqm_drops: u64,
    /// Payloads that it dropped because it was full.
    pub tunnel_queue_full_drops: u64,
}

/// One direction of the access link. In JSON the names begin with `downlink_` or `uplink_`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// Bytes that came to the link.
    pub bytes: u64,
    /// Packets that came to the link.
    pub packets: u64,
    /// Bytes of body that arrived, each once.
    pub payload_bytes: u64,
    /// Bytes of packets too small to carry a part of the body: acknowledgements, and what travels
    /// with them.
    pub ack_bytes: u64,
    /// The rest: headers, handshakes, what was sent again, and the traffic of others.
    pub header_bytes: u64,
    /// Packets lost by chance.
    pub lost_packets: u64,
    /// Packets dropped by the queue.
    pub dropped_packets: u64,
    /// The most that ever waited.
    pub queue_max_bytes: u64,
    /// Mean time of a packet in queue and transmission.
    pub sojourn_mean_ms: f64,
    /// 95th percentile of it.
    pub sojourn_p95_ms: f64,
    /// Time, from the first byte of the body to the end, during which the bottleneck had nothing.
    pub idle_s: f64,
    /// The part of it during which something waited in the sender's tunnel queue.
    pub idle_with_backlog_s: f64,
}

/// One of several flows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// When it began.
    pub start_s: f64,
    /// Whether all of it arrived.
    pub completed: bool,
    /// Its completion time.
    pub fct_s: Option<f64>,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// Bytes of body that arrived.
    pub body_bytes: u64,
    /// Body bits per second while it ran; with the workload `sharing` while it is counted.
    pub goodput_mbps: f64,
}

serde_with::with_prefix!(prefix_downlink "downlink_");
serde_with::with_prefix!(prefix_uplink "uplink_");
