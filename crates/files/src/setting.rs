//! Settings whose values have a range: the same in flags, environment and files.

use std::{fmt::Display, ops::RangeInclusive, str::FromStr};

use serde::Serialize;

/// Why a text is not a value of this kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// The text does not have the form.
    #[error("not {expected}")]
    Form {
        /// What is allowed.
        expected: &'static str,
    },
    /// The form is right, but a part of it is not.
    #[error("{reason}; allowed: {expected}")]
    Part {
        /// The error.
        reason: String,
        /// What is allowed.
        expected: String,
    },
}

/// A setting whose values have a range.
pub trait Setting {
    /// The type of its values.
    type Value: FromStr<Err: Display> + PartialOrd + Display + Copy + Serialize;

    /// Its range, as the crate states it that owns the setting.
    const ALLOWED: RangeInclusive<Self::Value>;

    /// The help of its flag.
    fn help(text: &str, default: impl Display) -> String {
        format!("{text} [allowed: {}] [default: {default}]", Self::allowed())
    }

    /// The range for people.
    fn allowed() -> String {
        format!("{} to {}", Self::ALLOWED.start(), Self::ALLOWED.end())
    }
}

/// A value of a setting, within its range.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(transparent, bound = "")]
pub struct Within<S: Setting>(pub S::Value);

impl<S: Setting> Within<S> {
    fn new(value: S::Value) -> Result<Self, ValueError> {
        let refused =
            || ValueError::Part { reason: "out of range".to_owned(), expected: S::allowed() };
        S::ALLOWED.contains(&value).then_some(Self(value)).ok_or_else(refused)
    }
}

impl<S: Setting> FromStr for Within<S> {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let value = text.parse().map_err(|error: <S::Value as FromStr>::Err| ValueError::Part {
            reason: reason(text, error.to_string()),
            expected: S::allowed(),
        });
        Self::new(value?)
    }
}

/// Why a text is no value. The errors for whole numbers speak of the range of a type, such as `u32`, and are replaced:
/// the range of the setting is smaller, and the caller names it.
fn reason(text: &str, error: String) -> String {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_of_type = error.starts_with("number ") || error.starts_with("invalid digit ");
    match (is_number, is_of_type) {
        (true, true) => "out of range".to_owned(),
        (false, true) => "not a whole number".to_owned(),
        (_, false) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Streams;

    impl Setting for Streams {
        type Value = u8;
        const ALLOWED: RangeInclusive<u8> = 1..=64;
    }

    #[test]
    fn a_number_out_of_its_range_is_told_the_range() {
        for (text, reason) in [
            ("0", "out of range"),
            ("65", "out of range"),
            ("1000", "out of range"),
            ("-1", "out of range"),
            ("many", "not a whole number"),
            ("1.5", "not a whole number"),
        ] {
            let error = text.parse::<Within<Streams>>().map(|_| ()).unwrap_err().to_string();
            assert_eq!(error, format!("{reason}; allowed: 1 to 64"), "{text}");
        }
    }
}
