use serde::Deserialize;

use crate::run::{Parameters, RunRecord};

/// A quantity that a panel shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Flow completion time (FCT) in seconds. A flow that did not complete counts as the time from
    /// its start to the time limit.
    Fct,
    /// Completion time of the last flow of a run in seconds, with the same rule.
    FctLast,
    /// The flow completion time divided by its ideal, with the same rule.
    FctOverIdeal,
    /// The set-up time of the tunnel in per cent of the flow completion time.
    SetupPercent,
    /// Mean smoothed RTT of the end-to-end (E2E) connection in milliseconds.
    E2eSrtt,
    /// Share of the origin's packets that were retransmissions, in per cent.
    E2eRetransmitPercent,
    /// Share of the origin's packets that were unnecessary retransmissions, in per cent.
    DuplicatePercent,
    /// Share of the first proxy's packets that were retransmissions, in per cent.
    TunnelRetransmitPercent,
    /// Bytes of IP packets that entered the access link towards the client.
    DownlinkBytes,
    /// Body bits per second, in Mbit/s.
    Goodput,
    /// Share of all bytes that are acknowledgements because of tunnels, in per cent.
    ChainAckPercent,
    /// Share of all bytes that tunnels add, in per cent.
    ChainOverheadPercent,
    /// ACK frames of all tunnels for each end-to-end packet with data.
    ChainAcksPerPacket,
    /// Jain's index of fairness over the flows' goodput.
    Jain,
    /// Share of all body bits that other downloads received, in per cent.
    OthersPercent,
    /// One-way delay of the origin's UDP payloads in milliseconds, as a distribution.
    PacketDelay,
    /// Pacing rates of origin and first proxy in Mbit/s, over time.
    PacingRate,
    /// Smoothed RTTs of origin and first proxy in milliseconds, over time.
    Srtt,
    /// Body bits per second of each flow in Mbit/s, over time.
    Throughput,
    /// Lengths of the first proxy's tunnel queue and of the queue of the access link in kB, over
    /// time.
    Queue,
}

impl Measure {
    /// The value of a run; `None` if the run has no such value. A run that did not complete only has
    /// completion times.
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bytes")]
    pub(super) fn of(self, record: &RunRecord) -> Option<f64> {
        let Parameters { mode, .. } = record.parameters;
        match self {
            Self::Fct => record.counted_fct_s(),
            Self::FctLast => record.counted_fct_last_s(),
            Self::FctOverIdeal => record.counted_fct_over_ideal(),
            _ if !record.completed => None,
            Self::SetupPercent if !mode.has_tunnel() => None,
            Self::SetupPercent => Some(record.tunnel_setup_s? / record.fct_s? * 100.0),
            Self::E2eSrtt => Some(record.e2e_srtt_mean_ms),
            Self::E2eRetransmitPercent => Some(record.e2e_retransmit_ratio * 100.0),
            Self::DuplicatePercent => Some(record.duplicate_ratio * 100.0),
            Self::TunnelRetransmitPercent => Some(record.tunnel_retransmit_ratio * 100.0),
            Self::DownlinkBytes => Some(record.downlink.bytes as f64),
            Self::Goodput => Some(record.goodput_mbps),
            Self::ChainAckPercent => Some(record.chain.chain_ack_ratio * 100.0),
            Self::ChainOverheadPercent => Some(record.chain.chain_overhead_ratio * 100.0),
            Self::ChainAcksPerPacket => Some(record.chain.chain_acks_per_packet),
            Self::Jain => record.jain_index,
            Self::OthersPercent => {
                let theirs = record.others_mbps?;
                Some(theirs / (theirs + record.goodput_mbps) * 100.0)
            }
            Self::PacketDelay | Self::PacingRate | Self::Srtt | Self::Throughput | Self::Queue => {
                None
            }
        }
    }
}
