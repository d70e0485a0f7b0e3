//! The race for the first peer: which addresses are tried, when, and which one wins.
//!
//! Where a hop has several proxies, or a proxy several addresses, the client opens connections to a few of
//! them, one shortly after the other (RFC 8305 §5), and keeps the one with the shortest handshake.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use rand::seq::SliceRandom;

use crate::client::chain::Peer;
use crate::{
    error::ClientError,
    node::{Progress, ServiceEndpoint, SocketId},
    quic::{self, Generator},
};

/// The most connections that are being opened at the same time. Each costs a proxy a handshake, and a
/// client gains little from more: of three, the nearest is usually near.
pub(super) const ATTEMPTS_MAX: usize = 3;

/// The most addresses of a proxy, and the most attempts of a race. More would take minutes.
const CANDIDATES_MAX: usize = 32;

/// The interval between attempts that are equally good. It is short, so that the nearest is found, and not
/// the first of the list.
///
/// RFC 8305 §5: "a subsequent connection MUST NOT be started within 10 milliseconds of the previous
/// attempt."
const STAGGER: Duration = Duration::from_millis(10);

/// The interval before an attempt that is less good than the one before it: a larger `SvcPriority`, or a further
/// address of the same server. It is the Connection Attempt Delay of RFC 8305 §8.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The time without an answer after which an attempt makes way for the next, if there is one: the Maximum
/// Connection Attempt Delay of RFC 8305 §8.
const PATIENCE: Duration = Duration::from_secs(2);

/// How good a candidate is before it has been tried; the least is the best. It consists of its place among the
/// `SvcPriority` values of its name, and its place among the addresses of its server.
type Rank = (usize, usize);

/// An address at which a proxy of the first hop may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The place of the proxy in the list of the hop.
    pub(super) proxy: usize,
    pub(super) address: SocketAddr,
    rank: Rank,
}

/// What the client has learned about the candidates.
#[derive(Default)]
pub(super) struct CandidateMemory {
    /// The newest endpoints of each proxy.
    answers: BTreeMap<usize, Vec<ServiceEndpoint>>,
    /// How long the last handshake with an address took.
    handshakes: BTreeMap<SocketAddr, Duration>,
    /// The addresses that have failed since the client last had a tunnel.
    failed: BTreeSet<SocketAddr>,
    /// The configurations for an Encrypted `ClientHello` that servers have rejected, and what they take instead.
    rejected: BTreeMap<SocketAddr, (Bytes, Option<Bytes>)>,
}

impl CandidateMemory {
    /// Takes the endpoints of a proxy. Those of the same priority come in random order.
    pub(super) fn learn(
        &mut self,
        proxy: usize,
        mut endpoints: Vec<ServiceEndpoint>,
        random: &mut Generator,
    ) {
        // RFC 9460 §2.4.1: "clients SHOULD apply a random shuffle within a priority level to the records
        // before using them, to ensure uniform load-balancing."
        if endpoints.len() > 1 {
            endpoints.shuffle(random);
        }
        endpoints.sort_by_key(|endpoint| endpoint.priority);
        let mut room = CANDIDATES_MAX;
        for endpoint in &mut endpoints {
            endpoint.addresses.truncate(room);
            room -= endpoint.addresses.len();
        }
        self.answers.insert(proxy, endpoints);
        let Self { answers, handshakes, rejected, .. } = self;
        let known = |address: &SocketAddr| {
            answers.values().flatten().any(|endpoint| endpoint.addresses.contains(address))
        };
        handshakes.retain(|address, _| known(address));
        rejected.retain(|address, _| known(address));
    }

    /// The candidates of one proxy that have not failed since the client last had a tunnel.
    pub(super) fn candidates(&self, proxy: usize) -> Vec<Candidate> {
        let endpoints = self.answers.get(&proxy).map_or(&[][..], Vec::as_slice);
        let mut candidates = Vec::new();
        let (mut priority, mut last) = (0, None);
        for endpoint in endpoints {
            if last.replace(endpoint.priority).is_some_and(|last| last != endpoint.priority) {
                priority += 1;
            }
            for (place, address) in endpoint.addresses.iter().copied().enumerate() {
                candidates.push(Candidate { proxy, address, rank: (priority, place) });
            }
        }
        candidates.retain(|candidate| !self.failed.contains(&candidate.address));
        candidates
    }

    /// The configurations with which a candidate takes an Encrypted `ClientHello`.
    pub(super) fn ech(&self, candidate: Candidate) -> Option<&Bytes> {
        let told = self.told_ech(candidate)?;
        match self.rejected.get(&candidate.address) {
            Some((rejected, instead)) if rejected == told => instead.as_ref(),
            _ => Some(told),
        }
    }

