//! Local UDP listeners. Each local program that sends to one of them gets a flow through the
//! tunnel.

use std::{collections::BTreeMap, mem, net::SocketAddr, time::Instant};

use super::{
    Context, Ending, Source,
    flows::{Flow, Flows, Life, LocalFlowId},
    told::Told,
};
use crate::{
    client::{
        ForwardConfig,
        chain::{Hop, Request},
        recovery::Backoff,
    },
    error::{ClientError, FlowError},
    impossible::impossible,
    node::{Event, Output, Received, SocketId, SocketKind, Transmit},
    quic,
    service::Service,
};

/// What went wrong with the flows of a listener. It lasts until a packet of the target arrives in a
/// flow that began after the last failure: earlier flows may go on while every new one is refused.
#[derive(Debug, Default)]
struct Trouble {
    backoff: Backoff,
    last_failure: Option<Instant>,
    /// When the next flow may be requested, after a refusal.
    next_request: Option<Instant>,
}

/// The UDP listeners.
#[derive(Debug, Default)]
pub(super) struct Udp {
    configs: Vec<ForwardConfig>,
    /// Whether a flow to each target is requested before the tunnel counts as up.
    checks_targets: bool,
    /// By the index of the listener.
    troubles: BTreeMap<usize, Trouble>,
    told: BTreeMap<usize, Told>,
    /// The index in `configs` of each socket.
    sockets: BTreeMap<SocketId, usize>,
    /// When to check for idle flows.
    next_look: Option<Instant>,
}

impl Udp {
    pub(super) fn new(configs: Vec<ForwardConfig>) -> Self {
        Self { configs, ..Self::default() }
    }

    pub(super) const fn has_listeners(&self) -> bool {
        !self.configs.is_empty()
    }

    pub(super) const fn check_targets(&mut self) {
        self.checks_targets = true;
    }

    /// Requests a flow to each target ahead, if that was asked for. Returns whether all that were
    /// requested have been granted. A proxy that allows few streams is asked for as many as it
    /// allows.
    pub(super) fn request_ahead(&self, flows: &mut Flows, hop: &mut Hop) -> bool {
        if !self.checks_targets {
            return true;
        }
        let ahead = || (0..self.configs.len()).map(Source::Ahead);
        for (source, listener) in ahead().zip(&self.configs) {
            if flows.get(source).is_some() {
                continue;
            }
            flows.insert(source, Request::new(Service::Udp, listener.flow.clone()));
            if !flows.request(source, hop) {
                flows.remove(source);
                break;
            }
        }
        let mut requested = ahead().filter_map(|source| flows.get(source));
        requested.all(|flow| matches!(flow.life, Life::Granted(_)))
    }

    /// Requests the listening sockets.
    pub(super) fn listen(&mut self, cx: &mut Context<'_>) {
        for (index, config) in self.configs.iter().enumerate() {
            let socket = cx.open_socket(SocketKind::Listen(config.listen));
            self.sockets.insert(socket, index);
        }
    }

    /// Gives the flows that were requested ahead to programs that have waited for the tunnel.
    pub(super) fn use_ahead(&self, flows: &mut Flows, cx: &mut Context<'_>) {
        for id in flows.waiting_udp() {
            let source = Source::Udp(id);
            let carries_quic = flows.get(source).is_some_and(|it| it.request.carries_quic);
            if let Some(&index) = self.sockets.get(&id.socket)
                && !carries_quic
                && flows.stream(Source::Ahead(index)).is_some()
            {
                flows.take_over(Source::Ahead(index), source, cx.hop);
                flows.send_early(source, cx);
            }
        }
    }

    /// The address of a listening socket. `None`: the socket is not a listener.
    pub(super) fn listen_address(&self, socket: SocketId) -> Option<SocketAddr> {
        let index = self.sockets.get(&socket)?;
        Some(self.configs.get(*index)?.listen)
    }

    /// Handles a packet of a local program.
    pub(super) fn from_program(
        &mut self,
        received: Received,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        let Received { socket, remote: program, local_ip, payload, .. } = received;
        let id = LocalFlowId { socket, program };
        let source = Source::Udp(id);
        if flows.get(source).is_none() && !self.begin(id, &payload, flows, cx) {
            return;
        }
        let sent = flows.send(source, payload, cx);
        if let Err(FlowError::TooLarge { len, fits }) = sent
            && let Some(event) = Self::too_large(id, len, fits, flows)
        {
            let peer = program;
            cx.outputs.push_back(Output::PacketTooBig { socket, peer, local_ip, len, fits });
            if cx.is_running {
                cx.tell(event);
            }
        }
    }

