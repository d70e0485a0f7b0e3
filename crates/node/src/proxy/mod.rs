//! The proxy: CONNECT-UDP over HTTP/3 (RFC 9298).

mod access;
mod feedback;
mod flow;
mod group;
mod policy;
mod relay;
mod request;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_units::ByteCount;
use tandem_wire::{Code, HttpDatagram, PathMatcher, Template};
use tracing::{debug, info};

use self::flow::{End, Flow};
pub use self::{
    access::{Access, Token, TokenError},
    policy::TargetPolicy,
};
use crate::{
    h3,
    limits::Limits,
    node::{Event, Input, Node, Output, QueryId, Received, SocketId, SocketKind},
    quic::{self, ConfigError, ConnectionId, ServerTls, StreamId, Transport},
    reporter::Reporter,
    server::{self, Server},
    stats::{ConnectionStats, Stats},
    timers::move_timer,
    tunnel_exit::TunnelExit,
    tunnel_queue::TunnelQueue,
};

/// Settings of a proxy.
pub struct ProxyConfig {
    /// Where to listen; port 0 lets the operating system choose.
    pub listen: SocketAddr,
    /// Certificate and, if wanted, client authentication. ALPN is set by the node.
    pub tls: rustls::ServerConfig,
    /// QUIC towards the clients.
    pub transport: Transport,
    /// Who may use the proxy.
    pub access: Access,
    /// Which targets they may reach.
    pub policy: TargetPolicy,
    /// The interval between two reports on a tunnel, within
    /// [`Self::FEEDBACK_INTERVAL`]; `None`: each tunnel's least RTT.
    pub feedback_interval: Option<Duration>,
    /// URI template that requests must match by their path (RFC 9298 §2).
    pub template: Template,
    /// Bounds.
    pub limits: Limits,
    /// Makes every random choice repeatable. Only for tests: connection IDs become predictable.
    pub seed: Option<u64>,
}

impl ProxyConfig {
    /// The intervals between two reports. Shorter ones bring more reports than a sender can follow;
    /// with longer ones, a sender follows a tunnel that has changed since.
    pub const FEEDBACK_INTERVAL: RangeInclusive<Duration> =
        Duration::from_millis(5)..=Duration::from_secs(1);

    /// A proxy that nobody may use yet, and that reaches public addresses only.
    pub fn new(listen: SocketAddr, tls: rustls::ServerConfig) -> Self {
        Self {
            listen,
            tls,
            transport: Transport::default(),
            access: Access::Tokens(Vec::new()),
            policy: TargetPolicy::default(),
            feedback_interval: None,
            template: Self::default_template(),
            limits: Limits::default(),
            seed: None,
        }
    }

    /// The default template; its authority does not matter to a proxy.
    #[expect(clippy::missing_panics_doc, reason = "RFC 9298's template is one")]
    pub fn default_template() -> Template {
        Template::default_for("proxy.invalid").expect("RFC 9298's template is one")
    }
}

/// What the proxy keeps for one connection.
struct Peer {
    flows: BTreeMap<StreamId, Flow>,
    queue: TunnelQueue,
    reporter: Reporter,
    /// Datagrams of requests that have not been seen yet, and until when they wait.
    early: VecDeque<(Instant, HttpDatagram)>,
    /// Whether datagrams of it may wait in the engine.
    has_datagrams: bool,
    /// When its queue wants to be fed although nothing happens.
    queue_timer: Option<Instant>,
}

impl Peer {
    fn new(limits: &Limits) -> Self {
        Self {
            flows: BTreeMap::new(),
            queue: TunnelQueue::new(limits),
            reporter: Reporter::default(),
            early: VecDeque::new(),
            has_datagrams: false,
            queue_timer: None,
        }
    }
}

/// Names a flow of this proxy.
type FlowId = (ConnectionId, StreamId);

