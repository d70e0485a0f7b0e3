//! The choice of the first peer: the client finds its addresses, races connections to them, keeps the best,
//! and moves on when the proxy goes away.

mod race;

use std::{
    collections::VecDeque,
    io, mem,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use tracing::{debug, info};

use self::race::{Attempt, Candidate, CandidateMemory, ProxyWatch, Race, Reason};
use super::{
    chain::{Chain, Peer},
    open_socket,
};
use crate::{
    OsError,
    error::ClientError,
    impossible::impossible,
    limits::Limits,
    node::{
        Output, Progress, QueryId, Received, ResolveError, ServiceEndpoint, SocketId, SocketKind,
    },
    quic::{self, Generator},
    service::HostPort,
};

/// What the choice of the first peer works with.
pub(super) struct ChoiceContext<'a> {
    pub(super) now: Instant,
    pub(super) chain: &'a mut Chain,
    pub(super) outputs: &'a mut VecDeque<Output>,
    pub(super) next_socket: &'a mut u64,
    pub(super) limits: &'a Limits,
    pub(super) random: &'a mut Generator,
}

/// What has become of a race.
pub(super) enum RaceOutcome {
    /// There is a connection.
    Won(Box<Won>),
    /// There is none, and no candidate is left.
    Lost(ClientError),
}

/// The connection that has won a race.
pub(super) struct Won {
    attempt: Attempt,
    /// Whether others took part.
    is_contest: bool,
    /// Why the client has left the connection to another proxy for this one.
    pub(super) left: Option<ClientError>,
}

/// The choice of the first peer: a race that is running or none, what is known of the addresses, and what is seen of
/// the proxy in use.
#[derive(Default)]
pub(super) struct First {
    race: Race,
    memory: CandidateMemory,
    watch: ProxyWatch,
}

impl First {
    /// Starts the connection to the first peer: finds its addresses, and races connections to them.
    pub(super) fn begin(&mut self, cx: &mut ChoiceContext<'_>) -> Option<RaceOutcome> {
        let timeout = cx.limits.setup_timeout.max(cx.limits.dns_timeout);
        cx.chain.set_first_deadline(Some(cx.now + timeout));
        self.race = Race::default();
        self.find(cx);
        self.on_found(cx)
    }

    /// Goes on after candidates were found, or were not.
    fn on_found(&mut self, cx: &mut ChoiceContext<'_>) -> Option<RaceOutcome> {
        if self.race.has_nobody() {
            // All that are known have failed. The names have no others by now.
            self.memory.forgive();
            for proxy in 0..cx.chain.first_places().len() {
                self.race.add(self.memory.candidates(proxy));
            }
        }
        if self.race.unresolved.is_empty() && self.race.beside.is_none() {
            cx.chain.set_first_deadline(None); // each attempt has its own
        }
        self.advance(cx)
    }

    /// Finds the addresses of the first peer, or of all proxies of the first hop.
    fn find(&mut self, cx: &mut ChoiceContext<'_>) {
        let is_proxy = !cx.chain.hops.is_empty();
        for (proxy, HostPort { host, port }) in (0..).zip(cx.chain.first_places()) {
            if let Ok(address) = host.parse::<IpAddr>() {
                let addresses = vec![SocketAddr::new(address, port)];
                let endpoint = ServiceEndpoint { priority: 0, addresses, ech: None };
                self.learn(proxy, vec![endpoint], cx);
                continue;
            }
            self.race.unresolved.insert(proxy);
            let query = QueryId(proxy as u64);
            let takes_ech = cx.chain.first_settings(proxy).is_some_and(|it| it.ech.is_some());
            cx.outputs.push_back(if is_proxy || takes_ech {
                Output::ResolveService { query, host, port }
            } else {
                Output::Resolve { query, host }
            });
        }
    }

    fn learn(&mut self, proxy: usize, endpoints: Vec<ServiceEndpoint>, cx: &mut ChoiceContext<'_>) {
        self.remember(proxy, endpoints, cx);
        self.race.add(self.memory.candidates(proxy));
    }

    fn remember(
        &mut self,
        proxy: usize,
        endpoints: Vec<ServiceEndpoint>,
        cx: &mut ChoiceContext<'_>,
    ) {
        self.memory.learn(proxy, endpoints, cx.random);
        self.count_others(cx.chain);
    }

