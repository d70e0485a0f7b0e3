//! The start of a chain of tunnels, hop by hop, and of the task that uses it.

use std::{collections::VecDeque, io, net::SocketAddr, time::Instant};

use rand::RngCore;
use tandem_wire::{Code, ResponseHead};

use super::{
    Chain, Client, ClientConfig, Fetch, FetchConfig, FlowEnd, Forward, Hop, HopConfig,
    INSIDE_TUNNEL, Life, Peer, Task, TunnelMode, Work,
    flow::{Carries, Target},
    own::FlowId,
    peer::Settings,
    race::{Memory, Race, Watch},
    recover::Recovery,
    relay::Relay,
    tcp::Connections,
    upload::Upload,
};
use crate::{
    OsError,
    error::ClientError,
    h3::has_content,
    limits::Limits,
    node::{Event, Output, SocketId},
    quic::{
        AckPolicy, ClientTls, ConfigError, Layer, Ledger, LossDetection, Mtu, Place, StreamId,
        Transport, rng,
    },
    stats::Stats,
};

/// The first socket, which leads to the first peer.
const FIRST_SOCKET: u64 = 0;

impl Client {
    /// A client that starts at the first poll.
    pub fn new(config: ClientConfig) -> Result<Self, ConfigError> {
        let ClientConfig { hops: hop_configs, task, limits, seed } = config;
        if hop_configs.is_empty() && matches!(task, Task::Forward(_)) {
            return Err(ConfigError::Settings("forwarding needs at least one proxy"));
        }
        let peer_seed = |index: usize| seed.map(|seed| seed.wrapping_add(1000 * index as u64));
        // The connection inside a hop keeps the size with which it began, so that only the hop that
        // carries the packets of local programs gains from larger packets.
        let count = hop_configs.len();
        let is_chain = count > 1;
        let may_grow = count == 1 && matches!(task, Task::Forward(_));
        // Only a client that opens the end-to-end connection itself sees what its packets contain.
        let ledger = matches!(task, Task::Fetch(_)).then(Ledger::default);
        let mut hops = hops(hop_configs, may_grow, (ledger.as_ref(), &peer_seed), &limits)?;
        // With delayed acknowledgements, fewer reports reach an origin after a tunnel has broken.
        let is_reported = hops.iter().any(|hop| hop.tunnel.wants_reports());
        let usual_acks = (is_chain && !is_reported).then_some(AckPolicy::END_TO_END);
        let (work, origin) = match task {
            Task::Forward(configs) => {
                for hop in &mut hops {
                    hop.tunnel.report_to_nobody();
                }
                (Work::Forward(Box::new(Forward::new(configs))), None)
            }
            Task::Fetch(mut fetch) => {
                let authority = authority(&fetch.host, fetch.port);
                let relays = (is_reported || fetch.relays_feedback) && fetch.upload.is_none();
                let window = fetch.transport.receive_window;
                let settings = Settings {
                    host: fetch.host.clone(),
                    port: fetch.port,
                    authority: authority.clone(),
                    tls: tls_to_origin(&fetch, relays)?,
                    transport: Transport {
                        receive_window: window.or(Some(Transport::WINDOW_OF_FAST_READERS)),
                        acks: fetch.transport.acks.or(usual_acks),
                        loss_detection: fetch.transport.loss_detection.of_client(is_reported),
                        ..fetch.transport.clone().of_client()
                    },
                    seed: peer_seed(hops.len()),
                    layer: ledger.as_ref().map(|ledger| ledger.layer(hops.is_empty(), true)),
                    traces_requests: false,
                };
                fetch.streams = fetch.streams.max(1);
                if fetch.upload.is_some() {
                    fetch.streams = 1;
                    let last = hops.iter().rposition(|hop: &Hop| hop.tunnel.wants_reports());
                    for (index, hop) in hops.iter_mut().enumerate() {
                        hop.tunnel.report_inside(Some(index) == last);
                    }
                }
                let is_discreet =
                    !fetch.relays_feedback && hops.iter().any(|hop: &Hop| hop.tunnel.is_auto());
                let relay = relays.then(|| Relay::new(is_discreet));
                let fetch = Fetch::new(authority, *fetch, limits.body_credit, relay);
                (Work::Fetch(Box::new(fetch)), Some(Peer::new(settings, &limits)))
            }
        };
        Ok(Self {
            tcp: Connections::new(&limits),
            chain: Chain::new(chain_id(seed), hops, origin, SocketId(FIRST_SOCKET), ledger),
            work,
            limits,
            life: Life::New,
            began: None,
            race: Race::default(),
            memory: Memory::default(),
            watch: Watch::default(),
            recovery: Recovery::new(seed),
            lost: VecDeque::new(),
            requires_mode: false,
            outputs: VecDeque::new(),
            next_socket: FIRST_SOCKET,
            stats: Stats::default(),
        })
    }

