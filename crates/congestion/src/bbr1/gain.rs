//! The gains of `BBRv1`.

use crate::Factor;

/// `BBRHighGain`, 2/ln 2: the smallest that doubles the rate every round.
pub(super) const HIGH: Factor = Factor::from_thousandths(2885);

/// Its reciprocal drains in one round what Startup queued.
pub(super) const DRAIN: Factor = Factor::from_thousandths(347);

/// The window of `ProbeBW`: room for a queue and for delayed and aggregated ACKs.
pub(super) const CWND: Factor = Factor::from_thousandths(2000);

/// What counts as growth of the bandwidth in Startup.
pub(super) const FULL_BANDWIDTH: Factor = Factor::from_thousandths(1250);

/// What is missing to twice, at least one half.
pub(super) fn drained_by(up: Factor) -> Factor {
    let mirrored = (2 * Factor::ONE.thousandths()).saturating_sub(up.thousandths());
    Factor::from_thousandths(mirrored.max(Factor::ONE.thousandths() / 2))
}
