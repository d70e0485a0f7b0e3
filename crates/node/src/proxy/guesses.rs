//! Slows down clients that guess tokens.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::access::User;
use crate::{limits::Limits, prefix::Prefix};

/// What a connection has shown of its right to use the proxy.
#[derive(Debug)]
pub(super) struct Standing {
    /// The address from which the client opened the connection. The handshake has shown that the
    /// client receives there. An address that the connection moves to later is not used, because
    /// the client can forge it for a moment.
    pub(super) client: SocketAddr,
    /// Who sent the last permitted request.
    pub(super) user: Option<User>,
    /// Requests with a wrong token, and requests whose token the proxy did not look at.
    failures: u32,
    /// Whether the connection has sent a request without a token.
    has_asked: bool,
}

impl Standing {
    pub(super) fn new(client: SocketAddr) -> Self {
        Self { client, user: None, failures: 0, has_asked: false }
    }
}

/// The sources from which requests with wrong tokens came. A household counts as one guesser.
///
/// Each source has a token bucket, which is kept as the time at which it will be full again. Each
/// failure moves this time by one interval into the future.
#[derive(Debug)]
pub(super) struct Guesses {
    full_at: BTreeMap<Prefix, Instant>,
    /// The same entries by time. The first one is the next to be forgotten.
    by_time: BTreeSet<(Instant, Prefix)>,
    sources_max: usize,
    burst: u32,
    interval: Duration,
    failures_max: u32,
}