    /// Notes whether the client knows another address than the one in use, so that it need not look each time
    /// that it says when to wake it.
    fn count_others(&mut self, chain: &Chain) {
        self.watch.has_other = !chain.hops.is_empty() && self.has_other(chain);
    }

    /// Whether the client knows another address than the one in use.
    pub(super) fn has_other(&self, chain: &Chain) -> bool {
        chain.outer.is_some_and(|in_use| self.memory.has_other(in_use))
    }

    /// Handles the addresses of the origin, to which the client has no tunnel.
    pub(super) fn on_resolved(
        &mut self,
        query: QueryId,
        (result, progress): (Result<Vec<IpAddr>, ResolveError>, Progress),
        cx: &mut ChoiceContext<'_>,
    ) -> Option<RaceOutcome> {
        let Some(HostPort { port, .. }) = cx.chain.first_places().into_iter().next() else {
            return impossible("a client has a first peer");
        };
        let with_port = |address: IpAddr| SocketAddr::new(address, port);
        let endpoint = |addresses: Vec<IpAddr>| ServiceEndpoint {
            priority: 0,
            addresses: addresses.into_iter().map(with_port).collect(),
            ech: None,
        };
        let result = result.map(|addresses| vec![endpoint(addresses)]);
        self.on_service_resolved(query, (result, progress), cx)
    }

    /// Handles the endpoints of a proxy.
    pub(super) fn on_service_resolved(
        &mut self,
        QueryId(query): QueryId,
        (result, progress): (Result<Vec<ServiceEndpoint>, ResolveError>, Progress),
        cx: &mut ChoiceContext<'_>,
    ) -> Option<RaceOutcome> {
        let proxy = usize::try_from(query).unwrap_or(usize::MAX);
        // There may be several answers, because an attempt that was given up does not cancel its
        // query. The first one that is complete ends the look-up.
        if !self.race.on_answer(proxy, progress) {
            // The race was over before the answer came, which is for the next one.
            if let Ok(endpoints) = result
                && (progress == Progress::Complete || !self.memory.knows(proxy))
            {
                self.remember(proxy, endpoints, cx);
            }
            return None;
        }
        let is_found = |endpoint: &ServiceEndpoint| !endpoint.addresses.is_empty();
        match result {
            Ok(endpoints) if endpoints.iter().any(is_found) => self.learn(proxy, endpoints, cx),
            // What the name had before is better than nothing.
            Err(ResolveError::Unreachable) if self.memory.knows(proxy) => {
                self.race.add(self.memory.candidates(proxy));
            }
            nothing => {
                let error = nothing.err().unwrap_or(ResolveError::NotFound);
                let place = cx.chain.first_places().into_iter().nth(proxy);
                let host = place.map(|place| place.host).unwrap_or_default();
                self.memory.forget(proxy);
                self.race.on_error(ClientError::Resolve { host: host.into(), error });
            }
        }
        self.on_found(cx)
    }

    /// Does what is due in the race.
    fn advance(&mut self, cx: &mut ChoiceContext<'_>) -> Option<RaceOutcome> {
        loop {
            if let Some((index, timeout)) = self.race.makes_way(cx.now) {
                self.fail_silent(index, timeout, cx);
            } else if let Some(winner) = self.race.winner(cx.now) {
                return self.finish(winner, cx);
            } else if let Some((number, candidate)) = self.race.take_due(cx.now, &self.memory) {
                self.attempt(number, candidate, cx);
            } else {
                break;
            }
        }
        let error = self.race.take_error()?;
        match self.race.beside.take() {
            None => Some(RaceOutcome::Lost(error)),
            Some((address, _)) => {
                debug!(%address, %error, "there is no other proxy");
                None
            }
        }
    }

    fn attempt(&mut self, number: u64, candidate: Candidate, cx: &mut ChoiceContext<'_>) {
        let Some(mut settings) = cx.chain.first_settings(candidate.proxy) else {
            return impossible("each candidate is of a proxy of the list");
        };
        settings.seed = settings.seed.map(|seed| seed.wrapping_add(number << 16));
        if let Some(configs) = self.memory.ech(candidate) {
            settings.encrypt_hello(configs);
        }
        let kind = SocketKind::Connected(candidate.address);
        let socket = open_socket(cx.outputs, cx.next_socket, kind);
        let peer = Peer::new(settings, cx.limits);
        self.race.attempts.push(Attempt { candidate, socket, local: None, peer, began: cx.now });
    }

