//! The server side of HTTP/3, which the proxy and the origin share. It handles the start, the
//! errors and the end of connections.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use bytes::BytesMut;
use tandem_wire::Code;
use tracing::debug;

use crate::{
    carrier::Carrier,
    h3::{self, Session, Side},
    hand_over::{BusyNodes, HandOver},
    limits::Limits,
    node::{Ecn, Transmit},
    path_report::PathReport,
    quic::{self, Connection, ConnectionId, Endpoint, ServerTls, Transport},
    rounds::Party,
    seldom::LineBudget,
    stats::{Broken, ConnectionStats, Stats},
    status::{Busiest, Carried, ConnectionStatus, Glance, Status},
};

/// An event at a server.
#[derive(Debug)]
pub(crate) enum Event {
    /// A connection from this address was accepted. Its handshake is in progress.
    Opened(SocketAddr),
    /// The handshake is complete.
    Connected,
    /// HTTP/3 has an event on the connection.
    Http(h3::Event),
    /// The connection has received datagrams.
    Datagrams,
    /// The peer or an error has ended the connection. What arrived before can still be read, until
    /// [`Server::forget`] is called.
    Lost,
    /// The connection was forgotten.
    Closed,
}

/// How many path reports of closed connections are kept until somebody takes them.
const ENDED_PATHS_MAX: usize = 1024;

/// The server side of HTTP/3.
pub(crate) struct Server {
    endpoint: Endpoint,
    sessions: BTreeMap<ConnectionId, Box<Session>>,
    events: VecDeque<(ConnectionId, Event)>,
    limits: Limits,
    connections: u64,
    broken: Broken,
    /// Another process has taken over.
    handed_over: Option<HandOver>,
    /// When to close the remaining connections, while the server drains.
    drain: Option<Instant>,
    /// When to stop waiting for closed connections, after all have been closed.
    goodbye: Option<Instant>,
    /// The packets sent on connections that have ended.
    sent_packets: u64,
    lost_packets: u64,
    /// What PEPs have shown of connections that have ended since somebody asked.
    ended_paths: VecDeque<PathReport>,
    /// Bounds the lines of the log about these.
    path_lines: LineBudget,
    busiest: Busiest,
}

impl Server {
    pub(crate) fn new(
        tls: &ServerTls,
        transport: &Transport,
        limits: &Limits,
        seed: Option<u64>,
    ) -> Self {
        Self {
            endpoint: Endpoint::server(tls, transport, limits, seed),
            sessions: BTreeMap::new(),
            events: VecDeque::new(),
            limits: limits.clone(),
            connections: 0,
            broken: Broken::default(),
            handed_over: None,
            drain: None,
            goodbye: None,
            sent_packets: 0,
            lost_packets: 0,
            ended_paths: VecDeque::new(),
            path_lines: LineBudget::default(),
            busiest: Busiest::default(),
        }
    }

    /// Handles a received UDP payload. Returns whose turns the connection takes that got it.
    pub(crate) fn handle_datagram(
        &mut self,
        now: Instant,
        from: (SocketAddr, Option<IpAddr>),
        ecn: Option<Ecn>,
        payload: BytesMut,
    ) -> Option<Party<ConnectionId>> {
        self.endpoint.handle_datagram(now, from, ecn, payload)
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.endpoint.handle_timeout(now);
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let own = quic::earliest(self.drain, self.goodbye);
        let handed_over = self.handed_over.as_ref().and_then(HandOver::next_timeout);
        let own = quic::earliest(own, handed_over);
        quic::earliest(self.endpoint.next_timeout(), own)
    }

    /// Notes that the peer of a connection has made a request that is permitted. Connections without
    /// one are the first to be closed for lack of room.
    pub(crate) fn prove(&mut self, id: ConnectionId) {
        self.endpoint.prove(id);
    }

    /// Notes which user a connection belongs to.
    pub(crate) fn set_user(&mut self, id: ConnectionId, user: u64) {
        self.endpoint.set_user(id, user);
    }

    /// Sets the memory of the process that is in use, in bytes. If it is too much, connections are
    /// closed. `memory` says how many bytes the node itself holds for a connection.
    pub(crate) fn set_memory_in_use(
        &mut self,
        now: Instant,
        bytes: u64,
        memory: impl Fn(ConnectionId) -> u64,
    ) {
        let Self { endpoint, sessions, .. } = self;
        let of_session = |id| sessions.get(&id).map_or(0, |session| session.memory()) as u64;
        endpoint.set_memory_in_use(now, bytes, |id| memory(id) + of_session(id));
    }

    /// Sets the TLS settings of new connections.
    pub(crate) fn set_tls(&mut self, tls: &ServerTls) {
        self.endpoint.set_tls(tls);
    }

