use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use serde_with::{DeserializeFromStr, SerializeDisplay};

use crate::decimal::{self, Notation};
use crate::{ByteCount, ParseUnitError};

/// A data rate in whole bits per second, at least 1 bit/s; k, M and G are powers of 1000.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, SerializeDisplay, DeserializeFromStr,
)]
pub struct Rate(NonZeroU64);

const NOTATION: Notation = Notation {
    quantity: "data rate",
    example: "50 Mbit/s",
    base: "bits per second",
    range: "at least 1 bit/s and below 2^64 bit/s",
    units: &[("bit/s", 1), ("kbit/s", KILO), ("Mbit/s", MEGA), ("Gbit/s", GIGA)],
};

const KILO: u64 = 1_000;
const MEGA: u64 = 1_000_000;
const GIGA: u64 = 1_000_000_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

impl Rate {
    /// Creates a rate in bits per second, or returns `None` for zero.
    pub const fn from_bps(bits_per_second: u64) -> Option<Self> {
        match NonZeroU64::new(bits_per_second) {
            Some(rate) => Some(Self(rate)),
            None => None,
        }
    }

    /// Creates a rate in units of 1 000 000 bits per second. This is for constants in source code;
    /// use [`Rate::from_bps`] or parse a text for numbers from outside.
    ///
    /// # Panics
    ///
    /// Panics if the rate is zero or does not fit into 64 bits, in a constant at compile time.
    pub const fn from_mbps(megabits_per_second: u64) -> Self {
        let Some(bits_per_second) = megabits_per_second.checked_mul(MEGA) else {
            panic!("a rate is below 2^64 bit/s")
        };
        Self::from_bps(bits_per_second).expect("a rate is at least 1 bit/s")
    }

    /// Returns the average rate of `carried` over `elapsed`, rounded down to whole bits per second.
    /// The result is `None` if it is below 1 bit/s, does not fit into 64 bits, or `elapsed` is
    /// zero.
    pub fn average(carried: ByteCount, elapsed: Duration) -> Option<Self> {
        let bit_nanos = u128::from(carried.get()) * 8 * u128::from(NANOS_PER_SECOND);
        let bits_per_second = bit_nanos.checked_div(elapsed.as_nanos())?;
        Self::from_bps(u64::try_from(bits_per_second).ok()?)
    }

    /// Returns the rate in bits per second, at least 1.
    pub const fn bits_per_second(self) -> u64 {
        self.0.get()
    }

    /// Returns the rate in whole bytes per second, rounded down. It is zero below 8 bit/s.
    pub const fn bytes_per_second(self) -> u64 {
        self.0.get() / 8
    }

    /// Returns the time to send `bytes` back to back. It is rounded up to whole nanoseconds, so
    /// that a link is never faster than its rate.
    ///
    /// The result saturates at 2^64 - 1 ns (584 years).
    pub fn time_to_send(self, bytes: ByteCount) -> Duration {
        let bit_nanos = u128::from(bytes.get()) * 8 * u128::from(NANOS_PER_SECOND);
        let nanos = bit_nanos.div_ceil(u128::from(self.0.get()));
        Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX))
    }

    /// Returns the bytes that are sent in `elapsed`. The result is rounded down to whole bytes, so
    /// that a link is never faster than its rate.
    ///
    /// The result saturates at 2^64 - 1 bytes.
    pub fn bytes_in(self, elapsed: Duration) -> ByteCount {
        let bit_nanos = u128::from(self.0.get()).saturating_mul(elapsed.as_nanos());
        let bytes = bit_nanos / (8 * u128::from(NANOS_PER_SECOND));
        ByteCount::new(bytes.try_into().unwrap_or(u64::MAX))
    }
}

impl From<NonZeroU64> for Rate {
    /// Creates a rate from a number of bits per second.
    fn from(bits_per_second: NonZeroU64) -> Self {
        Self(bits_per_second)
    }
}

