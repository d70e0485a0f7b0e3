//! What peers owe for what they have used of a rate, by the prefix of their address.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::prefix::Prefix;

/// The debts of prefixes. A debt is a time: that until the prefix has paid off what it has used. It becomes smaller
/// as time passes. This is a token bucket that is kept as the time at which it will be full again.
#[derive(Debug)]
pub(crate) struct Debts {
    paid_at: BTreeMap<Prefix, Instant>,
    /// The same entries by time. The first one is the next to be forgotten.
    by_time: BTreeSet<(Instant, Prefix)>,
    prefixes_max: usize,
}

impl Debts {
    /// No debts, of at most this many prefixes.
    pub(crate) const fn new(prefixes_max: usize) -> Self {
        Self { paid_at: BTreeMap::new(), by_time: BTreeSet::new(), prefixes_max }
    }

    /// The debt of a prefix.
    pub(crate) fn of(&self, now: Instant, prefix: Prefix) -> Duration {
        let paid_at = self.paid_at.get(&prefix);
        paid_at.map_or(Duration::ZERO, |paid_at| paid_at.saturating_duration_since(now))
    }

    /// Sets the debt of a prefix. If there is no room for it, the smallest debt is forgotten.
    pub(crate) fn set(&mut self, now: Instant, prefix: Prefix, debt: Duration) {
        self.forget_paid(now);
        if let Some(old) = self.paid_at.remove(&prefix) {
            self.by_time.remove(&(old, prefix));
        } else if self.paid_at.len() >= self.prefixes_max
            && let Some((_, smallest)) = self.by_time.pop_first()
        {
            self.paid_at.remove(&smallest);
        }
        self.paid_at.insert(prefix, now + debt);
        self.by_time.insert((now + debt, prefix));
    }

    /// How many prefixes have a debt.
    pub(crate) fn prefixes(&mut self, now: Instant) -> usize {
        self.forget_paid(now);
        self.paid_at.len()
    }

    fn forget_paid(&mut self, now: Instant) {
        while let Some(&(at, prefix)) = self.by_time.first()
            && at <= now
        {
            self.by_time.pop_first();
            self.paid_at.remove(&prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_start;

    fn prefix(third: u8) -> Prefix {
        Prefix::of_network([192, 0, third, 1].into())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn debts_are_paid_by_time() {
        let (mut debts, now) = (Debts::new(9), test_start());
        assert_eq!((debts.of(now, prefix(1)), debts.prefixes(now)), (Duration::ZERO, 0));
        debts.set(now, prefix(1), 3 * SECOND);
        debts.set(now, prefix(2), SECOND);
        assert_eq!(debts.of(now + SECOND, prefix(1)), 2 * SECOND);
        assert_eq!(debts.of(now + SECOND, prefix(2)), Duration::ZERO);
        assert_eq!(debts.prefixes(now + SECOND), 1);
        debts.set(now + SECOND, prefix(1), SECOND);
        assert_eq!(debts.of(now + SECOND, prefix(1)), SECOND, "it replaces the old one");
        assert_eq!(debts.prefixes(now + 2 * SECOND), 0);
        assert!(debts.paid_at.is_empty() && debts.by_time.is_empty(), "{debts:?}");
    }

    #[test]
    fn the_smallest_debt_is_forgotten_for_lack_of_room() {
        let (mut debts, now) = (Debts::new(3), test_start());
        for (third, seconds) in [(1, 3), (2, 1), (3, 2), (4, 1)] {
            debts.set(now, prefix(third), seconds * SECOND);
        }
        let left = [1, 2, 3, 4].map(|third| debts.of(now, prefix(third)).as_secs());
        assert_eq!(left, [3, 0, 2, 1]);
        debts.set(now, prefix(1), 4 * SECOND);
        assert_eq!(debts.of(now, prefix(4)), SECOND, "a known prefix needs no room");
    }
}