    /// Makes the client end with an error if a proxy grants another mode than was asked for.
    pub fn require_mode(&mut self) {
        self.requires_mode = true;
    }

    /// Makes the client send a random identifier with each request and log what becomes of it, so that its log can be
    /// joined with those of the servers. No two requests have the same, so that servers cannot compare them.
    pub fn trace_requests(&mut self) {
        self.chain.peers().for_each(Peer::trace_requests);
    }

    /// The bytes of an upload's body that the connection has taken; 0 for a download.
    pub fn uploaded(&self) -> u64 {
        match &self.work {
            Work::Fetch(fetch) => fetch.upload.as_ref().map_or(0, Upload::taken),
            Work::Forward(_) => 0,
        }
    }

    /// Makes a client that carries the packets of local programs request a flow to each target before
    /// it opens the sockets. A wrong token, a refused target or an unknown host then ends the client
    /// at its start, or is an attempt to repeat ([`Limits::retry`](crate::limits::Limits::retry)).
    /// The first program of each listener gets the flow that was requested ahead.
    pub fn check_targets(&mut self) {
        if let Work::Forward(forward) = &mut self.work {
            forward.check_targets();
        }
    }

    pub(super) fn on_socket_opened(
        &mut self,
        now: Instant,
        socket: SocketId,
        result: Result<SocketAddr, OsError>,
    ) {
        if self.life != Life::Running {
            return;
        }
        let is_attempt = self.on_attempt_opened(now, socket, result).is_some();
        if is_attempt || self.on_association(now, socket, result) {
            return;
        }
        let listener = self.forward().and_then(|(forward, _)| forward.config(socket));
        // Without a listener, this is the socket of an attempt that was given up.
        let Some(address) = listener.map(|config| config.listen) else { return };
        match result {
            Ok(local) => self.outputs.push_back(Output::Event(Event::Listening(local))),
            Err(error) => self.end(now, Err(ClientError::Listen { address, error })),
        }
    }

    /// Handles an ICMP error for the first peer's address.
    pub(super) fn on_socket_failed(&mut self, now: Instant, socket: SocketId, kind: io::ErrorKind) {
        if self.on_attempt_refused(now, socket, kind).is_none()
            && socket == self.chain.outer_socket
            && self.chain.outer.is_some()
            && let Some(peer) = self.chain.peer(0)
        {
            peer.suspect(now, kind);
            self.check_suspicion(now);
        }
    }

    /// Gives the first peer up if the reported ICMP error has not been disproved in time.
    pub(super) fn check_suspicion(&mut self, now: Instant) {
        let Some(first) = self.chain.peer(0) else { return };
        let Some(kind) = first.confirmed_suspicion(now) else { return };
        let peer = first.settings.authority.clone();
        self.on_peer_failed(now, 0, ClientError::Refusing { peer, kind });
    }

    /// The limits of a connection of the chain.
    pub(super) fn limits_of(&self, index: usize) -> Limits {
        let mut limits = self.limits.clone();
        if index < self.chain.hops.len() {
            limits.connection_idle = limits.connection_idle.min(limits.tunnel_idle);
        }
        limits
    }

