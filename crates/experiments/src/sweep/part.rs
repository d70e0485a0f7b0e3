//! Parts of a plan, for sweeps over several machines.

use std::{num::NonZeroUsize, str::FromStr};

/// A part of the runs of a plan: one of `of` parts of about the same size. Part i has the runs whose numbers have the
/// remainder i, so that slow combinations of a plan are spread over all parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    index: usize,
    of: NonZeroUsize,
}

/// Why a text is no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not INDEX/PARTS with an index from 0 to PARTS - 1, such as 0/10")]
pub struct PartError;

impl Part {
    /// All runs.
    pub const WHOLE: Self = Self { index: 0, of: NonZeroUsize::MIN };

    /// The number of the part, from 0.
    pub const fn index(self) -> usize {
        self.index
    }

    /// Whether the run with this number, from 0, belongs to the part.
    pub const fn has(self, number: usize) -> bool {
        number % self.of.get() == self.index
    }
}

impl FromStr for Part {
    type Err = PartError;

    fn from_str(text: &str) -> Result<Self, PartError> {
        let (index, of) = text.split_once('/').ok_or(PartError)?;
        let index = index.parse().map_err(|_| PartError)?;
        let of: NonZeroUsize = of.parse().map_err(|_| PartError)?;
        if index < of.get() { Ok(Self { index, of }) } else { Err(PartError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_belongs_to_one_part() {
        for of in 1..=5 {
            let parts: Vec<Part> = (0..of).map(|i| format!("{i}/{of}").parse().unwrap()).collect();
            for number in 0..12 {
                assert_eq!(parts.iter().filter(|part| part.has(number)).count(), 1, "{number}");
            }
        }
        assert!((0..12).all(|number| Part::WHOLE.has(number)));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "1", "1/", "/2", "2/2", "0/0", "-1/2", "1/2/3", "a/b"] {
            assert_eq!(text.parse::<Part>(), Err(PartError), "{text}");
        }
    }
}
