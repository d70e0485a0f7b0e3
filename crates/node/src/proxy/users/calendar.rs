//! Months in UTC.

use std::{fmt, str::FromStr, time::Duration};

/// A month in UTC. The text form is `2026-11`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Month(pub(super) u32);

/// The number of seconds of a day. Unix time has no leap seconds.
const DAY: u64 = 86_400;

impl Month {
    /// The month of a time since 1970.
    pub fn of(unix: Duration) -> Self {
        // The days since 1 March of the year 0, so that a leap day ends a year. 400 years have 146,097 days.
        let days = unix.as_secs() / DAY + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153; // since March
        let months = (era * 400 + year) * 12 + month + 2; // since January of the year 0
        Self(u32::try_from(months).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.0 / 12, self.0 % 12 + 1)
    }
}

impl FromStr for Month {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (year, month) = text.split_once('-').ok_or(())?;
        let (year, month): (u32, u32) = (year.parse().map_err(drop)?, month.parse().map_err(drop)?);
        let is_month = (1970..100_000).contains(&year) && (1..=12).contains(&month);
        is_month.then(|| Self(year * 12 + month - 1)).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_begins_and_ends_in_utc() {
        for (unix, month) in [
            (0, "1970-01"),
            (2_678_399, "1970-01"),
            (2_678_400, "1970-02"),
            (951_782_399, "2000-02"), // 28 February
            (951_868_799, "2000-02"), // a leap day
            (951_868_800, "2000-03"),
            (1_767_225_599, "2025-12"),
            (1_767_225_600, "2026-01"),
            (4_107_542_400, "2100-03"), // no leap year
            (4_107_542_399, "2100-02"),
        ] {
            let seen = Month::of(Duration::from_secs(unix));
            assert_eq!(seen.to_string(), month, "{unix}");
            assert_eq!(month.parse(), Ok(seen));
        }
        for other in ["", "2026", "2026-13", "2026-0", "1969-12", "-1-1", "x-1", "4294967295-1"] {
            assert_eq!(other.parse::<Month>(), Err(()), "{other:?}");
        }
    }
}