/// A CONNECT-UDP proxy.
pub struct Proxy {
    server: Server,
    listen: SocketAddr,
    access: Access,
    policy: TargetPolicy,
    matcher: PathMatcher,
    template: Template,
    feedback_interval: Option<Duration>,
    limits: Limits,
    peers: BTreeMap<ConnectionId, Peer>,
    flows_by_socket: BTreeMap<SocketId, FlowId>,
    flows_by_query: BTreeMap<QueryId, FlowId>,
    /// When to look whether a flow is idle, its name still not resolved, or its early datagrams late.
    timers: BTreeSet<(Instant, FlowId)>,
    /// When tunnels' queues want to be fed.
    queue_timers: BTreeSet<(Instant, ConnectionId)>,
    /// Where clients' repaired payloads come out.
    exit: TunnelExit<FlowId>,
    outputs: VecDeque<Output>,
    /// Connections with datagrams to relay to targets.
    relaying: VecDeque<ConnectionId>,
    /// Request streams that may have something to read.
    readable: VecDeque<FlowId>,
    /// Payloads that came before their request was granted, which it is now.
    early: VecDeque<(SocketId, SocketAddr, Bytes)>,
    /// A datagram that was read ahead but did not fit its predecessors' batch.
    read_ahead: Option<(ConnectionId, HttpDatagram)>,
    /// The same of what waited for those before it.
    released_ahead: Option<(FlowId, Bytes)>,
    next_socket: u64,
    next_query: u64,
    /// Names that are being looked up, also of requests that have gone.
    queries: usize,
    stats: Stats,
}

/// The listening socket.
const LISTEN: SocketId = SocketId(0);

impl Proxy {
    /// A proxy that will ask for its listening socket at the first poll.
    pub fn new(config: ProxyConfig) -> Result<Self, ConfigError> {
        let tls = ServerTls::new(config.tls)?;
        let matcher = PathMatcher::new(&config.template)
            .map_err(|_| ConfigError::Task("the template's variables cannot be told apart"))?;
        let server = Server::new(&tls, &config.transport, &config.limits, config.seed);
        let open = Output::OpenSocket { socket: LISTEN, kind: SocketKind::Listen(config.listen) };
        Ok(Self {
            server,
            listen: config.listen,
            access: config.access,
            policy: config.policy,
            matcher,
            template: config.template,
            feedback_interval: config.feedback_interval,
            exit: TunnelExit::new(config.limits.held_bytes),
            limits: config.limits,
            peers: BTreeMap::new(),
            flows_by_socket: BTreeMap::new(),
            flows_by_query: BTreeMap::new(),
            timers: BTreeSet::new(),
            queue_timers: BTreeSet::new(),
            outputs: VecDeque::from([open]),
            relaying: VecDeque::new(),
            readable: VecDeque::new(),
            early: VecDeque::new(),
            read_ahead: None,
            released_ahead: None,
            next_socket: 1,
            next_query: 0,
            queries: 0,
            stats: Stats::default(),
        })
    }

    /// What the proxy counted.
    pub fn stats(&mut self) -> Stats {
        let mut stats = Stats { resequenced: self.exit.stats(), ..self.stats };
        self.server.add_to(&mut stats);
        stats.flows_open = self.flows_by_socket.len() as u64;
        stats
    }

    /// Every connection that is open, the oldest first.
    pub fn connections(&mut self) -> impl Iterator<Item = ConnectionStats> {
        self.server.connections()
    }

    /// What waits in the tunnels' queues towards the clients: encoded payloads, in bytes.
    pub fn tunnel_queue(&self) -> ByteCount {
        ByteCount::from(self.peers.values().map(|peer| peer.queue.len()).sum::<usize>())
    }

