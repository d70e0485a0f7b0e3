//! Names of targets that are being resolved, and sockets towards targets.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use tracing::warn;

use super::{
    FlowId, InUse, TargetPolicy,
    access::User,
    service::Attempt,
    users::{Counted, OpenPlace},
};
use crate::{
    error::RequestError,
    limits::Limits,
    node::{Output, Progress, QueryId, SocketId, SocketKind},
    quic::ConnectionId,
    seldom::Seldom,
    tcp::{TcpId, TcpOutput},
};

/// A connection may open another socket while this many times the sockets that it has are fewer
/// than the free ones. A single client can thus have a fifth of all sockets. The share falls as
/// sockets become scarce, so that it takes many connections to leave none for a new one.
const FREE_PER_HELD: usize = 4;

/// The sockets and queries of all flows.
pub(super) struct Targets {
    policy: TargetPolicy,
    by_socket: BTreeMap<SocketId, FlowId>,
    /// The local address of each socket that is open.
    sources: BTreeMap<SocketId, SocketAddr>,
    nested_max: u8,
    /// The TCP connections that are open or being opened.
    by_tcp: BTreeMap<TcpId, FlowId>,
    next_tcp: u64,
    /// How many sockets each connection has, TCP connections included; no entry is zero.
    held: BTreeMap<ConnectionId, usize>,
    sockets_max: usize,
    /// All sockets, and the look-ups in progress, including those of requests that have ended.
    in_use: InUse,
    /// Limits the warnings about connections that have their share of the sockets.
    refused: Seldom,
    by_query: BTreeMap<QueryId, FlowId>,
    /// The look-ups of this node that are in progress, as they count for their users.
    lookups: BTreeMap<QueryId, OpenPlace>,
    next_socket: u64,
    next_query: u64,
    queries_max: usize,
}

impl Targets {
    pub(super) fn new(
        policy: TargetPolicy,
        first_socket: u64,
        limits: &Limits,
        in_use: InUse,
    ) -> Self {
        Self {
            policy,
            by_socket: BTreeMap::new(),
            sources: BTreeMap::new(),
            nested_max: limits.nested,
            by_tcp: BTreeMap::new(),
            next_tcp: 0,
            held: BTreeMap::new(),
            sockets_max: limits.sockets,
            in_use,
            refused: Seldom::default(),
            by_query: BTreeMap::new(),
            lookups: BTreeMap::new(),
            next_socket: first_socket,
            next_query: 0,
            queries_max: limits.queries,
        }
    }

    /// Starts to resolve the name of a target.
    pub(super) fn query(
        &mut self,
        id: FlowId,
        host: String,
        user: &User,
    ) -> Result<(QueryId, Output), RequestError> {
        let place = user.place(Counted::Lookups)?;
        // A look-up counts until it is answered, even if its request has ended. Otherwise a client
        // could start any number of look-ups with short requests.
        if !self.in_use.begin_query(self.queries_max) {
            return Err(RequestError::TooManyQueries(self.queries_max));
        }
        // RFC 9298 §3.1: "if the target_host is a DNS name, the UDP proxy MUST perform DNS resolution
        // before replying to the HTTP request."
        let query = QueryId(self.next_query);
        self.next_query += 1;
        self.by_query.insert(query, id);
        self.lookups.insert(query, place);
        Ok((query, Output::Resolve { query, host }))
    }

    /// Forgets a query whose request has ended.
    pub(super) fn forget_query(&mut self, query: QueryId) {
        self.by_query.remove(&query);
    }

    /// The addresses that the policy and the user's limits permit, as connections to them are made.
    pub(super) fn permitted(
        &self,
        addresses: &[IpAddr],
        user: &User,
    ) -> Result<Vec<IpAddr>, RequestError> {
        let is_permitted =
            |address: &&IpAddr| self.policy.permits(**address) && user.account.may_reach(**address);
        let permitted = addresses.iter().filter(is_permitted);
        let permitted = permitted.map(IpAddr::to_canonical).collect::<Vec<_>>();
        if permitted.is_empty() {
            addresses.iter().try_for_each(|&address| self.check(address, user))?;
        }
        Ok(permitted)
    }

