//! The client: a chain of tunnels that carries a transfer or the flows of local programs.
//!
//! Each hop is a QUIC connection with HTTP/3 to a proxy, and a tunnel on that connection. The
//! packets of the first hop go through a UDP socket. The packets of every other hop and of the
//! end-to-end connection are the payloads of a CONNECT-UDP flow of the hop before it.

mod auto;
mod chain;
mod choose;
mod divide;
mod fetch;
mod flow;
mod forward;
mod hop;
mod inbound;
pub mod local;
mod own;
mod peer;
mod race;
mod ranges;
mod recover;
mod relay;
mod retry;
mod start;
mod tcp;
mod timeouts;
mod transfer;
mod upload;

use std::{collections::VecDeque, net::SocketAddr, time::Instant};

use http::HeaderValue;
use tandem_units::ByteCount;
use tandem_wire::Code;
pub use tandem_wire::{
    Order, TargetError, Template, TemplateError, TunnelInfo, UnknownOrder, Urgency,
};
use tracing::debug;

use self::{
    chain::Chain,
    fetch::Fetch,
    flow::FlowEnd,
    forward::Forward,
    hop::Hop,
    inbound::Inbound,
    peer::{INSIDE_TUNNEL, Peer},
    race::{Memory, Race, Watch},
    recover::Recovery,
};

pub use self::auto::Choice;
pub use self::{
    own::{FlowEvent, FlowId},
    tcp::TcpService,
};
pub use crate::mode::{Agreement, Oversize, Repair, TunnelMode};
use crate::{
    error::ClientError,
    h3,
    limits::Limits,
    node::{Event, Input, Node, Output, Received},
    quic::{self, Transport},
    stats::{ConnectionStats, Overhead, Stats},
    token::Token,
};

/// Settings of a client.
pub struct ClientConfig {
    /// The proxies, the nearest first. Without any there is no tunnel.
    pub hops: Vec<HopConfig>,
    /// The task of the client.
    pub task: Task,
    /// The bounds on what the client uses.
    pub limits: Limits,
    /// A seed that makes every random choice repeatable. It is only for tests, because connection
    /// IDs become predictable.
    pub seed: Option<u64>,
}

/// Settings of one hop.
#[derive(Clone)]
pub struct HopConfig {
    /// The proxy's URI template (RFC 9298 §2), which also names its host and port.
    pub template: Template,
    /// Other proxies that may take its place. The client uses the nearest one of the first hop, and of
    /// any other hop the first one that works. They get the same token.
    pub others: Vec<Template>,
    /// The certificates to trust. The node sets ALPN.
    pub tls: rustls::ClientConfig,
    /// The settings of QUIC towards this proxy. The MTU applies to the first hop only. Other hops
    /// use the size that fits.
    pub transport: Transport,
    /// The token that is sent to this proxy and to no other.
    pub token: Option<Token>,
    /// How payloads travel through this hop.
    pub mode: TunnelMode,
}

impl HopConfig {
    /// A hop with the settings that are right for tunnels, without a token, in the default mode.
    pub fn new(template: Template, tls: rustls::ClientConfig) -> Self {
        Self {
            template,
            others: Vec::new(),
            tls,
            transport: Transport::tunnel(),
            token: None,
            mode: TunnelMode::default(),
        }
    }
}

/// The task of a client.
pub enum Task {
    /// Download a file over HTTP/3, or upload one.
    Fetch(Box<FetchConfig>),
    /// Carry the packets of local programs, and the payloads of flows that the embedding program
    /// opens ([`Client::open_flow`]). This needs at least one hop, but no listener.
    Forward(Vec<ForwardConfig>),
}