    fn on_event(&mut self, now: Instant, id: ConnectionId, event: server::Event) {
        match event {
            server::Event::Opened => {
                self.peers.insert(id, Peer::new(&self.limits));
            }
            server::Event::Closed => self.forget_connection(id),
            server::Event::Datagrams => {
                if let Some(peer) = self.peers.get_mut(&id)
                    && !std::mem::replace(&mut peer.has_datagrams, true)
                {
                    self.relaying.push_back(id);
                }
            }
            server::Event::Http(h3::Event::Request(stream, head)) => {
                self.on_request(now, (id, stream), &head);
            }
            server::Event::Http(h3::Event::Body(stream)) => self.on_readable((id, stream)),
            server::Event::Http(h3::Event::Failed(stream, code)) => {
                self.drop_early((id, stream));
                self.close_flow((id, stream), End::Reset(code));
            }
            server::Event::Http(h3::Event::Writable(stream)) => {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.queue.on_writable(stream);
                }
            }
            server::Event::Http(
                h3::Event::Settings | h3::Event::Response(..) | h3::Event::GoAway,
            ) => {}
        }
    }

    fn forget_connection(&mut self, id: ConnectionId) {
        let Some(peer) = self.peers.remove(&id) else { return };
        self.relaying.retain(|&other| other != id);
        self.readable.retain(|&(other, _)| other != id);
        if let Some(timer) = peer.queue_timer {
            self.queue_timers.remove(&(timer, id));
        }
        for (stream, flow) in peer.flows {
            self.release((id, stream), &flow, End::WithConnection);
        }
    }

    /// Closes a flow whose stream has gone already.
    fn close_flow(&mut self, (id, stream): FlowId, end: End) {
        // RFC 9297 §2.1: "HTTP/3 Datagrams MUST NOT be sent unless the corresponding stream's send
        // side is open."
        let flow = self.peers.get_mut(&id).and_then(|peer| {
            peer.queue.remove(stream);
            peer.reporter.remove(stream);
            peer.flows.remove(&stream)
        });
        if let Some(mut flow) = flow {
            self.part((id, stream), &mut flow, end);
            self.release((id, stream), &flow, end);
        }
    }

    /// Drops what came before a request that is not going to be granted.
    fn drop_early(&mut self, (id, stream): FlowId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let before = peer.early.len();
        peer.early.retain(|(_, datagram)| datagram.quarter_stream_id.stream_id() != stream.0);
        self.stats.dropped.unknown_flow += (before - peer.early.len()) as u64;
    }

    /// Drops what came before requests that have not come for about a round trip.
    fn drop_late(&mut self, now: Instant, id: ConnectionId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let before = peer.early.len();
        peer.early.retain(|(until, _)| *until > now);
        self.stats.dropped.unknown_flow += (before - peer.early.len()) as u64;
    }

    /// Closes a flow and ends its stream with this code.
    fn abort_flow(&mut self, (id, stream): FlowId, code: Code, end: End) {
        self.close_flow((id, stream), end);
        if let Some((session, connection)) = self.server.parts(id) {
            session.reset(connection, stream, code);
        }
    }

    fn release(&mut self, id: FlowId, flow: &Flow, end: End) {
        // Else flows that come and go would leave timers behind for as long as a flow may idle.
        self.timers.remove(&(flow.next_look, id));
        self.exit.remove(id);
        if let flow::State::Resolving { query, .. } = &flow.state {
            self.flows_by_query.remove(query);
        }
        // RFC 9298 §3.1: "The UDP proxy MUST keep the socket open while the request stream is open."
        if let Some(socket) = flow.socket() {
            self.flows_by_socket.remove(&socket);
            self.early.retain(|&(other, ..)| other != socket);
            self.outputs.push_back(Output::CloseSocket(socket));
        }
        if let flow::State::Open { target, .. } = flow.state {
            let ended = &mut self.stats.flows_ended;
            *match end {
                End::ByClient | End::Reset(_) | End::Refused => &mut ended.by_client,
                End::Idle => &mut ended.idle,
                End::Unreachable => &mut ended.unreachable,
                End::Malformed(_) => &mut ended.malformed,
                End::WithConnection => &mut ended.with_connection,
            } += 1;
            info!(
                flow = id.1.0, %target, reason = %end,
                to_target = flow.to_target_datagrams, to_client = flow.to_client_datagrams,
                "flow closed"
            );
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.server.handle_timeout(now);
        self.exit.handle_timeout(now);
        while let Some(&(due, id)) = self.queue_timers.first() {
            if due > now {
                break;
            }
            self.queue_timers.pop_first();
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.queue_timer = None;
            }
            self.server.parts(id); // which has it looked at
        }
        while let Some(&(due, flow)) = self.timers.first() {
            if due > now {
                break;
            }
            self.timers.pop_first();
            self.on_flow_timer(now, flow);
        }
    }

    /// Looks whether a flow may stay. Each flow has one timer, which is set anew lazily, so that a
    /// packet costs none.
    fn on_flow_timer(&mut self, now: Instant, id: FlowId) {
        self.drop_late(now, id.0);
        let Some(flow) = self.peers.get_mut(&id.0).and_then(|peer| peer.flows.get_mut(&id.1))
        else {
            return;
        };
        if flow.next_look > now {
            return; // the timer was that of its early datagrams
        }
        if let flow::State::Resolving { deadline, .. } = flow.state
            && deadline <= now
        {
            return self.on_dns_timeout(id);
        }
        let last_active = match flow.state {
            flow::State::Joined { .. } => now, // it lasts as long as the flow that it joined
            _ => self.last_active(id).unwrap_or(now),
        };
        let idle = last_active + self.limits.flow_idle;
        let Some(flow) = self.peers.get_mut(&id.0).and_then(|peer| peer.flows.get_mut(&id.1))
        else {
            return;
        };
        if idle <= now {
            // RFC 9298 §3.1: UDP proxies "MUST close the request stream when closing the socket."
            self.abort_flow(id, Code::H3_NO_ERROR, End::Idle);
        } else {
            flow.next_look = idle;
            self.timers.insert((idle, id));
        }
    }

    fn poll_quic(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let Self { server, peers, stats, queue_timers, feedback_interval, .. } = self;
        let transmit = server.poll_transmit(now, buf, |id, session, connection| {
            if let Some(peer) = peers.get_mut(&id) {
                let (queue, interval) = (&peer.queue, *feedback_interval);
                stats.feedback.sent +=
                    feedback::send(now, &mut peer.reporter, connection, queue, interval);
                peer.queue.feed(now, session, connection);
                peer.reporter.observe(now, &peer.queue);
                stats.add_late(&peer.queue.take_drops());
                stats.repaired.add(&peer.queue.take_repaired());
                let timer = quic::earliest(peer.queue.next_timeout(), peer.reporter.next_timeout());
                move_timer(queue_timers, id, &mut peer.queue_timer, timer);
            }
        })?;
        Some(Output::Transmit { socket: LISTEN, transmit })
    }

    fn on_listen(&mut self, result: Result<SocketAddr, std::io::ErrorKind>) {
        match result {
            Ok(local) => self.outputs.push_back(Output::Event(Event::Listening(local))),
            Err(kind) => {
                let error = crate::error::ClientError::Listen { address: self.listen, kind };
                self.outputs.push_back(Output::Event(Event::Closed(Err(error))));
            }
        }
    }
}