    /// Begins a flow for a program, or gives it the one that was requested ahead. `false`: there is none for it at
    /// present.
    fn begin(
        &mut self,
        id: LocalFlowId,
        payload: &[u8],
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) -> bool {
        // Without a listener, the packet is of a socket that was closed meanwhile.
        let Some(&index) = self.sockets.get(&id.socket) else { return false };
        let Some(listener) = self.configs.get(index) else {
            return impossible("each listening socket has its settings");
        };
        let config = listener.flow.clone();
        let wait = self.troubles.get(&index).and_then(|trouble| trouble.next_request);
        if wait.is_some_and(|next| cx.now < next) {
            cx.stats.dropped.unknown_flow += 1; // the proxy refused the last one a short time ago
            return false;
        }
        if !flows.make_place(id.socket, cx) {
            cx.stats.dropped.too_many_flows += 1;
            return false;
        }
        let (source, ahead) = (Source::Udp(id), Source::Ahead(index));
        let carries_quic = quic::is_first_of_client(payload);
        flows.insert(source, Request { carries_quic, ..Request::new(Service::Udp, config) });
        cx.stats.flows += 1;
        self.next_look.get_or_insert(cx.now + cx.limits.flow_idle);
        match flows.stream(ahead) {
            _ if !cx.hop.is_up => {} // `use_ahead` follows
            Some(_) if !carries_quic => flows.take_over(ahead, source, cx.hop),
            Some(_) => {
                // The flow was requested for packets of any size, which would hide from QUIC what
                // fits.
                flows.cancel(ahead, cx.hop);
                flows.request_if_room(source, cx);
            }
            None => flows.request_if_room(source, cx),
        }
        true
    }

    /// The event that a packet does not fit, if it is the first one of its flow.
    pub(super) fn too_large(
        id: LocalFlowId,
        len: usize,
        fits: usize,
        flows: &mut Flows,
    ) -> Option<Event> {
        let Some(flow) = flows.get_mut(Source::Udp(id)) else {
            return impossible("what was sent belongs to a flow");
        };
        let is_first = !mem::replace(&mut flow.is_oversize_told, true);
        is_first.then_some(Event::TooLarge { local: id.program, len, fits })
    }

    /// Handles a refusal of a program's flow, or its end by an error.
    pub(super) fn on_failed(
        &mut self,
        id: LocalFlowId,
        ending: Ending,
        error: &ClientError,
        cx: &mut Context<'_>,
    ) {
        let listener = self.sockets.get(&id.socket);
        let listener = listener.and_then(|&index| Some((index, self.configs.get(index)?)));
        let Some((index, &ForwardConfig { listen, .. })) = listener else {
            return impossible("each flow of a program has a listener");
        };
        let trouble = self.troubles.entry(index).or_default();
        if ending == Ending::Refused {
            let wait = trouble.backoff.after_failure(cx.limits, cx.jitter, error.retry_after());
            trouble.next_request = Some(cx.now + wait);
        }
        trouble.last_failure = Some(cx.now);
        self.told.entry(index).or_default().tell(listen, error, cx);
    }

    /// Passes a payload to a local program.
    pub(super) fn to_program(
        &mut self,
        id: LocalFlowId,
        payload: &[u8],
        buf: &mut Vec<u8>,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) -> Output {
        cx.stats.count_to_client(payload.len());
        buf.extend_from_slice(payload);
        if let Some(flow) = flows.get_mut(Source::Udp(id)) {
            flow.on_received(cx.now, payload.len());
            if !self.troubles.is_empty() {
                self.on_success(id, flow);
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

    /// Forgets what went wrong with a listener before a flow began through which a payload came.
    fn on_success(&mut self, id: LocalFlowId, flow: &Flow) {
        let began = flow.activity.map(|activity| activity.began);
        if let Some(index) = self.sockets.get(&id.socket)
            && let Some(trouble) = self.troubles.get(index)
            && trouble.last_failure.is_none_or(|failure| began > Some(failure))
        {
            self.troubles.remove(index);
            if let Some(told) = self.told.get_mut(index) {
                told.on_success();
            }
        }
    }

    /// When to check for flows that are idle.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.next_look
    }

    /// Closes the flows that had no packet during the idle timeout.
    pub(super) fn close_idle(&mut self, flows: &mut Flows, cx: &mut Context<'_>) {
        if self.next_look.is_none_or(|look| look > cx.now) {
            return;
        }
        let (now, idle) = (cx.now, cx.limits.flow_idle);
        flows.end_of_listeners(cx.hop, |flow| {
            flow.activity.is_some_and(|activity| activity.last + idle <= now)
        });
        self.next_look = flows.longest_silence_of_listeners().map(|last| last + idle);
    }
}
