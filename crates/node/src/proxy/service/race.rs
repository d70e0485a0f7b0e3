//! Happy Eyeballs (RFC 8305): connections to the addresses of a target are tried one after another,
//! with a short delay between them, and the first one that opens is used.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use crate::{quic::earliest, tcp::TcpId};

/// The addresses that are tried. Names have a few; more would only let a name server cost the proxy
/// sockets.
const ADDRESSES_MAX: usize = 8;

/// RFC 8305 §8: the recommended "Connection Attempt Delay".
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The attempts to reach one target.
#[derive(Debug)]
pub(crate) struct Race {
    /// Addresses that were not tried yet.
    left: VecDeque<SocketAddr>,
    running: Vec<(TcpId, SocketAddr)>,
    /// When the next address is tried, although the last attempt may still succeed.
    next: Instant,
    /// When all attempts are given up.
    deadline: Instant,
    last_error: io::ErrorKind,
}

impl Race {
    /// A race among addresses, of which the resolver prefers the first.
    pub(in crate::proxy) fn new(
        addresses: &[IpAddr],
        port: u16,
        now: Instant,
        deadline: Instant,
    ) -> Self {
        let left = interleaved(addresses).map(|ip| SocketAddr::new(ip, port));
        Self {
            left: left.take(ADDRESSES_MAX).collect(),
            running: Vec::new(),
            next: now,
            deadline,
            last_error: io::ErrorKind::TimedOut,
        }
    }

    /// The address to try now, if one is due.
    pub(in crate::proxy) fn due(&self, now: Instant) -> Option<SocketAddr> {
        self.left.front().copied().filter(|_| now >= self.next || self.running.is_empty())
    }

    /// Notes that the address that was due is tried.
    pub(in crate::proxy) fn on_started(&mut self, now: Instant, tcp: TcpId) {
        if let Some(address) = self.left.pop_front() {
            self.running.push((tcp, address));
            self.next = now + ATTEMPT_DELAY;
        }
    }

    /// Notes that the address that was due cannot be tried.
    pub(in crate::proxy) fn skip(&mut self, error: io::ErrorKind) {
        self.left.pop_front();
        self.last_error = error;
    }

    /// Notes that an attempt failed. RFC 8305 §5: the next one then starts at once.
    pub(in crate::proxy) fn on_failed(&mut self, now: Instant, tcp: TcpId, error: io::ErrorKind) {
        self.running.retain(|(running, _)| *running != tcp);
        self.last_error = error;
        self.next = now;
    }

    /// The address of an attempt.
    pub(in crate::proxy) fn address(&self, tcp: TcpId) -> Option<SocketAddr> {
        self.running.iter().find(|(running, _)| *running == tcp).map(|(_, address)| *address)
    }

    /// The attempts that run.
    pub(in crate::proxy) fn running(&self) -> impl Iterator<Item = TcpId> {
        self.running.iter().map(|(tcp, _)| *tcp)
    }

    /// The error of the last attempt, if no attempt is left or the time is over.
    pub(in crate::proxy) fn lost(&self, now: Instant) -> Option<io::ErrorKind> {
        if now >= self.deadline {
            return Some(io::ErrorKind::TimedOut);
        }
        (self.left.is_empty() && self.running.is_empty()).then_some(self.last_error)
    }

    /// When something is due.
    pub(in crate::proxy) fn next_timeout(&self) -> Instant {
        let next = Some(self.next).filter(|_| !self.left.is_empty());
        earliest(next, Some(self.deadline)).unwrap_or(self.deadline)
    }
}

/// The addresses with their families alternating, beginning with the family of the first (RFC 8305
/// §4).
fn interleaved(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let is_first_v6 = addresses.first().is_some_and(IpAddr::is_ipv6);
    let (first, mut second): (VecDeque<_>, VecDeque<_>) =
        addresses.iter().partition::<VecDeque<IpAddr>, _>(|ip| ip.is_ipv6() == is_first_v6);
    let mut merged = Vec::with_capacity(addresses.len());
    for address in first {
        merged.push(address);
        merged.extend(second.pop_front());
    }
    merged.extend(second);
    merged.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_start;

    const PORT: u16 = 443;

    fn addresses(text: &str) -> Vec<IpAddr> {
        text.split(' ').map(|address| address.parse().unwrap()).collect()
    }

    fn race(text: &str, now: Instant) -> Race {
        Race::new(&addresses(text), PORT, now, now + Duration::from_secs(10))
    }

    #[test]
    fn families_alternate_and_begin_with_that_of_the_first_address() {
        for (given, tried) in [
            ("::1 ::2 ::3 1.1.1.1", "::1 1.1.1.1 ::2 ::3"),
            ("1.1.1.1 1.1.1.2 ::1 ::2", "1.1.1.1 ::1 1.1.1.2 ::2"),
            ("1.1.1.1", "1.1.1.1"),
            ("::1 1.1.1.1 1.1.1.2 1.1.1.3", "::1 1.1.1.1 1.1.1.2 1.1.1.3"),
        ] {
            assert_eq!(interleaved(&addresses(given)).collect::<Vec<_>>(), addresses(tried));
        }
    }

    #[test]
    fn the_next_address_is_tried_after_the_delay_or_a_failure() {
        let now = test_start();
        let mut race = race("::1 1.1.1.1 ::2", now);
        let due = |race: &Race, after| race.due(now + after).map(|it| it.ip().to_string());
        let zero = Duration::ZERO;
        assert_eq!(due(&race, zero).as_deref(), Some("::1"));
        race.on_started(now, TcpId(1));
        assert_eq!((due(&race, zero), race.next_timeout()), (None, now + ATTEMPT_DELAY));
        assert_eq!(due(&race, ATTEMPT_DELAY).as_deref(), Some("1.1.1.1"));
        race.on_started(now + ATTEMPT_DELAY, TcpId(2));
        race.on_failed(now + ATTEMPT_DELAY, TcpId(1), io::ErrorKind::ConnectionRefused);
        assert_eq!(due(&race, ATTEMPT_DELAY).as_deref(), Some("::2"), "at once after a failure");
        race.on_started(now + ATTEMPT_DELAY, TcpId(3));
        assert_eq!(race.running().collect::<Vec<_>>(), [TcpId(2), TcpId(3)]);
        assert_eq!(race.address(TcpId(2)).unwrap().to_string(), "1.1.1.1:443");
        assert_eq!(race.lost(now + ATTEMPT_DELAY), None);
    }

    #[test]
    fn a_race_is_lost_with_the_last_error_or_at_its_deadline() {
        let now = test_start();
        let mut lost = race("1.1.1.1 ::1", now);
        for tcp in [TcpId(1), TcpId(2)] {
            assert_eq!(lost.lost(now), None);
            lost.on_started(now, tcp);
            lost.on_failed(now, tcp, io::ErrorKind::ConnectionRefused);
        }
        assert_eq!(lost.lost(now), Some(io::ErrorKind::ConnectionRefused));
        let mut slow = race("1.1.1.1", now);
        slow.on_started(now, TcpId(1));
        let deadline = slow.next_timeout();
        assert_eq!(deadline, now + Duration::from_secs(10));
        assert_eq!(slow.lost(deadline), Some(io::ErrorKind::TimedOut));
    }

    #[test]
    fn only_some_addresses_are_tried() {
        let now = test_start();
        let many = (0..100).map(|last| IpAddr::from([10, 0, 0, last])).collect::<Vec<_>>();
        let race = Race::new(&many, PORT, now, now);
        assert_eq!(race.left.len(), ADDRESSES_MAX);
    }
}
