//! Slows down those who guess tokens and passwords.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::{debts::Debts, limits::Limits, prefix::Prefix};

/// The sources from which wrong guesses came. A household counts as one guesser.
///
/// Each source has a token bucket. Each failure adds one interval to its debt.
#[derive(Debug)]
pub(crate) struct Guesses {
    debts: Debts,
    burst: u32,
    interval: Duration,
}

impl Guesses {
    pub(crate) const fn new(limits: &Limits) -> Self {
        Self {
            debts: Debts::new(limits.guess_sources),
            burst: limits.guesses,
            interval: limits.guess_interval,
        }
    }

    /// The time for which no guess of a source is looked at, because too many wrong ones came from it.
    pub(crate) fn wait(&self, now: Instant, source: IpAddr) -> Option<Duration> {
        let debt = self.debts.of(now, Prefix::of_household(source));
        let wait = (debt + self.interval).saturating_sub(self.interval * self.burst);
        (!debt.is_zero() && !wait.is_zero()).then_some(wait)
    }

    /// Counts a wrong guess.
    pub(crate) fn count(&mut self, now: Instant, source: IpAddr) {
        let source = Prefix::of_household(source);
        // Failures of a guesser that does not have to wait could let the debt grow without a limit.
        let most = self.interval * self.burst;
        let debt = (self.debts.of(now, source) + self.interval).min(most);
        self.debts.set(now, source, debt);
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
        assert_eq!(guesses.debts.prefixes(now), 4);
        let quietest = Prefix::of_household([192, 0, 2, 2].into());
        assert!(guesses.debts.of(now, quietest).is_zero());
        for host in [1, 3, 4] {
            assert!(guesses.wait(now, ip(&format!("192.0.2.{host}"))).is_some());
        }
        guesses.count(now + 3 * SECOND, ip("192.0.2.6"));
        assert_eq!(guesses.debts.prefixes(now + 3 * SECOND), 1, "the others expired");
    }
}
