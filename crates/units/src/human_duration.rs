use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde_with::{DeserializeFromStr, SerializeDisplay};

use crate::ParseUnitError;
use crate::decimal::{self, Notation};

/// A [`Duration`] with a text form for people, such as "20ms", "1.5s", "100us" or "2min". The text
/// form has a resolution of 1 ns.
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
pub struct HumanDuration(pub Duration);

const NOTATION: Notation = Notation {
    quantity: "duration",
    example: "20ms",
    base: "nanoseconds",
    range: "below 2^64 ns (584 years)",
    units: &[
        ("ns", 1),
        ("us", MICROSECOND),
        ("ms", MILLISECOND),
        ("s", SECOND),
        ("min", MINUTE),
        ("h", 60 * MINUTE),
    ],
};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;

impl From<Duration> for HumanDuration {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl From<HumanDuration> for Duration {
    fn from(duration: HumanDuration) -> Self {
        duration.0
    }
}

impl FromStr for HumanDuration {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        if text == "0" {
            return Ok(Self(Duration::ZERO)); // the same in every unit
        }
        NOTATION.parse(text).map(|nanos| Self(Duration::from_nanos(nanos)))
    }
}

impl fmt::Display for HumanDuration {
    /// Formats the duration exactly if it is below 584 years, and in whole seconds otherwise. The
    /// unit is minutes if the duration is a whole number of minutes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(nanos) = u64::try_from(self.0.as_nanos()) else {
            return f.pad(&format!("{}s", self.0.as_secs()));
        };
        let text = match nanos {
            0 => "0s".to_owned(),
            _ if nanos.is_multiple_of(MINUTE) => format!("{}min", nanos / MINUTE),
            SECOND.. => decimal::format(nanos, SECOND) + "s",
            MILLISECOND.. => decimal::format(nanos, MILLISECOND) + "ms",
            MICROSECOND.. => decimal::format(nanos, MICROSECOND) + "us",
            _ => format!("{nanos}ns"),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_parsed_and_printed() {
        for (text, nanos, printed) in [
            ("0s", 0, "0s"),
            ("0", 0, "0s"),
            ("7ns", 7, "7ns"),
            ("100us", 100_000, "100us"),
            ("20ms", 20_000_000, "20ms"),
            ("20 ms", 20_000_000, "20ms"),
            ("0.5ms", 500_000, "500us"),
            ("1.5s", 1_500_000_000, "1.5s"),
            ("90s", 90_000_000_000, "90s"),
            ("1.5min", 90_000_000_000, "90s"),
            ("2min", 120_000_000_000, "2min"),
            ("1h", 3_600_000_000_000, "60min"),
            ("18446744073709551615ns", u64::MAX, "18446744073.709551615s"),
        ] {
            let duration: HumanDuration = text.parse().expect(text);
            assert_eq!(duration.0, Duration::from_nanos(nanos), "{text}");
            assert_eq!(duration.to_string(), printed, "{text}");
        }
        assert_eq!(HumanDuration(Duration::MAX).to_string(), "18446744073709551615s");
    }

    #[test]
    fn invalid_durations_are_refused_with_the_reason() {
        for (text, reason) in [
            ("20", "unknown unit \"\" in a duration; allowed: ns, us, ms, s, min, h"),
            ("1 month", "unknown unit \"month\" in a duration; allowed: ns, us, ms, s, min, h"),
            ("1.0000000001s", "\"1.0000000001s\" is not a whole number of nanoseconds"),
            (
                "18446744074s",
                "\"18446744074s\" is out of range; a duration is below 2^64 ns (584 years)",
            ),
        ] {
            let error = text.parse::<HumanDuration>().expect_err(text);
            assert_eq!(error.to_string(), reason, "{text:?}");
        }
        for text in ["", "ms", "-1s", "1min 30s"] {
            assert!(text.parse::<HumanDuration>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn json_holds_the_text() {
        let duration = HumanDuration(Duration::from_millis(20));
        assert_eq!(serde_json::to_string(&duration).unwrap(), "\"20ms\"");
        assert_eq!(serde_json::from_str::<HumanDuration>("\"20ms\"").unwrap(), duration);
    }

    proptest! {
        #[test]
        fn printed_durations_parse_to_themselves(nanos: u64, shift in 0_u32..64) {
            let duration = HumanDuration(Duration::from_nanos(nanos >> shift));
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }
    }
}