    /// Whether the policy and the user's limits permit an address.
    fn check(&self, address: IpAddr, user: &User) -> Result<(), RequestError> {
        if !self.policy.permits(address) {
            return Err(RequestError::TargetProhibited(address));
        }
        user.check_address(address)
    }

    /// Connects to an address of a target for a user, if there is a place for it among all sockets.
    pub(super) fn connect(
        &mut self,
        now: Instant,
        id: FlowId,
        (peer, user): (SocketAddr, Option<u64>),
    ) -> Result<(Attempt, Output), RequestError> {
        self.hold(now, id.0)?;
        let tcp = TcpId(self.next_tcp);
        self.next_tcp += 1;
        self.by_tcp.insert(tcp, id);
        Ok((Attempt::Tcp(tcp), Output::Tcp(TcpOutput::Connect { tcp, peer, user })))
    }

    /// The flow of a TCP connection.
    pub(super) fn flow_of_tcp(&self, tcp: TcpId) -> Option<FlowId> {
        self.by_tcp.get(&tcp).copied()
    }

    /// Forgets a TCP connection that has ended. A second call does nothing.
    pub(super) fn disconnect(&mut self, tcp: TcpId) {
        if let Some((id, _)) = self.by_tcp.remove(&tcp) {
            self.release_held(id);
        }
    }

    /// How many TCP connections are open or being opened.
    pub(super) fn connections(&self) -> usize {
        self.by_tcp.len()
    }

    /// Takes a place among all sockets.
    fn hold(&mut self, now: Instant, id: ConnectionId) -> Result<(), RequestError> {
        self.check_share(now, id)?;
        *self.held.entry(id).or_default() += 1;
        self.in_use.add_socket();
        Ok(())
    }

    fn release_held(&mut self, id: ConnectionId) {
        if let Some(held) = self.held.get_mut(&id) {
            *held -= 1;
            self.in_use.remove_socket();
            if *held == 0 {
                self.held.remove(&id);
            }
        }
    }

    /// Opens a socket for the payloads of a flow, if there is a place for it among all sockets.
    pub(super) fn open(
        &mut self,
        now: Instant,
        id: FlowId,
        kind: SocketKind,
    ) -> Result<(Attempt, Output), RequestError> {
        self.hold(now, id.0)?;
        let socket = SocketId(self.next_socket);
        self.next_socket += 1;
        self.by_socket.insert(socket, id);
        Ok((Attempt::Udp(socket), Output::OpenSocket { socket, kind }))
    }

    /// Whether a connection from this address may open flows: not if it comes through too many flows of the same
    /// process, in which each packet costs as many times its work.
    pub(super) fn check_nesting(&self, client: SocketAddr) -> Result<(), RequestError> {
        let nested = self.in_use.depth_of(client);
        if nested > self.nested_max { Err(RequestError::Loop { nested }) } else { Ok(()) }
    }

    /// Notes the local address of a socket, which was opened for a connection from this address.
    pub(super) fn on_opened(&mut self, socket: SocketId, local: SocketAddr, client: SocketAddr) {
        let depth = self.in_use.depth_of(client).saturating_add(1);
        self.in_use.add_source(local, depth);
        self.sources.insert(socket, local);
    }

    /// Whether a connection may open another socket.
    fn check_share(&mut self, now: Instant, id: ConnectionId) -> Result<(), RequestError> {
        let (held, sockets) = (self.held.get(&id).copied().unwrap_or_default(), self.sockets_max);
        let free = sockets.saturating_sub(self.in_use.sockets());
        if FREE_PER_HELD * held < free {
            return Ok(());
        }
        if let Some(left_out) = self.refused.due(now) {
            warn!(
                connection = id.0,
                held,
                free,
                sockets,
                left_out,
                "a connection has its share of the sockets towards targets, so its request is refused"
            );
        }
        Err(RequestError::TooManySockets { held, sockets })
    }