    fn told_ech(&self, candidate: Candidate) -> Option<&Bytes> {
        let endpoints = self.answers.get(&candidate.proxy)?;
        let endpoint = endpoints.iter().find(|it| it.addresses.contains(&candidate.address))?;
        endpoint.ech.as_ref()
    }

    /// Notes that a candidate has rejected an Encrypted `ClientHello`, and what it takes instead. Returns whether the
    /// candidate should be tried again: it has not rejected what it was told to take before.
    ///
    /// RFC 9849 §6.1.6: a client does not retry more than once with what a server has sent instead.
    pub(super) fn on_ech_rejected(&mut self, candidate: Candidate, instead: Option<Bytes>) -> bool {
        let Some(told) = self.told_ech(candidate).cloned() else { return false }; // a newer answer has none
        let known = self.rejected.get(&candidate.address);
        let is_first = known.is_none_or(|(rejected, _)| *rejected != told);
        self.rejected.insert(candidate.address, (told, instead.filter(|_| is_first)));
        is_first
    }

    /// Whether a known candidate has not failed since the client last had a tunnel.
    pub(super) fn has_untried(&self) -> bool {
        let mut addresses = self.answers.values().flatten().flat_map(|e| &e.addresses);
        addresses.any(|address| !self.failed.contains(address))
    }

    /// Whether there is another address than this one.
    pub(super) fn has_other(&self, than: SocketAddr) -> bool {
        let mut addresses = self.answers.values().flatten().flat_map(|e| &e.addresses);
        addresses.any(|address| *address != than)
    }

    pub(super) fn on_failed(&mut self, address: SocketAddr) {
        self.handshakes.remove(&address);
        self.failed.insert(address);
    }

    /// Lets all candidates be tried again.
    pub(super) fn forgive(&mut self) {
        self.failed.clear();
    }

    /// Whether endpoints of this proxy are known.
    pub(super) fn knows(&self, proxy: usize) -> bool {
        self.answers.contains_key(&proxy)
    }

    pub(super) fn forget(&mut self, proxy: usize) {
        self.answers.remove(&proxy);
    }

    pub(super) fn on_connected(&mut self, address: SocketAddr, handshake: Duration) {
        self.handshakes.insert(address, handshake);
    }

    fn order(&self, candidate: &Candidate) -> (Rank, Duration) {
        let handshake = self.handshakes.get(&candidate.address).copied();
        (candidate.rank, handshake.unwrap_or(Duration::MAX))
    }
}

/// A connection that is being opened.
pub(super) struct Attempt {
    pub(super) candidate: Candidate,
    pub(super) socket: SocketId,
    /// The local address of the socket, once it is open.
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Peer,
    pub(super) began: Instant,
}

/// Why the client looks for another proxy although it has a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The proxy has said that it takes no more requests.
    Draining,
    /// Nothing has come from the proxy since this time.
    Silent(Instant),
}

/// What the client watches of the proxy in use.
#[derive(Default)]
pub(super) struct ProxyWatch {
    /// When something last came from it.
    pub(super) heard: Option<Instant>,
    /// When something had last come when the client began to look for another.
    pub(super) missed: Option<Instant>,
    /// Whether it takes no more requests.
    pub(super) is_draining: bool,
    /// Whether the client knows another address.
    pub(super) has_other: bool,
}

/// A race that is running, or none.
#[derive(Default)]
pub(super) struct Race {
    /// The proxies whose endpoints are being looked up.
    pub(super) unresolved: BTreeSet<usize>,
    /// The candidates that have not been tried.
    waiting: Vec<Candidate>,
    pub(super) attempts: Vec<Attempt>,
    /// When the last attempt began.
    last: Option<Instant>,
    /// How good it seemed. `None`: an attempt has failed since, so that the next one need not wait long.
    last_rank: Option<Rank>,
    /// When the next attempt begins.
    next: Option<Instant>,
    /// The number of attempts so far.
    begun: u64,
    /// The address to which the client has a connection, and why it would leave that for another one.
    pub(super) beside: Option<(SocketAddr, Reason)>,
    /// Why attempts have failed. A reason that may pass is kept rather than another.
    error: Option<ClientError>,
}

impl Race {
    /// A race beside a connection.
    pub(super) fn beside(address: SocketAddr, reason: Reason) -> Self {
        // The first attempt makes other random choices than the connection.
        Self { beside: Some((address, reason)), begun: 1, ..Self::default() }
    }

    /// Whether a race is running.
    pub(super) fn is_running(&self) -> bool {
        !(self.unresolved.is_empty() && self.waiting.is_empty() && self.attempts.is_empty())
    }

