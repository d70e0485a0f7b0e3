use std::{fmt, str::FromStr};

/// A range of seeds, as text `1..8`, where both ends belong to it, or one seed, `7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    first: u64,
    last: u64,
}

impl Seeds {
    /// One seed.
    pub const fn one(seed: u64) -> Self {
        Self { first: seed, last: seed }
    }

    /// The first.
    pub const fn first(self) -> u64 {
        self.first
    }

    /// How many, at least one; the number of all seeds but one, if it is all.
    pub const fn count(self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        self.first..=self.last
    }
}

impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last { first.fmt(f) } else { write!(f, "{first}..{last}") }
    }
}

impl FromStr for Seeds {
    type Err = ParseSeedsError;

    fn from_str(text: &str) -> Result<Self, ParseSeedsError> {
        let refuse = || ParseSeedsError { seen: text.to_owned() };
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| refuse());
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let seeds = Self { first: number(first)?, last: number(last)? };
        if seeds.first <= seeds.last { Ok(seeds) } else { Err(refuse()) }
    }
}

/// A text that is no range of seeds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seen:?} is no range of seeds; allowed: one such as 7, or the first and the last, 1..8")]
pub struct ParseSeedsError {
    /// The text.
    pub seen: String,
}
