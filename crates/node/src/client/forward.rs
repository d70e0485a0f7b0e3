//! Local UDP listeners. Each local program that sends to one of them gets a flow through the
//! tunnel.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_wire::Code;
use tracing::{info, warn};

use super::{
    ForwardConfig,
    divide::Division,
    flow::{Carries, LocalFlowId, Target},
    hop::Hop,
    own::OwnFlows,
    retry::{Backoff, Jitter},
};
use crate::{
    error::ClientError,
    limits::Limits,
    node::{Event, Output, Received, SocketId, SocketKind, Transmit},
    quic::{self, StreamId},
    seldom::{LineBudget, Seldom},
    stats::Stats,
    tunnel::Unsent,
};

/// The silence after which a flow makes room for the flow of another program, if all places are taken. Flows that
/// are in use keep their places, because otherwise each new flow would end another one for a moment.
const SILENCE: Duration = Duration::from_secs(1);

/// A flow of a local program.
#[derive(Debug)]
struct LocalFlow {
    /// The request stream of the flow. `None` until the proxy allows one more stream.
    stream: Option<StreamId>,
    /// Whether the program's first packet began a QUIC connection.
    carries_quic: bool,
    /// Payloads that wait for the grant.
    early: VecDeque<Bytes>,
    /// How many payloads were sent before the grant.
    sent_early: usize,
    began: Instant,
    last_active: Instant,
    /// Whether an event has said that packets do not fit.
    is_oversize_told: bool,
}

impl LocalFlow {
    /// Counts a packet of the program. The event says that it was the first that did not fit.
    fn on_sent(
        &mut self,
        id: LocalFlowId,
        sent: Result<(), Unsent>,
        len: usize,
        stats: &mut Stats,
    ) -> Option<Event> {
        stats.count_to_target(sent.is_ok(), len);
        let Err(Unsent::TooLarge { fits }) = sent else { return None };
        let is_first = !std::mem::replace(&mut self.is_oversize_told, true);
        is_first.then_some(Event::TooLarge { local: id.program, len, fits })
    }
}

/// What went wrong with the flows of a listener. It lasts until a packet of the target arrives in a
/// flow that began after the last failure: earlier flows may go on while every new one is refused.
#[derive(Debug, Default)]
struct Trouble {
    backoff: Backoff,
    last_failure: Option<Instant>,
    /// When the next flow may be requested, after a refusal.
    next_request: Option<Instant>,
    /// The error of which the embedding program was told last.
    told: Option<ClientError>,
}

impl Trouble {
    /// Whether this error was not reported to the embedding program.
    fn is_news(&mut self, error: &ClientError) -> bool {
        self.told.as_ref() != Some(error) && {
            self.told = Some(error.clone());
            true
        }
    }
}

/// The flows of local programs.
pub(super) struct Forward {
    configs: Vec<ForwardConfig>,
    /// Whether a flow to each target is requested before the sockets are opened.
    checks_targets: bool,
    /// Request streams of flows that no program uses yet, by the index of their listener.
    ahead: BTreeMap<usize, StreamId>,
    /// By the index of the listener.
    troubles: BTreeMap<usize, Trouble>,
    /// The index in `configs` of each socket. Empty until the sockets are requested.
    sockets: BTreeMap<SocketId, usize>,
    flows: BTreeMap<LocalFlowId, LocalFlow>,
    /// The flows that the embedding program opened itself.
    pub(super) own: OwnFlows,
    /// Divides reports on an outer tunnel among all flows.
    pub(super) division: Division,
    /// When to check for idle flows.
    next_look: Option<Instant>,
    /// Before this time no flow can make room for another one.
    no_room_until: Option<Instant>,
    /// Limits the warnings that all places are taken.
    full: Seldom,
    /// Bounds the lines about flows that proxies close.
    closed: LineBudget,
}

