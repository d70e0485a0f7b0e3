//! Settings whose values have a range: the same in flags, environment and files.

use std::{fmt::Display, ops::RangeInclusive, str::FromStr};

use serde::Serialize;

use super::values::ValueError;

/// A setting whose values have a range.
pub(crate) trait Setting {
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
pub(crate) struct Within<S: Setting>(pub(crate) S::Value);

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
            reason: error.to_string(),
            expected: S::allowed(),
        });
        Self::new(value?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Settings, from_text},
        error::ConfigError,
    };

    #[derive(Clone, Copy, Debug)]
    struct Count;

    impl Setting for Count {
        type Value = u8;
        const ALLOWED: RangeInclusive<u8> = 2..=16;
    }

    #[derive(Debug, clap::Args)]
    struct File {
        #[arg(long)]
        count: Option<Within<Count>>,
    }

    #[derive(Debug, Serialize)]
    struct Checked {
        count: Within<Count>,
    }

    impl TryFrom<File> for Checked {
        type Error = ConfigError;

        fn try_from(file: File) -> Result<Self, ConfigError> {
            Ok(Self { count: file.count.unwrap() })
        }
    }

    impl Settings for File {
        type Setup = Checked;
        const SUBCOMMAND: &'static str = "test";
        const REQUIRED: &'static [&'static str] = &["count"];
    }

    #[test]
    fn texts_and_files_have_the_same_range() {
        for (text, error) in [
            ("1", "out of range; allowed: 2 to 16"),
            ("17", "out of range; allowed: 2 to 16"),
            ("-1", "allowed: 2 to 16"),
        ] {
            let flag = text.parse::<Within<Count>>().unwrap_err().to_string();
            assert!(flag.ends_with(error), "{flag}");
            let file = from_text::<File>(&format!("count = {text}")).unwrap_err().to_string();
            assert!(file.starts_with("test.toml:1: count: ") && file.ends_with(error), "{file}");
        }
        for count in [2, 16] {
            assert_eq!(count.to_string().parse::<Within<Count>>().unwrap().0, count);
            let text = format!("count = {count}\n");
            assert_eq!(toml::to_string(&from_text::<File>(&text).unwrap()).unwrap(), text);
        }
        assert_eq!(Count::help("How many.", 8), "How many. [allowed: 2 to 16] [default: 8]");
    }
}