    /// Where in the chain the connection with this index is, for its qlog.
    pub(super) fn place(&self, now: Instant, index: usize) -> Place {
        Place {
            chain: self.chain.id,
            layer: index,
            is_end_to_end: self.chain.is_origin(index),
            offset: now - self.began.unwrap_or(now),
        }
    }

    fn connect(&mut self, now: Instant, index: usize, remote: SocketAddr) {
        let limits = self.limits_of(index);
        let place = self.place(now, index);
        let Some(peer) = self.chain.peer(index) else { return };
        if let Err(error) = peer.connect(now, remote, (&limits, place)) {
            self.end(now, Err(error));
        }
    }

    /// Handles the SETTINGS of a hop. Requests a flow to the next peer, or opens the sockets for
    /// local programs.
    pub(super) fn on_hop_settings(&mut self, now: Instant, index: usize) {
        let carries_only_tcp = index + 1 == self.chain.hops.len()
            && !self.tcp.is_empty()
            && matches!(&self.work, Work::Forward(forward) if !forward.has_listeners());
        let Some(hop) = self.chain.hops.get_mut(index) else { return };
        match hop.lacks(carries_only_tcp) {
            None => return,
            Some(Err(what)) => {
                let peer = hop.peer.settings.authority.clone();
                return self.end(now, Err(ClientError::Unsupported { peer, what }));
            }
            Some(Ok(())) => {}
        }
        let next = self.chain.peer(index + 1);
        let next = next.map(|peer| Target::new(peer.settings.host.clone(), peer.settings.port));
        let Some(hop) = self.chain.hops.get_mut(index) else { return };
        if let Some(target) = &next
            && hop.request(target, Carries::NextPeer).is_none()
        {
            let peer = hop.peer.settings.authority.clone();
            let reason = "it accepts no more requests".into();
            return self.on_hop_failed(now, index, ClientError::ConnectionLost { peer, reason });
        }
        // After a rebuild the connection of this hop may be old, and its first deadline is no longer
        // set.
        hop.peer.deadline.get_or_insert(now + self.limits.setup_timeout);
        match hop.max_payload_early() {
            _ if next.is_none() => self.open_for_programs(now),
            Some(size) => self.connect_inside(now, index + 1, size),
            None => {} // `start_inner` follows the grant
        }
    }

    /// Opens the sockets for local programs, as soon as the targets have been checked.
    fn open_for_programs(&mut self, now: Instant) {
        let is_first = !self.recovery.was_up;
        let Some((forward, hop)) = self.forward() else { return };
        if is_first && !forward.request_ahead(hop) {
            return;
        }
        self.hop_is_up(now, self.chain.hops.len().saturating_sub(1));
        self.on_chain_up(now);
        let Self { work, chain, next_socket, outputs, .. } = self;
        if let (Work::Forward(forward), Some(hop)) = (work, chain.hops.last_mut()) {
            forward.listen(next_socket, outputs);
            forward.request_waiting(hop);
        }
        self.listen_tcp();
        self.request_waiting_tcp();
    }

    fn hop_is_up(&mut self, now: Instant, index: usize) {
        let Some(hop) = self.chain.hops.get_mut(index) else { return };
        hop.peer.deadline = None;
        hop.failed = 0;
        if std::mem::replace(&mut hop.is_up, true) {
            return;
        }
        let setup = hop.peer.started().map_or_else(Default::default, |started| now - started);
        let authority = hop.peer.settings.authority.clone();
        let agreement = hop.tunnel.agreement();
        hop.tunnel.take_change(); // this event tells it
        let event = Event::HopUp { hop: index, authority, setup, agreement };
        self.outputs.push_back(Output::Event(event));
    }

