use rand_pcg::Pcg64;

/// The seed of all random choices: the same seed gives the same choices. It uses two algorithms
/// that are fixed by publication, so that a seed keeps its meaning. [`SplitMix64`] derives seeds
/// from seeds. PCG64 (O'Neill 2014, `pcg64` in her library) decides the fate of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seed(pub u64);

impl Seed {
    /// The seed of a part, such as the third link of a path. Parts with different numbers are
    /// independent of each other.
    #[must_use]
    pub const fn derive(self, part: u64) -> Self {
        Self(split_mix(split_mix(self.0) ^ part))
    }

    /// The generator of a stream. Streams with different numbers are independent of each other.
    pub fn generator(self, stream: u64) -> Pcg64 {
        let Self(high) = self.derive(stream);
        let low = split_mix(high);
        Pcg64::new((u128::from(high) << 64) | u128::from(low), u128::from(stream))
    }
}

/// A generator that can begin at any of its numbers: `SplitMix64` (Steele, Lea, Flood, OOPSLA
/// 2014). It is made for contents of files, not for secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The generator of a seed that yields its number `first` next, counted from 0.
    pub const fn starting_at(seed: Seed, first: u64) -> Self {
        Self { state: seed.0.wrapping_add(SPLIT_MIX_GAMMA.wrapping_mul(first)) }
    }

    /// The next number.
    pub const fn next_u64(&mut self) -> u64 {
        let number = split_mix(self.state);
        self.state = self.state.wrapping_add(SPLIT_MIX_GAMMA);
        number
    }
}

/// The first number that `SplitMix64` yields in the given state.
const fn split_mix(state: u64) -> u64 {
    let z = state.wrapping_add(SPLIT_MIX_GAMMA);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The increment of the state of `SplitMix64` for each number that it yields.
const SPLIT_MIX_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use rand_pcg::rand_core::Rng;

    use super::*;

    #[test]
    fn split_mix_yields_the_published_numbers() {
        // The first numbers of Vigna's splitmix64.c for the seed 1234567.
        let expected =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        let mut generator = SplitMix64::starting_at(Seed(1_234_567), 0);
        assert_eq!(expected.map(|_| generator.next_u64()), expected);
        let mut second = SplitMix64::starting_at(Seed(1_234_567), 1);
        assert_eq!(second.next_u64(), expected[1]);
    }

    #[test]
    fn a_seed_never_changes_its_meaning() {
        // These numbers were recorded when the code was first written. A change here changes every
        // figure.
        let mut generator = Seed(7).derive(1).generator(2);
        let first: [u64; 3] = std::array::from_fn(|_| generator.next_u64());
        let expected =
            [14_392_939_788_064_383_159, 7_123_235_284_676_088_350, 9_186_786_033_883_332_238];
        assert_eq!(first, expected);
    }
}
