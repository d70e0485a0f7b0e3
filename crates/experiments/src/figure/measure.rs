use serde::Deserialize;

use crate::run::{Parameters, RunRecord};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Flow completion time in seconds.
    Fct,
    /// The same over the time that the download could take at best.
    FctOverIdeal,
    /// The tunnel's set-up in per cent of the flow completion time that follows it.
    SetupPercent,
    /// Mean smoothed RTT of the end-to-end connection in milliseconds.
    E2eSrtt,
    /// Share of the origin's packets that it sent again, in per cent.
    E2eRetransmitPercent,
    /// Share of the origin's packets that it sent again although they had arrived, in per cent.
    DuplicatePercent,
    /// Share of the first proxy's packets that it sent again, in per cent.
    TunnelRetransmitPercent,
    /// Bytes that came to the access link towards the client, as IP packets.
    DownlinkBytes,
    /// Body bits per second, in Mbit/s.
    Goodput,
    /// Jain's index of fairness over the flows' goodput.
    Jain,
    /// What others got of all body bits, in per cent.
    OthersPercent,
    /// One-way delay of the origin's UDP payloads in milliseconds, as a distribution.
    PacketDelay,
    /// Pacing rate of origin and first proxy in Mbit/s, over time.
    PacingRate,
    /// Smoothed RTT of origin and first proxy in milliseconds, over time.
    Srtt,
    /// Body bits per second of each flow in Mbit/s, over time.
    Throughput,
    /// What waits in the first proxy's tunnel queue and before the access link in kB, over time.
    Queue,
}

impl Measure {
    /// `None` where the run has nothing to measure.
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bytes")]
    pub(super) fn of(self, record: &RunRecord) -> Option<f64> {
        if !record.completed {
            return None;
        }
        let Parameters { mode, .. } = record.parameters;
        match self {
            Self::Fct => record.fct_s,
            Self::FctOverIdeal => record.fct_over_ideal,
            Self::SetupPercent if !mode.has_tunnel() => None,
            Self::SetupPercent => Some(record.tunnel_setup_s? / record.fct_s? * 100.0),
            Self::E2eSrtt => Some(record.e2e_srtt_mean_ms),
            Self::E2eRetransmitPercent => Some(record.e2e_retransmit_ratio * 100.0),
            Self::DuplicatePercent => Some(record.duplicate_ratio * 100.0),
            Self::TunnelRetransmitPercent => Some(record.tunnel_retransmit_ratio * 100.0),
            Self::DownlinkBytes => Some(record.downlink.bytes as f64),
            Self::Goodput => Some(record.goodput_mbps),
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