    /// Handles the answer to a request for a flow.
    pub(super) fn on_flow_response(
        &mut self,
        now: Instant,
        index: usize,
        stream: StreamId,
        head: &ResponseHead,
    ) {
        let Some(hop) = self.chain.hops.get_mut(index) else { return };
        let Some(flow) = hop.flows.get_mut(&stream) else { return };
        if head.status.is_success() && !grants(head) {
            let end = FlowEnd::new(Code::H3_MESSAGE_ERROR, "the grant is malformed");
            return self.on_flow_closed(now, index, stream, &end);
        }
        // RFC 9298 §3.1: "Any response other than a successful response indicates that the request
        // has failed", and the client MUST abort the request.
        if !head.status.is_success() {
            let (carries, target) = (flow.carries, flow.target());
            if hop.tunnel.has_joined(stream) {
                return hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
            }
            let error = hop.refused(target, head);
            hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
            return match carries {
                Carries::NextPeer => self.on_refused(now, index, error),
                Carries::Ahead(listener) => self.on_ahead_failed(now, index, listener, error),
                Carries::Local(id) => {
                    let Self { work, limits, recovery, .. } = self;
                    let Work::Forward(forward) = work else { return };
                    let told = forward.on_refused(now, id, &error, (limits, &mut recovery.jitter));
                    self.tell_of_flow(told, error);
                }
                Carries::Own(id) => self.on_own_flow_ended(id, Some(error)),
            };
        }
        let carries = flow.carries;
        hop.begin_reports(now);
        if let Err(reason) = hop.on_granted(stream, head) {
            // The draft's §3 demands it for a transform that was not offered.
            let end = FlowEnd::new(Code::H3_MESSAGE_ERROR, reason);
            return self.on_flow_closed(now, index, stream, &end);
        }
        if self.is_refused_mode(now, index) {
            return;
        }
        let Some(hop) = self.chain.hops.get_mut(index) else { return };
        if hop.tunnel.has_joined(stream) {
            return; // the flow that it joined is up already
        }
        match carries {
            Carries::NextPeer => {
                self.hop_is_up(now, index);
                self.start_inner(now, index + 1);
            }
            Carries::Local(id) => {
                let Self { work, chain, stats, .. } = self;
                if let (Work::Forward(forward), Some(hop)) = (work, chain.hops.last_mut()) {
                    let event = forward.on_granted(now, id, hop, stats);
                    self.outputs.extend(event.map(Output::Event));
                }
            }
            Carries::Own(id) => {
                let Self { work, chain, stats, .. } = self;
                if let (Work::Forward(forward), Some(hop)) = (work, chain.hops.last_mut()) {
                    forward.own.on_granted(now, id, hop, stats);
                }
            }
            Carries::Ahead(_) if !self.recovery.was_up => self.open_for_programs(now),
            Carries::Ahead(_) => {}
        }
    }

    /// Ends the client if it requires its mode and a proxy granted another.
    pub(super) fn is_refused_mode(&mut self, now: Instant, index: usize) -> bool {
        let Some(hop) = self.chain.hops.get(index).filter(|_| self.requires_mode) else {
            return false;
        };
        let agreement = hop.tunnel.agreement().filter(|agreement| agreement.lesser.is_some());
        let Some(agreement) = agreement else { return false };
        let peer = hop.peer.settings.authority.clone();
        self.end(now, Err(ClientError::LesserMode { peer, agreement }));
        true
    }

    /// Handles the failure of a flow that no program uses yet. At the start the client tries again
    /// or ends. Later a program's own flow will tell.
    fn on_ahead_failed(&mut self, now: Instant, index: usize, listener: usize, error: ClientError) {
        if let Some((forward, _)) = self.forward() {
            forward.forget_ahead(listener);
        }
        if !self.recovery.was_up {
            // The hop has answered, so that its silence while the client waits is no failure.
            if let Some(hop) = self.chain.hops.get_mut(index) {
                hop.peer.deadline = None;
            }
            self.on_hop_failed(now, index + 1, error);
        }
    }

    /// Tells the embedding program that the flow of a local program failed.
    fn tell_of_flow(&mut self, listen: Option<SocketAddr>, error: ClientError) {
        if let Some(listen) = listen {
            self.outputs.push_back(Output::Event(Event::FlowFailed { listen, error }));
        }
    }

