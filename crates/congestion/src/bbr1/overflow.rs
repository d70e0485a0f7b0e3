//! The detection of overflows of the bottleneck's queue, which `BBRv1` lacks.
//!
//! Random loss has the same share in every round. An overflow is a round that loses a far larger
//! share than the rounds before it, while every packet that arrives has waited in a queue. The
//! bytes in flight are then more than path and queue hold, and the bandwidth estimate is out of
//! date.

use std::time::Duration;

use tandem_units::ByteCount;

use crate::Factor;

/// First condition of an overflow: the share of loss exceeds the usual share by this, in parts per
/// million, plus [`DEVIATIONS`] standard deviations of random loss with the usual share.
const MORE_PPM: u64 = 30_000;
const DEVIATIONS: u64 = 3;

/// Second condition of an overflow: the round loses at least this number of full packets.
const LEAST_PACKETS: u64 = 6;

/// The least number of full packets that an overflow without a queue loses. On slow paths a few lost
/// packets are a large share, and probes cost little.
const LEAST_PACKETS_WITHOUT_QUEUE: u64 = 100;

/// Third condition of an overflow: every RTT of the round exceeds the least RTT by more than this
/// percentage.
const WAITED_PERCENT: u32 = 25;

/// The usual share of loss is a moving average in which the newest round has the weight 1 / 16.
const USUAL_ROUNDS: u64 = 16;

/// The bound on the bytes in flight after an overflow, as a share of the bytes that arrived.
const BACK_OFF: Factor = Factor::from_percent(95);

/// The growth of the bound in each round without an overflow.
const GROWTH: Factor = Factor::from_percent(106);

/// Parts per million in one.
const MILLION: u64 = 1_000_000;

/// A round that loses far more than usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overflow {
    /// Every packet that arrived has waited in a queue: there is more in flight than path and queue hold.
    OfQueue,
    /// Packets arrived without waiting: the queue is too short for the rate that the sender tried.
    WithoutQueue,
}

/// Detects overflows, round by round, and bounds the bytes in flight after one.
#[derive(Clone, Debug, Default)]
pub(super) struct OverflowGuard {
    lost: ByteCount,
    acked: ByteCount,
    /// The largest number of bytes in flight in this round.
    in_flight: ByteCount,
    /// The least RTT of this round.
    rtt: Option<Duration>,
    /// The usual share of loss in parts per million.
    usual_ppm: u64,
    bound: Option<ByteCount>,
}

impl OverflowGuard {
    pub(super) fn on_lost(&mut self, bytes: ByteCount) {
        self.lost += bytes;
    }

    pub(super) fn on_acked(&mut self, bytes: ByteCount, in_flight: ByteCount, rtt: Duration) {
        self.acked += bytes;
        self.in_flight = self.in_flight.max(in_flight);
        self.rtt = Some(self.rtt.map_or(rtt, |least| least.min(rtt)));
    }

    /// Ends a round; returns whether it overflowed the queue. `packet` is the size of a full packet.
    pub(super) fn on_round(&mut self, least_rtt: Duration, packet: ByteCount) -> Option<Overflow> {
        let Self { lost, acked, in_flight, rtt, usual_ppm, bound } = std::mem::take(self);
        let sent = (lost + acked).get().max(1);
        let share_ppm = lost.get().saturating_mul(MILLION) / sent;
        let packets = (sent / packet.get().max(1)).max(1);
        let deviation_ppm = (usual_ppm * MILLION.saturating_sub(usual_ppm) / packets).isqrt();
        let has_waited = rtt.is_some_and(|rtt| rtt > least_rtt + least_rtt * WAITED_PERCENT / 100);
        let overflows = lost >= packet.saturating_mul(LEAST_PACKETS)
            && share_ppm > usual_ppm + MORE_PPM + DEVIATIONS * deviation_ppm;
        self.usual_ppm = usual_ppm;
        if overflows && has_waited {
            let arrived = in_flight.mul_div_floor(acked, ByteCount::new(sent));
            let arrived = BACK_OFF.of_bytes(arrived);
            self.bound = Some(bound.map_or(arrived, |bound| bound.min(arrived)));
        } else {
            self.usual_ppm = (usual_ppm * (USUAL_ROUNDS - 1) + share_ppm) / USUAL_ROUNDS;
            self.bound = bound.map(|bound| GROWTH.of_bytes(bound));
        }
        match (overflows, has_waited) {
            (true, true) => Some(Overflow::OfQueue),
            (true, false) => (lost >= packet.saturating_mul(LEAST_PACKETS_WITHOUT_QUEUE))
                .then_some(Overflow::WithoutQueue),
            (false, _) => None,
        }
    }

    /// Returns the bound on the bytes in flight, or `None` if there is none.
    pub(super) const fn bound(&self) -> Option<ByteCount> {
        self.bound
    }

    /// Removes the bound if it is above `bytes`, which is far more than the path holds.
    pub(super) fn forget_bound_above(&mut self, bytes: ByteCount) {
        self.bound = self.bound.filter(|bound| *bound <= bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: ByteCount = ByteCount::new(1000);

    fn round(guard: &mut OverflowGuard, lost: u64, rtt_ms: u64) -> Option<Overflow> {
        guard.on_lost(PACKET.saturating_mul(lost));
        let acked = PACKET.saturating_mul(1000 - lost);
        guard.on_acked(acked, PACKET.saturating_mul(1000), Duration::from_millis(rtt_ms));
        guard.on_round(Duration::from_millis(40), PACKET)
    }

    #[test]
    fn the_rtt_tells_whether_a_queue_that_overflows_is_long() {
        for (rtt_ms, overflow) in [(41, Overflow::WithoutQueue), (80, Overflow::OfQueue)] {
            let mut guard = OverflowGuard::default();
            for number in 0..50 {
                assert_eq!(round(&mut guard, 10 + number % 5, rtt_ms), None, "usual loss");
            }
            assert_eq!(round(&mut guard, 400, rtt_ms), Some(overflow));
            assert_eq!(guard.bound().is_some(), overflow == Overflow::OfQueue);
        }
    }
}
