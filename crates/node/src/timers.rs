//! Sets of deadlines, from which the earliest is taken.

use std::{collections::BTreeSet, time::Instant};

/// Moves the deadline of `key` from `old` to `new`, and sets `old` to `new`. Without a new
/// deadline, `key` leaves the set.
pub(crate) fn move_timer<K: Copy + Ord>(
    timers: &mut BTreeSet<(Instant, K)>,
    key: K,
    old: &mut Option<Instant>,
    new: Option<Instant>,
) {
    if *old == new {
        return;
    }
    if let Some(old) = std::mem::replace(old, new) {
        timers.remove(&(old, key));
    }
    timers.extend(new.map(|new| (new, key)));
}
