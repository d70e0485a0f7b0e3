//! The client: a chain of tunnels that carries a transfer or the flows of local programs.
//!
//! Each hop is a QUIC connection with HTTP/3 to a proxy, and a tunnel on that connection. The
//! packets of the first hop go through a UDP socket. The packets of every other hop and of the
//! end-to-end connection are the payloads of a CONNECT-UDP flow of the hop before it.
//!
//! This file is the node itself: what it is fed, in which order it works, and how it ends. `life` says how the chain
//! comes up and recovers, and `inbound` moves what comes through it.

mod build;
mod chain;
mod config;
mod first;
mod inbound;
mod life;
pub mod local;
mod migration;
mod programs;
mod recovery;
pub mod rules;
mod status;
mod transfer;

use std::{collections::VecDeque, mem, time::Instant};

use bytes::Bytes;
use tandem_units::ByteCount;
use tandem_wire::Code;
pub use tandem_wire::{
    Order, TargetError, Template, TemplateError, TunnelInfo, UnknownOrder, Urgency,
};

use self::{
    chain::{Chain, Hop, Peer, Request},
    first::First,
    inbound::Inbound,
    migration::Migration,
    programs::{Context, Programs},
    recovery::Recovery,
    rules::Rules,
    transfer::Fetch,
};
pub use self::{
    config::{ClientConfig, FetchConfig, FlowConfig, ForwardConfig, HopConfig, Resume, Task},
    programs::{FlowEvent, FlowId, TcpService},
    status::{ClientStatus, EndToEndStatus, FlowKind, FlowPhase, FlowStatus, HopStatus},
    transfer::Choice,
};
pub use crate::mode::{Agreement, Oversize, Repair, TunnelMode};
use crate::{
    error::{ClientError, FlowError},
    h3,
    impossible::{self, impossible},
    limits::Limits,
    node::{Event, Input, Node, Output, SocketId, SocketKind},
    quic::{self, ConfigError, LossDetection},
    service::Service,
    stats::{ConnectionStats, Overhead, Stats},
};

/// Asks for a socket, and returns its name, which is the next one.
fn open_socket(
    outputs: &mut VecDeque<Output>,
    next_socket: &mut u64,
    kind: SocketKind,
) -> SocketId {
    let socket = SocketId(*next_socket);
    *next_socket += 1;
    outputs.push_back(Output::OpenSocket { socket, kind });
    socket
}