    /// Notes an answer about the endpoints of a proxy. Returns whether the race waits for it. It goes on waiting if
    /// endpoints may still come.
    pub(super) fn on_answer(&mut self, proxy: usize, progress: Progress) -> bool {
        match progress {
            Progress::Partial => self.unresolved.contains(&proxy),
            Progress::Complete => self.unresolved.remove(&proxy),
        }
    }

    /// The candidate of an attempt that failed because this host has no route to IPv4 addresses.
    pub(super) fn unroutable(&self, index: usize, error: &ClientError) -> Option<Candidate> {
        let ClientError::Socket(error) = error else { return None }; // it had a route
        let candidate = self.attempts.get(index)?.candidate;
        (error.is_unroutable() && candidate.address.is_ipv4()).then_some(candidate)
    }

    /// Adds candidates. Each address of a proxy is tried once.
    pub(super) fn add(&mut self, candidates: Vec<Candidate>) {
        let left = self.beside.map(|(address, _)| address);
        for candidate in candidates {
            let is_same = |other: &Candidate| {
                (other.proxy, other.address) == (candidate.proxy, candidate.address)
            };
            let is_known = self.waiting.iter().any(is_same)
                || self.attempts.iter().any(|attempt| is_same(&attempt.candidate));
            if !is_known && Some(candidate.address) != left {
                self.waiting.push(candidate);
            }
        }
    }

    /// Lets a candidate be tried again, as soon as its turn comes.
    pub(super) fn again(&mut self, candidate: Candidate) {
        self.waiting.push(candidate);
    }

    /// Whether no candidate is known, nor will be.
    pub(super) fn has_nobody(&self) -> bool {
        !self.is_running() && self.begun == 0 && self.error.is_none() && self.beside.is_none()
    }

    /// Whether several candidates take part.
    pub(super) fn is_contest(&self) -> bool {
        self.begun > 1 || !self.waiting.is_empty()
    }

    /// Takes out an attempt that has failed.
    pub(super) fn take_failed(&mut self, index: usize) -> Attempt {
        self.last_rank = None;
        self.attempts.remove(index)
    }

    /// Notes why there is no connection to a candidate.
    pub(super) fn on_error(&mut self, error: ClientError) {
        if self.error.as_ref().is_none_or(|known| !known.may_pass(false) && error.may_pass(false)) {
            self.error = Some(error);
        }
    }

    /// Why the race is lost, if it is.
    pub(super) fn take_error(&mut self) -> Option<ClientError> {
        if self.is_running() { None } else { self.error.take() }
    }

    /// The attempt that uses this socket.
    pub(super) fn position(&self, socket: SocketId) -> Option<usize> {
        self.attempts.iter().position(|attempt| attempt.socket == socket)
    }