/// Settings of a download, or of an upload.
#[derive(Clone)]
pub struct FetchConfig {
    /// The origin's host name or its address without brackets.
    pub host: String,
    /// The origin's port.
    pub port: u16,
    /// The path and query, which begin with a slash.
    pub path: String,
    /// The number of streams over which the file is divided, at least 1.
    pub streams: usize,
    /// The length of an upload. With it the client sends this many zeros (PUT) on one stream, and
    /// downloads nothing.
    pub upload: Option<ByteCount>,
    /// An earlier download of the same file that this one continues.
    pub resume: Option<Resume>,
    /// The certificates to trust. The node sets ALPN.
    pub tls: rustls::ClientConfig,
    /// The settings of QUIC towards the origin. The MTU applies only without hops. Inside a tunnel
    /// the client uses the size that fits.
    pub transport: Transport,
    /// Whether reports that arrive as [`Input::TunnelInfo`] go to the origin. They are reports on a
    /// tunnel on the path that is not this client's. Reports on the client's own tunnels go to the
    /// origin in any case.
    pub relays_feedback: bool,
}

impl FetchConfig {
    /// A download over one stream.
    pub fn new(host: String, port: u16, path: String, tls: rustls::ClientConfig) -> Self {
        Self {
            host,
            port,
            path,
            streams: 1,
            upload: None,
            resume: None,
            tls,
            transport: Transport::default(),
            relays_feedback: false,
        }
    }
}

/// An earlier download, of which a part is still there. If the origin still has the same file, the
/// client requests the rest of it; otherwise it requests the whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The number of bytes that are there, from the start of the file without a gap.
    pub offset: u64,
    /// The validator of the file, from [`Event::ResponseStarted`] of the earlier download.
    pub validator: HeaderValue,
}

/// Settings of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// The target: a host name, or an address without brackets.
    pub host: String,
    /// The target's port.
    pub port: u16,
    /// The urgency of the payloads. More urgent ones go first, in both directions of the tunnel.
    pub urgency: Urgency,
    /// The weight of the flow among flows of the same urgency, in both directions of the tunnel: 1
    /// to 64. It has less effect on capsules, because the engine holds two congestion windows of
    /// them, which flows share evenly.
    pub weight: u8,
    /// What becomes of payloads that fit no datagram of the tunnel. For a QUIC connection of the
    /// embedding program, [`Oversize::Drop`] is right, because QUIC finds out by probing what fits.
    pub oversize: Oversize,
}

impl FlowConfig {
    /// A flow with the default urgency and weight.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            urgency: Urgency::default(),
            weight: 1,
            oversize: Oversize::default(),
        }
    }
}

/// Settings of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardConfig {
    /// The address to which local programs send.
    pub listen: SocketAddr,
    /// The flow of each local program.
    pub flow: FlowConfig,
}

impl ForwardConfig {
    /// A listener whose flows have the default urgency and weight.
    pub fn new(listen: SocketAddr, target_host: impl Into<String>, target_port: u16) -> Self {
        Self { listen, flow: FlowConfig::new(target_host, target_port) }
    }
}