    /// A connection, even if HTTP/3 has ended on it.
    pub(crate) fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.endpoint.peek(id)
    }

    /// An open connection, which gets a turn to send. `None`: it has ended.
    pub(crate) fn carrier(&mut self, id: ConnectionId) -> Option<Carrier<'_>> {
        Some(Carrier::new(self.sessions.get_mut(&id)?, self.endpoint.connection(id)?))
    }

    /// Gives a connection a turn to send, so that its tunnel is fed.
    pub(crate) fn wake(&mut self, id: ConnectionId) {
        self.endpoint.touch(id);
    }

    /// The next event.
    pub(crate) fn poll_event(&mut self, now: Instant) -> Option<(ConnectionId, Event)> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let (id, event) = self.endpoint.poll_event()?;
            self.on_quic_event(now, id, &event);
        }
    }

    fn on_quic_event(&mut self, now: Instant, id: ConnectionId, event: &quic::Event) {
        match event {
            quic::Event::Accepted { remote } => {
                debug!(connection = id.0, client = %remote, "connection accepted");
                let session = Session::new(Side::Server, &self.limits);
                self.sessions.insert(id, Box::new(session));
                self.events.push_back((id, Event::Opened(*remote)));
            }
            quic::Event::Connected => {
                self.connections += 1;
                self.events.push_back((id, Event::Connected));
            }
            quic::Event::Lost(reason) => {
                debug!(connection = id.0, %reason, "connection lost");
                if matches!(reason, quic::Closed::Violation(_)) {
                    self.broken.quic += 1;
                }
                return self.events.push_back((id, Event::Lost));
            }
            quic::Event::Datagrams => return self.events.push_back((id, Event::Datagrams)),
            _ => {}
        }
        let Self { sessions, endpoint, .. } = self;
        let (Some(session), Some(connection)) = (sessions.get_mut(&id), endpoint.connection(id))
        else {
            return; // HTTP/3 has ended on it
        };
        if let Err(error) = session.on_quic_event(connection, event) {
            return self.break_connection(now, id, &error);
        }
        while let Some(event) = session.poll_event() {
            self.events.push_back((id, Event::Http(event)));
        }
    }

    /// Closes a connection whose peer violated the protocol, with the error code of the RFC.
    pub(crate) fn break_connection(
        &mut self,
        now: Instant,
        id: ConnectionId,
        error: &h3::ConnectionError,
    ) {
        debug!(connection = id.0, code = %error.code, reason = %error.reason, "connection broken");
        self.broken.count(error.code);
        self.end(now, id, error.code, &error.reason.to_string());
    }

    fn end(&mut self, now: Instant, id: ConnectionId, code: Code, reason: &str) {
        if let Some(connection) = self.endpoint.connection(id) {
            connection.close(now, code, reason);
        }
        self.forget(now, id);
    }

    /// Forgets a connection that has ended.
    pub(crate) fn forget(&mut self, now: Instant, id: ConnectionId) {
        if self.sessions.remove(&id).is_none() {
            return;
        }
        if let Some(connection) = self.endpoint.peek(id) {
            let last = connection.stats();
            self.sent_packets += last.sent_packets;
            self.lost_packets += last.lost_packets;
            if let Some(report) = path_report(id, connection, true) {
                if let Some(left_out) = self.path_lines.due(now) {
                    report.tell(left_out);
                }
                if self.ended_paths.len() >= ENDED_PATHS_MAX {
                    self.ended_paths.pop_front();
                }
                self.ended_paths.push_back(report);
            }
        }
        self.events.push_back((id, Event::Closed));
    }

    /// Another process gets new connections from now on. Those of this one go on, with new requests too.
    pub(crate) fn hand_over(&mut self, now: Instant, busy: BusyNodes) {
        if self.drain.is_none() {
            self.handed_over = Some(HandOver::new(now + self.limits.hand_over, busy));
        }
    }

    /// The other process has died.
    pub(crate) fn take_back(&mut self) {
        self.handed_over = None;
    }

    /// Accepts no more connections and requests, but lets those in progress continue for a while.
    /// The second call ends them.
    pub(crate) fn drain(&mut self, now: Instant) {
        let until = if self.drain.is_some() { now } else { now + self.limits.drain };
        self.drain = Some(until);
        self.handed_over = None;
        self.endpoint.stop_accepting();
        let ids: Vec<_> = self.sessions.keys().copied().collect();
        for id in ids {
            if let Some(mut carrier) = self.carrier(id) {
                carrier.send_goaway();
            }
        }
    }

    /// Closes all connections when the server is to end and is idle, or when the drain has taken too long.
    /// Returns whether it has closed them now.
    pub(crate) fn finish_drain(&mut self, now: Instant, is_idle: bool) -> bool {
        if let Some(handed_over) = &mut self.handed_over {
            handed_over.note(now, is_idle, self.endpoint.connections() > 0);
        }
        let is_over = self.drain.is_some_and(|until| is_idle || until <= now);
        if is_over {
            self.drain = None;
            self.end_all(now, "shutting down");
        }
        is_over
    }

    /// Closes all connections. [`Server::take_ended`] says when the engine has no connection left.
    fn end_all(&mut self, now: Instant, reason: &str) {
        self.goodbye = Some(now + self.limits.goodbye);
        let ids: Vec<_> = self.sessions.keys().copied().collect();
        for id in ids {
            self.end(now, id, Code::H3_NO_ERROR, reason);
        }
    }

    /// Whether all connections have been closed, or the time to wait for that is over. Returns true
    /// only once.
    pub(crate) fn take_ended(&mut self, now: Instant) -> bool {
        let has_ended =
            self.goodbye.is_some_and(|until| until <= now || self.endpoint.connections() == 0);
        if has_ended {
            self.goodbye = None;
        }
        has_ended
    }

    /// The next packets to send, at the end of `buf`. `feed` is called before each connection's
    /// turn, so that the caller can give it data to send.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        buf: &mut Vec<u8>,
        mut feed: impl FnMut(ConnectionId, Carrier<'_>),
    ) -> Option<Transmit> {
        if let Some(transmit) = self.endpoint.poll_answer(buf) {
            return Some(transmit);
        }
        while let Some(id) = self.endpoint.next_ready() {
            if let Some(session) = self.sessions.get_mut(&id)
                && let Some(connection) = self.endpoint.peek(id)
            {
                session.begin(connection);
                feed(id, Carrier::new(session, connection));
            }
            if let Some(transmit) = self.endpoint.poll_transmit(now, id, buf) {
                return Some(transmit);
            }
        }
        None
    }

    /// The state of the server, with this number of its busiest connections. `stats` has the counters of the
    /// node.
    pub(crate) fn status(&mut self, mut stats: Stats, busiest: usize) -> Status {
        let (mut rtts, mut carried) = (Vec::new(), Vec::new());
        self.add_to(&mut stats, |id, now| {
            rtts.push(now.smoothed_rtt);
            let (to_client, from_client) = (now.to_peer_bytes, now.from_peer_bytes);
            carried.push(Carried { id, to_client, from_client });
        });
        let busiest = self.busiest.of(carried, busiest);
        let busiest = busiest.into_iter().filter_map(|it| {
            let stats = self.endpoint.peek(it.id)?.stats();
            Some(ConnectionStatus {
                connection: it.id.0,
                stats,
                to_client_bytes: it.to_client,
                from_client_bytes: it.from_client,
                tunnel: None,
            })
        });
        let busiest = busiest.collect();
        let is_ending =
            self.handed_over.is_some() || self.drain.is_some() || self.goodbye.is_some();
        let takes_connections = !is_ending && self.endpoint.has_memory();
        Status { stats, takes_connections, rtts, busiest, ..Status::default() }
    }

    /// Adds the counters of this server. `each` sees all open connections, the oldest first.
    pub(crate) fn add_to(
        &mut self,
        stats: &mut Stats,
        mut each: impl FnMut(ConnectionId, &Glance),
    ) {
        stats.connections = self.connections;
        stats.connections_open = self.sessions.len() as u64;
        stats.connections_broken = self.broken.total();
        stats.broken = self.broken;
        stats.accepting = self.endpoint.accepting();
        stats.unusable_packets = self.endpoint.unusable_packets();
        stats.pep_acks = self.endpoint.pep_acks();
        let (sent, lost) = self.endpoint.abandoned_packets();
        stats.sent_packets = self.sent_packets + sent;
        stats.lost_packets = self.lost_packets + lost;
        let Self { endpoint, sessions, .. } = self;
        for &id in sessions.keys() {
            let Some(now) = endpoint.peek(id).map(Connection::glance) else { continue }; // it has ended
            stats.sent_packets += now.sent_packets;
            stats.lost_packets += now.lost_packets;
            each(id, &now);
        }
    }

    /// What PEPs have shown of the path of each open connection, and of those that have ended since the
    /// last call.
    pub(crate) fn take_path_reports(&mut self) -> Vec<PathReport> {
        let Self { endpoint, sessions, ended_paths, .. } = self;
        let open = sessions.keys().filter_map(|&id| path_report(id, endpoint.peek(id)?, false));
        ended_paths.drain(..).chain(open).collect()
    }

    /// All open connections, the oldest first.
    pub(crate) fn connections(&mut self) -> impl Iterator<Item = ConnectionStats> {
        let Self { endpoint, sessions, .. } = self;
        sessions.keys().filter_map(|&id| endpoint.peek(id).map(quic::Connection::stats))
    }
}

/// What PEPs have shown of the path of a connection.
fn path_report(
    id: ConnectionId,
    connection: &mut Connection,
    has_ended: bool,
) -> Option<PathReport> {
    let client = connection.path().map(|path| path.client);
    let domains = connection.stats().domains?;
    Some(PathReport { connection: id.0, client, has_ended, domains })
}