    /// Handles an answer to a query. Returns the flow that waits for it. `None`: the flow has
    /// ended, or has its target.
    pub(super) fn on_answer(&mut self, query: QueryId, progress: Progress) -> Option<FlowId> {
        if progress == Progress::Partial {
            return self.by_query.get(&query).copied();
        }
        self.in_use.end_query();
        self.lookups.remove(&query);
        self.by_query.remove(&query)
    }

    /// The flow of a socket.
    pub(super) fn flow_of(&self, socket: SocketId) -> Option<FlowId> {
        self.by_socket.get(&socket).copied()
    }

    /// Gives up the socket of a flow that ends. A second call finds nothing.
    ///
    /// RFC 9298 §3.1: "The UDP proxy MUST keep the socket open while the request stream is open."
    pub(super) fn close(&mut self, socket: SocketId) -> Output {
        if let Some((id, _)) = self.by_socket.remove(&socket) {
            self.release_held(id);
        }
        if let Some(local) = self.sources.remove(&socket) {
            self.in_use.remove_source(local);
        }
        Output::CloseSocket(socket)
    }

    /// How many UDP sockets are open or being opened.
    pub(super) fn sockets(&self) -> usize {
        self.by_socket.len()
    }

    /// Whether no flow has a socket or waits for one.
    pub(super) fn is_idle(&self) -> bool {
        self.by_socket.is_empty() && self.by_tcp.is_empty() && self.by_query.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::quic::StreamId;

    const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)), 53);

    fn open(targets: &mut Targets, now: Instant, id: FlowId) -> Result<SocketId, RequestError> {
        let (Attempt::Udp(socket), _) = targets.open(now, id, SocketKind::Connected(ADDRESS))?
        else {
            panic!("no UDP")
        };
        Ok(socket)
    }

    /// Opens as many sockets for a connection as it gets. Returns them, and the error that the next one
    /// got.
    fn take_all(targets: &mut Targets, connection: u64) -> (Vec<SocketId>, RequestError) {
        #[expect(clippy::disallowed_methods, reason = "the time does not matter")]
        let now = Instant::now();
        let id = (ConnectionId(connection), StreamId(0));
        let mut taken = Vec::new();
        loop {
            match open(targets, now, id) {
                Ok(socket) => taken.push(socket),
                Err(error) => return (taken, error),
            }
        }
    }

    #[test]
    fn no_connection_takes_all_sockets_and_a_new_one_gets_its_first() {
        let limits = Limits { sockets: 100, ..Limits::default() };
        let mut targets = Targets::new(TargetPolicy::default(), 1, &limits, InUse::default());
        let (greedy, error) = take_all(&mut targets, 0);
        assert_eq!(greedy.len(), 20, "a fifth");
        assert_eq!(error, RequestError::TooManySockets { held: 20, sockets: 100 });
        let (status, error_type) = error.response();
        assert_eq!((status.as_u16(), error_type), (503, Some("connection_limit_reached")));
        // Each further connection gets a share of what is left, until nothing is.
        let mut shares = Vec::new();
        for connection in 1.. {
            match take_all(&mut targets, connection).0.len() {
                0 => break,
                share => shares.push(share),
            }
        }
        assert_eq!(shares.iter().sum::<usize>(), 80, "no socket is left over");
        assert!(shares.is_sorted_by(|one, next| one >= next), "{shares:?}");
        assert!(shares.len() > 12, "it takes many connections: {shares:?}");
        assert_eq!(targets.sockets(), limits.sockets);
        // A socket that is given up is for others first.
        for socket in greedy.iter().take(2) {
            targets.close(*socket);
        }
        assert_eq!(take_all(&mut targets, 0).0.len(), 0);
        assert_eq!(take_all(&mut targets, 1000).0.len(), 1);
    }

    #[test]
    fn proxies_of_one_process_share_the_sockets() {
        let limits = Limits { sockets: 100, ..Limits::default() };
        let in_use = InUse::default();
        let new = || Targets::new(TargetPolicy::default(), 1, &limits, in_use.clone());
        let (mut one, mut other) = (new(), new());
        let (taken, _) = take_all(&mut one, 0);
        assert_eq!((taken.len(), in_use.sockets()), (20, 20), "a fifth of all");
        assert_eq!(take_all(&mut other, 1).0.len(), 16, "a fifth of the others");
        for socket in taken {
            one.close(socket);
        }
        assert_eq!(in_use.sockets(), 16);
        assert_eq!(take_all(&mut other, 2).0.len(), 17);
    }

    #[test]
    fn connections_through_too_many_flows_of_one_process_get_no_more() {
        let limits = Limits { nested: 2, ..Limits::default() };
        let in_use = InUse::default();
        let new = || Targets::new(TargetPolicy::default(), 1, &limits, in_use.clone());
        let (mut one, mut other) = (new(), new());
        #[expect(clippy::disallowed_methods, reason = "the time does not matter")]
        let now = Instant::now();
        let address = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let mapped = |port| SocketAddr::new("::ffff:192.0.2.1".parse().unwrap(), port);
        // The client's own port, then that of each flow from which the next connection comes.
        let mut sockets = Vec::new();
        for (port, next) in [(1, 2), (2, 3), (3, 4)] {
            let targets = if port % 2 == 0 { &mut one } else { &mut other };
            targets.check_nesting(mapped(port)).unwrap();
            let id = (ConnectionId(port.into()), StreamId(0));
            let socket = open(targets, now, id).unwrap();
            targets.on_opened(socket, address(next), mapped(port));
            sockets.push(socket);
        }
        let error = one.check_nesting(address(4)).unwrap_err();
        assert_eq!(error, RequestError::Loop { nested: 3 });
        assert_eq!(error.response().1, Some("proxy_loop_detected"));
        other.check_nesting(address(5)).unwrap();
        // The port of a flow that has ended is somebody else's.
        other.close(sockets[2]);
        other.check_nesting(address(4)).unwrap();
    }

    #[test]
    fn a_connection_that_gives_up_its_sockets_has_its_whole_share_again() {
        let limits = Limits { sockets: 100, ..Limits::default() };
        let mut targets = Targets::new(TargetPolicy::default(), 1, &limits, InUse::default());
        for _ in 0..3 {
            let (taken, _) = take_all(&mut targets, 0);
            assert_eq!(taken.len(), 20);
            for socket in taken {
                targets.close(socket);
                targets.close(socket); // the second call finds nothing
            }
            assert!(targets.is_idle() && targets.held.is_empty());
        }
    }

    #[test]
    fn a_flow_that_ends_gives_up_its_socket_or_its_query() {
        let limits = Limits { queries: 1, ..Limits::default() };
        let mut targets = Targets::new(TargetPolicy::default(), 1, &limits, InUse::default());
        let id = (ConnectionId(0), StreamId(0));
        #[expect(clippy::disallowed_methods, reason = "the time does not matter")]
        let now = Instant::now();
        let socket = open(&mut targets, now, id).unwrap();
        let mut look_up = |host: &str| targets.query(id, host.to_owned(), &User::test());
        let (query, _) = look_up("example.org").unwrap();
        let refused = look_up("example.com");
        assert!(matches!(refused, Err(RequestError::TooManyQueries(1))), "another is looked up");
        // Whether or not it was opened: the driver learns that the node does not name it again.
        assert!(matches!(targets.close(socket), Output::CloseSocket(SocketId(1))));
        targets.forget_query(query);
        assert!(targets.is_idle() && targets.sockets() == 0);
        let mut look_up = |host: &str| targets.query(id, host.to_owned(), &User::test());
        assert!(look_up("example.org").is_err(), "it is still looked up");
        assert_eq!(targets.on_answer(query, Progress::Complete), None);
        assert!(targets.query(id, "example.org".to_owned(), &User::test()).is_ok());
    }
}
