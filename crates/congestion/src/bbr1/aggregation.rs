//! The aggregation of acknowledgements, which the `BBRv1` draft lacks: `extra_acked` of Linux and of
//! [draft-cardwell-iccrg-bbr-congestion-control-02, §4.5.5].
//!
//! Where packets wait and then arrive together, their acknowledgements do too: behind an ordered exit of
//! a tunnel that retransmits, or on a radio link. Meanwhile more is in flight than rate times least RTT.
//! What arrives at once beyond the expected amount is therefore added to the window.
//!
//! [draft-cardwell-iccrg-bbr-congestion-control-02, §4.5.5]:
//! https://datatracker.ietf.org/doc/html/draft-cardwell-iccrg-bbr-congestion-control-02#section-4.5.5

use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate};

/// `BBRExtraAckedFilterLen`: the number of rounds of which the largest excess counts.
const ROUNDS: usize = 10;

/// The longest time for which the path may have collected the excess, as in Linux.
pub(super) const EXCESS_TIME_MAX: Duration = Duration::from_millis(100);

/// Measures how many more bytes are acknowledged at once than the bandwidth explains.
#[derive(Clone, Debug)]
pub(super) struct Aggregation {
    /// `BBR.extra_acked_interval_start`.
    since: Instant,
    /// `BBR.extra_acked_delivered`: the bytes acknowledged since then.
    acked: ByteCount,
    /// The largest excess of each round, that of the current one first.
    rounds: [ByteCount; ROUNDS],
}

impl Aggregation {
    pub(super) const fn new(now: Instant) -> Self {
        Self { since: now, acked: ByteCount::ZERO, rounds: [ByteCount::ZERO; ROUNDS] }
    }

    /// Ends a round.
    pub(super) fn on_round(&mut self) {
        self.rounds.rotate_right(1);
        if let Some(current) = self.rounds.first_mut() {
            *current = ByteCount::ZERO;
        }
    }

    /// `BBRUpdateACKAggregation`: notes the bytes that an ACK frame acknowledges on a path of this bandwidth, which
    /// collects packets for at most `longest`.
    pub(super) fn on_acked(
        &mut self,
        now: Instant,
        bytes: ByteCount,
        bandwidth: Rate,
        longest: Duration,
    ) {
        let mut expected = bandwidth.bytes_in(now.saturating_duration_since(self.since));
        if self.acked <= expected {
            (self.since, self.acked, expected) = (now, ByteCount::ZERO, ByteCount::ZERO);
        }
        self.acked += bytes;
        let excess = (self.acked - expected).min(bandwidth.bytes_in(longest));
        if let Some(current) = self.rounds.first_mut() {
            *current = (*current).max(excess);
        }
    }

    /// `BBR.extra_acked`: the largest excess of the last rounds.
    pub(super) fn extra_acked(&self) -> ByteCount {
        self.rounds.iter().copied().max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_excess_is_what_a_burst_of_acknowledgements_has_above_the_rate() {
        let start = crate::test_start();
        let at = |millis| start + Duration::from_millis(millis);
        let (rate, longest) = (Rate::from_mbps(8), 50 * MS); // 1000 bytes per millisecond
        let step = ByteCount::new(1000);
        let mut aggregation = Aggregation::new(start);
        for millis in 1..100 {
            aggregation.on_acked(at(millis), step, rate, longest);
        }
        assert!(aggregation.extra_acked() <= ByteCount::new(2000), "acknowledged as sent");
        // Nothing arrives for 40 ms, and then what was sent meanwhile.
        aggregation.on_acked(at(140), ByteCount::new(41_000), rate, longest);
        assert_eq!(aggregation.extra_acked(), ByteCount::new(41_000));
        for round in 1..=ROUNDS {
            assert_eq!(aggregation.extra_acked(), ByteCount::new(41_000), "round {round}");
            aggregation.on_round();
        }
        assert_eq!(aggregation.extra_acked(), ByteCount::ZERO);
    }

    #[test]
    fn the_excess_is_bounded() {
        let start = crate::test_start();
        for (millis, bytes) in [(40, 40_000), (100, 100_000)] {
            let mut aggregation = Aggregation::new(start);
            let (all, rate) = (ByteCount::new(10_000_000), Rate::from_mbps(8));
            aggregation.on_acked(start, all, rate, millis * MS);
            assert_eq!(aggregation.extra_acked(), ByteCount::new(bytes));
        }
    }
}
