//! When a client tries again after a failure.

use std::time::Duration;

use rand::RngCore;

use crate::{
    limits::Limits,
    quic::{Generator, rng},
};

/// The random choices of all waits of one client.
pub(in crate::client) struct Jitter(Generator);

impl Jitter {
    /// A seed makes the choices repeatable.
    pub(in crate::client) fn new(seed: Option<u64>) -> Self {
        /// Lets the choices differ from those of connections with the same seed.
        const PART: u64 = 1 << 60;
        Self(rng(seed.map(|seed| seed.wrapping_add(PART))))
    }

    /// The generator, for other choices of the client.
    pub(in crate::client) fn generator(&mut self) -> &mut Generator {
        &mut self.0
    }
}

/// The waits between attempts that fail one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::client) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Counts a failure. Returns how long to wait before the next attempt.
    ///
    /// The wait doubles with each failure up to a limit. A random part of up to a half is taken off,
    /// so that the clients of a server that restarts do not all come back at the same moment. A
    /// server may ask for a longer wait (`Retry-After`, RFC 9110 §10.2.3).
    pub(in crate::client) fn after_failure(
        &mut self,
        limits: &Limits,
        jitter: &mut Jitter,
        asked: Option<Duration>,
    ) -> Duration {
        let doublings = self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        let longest = limits.retry_wait.saturating_mul(1 << doublings).min(limits.retry_wait_max);
        let half = longest / 2;
        let share = (half.as_nanos() * u128::from(jitter.0.next_u32())) >> 32;
        let wait = half + Duration::from_nanos(u64::try_from(share).unwrap_or(u64::MAX));
        wait.max(asked.unwrap_or_default().min(limits.retry_after_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_differ_by_chance() {
        let limits = Limits::default();
        let waits = |seed| {
            let (mut backoff, mut jitter) = (Backoff::default(), Jitter::new(Some(seed)));
            (0..40).map(|_| backoff.after_failure(&limits, &mut jitter, None)).collect::<Vec<_>>()
        };
        let first = waits(1);
        for (number, wait) in (0..).zip(&first) {
            let longest = (limits.retry_wait * (1 << number.min(8))).min(limits.retry_wait_max);
            assert!((longest / 2..=longest).contains(wait), "number {number}: {wait:?}");
        }
        assert_eq!(first, waits(1));
        assert_ne!(first, waits(2));
    }

    #[test]
    fn a_server_may_ask_for_a_longer_wait() {
        let (limits, mut jitter) = (Limits::default(), Jitter::new(Some(1)));
        let asked = Duration::from_secs(20);
        for (asked, agreed) in [(asked, asked), (Duration::MAX, limits.retry_after_max)] {
            let wait = Backoff::default().after_failure(&limits, &mut jitter, Some(asked));
            assert_eq!(wait, agreed);
        }
    }
}