impl Forward {
    pub(super) fn new(configs: Vec<ForwardConfig>) -> Self {
        Self {
            configs,
            checks_targets: false,
            ahead: BTreeMap::new(),
            troubles: BTreeMap::new(),
            sockets: BTreeMap::new(),
            flows: BTreeMap::new(),
            own: OwnFlows::default(),
            division: Division::default(),
            next_look: None,
            no_room_until: None,
            full: Seldom::default(),
            closed: LineBudget::default(),
        }
    }

    /// Whether local programs may send UDP packets.
    pub(super) const fn has_listeners(&self) -> bool {
        !self.configs.is_empty()
    }

    /// Makes the client request a flow to each target before it opens the sockets.
    pub(super) const fn check_targets(&mut self) {
        self.checks_targets = true;
    }

    /// Requests a flow to each target ahead, if that was asked for. Returns whether all that were
    /// requested have been granted. A proxy that allows few streams is asked for as many as it
    /// allows.
    pub(super) fn request_ahead(&mut self, hop: &mut Hop) -> bool {
        if !self.checks_targets {
            return true;
        }
        for index in 0..self.configs.len() {
            if self.ahead.contains_key(&index) {
                continue;
            }
            let Some(target) = self.target(index, false) else { continue };
            let Some(stream) = hop.request(&target, Carries::Ahead(index)) else { break };
            self.ahead.insert(index, stream);
        }
        self.ahead.values().all(|stream| hop.tunnel.is_granted(*stream))
    }

    /// Forgets a flow that no program uses yet.
    pub(super) fn forget_ahead(&mut self, index: usize) {
        self.ahead.remove(&index);
    }

    /// Requests a flow for a program, or gives it the one that was requested ahead.
    fn request(&mut self, id: LocalFlowId, carries_quic: bool, hop: &mut Hop) -> Option<StreamId> {
        let index = *self.sockets.get(&id.socket)?;
        if let Some(stream) = self.ahead.remove(&index) {
            if carries_quic {
                // The flow was requested for packets of any size, which would hide from QUIC what
                // fits.
                hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
            } else if hop.hand_over(stream, Carries::Local(id)) {
                return Some(stream);
            }
        }
        hop.request(&self.target(index, carries_quic)?, Carries::Local(id))
    }

    /// Handles a refusal of a program's flow. Returns the address of the listener, if the embedding
    /// program has to be told.
    pub(super) fn on_refused(
        &mut self,
        now: Instant,
        id: LocalFlowId,
        error: &ClientError,
        (limits, jitter): (&Limits, &mut Jitter),
    ) -> Option<SocketAddr> {
        let index = *self.sockets.get(&id.socket)?;
        let trouble = self.troubles.entry(index).or_default();
        let wait = trouble.backoff.after_failure(limits, jitter, error.retry_after());
        trouble.next_request = Some(now + wait);
        self.on_failed(now, id, error)
    }

    /// Handles the end of a program's flow by an error. Returns the address of the listener, if the
    /// embedding program has to be told.
    pub(super) fn on_failed(
        &mut self,
        now: Instant,
        id: LocalFlowId,
        error: &ClientError,
    ) -> Option<SocketAddr> {
        self.forget(id);
        let index = *self.sockets.get(&id.socket)?;
        let trouble = self.troubles.entry(index).or_default();
        trouble.last_failure = Some(now);
        let is_news = trouble.is_news(error);
        self.configs.get(index).filter(|_| is_news).map(|config| config.listen)
    }

    /// Whether the proxy refused the flows of this listener a short time ago.
    fn must_wait(&self, now: Instant, socket: SocketId) -> bool {
        let trouble = self.sockets.get(&socket).and_then(|index| self.troubles.get(index));
        trouble.and_then(|trouble| trouble.next_request).is_some_and(|next| now < next)
    }

