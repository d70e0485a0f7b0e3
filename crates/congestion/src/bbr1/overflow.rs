//! Whether the queue of the bottleneck overflows, which `BBRv1` does not ask.
//!
//! Random loss is the same in every round. An overflow is a round that loses far more than those
//! before it, while all that arrives has waited in a queue. What was on its way then is more than
//! path and queue hold, and the estimate of the bandwidth was true once.

use std::time::Duration;

use tandem_units::ByteCount;

use crate::Factor;

/// A round overflows if it loses more of what it sent than usual by this, in millionths, and by three
/// standard deviations of what chance makes of the usual.
const MORE_PPM: u64 = 30_000;
const DEVIATIONS: u64 = 3;

/// And at least so many packets.
const LEAST_PACKETS: u64 = 6;

/// And everything that arrives has waited for so much of the least RTT, in percent.
const WAITED_PERCENT: u32 = 25;

/// The weight of a round in what is usual: one part in so many.
const USUAL_ROUNDS: u64 = 16;

/// What is sent at most after an overflow, of what arrived.
const BACK_OFF: Factor = Factor::from_percent(95);

/// By how much the bound grows in a round without an overflow.
const GROWTH: Factor = Factor::from_percent(106);

/// Millionths.
const MILLION: u64 = 1_000_000;

/// Watches rounds for overflows, and bounds what is in flight after one.
#[derive(Clone, Debug, Default)]
pub(super) struct OverflowGuard {
    lost: ByteCount,
    acked: ByteCount,
    /// The most that was in flight in this round.
    in_flight: ByteCount,
    /// The least RTT of this round.
    rtt: Option<Duration>,
    /// The usual share of loss in millionths.
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

    /// A round has ended; tells whether the queue overflowed in it.
    pub(super) fn on_round(&mut self, least_rtt: Duration, packet: ByteCount) -> bool {
        let Self { lost, acked, in_flight, rtt, usual_ppm, bound } = std::mem::take(self);
        let sent = (lost + acked).get().max(1);
        let share_ppm = lost.get().saturating_mul(MILLION) / sent;
        let packets = (sent / packet.get().max(1)).max(1);
        let deviation_ppm = (usual_ppm * MILLION.saturating_sub(usual_ppm) / packets).isqrt();
        let has_waited = rtt.is_some_and(|rtt| rtt > least_rtt + least_rtt * WAITED_PERCENT / 100);
        let overflows = has_waited
            && lost >= packet.saturating_mul(LEAST_PACKETS)
            && share_ppm > usual_ppm + MORE_PPM + DEVIATIONS * deviation_ppm;
        self.usual_ppm = usual_ppm;
        if overflows {
            let arrived = in_flight.mul_div_floor(acked, ByteCount::new(sent));
            let arrived = BACK_OFF.of_bytes(arrived);
            self.bound = Some(bound.map_or(arrived, |bound| bound.min(arrived)));
        } else {
            self.usual_ppm = (usual_ppm * (USUAL_ROUNDS - 1) + share_ppm) / USUAL_ROUNDS;
            self.bound = bound.map(|bound| GROWTH.of_bytes(bound));
        }
        overflows
    }

    /// What may be in flight; `None`: nothing is known.
    pub(super) const fn bound(&self) -> Option<ByteCount> {
        self.bound
    }

    /// The bound is above what the path holds by far.
    pub(super) fn forget_bound_above(&mut self, bytes: ByteCount) {
        self.bound = self.bound.filter(|bound| *bound <= bytes);
    }
}
