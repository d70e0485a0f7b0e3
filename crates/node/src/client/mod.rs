//! The client: a chain of tunnels, and in it a download or the flows of local programs.
//!
//! Each hop is a QUIC connection with HTTP/3 to a proxy. The first hop's packets go through a UDP
//! socket; those of every other, and those of the end-to-end connection, are the payloads of a
//! CONNECT-UDP flow of the hop before it.

mod fetch;
mod flow;
mod forward;
mod hop;
mod inbound;
mod local;
mod peer;
mod recover;
mod relay;
mod reports;
mod start;
mod upload;

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_units::ByteCount;
use tandem_wire::Code;
pub use tandem_wire::{Order, Template, TunnelInfo, UnknownOrder, Urgency};
use tracing::debug;

use self::{
    fetch::{Failure, Fetch, Progress},
    flow::{Carries, FlowEnd},
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
    node::{Event, FetchReport, Input, Node, Output, Received, SocketId},
    proxy::Token,
    quic::{self, Transport},
    stats::{ConnectionStats, Stats},
    tunnel_queue::Push,
};
pub use crate::{mode::TunnelMode, repair_fields::Repair};

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

enum TaskState {
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
    hops: Vec<Hop>,
    task: TaskState,
    limits: Limits,
    life: Life,
    began: Option<Instant>,
    /// The first peer's address, once it is known.
    outer: Option<SocketAddr>,
    outer_socket: SocketId,
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
        for index in 0..self.peers() {
            if let Some(peer) = self.peer(index) {
                let now = peer.stats();
                stats.connections += u64::from(peer.is_connected());
                stats.sent_packets += now.sent_packets;
                stats.lost_packets += now.lost_packets;
            }
        }
        for hop in &self.hops {
            stats.resequenced.add(&hop.exit_stats());
        }
        match &self.task {
            TaskState::Fetch(fetch) => fetch.add_to(&mut stats.feedback),
            TaskState::Forward(forward) => stats.flows_open = forward.flows.len() as u64,
        }
        stats
    }

    /// Every connection: the hops, the nearest proxy first, and the end-to-end connection if it is
    /// ours.
    pub fn connections(&mut self) -> impl Iterator<Item = ConnectionStats> {
        let end_to_end = match &mut self.task {
            TaskState::Fetch(fetch) => Some(&mut fetch.peer),
            TaskState::Forward(_) => None,
        };
        self.hops.iter_mut().map(|hop| &mut hop.peer).chain(end_to_end).map(Peer::stats)
    }

    /// What waits in the first hop's queue towards its proxy: encoded payloads, in bytes.
    pub fn tunnel_queue(&self) -> ByteCount {
        ByteCount::from(self.hops.first().map_or(0, Hop::queued))
    }

    /// Number of connections: hops, and the end-to-end connection if it is ours.
    fn peers(&self) -> usize {
        self.hops.len() + usize::from(matches!(self.task, TaskState::Fetch(_)))
    }

    fn peer(&mut self, index: usize) -> Option<&mut Peer> {
        let hops = self.hops.len();
        match (&mut self.task, self.hops.get_mut(index)) {
            (_, Some(hop)) => Some(&mut hop.peer),
            (TaskState::Fetch(fetch), None) if index == hops => Some(&mut fetch.peer),
            _ => None,
        }
    }

    /// Begins to end, whatever the reason.
    fn end(&mut self, now: Instant, result: Result<(), ClientError>) {
        if matches!(self.life, Life::New | Life::Running) {
            let left = self.peers();
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
        if let Some(peer) = self.peer(index) {
            peer.close(now, Code::H3_NO_ERROR, "");
        }
        true
    }

    fn protocol_error(&mut self, now: Instant, index: usize, error: &h3::ConnectionError) {
        let Some(peer) = self.peer(index) else { return };
        peer.close(now, error.code, &error.reason);
        let peer = peer.settings.authority.clone();
        self.end(now, Err(ClientError::Protocol { peer, reason: error.reason.clone() }));
    }

    /// Takes the events of all connections. Returns whether there was one.
    fn take_events(&mut self, now: Instant) -> bool {
        let mut any = false;
        for index in 0..self.peers() {
            while let Some(event) = self.peer(index).and_then(|peer| peer.poll_event(now)) {
                any = true;
                match event {
                    Ok(event) => self.on_quic_event(now, index, &event),
                    Err(error) => self.protocol_error(now, index, &error),
                }
                while let Some(event) = self.peer(index).and_then(|peer| peer.session.poll_event())
                {
                    self.on_h3_event(now, index, event);
                }
            }
        }
        any
    }

    fn on_quic_event(&mut self, now: Instant, index: usize, event: &quic::Event) {
        match event {
            quic::Event::Lost(reason) => {
                let is_hop = index < self.hops.len();
                let limits = self.limits.clone();
                let Some(peer) = self.peer(index) else { return };
                let error = peer.lost(reason, &limits);
                if is_hop {
                    self.on_hop_failed(now, index, error);
                } else {
                    self.end(now, Err(error));
                }
            }
            quic::Event::Connected => self.on_connected(index),
            quic::Event::MoreStreams => self.on_more_streams(index),
            _ => {}
        }
    }

    fn on_more_streams(&mut self, index: usize) {
        match &mut self.task {
            TaskState::Fetch(fetch) if index == self.hops.len() => fetch.ask(),
            TaskState::Forward(_) => self.request_waiting_flows(),
            TaskState::Fetch(_) => {}
        }
    }

    fn on_h3_event(&mut self, now: Instant, index: usize, event: h3::Event) {
        let is_origin = index == self.hops.len();
        match event {
            h3::Event::Settings if !is_origin => self.on_hop_settings(now, index),
            h3::Event::Settings => {
                if let TaskState::Fetch(fetch) = &mut self.task {
                    fetch.on_settings();
                }
            }
            h3::Event::Response(stream, head) if is_origin => {
                let TaskState::Fetch(fetch) = &mut self.task else { return };
                match fetch.on_response(stream, &head) {
                    Ok(None) => {}
                    Ok(Some(started)) => self.outputs.push_back(Output::Event(started)),
                    Err(failure) => self.on_fetch_failure(now, failure),
                }
            }
            h3::Event::Response(stream, head) => self.on_flow_response(now, index, stream, &head),
            h3::Event::Body(stream) if !is_origin => {
                if let Some(hop) = self.hops.get_mut(index) {
                    hop.on_readable(stream);
                }
            }
            h3::Event::Writable(stream) if !is_origin => {
                if let Some(hop) = self.hops.get_mut(index) {
                    hop.on_writable(stream);
                }
            }
            h3::Event::Writable(stream) => {
                if let TaskState::Fetch(fetch) = &mut self.task {
                    fetch.on_writable(stream);
                }
            }
            h3::Event::Failed(stream, code) if is_origin => {
                if let TaskState::Fetch(fetch) = &mut self.task
                    && !fetch.on_relay_end(stream)
                {
                    let error = fetch.reset(code);
                    self.end(now, Err(error));
                }
            }
            h3::Event::Failed(stream, code) => {
                // It is reset already.
                let end = FlowEnd::new(Code::H3_REQUEST_CANCELLED, code.to_string());
                self.on_flow_closed(now, index, stream, &end);
            }
            h3::Event::GoAway => debug!(index, "the peer is going away"),
            // The body of an answer is read by `poll_fetch`.
            h3::Event::Body(_) | h3::Event::Request(..) => {}
        }
    }

    fn poll_task(&mut self, now: Instant) -> Option<Output> {
        matches!(self.life, Life::Running).then(|| self.poll_fetch(now)).flatten()
    }

    fn poll_fetch(&mut self, now: Instant) -> Option<Output> {
        let TaskState::Fetch(fetch) = &mut self.task else { return None };
        match fetch.poll()? {
            Ok(Progress::Piece { offset, data }) => Some(Output::BodyChunk { offset, data }),
            Ok(Progress::Complete) => {
                let report = self.report(now);
                self.end(now, Ok(()));
                report.map(|report| Output::Event(Event::Fetched(report)))
            }
            Err(failure) => {
                self.on_fetch_failure(now, failure);
                None
            }
        }
    }

    fn on_fetch_failure(&mut self, now: Instant, failure: Failure) {
        let origin = self.hops.len();
        match failure {
            Failure::Protocol(error) => self.protocol_error(now, origin, &error),
            Failure::Malformed(error) => {
                // RFC 9114 §4.1.2: "Malformed requests or responses that are detected MUST be
                // treated as a stream error of type H3_MESSAGE_ERROR." Nothing else is going on on
                // this connection.
                if let Some(peer) = self.peer(origin) {
                    peer.close(now, Code::H3_MESSAGE_ERROR, &error.to_string());
                }
                self.end(now, Err(error));
            }
            Failure::Client(error) => self.end(now, Err(error)),
        }
    }

    fn report(&mut self, now: Instant) -> Option<FetchReport> {
        let hop_smoothed_rtt =
            self.hops.iter_mut().map(|hop| hop.peer.stats().smoothed_rtt).collect();
        let (began, feedback) = (self.began?, self.stats().feedback);
        let TaskState::Fetch(fetch) = &mut self.task else { return None };
        Some(FetchReport {
            status: fetch.status?.as_u16(),
            bytes: fetch.bytes,
            setup: fetch.peer.started()?.saturating_duration_since(began),
            handshake: fetch.peer.handshake().unwrap_or(Duration::ZERO),
            completion: fetch.completion(now),
            smoothed_rtt: fetch.peer.stats().smoothed_rtt,
            hop_smoothed_rtt,
            feedback,
        })
    }

    /// Moves packets outwards: those of each peer into the queue of the hop around it, and those of
    /// the outermost to its socket.
    fn transmit(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        for index in (1..self.peers()).rev() {
            self.feed(now, index);
            while let Some(transmit) = self.peer(index).and_then(|peer| {
                buf.clear();
                peer.poll_transmit(now, buf)
            }) {
                let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
                for payload in buf.chunks(segment) {
                    self.to_hop(now, index - 1, Bytes::copy_from_slice(payload));
                }
            }
        }
        buf.clear();
        self.feed(now, 0);
        let transmit = self.peer(0)?.poll_transmit(now, buf)?;
        Some(Output::Transmit { socket: self.outer_socket, transmit })
    }

    /// Lets a hop's engine have its next burst, if it is a hop.
    fn feed(&mut self, now: Instant, index: usize) {
        if let Some(hop) = self.hops.get_mut(index) {
            let (late, repaired) = hop.feed(now);
            self.stats.add_late(&late);
            self.stats.repaired.add(&repaired);
        }
        if let TaskState::Fetch(fetch) = &mut self.task
            && let Some(upload) = &mut fetch.upload
            && let Some(info) = self.hops.get_mut(index).and_then(Hop::take_own_report)
        {
            upload.follow(now, &mut fetch.peer, info);
        }
    }

    /// Puts a packet of the next peer into a hop's queue.
    fn to_hop(&mut self, now: Instant, index: usize, payload: Bytes) {
        let Some(hop) = self.hops.get_mut(index) else { return };
        let Some(stream) = hop.next else { return };
        let len = payload.len() as u64;
        match hop.send(now, stream, payload) {
            Push::Queued => {
                self.stats.to_target_datagrams += 1;
                self.stats.to_target_bytes += len;
            }
            Push::Full => self.stats.dropped.queue_full += 1,
            Push::TooLarge => self.stats.dropped.too_large += 1,
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        for index in 0..self.peers() {
            let timeout = self.limits.setup_timeout;
            let Some(peer) = self.peer(index) else { continue };
            peer.handle_timeout(now);
            if peer.deadline.is_some_and(|deadline| deadline <= now) {
                peer.deadline = None;
                let peer = peer.settings.authority.clone();
                let error = ClientError::NoAnswer { peer, timeout };
                if index < self.hops.len() {
                    self.on_hop_failed(now, index, error);
                } else {
                    self.end(now, Err(error));
                }
            }
        }
        for hop in &mut self.hops {
            hop.handle_timeout(now);
        }
        self.believe_suspicion(now);
        self.close_idle_flows(now);
        self.recover(now);
    }

    fn next_timeout(&mut self) -> Option<Instant> {
        let mut next = match &self.task {
            TaskState::Forward(forward) => forward.next_look,
            TaskState::Fetch(_) => None,
        };
        next = quic::earliest(next, self.recovery.next_timeout());
        for index in 0..self.peers() {
            next = quic::earliest(next, self.peer(index).and_then(|peer| peer.next_timeout()));
        }
        for hop in &self.hops {
            next = quic::earliest(next, hop.next_timeout());
        }
        next
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
                return self.poll_task(now);
            }
            Took::Nothing => {}
        }
        match self.receive(now, buf) {
            Took::Output(output) => return Some(output),
            Took::Progress => return None,
            Took::Nothing if any_event => return None,
            Took::Nothing => {}
        }
        if let Some(output) = self.poll_task(now) {
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
            Input::Datagram(received) if received.socket == self.outer_socket => {
                let Received { remote, local_ip, ecn, payload, .. } = received;
                if let Some(peer) = self.peer(0) {
                    peer.handle_datagram(now, (remote, local_ip), ecn, payload);
                }
            }
            Input::Datagram(received) => self.from_local(now, received),
            Input::Timeout => self.handle_timeout(now),
            Input::SocketOpened { socket, result } => self.on_socket_opened(now, socket, result),
            Input::SocketFailed { socket, error } => self.on_socket_failed(now, socket, error),
            Input::Resolved { result, .. } => self.on_resolved(now, result),
            Input::BodyCredit { bytes } => {
                if let TaskState::Fetch(fetch) = &mut self.task {
                    fetch.add_credit(bytes);
                }
            }
            Input::TunnelInfo(info) => {
                if let TaskState::Fetch(fetch) = &mut self.task {
                    self.stats.feedback.used += u64::from(fetch.relay(info));
                }
            }
            Input::Shutdown => {
                let result = match self.task {
                    TaskState::Fetch(_) => Err(ClientError::Interrupted),
                    TaskState::Forward(_) => Ok(()),
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