    /// Handles the end of a flow that the embedding program opened. Without an error it was orderly.
    fn on_own_flow_ended(&mut self, id: FlowId, error: Option<ClientError>) {
        if error.is_some() {
            self.forget_associated(id);
        }
        if let Some((forward, _)) = self.forward() {
            forward.own.on_ended(id, error);
        }
    }

    /// Opens the connection to a peer inside a tunnel that is granted, with the packet size that is certain to fit.
    fn start_inner(&mut self, now: Instant, index: usize) {
        let outer = index.checked_sub(1).and_then(|outer| self.chain.hops.get(outer));
        let Some(fits) = outer.map(Hop::max_payload) else { return };
        if index == self.chain.hops.len() {
            self.on_chain_up(now);
        }
        if let Some(peer) = self.chain.peer(index)
            && peer.started().is_some()
            && !peer.is_connected()
            && usize::from(peer.settings.transport.mtu.start) > fits
        {
            // It began before the grant with packets that the proxy does not promise to carry.
            self.begin_again(index);
        }
        self.connect_inside(now, index, fits);
    }

    /// Opens the connection to a peer inside a tunnel, which carries payloads of this size in bytes. Before the
    /// grant, its first packets travel with the request for the tunnel, which saves one round trip.
    ///
    /// After a rebuild the end-to-end connection continues and is not opened again.
    fn connect_inside(&mut self, now: Instant, index: usize, size: usize) {
        let outer = index.checked_sub(1).and_then(|outer| self.chain.hops.get_mut(outer));
        let rtt = outer.map(|outer| outer.peer.stats().smoothed_rtt);
        let Some(peer) = self.chain.peer(index).filter(|peer| peer.started().is_none()) else {
            return;
        };
        let mtu = Mtu::inside_tunnel(u16::try_from(size).unwrap_or(u16::MAX));
        let transport = Transport { mtu, ..peer.settings.transport.clone() };
        peer.settings.transport = transport.inside_tunnel(rtt.unwrap_or_default());
        self.connect(now, index, INSIDE_TUNNEL);
    }

    /// Handles the end of the handshake with a hop or the origin.
    pub(super) fn on_connected(&mut self, index: usize) {
        let end_to_end = self.chain.peer(index).map(|peer| peer.stats().smoothed_rtt);
        let outer = index.checked_sub(1).and_then(|outer| self.chain.hops.get_mut(outer));
        if let (Some(outer), Some(end_to_end)) = (outer, end_to_end) {
            outer.on_rtt_beyond(end_to_end);
        }
        if index < self.chain.hops.len() {
            return;
        }
        self.on_success();
        if let Some((fetch, origin)) = self.fetch() {
            origin.deadline = None;
            fetch.start(origin);
        }
    }

    pub(super) fn on_flow_closed(
        &mut self,
        now: Instant,
        index: usize,
        stream: StreamId,
        FlowEnd { code, reason, is_orderly }: &FlowEnd,
    ) {
        let last = self.chain.hops.len().saturating_sub(1);
        let Some(hop) = self.chain.hops.get_mut(index) else { return };
        let Some(flow) = hop.flows.get(&stream) else { return };
        let (carries, target) = (flow.carries, flow.target());
        let has_joined = hop.tunnel.has_joined(stream);
        hop.close_flow(stream, *code);
        if has_joined {
            return; // the flow continues over its other streams
        }
        let peer = hop.peer.settings.authority.clone();
        let error = ClientError::FlowClosed { peer, target: target.into(), reason: reason.clone() };
        match carries {
            // The next proxy may be restarting, so the hop is rebuilt. An origin that restarts has
            // lost our connection.
            Carries::NextPeer if index == last && self.is_origin_connected() => {
                self.end(now, Err(error));
            }
            Carries::NextPeer => self.on_hop_failed(now, index + 1, error),
            Carries::Ahead(listener) => self.on_ahead_failed(now, index, listener, error),
            Carries::Local(id) => {
                let Work::Forward(forward) = &mut self.work else { return };
                if *is_orderly {
                    return forward.on_closed(now, id, &error);
                }
                let told = forward.on_failed(now, id, &error);
                self.tell_of_flow(told, error);
            }
            Carries::Own(id) => self.on_own_flow_ended(id, (!is_orderly).then_some(error)),
        }
    }
}

