use std::fmt;
use std::str::FromStr;

use serde_with::{DeserializeFromStr, SerializeDisplay};

use crate::ParseUnitError;
use crate::decimal::{self, Notation};

/// A share from 0 to 1, such as a loss rate, in whole parts per billion. It is an integer, so that
/// a seeded run loses the same packets on every machine.
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
pub struct Ratio(u32);

const NOTATION: Notation = Notation {
    quantity: "ratio",
    example: "5%",
    base: "parts per billion",
    range: "from 0 to 1, or with a percent sign from 0% to 100%",
    units: &[("%", PERCENT), ("", BILLION)],
};

const PERCENT: u64 = 10_000_000;
const BILLION: u64 = 1_000_000_000;

impl Ratio {
    /// The ratio 0.
    pub const ZERO: Self = Self(0);

    /// The ratio 1, or 100%.
    pub const ONE: Self = Self(1_000_000_000);

    /// Creates a ratio in parts per billion, or returns `None` above one billion.
    pub const fn from_parts_per_billion(parts: u32) -> Option<Self> {
        if parts <= Self::ONE.0 { Some(Self(parts)) } else { None }
    }

    /// Creates the ratio `numerator / denominator`, rounded down to whole parts per billion.
    ///
    /// # Panics
    ///
    /// Panics if `denominator` is zero or smaller than `numerator`, in a constant at compile time.
    pub const fn of(numerator: u64, denominator: u64) -> Self {
        assert!(denominator != 0, "the denominator of a ratio is not zero");
        assert!(numerator <= denominator, "a ratio is at most 1");
        let parts = numerator as u128 * Self::ONE.0 as u128 / denominator as u128;
        #[expect(clippy::cast_possible_truncation, reason = "at most one billion, see the assert")]
        let parts = parts as u32;
        Self(parts)
    }

    /// Returns the ratio in parts per billion, from 0 to 1 000 000 000.
    pub const fn parts_per_billion(self) -> u32 {
        self.0
    }

    /// Returns the nearest floating-point number, from 0 to 1.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(Self::ONE.0)
    }

    /// Returns 1 minus this ratio.
    #[must_use]
    pub const fn complement(self) -> Self {
        Self(Self::ONE.0 - self.0)
    }
}

impl FromStr for Ratio {
    type Err = ParseUnitError;

    /// Parses a percentage or a plain number: "5%" and "0.05" are the same ratio.
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let parts = NOTATION.parse(text)?;
        u32::try_from(parts)
            .ok()
            .and_then(Self::from_parts_per_billion)
            .ok_or_else(|| NOTATION.out_of_range(text))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}%", decimal::format(self.0.into(), PERCENT)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ratios_are_parsed_and_printed() {
        for (text, parts, printed) in [
            ("0", 0, "0%"),
            ("5%", 50_000_000, "5%"),
            ("0.05", 50_000_000, "5%"),
            ("0.1 %", 1_000_000, "0.1%"),
            ("0.000000001", 1, "0.0000001%"),
            ("1", 1_000_000_000, "100%"),
            ("100%", 1_000_000_000, "100%"),
        ] {
            let ratio: Ratio = text.parse().expect(text);
            assert_eq!(ratio.parts_per_billion(), parts, "{text}");
            assert_eq!(ratio.to_string(), printed, "{text}");
        }
        for text in ["", "5 percent", "100.0000001%", "1.1", "0.0000000001", "-1%", "2000000000000"]
        {
            assert!(text.parse::<Ratio>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_quotient_rounds_down() {
        assert_eq!(Ratio::of(1, 3).parts_per_billion(), 333_333_333);
        assert_eq!(Ratio::of(u64::MAX, u64::MAX), Ratio::ONE);
        assert_eq!(Ratio::of(1, 20).complement(), Ratio::of(19, 20));
        assert!((Ratio::of(1, 4).as_f64() - 0.25).abs() < f64::EPSILON);
    }

    #[test]
    fn json_holds_the_text() {
        assert_eq!(serde_json::to_string(&Ratio::of(1, 100)).unwrap(), "\"1%\"");
        assert_eq!(serde_json::from_str::<Ratio>("\"0.01\"").unwrap(), Ratio::of(1, 100));
    }

    proptest! {
        #[test]
        fn printed_ratios_parse_to_themselves(parts in 0_u32..=1_000_000_000) {
            let ratio = Ratio::from_parts_per_billion(parts).unwrap();
            prop_assert_eq!(ratio.to_string().parse(), Ok(ratio));
        }
    }
}
