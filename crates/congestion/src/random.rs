/// A small random number generator, `SplitMix64` (Steele, Lea, Flood: Fast splittable pseudorandom
/// number generators, OOPSLA 2014). A controller repeats its choices if it gets the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a random number below `bound`, which must not be zero. The bias is at most
    /// `bound / 2^64`, so `bound` should be small.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_are_those_of_the_reference() {
        // The reference generator's first outputs for the seed 1234567.
        let mut random = Random::new(1_234_567);
        for expected in [6_457_827_717_110_365_317, 3_203_168_211_198_807_973] {
            assert_eq!(random.below(u64::MAX), expected);
        }
    }
}
