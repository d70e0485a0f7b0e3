//! The results of the demo, for people and for programs.

use serde::Serialize;
use tandem_netem::ideal_completion;

use super::{Demo, journey::Journey};
use crate::outcome::{Outcome, round, seconds};

/// One object of `demo --json`.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "part", rename_all = "lowercase")]
pub(super) enum JsonEntry {
    Server(ServerResult),
    Pages(PagesResult),
    Modes(Box<DemoResult>),
}

/// A download from an ordinary server, which may have been stopped.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ServerResult {
    /// The journey, as `--modes` has it.
    pub(super) journey: String,
    /// The server's congestion controller.
    pub(super) origin_controller: String,
    /// Length of the file.
    pub(super) bytes: u64,
    /// The completion time; null if nothing can be estimated.
    pub(super) fct_s: Option<f64>,
    /// Whether the download was stopped, so that `fct_s` is an estimate.
    pub(super) is_estimate: bool,
    /// The rate of the whole download, or the rate from which `fct_s` was estimated.
    pub(super) goodput_mbps: f64,
    /// Time after which the download was complete or was stopped.
    pub(super) observed_s: f64,
    /// Bytes that had arrived then.
    pub(super) observed_bytes: u64,
}

/// Short requests in a row.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PagesResult {
    /// The journey, as `--modes` has it.
    pub(super) journey: String,
    /// The server's congestion controller.
    pub(super) origin_controller: String,
    /// Length of each response.
    pub(super) page_bytes: u64,
    /// Pause between two requests.
    pub(super) think_s: f64,
    /// The median of `times_s`.
    pub(super) median_s: f64,
    /// The completion time of each request, without the set-up of its tunnel.
    pub(super) times_s: Vec<f64>,
    /// The median time of the set-up of the tunnel; 0 without a tunnel.
    pub(super) median_setup_s: f64,
}

/// A complete download: what `get --json` has, and more.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DemoResult {
    /// The journey, as `--modes` has it.
    pub(super) journey: String,
    /// The origin's congestion controller.
    pub(super) origin_controller: String,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    /// The flow completion time (FCT) over its ideal: `fct_s / ideal_s`.
    pub(super) fct_over_ideal: f64,
    /// Share of the origin's packets that were declared lost, and whose contents were
    /// retransmitted.
    pub(super) e2e_retransmit_ratio: f64,
}

impl DemoResult {
    /// Adds the values that only the demo knows: the best possible time, and the origin's counters.
    pub(super) fn new(
        demo: &Demo,
        journey: Journey,
        mut outcome: Outcome,
        packets: OriginPackets,
    ) -> Self {
        let ideal = seconds(ideal_completion(demo.size, demo.rate, demo.rtt(), demo.loss));
        outcome.ideal_s = Some(ideal);
        Self {
            journey: journey.to_string(),
            origin_controller: demo.origin_controller(journey).to_string(),
            fct_over_ideal: round(outcome.fct_s / ideal, 1e3),
            e2e_retransmit_ratio: round(packets.lost_share(), 1e6),
            outcome,
        }
    }
}

/// QUIC packets of the origin.
#[derive(Clone, Copy, Debug)]
pub(super) struct OriginPackets {
    pub(super) sent: u64,
    pub(super) lost: u64,
}

impl OriginPackets {
    pub(super) fn lost_share(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 packets")]
        let share = self.lost as f64 / self.sent.max(1) as f64;
        share
    }
}

/// The value in the middle, or the mean of the two in the middle; 0 if there is none.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let (upper, lower) = (values.len() / 2, values.len().saturating_sub(1) / 2);
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    round(f64::midpoint(at(lower), at(upper)), 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "the values are exact")]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 10.0]), 3.0);
        assert_eq!(median([4.0, 1.0, 2.0, 10.0]), 3.0);
        assert_eq!(median([]), 0.0);
    }
}
