//! Ways to targets without the tunnel, for programs whose targets a rule sends there.
//!
//! A way has the life of a flow at a proxy: the name of its target is looked up, its addresses are tried one after
//! another, and it is open until one end is done. TCP connections and UDP payloads have the same life. What their bytes
//! do is in `tcp` and in [`Associations`](super::associate::Associations).

mod tcp;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Instant,
};

use bytes::Bytes;

use super::{Context, Programs, Source, flows::Flows, tcp::Tcp};
use crate::{
    OsError,
    client::rules::{Action, Carried, Rules, is_localhost, is_this_host},
    error::{ClientError, RequestError},
    impossible::impossible,
    node::{Output, Progress, QueryId, ResolveError, SocketId, SocketKind, Transmit},
    quic::earliest,
    race::{Attempt, Further, LookUp, Race},
    service::{HostPort, authority_of},
    tcp::{Socket, TcpId, TcpOutput},
};

/// The first name of a look-up for a direct way. Those for proxies have smaller ones.
const FIRST_QUERY: u64 = 1 << 32;

/// The first name of a TCP connection to a target. Those of programs have smaller ones.
const FIRST_TCP: u64 = 1 << 62;

/// The rules of a client, and its ways to targets without the tunnel.
#[derive(Debug, Default)]
pub(in crate::client) struct Direct {
    /// `None`: everything goes through the tunnel.
    pub(in crate::client) rules: Option<Box<Rules>>,
    ways: BTreeMap<Source, Way>,
    by_query: BTreeMap<QueryId, Source>,
    by_attempt: BTreeMap<Attempt, Source>,
    /// When something is due, in the order of these times.
    due: BTreeSet<(Instant, Source)>,
    /// The ways of UDP payloads.
    udp: usize,
    queries: u64,
    tcps: u64,
    /// Datagrams that leave in this round.
    outbox: VecDeque<Datagram>,
}

/// A datagram that leaves through a socket of this client.
#[derive(Debug)]
struct Datagram {
    socket: SocketId,
    destination: SocketAddr,
    /// What stands before the payload.
    header: Bytes,
    payload: Bytes,
}

/// A way to one target.
#[derive(Debug)]
struct Way {
    target: HostPort,
    /// Whether the program runs on this host, so that it could reach the services here without this client.
    is_of_this_host: bool,
    stage: Stage,
    /// What the program has sent before the way was open.
    early: VecDeque<Bytes>,
    /// When something is due.
    due: Instant,
    /// When a payload has passed.
    last: Instant,
}

#[derive(Debug)]
enum Stage {
    Resolving(LookUp),
    Reaching(Box<Race>),
    Tcp(Socket),
    Udp(SocketId, SocketAddr),
}

/// What has become of a way that was not open.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) source: Source,
    /// Whether it is open. If not, it is forgotten.
    pub(super) result: Result<(), ClientError>,
}

impl Direct {
    /// What becomes of a target.
    pub(super) fn action(&self, host: &str, port: u16, carried: Carried) -> Action {
        let rules = self.rules.as_ref();
        rules.map_or(Action::Proxy, |rules| rules.decide(host, port, carried).action)
    }

    /// Whether an answer about this name is for a direct way.
    pub(in crate::client) const fn asked(query: QueryId) -> bool {
        query.0 >= FIRST_QUERY
    }

    /// Whether this source has a direct way.
    pub(super) fn has(&self, source: Source) -> bool {
        self.ways.contains_key(&source)
    }

    /// The number of ways of UDP payloads.
    pub(super) const fn udp(&self) -> usize {
        self.udp
    }

    /// The way that a socket belongs to.
    pub(super) fn of_socket(&self, socket: SocketId) -> Option<Source> {
        self.by_attempt.get(&Attempt::Udp(socket)).copied()
    }

    /// The program to whose target a TCP connection leads.
    fn of_tcp(&self, tcp: TcpId) -> Option<Source> {
        self.by_attempt.get(&Attempt::Tcp(tcp)).copied()
    }