    /// The attempt that uses a socket.
    pub(super) fn attempt_of(&self, socket: SocketId) -> Option<usize> {
        self.race.position(socket)
    }

    /// Handles the socket of an attempt.
    pub(super) fn on_opened(
        &mut self,
        index: usize,
        result: Result<SocketAddr, OsError>,
        cx: &mut ChoiceContext<'_>,
    ) -> Option<RaceOutcome> {
        let (limits, place) = (cx.chain.limits_of(0, cx.limits), cx.chain.place(cx.now, 0));
        let Some(attempt) = self.race.attempts.get_mut(index) else {
            return impossible("the attempt was found a moment ago");
        };
        let remote = attempt.candidate.address;
        attempt.local = result.as_ref().ok().copied();
        let connect = |_| attempt.peer.connect(cx.now, remote, place, &limits);
        if let Err(error) = result.map_err(ClientError::Socket).and_then(connect) {
            self.find_nat64(index, &error, cx);
            self.fail(index, error, cx);
            return self.advance(cx);
        }
        None
    }

    /// Asks for the addresses at which a NAT64 reaches a proxy that has only an IPv4 address, if this host has no
    /// route to it.
    fn find_nat64(&mut self, index: usize, error: &ClientError, cx: &mut ChoiceContext<'_>) {
        let Some(Candidate { proxy, address, .. }) = self.race.unroutable(index, error) else {
            return; // it has a route
        };
        let (host, port) = (address.ip().to_string(), address.port());
        let place = cx.chain.first_places().into_iter().nth(proxy);
        let is_literal = place.is_some_and(|place| place.host == host);
        if is_literal && !cx.chain.hops.is_empty() && self.race.unresolved.insert(proxy) {
            let query = QueryId(proxy as u64);
            cx.outputs.push_back(Output::ResolveService { query, host, port });
        }
    }

    /// Handles an ICMP error about the address of an attempt.
    pub(super) fn on_refused(
        &mut self,
        index: usize,
        kind: io::ErrorKind,
        cx: &mut ChoiceContext<'_>,
    ) -> Option<RaceOutcome> {
        let Some(attempt) = self.race.attempts.get(index) else {
            return impossible("the attempt was found a moment ago");
        };
        if attempt.peer.is_connected() {
            return None;
        }
        let peer = attempt.peer.settings.authority.clone();
        self.fail(index, ClientError::Refusing { peer, kind }, cx);
        self.advance(cx)
    }

    fn fail_silent(&mut self, index: usize, timeout: Duration, cx: &mut ChoiceContext<'_>) {
        let Some(attempt) = self.race.attempts.get(index) else {
            return impossible("only an attempt that is there fails");
        };
        let peer = attempt.peer.settings.authority.clone();
        self.fail(index, ClientError::NoAnswer { peer, timeout }, cx);
    }

    fn fail(&mut self, index: usize, error: ClientError, cx: &mut ChoiceContext<'_>) {
        let is_contest = self.race.is_contest();
        let attempt = self.race.take_failed(index);
        let address = attempt.candidate.address;
        if is_contest {
            info!(%address, "not this proxy: {error}");
        }
        self.memory.on_failed(address);
        self.race.on_error(error);
        cx.chain.leave(cx.now, attempt.peer, attempt.socket);
    }

    /// Whether connections have events that [`Self::take_events`] takes, or the proxy in use drains.
    pub(super) fn is_busy(&self) -> bool {
        !self.race.attempts.is_empty() || self.watch.is_draining
    }

    /// Whether the proxy in use takes no more requests, and the client has not looked for another since.
    pub(super) const fn is_draining(&self) -> bool {
        self.watch.is_draining
    }

