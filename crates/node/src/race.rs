//! Happy Eyeballs (RFC 8305), for a proxy and for a client that connects directly: the addresses of a target are tried
//! one after another, with a short delay between them, and the first one that opens is used. Addresses that a name
//! server gives later join the others.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use crate::{
    OsError,
    node::{QueryId, SocketId},
    quic::earliest,
    tcp::TcpId,
};

/// The addresses that are tried. Names have a few; more would only let a name server cost this host
/// sockets.
const ADDRESSES_MAX: usize = 8;

/// RFC 8305 §8: the recommended "Connection Attempt Delay".
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// A look-up of a target's addresses that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LookUp {
    pub(crate) query: QueryId,
    /// When it is given up.
    pub(crate) deadline: Instant,
}

/// Whether further addresses may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Further {
    /// Yes, from this look-up.
    From(LookUp),
    /// No.
    Nothing,
    /// The client has named an IPv4 address, and no look-up was made. If this host has no route to it, one may say at
    /// which address a NAT64 reaches it.
    IfUnroutable,
}

/// What is opened towards an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Attempt {
    /// A socket for UDP payloads.
    Udp(SocketId),
    /// A TCP connection.
    Tcp(TcpId),
}

/// The attempts to reach one target.
#[derive(Debug)]
pub(crate) struct Race {
    port: u16,
    /// The addresses that take part, tried or not. There are few.
    known: Vec<IpAddr>,
    /// Addresses that were not tried yet.
    left: VecDeque<SocketAddr>,
    running: Vec<(Attempt, SocketAddr)>,
    /// When the next address is tried, although the last attempt may still succeed.
    next: Instant,
    /// When all attempts are given up.
    deadline: Instant,
    further: Further,
    last_error: OsError,
}

impl Race {
    /// A race without addresses, whose attempts are given up at the deadline.
    pub(crate) fn new(now: Instant, deadline: Instant, port: u16) -> Self {
        Self {
            port,
            known: Vec::new(),
            left: VecDeque::new(),
            running: Vec::new(),
            next: now,
            deadline,
            further: Further::Nothing,
            last_error: io::ErrorKind::TimedOut.into(),
        }
    }

    /// Adds addresses, of which the resolver prefers the first. Each address is tried once.
    pub(crate) fn add(&mut self, addresses: &[IpAddr], deadline: Instant) {
        let before = self.known.len();
        for address in interleaved(addresses) {
            if self.known.len() < ADDRESSES_MAX && !self.known.contains(&address) {
                self.known.push(address);
                self.left.push_back(SocketAddr::new(address, self.port));
            }
        }
        if self.known.len() > before {
            self.deadline = self.deadline.max(deadline);
        }
    }

    /// Says whether further addresses may come.
    pub(crate) const fn expect(&mut self, further: Further) {
        self.further = further;
    }

    /// The look-up from which further addresses may come.
    pub(crate) const fn look_up(&self) -> Option<LookUp> {
        match self.further {
            Further::From(look_up) => Some(look_up),
            Further::Nothing | Further::IfUnroutable => None,
        }
    }

    /// Whether a look-up may now find another address for the one that the client has named. It is said once.
    pub(crate) fn wants_nat64(&mut self) -> bool {
        let wants = self.further == Further::IfUnroutable
            && self.is_idle()
            && self.last_error.is_unroutable();
        if wants {
            self.further = Further::Nothing;
        }
        wants
    }

    fn is_idle(&self) -> bool {
        self.left.is_empty() && self.running.is_empty()
    }

    /// The address to try now, if one is due.
    pub(crate) fn due(&self, now: Instant) -> Option<SocketAddr> {
        self.left.front().copied().filter(|_| now >= self.next || self.running.is_empty())
    }

    /// Notes that the address that was due is tried.
    pub(crate) fn on_started(&mut self, now: Instant, attempt: Attempt) {
        if let Some(address) = self.left.pop_front() {
            self.running.push((attempt, address));
            self.next = now + ATTEMPT_DELAY;
        }
    }

    /// Notes that the address that was due cannot be tried.
    pub(crate) fn skip(&mut self, error: OsError) {
        self.left.pop_front();
        self.last_error = error;
    }

    /// Notes that an attempt failed. RFC 8305 §5: the next one then starts at once.
    pub(crate) fn on_failed(&mut self, now: Instant, attempt: Attempt, error: OsError) {
        self.running.retain(|(running, _)| *running != attempt);
        self.last_error = error;
        self.next = now;
    }

    /// Forgets the attempts that run, of which one is used.
    pub(crate) fn end_attempts(&mut self) {
        self.running.clear();
    }

    /// Whether an address is left that was not tried, or may come.
    pub(crate) fn may_go_on(&self) -> bool {
        !self.left.is_empty() || self.look_up().is_some()
    }

    /// The error of the last attempt.
    pub(crate) const fn last_error(&self) -> OsError {
        self.last_error
    }

    /// The address of an attempt.
    pub(crate) fn address(&self, attempt: Attempt) -> Option<SocketAddr> {
        self.running.iter().find(|(running, _)| *running == attempt).map(|(_, address)| *address)
    }

    /// The attempts that run.
    pub(crate) fn running(&self) -> impl Iterator<Item = Attempt> {
        self.running.iter().map(|(attempt, _)| *attempt)
    }

