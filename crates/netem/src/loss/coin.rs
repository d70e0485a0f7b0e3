use std::time::Duration;

use rand_pcg::{Pcg64, rand_core::Rng};
use tandem_units::Ratio;

use crate::Seed;

/// A biased coin with a random stream of its own: Bernoulli trials, independent of each other.
#[derive(Debug)]
pub(crate) struct Coin {
    heads: Ratio,
    generator: Pcg64,
}

/// The decision for which random numbers are drawn. The numbers name random streams and must not
/// change, because a seed must keep its meaning.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Loss = 0,
    Reorder = 1,
    Duplicate = 2,
    Burst = 3,
    Jitter = 4,
}

impl Coin {
    pub(crate) fn new(heads: Ratio, seed: Seed, purpose: Purpose) -> Self {
        Self { heads, generator: seed.generator(purpose as u64) }
    }

    /// True in a share `heads` of all tosses, to within 2^-64. Every toss takes one 64-bit word,
    /// whatever the ratio. With a higher ratio the same seed hits the same packets and additional
    /// ones.
    pub(crate) fn toss(&mut self) -> bool {
        self.toss_with(self.heads)
    }

    /// Works as [`Self::toss`], but with another share for this toss.
    pub(crate) fn toss_with(&mut self, heads: Ratio) -> bool {
        let word = u128::from(self.generator.next_u64());
        let parts = (word * u128::from(Ratio::ONE.parts_per_billion())) >> 64; // rounded down
        parts < u128::from(heads.parts_per_billion())
    }
}

/// Draws times, with a random stream of its own.
#[derive(Debug)]
pub(crate) struct Dice {
    generator: Pcg64,
}

impl Dice {
    pub(crate) fn new(seed: Seed, purpose: Purpose) -> Self {
        Self { generator: seed.generator(purpose as u64) }
    }

    /// Draws a time between zero and `longest` (inclusive), uniformly to within 2^-64. Each draw
    /// takes one word, so that a longer time stretches the same draws. It takes no word if
    /// `longest` is zero.
    pub(crate) fn up_to(&mut self, longest: Duration) -> Duration {
        if longest.is_zero() {
            return longest;
        }
        let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        let word = u128::from(self.generator.next_u64());
        let drawn = (word * (u128::from(nanos) + 1)) >> 64; // rounded down, at most `nanos`
        Duration::from_nanos(u64::try_from(drawn).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(heads: Ratio, seed: u64, tosses: usize) -> Vec<usize> {
        let mut coin = Coin::new(heads, Seed(seed), Purpose::Loss);
        (0..tosses).filter(|_| coin.toss()).collect()
    }

    #[test]
    fn the_share_of_hits_is_within_four_standard_deviations() {
        let tosses = 100_000_u64;
        for percent in [1, 5, 50, 90] {
            for seed in 0..10 {
                let hits = hits(Ratio::of(percent, 100), seed, 100_000).len() as u64;
                // The variance is n p (1 - p); all numbers are in units of 1e-4.
                let variance = tosses * percent * (100 - percent);
                let deviation = (hits * 100).abs_diff(tosses * percent);
                assert!(
                    deviation.pow(2) <= 16 * variance,
                    "{hits} hits at {percent}%, seed {seed}"
                );
            }
        }
    }

    #[test]
    fn a_ratio_of_zero_never_hits_and_a_ratio_of_one_always_hits() {
        assert!(hits(Ratio::ZERO, 1, 1000).is_empty());
        assert_eq!(hits(Ratio::ONE, 1, 1000).len(), 1000);
    }

    #[test]
    fn hits_are_independent_of_each_other() {
        // P(hit | hit before) = p: at 10% and 100 000 tosses, 1000 pairs, standard deviation 33.
        let hits = hits(Ratio::of(1, 10), 3, 100_000);
        let pairs = hits.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(pairs.abs_diff(1000) <= 4 * 33, "{pairs} pairs");
    }

    #[test]
    fn a_higher_ratio_hits_the_same_tosses_and_additional_ones() {
        let few = hits(Ratio::of(1, 100), 5, 10_000);
        let many = hits(Ratio::of(5, 100), 5, 10_000);
        assert!(few.iter().all(|toss| many.contains(toss)));
        assert!(many.len() > few.len());
    }
}