/// The use of the chain.
enum Work {
    Fetch(Box<Fetch>),
    Forward(Box<Forward>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Life {
    /// The client has not been polled yet.
    New,
    Running,
    /// The client closes its connections, the innermost first. `left` is how many remain. The next
    /// one stays open until the proxy has acknowledged everything, or until `until`.
    Ending {
        left: usize,
        until: Instant,
        result: Result<(), ClientError>,
    },
    Ended,
}

/// A client.
pub struct Client {
    chain: Chain,
    work: Work,
    limits: Limits,
    life: Life,
    began: Option<Instant>,
    /// The race for the first peer.
    race: Race,
    /// What is known of the addresses of the first peer.
    memory: Memory,
    watch: Watch,
    recovery: Recovery,
    /// Hops whose connections have ended. What arrived before is passed on first.
    lost: VecDeque<(usize, ClientError)>,
    /// Whether the client ends if a proxy grants another mode than was asked for.
    requires_mode: bool,
    tcp: tcp::Connections,
    outputs: VecDeque<Output>,
    next_socket: u64,
    stats: Stats,
}

impl Client {
    /// The counters of the client. `to_target` counts payloads that enter the tunnel, `to_client`
    /// those that leave it.
    pub fn stats(&mut self) -> Stats {
        let mut stats = self.stats;
        self.chain.add_to(&mut stats);
        match &self.work {
            Work::Fetch(fetch) => fetch.add_to(&mut stats.feedback),
            Work::Forward(forward) => stats.flows_open = forward.len() as u64,
        }
        stats.tcp.open = self.tcp.len() as u64;
        stats
    }

    /// All connections: the hops, the nearest proxy first, and the end-to-end connection if the
    /// client itself opened it.
    pub fn connections(&mut self) -> impl Iterator<Item = ConnectionStats> {
        self.chain.connections()
    }

    /// The bytes of the whole chain so far. `None`: this client has no end-to-end connection of its own.
    pub fn overhead(&mut self) -> Option<Overhead> {
        self.chain.overhead()
    }

    /// What was agreed on with the last proxy. `None` if it has granted no flow yet.
    pub fn agreement(&self) -> Option<Agreement> {
        self.chain.hops.last()?.tunnel.agreement()
    }

    /// The bytes of encoded payloads that wait in the first hop's queue towards its proxy.
    pub fn tunnel_queue(&self) -> ByteCount {
        ByteCount::from(self.chain.hops.first().map_or(0, |hop| hop.tunnel.queued()))
    }

    /// The transfer and its connection to the origin, if the client has this task.
    fn fetch(&mut self) -> Option<(&mut Fetch, &mut Peer)> {
        match (&mut self.work, &mut self.chain.origin) {
            (Work::Fetch(fetch), Some(origin)) => Some((fetch, origin)),
            _ => None,
        }
    }

    /// The flows of local programs and the hop that carries them, if the client has this task.
    fn forward(&mut self) -> Option<(&mut Forward, &mut Hop)> {
        match (&mut self.work, self.chain.hops.last_mut()) {
            (Work::Forward(forward), Some(hop)) => Some((forward, hop)),
            _ => None,
        }
    }

    /// Starts to close the client's connections. No effect if the client is ending already.
    fn end(&mut self, now: Instant, result: Result<(), ClientError>) {
        if matches!(self.life, Life::New | Life::Running) {
            let left = self.chain.len();
            self.life = Life::Ending { left, until: now + self.limits.last_words, result };
            self.end_all_tcp();
            self.end_race(now);
            if self.chain.origin.is_some() {
                self.close_next(now);
            }
        }
    }

    /// Continues the end of the client. `None`: it has done something.
    fn continue_end(&mut self, now: Instant) -> Option<Output> {
        let Life::Ending { left, until, result } = &self.life else {
            return Some(Output::Wait(self.next_timeout()));
        };
        let Some(index) = left.checked_sub(1) else {
            let event = Event::Closed(result.clone());
            self.life = Life::Ended;
            return Some(Output::Event(event));
        };
        let until = *until;
        let mut hops = self.chain.hops.iter_mut().take(index + 1);
        let is_carried = hops.all(|hop| hop.peer.has_connection());
        let hop = self.chain.hops.get_mut(index).filter(|_| is_carried && now < until);
        if hop.is_some_and(Hop::awaits_ack) {
            return Some(Output::Wait(quic::earliest(Some(until), self.next_timeout())));
        }
        self.close_next(now);
        None
    }

    /// Closes the innermost connection that is left.
    fn close_next(&mut self, now: Instant) {
        let last_words = now + self.limits.last_words;
        let Life::Ending { left, until, .. } = &mut self.life else { return };
        let Some(index) = left.checked_sub(1) else { return };
        (*left, *until) = (index, last_words);
        if let Some(peer) = self.chain.peer(index) {
            peer.close(now, Code::H3_NO_ERROR, "");
        }
    }

    fn protocol_error(&mut self, now: Instant, index: usize, error: &h3::ConnectionError) {
        let Some(peer) = self.chain.peer(index) else { return };
        peer.close(now, error.code, &error.reason.to_string());
        let peer = peer.settings.authority.clone();
        self.end(now, Err(ClientError::Protocol { peer, reason: error.reason.clone() }));
    }

    /// Handles the events of all connections. Returns whether there was one.
    fn take_events(&mut self, now: Instant) -> bool {
        let mut any = self.take_race_events(now);
        for index in 0..self.chain.len() {
            while let Some(event) = self.chain.peer(index).and_then(|peer| peer.poll_event(now)) {
                any = true;
                match event {
                    Ok(event) => self.on_quic_event(now, index, &event),
                    Err(error) => self.protocol_error(now, index, &error),
                }
                while let Some(event) =
                    self.chain.peer(index).and_then(|peer| peer.session.poll_event())
                {
                    if self.chain.is_origin(index) {
                        self.on_origin_event(now, event);
                    } else {
                        self.on_hop_event(now, index, event);
                    }
                }
            }
        }
        any
    }

    fn on_quic_event(&mut self, now: Instant, index: usize, event: &quic::Event) {
        match event {
            quic::Event::Lost(reason) => {
                let Some(peer) = self.chain.peer(index) else { return };
                let error = peer.lost(reason, &self.limits);
                if self.chain.is_origin(index) {
                    self.on_peer_failed(now, index, error);
                } else {
                    self.lost.push_back((index, error));
                }
            }
            quic::Event::Connected => self.on_connected(index),
            quic::Event::MoreStreams => {
                let is_origin = self.chain.is_origin(index);
                if let Some((fetch, origin)) = self.fetch().filter(|_| is_origin) {
                    fetch.send_requests(origin);
                } else if let Some((forward, hop)) = self.forward() {
                    forward.request_waiting(hop);
                    self.request_waiting_tcp();
                }
            }
            quic::Event::Datagrams => {
                if let Some(hop) = self.chain.hops.get_mut(index) {
                    hop.tunnel.on_datagrams();
                }
            }
            _ => {}
        }
    }

    fn on_hop_event(&mut self, now: Instant, index: usize, event: h3::Event) {
        let Some(event) = self.take_tcp_event(now, index, event) else { return };
        match event {
            h3::Event::Settings => self.on_hop_settings(now, index),
            h3::Event::Response(stream, head) => {
                self.on_flow_response(now, index, stream, &head);
                self.tell_of_change(now, index);
            }
            h3::Event::Body(stream) => {
                if let Some(hop) = self.chain.hops.get_mut(index) {
                    hop.tunnel.on_readable(stream);
                }
            }
            h3::Event::Writable(stream) => {
                if let Some(hop) = self.chain.hops.get_mut(index) {
                    hop.tunnel.on_writable(stream);
                }
            }
            h3::Event::Failed(stream, code) => {
                // The stream is reset already, so the code of this end is not sent.
                let end = FlowEnd::reset_by_proxy(code);
                self.on_flow_closed(now, index, stream, &end);
            }
            h3::Event::GoAway => {
                debug!(index, "the proxy is going away");
                self.watch.is_draining |= index == 0; // the next round looks for another
            }
            h3::Event::Request(..) => {} // a client's session refuses requests
        }
    }

    /// Handles a connection that failed, or could not be opened.
    fn on_peer_failed(&mut self, now: Instant, index: usize, error: ClientError) {
        if self.chain.is_origin(index) && self.is_origin_connected() {
            self.end(now, Err(error));
        } else {
            self.on_hop_failed(now, index, error);
        }
    }

    /// Moves packets outwards, and lets an upload follow the reports on this client's end of its
    /// tunnel.
    fn transmit(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let output = self.chain.transmit(now, buf, &mut self.stats);
        if let Some(info) = self.chain.take_own_report()
            && let Some((fetch, origin)) = self.fetch()
        {
            fetch.follow(now, origin, info);
        }
        output.or_else(|| self.transmit_race(now, buf))
    }

    /// Does one round of work. `None`: there was progress, so another round is needed.
    fn step(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let any_event = self.take_events(now);
        self.pull_tcp();
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        let mut inbound = self.take_beside(now, buf);
        if matches!(inbound, Inbound::Nothing) {
            inbound = self.release(now, buf);
        }
        if matches!(inbound, Inbound::Nothing) {
            inbound = self.receive(now, buf);
        }
        match inbound {
            Inbound::Output(output) => return Some(output),
            // The connection inside processes each payload before it gets the next one.
            Inbound::Progress => {
                self.take_events(now);
                return self.poll_fetch(now);
            }
            Inbound::Nothing if self.take_lost(now) || any_event => return None,
            Inbound::Nothing => {}
        }
        if let Some(output) = self.poll_fetch(now) {
            return Some(output);
        }
        if let Some(output) = self.transmit(now, buf) {
            return Some(output);
        }
        if self.pull_tcp() {
            return None;
        }
        self.continue_end(now)
    }

    /// Handles the end of a hop's connection, after everything that arrived before has been passed
    /// on.
    fn take_lost(&mut self, now: Instant) -> bool {
        let Some((index, error)) = self.lost.pop_front() else { return false };
        let hop = self.chain.hops.get_mut(index);
        if hop.is_some_and(|hop| hop.tunnel.end(now)) {
            self.lost.push_back((index, error)); // the payloads that it releases come first
        } else {
            self.on_peer_failed(now, index, error);
        }
        true
    }
}

impl Node for Client {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Datagram(received) if self.race.position(received.socket).is_some() => {
                self.on_race_datagram(now, received);
            }
            Input::Datagram(received) if received.socket == self.chain.outer_socket => {
                let Received { remote, local_ip, ecn, payload, .. } = received;
                self.chain.count_outer(1, payload.len());
                self.watch.heard = Some(now);
                self.arrive(now, 0, payload, (remote, local_ip, ecn));
            }
            Input::Datagram(received) => {
                let Some(received) = self.from_associated(now, received) else { return };
                let Self { work, chain, limits, stats, .. } = self;
                if let (Work::Forward(forward), Some(hop)) = (work, chain.hops.last_mut()) {
                    let (socket, local_ip) = (received.socket, received.local_ip);
                    let event = forward.from_local(now, received, hop, (limits, stats));
                    if let Some(Event::TooLarge { local: peer, len, fits }) = event {
                        let too_big = Output::PacketTooBig { socket, peer, local_ip, len, fits };
                        self.outputs.push_back(too_big);
                    }
                    self.outputs.extend(event.map(Output::Event));
                }
            }
            Input::Timeout => self.handle_timeout(now),
            Input::SocketOpened { socket, result } => self.on_socket_opened(now, socket, result),
            Input::SocketFailed { socket, error } => self.on_socket_failed(now, socket, error),
            Input::Resolved { query, result, progress } => {
                self.on_resolved(now, query, (result, progress));
            }
            Input::ServiceResolved { query, result, progress } => {
                self.on_service_resolved(now, query, (result, progress));
            }
            Input::Tcp(input) => self.on_tcp(now, input),
            Input::BodyCredit { bytes } => {
                if let Some((fetch, _)) = self.fetch() {
                    fetch.add_credit(bytes);
                }
            }
            Input::TunnelInfo(info) => {
                if let Some((fetch, _)) = self.fetch()
                    && fetch.relay(now, info)
                {
                    self.stats.feedback.used += 1;
                }
            }
            Input::Shutdown if matches!(self.work, Work::Fetch(_)) => {
                self.end(now, Err(ClientError::Interrupted));
            }
            Input::Shutdown => self.end(now, Ok(())),
            // Only what the user asked for uses the memory of a client.
            Input::FileOpened { .. }
            | Input::FileChunk { .. }
            | Input::MemoryInUse(_)
            | Input::Load(_) => {}
        }
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        if self.life == Life::New {
            self.life = Life::Running;
            self.began = Some(now);
            self.begin(now);
        }
        loop {
            buf.clear();
            if let Some(output) = self.step(now, buf) {
                return output;
            }
        }
    }
}