    /// The error of the last attempt, if no attempt is left and no address may come, or if the time is over.
    pub(crate) fn lost(&self, now: Instant) -> Option<OsError> {
        if self.is_idle() {
            let is_waiting = self.look_up().is_some_and(|look_up| now < look_up.deadline);
            return (!is_waiting).then_some(self.last_error);
        }
        (now >= self.deadline).then(|| io::ErrorKind::TimedOut.into())
    }

    /// When something is due.
    pub(crate) fn next_timeout(&self) -> Instant {
        if self.is_idle() {
            return self.look_up().map_or(self.next, |look_up| look_up.deadline);
        }
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
        let deadline = now + Duration::from_secs(10);
        let mut race = Race::new(now, deadline, PORT);
        race.add(&addresses(text), deadline);
        race
    }

    const fn tcp(id: u64) -> Attempt {
        Attempt::Tcp(TcpId(id))
    }

    const REFUSED: OsError = OsError { kind: io::ErrorKind::ConnectionRefused, number: Some(111) };

    const UNROUTABLE: OsError =
        OsError { kind: io::ErrorKind::NetworkUnreachable, number: Some(101) };

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
        race.on_started(now, tcp(1));
        assert_eq!((due(&race, zero), race.next_timeout()), (None, now + ATTEMPT_DELAY));
        assert_eq!(due(&race, ATTEMPT_DELAY).as_deref(), Some("1.1.1.1"));
        race.on_started(now + ATTEMPT_DELAY, tcp(2));
        race.on_failed(now + ATTEMPT_DELAY, tcp(1), REFUSED);
        assert_eq!(due(&race, ATTEMPT_DELAY).as_deref(), Some("::2"), "at once after a failure");
        race.on_started(now + ATTEMPT_DELAY, tcp(3));
        assert_eq!(race.running().collect::<Vec<_>>(), [tcp(2), tcp(3)]);
        assert_eq!(race.address(tcp(2)).unwrap().to_string(), "1.1.1.1:443");
        assert_eq!(race.lost(now + ATTEMPT_DELAY), None);
    }

    #[test]
    fn a_race_is_lost_with_the_last_error_or_at_its_deadline() {
        let now = test_start();
        let mut lost = race("1.1.1.1 ::1", now);
        for attempt in [tcp(1), tcp(2)] {
            assert_eq!(lost.lost(now), None);
            lost.on_started(now, attempt);
            lost.on_failed(now, attempt, REFUSED);
        }
        assert_eq!(lost.lost(now), Some(REFUSED));
        let mut slow = race("1.1.1.1", now);
        slow.on_started(now, tcp(1));
        let deadline = slow.next_timeout();
        assert_eq!(deadline, now + Duration::from_secs(10));
        assert_eq!(slow.lost(deadline), Some(io::ErrorKind::TimedOut.into()));
    }

    #[test]
    fn only_some_addresses_are_tried() {
        let now = test_start();
        let many = (0..100).map(|last| IpAddr::from([10, 0, 0, last])).collect::<Vec<_>>();
        let mut race = Race::new(now, now, PORT);
        race.add(&many, now);
        assert_eq!(race.left.len(), ADDRESSES_MAX);
    }

    #[test]
    fn addresses_that_come_late_are_tried_once_and_awaited() {
        let now = test_start();
        let mut race = race("::1", now);
        let look_up = LookUp { query: QueryId(1), deadline: now + Duration::from_secs(12) };
        race.expect(Further::From(look_up));
        race.on_started(now, tcp(1));
        race.on_failed(now, tcp(1), UNROUTABLE);
        assert_eq!((race.lost(now), race.next_timeout()), (None, look_up.deadline));
        assert_eq!(race.lost(look_up.deadline), Some(UNROUTABLE), "they never came");
        let late = now + Duration::from_secs(11);
        race.add(&addresses("::1 1.1.1.1"), late + Duration::from_secs(10));
        race.expect(Further::Nothing);
        assert_eq!(race.due(late).unwrap().to_string(), "1.1.1.1:443", "at once");
        race.on_started(late, tcp(2));
        assert_eq!(race.lost(late), None, "it has its whole time");
        race.on_failed(late, tcp(2), REFUSED);
        assert_eq!(race.lost(late), Some(REFUSED));
    }

    #[test]
    fn a_late_address_waits_for_its_turn_beside_an_attempt_that_runs() {
        let now = test_start();
        let mut race = race("1.1.1.1", now);
        race.on_started(now, tcp(1));
        race.add(&addresses("::1 1.1.1.1"), now);
        assert_eq!((race.due(now), race.next_timeout()), (None, now + ATTEMPT_DELAY));
        assert_eq!(race.due(now + ATTEMPT_DELAY).unwrap().to_string(), "[::1]:443");
    }

    #[test]
    fn a_literal_without_a_route_is_looked_up_once() {
        let now = test_start();
        let mut race = race("1.1.1.1", now);
        race.expect(Further::IfUnroutable);
        assert!(!race.wants_nat64());
        race.on_started(now, tcp(1));
        race.on_failed(now, tcp(1), UNROUTABLE);
        assert!(race.wants_nat64() && !race.wants_nat64());
        let mut refused = self::race("1.1.1.1", now);
        refused.expect(Further::IfUnroutable);
        refused.on_started(now, tcp(1));
        refused.on_failed(now, tcp(1), REFUSED);
        assert!(!refused.wants_nat64());
    }
}
