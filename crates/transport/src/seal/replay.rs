//! Which packet numbers a receiver has accepted.

use crate::arrived::Arrived;

/// A sliding window of the highest packet numbers, which accepts each number once (RFC 9000 §12.3
/// and §21.4). It is asked about authentic packets only.
#[derive(Debug)]
pub(super) struct ReplayWindow {
    /// The number after the highest one.
    next: u64,
    arrived: Arrived,
}

/// The reason why a packet number is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplayRefusal {
    /// The number was accepted before.
    Replayed,
    /// The number is below the window, which no longer knows whether it was accepted.
    TooOld,
}

impl ReplayWindow {
    /// How many numbers the window has.
    pub(super) const LEN: u64 = 4096;

    /// A window that has accepted nothing, and expects this number.
    pub(super) fn new(next: u64) -> Self {
        Self { next, arrived: Arrived::new(Self::LEN) }
    }

    /// The number after the highest one that was accepted.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn memory(&self) -> usize {
        self.arrived.memory()
    }

    /// Accepts a number that is in the window and was not accepted before, or one above the window,
    /// which then moves.
    pub(super) fn accept(&mut self, number: u64) -> Result<(), ReplayRefusal> {
        if number >= self.next {
            let start = |next: u64| next.saturating_sub(Self::LEN);
            self.arrived.forget(start(self.next)..start(number + 1));
            self.next = number + 1;
        } else if number + Self::LEN < self.next {
            return Err(ReplayRefusal::TooOld);
        } else if self.arrived.contains(number) {
            return Err(ReplayRefusal::Replayed);
        }
        self.arrived.insert(number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::{ReplayRefusal::*, *};

    #[test]
    fn the_window_has_4096_numbers() {
        for first in [0, 4096, (1 << 32) - 2000, (1 << 62) - 5000] {
            let mut window = ReplayWindow::new(first);
            assert_eq!(window.accept(first + 1), Ok(()));
            assert_eq!(window.accept(first + 4096), Ok(()));
            assert_eq!(window.accept(first), Err(TooOld), "one before the window");
            assert_eq!(window.accept(first + 1), Err(Replayed), "the first in the window");
            assert_eq!(window.accept(first + 2), Ok(()));
            assert_eq!(window.accept(first + 2), Err(Replayed));
            assert_eq!(window.accept(first + 4095), Ok(()), "the last but one");
            assert_eq!(window.accept(first + 4096), Err(Replayed), "the last");
            assert_eq!(window.accept(first + 4097), Ok(()), "the next one moves the window");
            assert_eq!(window.accept(first + 1), Err(TooOld));
        }
    }

    #[test]
    fn numbers_before_the_first_are_accepted_within_the_window() {
        let mut window = ReplayWindow::new(5000);
        for (number, expected) in
            [(5000, Ok(())), (905, Ok(())), (905, Err(Replayed)), (904, Err(TooOld))]
        {
            assert_eq!(window.accept(number), expected, "{number}");
        }
    }

    #[test]
    fn a_jump_forgets_everything() {
        for jump in [4096, 4097, 1 << 20, 1 << 40] {
            let mut window = ReplayWindow::new(0);
            for number in 0..4096 {
                assert_eq!(window.accept(number), Ok(()));
            }
            assert_eq!(window.accept(4095 + jump), Ok(()));
            for number in 4095 + jump - 4095..4095 + jump {
                assert_eq!(window.accept(number), Ok(()), "{number} after a jump of {jump}");
            }
        }
    }

    #[test]
    fn the_memory_is_constant() {
        let kept = allocation_counter::measure(|| {
            let mut window = ReplayWindow::new(0);
            for number in (0..1_000_000_u64).map(|number| number * 77 % 65_536 + number) {
                _ = window.accept(number).is_ok();
            }
            std::mem::forget(window);
        });
        assert_eq!(kept.bytes_max, 512);
    }

    proptest! {
        #[test]
        fn a_window_accepts_what_a_set_accepts(
            first in prop_oneof![Just(0), 0..10_000_u64, (1_u64 << 62) - 60_000..(1 << 62) - 50_000],
            numbers in prop::collection::vec(
                prop_oneof![0..50_u64, 4000..4200_u64, 0..12_000_u64, 0..50_000_u64],
                0..300,
            ),
        ) {
            let mut window = ReplayWindow::new(first);
            let (mut accepted, mut next) = (BTreeSet::new(), first);
            for number in numbers.into_iter().map(|number| first + number) {
                let expected = if number + 4096 < next {
                    Err(TooOld)
                } else if accepted.contains(&number) {
                    Err(Replayed)
                } else {
                    accepted.insert(number);
                    next = next.max(number + 1);
                    Ok(())
                };
                prop_assert_eq!(window.accept(number), expected, "{}", number);
                prop_assert_eq!(window.next(), next);
            }
        }
    }
}