    /// Requests the listening sockets, whose IDs start at `next_socket`. A second call has no
    /// effect.
    pub(super) fn listen(&mut self, next_socket: &mut u64, outputs: &mut VecDeque<Output>) {
        if !self.sockets.is_empty() {
            return;
        }
        for (index, config) in self.configs.iter().enumerate() {
            let socket = SocketId(*next_socket);
            *next_socket += 1;
            self.sockets.insert(socket, index);
            let kind = SocketKind::Listen(config.listen);
            outputs.push_back(Output::OpenSocket { socket, kind });
        }
    }

    /// The settings of a listening socket. `None`: the socket is not a listener.
    pub(super) fn config(&self, socket: SocketId) -> Option<&ForwardConfig> {
        self.configs.get(*self.sockets.get(&socket)?)
    }

    /// The target of the flows of a listener. `carries_quic`: see [`Target`].
    fn target(&self, index: usize, carries_quic: bool) -> Option<Target> {
        let config = self.configs.get(index)?.flow.clone();
        Some(Target { config, carries_quic })
    }

    /// Handles a packet of a local program.
    pub(super) fn from_local(
        &mut self,
        now: Instant,
        received: Received,
        hop: &mut Hop,
        (limits, stats): (&Limits, &mut Stats),
    ) -> Option<Event> {
        let id = LocalFlowId { socket: received.socket, program: received.remote };
        if !self.flows.contains_key(&id) {
            self.config(id.socket)?;
            if self.must_wait(now, id.socket) {
                stats.dropped.unknown_flow += 1;
                return None;
            }
            if self.flows.len() >= limits.local_flows && !self.make_room(now, hop, (limits, stats))
            {
                stats.dropped.too_many_flows += 1;
                return None;
            }
            let carries_quic = quic::is_first_of_client(&received.payload);
            let flow = LocalFlow {
                stream: self.request(id, carries_quic, hop),
                carries_quic,
                early: VecDeque::new(),
                sent_early: 0,
                began: now,
                last_active: now,
                is_oversize_told: false,
            };
            self.flows.insert(id, flow);
            stats.flows += 1;
            self.next_look.get_or_insert(now + limits.flow_idle);
        }
        let flow = self.flows.get_mut(&id)?;
        flow.last_active = now;
        let (payload, early_max) = (received.payload, limits.early_datagrams_per_flow);
        match flow.stream {
            Some(stream) if hop.tunnel.is_granted(stream) => {
                let sent = hop.send(now, stream, &payload);
                return flow.on_sent(id, sent, payload.len(), stats);
            }
            Some(stream)
                if flow.early.is_empty()
                    && flow.sent_early < early_max
                    && hop.takes_early(&payload) =>
            {
                flow.sent_early += 1;
                let sent = hop.send(now, stream, &payload);
                return flow.on_sent(id, sent, payload.len(), stats);
            }
            _ if flow.early.len() < early_max => flow.early.push_back(payload.freeze()),
            _ => stats.dropped.unknown_flow += 1,
        }
        None
    }

    /// Closes the flow that has been silent for longest, if it has been for [`SILENCE`]. Returns whether there
    /// is room now.
    fn make_room(
        &mut self,
        now: Instant,
        hop: &mut Hop,
        (limits, stats): (&Limits, &mut Stats),
    ) -> bool {
        let mut closed = None;
        if self.no_room_until.is_none_or(|until| until <= now) {
            let oldest = self.flows.iter().min_by_key(|(_, flow)| flow.last_active);
            let oldest = oldest.map(|(&id, flow)| (id, flow.last_active + SILENCE));
            closed = oldest.filter(|(_, since)| *since <= now).map(|(id, _)| id);
            self.no_room_until = oldest.map(|(_, since)| since);
        }
        if let Some(flow) = closed.and_then(|id| self.flows.remove(&id)) {
            if let Some(stream) = flow.stream {
                hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
            }
            stats.flows_ended.for_others += 1;
        }
        if let Some(left_out) = self.full.due(now) {
            warn!(
                most = limits.local_flows,
                ended = stats.flows_ended.for_others,
                dropped = stats.dropped.too_many_flows,
                left_out,
                "too many local programs send at the same time: the flow that has been silent for longest \
                 ends for a new one, and without a silent one, packets of new programs are dropped; the \
                 counts are totals since the start"
            );
        }
        closed.is_some()
    }

