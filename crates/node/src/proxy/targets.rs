//! Names of targets that are being resolved, and sockets towards targets.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use super::{FlowId, TargetPolicy, flow::State};
use crate::{
    error::RequestError,
    limits::Limits,
    node::{Output, QueryId, ResolveError, SocketId, SocketKind},
};

/// The sockets and queries of all flows.
pub(super) struct Targets {
    policy: TargetPolicy,
    by_socket: BTreeMap<SocketId, FlowId>,
    by_query: BTreeMap<QueryId, FlowId>,
    next_socket: u64,
    next_query: u64,
    /// Look-ups in progress, including those of requests that have ended.
    queries: usize,
    queries_max: usize,
    dns_timeout: Duration,
}

impl Targets {
    pub(super) fn new(policy: TargetPolicy, first_socket: u64, limits: &Limits) -> Self {
        Self {
            policy,
            by_socket: BTreeMap::new(),
            by_query: BTreeMap::new(),
            next_socket: first_socket,
            next_query: 0,
            queries: 0,
            queries_max: limits.queries,
            dns_timeout: limits.dns_timeout,
        }
    }

    /// Starts to reach a target: resolves its name, or opens a socket to its address.
    pub(super) fn reach(
        &mut self,
        now: Instant,
        id: FlowId,
        (host, port): (String, u16),
    ) -> Result<(State, Output), RequestError> {
        match host.parse() {
            Ok(address) => self.open(id, address, port),
            Err(_) => self.resolve(now, id, host),
        }
    }

    fn resolve(
        &mut self,
        now: Instant,
        id: FlowId,
        host: String,
    ) -> Result<(State, Output), RequestError> {
        // A look-up counts until it is answered, even if its request has ended. Otherwise a client
        // could start any number of look-ups with short requests.
        if self.queries >= self.queries_max {
            return Err(RequestError::TooManyQueries(self.queries_max));
        }
        self.queries += 1;
        // RFC 9298 §3.1: "if the target_host is a DNS name, the UDP proxy MUST perform DNS resolution
        // before replying to the HTTP request."
        let query = QueryId(self.next_query);
        self.next_query += 1;
        self.by_query.insert(query, id);
        let deadline = now + self.dns_timeout;
        Ok((State::Resolving { query, deadline }, Output::Resolve { query, host }))
    }

    fn open(
        &mut self,
        id: FlowId,
        address: IpAddr,
        port: u16,
    ) -> Result<(State, Output), RequestError> {
        if !self.policy.permits(address) {
            return Err(RequestError::TargetProhibited(address));
        }
        let socket = SocketId(self.next_socket);
        self.next_socket += 1;
        self.by_socket.insert(socket, id);
        let target = SocketAddr::new(address.to_canonical(), port);
        let output = Output::OpenSocket { socket, kind: SocketKind::Connected(target) };
        Ok((State::Opening { socket, target }, output))
    }

    /// Handles the answer to a query. Returns the flow that waits for it. `None`: the flow has
    /// ended.
    pub(super) fn on_answer(&mut self, query: QueryId) -> Option<FlowId> {
        self.queries = self.queries.saturating_sub(1);
        self.by_query.remove(&query)
    }

    /// Opens a socket to the first address of a name that the policy permits.
    pub(super) fn open_resolved(
        &mut self,
        id: FlowId,
        (host, port): (String, u16),
        result: Result<Vec<IpAddr>, ResolveError>,
    ) -> Result<(State, Output), RequestError> {
        // RFC 9298 §3.1: "If errors occur during this process, the UDP proxy MUST reject the request".
        let addresses = result.map_err(|error| RequestError::Dns { host: host.clone(), error })?;
        // Addresses are checked after resolution, so that no name leads to an internal address.
        let permitted = addresses.iter().find(|&&address| self.policy.permits(address));
        match permitted.or(addresses.first()) {
            Some(&address) => self.open(id, address, port),
            None => Err(RequestError::Dns { host, error: ResolveError::NotFound }),
        }
    }

    /// The flow of a socket.
    pub(super) fn flow_of(&self, socket: SocketId) -> Option<FlowId> {
        self.by_socket.get(&socket).copied()
    }

    /// Releases the query or the socket of a flow that ends.
    ///
    /// RFC 9298 §3.1: "The UDP proxy MUST keep the socket open while the request stream is open."
    pub(super) fn release(&mut self, state: &State) -> Option<Output> {
        match state {
            State::Resolving { query, .. } => {
                self.by_query.remove(query);
                None
            }
            State::Opening { socket, .. } | State::Open { socket, .. } => {
                self.by_socket.remove(socket);
                Some(Output::CloseSocket(*socket))
            }
        }
    }

    /// How many sockets are open or being opened.
    pub(super) fn sockets(&self) -> usize {
        self.by_socket.len()
    }

    /// Whether no flow has a socket or waits for one.
    pub(super) fn is_idle(&self) -> bool {
        self.by_socket.is_empty() && self.by_query.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::{ConnectionId, StreamId};

    #[test]
    fn a_flow_that_ends_gives_up_its_socket_or_its_query() {
        let limits = Limits { queries: 1, ..Limits::default() };
        let mut targets = Targets::new(TargetPolicy::default(), 1, &limits);
        let id = (ConnectionId(0), StreamId(0));
        #[expect(clippy::disallowed_methods, reason = "the time does not matter")]
        let now = Instant::now();
        let mut reach = |host: &str| targets.reach(now, id, (host.to_owned(), 53)).unwrap().0;
        let (opening, resolving) = (reach("1.1.1.1"), reach("example.org"));
        // Whether or not it was opened: the driver learns that the node does not name it again.
        assert!(matches!(targets.release(&opening), Some(Output::CloseSocket(SocketId(1)))));
        assert!(targets.release(&resolving).is_none());
        assert!(targets.is_idle() && targets.sockets() == 0);
        let refused = targets.reach(now, id, ("example.org".to_owned(), 53));
        assert!(matches!(refused, Err(RequestError::TooManyQueries(1))), "it is still looked up");
        assert_eq!(targets.on_answer(QueryId(0)), None);
        assert!(targets.reach(now, id, ("example.org".to_owned(), 53)).is_ok());
    }
}
