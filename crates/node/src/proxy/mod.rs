//! The proxy: CONNECT-UDP over HTTP/3 (RFC 9298).

mod ab_test;
mod access;
mod answer;
mod credentials;
mod flow;
mod flow_log;
mod in_use;
mod jwt;
mod life;
mod passwords;
mod peers;
mod pep;
mod policy;
mod ports;
mod pvd;
mod relay;
mod request;
mod service;
mod shares;
mod site;
mod standing;
mod status;
mod targets;
mod users;

use std::{
    collections::VecDeque,
    mem,
    net::SocketAddr,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use tandem_units::ByteCount;
use tandem_wire::Template;
use tracing::{field::display, info};

pub(crate) use self::users::is_own_name;
pub use self::{
    ab_test::{AbTest, AbTestError, Arm, TransferTimes, Transfers},
    access::{Access, Known},
    flow_log::{LogFlows, UnknownLogFlows},
    in_use::InUse,
    jwt::{JwtKeys, JwtKeysError, JwtRules},
    pep::PepSettings,
    policy::TargetPolicy,
    ports::{TcpPorts, TcpPortsError},
    pvd::{PVD_PATH, Pvd},
    site::{ProxySite, SecretPath, SecretPathError},
    users::{
        Bound, EachWay, KeptUsage, Month, Refusal, Refused, TargetRules, TargetRulesError,
        UserCounters, UserLimits, UserRule, UserRules, UserUsage, Users, is_user_name,
    },
};
use self::{
    flow::End,
    flow_log::{FlowLine, FlowLog},
    peers::Peers,
    pep::ProxyPep,
    relay::Relay,
    request::Admission,
    service::Paths,
    shares::{PACKET_COST, Shares},
    targets::Targets,
};
pub use crate::token::{NamedToken, Token, TokenError, TokenNameError};
use crate::{
    beside::{BesideFlows, FlowId},
    guesses::Guesses,
    h3, impossible,
    limits::Limits,
    mode::Oversize,
    node::{Event, Input, Node, Output, Received, SocketId, SocketKind},
    origin::{Extras, Site},
    quic::{self, ConfigError, ConnectionId, LossDetection, ServerTls, Transport},
    seldom::Seldom,
    server::{self, Server},
    service::HostPort,
    stats::{ConnectionStats, Stats},
    tunnel::{ProxyTunnel, REPORT_INTERVAL},
};

/// The settings of a proxy.
#[derive(Clone)]
pub struct ProxyConfig {
    /// The address to listen on. With port 0 the operating system chooses the port.
    pub listen: SocketAddr,
    /// The certificate and, optionally, client authentication. The node sets ALPN.
    pub tls: rustls::ServerConfig,
    /// The settings of QUIC towards the clients.
    pub transport: Transport,
    /// The clients that may use the proxy.
    pub access: Access,
    /// The targets that clients may reach.
    pub policy: TargetPolicy,
    /// The least interval between two reports on a tunnel, within [`Self::FEEDBACK_INTERVAL`]. `None`:
    /// the minimum RTT of each tunnel.
    pub feedback_interval: Option<Duration>,
    /// The ports of targets to which clients may have TCP connections. They do not bind
    /// [`Self::service`].
    pub tcp_ports: TcpPorts,
    /// The only target of TCP connections, and of no UDP flows, whatever the policy says. A request names it, or
    /// [`Self::SERVICE`]. `None`: all targets that the policy permits.
    pub service: Option<(String, u16)>,
    /// What becomes of packets from targets that fit no datagram. With [`Oversize::Auto`] they go in
    /// capsules to clients that asked for it, which only Tandem's do.
    pub oversize: Oversize,
    /// What makes the proxy a PEP too. `None`: it is none.
    pub pep: Option<PepSettings>,
    /// Whether logs show the addresses of clients, so that an operator can trace abuse.
    pub log_clients: bool,
    /// What logs say of flows.
    pub log_flows: LogFlows,
    /// The URI template that the path of each request must match (RFC 9298 §2).
    pub template: Template,
    /// The site that the proxy is to everybody who has no right to it. `None`: it tells them that it is a proxy.
    pub site: Option<ProxySite>,
    /// The configuration document that everybody can read at [`PVD_PATH`].
    pub pvd: Pvd,
    /// The bounds on what the proxy uses.
    pub limits: Limits,
    /// What this proxy and others of the same process have open together.
    pub in_use: InUse,
    /// The users of this proxy and others of the same process, and their limits.
    pub users: Users,
    /// Which of the users that ask for mode `tecc` get less. `None`: nobody.
    pub ab_test: Option<AbTest>,
    /// A seed that makes every random choice repeatable. It is only for tests, because connection
    /// IDs become predictable.
    pub seed: Option<u64>,
}

impl ProxyConfig {
    /// The allowed intervals between two reports.
    pub const FEEDBACK_INTERVAL: RangeInclusive<Duration> = REPORT_INTERVAL;

    /// The name of a proxy's only service (`tandem serve`), with which a client asks for it without
    /// knowing its address. RFC 6761 §6.4 reserves the domain, so that no resolver knows the name.
    pub const SERVICE: &'static str = "service.tandem.invalid";

    /// The settings of a proxy that no client may use yet, and that reaches public addresses only.
    pub fn new(listen: SocketAddr, tls: rustls::ServerConfig) -> Self {
        Self {
            listen,
            tls,
            transport: Transport::default(),
            access: Access::Tokens(Vec::new()),
            policy: TargetPolicy::default(),
            tcp_ports: TcpPorts::default(),
            service: None,
            feedback_interval: None,
            oversize: Oversize::default(),
            pep: None,
            log_clients: false,
            log_flows: LogFlows::default(),
            template: Self::default_template(),
            site: None,
            pvd: Pvd::default(),
            limits: Limits::default(),
            in_use: InUse::default(),
            users: Users::default(),
            ab_test: None,
            seed: None,
        }
    }

    /// The default template. A proxy ignores its authority.
    #[expect(clippy::missing_panics_doc, reason = "RFC 9298's template is one")]
    pub fn default_template() -> Template {
        Template::default_for("proxy.invalid").expect("RFC 9298's template is one")
    }

    /// The template of TCP connections.
    fn default_tcp_template() -> Template {
        Template::default_for_tcp("proxy.invalid").expect("the draft's template is one")
    }
}

/// A CONNECT-UDP proxy.
pub struct Proxy {
    server: Server,
    admission: Admission,
    peers: Peers,
    targets: Targets,
    relay: Relay,
    shares: Shares,
    /// What travels beside the connections.
    beside: BesideFlows,
    pep: Option<ProxyPep>,
    /// What strangers get.
    site: Option<Site>,
    listen: SocketAddr,
    feedback_interval: Option<Duration>,
    oversize: Oversize,
    log_clients: bool,
    log: FlowLog,
    pvd: Pvd,
    users: Users,
    ab_test: Option<AbTest>,
    limits: Limits,
    outputs: VecDeque<Output>,
    stats: Stats,
}

/// The listening socket.
const LISTEN: SocketId = SocketId(0);

impl Proxy {
    /// A proxy that will ask for its listening socket at the first poll.
    pub fn new(config: ProxyConfig) -> Result<Self, ConfigError> {
        let tls = ServerTls::new(config.tls.clone())?;
        Self::with_tls(config, &tls)
    }

    /// A proxy that uses these TLS settings instead of those in `config`.
    pub fn with_tls(config: ProxyConfig, tls: &ServerTls) -> Result<Self, ConfigError> {
        let ProxyConfig {
            listen, access, policy, feedback_interval, oversize, log_clients, ..
        } = config;
        let ProxyConfig { template, limits, service, tcp_ports, .. } = config;
        let mut transport = config.transport;
        if service.is_some() {
            // It carries only TCP. As at the client, wait longer before declaring loss, so that reordering costs
            // nothing.
            transport.loss_detection = LossDetection::BehindRepair;
        }
        let server = Server::new(tls, &transport, &limits, config.seed);
        let (content, secret_path) = config.site.map(|it| (it.content, it.secret_path)).unzip();
        let open = Output::OpenSocket { socket: LISTEN, kind: SocketKind::Listen(listen) };
        Ok(Self {
            server,
            admission: Admission {
                access,
                guesses: Guesses::new(&limits),
                warning: Seldom::default(),
                limit_warning: Seldom::default(),
                paths: Paths::new(template, secret_path.flatten())?,
                only: service.map(HostPort::from),
                tcp_ports,
            },
            peers: Peers::new(&limits),
            targets: Targets::new(policy, LISTEN.0 + 1, &limits, config.in_use),
            relay: Relay::default(),
            shares: Shares::default(),
            beside: BesideFlows::new(&transport, config.seed),
            pep: config.pep.map(ProxyPep::new),
            site: content.map(|content| Site::new(content, Extras::default(), &limits)),
            listen,
            feedback_interval,
            oversize,
            log_clients,
            log: FlowLog::new(config.log_flows),
            pvd: config.pvd,
            users: config.users,
            ab_test: config.ab_test,
            limits,
            outputs: VecDeque::from([open]),
            stats: Stats::default(),
        })
    }

    /// Replaces the rule for which clients may use the proxy. It applies to new requests. Flows that
    /// were opened with a token that is no longer permitted end.
    pub fn set_access(&mut self, access: Access) {
        self.revoke_all(&access);
        self.admission.access = access;
    }

    /// The counters of the proxy.
    pub fn stats(&mut self) -> Stats {
        let mut stats = self.own_stats();
        self.server.add_to(&mut stats, |_, _| {});
        stats
    }

    /// The counters without those of the server.
    fn own_stats(&mut self) -> Stats {
        self.stats.internal_errors += impossible::take();
        let mut stats = self.stats;
        self.peers.add_to(&mut stats);
        stats.beside = *self.beside.stats();
        stats.pep = self.pep.as_ref().map(ProxyPep::stats).unwrap_or_default();
        stats.flows_open = self.targets.sockets() as u64;
        stats.tcp.open = self.targets.connections() as u64;
        stats.unlogged_lines = self.log.left_out();
        stats.shares = self.shares.stats();
        stats
    }

    /// All open connections, the oldest first.
    pub fn connections(&mut self) -> impl Iterator<Item = ConnectionStats> {
        self.server.connections()
    }

    /// The bytes of encoded payloads that wait in the tunnels' queues towards the clients.
    pub fn tunnel_queue(&self) -> ByteCount {
        ByteCount::from(self.peers.queued())
    }

    /// The bytes of memory that the buffers of all tunnels take.
    pub fn tunnel_memory(&self) -> ByteCount {
        ByteCount::from(self.peers.memory())
    }

    pub(super) fn on_event(&mut self, now: Instant, id: ConnectionId, event: server::Event) {
        match event {
            server::Event::Opened(client) => {
                let tunnel =
                    ProxyTunnel::proxy(self.feedback_interval, self.oversize, &self.limits);
                self.peers.insert(id, client, tunnel);
            }
            server::Event::Connected => {
                if let Some(peer) = self.peers.get(id)
                    && self.log_clients
                    && self.log.may_log_connection(FlowLine::Opened)
                {
                    let client = peer.standing.client;
                    info!(connection = id.0, %client, "connection opened");
                }
            }
            server::Event::Lost => self.on_lost(id),
            server::Event::Http(
                event @ (h3::Event::Body(stream)
                | h3::Event::Failed(stream, _)
                | h3::Event::Writable(stream)),
            ) if self.is_of_site((id, stream)) => self.tell_site(now, id, event),
            server::Event::Datagrams if self.is_stranger(id) => self.take_strange(now, id),
            server::Event::Closed => self.on_closed(now, id),
            server::Event::Datagrams => {
                if let Some(peer) = self.peers.get_mut(id) {
                    peer.tunnel.on_datagrams();
                    self.has_arrivals(id);
                }
            }
            server::Event::Http(h3::Event::Request(stream, head)) => {
                self.on_request(now, (id, stream), head);
            }
            server::Event::Http(h3::Event::Body(stream)) => {
                let Some(peer) = self.peers.get_mut(id) else { return }; // the client has gone
                if peer.passwords.holds(stream) {
                    return; // it is looked at again after the check
                }
                if peer.flows.get(&stream).is_some_and(|it| it.service.carries_bytes()) {
                    return self.on_tcp_stream(now, (id, stream));
                }
                peer.tunnel.on_readable(stream);
                self.has_arrivals(id);
            }
            server::Event::Http(h3::Event::Failed(stream, code)) => {
                self.on_stream_failed((id, stream), code);
            }
            server::Event::Http(h3::Event::Writable(stream)) => {
                if let Some(peer) = self.peers.get_mut(id) {
                    peer.tunnel.on_writable(stream);
                }
            }
            server::Event::Http(
                h3::Event::Settings | h3::Event::Response(..) | h3::Event::GoAway,
            ) => {}
        }
    }

    fn on_closed(&mut self, now: Instant, id: ConnectionId) {
        if let Some((site, mut cx)) = self.site(now) {
            site.on_closed(&mut cx, id);
        }
        let Some((standing, flows)) = self.peers.remove(id) else { return }; // it was never opened
        for (stream, mut flow) in flows {
            self.release((id, stream), &mut flow, &End::WithConnection);
        }
        if self.log_clients && self.log.may_log_connection(FlowLine::Closed) {
            let user = standing.user.as_ref().map(display);
            info!(connection = id.0, user, client = %standing.client, "connection closed");
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.server.handle_timeout(now);
        while let Some(id) = self.peers.pop_due_tunnel(now) {
            let Some(peer) = self.peers.get_mut(id) else { continue }; // the client has gone
            if peer.tunnel.handle_timeout(now) {
                self.server.wake(id);
            }
            self.has_arrivals(id);
        }
        while let Some(id) = self.peers.pop_due_flow(now) {
            self.on_flow_timer(now, id);
        }
        self.log.handle_timeout(now);
        self.shares.handle_timeout(now);
    }

    fn poll_quic(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let Self { server, peers, .. } = self;
        let transmit = server.poll_transmit(now, buf, |id, carrier| {
            peers.feed(now, id, carrier);
        })?;
        Some(Output::Transmit { socket: LISTEN, transmit })
    }
}

impl Node for Proxy {
    fn handle(&mut self, now: Instant, input: Input) {
        self.log.set_now(now);
        match input {
            Input::Datagram(received) if received.socket == LISTEN => {
                let Received { remote, local_ip, ecn, payload, .. } = received;
                if let Some(payload) = self.take_beside(now, remote, payload) {
                    let who = self.server.handle_datagram(now, (remote, local_ip), ecn, payload);
                    self.shares.count(now, who, PACKET_COST);
                }
            }
            Input::Datagram(received) => {
                // RFC 9298 §6.2: "A UDP proxy MUST ignore ECN bits in the IP header of UDP packets
                // received from the target".
                self.from_target(now, received.socket, &received.payload);
            }
            Input::Timeout => self.handle_timeout(now),
            Input::MemoryInUse(bytes) => {
                let Self { server, peers, site, .. } = self;
                let of_site = |id| site.as_ref().map_or(0, |site| site.memory_of(id));
                server.set_memory_in_use(now, bytes, |id| peers.memory_of(id) + of_site(id));
            }
            Input::SocketOpened { socket: LISTEN, result } => {
                self.outputs.push_back(Output::Event(Event::listening(self.listen, result)));
            }
            Input::SocketOpened { socket, result } => self.on_socket_opened(now, socket, result),
            Input::SocketFailed { socket, error } => {
                // RFC 9298 §3.1: "If a UDP proxy is notified by its operating system that its socket
                // is no longer usable [...], it MUST close the request stream." While nothing has come from the
                // target, a socket for its next address takes the place, and the stream ends with the last one.
                self.on_socket_failed(now, socket, error);
            }
            Input::Resolved { query, result, progress } => {
                self.on_resolved(now, query, (result, progress));
            }
            Input::Tcp(input) => self.on_tcp(now, input),
            Input::Load(load) => self.shares.set_load(now, load),
            Input::Shutdown => self.server.drain(now),
            Input::FileOpened { .. } | Input::FileChunk { .. } | Input::Upstream(_) => {
                if let Some((site, mut cx)) = self.site(now) {
                    site.handle(&mut cx, input);
                }
            }
            Input::PasswordChecked { check, is_right } => {
                self.on_password_checked(now, check, is_right);
            }
            Input::NetworkChanged
            | Input::BodyCredit { .. }
            | Input::ServiceResolved { .. }
            | Input::TunnelInfo(_) => {}
        }
    }

    fn take_urgent(&mut self) -> bool {
        mem::take(&mut self.relay.has_urgent)
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        self.log.set_now(now);
        buf.clear();
        loop {
            self.resume_waiting(now);
            while let Some((id, event)) = self.server.poll_event(now) {
                self.on_event(now, id, event);
            }
            while let Some(id) = self.peers.pop_drained() {
                self.pull_drained(id);
            }
            if let Some(output) = self.outputs.pop_front() {
                return output;
            }
            if let Some(batch) = self.beside.poll(buf) {
                let (socket, destination) = batch.to;
                return Output::Transmit { socket, transmit: batch.transmit(destination) };
            }
            if let Some(output) = self.poll_pep(now, buf).or_else(|| self.to_target(now, buf)) {
                return output;
            }
            if let Some(output) = self.outputs.pop_front() {
                return output; // a payload or the end of a stream may have ended a flow
            }
            // Everything that arrived before the end of a connection has been relayed.
            let is_idle = self.targets.is_idle() && self.site.as_ref().is_none_or(Site::is_idle);
            if self.forget_lost(now) || self.server.finish_drain(now, is_idle) {
                continue;
            }
            if let Some(output) = self.poll_quic(now, buf) {
                return output;
            }
            if !self.peers.has_drained() && !self.shares.has_begun() {
                break;
            }
        }
        if self.server.take_ended(now) {
            self.log.tell();
            return Output::Event(Event::Closed(Ok(())));
        }
        let own = self.peers.next_timeout();
        let own = quic::earliest(own, self.pep.as_ref().and_then(ProxyPep::next_timeout));
        let own = quic::earliest(own, self.log.next_timeout());
        let own = quic::earliest(own, self.shares.next_timeout());
        Output::Wait(quic::earliest(own, self.server.next_timeout()))
    }
}