    /// Opens a way. `program`: the host of the program. Returns what has become of it, if that is known already.
    pub(super) fn open(
        &mut self,
        source: Source,
        target: (&str, u16),
        program: IpAddr,
        cx: &mut Context<'_>,
    ) -> Option<Outcome> {
        let (host, port) = target;
        let host = host.strip_suffix('.').unwrap_or(host).to_owned();
        let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        let known = match address {
            Some(address) => vec![address],
            None if is_localhost(&host.to_ascii_lowercase()) => {
                vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            }
            None => Vec::new(),
        };
        let is_of_this_host = is_this_host(program);
        if !is_of_this_host && known.iter().any(|address| is_this_host(*address)) {
            let target = authority_of(&host, port).into();
            return Some(Outcome { source, result: Err(ClientError::Ruled { target }) });
        }
        let stage = if known.is_empty() {
            Stage::Resolving(self.look_up(source, host.clone(), cx))
        } else {
            let deadline = cx.now + cx.limits.connect_timeout;
            let mut race = Race::new(cx.now, deadline, port);
            race.add(&known, deadline);
            if address.is_some_and(|address| address.is_ipv4()) {
                race.expect(Further::IfUnroutable);
            }
            Stage::Reaching(Box::new(race))
        };
        let target = HostPort { host, port };
        let (due, last) = (cx.now, cx.now);
        let way = Way { target, is_of_this_host, stage, early: VecDeque::new(), due, last };
        if self.ways.insert(source, way).is_some() {
            return impossible("a program has one target at a time");
        }
        self.udp += usize::from(matches!(source, Source::Associate(_)));
        self.advance(source, cx)
    }

    fn look_up(&mut self, source: Source, host: String, cx: &mut Context<'_>) -> LookUp {
        let query = QueryId(FIRST_QUERY + self.queries);
        self.queries += 1;
        self.by_query.insert(query, source);
        cx.outputs.push_back(Output::Resolve { query, host });
        LookUp { query, deadline: cx.now + cx.limits.dns_timeout }
    }

    /// Handles the addresses of a target that are known by now.
    pub(super) fn on_resolved(
        &mut self,
        query: QueryId,
        (result, progress): (Result<Vec<IpAddr>, ResolveError>, Progress),
        cx: &mut Context<'_>,
    ) -> Option<Outcome> {
        let source = *self.by_query.get(&query)?; // the program may have given its target up
        let is_complete = progress == Progress::Complete;
        if is_complete {
            self.by_query.remove(&query);
        }
        let Some(way) = self.ways.get_mut(&source) else {
            return impossible("a way forgets its look-up when it ends");
        };
        let found = match result {
            Ok(found) if found.is_empty() => Err(ResolveError::NotFound),
            result => result,
        };
        // A name must not lead a program of another host to the services of this one.
        let may_reach = |address: &IpAddr| way.is_of_this_host || !is_this_host(*address);
        let deadline = cx.now + cx.limits.connect_timeout;
        let further = |look_up| if is_complete { Further::Nothing } else { Further::From(look_up) };
        match (&mut way.stage, found) {
            (Stage::Resolving(look_up), Ok(found)) => {
                let further = further(*look_up);
                let permitted: Vec<_> = found.into_iter().filter(may_reach).collect();
                if permitted.is_empty() && is_complete {
                    let target = authority_of(&way.target.host, way.target.port).into();
                    return Some(self.lost(source, ClientError::Ruled { target }, cx));
                }
                let mut race = Box::new(Race::new(cx.now, deadline, way.target.port));
                race.add(&permitted, deadline);
                race.expect(further);
                way.stage = Stage::Reaching(race);
            }
            (Stage::Resolving(_), Err(_)) if !is_complete => return None, // a better one may come
            (Stage::Resolving(_), Err(error)) => {
                let host = way.target.host.as_str().into();
                let error = ClientError::Direct(RequestError::Dns { host, error });
                return Some(self.lost(source, error, cx));
            }
            (Stage::Reaching(race), found) => {
                let further = race.look_up().map_or(Further::Nothing, further);
                let found = found.unwrap_or_default();
                race.add(&found.into_iter().filter(may_reach).collect::<Vec<_>>(), deadline);
                race.expect(further);
            }
            (Stage::Tcp(_) | Stage::Udp(..), _) => {
                return impossible("a way forgets its look-up when it is open");
            }
        }
        self.advance(source, cx)
    }

