//! The gains of `BBRv1`.

use crate::Factor;

/// `BBRHighGain`, 2/ln 2: the smallest gain that doubles the sending rate every round.
pub(super) const HIGH: Factor = Factor::from_thousandths(2885);

/// The reciprocal of [`HIGH`]: it drains the queue of Startup in one round.
pub(super) const DRAIN: Factor = Factor::from_thousandths(347);

/// The window gain of `ProbeBW`: it leaves room for a queue and for delayed and aggregated ACKs.
pub(super) const CWND: Factor = Factor::from_thousandths(2000);

/// The least growth of the bandwidth per round in Startup: with less, the pipe may be full.
pub(super) const FULL_BANDWIDTH: Factor = Factor::from_thousandths(1250);

/// Returns the gain that drains the queue of a phase with the gain `up`: 2 minus `up`, at least
/// 1/2.
pub(super) fn drained_by(up: Factor) -> Factor {
    let mirrored = (2 * Factor::ONE.thousandths()).saturating_sub(up.thousandths());
    Factor::from_thousandths(mirrored.max(Factor::ONE.thousandths() / 2))
}
