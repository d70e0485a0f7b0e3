//! Which numbers of a sliding range have arrived.

use std::ops::Range;

/// The numbers of a sliding range that have arrived. Each number is one bit in a ring.
///
/// Numbers that are `span` apart share a bit. A caller that slides the range therefore calls
/// [`Self::forget`] for the numbers that leave it.
#[derive(Debug)]
pub struct Arrived {
    /// The number of words is a power of two. There are none before the first number arrives, so
    /// that a flow without numbers takes no memory.
    words: Box<[u64]>,
    words_max: usize,
}

impl Arrived {
    /// An empty set for a range of at least `span` numbers.
    ///
    /// # Panics
    ///
    /// The span does not fit into the address space.
    pub fn new(span: u64) -> Self {
        let words = usize::try_from(span.div_ceil(64)).expect("a bounded span");
        Self { words: Box::default(), words_max: words.next_power_of_two() }
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// How many consecutive numbers have a bit of their own.
    const fn span(&self) -> u64 {
        self.words_max as u64 * 64
    }

    /// Whether a number has arrived.
    pub fn contains(&self, number: u64) -> bool {
        self.word(number) & (1 << (number % 64)) != 0
    }

    /// Notes that a number has arrived.
    pub fn insert(&mut self, number: u64) {
        if self.words.is_empty() {
            self.words = vec![0; self.words_max].into();
        }
        *self.word_mut(number) |= 1 << (number % 64);
    }

    /// Clears the bits of numbers that leave the range.
    pub fn forget(&mut self, numbers: Range<u64>) {
        if self.words.is_empty() {
            return;
        }
        let start = numbers.start.max(numbers.end.saturating_sub(self.span()));
        for (first, mask) in masks(start..numbers.end) {
            *self.word_mut(first) &= !mask;
        }
    }

    /// How many of `numbers`, at most a span of them, have arrived.
    pub fn count(&self, numbers: Range<u64>) -> u64 {
        masks(numbers).map(|(first, mask)| u64::from((self.word(first) & mask).count_ones())).sum()
    }

    /// The lowest of `numbers` that has arrived.
    pub fn first(&self, numbers: Range<u64>) -> Option<u64> {
        masks(numbers).find_map(|(first, mask)| lowest(first, self.word(first) & mask))
    }

    /// The lowest of `numbers` that has not arrived.
    pub fn first_missing(&self, numbers: Range<u64>) -> Option<u64> {
        masks(numbers).find_map(|(first, mask)| lowest(first, !self.word(first) & mask))
    }

    fn word(&self, number: u64) -> u64 {
        self.words.get(ring_index(number / 64, self.words.len())).copied().unwrap_or_default()
    }

    fn word_mut(&mut self, number: u64) -> &mut u64 {
        let index = ring_index(number / 64, self.words.len());
        self.words.get_mut(index).expect("an index is below the length")
    }
}

/// The index of a number in a ring whose length is a power of two.
fn ring_index(number: u64, len: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "what is below `len` fits")]
    let index = (number & (len as u64).wrapping_sub(1)) as usize;
    index
}

/// The words that hold `numbers`. Each item has the first number of a word, and the mask of the
/// bits that belong to `numbers`.
fn masks(numbers: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let aligned = numbers.start & !63;
    (aligned..numbers.end).step_by(64).map(move |first| {
        let from_start = u64::MAX << numbers.start.saturating_sub(first);
        let until_end = u64::MAX >> (64 - (numbers.end - first).min(64));
        (first, from_start & until_end)
    })
}

fn lowest(first: u64, bits: u64) -> Option<u64> {
    (bits != 0).then(|| first + u64::from(bits.trailing_zeros()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn searches_give_the_same_results_as_in_a_set(
            base in prop_oneof![Just(0), 0..200_u64, (1_u64 << 62) - 300..(1 << 62) - 256],
            numbers in prop::collection::btree_set(0..256_u64, 0..256),
            range in (0..256_u64, 0..257_u64),
            forgotten in 0..300_u64,
        ) {
            let mut numbers: BTreeSet<u64> = numbers.into_iter().map(|n| base + n).collect();
            let mut arrived = Arrived::new(256);
            for &number in &numbers {
                arrived.insert(number);
            }
            arrived.forget(base..base + forgotten);
            numbers.retain(|&number| number >= base + forgotten);
            let range = base + range.0..base + range.1;
            let inside = || range.clone().filter(|number| numbers.contains(number));
            prop_assert_eq!(arrived.count(range.clone()), inside().count() as u64);
            prop_assert_eq!(arrived.first(range.clone()), inside().next());
            let missing = range.clone().find(|number| !numbers.contains(number));
            prop_assert_eq!(arrived.first_missing(range.clone()), missing);
            for number in base..base + 256 {
                prop_assert_eq!(arrived.contains(number), numbers.contains(&number));
            }
        }
    }
}