    /// Handles the events of connections that are being opened. Returns whether there was one.
    pub(super) fn take_events(
        &mut self,
        cx: &mut ChoiceContext<'_>,
    ) -> (bool, Option<RaceOutcome>) {
        let (mut any, mut index) = (false, 0);
        while let Some(attempt) = self.race.attempts.get_mut(index) {
            let peer = &mut attempt.peer;
            // What comes after the handshake is for the hop.
            let event = if peer.is_connected() { None } else { peer.poll_event(cx.now) };
            any |= event.is_some();
            let error = match event {
                None => {
                    index += 1;
                    continue;
                }
                Some(Ok(quic::Event::Lost(quic::Closed::EchRejected(instead))))
                    if self.memory.on_ech_rejected(attempt.candidate, instead.clone()) =>
                {
                    let Attempt { candidate, peer, socket, .. } = self.race.take_failed(index);
                    let address = candidate.address;
                    debug!(%address, has_other = instead.is_some(), "the proxy rejects ECH");
                    self.race.again(candidate);
                    cx.chain.leave(cx.now, peer, socket);
                    continue;
                }
                Some(Ok(quic::Event::Lost(reason))) => peer.lost(&reason, cx.limits),
                Some(Ok(_)) => continue,
                Some(Err(error)) => {
                    let peer = peer.settings.authority.clone();
                    ClientError::Protocol { peer, reason: error.reason }
                }
            };
            self.fail(index, error, cx);
        }
        (any, if any { self.advance(cx) } else { None })
    }

    /// Handles the timers of connections that are being opened.
    pub(super) fn handle_timeout(&mut self, cx: &mut ChoiceContext<'_>) -> Option<RaceOutcome> {
        let is_running = self.race.is_running();
        for index in (0..self.race.attempts.len()).rev() {
            let Some(attempt) = self.race.attempts.get_mut(index) else {
                impossible::<()>("only the attempt that has been looked at leaves the list");
                continue;
            };
            attempt.peer.handle_timeout(cx.now);
            if attempt.peer.deadline.is_some_and(|deadline| deadline <= cx.now) {
                self.fail_silent(index, cx.limits.setup_timeout, cx);
            }
        }
        if is_running { self.advance(cx) } else { None }
    }

    /// Handles a packet for a connection that is being opened.
    pub(super) fn on_datagram(&mut self, now: Instant, index: usize, received: Received) {
        let Received { remote, ecn, payload, .. } = received;
        let Some(attempt) = self.race.attempts.get_mut(index) else {
            return impossible("the attempt was found a moment ago");
        };
        attempt.peer.handle_datagram(now, remote, ecn, payload);
    }

    /// Notes that something came from the peer in use.
    pub(super) const fn heard(&mut self, now: Instant) {
        self.watch.heard = Some(now);
    }

    /// Notes that the proxy in use takes no more requests. The next round looks for another.
    pub(super) const fn drains(&mut self) {
        self.watch.is_draining = true;
    }

    /// Notes that the peer in use has failed. Returns whether there is another address that has not failed since the
    /// client last had a tunnel; without one, all may be tried again.
    pub(super) fn has_failed(&mut self, chain: &Chain) -> bool {
        // Without an address, all candidates have failed.
        let has_other = chain.outer.is_some_and(|address| {
            self.memory.on_failed(address);
            self.memory.has_untried()
        });
        if !has_other {
            self.memory.forgive();
        }
        has_other
    }

    /// Lets all addresses be tried again, because the client has what it wanted.
    pub(super) fn forgive(&mut self) {
        self.memory.forgive();
    }

    /// Sends the next packet of a connection that is being opened.
    pub(super) fn transmit(
        &mut self,
        now: Instant,
        chain: &Chain,
        buf: &mut Vec<u8>,
    ) -> Option<Output> {
        for attempt in &mut self.race.attempts {
            buf.clear();
            if let Some(transmit) = attempt.peer.poll_transmit(now, buf) {
                return Some(chain.transmit_outer(attempt.socket, transmit));
            }
        }
        None
    }

    /// Takes the connection that has won, and gives up the others, and the one in use.
    fn finish(&mut self, winner: usize, cx: &mut ChoiceContext<'_>) -> Option<RaceOutcome> {
        let race = mem::take(&mut self.race);
        let is_contest = race.is_contest();
        let mut chosen = None;
        for (index, attempt) in race.attempts.into_iter().enumerate() {
            if index == winner {
                chosen = Some(attempt);
            } else {
                cx.chain.leave(cx.now, attempt.peer, attempt.socket);
            }
        }
        let Some(attempt) = chosen else { return impossible("the winner is an attempt") };
        let left = match race.beside {
            None => None,
            Some((_, Reason::Silent(since))) if self.watch.heard != Some(since) => {
                debug!("the proxy is no longer silent");
                cx.chain.leave(cx.now, attempt.peer, attempt.socket);
                return None;
            }
            Some((address, reason)) => self.leave_proxy(address, reason, cx),
        };
        Some(RaceOutcome::Won(Box::new(Won { attempt, is_contest, left })))
    }

