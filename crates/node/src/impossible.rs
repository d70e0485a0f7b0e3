//! What cannot happen, unless this program has an error.
//!
//! An early return looks the same whether a peer may cause it or nobody can. So the second sort says what was expected.
//! Tests and fuzzers then stop, and a program goes on and counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often something impossible has happened in this process.
static SEEN: AtomicU64 = AtomicU64::new(0);

/// How many of them no node has counted yet.
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);

/// Notes that what was `expected` does not hold, and returns what stands for nothing.
///
/// It is for what our own code guarantees. What a peer, a timer, the driver or the operating system may cause gets a
/// plain `return` and its reason in words.
#[track_caller]
#[cold]
pub(crate) fn impossible<T: Default>(expected: &'static str) -> T {
    debug_assert!(false, "impossible: {expected}");
    UNCOUNTED.fetch_add(1, Ordering::Relaxed);
    let before = SEEN.fetch_add(1, Ordering::Relaxed);
    if (before + 1).is_power_of_two() {
        let place = std::panic::Location::caller();
        tracing::error!(expected, %place, seen = before + 1, "an error in this program; please report it");
    }
    T::default()
}

/// Takes the number of times that no node has counted yet. The nodes of a process share them, and each is counted once.
pub(crate) fn take() -> u64 {
    UNCOUNTED.swap(0, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "impossible: a reason")]
    fn tests_see_the_impossible() {
        impossible::<()>("a reason");
    }

    #[test]
    fn what_was_counted_is_not_counted_again() {
        take();
        assert_eq!(take(), 0);
    }
}
