use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;

use serde_with::{DeserializeFromStr, SerializeDisplay};

use crate::ParseUnitError;
use crate::decimal::{self, Notation};

/// A number of bytes. k, M and G are powers of 1000; Ki, Mi and Gi are powers of 1024.
///
/// The operators saturate: a sum is at most 2^64 - 1, and a difference is at least zero. Use
/// [`ByteCount::checked_add`] and [`ByteCount::checked_sub`] where an overflow must be detected.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    SerializeDisplay,
    DeserializeFromStr,
)]
pub struct ByteCount(u64);

const NOTATION: Notation = Notation {
    quantity: "byte count",
    example: "150kB",
    base: "bytes",
    range: "below 2^64 bytes",
    units: &[
        ("B", 1),
        ("kB", KILO),
        ("MB", MEGA),
        ("GB", GIGA),
        ("KiB", KIBI),
        ("MiB", MEBI),
        ("GiB", GIBI),
        ("", 1),
    ],
};

const KILO: u64 = 1_000;
const MEGA: u64 = 1_000_000;
const GIGA: u64 = 1_000_000_000;
const KIBI: u64 = 1 << 10;
const MEBI: u64 = 1 << 20;
const GIBI: u64 = 1 << 30;

impl ByteCount {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);

    /// The largest count, 2^64 - 1 bytes.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a count of `bytes` bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns whether the count is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Returns the sum, or `None` if it does not fit into 64 bits.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(bytes) => Some(Self(bytes)),
            None => None,
        }
    }

    /// Returns the difference, or `None` if `other` is larger.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(bytes) => Some(Self(bytes)),
            None => None,
        }
    }

    /// Returns the sum, which is at most [`ByteCount::MAX`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference, or zero if `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the product of this count and `factor`, which is at most [`ByteCount::MAX`].
    #[must_use]
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// Returns `self * numerator / denominator`, rounded down. The result is at most
    /// [`ByteCount::MAX`]; the product cannot overflow.
    ///
    /// # Panics
    ///
    /// Panics if `denominator` is zero.
    #[must_use]
    pub fn mul_div_floor(self, numerator: Self, denominator: Self) -> Self {
        let product = u128::from(self.0) * u128::from(numerator.0);
        let quotient = product / u128::from(denominator.0);
        Self(quotient.try_into().unwrap_or(u64::MAX))
    }
}

impl From<u32> for ByteCount {
    fn from(bytes: u32) -> Self {
        Self(bytes.into())
    }
}

impl From<u64> for ByteCount {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl From<usize> for ByteCount {
    fn from(bytes: usize) -> Self {
        Self(bytes.try_into().unwrap_or(u64::MAX))
    }
}

impl Add for ByteCount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.saturating_add(other)
    }
}

impl AddAssign for ByteCount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for ByteCount {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl SubAssign for ByteCount {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for ByteCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::ZERO, Self::saturating_add)
    }
}

impl FromStr for ByteCount {
    type Err = ParseUnitError;

    /// Parses a number with a unit, such as "150kB" or "64 KiB". A number without a unit is in
    /// bytes.
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        NOTATION.parse(text).map(Self)
    }
}

impl fmt::Display for ByteCount {
    /// Formats the count with a unit of 1024 bytes or a power of it if the count is a whole number
    /// of Ki but not of k, and with a unit of a power of 1000 otherwise.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        let is_binary = bytes.is_multiple_of(KIBI) && !bytes.is_multiple_of(KILO);
        let text = if is_binary {
            let (size, unit) = match bytes {
                _ if bytes.is_multiple_of(GIBI) => (GIBI, "GiB"),
                _ if bytes.is_multiple_of(MEBI) => (MEBI, "MiB"),
                _ => (KIBI, "KiB"),
            };
            format!("{} {unit}", bytes / size)
        } else {
            let (size, unit) = match bytes {
                GIGA.. => (GIGA, "GB"),
                MEGA.. => (MEGA, "MB"),
                KILO.. => (KILO, "kB"),
                _ => (1, "B"),
            };
            format!("{} {unit}", decimal::format(bytes, size))
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn byte_counts_are_parsed_and_printed() {
        for (text, bytes, printed) in [
            ("0", 0, "0 B"),
            ("1200", 1200, "1.2 kB"),
            ("1200B", 1200, "1.2 kB"),
            ("150kB", 150_000, "150 kB"),
            ("10 MB", 10_000_000, "10 MB"),
            ("64KiB", 65_536, "64 KiB"),
            ("0.5 KiB", 512, "512 B"),
            ("1.5 MiB", 1_572_864, "1536 KiB"),
            ("2 GiB", 2_147_483_648, "2 GiB"),
            ("1.234567MB", 1_234_567, "1.234567 MB"),
            ("1024000B", 1_024_000, "1.024 MB"),
        ] {
            let count: ByteCount = text.parse().expect(text);
            assert_eq!(count.get(), bytes, "{text}");
            assert_eq!(count.to_string(), printed, "{text}");
        }
    }

    #[test]
    fn invalid_byte_counts_are_refused() {
        for text in ["", "kB", "1 KB", "1 kb", "0.3 B", "1.0001 kB", "1e3", "1.2.3", "1.", "20 EB"]
        {
            assert!(text.parse::<ByteCount>().is_err(), "{text:?}");
        }
        let error = "18446744073709551616".parse::<ByteCount>().expect_err("2^64");
        assert!(matches!(error, ParseUnitError::OutOfRange { .. }), "{error}");
    }

    #[test]
    fn operators_saturate_and_checked_methods_detect_overflow() {
        let (one, two) = (ByteCount::new(1), ByteCount::new(2));
        assert_eq!(one - two, ByteCount::ZERO);
        assert_eq!(ByteCount::MAX + one, ByteCount::MAX);
        assert_eq!(one.checked_sub(two), None);
        assert_eq!(ByteCount::MAX.checked_add(one), None);
        assert_eq!([one, two, ByteCount::MAX].into_iter().sum::<ByteCount>(), ByteCount::MAX);
        assert_eq!(ByteCount::new(7).mul_div_floor(two, ByteCount::new(4)), ByteCount::new(3));
        assert_eq!(ByteCount::MAX.mul_div_floor(two, one), ByteCount::MAX);
    }

    #[test]
    fn json_holds_the_text() {
        let count = ByteCount::new(65_536);
        assert_eq!(serde_json::to_string(&count).unwrap(), "\"64 KiB\"");
        assert_eq!(serde_json::from_str::<ByteCount>("\"64KiB\"").unwrap(), count);
    }

    proptest! {
        #[test]
        fn printed_counts_parse_to_themselves(bytes: u64) {
            let count = ByteCount::new(bytes);
            prop_assert_eq!(count.to_string().parse(), Ok(count));
        }

        #[test]
        fn printed_binary_counts_parse_to_themselves(units: u32, shift in 0_u32..32) {
            let count = ByteCount::new(u64::from(units) << shift);
            prop_assert_eq!(count.to_string().parse(), Ok(count));
        }
    }
}
