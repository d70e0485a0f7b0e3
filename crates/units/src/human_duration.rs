use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::{ParseUnitError, decimal};

/// A [`Duration`] that reads and prints as people write it: "20ms", "1.5s", "100us", "2min".
///
/// It reads what the `humantime` crate reads, so "1min 30s" is fine too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HumanDuration(pub Duration);

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
        match humantime::parse_duration(text) {
            Ok(duration) => Ok(Self(duration)),
            Err(source) => Err(ParseUnitError::Duration { seen: text.to_owned(), source }),
        }
    }
}

impl fmt::Display for HumanDuration {
    /// Exact, in the largest unit of which there is at least one; minutes only if it is whole ones.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(nanos) = u64::try_from(self.0.as_nanos()) else {
            return f.pad(&format!("{}s", self.0.as_secs())); // over 584 years: drop the fraction
        };
        let text = match nanos {
            0 => "0s".to_owned(),
            _ if nanos.is_multiple_of(60_000_000_000) => format!("{}min", nanos / 60_000_000_000),
            1_000_000_000.. => decimal::format(nanos, 1_000_000_000) + "s",
            1_000_000.. => decimal::format(nanos, 1_000_000) + "ms",
            1_000.. => decimal::format(nanos, 1_000) + "us",
            _ => format!("{nanos}ns"),
        };
        f.pad(&text)
    }
}

crate::serde_as_text!(HumanDuration);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_and_printed() {
        for (text, nanos, printed) in [
            ("0s", 0, "0s"),
            ("7ns", 7, "7ns"),
            ("100us", 100_000, "100us"),
            ("20ms", 20_000_000, "20ms"),
            ("20 ms", 20_000_000, "20ms"),
            ("0.5ms", 500_000, "500us"),
            ("1.5s", 1_500_000_000, "1.5s"),
            ("90s", 90_000_000_000, "90s"),
            ("1min 30s", 90_000_000_000, "90s"),
            ("2min", 120_000_000_000, "2min"),
            ("1h", 3_600_000_000_000, "60min"),
        ] {
            let duration: HumanDuration = text.parse().expect(text);
            assert_eq!(duration.0, Duration::from_nanos(nanos), "{text}");
            assert_eq!(duration.to_string(), printed, "{text}");
        }
        for text in ["", "20", "ms", "20 lightyears", "-1s", "1.0000000001s"] {
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
        fn printed_durations_parse_to_themselves(nanos: u64) {
            let duration = HumanDuration(Duration::from_nanos(nanos));
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }
    }
}