/// The cryptographic settings for the origin, which also say whether this client relays reports.
fn tls_to_origin(fetch: &FetchConfig, relays: bool) -> Result<ClientTls, ConfigError> {
    let tls = fetch.tls.clone();
    if relays { ClientTls::announcing_reports(tls) } else { ClientTls::new(tls) }
}

/// The hops, of which none is connected yet. `may_grow`: the packets of the only one may become larger.
fn hops(
    configs: Vec<HopConfig>,
    may_grow: bool,
    (ledger, seed): (Option<&Ledger>, &dyn Fn(usize) -> Option<u64>),
    limits: &Limits,
) -> Result<Vec<Hop>, ConfigError> {
    let count = configs.len();
    let mut hops = Vec::with_capacity(count);
    let mut is_repaired = false;
    let is_sealed = configs.iter().all(|it| matches!(it.mode, TunnelMode::Uack { .. }));
    for (index, config) in configs.into_iter().enumerate() {
        let Transport { mtu, acks, .. } = config.transport;
        let mtu = if may_grow { mtu } else { mtu.for_chain(count, is_sealed) };
        let acks = acks.or((count > 1).then_some(AckPolicy::TUNNEL));
        let mut transport = Transport { mtu, acks, ..config.transport };
        if is_repaired {
            // The repairs of the tunnel around this one arrive late.
            transport.loss_detection = LossDetection::BehindRepair;
        }
        is_repaired |= matches!(
            config.mode,
            TunnelMode::Rmdt(_) | TunnelMode::Tecc(_) | TunnelMode::Auto { .. }
        );
        let config = HopConfig { transport, ..config };
        let layer = ledger.map(|ledger| ledger.layer(index == 0, false));
        let mut hop = hop(config, seed(index), layer, limits)?;
        if index == 0 {
            hop.beside.set_nearest();
        }
        hops.push(hop);
    }
    Ok(hops)
}

/// A random number for the qlogs of all connections.
fn chain_id(seed: Option<u64>) -> u64 {
    /// Lets the choice differ from those of connections with the same seed.
    const PART: u64 = 1 << 62;
    rng(seed.map(|seed| seed.wrapping_add(PART))).next_u64()
}

/// A hop that is not connected yet.
fn hop(
    config: HopConfig,
    seed: Option<u64>,
    layer: Option<Layer>,
    limits: &Limits,
) -> Result<Hop, ConfigError> {
    let HopConfig { template, others, tls, transport, token, mode } = config;
    let keep_alive = Some(limits.tunnel_idle / 3);
    let settings = Settings {
        host: template.host().to_owned(),
        port: template.port(),
        authority: template.authority().to_owned(),
        tls: ClientTls::new(tls)?,
        transport: Transport { keep_alive, ..transport.of_client() },
        seed,
        layer,
        traces_requests: false,
    };
    Ok(Hop::new(Peer::new(settings, limits), (template, others), token, mode, limits))
}

/// Whether a successful answer is allowed for a request whose stream carries capsules.
///
/// RFC 9297 §3.2: "HTTP status codes 204 (No Content), 205 (Reset Content), and 206 (Partial Content)
/// MUST NOT be sent on responses that use the Capsule Protocol."
pub(super) fn grants(head: &ResponseHead) -> bool {
    !matches!(head.status.as_u16(), 204..=206) && !has_content(&head.headers)
}

/// Host and port in the form of `:authority`, without the default port.
fn authority(host: &str, port: u16) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    if port == 443 { host } else { format!("{host}:{port}") }
}