    /// Handles that an attempt has succeeded or failed. `None`: the way goes on to be opened, or was given up.
    fn on_attempt(
        &mut self,
        attempt: Attempt,
        result: Result<(), OsError>,
        cx: &mut Context<'_>,
    ) -> Option<Outcome> {
        let source = *self.by_attempt.get(&attempt)?; // it was given up
        let Some(way) = self.ways.get_mut(&source) else {
            return impossible("a way forgets its attempts when it ends");
        };
        let Stage::Reaching(race) = &mut way.stage else { return None }; // a wrong driver says it twice
        if let Err(error) = result {
            self.by_attempt.remove(&attempt);
            if let Attempt::Udp(socket) = attempt {
                cx.outputs.push_back(Output::CloseSocket(socket));
            }
            race.on_failed(cx.now, attempt, error);
            return self.advance(source, cx);
        }
        let Some(address) = race.address(attempt) else {
            return impossible("the attempt is of this race");
        };
        let others: Vec<_> = race.running().filter(|other| *other != attempt).collect();
        if let Some(look_up) = race.look_up() {
            self.by_query.remove(&look_up.query);
        }
        way.stage = match attempt {
            Attempt::Tcp(tcp) => Stage::Tcp(Socket::new(tcp)),
            Attempt::Udp(socket) => Stage::Udp(socket, address),
        };
        way.last = cx.now;
        for other in others {
            self.give_up(other, cx);
        }
        self.set_due(source, cx);
        Some(Outcome { source, result: Ok(()) })
    }

    fn give_up(&mut self, attempt: Attempt, cx: &mut Context<'_>) {
        self.by_attempt.remove(&attempt);
        cx.outputs.push_back(match attempt {
            Attempt::Udp(socket) => Output::CloseSocket(socket),
            Attempt::Tcp(tcp) => Output::Tcp(TcpOutput::Close(tcp)),
        });
    }

    /// Tries the next address of a target, or gives up if none is left.
    fn advance(&mut self, source: Source, cx: &mut Context<'_>) -> Option<Outcome> {
        while let Some(way) = self.ways.get_mut(&source)
            && let Stage::Reaching(race) = &mut way.stage
        {
            if race.wants_nat64() {
                let host = way.target.host.clone();
                let look_up = self.look_up(source, host, cx);
                if let Some(Way { stage: Stage::Reaching(race), .. }) = self.ways.get_mut(&source) {
                    race.expect(Further::From(look_up));
                }
                continue;
            }
            if let Some(error) = race.lost(cx.now) {
                let target = authority_of(&way.target.host, way.target.port).into();
                let error = ClientError::Direct(RequestError::Unreachable { target, error });
                return Some(self.lost(source, error, cx));
            }
            let Some(peer) = race.due(cx.now) else { break }; // not yet
            let attempt = if matches!(source, Source::Associate(_)) {
                Attempt::Udp(cx.open_socket(SocketKind::Connected(peer)))
            } else {
                let tcp = TcpId(FIRST_TCP + self.tcps);
                self.tcps += 1;
                cx.outputs.push_back(Output::Tcp(TcpOutput::Connect { tcp, peer, user: None }));
                Attempt::Tcp(tcp)
            };
            race.on_started(cx.now, attempt);
            self.by_attempt.insert(attempt, source);
        }
        self.set_due(source, cx);
        None
    }

    /// Forgets a way that cannot be opened.
    fn lost(&mut self, source: Source, error: ClientError, cx: &mut Context<'_>) -> Outcome {
        self.close(source, cx);
        Outcome { source, result: Err(error) }
    }

    fn set_due(&mut self, source: Source, cx: &Context<'_>) {
        let Some(way) = self.ways.get_mut(&source) else { return }; // it is lost
        self.due.remove(&(way.due, source));
        way.due = match &way.stage {
            Stage::Resolving(look_up) => look_up.deadline,
            Stage::Reaching(race) => race.next_timeout(),
            Stage::Udp(..) => way.last + cx.limits.flow_idle,
            Stage::Tcp(_) => return,
        };
        self.due.insert((way.due, source));
    }