/// The use of the chain.
enum Work {
    Transfer(Box<Fetch>),
    Programs(Box<Programs>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ClientPhase {
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
    /// The choice of the first peer.
    first: First,
    /// The way of the outermost connection through the networks of the host.
    migration: Migration,
    work: Work,
    recovery: Recovery,
    life: ClientPhase,
    /// Hops whose connections have ended. What arrived before is passed on first.
    lost: VecDeque<(usize, ClientError)>,
    /// Whether the client ends if a proxy grants another mode than was asked for.
    requires_mode: bool,
    outputs: VecDeque<Output>,
    next_socket: u64,
    limits: Limits,
    stats: Stats,
}

/// What the embedding program does with a client.
impl Client {
    /// A client that starts at the first poll.
    pub fn new(config: ClientConfig) -> Result<Self, ConfigError> {
        build::client(config)
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

    /// Makes a client that carries the packets of local programs request a flow to each target before its tunnel
    /// counts as up. A wrong token, a refused target or an unknown host then ends the client at its start, or is an
    /// attempt to repeat ([`Limits::retry`]). The first program of each listener gets the flow that was requested
    /// ahead. A client that has no UDP listener asks whether it may use the proxy, with a request that costs nothing.
    pub fn check_targets(&mut self) {
        if let Work::Programs(programs) = &mut self.work {
            programs.check_targets();
        }
    }

    /// Adds a way in which local programs give TCP connections to this client, before it is first
    /// polled. The client must have the task [`Task::Forward`].
    ///
    /// A client that carries TCP only waits longer before a packet counts as lost
    /// ([`LossDetection::BehindRepair`]), so that reordering costs nothing. For UDP payloads that are
    /// repaired the wait would be a loss of time.
    pub fn add_tcp_service(&mut self, service: TcpService) {
        let Work::Programs(programs) = &mut self.work else { return }; // it has no use for it
        programs.add_tcp_service(service);
        if programs.has_only_tcp() {
            for hop in &mut self.chain.hops {
                hop.peer.settings.transport.loss_detection = LossDetection::BehindRepair;
            }
        }
    }

    /// Sets the rules for the targets that programs name at a [`TcpService::Proxy`], before the client is first polled.
    /// Without rules, all of them go through the tunnel. What is given to a fixed target has no rule.
    pub fn set_rules(&mut self, rules: Rules) {
        if let Work::Programs(programs) = &mut self.work {
            programs.set_rules(rules);
        }
    }

    /// The counters of the client. `to_target` counts payloads that enter the tunnel, `to_client`
    /// those that leave it.
    pub fn stats(&mut self) -> Stats {
        self.stats.internal_errors += impossible::take();
        let mut stats = self.stats;
        self.chain.add_to(&mut stats);
        match &self.work {
            Work::Transfer(fetch) => fetch.add_to(&mut stats.feedback),
            Work::Programs(programs) => programs.add_to(&mut stats),
        }
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

    /// The bytes of an upload's body that the connection has taken; 0 for a download.
    pub fn uploaded(&self) -> u64 {
        match &self.work {
            Work::Transfer(fetch) => fetch.uploaded(),
            Work::Programs(_) => 0,
        }
    }

    /// What was agreed on with the last proxy. `None` if it has granted no flow yet.
    pub fn agreement(&self) -> Option<Agreement> {
        self.chain.hops.last()?.tunnel.agreement()
    }

    /// The bytes of encoded payloads that wait in the first hop's queue towards its proxy.
    pub fn tunnel_queue(&self) -> ByteCount {
        ByteCount::from(self.chain.hops.first().map_or(0, |hop| hop.tunnel.queued()))
    }

    /// Opens a flow. [`FlowEvent::Opened`] or [`FlowEvent::Ended`] follows. While the tunnel is down,
    /// the flow waits for it.
    ///
    /// # Errors
    ///
    /// The target is malformed, or the client has [`Limits::local_flows`] flows already, or it does not carry flows
    /// ([`Task::Forward`]), or it is ending, or the name of the flow is in use.
    pub fn open_flow(&mut self, id: FlowId, config: FlowConfig) -> Result<(), FlowError> {
        self.open(id, Service::Udp, config)
    }

    /// Opens a flow of any service that carries payloads, as [`Self::open_flow`] does.
    pub(crate) fn open(
        &mut self,
        id: FlowId,
        service: Service,
        config: FlowConfig,
    ) -> Result<(), FlowError> {
        let Self { work: Work::Programs(programs), chain, limits, stats, life, .. } = self else {
            return Err(FlowError::NotOpen);
        };
        let (Some(hop), ClientPhase::New | ClientPhase::Running) = (chain.hops.last_mut(), life)
        else {
            return Err(FlowError::NotOpen);
        };
        programs.open(id, Request::new(service, config), limits, hop)?;
        stats.flows += 1;
        Ok(())
    }

    /// Asks the last proxy whether and how fast it answers. [`FlowEvent::Opened`] follows when it has, or
    /// [`FlowEvent::Ended`]; there are no other events, and the name is free again.
    ///
    /// With a target the proxy is asked for a TCP connection to it, which it grants when the target has accepted it,
    /// and which the client then ends at once. Without a target it is asked for what no proxy opens: any answer will do
    /// but one that means the token. [`Self::close_flow`] gives up a probe that is not answered.
    ///
    /// # Errors
    ///
    /// The target is malformed; or the tunnel is not up, or the proxy takes no more requests at present
    /// ([`FlowError::NotOpen`]); or 64 probes wait for their answers.
    pub fn probe(
        &mut self,
        now: Instant,
        id: FlowId,
        target: Option<FlowConfig>,
    ) -> Result<(), FlowError> {
        let sent = self.with_programs(now, |programs, cx| programs.probe(id, target, cx));
        sent.unwrap_or(Err(FlowError::NotOpen))
    }

    /// Makes a client that only sends probes need no more of the last proxy than CONNECT (RFC 9114 §4.4).
    pub fn only_probes(&mut self) {
        if let Work::Programs(programs) = &mut self.work {
            programs.only_probes();
        }
    }

    /// Sends a payload on a flow. While the flow is not granted, the client keeps as many payloads
    /// as [`Limits::early_datagrams_per_flow`] says.
    ///
    /// # Errors
    ///
    /// The payload was dropped.
    pub fn send_on_flow(
        &mut self,
        now: Instant,
        id: FlowId,
        payload: &Bytes,
    ) -> Result<(), FlowError> {
        let sent = self.with_programs(now, |programs, cx| programs.send(id, payload, cx));
        sent.unwrap_or(Err(FlowError::NotOpen))
    }

    /// The largest payload in bytes that a flow carries at present. `None`: the proxy has not granted
    /// the flow, or there is no such flow.
    pub fn max_payload(&mut self, id: FlowId) -> Option<usize> {
        match &self.work {
            Work::Programs(programs) => programs.max_payload(id, self.chain.hops.last_mut()?),
            Work::Transfer(_) => None,
        }
    }

    /// Closes a flow. Its last payloads have [`Limits::last_words`] to leave, then its request stream
    /// is closed. There are no further events of the flow.
    pub fn close_flow(&mut self, now: Instant, id: FlowId) {
        self.with_programs(now, |programs, cx| programs.close(id, cx));
    }

    /// Whether the innermost tunnel's queue is so short that a program that can wait should send
    /// more. A program that sends without waiting fills the queue, which then drops payloads.
    pub fn takes_payloads(&self) -> bool {
        /// A share of the queue that keeps a link of 100 Mbit/s busy for 20 ms.
        const SHARE: usize = 4;
        let queued = self.chain.hops.last().map_or(0, |hop| hop.tunnel.queued());
        queued < self.limits.tunnel_queue / SHARE
    }

    /// The next event of a flow that the program opened. Take all events after each round of outputs:
    /// a flow drops payloads when [`Limits::flow_queue`] of them wait.
    pub fn poll_flow_event(&mut self) -> Option<(FlowId, FlowEvent)> {
        match &mut self.work {
            Work::Programs(programs) => programs.poll_event(),
            Work::Transfer(_) => None,
        }
    }
}

impl Client {
    /// The transfer and its connection to the origin, if the client has this task.
    fn transfer(&mut self) -> Option<(&mut Fetch, &mut Peer)> {
        match (&mut self.work, &mut self.chain.origin) {
            (Work::Transfer(fetch), Some(origin)) => Some((fetch, origin)),
            (Work::Transfer(_), None) => impossible("a transfer has an origin"),
            (Work::Programs(_), _) => None,
        }
    }

    /// Lets the programs do something with the hop that carries their flows, and then does what they want of the
    /// client. `None`: the client has no programs but a transfer.
    fn with_programs<R>(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut Programs, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let Self { work: Work::Programs(programs), chain, .. } = self else { return None }; // it has none
        let Some(hop) = chain.hops.last_mut() else {
            return impossible("flows of programs have a hop");
        };
        let mut cx = Context {
            now,
            hop,
            limits: &self.limits,
            stats: &mut self.stats,
            outputs: &mut self.outputs,
            next_socket: &mut self.next_socket,
            jitter: &mut self.recovery.jitter,
            is_running: matches!(self.life, ClientPhase::New | ClientPhase::Running),
            verdict: None,
        };
        let result = act(programs, &mut cx);
        if let Some(verdict) = cx.verdict {
            self.obey(now, verdict);
        }
        Some(result)
    }

    fn tell(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    /// Starts to close the client's connections. No effect if the client is ending already.
    fn end(&mut self, now: Instant, result: Result<(), ClientError>) {
        if matches!(self.life, ClientPhase::New | ClientPhase::Running) {
            let left = self.chain.len();
            self.life = ClientPhase::Ending { left, until: now + self.limits.last_words, result };
            self.with_programs(now, Programs::end_all);
            self.first.end(now, &mut self.chain);
            if self.chain.origin.is_some() {
                self.close_next(now);
            }
        }
    }

    /// Continues the end of the client. `None`: it has done something.
    fn continue_end(&mut self, now: Instant) -> Option<Output> {
        let ClientPhase::Ending { left, until, result } = &self.life else {
            return Some(Output::Wait(self.next_timeout()));
        };
        let Some(index) = left.checked_sub(1) else {
            let event = Event::Closed(result.clone());
            self.life = ClientPhase::Ended;
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
        let ClientPhase::Ending { left, until, .. } = &mut self.life else {
            return impossible("only a client that ends closes its connections");
        };
        let Some(index) = left.checked_sub(1) else {
            return impossible("a client that has closed all connections has ended");
        };
        (*left, *until) = (index, last_words);
        match self.chain.peer(index) {
            Some(peer) => peer.close(now, Code::H3_NO_ERROR, ""),
            None => impossible("each connection has its place in the chain"),
        }
    }

    fn protocol_error(&mut self, now: Instant, index: usize, error: &h3::ConnectionError) {
        let Some(peer) = self.chain.peer(index) else {
            return impossible("only a connection violates a protocol");
        };
        peer.close(now, error.code, &error.reason.to_string());
        let peer = peer.settings.authority.clone();
        self.end(now, Err(ClientError::Protocol { peer, reason: error.reason.clone() }));
    }

    /// Moves packets outwards, and lets an upload follow the reports on this client's end of its
    /// tunnel.
    fn transmit(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let output = self.chain.transmit(now, buf, &mut self.stats);
        if let Some(info) = self.chain.take_own_report()
            && let Some((fetch, origin)) = self.transfer()
        {
            fetch.follow(now, origin, info);
        }
        output.or_else(|| self.first.transmit(now, &self.chain, buf))
    }

    /// Does one round of work. `None`: there was progress, so another round is needed.
    ///
    /// The order matters. Events come first, since they may end what the rest works with. What the client has to say
    /// waits in `outputs` and leaves before anything else is done, so that the queue stays short. What comes in is
    /// passed on before the loss of its connection is handled, and before anything is sent, so that acknowledgements
    /// and answers of the connection inside leave in the same round: first what travelled beside a connection, then
    /// what an egress has in order, then what is new. Packets leave after that, from the innermost connection outwards.
    /// Programs are asked for more only when there is nothing left to send, because the queue may then have room. The
    /// client ends, or waits, when none of this has anything to do.
    fn step(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let any_event = self.take_events(now);
        self.pull(now);
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        if let Some(output) = self.poll_direct(buf) {
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
        if self.pull(now) {
            return None;
        }
        self.continue_end(now)
    }

    /// Asks the programs for bytes whose streams have sent most of what they had. Returns whether there was one.
    fn pull(&mut self, now: Instant) -> bool {
        let has_drained = self.chain.hops.last().is_some_and(|hop| hop.tunnel.has_drained());
        has_drained && self.with_programs(now, Programs::pull).unwrap_or(false)
    }

    /// Handles the end of a hop's connection, after everything that arrived before has been passed
    /// on.
    fn take_lost(&mut self, now: Instant) -> bool {
        let Some((index, error)) = self.lost.pop_front() else { return false }; // none has ended
        let hop = self.chain.hops.get_mut(index);
        if hop.is_some_and(|hop| hop.tunnel.end(now)) {
            self.lost.push_back((index, error)); // the payloads that it releases come first
        } else {
            self.on_peer_failed(now, index, error);
        }
        true
    }

    fn handle_timeout(&mut self, now: Instant) {
        for index in 0..self.chain.len() {
            let Some(peer) = self.chain.peer(index) else {
                return impossible("each connection has its place in the chain");
            };
            peer.handle_timeout(now);
            if peer.deadline.is_some_and(|deadline| deadline <= now) {
                peer.deadline = None;
                let (peer, timeout) = (peer.settings.authority.clone(), self.limits.setup_timeout);
                self.on_peer_failed(now, index, ClientError::NoAnswer { peer, timeout });
            }
        }
        for (index, hop) in self.chain.hops.iter_mut().enumerate() {
            hop.handle_timeout(now);
            if hop.peer.falls_silent(now) {
                self.lost.push_back((index, hop.peer.lost(&quic::Closed::TimedOut, &self.limits)));
            }
        }
        self.check_suspicion(now);
        self.with_migration(now, Migration::handle_timeout);
        self.with_first(now, First::handle_timeout);
        self.look_elsewhere(now);
        self.with_programs(now, Programs::handle_timeout);
        if let Some((fetch, origin)) = self.transfer() {
            fetch.handle_timeout(now, origin);
        }
        self.recover(now);
    }

    fn next_timeout(&mut self) -> Option<Instant> {
        let work = match &self.work {
            Work::Programs(programs) => programs.next_timeout(),
            Work::Transfer(fetch) => fetch.next_timeout(),
        };
        let is_running = self.life == ClientPhase::Running;
        let first = self.first.next_timeout(is_running, &self.limits);
        let chain = quic::earliest(self.chain.next_timeout(), self.recovery.next_timeout());
        let outer = quic::earliest(first, self.migration.next_timeout(is_running));
        quic::earliest(quic::earliest(work, outer), chain)
    }
}

impl Node for Client {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Datagram(received) => self.on_datagram(now, received),
            Input::Timeout => self.handle_timeout(now),
            Input::SocketOpened { socket, result } => self.on_socket_opened(now, socket, result),
            Input::SocketFailed { socket, error } => self.on_socket_failed(now, socket, error),
            Input::NetworkChanged => self.with_migration(now, Migration::look),
            Input::Resolved { query, result, progress } => {
                self.on_resolved(now, query, (result, progress));
            }
            Input::ServiceResolved { query, result, progress } => {
                self.on_service_resolved(now, query, (result, progress));
            }
            Input::Tcp(input) => {
                self.with_programs(now, |programs, cx| programs.on_tcp(input, cx));
            }
            Input::BodyCredit { bytes } => {
                if let Some((fetch, _)) = self.transfer() {
                    fetch.add_credit(bytes);
                }
            }
            Input::TunnelInfo(info) => {
                if let Some((fetch, _)) = self.transfer()
                    && fetch.relay(now, info)
                {
                    self.stats.feedback.received += 1;
                }
            }
            Input::Shutdown if matches!(self.work, Work::Transfer(_)) => {
                self.end(now, Err(ClientError::Interrupted));
            }
            Input::Shutdown => self.end(now, Ok(())),
            // Only what the user asked for uses the memory of a client.
            Input::Upstream(_)
            | Input::FileOpened { .. }
            | Input::FileChunk { .. }
            | Input::MemoryInUse(_)
            | Input::PasswordChecked { .. }
            | Input::Load(_) => {}
        }
    }

    fn take_urgent(&mut self) -> bool {
        self.chain.hops.iter_mut().fold(false, |any, hop| any | mem::take(&mut hop.has_urgent))
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        if self.life == ClientPhase::New {
            self.life = ClientPhase::Running;
            self.chain.began = Some(now);
            self.outputs.push_back(Output::WatchNetwork);
            self.with_programs(now, Programs::listen);
            self.with_first(now, First::begin);
        }
        loop {
            buf.clear();
            if let Some(output) = self.step(now, buf) {
                return output;
            }
        }
    }
}
