//! The Priority header field ([RFC 9218]).
//!
//! [RFC 9218]: https://www.rfc-editor.org/rfc/rfc9218

use std::{fmt, str::FromStr};

use http::HeaderValue;
use sfv::{Dictionary, ListEntry, Parser};

use crate::StrangerText;

/// The urgency of a request, the parameter `u` of its priority ([RFC 9218 §4.1]): 0 to 7, where 0
/// is the most urgent.
///
/// [RFC 9218 §4.1]: https://www.rfc-editor.org/rfc/rfc9218#section-4.1
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Urgency(u8);

impl Urgency {
    /// The field's name.
    pub const FIELD: &str = "priority";

    /// The number of urgencies.
    pub const COUNT: usize = 8;

    /// Returns the urgency as a number from 0 to 7.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Parses a field's value.
    ///
    /// Unknown parameters, values out of range and unexpected types are ignored (RFC 9218 §4). If
    /// no valid urgency is present, the result is the default, 3.
    pub fn parse_field(value: &str) -> Self {
        let dictionary: Option<Dictionary> = Parser::new(value).parse().ok();
        let urgency =
            dictionary.as_ref().and_then(|it| it.get("u")).and_then(|entry| match entry {
                ListEntry::Item(item) => item.bare_item.as_integer(),
                ListEntry::InnerList(_) => None,
            });
        let urgency = urgency.and_then(|urgency| u8::try_from(i64::from(urgency)).ok());
        urgency.filter(|urgency| *urgency < 8).map_or_else(Self::default, Self)
    }

    /// Encodes a field's value.
    pub fn field_value(self) -> HeaderValue {
        HeaderValue::from_str(&self.to_string()).unwrap_or(HeaderValue::from_static("u=3"))
    }
}

impl Default for Urgency {
    fn default() -> Self {
        Self(3)
    }
}

impl fmt::Display for Urgency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u={}", self.0)
    }
}

/// The error for a text that is not an urgency.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an urgency; allowed: u=0 (first) to u=7 (last)")]
pub struct ParseUrgencyError(StrangerText);

impl FromStr for Urgency {
    type Err = ParseUrgencyError;

    fn from_str(text: &str) -> Result<Self, ParseUrgencyError> {
        let urgency = text.strip_prefix("u=").and_then(|number| number.parse().ok());
        let urgency = urgency.filter(|urgency| *urgency < 8).map(Self);
        urgency.ok_or_else(|| ParseUrgencyError(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_invalid_urgency_becomes_the_default() {
        for (value, urgency) in [
            ("u=0", 0),
            ("u=7, i", 7),
            ("i", 3),
            ("u=8", 3),
            ("u=-1", 3),
            ("u=a", 3),
            ("u=(1 2)", 3),
            ("x=9, u=5;later", 5),
            ("u=1, u=2", 2),
            ("", 3),
            ("u=", 3),
            ("\u{7f}", 3),
        ] {
            assert_eq!(Urgency::parse_field(value).get(), urgency, "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn an_encoded_urgency_parses_to_itself(urgency in 0_u8..8) {
            let urgency = Urgency(urgency);
            prop_assert_eq!(Urgency::parse_field(urgency.field_value().to_str().unwrap()), urgency);
            prop_assert_eq!(urgency.to_string().parse(), Ok(urgency));
        }

        #[test]
        fn no_value_panics(value: String) {
            prop_assert!(Urgency::parse_field(&value).get() < 8);
        }
    }
}
