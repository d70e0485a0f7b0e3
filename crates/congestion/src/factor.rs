//! Factors as integers, so that results are the same on every machine.

use std::fmt;

use tandem_units::{ByteCount, Rate};

/// A factor in thousandths. A factor that is parsed from text is from 0 to 1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Factor(u32);

impl Factor {
    pub(crate) const ONE: Self = Self(1000);

    /// Creates a factor of `thousandths` / 1000.
    pub const fn from_thousandths(thousandths: u32) -> Self {
        Self(thousandths)
    }

    pub(crate) const fn from_percent(percent: u32) -> Self {
        Self(percent.saturating_mul(10))
    }

    pub(crate) const fn thousandths(self) -> u32 {
        self.0
    }

    pub(crate) fn get(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    pub(crate) fn of_bytes(self, bytes: ByteCount) -> ByteCount {
        bytes.mul_div_floor(self.0.into(), Self::ONE.0.into())
    }

    /// Multiplies a rate by this factor; the result is at least 1 bit/s.
    pub(crate) fn of_rate(self, rate: Rate) -> Rate {
        let bits_per_second =
            u128::from(rate.bits_per_second()) * u128::from(self.0) / u128::from(Self::ONE.0);
        let bits_per_second = u64::try_from(bits_per_second).unwrap_or(u64::MAX);
        Rate::from_bps(bits_per_second.max(1)).expect("at least 1")
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let value: f64 = text.parse().ok()?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
        let thousandths = (0.0..=1000.0).contains(&value).then(|| (value * 1000.0).round() as u32);
        thousandths.map(Self)
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.get())
    }
}
