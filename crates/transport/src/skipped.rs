//! Packet numbers that are skipped, so that a peer that acknowledges what it has not received is found out
//! ([RFC 9000 §21.4]).
//!
//! [RFC 9000 §21.4]: https://www.rfc-editor.org/rfc/rfc9000#section-21.4

use std::ops::RangeInclusive;

/// Chooses numbers to skip: one of the first hundred, and then ever fewer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SkippedNumbers {
    next: u64,
    interval: u64,
    random: u64,
    /// The numbers that were skipped last. `u64::MAX` is none.
    last: [u64; Self::KEPT],
}

impl SkippedNumbers {
    const KEPT: usize = 4;
    const INTERVAL: (u64, u64) = (64, 1 << 14);

    /// `seed`: a number that the peer cannot guess.
    pub(crate) fn new(seed: u64) -> Self {
        let mut skipped = Self {
            next: 0,
            interval: Self::INTERVAL.0,
            random: seed | 1,
            last: [u64::MAX; Self::KEPT],
        };
        skipped.choose(0);
        skipped
    }

    /// Whether this number, of the packet that would be next, is skipped.
    pub(crate) fn skips(&mut self, number: u64) -> bool {
        if number < self.next {
            return false;
        }
        self.last.rotate_right(1);
        let [newest, ..] = &mut self.last;
        *newest = number;
        self.interval = (self.interval * 2).min(Self::INTERVAL.1);
        self.choose(number);
        true
    }

    /// Whether one of these numbers was skipped.
    pub(crate) fn contains_any(&self, numbers: &RangeInclusive<u64>) -> bool {
        self.last.iter().any(|skipped| numbers.contains(skipped))
    }

    fn choose(&mut self, number: u64) {
        // xorshift64*, G. Marsaglia and S. Vigna
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let random = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        self.next = number + self.interval / 2 + random % self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_skipped_early_and_then_seldom() {
        for seed in 0..100 {
            let mut skipped = SkippedNumbers::new(seed);
            let all: Vec<u64> = (0..200_000).filter(|&number| skipped.skips(number)).collect();
            let first = all[0];
            assert!((32..96).contains(&first), "{seed}: {first}");
            assert!((13..40).contains(&all.len()), "{seed}: {all:?}");
            let newest = all[all.len() - 1];
            assert!(skipped.contains_any(&(newest - 1..=newest)));
            assert!(!skipped.contains_any(&(newest + 1..=newest + 9)));
        }
    }
}
