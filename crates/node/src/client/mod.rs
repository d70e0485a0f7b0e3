//! The client: a chain of tunnels, and in it a transfer or the flows of local programs.
//!
//! Each hop is a QUIC connection with HTTP/3 to a proxy, and a tunnel on it. The first hop's packets go
//! through a UDP socket. Those of every other, and those of the end-to-end connection, are the payloads
//! of a CONNECT-UDP flow of the hop before it.

mod chain;
mod fetch;
mod flow;
mod forward;
mod hop;
mod inbound;
mod peer;
mod recover;
mod relay;
mod start;
mod transfer;
mod upload;

use std::{collections::VecDeque, net::SocketAddr, time::Instant};

use tandem_units::ByteCount;
use tandem_wire::Code;
pub use tandem_wire::{Order, Template, TunnelInfo, UnknownOrder, Urgency};
use tracing::debug;

use self::{
    chain::Chain,
    fetch::Fetch,
    flow::FlowEnd,
    forward::Forward,
    hop::Hop,
    inbound::Took,
    peer::{INSIDE_TUNNEL, Peer},
    recover::Recovery,
};

use crate::{
    error::ClientError,
    h3,
    limits::Limits,
    node::{Event, Input, Node, Output, Received},
    proxy::Token,
    quic::{self, Transport},
    stats::{ConnectionStats, Stats},
};
pub use crate::{mode::TunnelMode, tunnel::Repair};

/// Settings of a client.
pub struct ClientConfig {
    /// Proxies, the nearest first. Empty: no tunnel.
    pub hops: Vec<HopConfig>,
    /// What to do.
    pub task: Task,
    /// Bounds.
    pub limits: Limits,
    /// Makes every random choice repeatable. Only for tests: connection IDs become predictable.
    pub seed: Option<u64>,
}

/// Settings of one hop.
pub struct HopConfig {
    /// The proxy's URI template (RFC 9298 §2), which also names its host and port.
    pub template: Template,
    /// Which certificates to trust. ALPN is set by the node.
    pub tls: rustls::ClientConfig,
    /// QUIC towards this proxy. Its MTU holds for the first hop; the others take what fits.
    pub transport: Transport,
    /// Shown to this proxy and no other.
    pub token: Option<Token>,
    /// How payloads travel through this hop.
    pub mode: TunnelMode,
}

/// What to do.
pub enum Task {
    /// Download a file over HTTP/3, or upload one.
    Fetch(Box<FetchConfig>),
    /// Carry the packets of local programs. Needs at least one hop.
    Forward(Vec<ForwardConfig>),
}

/// Settings of a download, or of an upload.
pub struct FetchConfig {
    /// The origin's host name or address, the latter without brackets.
    pub host: String,
    /// The origin's port.
    pub port: u16,
    /// Path and query, beginning with a slash.
    pub path: String,
    /// Number of streams to divide the file over, at least 1.
    pub streams: usize,
    /// Sends so many zeros there (PUT), on one stream, instead of fetching what is there.
    pub upload: Option<ByteCount>,
    /// Which certificates to trust. ALPN is set by the node.
    pub tls: rustls::ClientConfig,
    /// QUIC towards the origin. Its MTU holds without hops; inside a tunnel it is what fits.
    pub transport: Transport,
    /// Whether the origin is told what comes as [`Input::TunnelInfo`], because the way there leads
    /// through a tunnel that is not this client's. Its own tunnels' reports go there in any case.
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
            tls,
            transport: Transport::default(),
            relays_feedback: false,
        }
    }
}

/// Settings of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardConfig {
    /// Where local programs send to.
    pub listen: SocketAddr,
    /// Where their packets go: a host name or an address, the latter without brackets.
    pub target_host: String,
    /// The target's port.
    pub target_port: u16,
    /// More urgent packets go first, on both sides of the tunnel.
    pub urgency: Urgency,
    /// The share of each flow among those that are as urgent, on both sides of the tunnel: 1 to 64.
    /// In capsules it counts for less: of these the engine holds two windows, which flows share evenly.
    pub weight: u8,
}