    /// Takes the candidate of which the attempt is due. Returns the number of the attempt too.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        memory: &CandidateMemory,
    ) -> Option<(u64, Candidate)> {
        let order = |index: &usize| self.waiting.get(*index).map(|next| memory.order(next));
        let best = (0..self.waiting.len()).min_by_key(order)?;
        let rank = self.waiting.get(best)?.rank;
        self.next = None;
        if self.has_connected() {
            return None; // one is good enough, and those that run are compared with it
        }
        let is_equal = self.last_rank.is_none_or(|last| last == rank);
        let delay = if is_equal { STAGGER } else { ATTEMPT_DELAY };
        let turn = self.last.map_or(now, |began| began + delay);
        let start = turn.max(self.room_at().unwrap_or(turn));
        if start > now {
            self.next = Some(start);
            return None;
        }
        (self.last, self.last_rank) = (Some(now), Some(rank));
        let next = self.waiting.remove(best); // the others stay in the order of the list
        self.begun += 1;
        if self.begun >= CANDIDATES_MAX as u64 {
            self.waiting.clear();
        }
        Some((self.begun - 1, next))
    }

    fn has_connected(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.peer.is_connected())
    }

    /// When the oldest attempt makes way for another. `None`: there is room.
    fn room_at(&self) -> Option<Instant> {
        let oldest = self.attempts.first().filter(|_| self.attempts.len() >= ATTEMPTS_MAX)?;
        Some(oldest.began + PATIENCE)
    }

    /// The attempt that makes way for another, and how long it had.
    pub(super) fn makes_way(&self, now: Instant) -> Option<(usize, Duration)> {
        let is_due = self.room_at().is_some_and(|at| at <= now);
        let is_wanted = is_due && !self.waiting.is_empty() && !self.has_connected();
        is_wanted.then_some((0, PATIENCE))
    }

    /// The attempt that wins, and when that is certain. Another attempt can only be nearer while it has taken
    /// less time than the fastest.
    fn verdict(&self) -> Option<(usize, Option<Instant>)> {
        let fastest = self.attempts.iter().filter_map(|attempt| attempt.peer.handshake()).min()?;
        let connected = |(index, attempt): (usize, &Attempt)| {
            Some(((attempt.candidate.rank, attempt.peer.handshake()?), index))
        };
        let (_, winner) = self.attempts.iter().enumerate().filter_map(connected).min()?;
        let open = self.attempts.iter().filter(|attempt| !attempt.peer.is_connected());
        let until = open.map(|open| open.peer.started().unwrap_or(open.began) + fastest).max();
        Some((winner, until))
    }

    /// The attempt that has won.
    pub(super) fn winner(&self, now: Instant) -> Option<usize> {
        let (winner, until) = self.verdict()?;
        until.is_none_or(|until| until <= now).then_some(winner)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        if self.attempts.is_empty() {
            return self.next;
        }
        let until = self.verdict().and_then(|(_, until)| until);
        let peers = self.attempts.iter().map(|attempt| attempt.peer.next_timeout());
        peers.fold(quic::earliest(until, self.next), quic::earliest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::rng;

    fn endpoint(priority: u16, addresses: &[&str]) -> ServiceEndpoint {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        ServiceEndpoint { priority, addresses, ech: None }
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// The addresses in the order in which they are tried, and when, if nothing answers.
    #[expect(clippy::disallowed_methods, reason = "the time does not matter")]
    fn starts(memory: &CandidateMemory, proxies: usize) -> Vec<(u64, SocketAddr)> {
        let (mut race, start) = (Race::default(), Instant::now());
        for proxy in 0..proxies {
            race.add(memory.candidates(proxy));
        }
        let (mut now, mut starts) = (start, Vec::new());
        loop {
            while let Some((_, candidate)) = race.take_due(now, memory) {
                starts.push(((now - start).as_millis().try_into().unwrap(), candidate.address));
            }
            let Some(next) = race.next else { return starts };
            assert!(next > now);
            now = next;
        }
    }

    #[test]
    fn better_candidates_come_first_and_equal_ones_shortly_after_each_other() {
        let mut memory = CandidateMemory::default();
        let random = &mut rng(Some(1));
        let (a, b, c) = ("[::1]:1", "10.0.0.1:1", "10.0.0.2:2");
        memory.learn(0, vec![endpoint(9, &[c]), endpoint(3, &[a, b])], random);
        memory.learn(1, vec![endpoint(0, &["10.0.0.3:3"])], random);
        let (a, b, c, d) = (address(a), address(b), address(c), address("10.0.0.3:3"));
        // The first priorities of both names, the second address of the first server, then the second
        // priority.
        assert_eq!(starts(&memory, 2), [(0, a), (10, d), (260, b), (510, c)]);
        memory.on_connected(d, Duration::from_millis(5));
        assert_eq!(starts(&memory, 2), [(0, d), (10, a), (260, b), (510, c)]);
        memory.on_failed(d);
        assert_eq!(starts(&memory, 2), [(0, a), (250, b), (500, c)]);
        memory.forgive();
        assert_eq!(starts(&memory, 2), [(0, a), (10, d), (260, b), (510, c)]);
    }

    #[test]
    fn servers_of_the_same_priority_come_in_random_order_and_are_bounded() {
        let many: Vec<_> = (0..100).map(|host| format!("10.0.1.{host}:1")).collect();
        let endpoints = || many.iter().map(|address| endpoint(1, &[address])).collect();
        let order = |seed| {
            let mut memory = CandidateMemory::default();
            memory.learn(0, endpoints(), &mut rng(Some(seed)));
            memory.candidates(0).into_iter().map(|next| next.address).collect::<Vec<_>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        assert_eq!(order(1).len(), CANDIDATES_MAX);
    }

    #[test]
    fn a_memory_forgets_what_a_name_no_longer_has() {
        let mut memory = CandidateMemory::default();
        let random = &mut rng(Some(1));
        memory.learn(0, vec![endpoint(1, &["10.0.0.1:1", "10.0.0.2:1"])], random);
        memory.on_connected(address("10.0.0.1:1"), Duration::from_millis(5));
        memory.on_failed(address("10.0.0.1:1"));
        assert!(memory.has_untried());
        memory.on_failed(address("10.0.0.2:1"));
        assert!(!memory.has_untried());
        memory.learn(0, vec![endpoint(1, &["10.0.0.3:1"])], random);
        assert!(memory.has_untried() && memory.handshakes.is_empty());
        assert!(
            memory.has_other(address("10.0.0.1:1")) && !memory.has_other(address("10.0.0.3:1"))
        );
        memory.forget(0);
        assert!(!memory.knows(0) && memory.candidates(0).is_empty());
    }
}
