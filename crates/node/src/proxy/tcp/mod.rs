//! TCP connections to targets: CONNECT (RFC 9114 §4.4), and templated CONNECT-TCP
//! (draft-ietf-httpbis-connect-tcp).

mod race;
mod relay;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use http::HeaderMap;
use tracing::info;

use self::race::Race;
use super::{
    FlowId, Proxy, ProxyConfig, access::User, answer::connected, flow::Owner, flow_log::Line,
    ports::TcpPorts,
};
use crate::{
    error::RequestError,
    h3,
    node::{Output, QueryId, ResolveError},
    quic::{ConnectionId, StreamId, earliest},
    tcp::{Form, Socket, Splice, TcpId, TcpInput, TcpOutput, TunnelStream},
    timers::move_timer,
    tunnel::urgency,
};

/// The memory of an idle TCP connection in bytes, with its request stream and its socket.
const FLOW_MEMORY: usize = 4000;

/// A request for a TCP connection.
#[derive(Debug)]
struct TcpFlow {
    state: State,
    form: Form,
    owner: Owner,
    /// The target's host and port.
    target: (String, u16),
    timer: Option<Instant>,
    /// When bytes may pass again, after the user's rate has been reached.
    resume_at: Option<Instant>,
    /// Whether the connection waits for a round in which its user has credit.
    is_waiting: bool,
}

#[derive(Debug)]
enum State {
    /// The target's name is being resolved.
    Resolving { query: QueryId, deadline: Instant },
    /// The connection is being opened.
    Connecting(Race),
    /// The request is granted.
    Open { splice: Splice, target: SocketAddr },
}

impl TcpFlow {
    /// The connections that it has, each of which has a place among all sockets.
    fn connections(&self) -> Vec<TcpId> {
        match &self.state {
            State::Resolving { .. } => Vec::new(),
            State::Connecting(race) => race.running().collect(),
            State::Open { splice, .. } => vec![splice.socket.tcp()],
        }
    }

    fn open(&mut self) -> Option<&mut Splice> {
        match &mut self.state {
            State::Open { splice, .. } => Some(splice),
            State::Resolving { .. } | State::Connecting(_) => None,
        }
    }

    fn timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Resolving { deadline, .. } => Some(*deadline),
            State::Connecting(race) => Some(race.next_timeout()),
            State::Open { .. } => earliest(self.resume_at, self.owner.user.until),
        }
    }
}

/// The TCP connections of all clients.
pub(super) struct TcpFlows {
    /// The only target of this proxy.
    service: Option<(String, u16)>,
    /// The ports of all other targets.
    ports: TcpPorts,
    flows: BTreeMap<FlowId, TcpFlow>,
    by_tcp: BTreeMap<TcpId, FlowId>,
    timers: BTreeSet<(Instant, FlowId)>,
    next_tcp: u64,
}

impl TcpFlows {
    pub(super) const fn new(service: Option<(String, u16)>, ports: TcpPorts) -> Self {
        Self {
            service,
            ports,
            flows: BTreeMap::new(),
            by_tcp: BTreeMap::new(),
            timers: BTreeSet::new(),
            next_tcp: 0,
        }
    }

    pub(super) const fn is_only_service(&self) -> bool {
        self.service.is_some()
    }

    /// How many flows a connection has.
    pub(super) fn of(&self, id: ConnectionId) -> usize {
        self.flows.range((id, StreamId(0))..=(id, StreamId(u64::MAX))).count()
    }

    pub(super) fn has(&self, id: FlowId) -> bool {
        self.flows.contains_key(&id)
    }