    /// When something is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Does what is due. Returns the ways that were lost, and those of UDP payloads that were idle.
    pub(super) fn handle_timeout(&mut self, cx: &mut Context<'_>) -> (Vec<Outcome>, Vec<Source>) {
        let (mut lost, mut idle) = (Vec::new(), Vec::new());
        while let Some(&(due, source)) = self.due.first()
            && due <= cx.now
        {
            self.due.pop_first();
            let Some(way) = self.ways.get(&source) else {
                impossible::<()>("the timer of a way ends with it");
                continue;
            };
            match &way.stage {
                Stage::Resolving(_) => {
                    let (host, timeout) = (way.target.host.as_str().into(), cx.limits.dns_timeout);
                    let error = ClientError::Direct(RequestError::DnsTimeout { host, timeout });
                    lost.push(self.lost(source, error, cx));
                }
                Stage::Reaching(_) => lost.extend(self.advance(source, cx)),
                Stage::Udp(..) if way.last + cx.limits.flow_idle <= cx.now => {
                    self.close(source, cx);
                    idle.push(source);
                }
                Stage::Udp(..) => self.set_due(source, cx),
                Stage::Tcp(_) => impossible("an open connection has no timer"),
            }
        }
        (lost, idle)
    }

    /// Closes a way, after everything that was written. A source without one is left alone.
    pub(super) fn close(&mut self, source: Source, cx: &mut Context<'_>) {
        if let Some(mut socket) = self.forget(source, cx) {
            socket.close(cx.outputs);
        }
    }

    /// Resets the connection of a way.
    pub(super) fn reset(&mut self, source: Source, cx: &mut Context<'_>) {
        if let Some(mut socket) = self.forget(source, cx) {
            socket.reset(cx.outputs);
        }
    }

    /// Forgets a way. Returns its connection, if it has one.
    fn forget(&mut self, source: Source, cx: &mut Context<'_>) -> Option<Socket> {
        let way = self.ways.remove(&source)?; // it may have none
        self.due.remove(&(way.due, source));
        self.udp -= usize::from(matches!(source, Source::Associate(_)));
        match way.stage {
            Stage::Resolving(look_up) => {
                self.by_query.remove(&look_up.query);
            }
            Stage::Reaching(race) => {
                if let Some(look_up) = race.look_up() {
                    self.by_query.remove(&look_up.query);
                }
                for attempt in race.running().collect::<Vec<_>>() {
                    self.give_up(attempt, cx);
                }
            }
            Stage::Udp(socket, _) => self.give_up(Attempt::Udp(socket), cx),
            Stage::Tcp(socket) => {
                self.by_attempt.remove(&Attempt::Tcp(socket.tcp()));
                return Some(socket);
            }
        }
        None
    }

    /// Forgets all ways, because the client ends.
    pub(super) fn end_all(&mut self, cx: &mut Context<'_>) {
        for source in self.ways.keys().copied().collect::<Vec<_>>() {
            self.reset(source, cx);
        }
    }

    /// Handles that a socket towards a target is open, or cannot be opened.
    pub(super) fn on_socket_opened(
        &mut self,
        socket: SocketId,
        result: Result<SocketAddr, OsError>,
        cx: &mut Context<'_>,
    ) -> Option<Outcome> {
        self.on_attempt(Attempt::Udp(socket), result.map(|_| ()), cx)
    }

    /// Sends a payload of a program, or keeps it until the way is open. An error says that it was dropped.
    pub(super) fn send(
        &mut self,
        source: Source,
        payload: Bytes,
        cx: &mut Context<'_>,
    ) -> Result<(), io::ErrorKind> {
        let way = self.ways.get_mut(&source).ok_or(io::ErrorKind::NotFound)?;
        way.last = cx.now;
        if let Stage::Udp(socket, destination) = way.stage {
            self.push(socket, destination, (Bytes::new(), payload));
        } else if way.early.len() < cx.limits.early_datagrams_per_flow {
            way.early.push_back(payload);
        } else {
            return Err(io::ErrorKind::StorageFull);
        }
        Ok(())
    }

