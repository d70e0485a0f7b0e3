use std::{fmt, str::FromStr};

/// A range of seeds. Its text is `1..8`, which includes both ends, or `7` for one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    first: u64,
    last: u64,
}

impl Seeds {
    /// A range of one seed.
    pub const fn one(seed: u64) -> Self {
        Self { first: seed, last: seed }
    }

    /// The first seed.
    pub const fn first(self) -> u64 {
        self.first
    }

    /// The number of seeds, which is at least one. For the range of all seeds it is one too few,
    /// because the type cannot hold more.
    pub const fn count(self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }

    /// Iterates over the seeds.
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

/// An error: a text is not a range of seeds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{seen:?} is not a range of seeds; allowed: one seed such as 7, or the first and the last such as 1..8"
)]
pub struct ParseSeedsError {
    /// The text.
    pub seen: String,
}