impl FromStr for Rate {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        Self::from_bps(NOTATION.parse(text)?).ok_or_else(|| NOTATION.out_of_range(text))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits_per_second = self.bits_per_second();
        let (size, unit) = match bits_per_second {
            GIGA.. => (GIGA, "Gbit/s"),
            MEGA.. => (MEGA, "Mbit/s"),
            KILO.. => (KILO, "kbit/s"),
            _ => (1, "bit/s"),
        };
        f.pad(&format!("{} {unit}", decimal::format(bits_per_second, size)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rates_are_parsed_and_printed() {
        for (text, bits_per_second, printed) in [
            ("10Mbit/s", 10_000_000, "10 Mbit/s"),
            ("50 Mbit/s", 50_000_000, "50 Mbit/s"),
            (" 50  Mbit/s ", 50_000_000, "50 Mbit/s"),
            ("1.5 Gbit/s", 1_500_000_000, "1.5 Gbit/s"),
            ("1.50 Gbit/s", 1_500_000_000, "1.5 Gbit/s"),
            ("800kbit/s", 800_000, "800 kbit/s"),
            ("0.0005Mbit/s", 500, "500 bit/s"),
            ("1 bit/s", 1, "1 bit/s"),
            ("1000001 bit/s", 1_000_001, "1.000001 Mbit/s"),
            ("18446744073709551615bit/s", u64::MAX, "18446744073.709551615 Gbit/s"),
        ] {
            let rate: Rate = text.parse().expect(text);
            assert_eq!(rate.bits_per_second(), bits_per_second, "{text}");
            assert_eq!(rate.to_string(), printed, "{text}");
        }
    }

    #[test]
    fn invalid_rates_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "\"\" does not begin with a decimal number; a data rate looks like \"50 Mbit/s\""),
            (
                ".5Mbit/s",
                "\".5Mbit/s\" does not begin with a decimal number; a data rate looks like \
                 \"50 Mbit/s\"",
            ),
            (
                "-1Mbit/s",
                "\"-1Mbit/s\" does not begin with a decimal number; a data rate looks like \
                 \"50 Mbit/s\"",
            ),
            ("10", "unknown unit \"\" in a data rate; allowed: bit/s, kbit/s, Mbit/s, Gbit/s"),
            (
                "10 Mbps",
                "unknown unit \"Mbps\" in a data rate; allowed: bit/s, kbit/s, Mbit/s, Gbit/s",
            ),
            ("0.5 bit/s", "\"0.5 bit/s\" is not a whole number of bits per second"),
            (
                "1.00000000000000000000000001 Gbit/s",
                "\"1.00000000000000000000000001 Gbit/s\" is not a whole number of bits per second",
            ),
            (
                "0 Mbit/s",
                "\"0 Mbit/s\" is out of range; a data rate is at least 1 bit/s and below 2^64 bit/s",
            ),
            (
                "18446744073709551616 bit/s",
                "\"18446744073709551616 bit/s\" is out of range; a data rate is at least 1 bit/s \
                 and below 2^64 bit/s",
            ),
        ] {
            let error = text.parse::<Rate>().expect_err(text);
            assert_eq!(error.to_string(), reason, "{text:?}");
        }
    }

    #[test]
    fn json_holds_the_text() {
        let rate = Rate::from_mbps(50);
        assert_eq!(serde_json::to_string(&rate).unwrap(), "\"50 Mbit/s\"");
        assert_eq!(serde_json::from_str::<Rate>("\"50Mbit/s\"").unwrap(), rate);
        assert!(serde_json::from_str::<Rate>("50").is_err());
    }

    #[test]
    fn sending_time_rounds_up_and_sent_bytes_round_down() {
        let rate = Rate::from_bps(3).unwrap();
        assert_eq!(rate.time_to_send(ByteCount::new(1)), Duration::from_nanos(2_666_666_667));
        assert_eq!(rate.bytes_in(Duration::from_nanos(2_666_666_666)), ByteCount::new(0));
        assert_eq!(rate.bytes_in(Duration::from_nanos(2_666_666_667)), ByteCount::new(1));
        assert_eq!(Rate::from_bps(15).unwrap().bytes_per_second(), 1);
    }

    #[test]
    fn extremes_saturate() {
        let slowest = Rate::from_bps(1).unwrap();
        let fastest = Rate::from_bps(u64::MAX).unwrap();
        assert_eq!(slowest.time_to_send(ByteCount::new(u64::MAX)), Duration::from_nanos(u64::MAX));
        assert_eq!(fastest.bytes_in(Duration::MAX), ByteCount::new(u64::MAX));
        assert_eq!(Rate::average(ByteCount::new(1), Duration::ZERO), None);
        assert_eq!(Rate::average(ByteCount::ZERO, Duration::from_secs(1)), None);
    }

    proptest! {
        #[test]
        fn printed_rates_parse_to_themselves(bits_per_second in 1_u64..) {
            let rate = Rate::from_bps(bits_per_second).unwrap();
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        }

        #[test]
        fn a_link_is_never_faster_than_its_rate(
            bits_per_second in 1_u64..100_000_000_000,
            bytes in 0_u64..1_000_000_000,
        ) {
            let rate = Rate::from_bps(bits_per_second).unwrap();
            let bytes = ByteCount::new(bytes);
            let time = rate.time_to_send(bytes);
            prop_assert!(rate.bytes_in(time) >= bytes);
            if let Some(average) = Rate::average(bytes, time) {
                prop_assert!(average <= rate);
            }
        }

        #[test]
        fn a_parsed_rate_prints_and_parses_to_itself(text in "[0-9.]{1,12} ?[kMG]?bit/s|\\PC{0,20}") {
            if let Ok(rate) = text.parse::<Rate>() {
                prop_assert_eq!(rate.to_string().parse(), Ok(rate));
            }
        }
    }
}