/// What the chain is for.
enum Work {
    Fetch(Box<Fetch>),
    Forward(Forward),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Life {
    /// Not polled yet.
    New,
    Running,
    /// Says goodbye to its peers, the innermost first; this many are left.
    Ending {
        left: usize,
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
    /// The first peer's name is being looked up.
    is_resolving: bool,
    recovery: Recovery,
    outputs: VecDeque<Output>,
    next_socket: u64,
    stats: Stats,
}

impl Client {
    /// What the client counted. `to_target` is towards the tunnel, `to_client` out of it.
    pub fn stats(&mut self) -> Stats {
        let mut stats = self.stats;
        self.chain.add_to(&mut stats);
        match &self.work {
            Work::Fetch(fetch) => fetch.add_to(&mut stats.feedback),
            Work::Forward(forward) => stats.flows_open = forward.len() as u64,
        }
        stats
    }

    /// Every connection: the hops, the nearest proxy first, and the end-to-end connection if it is
    /// ours.
    pub fn connections(&mut self) -> impl Iterator<Item = ConnectionStats> {
        self.chain.connections()
    }

    /// What waits in the first hop's queue towards its proxy: encoded payloads, in bytes.
    pub fn tunnel_queue(&self) -> ByteCount {
        ByteCount::from(self.chain.hops.first().map_or(0, |hop| hop.tunnel.queued()))
    }

    /// The transfer and its connection to the origin, if this is what the chain is for.
    fn fetch(&mut self) -> Option<(&mut Fetch, &mut Peer)> {
        match (&mut self.work, &mut self.chain.origin) {
            (Work::Fetch(fetch), Some(origin)) => Some((fetch, origin)),
            _ => None,
        }
    }

    /// The flows of local programs and the hop that carries them, if this is what the chain is for.
    fn forward(&mut self) -> Option<(&mut Forward, &mut Hop)> {
        match (&mut self.work, self.chain.hops.last_mut()) {
            (Work::Forward(forward), Some(hop)) => Some((forward, hop)),
            _ => None,
        }
    }

    /// Begins to end, whatever the reason.
    fn end(&mut self, now: Instant, result: Result<(), ClientError>) {
        if matches!(self.life, Life::New | Life::Running) {
            let left = self.chain.len();
            self.life = Life::Ending { left, result };
            self.close_next(now);
        }
    }

    /// Closes the innermost peer that is left. Each is closed after the packets of the one inside
    /// it are out.
    fn close_next(&mut self, now: Instant) -> bool {
        let Life::Ending { left, .. } = &mut self.life else { return false };
        let Some(index) = left.checked_sub(1) else { return false };
        *left = index;
        if let Some(peer) = self.chain.peer(index) {
            peer.close(now, Code::H3_NO_ERROR, "");
        }
        true
    }

    fn protocol_error(&mut self, now: Instant, index: usize, error: &h3::ConnectionError) {
        let Some(peer) = self.chain.peer(index) else { return };
        peer.close(now, error.code, &error.reason);
        let peer = peer.settings.authority.clone();
        self.end(now, Err(ClientError::Protocol { peer, reason: error.reason.clone() }));
    }

    /// Takes the events of all connections. Returns whether there was one.
    fn take_events(&mut self, now: Instant) -> bool {
        let mut any = false;
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
                self.on_peer_failed(now, index, error);
            }
            quic::Event::Connected => self.on_connected(index),
            quic::Event::MoreStreams => {
                let is_origin = self.chain.is_origin(index);
                if let Some((fetch, origin)) = self.fetch().filter(|_| is_origin) {
                    fetch.ask(origin);
                } else if let Some((forward, hop)) = self.forward() {
                    forward.request_waiting(hop);
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
        match event {
            h3::Event::Settings => self.on_hop_settings(now, index),
            h3::Event::Response(stream, head) => self.on_flow_response(now, index, stream, &head),
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
                // It is reset already.
                let end = FlowEnd::new(Code::H3_REQUEST_CANCELLED, code.to_string());
                self.on_flow_closed(now, index, stream, &end);
            }
            h3::Event::GoAway => debug!(index, "the proxy is going away"),
            h3::Event::Request(..) => {} // a session refuses it
        }
    }

    /// A connection broke, or could not be opened.
    fn on_peer_failed(&mut self, now: Instant, index: usize, error: ClientError) {
        if self.chain.is_origin(index) {
            self.end(now, Err(error));
        } else {
            self.on_hop_failed(now, index, error);
        }
    }

    /// Moves packets outwards, and lets an upload follow the reports on our own end of its tunnel.
    fn transmit(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let output = self.chain.transmit(now, buf, &mut self.stats);
        if let Some(info) = self.chain.take_own_report()
            && let Some((fetch, origin)) = self.fetch()
        {
            fetch.follow(now, origin, info);
        }
        output
    }

    fn handle_timeout(&mut self, now: Instant) {
        for index in 0..self.chain.len() {
            let Some(peer) = self.chain.peer(index) else { continue };
            peer.handle_timeout(now);
            if peer.deadline.is_some_and(|deadline| deadline <= now) {
                peer.deadline = None;
                let (peer, timeout) = (peer.settings.authority.clone(), self.limits.setup_timeout);
                self.on_peer_failed(now, index, ClientError::NoAnswer { peer, timeout });
            }
        }
        for hop in &mut self.chain.hops {
            hop.tunnel.handle_timeout(now);
        }
        self.believe_suspicion(now);
        let limits = self.limits.clone();
        if let Some((forward, hop)) = self.forward() {
            forward.close_idle(now, hop, &limits);
        }
        self.recover(now);
    }

    fn next_timeout(&mut self) -> Option<Instant> {
        let work = match &self.work {
            Work::Forward(forward) => forward.next_timeout(),
            Work::Fetch(_) => None,
        };
        let own = quic::earliest(work, self.recovery.next_timeout());
        quic::earliest(own, self.chain.next_timeout())
    }

    /// One round; `None`: something moved, so look again.
    fn step(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let any_event = self.take_events(now);
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        match self.release(now, buf) {
            Took::Output(output) => return Some(output),
            // The connection inside reads what came before it gets more.
            Took::Progress => {
                self.take_events(now);
                return self.poll_fetch(now);
            }
            Took::Nothing => {}
        }
        match self.receive(now, buf) {
            Took::Output(output) => return Some(output),
            Took::Progress => return None,
            Took::Nothing if any_event => return None,
            Took::Nothing => {}
        }
        if let Some(output) = self.poll_fetch(now) {
            return Some(output);
        }
        if let Some(output) = self.transmit(now, buf) {
            return Some(output);
        }
        if self.close_next(now) {
            return None;
        }
        if let Life::Ending { result, .. } = &self.life {
            let event = Event::Closed(result.clone());
            self.life = Life::Ended;
            return Some(Output::Event(event));
        }
        Some(Output::Wait(self.next_timeout()))
    }
}

impl Node for Client {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Datagram(received) if received.socket == self.chain.outer_socket => {
                let Received { remote, local_ip, ecn, payload, .. } = received;
                if let Some(peer) = self.chain.peer(0) {
                    peer.handle_datagram(now, (remote, local_ip), ecn, payload);
                }
            }
            Input::Datagram(received) => {
                let Self { work, chain, limits, stats, .. } = self;
                if let (Work::Forward(forward), Some(hop)) = (work, chain.hops.last_mut()) {
                    forward.from_local(now, received, hop, (limits, stats));
                }
            }
            Input::Timeout => self.handle_timeout(now),
            Input::SocketOpened { socket, result } => self.on_socket_opened(now, socket, result),
            Input::SocketFailed { socket, error } => self.on_socket_failed(now, socket, error),
            Input::Resolved { result, .. } => self.on_resolved(now, result),
            Input::BodyCredit { bytes } => {
                if let Some((fetch, _)) = self.fetch() {
                    fetch.add_credit(bytes);
                }
            }
            Input::TunnelInfo(info) => {
                if let Some((fetch, origin)) = self.fetch()
                    && fetch.relay(origin, info)
                {
                    self.stats.feedback.used += 1;
                }
            }
            Input::Shutdown => {
                let result = match self.work {
                    Work::Fetch(_) => Err(ClientError::Interrupted),
                    Work::Forward(_) => Ok(()),
                };
                self.end(now, result);
            }
            Input::FileOpened { .. } | Input::FileChunk { .. } => {}
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