    /// The number of connections that are open.
    pub(super) fn open(&self) -> usize {
        self.by_tcp.len()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(due, _)| due)
    }

    fn of_connection(&self, id: ConnectionId) -> impl Iterator<Item = (&FlowId, &TcpFlow)> {
        self.flows.range((id, StreamId(0))..=(id, StreamId(u64::MAX)))
    }

    /// The bytes of memory that the TCP connections of a client take.
    pub(super) fn memory_of(&self, id: ConnectionId) -> u64 {
        let memory = |flow: &TcpFlow| match &flow.state {
            State::Open { splice, .. } => FLOW_MEMORY + splice.socket.unwritten(),
            State::Resolving { .. } | State::Connecting(_) => FLOW_MEMORY,
        };
        self.of_connection(id).map(|(_, flow)| memory(flow)).sum::<usize>() as u64
    }

    /// Sets the timer of a flow.
    fn set_timer(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let timer = flow.timeout();
        move_timer(&mut self.timers, id, &mut flow.timer, timer);
    }

    /// Removes a flow.
    fn remove(&mut self, id: FlowId) -> Option<TcpFlow> {
        let mut flow = self.flows.remove(&id)?;
        move_timer(&mut self.timers, id, &mut flow.timer, None);
        for tcp in flow.connections() {
            self.by_tcp.remove(&tcp);
        }
        Some(flow)
    }
}

impl Proxy {
    /// Opens a TCP connection for a permitted request.
    pub(super) fn open_tcp(
        &mut self,
        now: Instant,
        id: FlowId,
        (user, headers): (User, &HeaderMap),
        (target, form): ((String, u16), Form),
    ) -> Result<(), RequestError> {
        let target = self.service_or(target)?;
        let owner = self.owner(now, id, user, headers)?;
        let state = if let Ok(address) = target.0.parse() {
            State::Connecting(self.race(now, &[address], target.1, &owner.user)?)
        } else {
            let (query, output) = self.targets.query(id, target.0.clone(), &owner.user)?;
            self.outputs.push_back(output);
            State::Resolving { query, deadline: now + self.limits.dns_timeout }
        };
        let peer = self.peers.get_mut(id.0).ok_or(RequestError::Unauthorized)?;
        peer.tunnel.open_bytes(id.1, urgency(headers), 1);
        let (timer, resume_at) = (None, None);
        let flow = TcpFlow { state, form, owner, target, timer, resume_at, is_waiting: false };
        self.tcp.flows.insert(id, flow);
        self.advance_race(now, id);
        Ok(())
    }

    /// The proxy's only service, if it has one and the request is for it. Otherwise it is the target,
    /// if the proxy opens connections to its port.
    fn service_or(&self, target: (String, u16)) -> Result<(String, u16), RequestError> {
        match &self.tcp.service {
            Some(service) if target.0 == ProxyConfig::SERVICE || target == *service => {
                Ok(service.clone())
            }
            Some(_) => Err(RequestError::OtherService),
            None if !self.tcp.ports.permits(target.1) => {
                Err(RequestError::PortProhibited(target.1))
            }
            None => Ok(target),
        }
    }

    fn race(
        &self,
        now: Instant,
        found: &[IpAddr],
        port: u16,
        user: &User,
    ) -> Result<Race, RequestError> {
        let deadline = now + self.limits.connect_timeout;
        if self.tcp.is_only_service() {
            return Ok(Race::new(found, port, now, deadline)); // the operator chose it
        }
        let permitted = self.targets.permitted(found, user)?;
        Ok(Race::new(&permitted, port, now, deadline))
    }

    /// Handles the addresses of a target.
    pub(super) fn on_tcp_resolved(
        &mut self,
        now: Instant,
        id: FlowId,
        result: Result<Vec<IpAddr>, ResolveError>,
    ) {
        let Some(flow) = self.tcp.flows.get(&id) else { return };
        let (host, port) = flow.target.clone();
        let found = match result {
            Ok(found) if found.is_empty() => Err(ResolveError::NotFound),
            other => other,
        };
        let race = found
            .map_err(|error| RequestError::Dns { host: host.into(), error })
            .and_then(|found| self.race(now, &found, port, &flow.owner.user));
        match (race, self.tcp.flows.get_mut(&id)) {
            (Ok(race), Some(flow)) => {
                flow.state = State::Connecting(race);
                self.advance_race(now, id);
            }
            (Err(error), _) => self.refuse_tcp(id, &error),
            (Ok(_), None) => {}
        }
    }