    /// Sends the payloads that waited for the grant of a flow.
    pub(super) fn on_granted(
        &mut self,
        now: Instant,
        id: LocalFlowId,
        hop: &mut Hop,
        stats: &mut Stats,
    ) -> Option<Event> {
        let flow = self.flows.get_mut(&id)?;
        let stream = flow.stream?;
        let mut event = None;
        for payload in std::mem::take(&mut flow.early) {
            let sent = hop.send(now, stream, &payload);
            event = flow.on_sent(id, sent, payload.len(), stats).or(event);
        }
        event
    }

    /// Requests the flows that wait, after the proxy has allowed more streams.
    pub(super) fn request_waiting(&mut self, hop: &mut Hop) {
        let waiting = self.flows.iter().filter(|(_, flow)| flow.stream.is_none());
        let waiting = waiting.map(|(&id, flow)| (id, flow.carries_quic));
        for (id, carries_quic) in waiting.collect::<Vec<_>>() {
            let Some(stream) = self.request(id, carries_quic, hop) else { return };
            if let Some(flow) = self.flows.get_mut(&id) {
                flow.stream = Some(stream);
            }
        }
        self.own.request_waiting(hop);
    }

    /// Forgets all request streams, because the tunnel has ended. All flows must be requested
    /// again.
    pub(super) fn forget_streams(&mut self) {
        for flow in self.flows.values_mut() {
            flow.stream = None;
        }
        self.ahead.clear();
        self.own.forget_streams();
    }

    /// Sends a packet to a local program.
    pub(super) fn to_local(&mut self, now: Instant, id: LocalFlowId, payload: &[u8]) -> Output {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.last_active = now;
            if !self.troubles.is_empty()
                && let Some(index) = self.sockets.get(&id.socket)
                && let Some(trouble) = self.troubles.get(index)
                && trouble.last_failure.is_none_or(|failure| flow.began > failure)
            {
                self.troubles.remove(index);
            }
        }
        let transmit = Transmit {
            destination: id.program,
            src_ip: None,
            ecn: None,
            size: payload.len(),
            segment_size: None,
        };
        Output::Transmit { socket: id.socket, transmit }
    }

    /// Forgets a flow that the proxy has closed in good order.
    pub(super) fn on_closed(&mut self, now: Instant, id: LocalFlowId, error: &ClientError) {
        if let Some(left_out) = self.closed.due(now) {
            let left_out = (left_out > 0).then_some(left_out);
            info!(%error, left_out, "flow closed");
        }
        self.forget(id);
    }

    /// Removes a flow whose request has ended.
    pub(super) fn forget(&mut self, id: LocalFlowId) {
        self.flows.remove(&id);
    }

    /// The number of flows.
    pub(super) fn len(&self) -> usize {
        self.flows.len() + self.own.len()
    }

    /// When to check for flows that are idle or closed.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        quic::earliest(self.next_look, self.own.next_timeout())
    }

    /// Closes the flows that had no packet during the idle timeout.
    pub(super) fn close_idle(&mut self, now: Instant, hop: &mut Hop, limits: &Limits) {
        if self.next_look.is_none_or(|look| look > now) {
            return;
        }
        let idle_since = |flow: &LocalFlow| flow.last_active + limits.flow_idle;
        self.flows.retain(|_, flow| {
            let is_idle = idle_since(flow) <= now;
            if let Some(stream) = flow.stream.filter(|_| is_idle) {
                // RFC 9114 §4.1.1: "Clients SHOULD use the error code H3_REQUEST_CANCELLED to cancel
                // requests."
                hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
            }
            !is_idle
        });
        self.next_look = self.flows.values().map(idle_since).min();
    }
}
