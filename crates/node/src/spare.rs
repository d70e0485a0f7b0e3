//! Memory that a queue keeps after a peak.

use std::collections::VecDeque;

/// A queue keeps room for this many items in any case, so that usual work does not allocate again
/// and again.
const LEAST: usize = 64;

/// Gives memory back when a queue uses less than a quarter of its room. The caller calls this after
/// it has taken an item. The room is halved, so that the next call that does so is far away.
pub(crate) fn give_back<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > LEAST && queue.len() < queue.capacity() / 4 {
        queue.shrink_to((queue.capacity() / 2).max(LEAST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_gives_back_most_of_its_memory_after_a_peak() {
        let mut queue: VecDeque<u64> = (0..10_000).collect();
        while queue.pop_front().is_some() {
            give_back(&mut queue);
            assert!(queue.capacity() <= LEAST.max(4 * queue.len() + 8), "{}", queue.capacity());
        }
        assert!(queue.capacity() <= LEAST);
    }
}