impl Node for Proxy {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Datagram(received) if received.socket == LISTEN => {
                let Received { remote, local_ip, ecn, payload, .. } = received;
                self.server.handle_datagram(now, (remote, local_ip), ecn, payload);
            }
            Input::Datagram(received) => {
                // RFC 9298 §6.2: "A UDP proxy MUST ignore ECN bits in the IP header of UDP packets
                // received from the target".
                self.from_target(now, received.socket, received.payload.freeze());
            }
            Input::Timeout => self.handle_timeout(now),
            Input::SocketOpened { socket: LISTEN, result } => self.on_listen(result),
            Input::SocketOpened { socket, result } => self.on_socket_opened(now, socket, result),
            Input::SocketFailed { socket, error } => {
                // RFC 9298 §3.1: "If a UDP proxy is notified by its operating system that its socket
                // is no longer usable [...], it MUST close the request stream."
                if let Some(&flow) = self.flows_by_socket.get(&socket) {
                    debug!(%error, "the target's socket failed");
                    self.abort_flow(flow, Code::H3_CONNECT_ERROR, End::Unreachable);
                }
            }
            Input::Resolved { query, result } => self.on_resolved(query, result),
            Input::Shutdown => self.server.drain(now),
            Input::FileOpened { .. }
            | Input::FileChunk { .. }
            | Input::BodyCredit { .. }
            | Input::TunnelInfo(_) => {}
        }
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        buf.clear();
        let is_idle = self.flows_by_socket.is_empty() && self.flows_by_query.is_empty();
        self.server.finish_drain(now, is_idle);
        while let Some((id, event)) = self.server.poll_event(now) {
            self.on_event(now, id, event);
        }
        if let Some(output) = self.outputs.pop_front() {
            return output;
        }
        if let Some(output) = self.poll_early(buf) {
            return output;
        }
        if let Some(output) = self.relay_from_client(now, buf) {
            return output;
        }
        if let Some(output) = self.relay_capsule(now, buf) {
            return output;
        }
        if let Some(output) = self.relay_released(now, buf) {
            return output;
        }
        if let Some(output) = self.outputs.pop_front() {
            return output; // relaying may have ended a flow
        }
        if let Some(output) = self.poll_quic(now, buf) {
            return output;
        }
        if self.server.take_ended(now) {
            return Output::Event(Event::Closed(Ok(())));
        }
        let own = [
            self.timers.first().map(|&(due, _)| due),
            self.queue_timers.first().map(|&(due, _)| due),
            self.exit.next_timeout(),
        ];
        Output::Wait(own.into_iter().fold(self.server.next_timeout(), quic::earliest))
    }
}

/// An empty payload is a payload: UDP allows it, and so does RFC 9298.
fn is_payload(payload: &Bytes) -> bool {
    payload.len() <= tandem_wire::MAX_UDP_PAYLOAD
}