    /// Sends what has waited for a way that is open now.
    pub(super) fn send_early(&mut self, source: Source) {
        let Some(Way { stage: Stage::Udp(socket, destination), early, .. }) =
            self.ways.get_mut(&source)
        else {
            return impossible("a way of UDP payloads has just been opened");
        };
        let (socket, destination) = (*socket, *destination);
        for payload in std::mem::take(early) {
            self.push(socket, destination, (Bytes::new(), payload));
        }
    }

    /// Notes that a payload has come from a target.
    pub(super) fn on_received(&mut self, source: Source, now: Instant) {
        let Some(way) = self.ways.get_mut(&source) else {
            return impossible("a way forgets its socket when it ends");
        };
        way.last = now;
    }

    /// Adds a datagram to those that leave in this round: a payload, and what stands before it.
    pub(super) fn push(
        &mut self,
        socket: SocketId,
        destination: SocketAddr,
        (header, payload): (Bytes, Bytes),
    ) {
        self.outbox.push_back(Datagram { socket, destination, header, payload });
    }

    /// The next datagram that leaves.
    pub(super) fn poll_outbox(&mut self, buf: &mut Vec<u8>) -> Option<Output> {
        let Datagram { socket, destination, header, payload } = self.outbox.pop_front()?;
        buf.extend_from_slice(&header);
        buf.extend_from_slice(&payload);
        let size = buf.len();
        let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
        Some(Output::Transmit { socket, transmit })
    }
}

impl Tcp {
    /// Does what follows from what has become of a direct way.
    pub(super) fn on_direct(
        &mut self,
        outcome: Option<Outcome>,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        let Some(Outcome { source, result }) = outcome else { return }; // it is still being opened, or given up
        match (source, result) {
            (Source::Tcp(tcp), Ok(())) => self.on_direct_open(tcp, flows, cx),
            (Source::Tcp(tcp), Err(error)) => self.fail(tcp, error, flows, cx),
            (Source::Associate(_), Ok(())) => flows.direct.send_early(source),
            (Source::Associate(id), Err(error)) => {
                if let Some(service) = self.service_of(id) {
                    self.tell(service, &error, cx);
                }
                self.associations.forget(id);
            }
            (Source::Ahead(_) | Source::Udp(_) | Source::Own(_), _) => {
                impossible::<()>("no rule is asked about the flows of these");
            }
        }
    }
}

impl Programs {
    /// Handles the addresses of a target that is reached directly.
    pub(in crate::client) fn on_resolved(
        &mut self,
        query: QueryId,
        result: (Result<Vec<IpAddr>, ResolveError>, Progress),
        cx: &mut Context<'_>,
    ) {
        let outcome = self.flows.direct.on_resolved(query, result, cx);
        self.tcp.on_direct(outcome, &mut self.flows, cx);
    }

    /// Does what is due for direct ways.
    pub(super) fn handle_direct_timeout(&mut self, cx: &mut Context<'_>) {
        let (lost, idle) = self.flows.direct.handle_timeout(cx);
        for outcome in lost {
            self.tcp.on_direct(Some(outcome), &mut self.flows, cx);
        }
        for source in idle {
            if let Source::Associate(id) = source {
                self.tcp.associations.forget(id);
            }
        }
    }

    /// The next datagram between programs and targets that are reached directly.
    pub(in crate::client) fn poll_direct(&mut self, buf: &mut Vec<u8>) -> Option<Output> {
        self.flows.direct.poll_outbox(buf)
    }

    /// Sets the rules for the targets that programs name at the proxy port.
    pub(in crate::client) fn set_rules(&mut self, rules: Rules) {
        self.flows.direct.rules = Some(Box::new(rules));
    }

    pub(super) fn direct_timeout(&self, other: Option<Instant>) -> Option<Instant> {
        earliest(other, self.flows.direct.next_timeout())
    }
}

#[cfg(test)]
mod tests;
