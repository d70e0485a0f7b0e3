//! Factors of `BBRv1`.

use tandem_units::{ByteCount, Rate};

/// A factor in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gain(pub(super) u32);

impl Gain {
    pub(super) const ONE: Self = Self(1000);
    /// `BBRHighGain`, 2/ln 2: the smallest that doubles the rate every round.
    pub(super) const HIGH: Self = Self(2885);
    /// Its reciprocal drains in one round what Startup queued.
    pub(super) const DRAIN: Self = Self(347);
    /// The window of `ProbeBW`: room for a queue and for delayed and aggregated ACKs.
    pub(super) const CWND: Self = Self(2000);
    /// What counts as growth of the bandwidth in Startup.
    pub(super) const FULL_BANDWIDTH: Self = Self(1250);

    pub(super) const fn from_percent(percent: u32) -> Self {
        Self(percent.saturating_mul(10))
    }

    /// What is missing to `Gain(2000)`, at least one half.
    pub(super) fn drained_by(self) -> Self {
        let mirrored = (2 * Self::ONE.0).saturating_sub(self.0);
        Self(mirrored.max(Self::ONE.0 / 2))
    }

    pub(super) fn of_bytes(self, bytes: ByteCount) -> ByteCount {
        bytes.mul_div_floor(self.0.into(), Self::ONE.0.into())
    }

    pub(super) fn of_rate(self, rate: Rate) -> Rate {
        let bits_per_second =
            u128::from(rate.bits_per_second()) * u128::from(self.0) / u128::from(Self::ONE.0);
        let bits_per_second = u64::try_from(bits_per_second).unwrap_or(u64::MAX);
        Rate::from_bps(bits_per_second.max(1)).expect("at least 1")
    }
}
