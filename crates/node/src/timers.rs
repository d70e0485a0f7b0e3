//! Many deadlines, of which the earliest is wanted.

use std::{collections::BTreeSet, time::Instant};

/// Moves the deadline of `key` from `old` to `new`; no deadline: it is in the set no more.
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