    /// Tries the next address of a target, or refuses the request if none is left.
    fn advance_race(&mut self, now: Instant, id: FlowId) {
        while let Some(TcpFlow { state: State::Connecting(race), target, owner, .. }) =
            self.tcp.flows.get_mut(&id)
        {
            if let Some(kind) = race.lost(now) {
                let target = format!("{}:{}", target.0, target.1).into();
                return self.refuse_tcp(id, &RequestError::Unreachable { target, kind });
            }
            let Some(peer) = race.due(now) else { break };
            if let Err(error) = self.targets.take_place(now, id.0) {
                if race.running().next().is_none() {
                    return self.refuse_tcp(id, &error);
                }
                race.skip(io::ErrorKind::QuotaExceeded);
                continue;
            }
            let tcp = TcpId(self.tcp.next_tcp);
            self.tcp.next_tcp += 1;
            race.on_started(now, tcp);
            self.tcp.by_tcp.insert(tcp, id);
            let user = owner.user.party();
            self.outputs.push_back(Output::Tcp(TcpOutput::Connect { tcp, peer, user }));
        }
        self.tcp.set_timer(id);
    }

    /// Handles an input about a TCP connection.
    pub(super) fn on_tcp(&mut self, now: Instant, input: TcpInput) {
        let (TcpInput::Opened { tcp, .. }
        | TcpInput::Read { tcp, .. }
        | TcpInput::Written { tcp, .. }
        | TcpInput::Failed { tcp, .. }) = input
        else {
            return; // a proxy listens for no TCP connections, and asks for no ports of programs
        };
        let Some(&id) = self.tcp.by_tcp.get(&tcp) else { return };
        match input {
            TcpInput::Opened { result: Ok(_), .. } => self.on_connected(now, id, tcp),
            TcpInput::Opened { result: Err(error), .. } => {
                self.on_attempt_failed(now, id, tcp, error);
            }
            TcpInput::Read { data, .. } => self.on_tcp_read(now, id, data),
            TcpInput::Written { bytes, .. } => {
                let splice = self.tcp.flows.get_mut(&id).and_then(TcpFlow::open);
                if splice.is_some_and(|splice| splice.socket.on_written(bytes)) {
                    self.on_tcp_stream(now, id);
                }
            }
            TcpInput::Failed { error, .. } => self.on_tcp_failed(id, error),
            TcpInput::Listening { .. } | TcpInput::UdpPorts { .. } => {}
        }
    }

    fn on_attempt_failed(&mut self, now: Instant, id: FlowId, tcp: TcpId, error: io::ErrorKind) {
        self.tcp.by_tcp.remove(&tcp);
        self.targets.give_place(id.0);
        let Some(flow) = self.tcp.flows.get_mut(&id) else { return };
        if let State::Connecting(race) = &mut flow.state {
            race.on_failed(now, tcp, error);
            self.advance_race(now, id);
        }
    }

    /// Grants a request with the connection that was opened first. The other attempts end.
    fn on_connected(&mut self, now: Instant, id: FlowId, tcp: TcpId) {
        let Some(flow) = self.tcp.flows.get_mut(&id) else { return };
        let State::Connecting(race) = &flow.state else { return };
        let Some(target) = race.address(tcp) else { return };
        for other in race.running().filter(|&other| other != tcp) {
            self.tcp.by_tcp.remove(&other);
            self.targets.give_place(id.0);
            self.outputs.push_back(Output::Tcp(TcpOutput::Close(other)));
        }
        let form = flow.form;
        flow.state =
            State::Open { splice: Splice::new(Socket::new(tcp), TunnelStream::new(form)), target };
        self.tcp.set_timer(id);
        self.stats.tcp.opened += 1;
        let Some(flow) = self.tcp.flows.get(&id) else { return };
        let Owner { user, client, trace_id, .. } = &flow.owner;
        if self.log.may_log(user, Line::Opened) {
            info!(
                connection = id.0.0, flow = id.1.0, trace_id = trace_id.map(display), %user,
                client = client.map(display), %target, protocol = "tcp", "flow opened"
            );
        }
        self.answer(id, &connected(target, form), h3::End::More);
        self.pull_tcp(id);
        // The client may have sent data with its request.
        self.on_tcp_stream(now, id);
    }
}