impl Guesses {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            full_at: BTreeMap::new(),
            by_time: BTreeSet::new(),
            sources_max: limits.guess_sources,
            burst: limits.guesses,
            interval: limits.guess_interval,
            failures_max: limits.guesses_per_connection,
        }
    }

    /// The time for which the proxy looks at no token of a connection, because too many wrong ones
    /// came from its source. It does look at those of a connection that has shown a right one.
    pub(super) fn wait(&self, now: Instant, standing: &Standing) -> Option<Duration> {
        if standing.user.is_some() {
            return None;
        }
        let full_at = *self.full_at.get(&Prefix::of_household(standing.client.ip()))?;
        let wait = (full_at + self.interval).saturating_duration_since(now);
        let wait = wait.saturating_sub(self.interval * self.burst);
        (!wait.is_zero()).then_some(wait)
    }

    /// Counts a wrong token.
    pub(super) fn on_wrong(&mut self, now: Instant, standing: &mut Standing) {
        standing.failures += 1;
        self.count(now, standing);
    }

    /// Counts a request without a token. The first one of a connection is no failure: browsers wait
    /// for the answer 407 before they show a token.
    pub(super) fn on_missing(&mut self, now: Instant, standing: &mut Standing) {
        if std::mem::replace(&mut standing.has_asked, true) {
            self.count(now, standing);
        }
    }

    /// Counts a request whose token the proxy did not look at. It costs the source nothing, so that
    /// a client that comes back too early does not have to wait for longer.
    pub(super) fn on_ignored(standing: &mut Standing) {
        standing.failures += 1;
    }

    /// Whether a connection has failed so often that the proxy closes it.
    pub(super) fn is_over(&self, standing: &Standing) -> bool {
        standing.failures >= self.failures_max
    }

    fn count(&mut self, now: Instant, standing: &Standing) {
        while let Some(&(at, source)) = self.by_time.first()
            && at <= now
        {
            self.by_time.pop_first();
            self.full_at.remove(&source);
        }
        let source = Prefix::of_household(standing.client.ip());
        let old = self.full_at.get(&source).copied();
        if let Some(old) = old {
            self.by_time.remove(&(old, source));
        } else if self.full_at.len() >= self.sources_max
            && let Some((_, quietest)) = self.by_time.pop_first()
        {
            self.full_at.remove(&quietest);
        }
        // Failures on connections with a right token could move the time without a limit.
        let latest = now + self.interval * self.burst;
        let full_at = (old.unwrap_or(now) + self.interval).min(latest);
        self.full_at.insert(source, full_at);
        self.by_time.insert((full_at, source));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: &str) -> Standing {
        Standing::new(SocketAddr::new(address.parse().unwrap(), 1))
    }

    #[expect(clippy::disallowed_methods, reason = "only differences of times matter")]
    fn start() -> Instant {
        Instant::now()
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn guesses() -> Guesses {
        Guesses::new(&Limits {
            guesses: 3,
            guess_interval: SECOND,
            guess_sources: 4,
            guesses_per_connection: 2,
            ..Limits::default()
        })
    }

    #[test]
    fn a_source_has_a_few_guesses_at_once_and_then_one_a_second() {
        let (mut guesses, now) = (guesses(), start());
        for _ in 0..3 {
            assert_eq!(guesses.wait(now, &from("192.0.2.1")), None);
            guesses.on_wrong(now, &mut from("192.0.2.1"));
        }
        assert_eq!(guesses.wait(now, &from("192.0.2.1")), Some(SECOND));
        assert_eq!(guesses.wait(now, &from("192.0.2.2")), None, "another source");
        assert_eq!(guesses.wait(now + SECOND, &from("192.0.2.1")), None);
        guesses.on_wrong(now + SECOND, &mut from("192.0.2.1"));
        assert_eq!(guesses.wait(now + SECOND, &from("192.0.2.1")), Some(SECOND));
        assert_eq!(guesses.wait(now + 4 * SECOND, &from("192.0.2.1")), None);
    }

    #[test]
    fn a_household_is_one_source() {
        let (mut guesses, now) = (guesses(), start());
        for host in ["2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:ff::1"] {
            guesses.on_wrong(now, &mut from(host));
        }
        assert!(guesses.wait(now, &from("2001:db8:0:7::9")).is_some());
        assert_eq!(guesses.wait(now, &from("2001:db8:0:100::1")), None);
        for mapped in ["::ffff:192.0.2.1", "192.0.2.1", "::ffff:192.0.2.1"] {
            guesses.on_wrong(now, &mut from(mapped));
        }
        assert!(guesses.wait(now, &from("192.0.2.1")).is_some());
    }

    #[test]
    fn who_has_shown_a_token_does_not_wait_for_guessing_neighbours() {
        let (mut guesses, now) = (guesses(), start());
        let mut proven = from("192.0.2.1");
        proven.user = Some(User::Anyone);
        for _ in 0..100 {
            guesses.on_wrong(now, &mut proven);
        }
        assert_eq!(guesses.wait(now, &proven), None);
        assert!(guesses.is_over(&proven), "but for its own guesses it is closed");
        let neighbour = from("192.0.2.1");
        assert_eq!(guesses.wait(now, &neighbour), Some(SECOND), "the wait has a limit");
    }

    #[test]
    fn the_first_request_without_a_token_is_free() {
        let (mut guesses, now) = (guesses(), start());
        for _ in 0..10 {
            guesses.on_missing(now, &mut from("192.0.2.1"));
        }
        assert_eq!(guesses.wait(now, &from("192.0.2.1")), None);
        let mut asking = from("192.0.2.1");
        for _ in 0..4 {
            guesses.on_missing(now, &mut asking);
        }
        assert_eq!(guesses.wait(now, &asking), Some(SECOND));
        assert!(!guesses.is_over(&asking), "it has guessed nothing");
        Guesses::on_ignored(&mut asking);
        Guesses::on_ignored(&mut asking);
        assert!(guesses.is_over(&asking));
    }

    #[test]
    fn the_quietest_source_is_forgotten_first() {
        let (mut guesses, now) = (guesses(), start());
        for host in 1..=4 {
            for _ in 0..if host == 2 { 1 } else { 3 } {
                guesses.on_wrong(now, &mut from(&format!("192.0.2.{host}")));
            }
        }
        guesses.on_wrong(now, &mut from("192.0.2.5"));
        assert_eq!(guesses.full_at.len(), 4);
        assert!(!guesses.full_at.contains_key(&Prefix::of_household([192, 0, 2, 2].into())));
        for host in [1, 3, 4] {
            assert!(guesses.wait(now, &from(&format!("192.0.2.{host}"))).is_some());
        }
        guesses.on_wrong(now + 3 * SECOND, &mut from("192.0.2.6"));
        assert_eq!((guesses.full_at.len(), guesses.by_time.len()), (1, 1), "the others expired");
    }
}
