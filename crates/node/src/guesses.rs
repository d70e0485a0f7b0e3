//! Slows down those who guess tokens and passwords.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::{limits::Limits, prefix::Prefix};

/// The sources from which wrong guesses came. A household counts as one guesser.
///
/// Each source has a token bucket, which is kept as the time at which it will be full again. Each
/// failure moves this time by one interval into the future.
#[derive(Debug)]
pub(crate) struct Guesses {
    full_at: BTreeMap<Prefix, Instant>,
    /// The same entries by time. The first one is the next to be forgotten.
    by_time: BTreeSet<(Instant, Prefix)>,
    sources_max: usize,
    burst: u32,
    interval: Duration,
}

impl Guesses {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            full_at: BTreeMap::new(),
            by_time: BTreeSet::new(),
            sources_max: limits.guess_sources,
            burst: limits.guesses,
            interval: limits.guess_interval,
        }
    }

    /// The time for which no guess of a source is looked at, because too many wrong ones came from it.
    pub(crate) fn wait(&self, now: Instant, source: IpAddr) -> Option<Duration> {
        let full_at = *self.full_at.get(&Prefix::of_household(source))?;
        let wait = (full_at + self.interval).saturating_duration_since(now);
        let wait = wait.saturating_sub(self.interval * self.burst);
        (!wait.is_zero()).then_some(wait)
    }

    /// Counts a wrong guess.
    pub(crate) fn count(&mut self, now: Instant, source: IpAddr) {
        while let Some(&(at, source)) = self.by_time.first()
            && at <= now
        {
            self.by_time.pop_first();
            self.full_at.remove(&source);
        }
        let source = Prefix::of_household(source);
        let old = self.full_at.get(&source).copied();
        if let Some(old) = old {
            self.by_time.remove(&(old, source));
        } else if self.full_at.len() >= self.sources_max
            && let Some((_, quietest)) = self.by_time.pop_first()
        {
            self.full_at.remove(&quietest);
        }
        // Failures of a guesser that does not have to wait could move the time without a limit.
        let latest = now + self.interval * self.burst;
        let full_at = (old.unwrap_or(now) + self.interval).min(latest);
        self.full_at.insert(source, full_at);
        self.by_time.insert((full_at, source));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_start;

    fn ip(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn guesses() -> Guesses {
        let limits =
            Limits { guesses: 3, guess_interval: SECOND, guess_sources: 4, ..Limits::default() };
        Guesses::new(&limits)
    }

    #[test]
    fn a_source_has_a_few_guesses_at_once_and_then_one_a_second() {
        let (mut guesses, now) = (guesses(), test_start());
        for _ in 0..3 {
            assert_eq!(guesses.wait(now, ip("192.0.2.1")), None);
            guesses.count(now, ip("192.0.2.1"));
        }
        assert_eq!(guesses.wait(now, ip("192.0.2.1")), Some(SECOND));
        assert_eq!(guesses.wait(now, ip("192.0.2.2")), None, "another source");
        assert_eq!(guesses.wait(now + SECOND, ip("192.0.2.1")), None);
        guesses.count(now + SECOND, ip("192.0.2.1"));
        assert_eq!(guesses.wait(now + SECOND, ip("192.0.2.1")), Some(SECOND));
        assert_eq!(guesses.wait(now + 4 * SECOND, ip("192.0.2.1")), None);
    }

    #[test]
    fn the_wait_has_a_limit() {
        let (mut guesses, now) = (guesses(), test_start());
        for _ in 0..100 {
            guesses.count(now, ip("192.0.2.1"));
        }
        assert_eq!(guesses.wait(now, ip("192.0.2.1")), Some(SECOND));
    }

    #[test]
    fn a_household_is_one_source() {
        let (mut guesses, now) = (guesses(), test_start());
        for host in ["2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:ff::1"] {
            guesses.count(now, ip(host));
        }
        assert!(guesses.wait(now, ip("2001:db8:0:7::9")).is_some());
        assert_eq!(guesses.wait(now, ip("2001:db8:0:100::1")), None);
        for mapped in ["::ffff:192.0.2.1", "192.0.2.1", "::ffff:192.0.2.1"] {
            guesses.count(now, ip(mapped));
        }
        assert!(guesses.wait(now, ip("192.0.2.1")).is_some());
    }

    #[test]
    fn the_quietest_source_is_forgotten_first() {
        let (mut guesses, now) = (guesses(), test_start());
        for host in 1..=4 {
            for _ in 0..if host == 2 { 1 } else { 3 } {
                guesses.count(now, ip(&format!("192.0.2.{host}")));
            }
        }
        guesses.count(now, ip("192.0.2.5"));
        assert_eq!(guesses.full_at.len(), 4);
        assert!(!guesses.full_at.contains_key(&Prefix::of_household([192, 0, 2, 2].into())));
        for host in [1, 3, 4] {
            assert!(guesses.wait(now, ip(&format!("192.0.2.{host}"))).is_some());
        }
        guesses.count(now + 3 * SECOND, ip("192.0.2.6"));
        assert_eq!((guesses.full_at.len(), guesses.by_time.len()), (1, 1), "the others expired");
    }
}