    /// Uses the connection that has won as that to the first peer.
    pub(super) fn adopt(&mut self, won: Won, now: Instant, chain: &mut Chain) {
        let Attempt { candidate, socket, local, peer, .. } = won.attempt;
        let Candidate { proxy, address, .. } = candidate;
        let handshake = peer.handshake().unwrap_or_default();
        if won.is_contest {
            let authority = &peer.settings.authority;
            info!(authority, %address, ?handshake, "this proxy is the nearest");
        }
        self.memory.on_connected(address, handshake);
        self.heard(now);
        chain.adopt(proxy, address, peer, (socket, local));
        self.count_others(chain);
    }

    /// Gives up a race that is running.
    pub(super) fn end(&mut self, now: Instant, chain: &mut Chain) {
        for attempt in mem::take(&mut self.race).attempts {
            chain.leave(now, attempt.peer, attempt.socket);
        }
    }

    /// Gives up a race that is running, and forgets what was seen of the proxy in use.
    pub(super) fn reset(&mut self, now: Instant, chain: &mut Chain) {
        self.end(now, chain);
        self.watch = ProxyWatch::default();
    }

    /// Looks for another proxy, if the one in use drains or is silent. The connection to it stays in use until
    /// there is one to another. `may_leave`: nothing is lost if the client leaves a proxy that drains. `is_away`: this
    /// host has no way to the address in use.
    pub(super) fn look_elsewhere(
        &mut self,
        may_leave: bool,
        is_away: bool,
        cx: &mut ChoiceContext<'_>,
    ) -> Option<RaceOutcome> {
        let address = cx.chain.outer?;
        if self.race.is_running() || cx.chain.hops.is_empty() {
            return None;
        }
        let silent = self.silent_at(cx.limits).filter(|at| *at <= cx.now);
        let is_silent = silent.is_some() || (is_away && self.watch.has_other);
        let reason = match (self.watch.is_draining && may_leave, is_silent, self.watch.heard) {
            (true, ..) => Reason::Draining,
            (false, true, Some(heard)) => Reason::Silent(heard),
            _ => return None,
        };
        self.watch.is_draining &= reason != Reason::Draining;
        self.watch.missed = self.watch.heard;
        self.race = Race::beside(address, reason);
        self.find(cx);
        let outcome = self.advance(cx);
        if !self.race.is_running() {
            self.race = Race::default(); // there is no other
        }
        outcome
    }

    /// When the proxy in use counts as silent, if the client knows another. A keep-alive is sent after a third
    /// of [`Limits::tunnel_idle`], and has another sixth of it for its answer.
    fn silent_at(&self, limits: &Limits) -> Option<Instant> {
        let ProxyWatch { heard, missed, has_other, .. } = self.watch;
        if !has_other || self.race.is_running() || heard == missed {
            return None;
        }
        Some(heard? + limits.tunnel_idle / 2)
    }

    /// When the next timer is due. `is_running`: the client does not end.
    pub(super) fn next_timeout(&self, is_running: bool, limits: &Limits) -> Option<Instant> {
        let silent = if is_running { self.silent_at(limits) } else { None };
        quic::earliest(self.race.next_timeout(), silent)
    }

    /// Gives up the connection to the first proxy for a better one. Returns why.
    fn leave_proxy(
        &mut self,
        address: SocketAddr,
        reason: Reason,
        cx: &mut ChoiceContext<'_>,
    ) -> Option<ClientError> {
        let reason = match reason {
            Reason::Draining => "the proxy is shutting down",
            Reason::Silent(_) => {
                self.memory.on_failed(address);
                "the proxy is silent"
            }
        };
        let peer = cx.chain.leave_first(cx.now, cx.limits)?;
        Some(ClientError::ConnectionLost { peer, reason: reason.into() })
    }
}
