//! The choice of the first peer: the client finds its addresses, races connections to them, keeps the best,
//! and moves on when the proxy goes away.

use std::{
    io, mem,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use tracing::{debug, info};

use super::{
    Client, Life,
    peer::Peer,
    race::{Attempt, Candidate, Race, Reason, Watch},
};
use crate::{
    OsError,
    error::ClientError,
    node::{
        Event, Output, Progress, QueryId, Received, ResolveError, ServiceEndpoint, SocketId,
        SocketKind,
    },
    quic,
};

impl Client {
    /// Starts the connection to the first peer: finds its addresses, and races connections to them.
    pub(super) fn begin(&mut self, now: Instant) {
        let deadline = now + self.limits.setup_timeout.max(self.limits.dns_timeout);
        if let Some(peer) = self.chain.peer(0) {
            peer.deadline = Some(deadline);
        }
        self.race = Race::default();
        self.find();
        self.on_found(now);
    }

    /// Goes on after candidates were found, or were not.
    fn on_found(&mut self, now: Instant) {
        if self.race.has_nobody() {
            // All that are known have failed. The names have no others by now.
            self.memory.forgive();
            for proxy in 0..self.chain.first_places().len() {
                self.race.add(self.memory.candidates(proxy));
            }
        }
        if self.race.unresolved.is_empty()
            && self.race.beside.is_none()
            && let Some(peer) = self.chain.peer(0)
        {
            peer.deadline = None; // each attempt has its own
        }
        self.advance(now);
    }

    /// Finds the addresses of the first peer, or of all proxies of the first hop.
    fn find(&mut self) {
        let is_proxy = !self.chain.hops.is_empty();
        for (proxy, (host, port)) in (0..).zip(self.chain.first_places()) {
            if let Ok(address) = host.parse::<IpAddr>() {
                let addresses = vec![SocketAddr::new(address, port)];
                self.learn(proxy, vec![ServiceEndpoint { priority: 0, addresses }]);
                continue;
            }
            self.race.unresolved.insert(proxy);
            let query = QueryId(proxy as u64);
            self.outputs.push_back(if is_proxy {
                Output::ResolveService { query, host, port }
            } else {
                Output::Resolve { query, host }
            });
        }
    }

    fn learn(&mut self, proxy: usize, endpoints: Vec<ServiceEndpoint>) {
        self.remember(proxy, endpoints);
        self.race.add(self.memory.candidates(proxy));
    }

    fn remember(&mut self, proxy: usize, endpoints: Vec<ServiceEndpoint>) {
        self.memory.learn(proxy, endpoints, self.recovery.jitter.generator());
        self.count_others();
    }

    /// Notes whether the client knows another address than the one in use, so that it need not look each time
    /// that it says when to wake it.
    fn count_others(&mut self) {
        let others = self.chain.outer.filter(|_| !self.chain.hops.is_empty());
        self.watch.has_other = others.is_some_and(|in_use| self.memory.has_other(in_use));
    }

    /// Handles the addresses of the origin, to which the client has no tunnel.
    pub(super) fn on_resolved(
        &mut self,
        now: Instant,
        query: QueryId,
        (result, progress): (Result<Vec<IpAddr>, ResolveError>, Progress),
    ) {
        let Some((_, port)) = self.chain.first_places().into_iter().next() else { return };
        let with_port = |address: IpAddr| SocketAddr::new(address, port);
        let endpoint = |addresses: Vec<IpAddr>| ServiceEndpoint {
            priority: 0,
            addresses: addresses.into_iter().map(with_port).collect(),
        };
        let result = result.map(|addresses| vec![endpoint(addresses)]);
        self.on_service_resolved(now, query, (result, progress));
    }

    /// Handles the endpoints of a proxy.
    pub(super) fn on_service_resolved(
        &mut self,
        now: Instant,
        QueryId(query): QueryId,
        (result, progress): (Result<Vec<ServiceEndpoint>, ResolveError>, Progress),
    ) {
        let proxy = usize::try_from(query).unwrap_or(usize::MAX);
        // There may be several answers, because an attempt that was given up does not cancel its
        // query. The first one that is complete ends the look-up.
        if !self.race.on_answer(proxy, progress) {
            // The race was over before the answer came, which is for the next one.
            if let Ok(endpoints) = result
                && (progress == Progress::Complete || !self.memory.knows(proxy))
            {
                self.remember(proxy, endpoints);
            }
            return;
        }
        let is_found = |endpoint: &ServiceEndpoint| !endpoint.addresses.is_empty();
        match result {
            Ok(endpoints) if endpoints.iter().any(is_found) => self.learn(proxy, endpoints),
            // What the name had before is better than nothing.
            Err(ResolveError::Unreachable) if self.memory.knows(proxy) => {
                self.race.add(self.memory.candidates(proxy));
            }
            nothing => {
                let error = nothing.err().unwrap_or(ResolveError::NotFound);
                let host = self.chain.first_places().into_iter().nth(proxy);
                let host = host.map(|(host, _)| host).unwrap_or_default();
                self.memory.forget(proxy);
                self.race.on_error(ClientError::Resolve { host: host.into(), error });
            }
        }
        self.on_found(now);
    }

    /// Does what is due in the race.
    fn advance(&mut self, now: Instant) {
        loop {
            if let Some((index, timeout)) = self.race.makes_way(now) {
                self.fail_silent(now, index, timeout);
            } else if let Some(winner) = self.race.winner(now) {
                return self.adopt(now, winner);
            } else if let Some((number, candidate)) = self.race.take_due(now, &self.memory) {
                self.attempt(now, number, candidate);
            } else {
                break;
            }
        }
        let Some(error) = self.race.take_error() else { return };
        match self.race.beside.take() {
            None => self.on_peer_failed(now, 0, error),
            Some((address, _)) => debug!(%address, %error, "there is no other proxy"),
        }
    }

    fn attempt(&mut self, now: Instant, number: u64, candidate: Candidate) {
        let Some(mut settings) = self.chain.first_settings(candidate.proxy) else { return };
        settings.seed = settings.seed.map(|seed| seed.wrapping_add(number << 16));
        let socket = SocketId(self.next_socket);
        self.next_socket += 1;
        let kind = SocketKind::Connected(candidate.address);
        self.outputs.push_back(Output::OpenSocket { socket, kind });
        let peer = Peer::new(settings, &self.limits);
        self.race.attempts.push(Attempt { candidate, socket, peer, began: now });
    }

    /// Handles the socket of an attempt. `None`: it is not one.
    pub(super) fn on_attempt_opened(
        &mut self,
        now: Instant,
        socket: SocketId,
        result: Result<SocketAddr, OsError>,
    ) -> Option<()> {
        let index = self.race.position(socket)?;
        let (limits, place) = (self.limits_of(0), self.place(now, 0));
        let attempt = self.race.attempts.get_mut(index)?;
        let remote = attempt.candidate.address;
        let connect = |_| attempt.peer.connect(now, remote, (&limits, place));
        if let Err(error) = result.map_err(ClientError::Socket).and_then(connect) {
            self.find_nat64(index, &error);
            self.fail(now, index, error);
            self.advance(now);
        }
        Some(())
    }

    /// Asks for the addresses at which a NAT64 reaches a proxy that has only an IPv4 address, if this host has no
    /// route to it.
    fn find_nat64(&mut self, index: usize, error: &ClientError) {
        let Some(Candidate { proxy, address, .. }) = self.race.unroutable(index, error) else {
            return;
        };
        let (host, port) = (address.ip().to_string(), address.port());
        let is_literal =
            self.chain.first_places().into_iter().nth(proxy).is_some_and(|it| it.0 == host);
        if is_literal && !self.chain.hops.is_empty() && self.race.unresolved.insert(proxy) {
            let query = QueryId(proxy as u64);
            self.outputs.push_back(Output::ResolveService { query, host, port });
        }
    }

    /// Handles an ICMP error about the address of an attempt. `None`: it is not about one.
    pub(super) fn on_attempt_refused(
        &mut self,
        now: Instant,
        socket: SocketId,
        kind: io::ErrorKind,
    ) -> Option<()> {
        let index = self.race.position(socket)?;
        let attempt = self.race.attempts.get(index)?;
        if !attempt.peer.is_connected() {
            let peer = attempt.peer.settings.authority.clone();
            self.fail(now, index, ClientError::Refusing { peer, kind });
            self.advance(now);
        }
        Some(())
    }

    fn fail_silent(&mut self, now: Instant, index: usize, timeout: Duration) {
        if let Some(attempt) = self.race.attempts.get(index) {
            let peer = attempt.peer.settings.authority.clone();
            self.fail(now, index, ClientError::NoAnswer { peer, timeout });
        }
    }

    fn fail(&mut self, now: Instant, index: usize, error: ClientError) {
        let is_contest = self.race.is_contest();
        let attempt = self.race.take_failed(index);
        let address = attempt.candidate.address;
        if is_contest {
            info!(%address, "not this proxy: {error}");
        }
        self.memory.on_failed(address);
        self.race.on_error(error);
        self.chain.leave(now, attempt.peer, attempt.socket);
    }

    /// Handles the events of connections that are being opened. Returns whether there was one.
    pub(super) fn take_race_events(&mut self, now: Instant) -> bool {
        if self.race.attempts.is_empty() && !self.watch.is_draining {
            return false;
        }
        let (mut any, mut index) = (false, 0);
        while let Some(attempt) = self.race.attempts.get_mut(index) {
            let peer = &mut attempt.peer;
            // What comes after the handshake is for the hop.
            let event = if peer.is_connected() { None } else { peer.poll_event(now) };
            any |= event.is_some();
            let error = match event {
                None => {
                    index += 1;
                    continue;
                }
                Some(Ok(quic::Event::Lost(reason))) => peer.lost(&reason, &self.limits),
                Some(Ok(_)) => continue,
                Some(Err(error)) => {
                    let peer = peer.settings.authority.clone();
                    ClientError::Protocol { peer, reason: error.reason }
                }
            };
            self.fail(now, index, error);
        }
        if any {
            self.advance(now);
        }
        if self.watch.is_draining {
            self.look_elsewhere(now);
        }
        any
    }

    /// Handles the timers of connections that are being opened.
    pub(super) fn handle_race_timeout(&mut self, now: Instant) {
        let is_running = self.race.is_running();
        for index in (0..self.race.attempts.len()).rev() {
            let Some(attempt) = self.race.attempts.get_mut(index) else { continue };
            attempt.peer.handle_timeout(now);
            if attempt.peer.deadline.is_some_and(|deadline| deadline <= now) {
                self.fail_silent(now, index, self.limits.setup_timeout);
            }
        }
        if is_running {
            self.advance(now);
        }
        self.look_elsewhere(now);
    }

    /// Handles a packet for a connection that is being opened.
    pub(super) fn on_race_datagram(&mut self, now: Instant, received: Received) {
        let Received { socket, remote, local_ip, ecn, payload } = received;
        self.chain.count_outer(1, payload.len());
        let index = self.race.position(socket);
        if let Some(attempt) = index.and_then(|index| self.race.attempts.get_mut(index)) {
            attempt.peer.handle_datagram(now, (remote, local_ip), ecn, payload);
        }
    }

    /// Sends the next packet of a connection that is being opened.
    pub(super) fn transmit_race(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        for attempt in &mut self.race.attempts {
            buf.clear();
            if let Some(transmit) = attempt.peer.poll_transmit(now, buf) {
                return Some(self.chain.transmit_outer(attempt.socket, transmit));
            }
        }
        None
    }

    /// Takes the connection that has won as that to the first peer, and gives up the others.
    fn adopt(&mut self, now: Instant, winner: usize) {
        let race = mem::take(&mut self.race);
        let is_contest = race.is_contest();
        let mut chosen = None;
        for (index, attempt) in race.attempts.into_iter().enumerate() {
            if index == winner {
                chosen = Some(attempt);
            } else {
                self.chain.leave(now, attempt.peer, attempt.socket);
            }
        }
        let Some(chosen) = chosen else { return };
        match race.beside {
            None => {}
            Some((_, Reason::Silent(since))) if self.watch.heard != Some(since) => {
                debug!("the proxy is no longer silent");
                return self.chain.leave(now, chosen.peer, chosen.socket);
            }
            Some((address, reason)) => self.leave_proxy(now, address, reason),
        }
        let Candidate { proxy, address, .. } = chosen.candidate;
        let handshake = chosen.peer.handshake().unwrap_or_default();
        if is_contest {
            let authority = &chosen.peer.settings.authority;
            info!(authority, %address, ?handshake, "this proxy is the nearest");
        }
        self.memory.on_connected(address, handshake);
        self.watch.heard = Some(now);
        self.chain.adopt((proxy, address), chosen.peer, chosen.socket);
        self.count_others();
        self.on_connected(0);
    }

    /// Gives up a race that is running.
    pub(super) fn end_race(&mut self, now: Instant) {
        for attempt in mem::take(&mut self.race).attempts {
            self.chain.leave(now, attempt.peer, attempt.socket);
        }
    }

    /// Looks for another proxy, if the one in use drains or is silent. The connection to it stays in use until
    /// there is one to another.
    pub(super) fn look_elsewhere(&mut self, now: Instant) {
        let Some(address) = self.chain.outer else { return };
        if self.life != Life::Running || self.race.is_running() || self.chain.hops.is_empty() {
            return;
        }
        let silent = self.silent_at().filter(|at| *at <= now);
        // TCP connections would not survive the move; the proxy lets them go on for a while.
        let reason =
            match (self.watch.is_draining && !self.tcp.has_connections(), silent, self.watch.heard)
            {
                (true, ..) => Reason::Draining,
                (false, Some(_), Some(heard)) => Reason::Silent(heard),
                _ => return,
            };
        self.watch.is_draining &= reason != Reason::Draining;
        self.watch.missed = self.watch.heard;
        self.race = Race::beside(address, reason);
        self.find();
        self.advance(now);
        if !self.race.is_running() {
            self.race = Race::default(); // there is no other
        }
    }

    /// When the proxy in use counts as silent, if the client knows another. A keep-alive is sent after a third
    /// of [`Limits::tunnel_idle`](crate::limits::Limits::tunnel_idle), and has another sixth of it for its
    /// answer.
    fn silent_at(&self) -> Option<Instant> {
        let Watch { heard, missed, has_other, .. } = self.watch;
        if !has_other || self.life != Life::Running || self.race.is_running() || heard == missed {
            return None;
        }
        Some(heard? + self.limits.tunnel_idle / 2)
    }

    pub(super) fn next_race_timeout(&self) -> Option<Instant> {
        quic::earliest(self.race.next_timeout(), self.silent_at())
    }

    /// Gives up the connection to the first proxy for a better one.
    fn leave_proxy(&mut self, now: Instant, address: SocketAddr, reason: Reason) {
        let reason = match reason {
            Reason::Draining => "the proxy is shutting down",
            Reason::Silent(_) => {
                self.memory.on_failed(address);
                "the proxy is silent"
            }
        };
        let Some(peer) = self.chain.leave_first(now, &self.limits) else { return };
        let error = ClientError::ConnectionLost { peer, reason: reason.into() };
        let retry_in = Duration::ZERO;
        self.outputs.push_back(Output::Event(Event::HopLost { hop: 0, error, retry_in }));
        self.rebuild(now, 0, None);
    }
}
