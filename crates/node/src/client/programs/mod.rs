//! Programs, whose packets and connections the last hop carries.
//!
//! [`Flows`] is the same for all: what a flow is for is its [`Source`]. The sources are UDP listeners (`udp`), the
//! embedding program (`own`), TCP connections (`tcp`), which may speak SOCKS5 or HTTP/1.1 first (`local`), and the UDP
//! associations of SOCKS5 (`associate`). What a rule sends past the tunnel has a way of its own (`direct`).

mod associate;
mod direct;
mod divide;
mod flows;
mod local;
mod own;
mod owners;
mod probes;
mod requests;
mod right;
mod room;
mod splice;
mod status;
mod tcp;
mod told;
mod udp;

use std::{collections::VecDeque, net::SocketAddr, time::Instant};

use bytes::Bytes;
use tandem_wire::{OwnCapsule, TunnelInfo};
use tracing::info;

use self::{associate::AssociateId, flows::Flows, own::Own, probes::Probes, tcp::Tcp, udp::Udp};
pub(super) use self::{direct::Direct, divide::Division, flows::Source};
pub use self::{
    own::{FlowEvent, FlowId},
    tcp::TcpService,
};
use super::{
    FlowConfig, ForwardConfig,
    chain::{Hop, Request},
    open_socket,
    recovery::Jitter,
};
use crate::{
    OsError,
    error::{ClientError, FlowError},
    h3,
    impossible::impossible,
    limits::Limits,
    node::{Event, Output, Received, SocketId, SocketKind},
    quic::{self, StreamId},
    seldom::LineBudget,
    stats::Stats,
    tcp::TcpInput,
};

/// The most outputs that may wait when a report for the embedding program is added. With more, the
/// report is dropped, because the next one follows soon.
const WAITING_OUTPUTS_MAX: usize = 256;

/// What programs work with: the hop that carries their flows, and what they share with the rest of the client.
pub(super) struct Context<'a> {
    pub(super) now: Instant,
    pub(super) hop: &'a mut Hop,
    pub(super) limits: &'a Limits,
    pub(super) stats: &'a mut Stats,
    pub(super) outputs: &'a mut VecDeque<Output>,
    pub(super) next_socket: &'a mut u64,
    pub(super) jitter: &'a mut Jitter,
    /// Whether the client has not begun to end.
    pub(super) is_running: bool,
    /// What the programs want of the client afterwards.
    pub(super) verdict: Option<Verdict>,
}

impl Context<'_> {
    fn tell(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    /// Asks for a socket.
    fn open_socket(&mut self, kind: SocketKind) -> SocketId {
        open_socket(self.outputs, self.next_socket, kind)
    }

    /// Makes the client end.
    fn end(&mut self, result: Result<(), ClientError>) {
        self.verdict.get_or_insert(Verdict::End(result));
    }

    /// Makes the client end, because the last proxy has violated HTTP/3.
    fn broken(&mut self, error: h3::ConnectionError) {
        self.verdict.get_or_insert(Verdict::Broken(error));
    }
}

/// What programs want of the client.
pub(super) enum Verdict {
    /// The client ends.
    End(Result<(), ClientError>),
    /// The client ends, because the last proxy has violated HTTP/3.
    Broken(h3::ConnectionError),
    /// The proxy has answered whether this client may use it.
    Checked,
    /// A flow that was requested ahead of all programs was refused or has ended, or the client may not use the proxy.
    AheadFailed(ClientError),
}

/// How a proxy ends a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It refuses the request.
    Refused,
    /// With an error.
    Failed,
    /// Without an error, for example because the flow was idle.
    Orderly,
}

/// The request stream whose answer, or end, an event of the last hop is about.
const fn answered_stream(event: &h3::Event) -> Option<StreamId> {
    match event {
        h3::Event::Response(stream, _) | h3::Event::Body(stream) | h3::Event::Failed(stream, _) => {
            Some(*stream)
        }
        _ => None,
    }
}

/// The programs of a client and their flows.
pub(super) struct Programs {
    flows: Flows,
    udp: Udp,
    own: Own,
    probes: Probes,
    /// Whether the embedding program only sends probes.
    only_probes: bool,
    tcp: Tcp,
    /// Divides reports on an outer tunnel among all flows.
    division: Division,
    /// Bounds the lines about flows that proxies close.
    closed: LineBudget,
}

impl Programs {
    pub(super) fn new(listeners: Vec<ForwardConfig>, limits: &Limits) -> Self {
        Self {
            flows: Flows::default(),
            udp: Udp::new(listeners),
            own: Own::default(),
            probes: Probes::default(),
            only_probes: false,
            tcp: Tcp::new(limits),
            division: Division::default(),
            closed: LineBudget::default(),
        }
    }

    /// Makes the client request a flow to each target of a UDP listener before its tunnel counts as up, or else ask
    /// whether it may use the proxy.
    pub(super) const fn check_targets(&mut self) {
        self.udp.check_targets();
        self.tcp.check_right();
    }

    pub(super) fn add_tcp_service(&mut self, service: TcpService) {
        self.tcp.add_service(service);
        self.flows.room.leaves_some_to_tcp = true;
    }

    /// Whether programs may have TCP connections, and nothing else.
    pub(super) const fn has_only_tcp(&self) -> bool {
        (self.tcp.has_services() || self.only_probes) && !self.udp.has_listeners()
    }

    /// Notes that the embedding program only sends probes, which are for TCP.
    pub(super) const fn only_probes(&mut self) {
        self.only_probes = true;
    }

    /// Whether a program has a TCP connection.
    pub(super) fn has_connections(&self) -> bool {
        self.tcp.len() > 0
    }

    pub(super) fn add_to(&self, stats: &mut Stats) {
        stats.flows_open = self.flows.len() as u64;
        stats.tcp.open = self.tcp.len() as u64;
    }

    /// Opens the listening sockets of programs.
    pub(super) fn listen(&mut self, cx: &mut Context<'_>) {
        self.udp.listen(cx);
        self.tcp.listen(cx);
    }

    /// Requests a flow to each target ahead, if that was asked for. Returns whether all that were requested have been
    /// granted. Without a UDP listener, it is the right to use the proxy that is asked for.
    pub(super) fn request_ahead(&mut self, cx: &mut Context<'_>) -> bool {
        if self.udp.has_listeners() {
            self.udp.request_ahead(&mut self.flows, cx.hop)
        } else {
            self.tcp.has_right(cx)
        }
    }

    /// Opens the standard input, which a second call does not, and requests the flows that wait, after the tunnel has
    /// come up.
    pub(super) fn on_up(&mut self, cx: &mut Context<'_>) {
        self.tcp.open_stdio(cx);
        self.udp.use_ahead(&mut self.flows, cx);
        self.request_waiting(cx);
    }

    /// Requests the flows that wait, after the tunnel has come up or the proxy has allowed more streams.
    pub(super) fn request_waiting(&mut self, cx: &mut Context<'_>) {
        self.tcp.request_waiting(&mut self.flows, cx);
        self.flows.request_waiting_own(cx.hop);
        self.flows.request_waiting_udp(cx);
        self.forget_ended();
    }

    /// Lets associations hear of their flows that have ended for others.
    fn forget_ended(&mut self) {
        for flow in self.flows.take_ended() {
            self.tcp.associations.forget(flow);
        }
    }

    /// Forgets all request streams, because the tunnel has ended. Flows of UDP payloads are requested again. TCP
    /// connections end with their streams.
    pub(super) fn forget_streams(&mut self, cx: &mut Context<'_>) {
        self.flows.forget_streams();
        self.probes.forget_streams(&mut self.own, cx);
        self.tcp.end_streams(&mut self.flows, cx);
    }

    /// Handles that a socket is open, or cannot be opened.
    pub(super) fn on_socket_opened(
        &mut self,
        socket: SocketId,
        result: Result<SocketAddr, OsError>,
        cx: &mut Context<'_>,
    ) {
        if self.flows.direct.of_socket(socket).is_some() {
            let outcome = self.flows.direct.on_socket_opened(socket, result, cx);
            return self.tcp.on_direct(outcome, &mut self.flows, cx);
        }
        if self.tcp.on_association(socket, result, &mut self.flows, cx) {
            return;
        }
        // Without a listener, this is the socket of an attempt to reach a proxy that was given up.
        let Some(address) = self.udp.listen_address(socket) else { return };
        match result {
            Ok(local) => cx.tell(Event::Listening(local)),
            Err(error) => cx.end(Err(ClientError::Listen { address, error })),
        }
    }

    /// Handles a UDP packet of a program.
    pub(super) fn from_program(&mut self, received: Received, cx: &mut Context<'_>) {
        if let Some(Source::Associate(id)) = self.flows.direct.of_socket(received.socket) {
            let payload = received.payload.freeze();
            return self.tcp.associations.from_direct(id, payload, &mut self.flows, cx);
        }
        if let Some(received) = self.tcp.associations.from_program(received, &mut self.flows, cx) {
            self.udp.from_program(received, &mut self.flows, cx);
        }
        self.forget_ended();
    }

    /// Passes a payload that came through the tunnel to the program that it is for.
    pub(super) fn to_program(
        &mut self,
        source: Source,
        payload: Bytes,
        buf: &mut Vec<u8>,
        cx: &mut Context<'_>,
    ) -> Option<Output> {
        match source {
            Source::Udp(id) => Some(self.udp.to_program(id, &payload, buf, &mut self.flows, cx)),
            Source::Associate(id) => {
                self.tcp.associations.to_program(id, &payload, buf, &mut self.flows, cx)
            }
            Source::Own(id) => {
                self.own.on_payload(id, payload, &mut self.flows, cx);
                None
            }
            Source::Ahead(_) | Source::Tcp(_) => {
                cx.stats.dropped.unknown_flow += 1;
                None
            }
        }
    }

    /// Handles the grant of a flow of UDP payloads.
    pub(super) fn on_granted(&mut self, source: Source, cx: &mut Context<'_>) {
        let error = self.flows.on_granted(source, cx);
        match source {
            Source::Udp(id) => {
                if let Some(FlowError::TooLarge { len, fits }) = error
                    && let Some(event) = Udp::too_large(id, len, fits, &mut self.flows)
                    && cx.is_running
                {
                    cx.tell(event);
                }
            }
            Source::Own(id) => self.own.on_granted(id, &self.flows),
            Source::Ahead(_) | Source::Associate(_) => {}
            Source::Tcp(_) => impossible("TCP connections have grants of their own"),
        }
    }

    /// Handles the end of a flow of UDP payloads by the proxy, whose request stream is closed already.
    pub(super) fn on_ended(
        &mut self,
        source: Source,
        ending: Ending,
        error: ClientError,
        cx: &mut Context<'_>,
    ) {
        let is_closed = self.flows.is_closed(source);
        if ending == Ending::Orderly && !is_closed && source.is_requested_again() {
            return self.flows.set_life(source, flows::Life::Idle);
        }
        self.flows.remove(source);
        match (source, ending) {
            (Source::Ahead(_), _) => cx.verdict = Some(Verdict::AheadFailed(error)),
            (Source::Udp(_), Ending::Orderly) => {
                if let Some(left_out) = self.closed.due(cx.now) {
                    let left_out = (left_out > 0).then_some(left_out);
                    info!(%error, left_out, "flow closed");
                }
            }
            (Source::Udp(id), _) => self.udp.on_failed(id, ending, &error, cx),
            (Source::Own(id), _) if !is_closed => self.own.tell(id, FlowEvent::Ended(error)),
            (Source::Associate(id), _) => {
                if let Some(service) = self.tcp.service_of(id).filter(|_| ending != Ending::Orderly)
                {
                    self.tcp.tell(service, &error, cx);
                }
                self.tcp.associations.forget(id);
            }
            (Source::Own(_), _) => {} // its program has closed it
            (Source::Tcp(_), _) => impossible("TCP connections have ends of their own"),
        }
    }

    /// Divides a report on the tunnel of an outer hop among the flows inside it.
    pub(super) fn divide_report(&mut self, info: &TunnelInfo, cx: &mut Context<'_>) {
        let tunnel = &cx.hop.tunnel;
        let flows = cx.hop.flows.iter_mut();
        let granted = flows.filter(|(stream, _)| tunnel.is_granted(**stream));
        let shares = self.division.divide(cx.now, info, granted.map(|(_, flow)| flow));
        for (source, info) in shares {
            self.report(source, info, cx);
        }
    }

    /// Tells the embedding program of a report on a flow.
    pub(super) fn report(&mut self, source: Source, info: TunnelInfo, cx: &mut Context<'_>) {
        match source {
            Source::Udp(id) if cx.outputs.len() < WAITING_OUTPUTS_MAX => {
                cx.tell(Event::TunnelInfo { local: id.program, info });
            }
            Source::Own(id) => self.own.offer(id, FlowEvent::Report(info), cx.limits),
            Source::Udp(_) | Source::Ahead(_) | Source::Associate(_) | Source::Tcp(_) => {}
        }
    }

    /// Tells the embedding program of a capsule that only the service of a flow can read.
    pub(super) fn on_capsule(&mut self, source: Source, capsule: OwnCapsule, cx: &Context<'_>) {
        if let Source::Own(id) = source {
            self.own.offer(id, FlowEvent::Capsule(capsule), cx.limits);
        }
    }

    /// Handles an event of the last hop's connection if it is about a TCP connection or a probe. Otherwise it returns
    /// the event.
    pub(super) fn take_event(
        &mut self,
        event: h3::Event,
        cx: &mut Context<'_>,
    ) -> Option<h3::Event> {
        let Self { probes, own, tcp, flows, .. } = self;
        if probes.is_empty() {
            return tcp.take_event(event, flows, cx);
        }
        let event = probes.take_event(event, own, tcp, cx)?;
        tcp.take_event(event, flows, cx)
    }

    /// Handles an input about a TCP connection of a program.
    pub(super) fn on_tcp(&mut self, input: TcpInput, cx: &mut Context<'_>) {
        self.tcp.on_input(input, &mut self.flows, cx);
        self.forget_ended();
    }

    /// Asks the programs for bytes whose streams have sent most of what they had. Returns whether there
    /// was one.
    pub(super) fn pull(&mut self, cx: &mut Context<'_>) -> bool {
        self.tcp.pull_drained(&self.flows, cx)
    }

    /// Resets all programs' connections, because the client ends.
    pub(super) fn end_all(&mut self, cx: &mut Context<'_>) {
        self.tcp.end_all(&mut self.flows, cx);
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let udp = quic::earliest(self.udp.next_timeout(), self.flows.next_timeout());
        self.direct_timeout(quic::earliest(udp, self.tcp.next_timeout()))
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        self.udp.close_idle(&mut self.flows, cx);
        self.flows.handle_timeout(cx);
        self.tcp.end_silent(&mut self.flows, cx);
        self.tcp.refuse_unanswered(&mut self.flows, cx);
        self.handle_direct_timeout(cx);
        self.forget_ended();
    }

    /// Opens a flow for the embedding program.
    pub(super) fn open(
        &mut self,
        id: FlowId,
        request: Request,
        limits: &Limits,
        hop: &mut Hop,
    ) -> Result<(), FlowError> {
        self.flows.open(Source::Own(id), request, limits, hop)
    }

    /// Sends a probe of the embedding program.
    pub(super) fn probe(
        &mut self,
        id: FlowId,
        target: Option<FlowConfig>,
        cx: &mut Context<'_>,
    ) -> Result<(), FlowError> {
        let form = self.tcp.form_for(cx.hop);
        self.probes.send(id, target, form, cx.hop)
    }

    /// Sends a payload of the embedding program.
    pub(super) fn send(
        &mut self,
        id: FlowId,
        payload: &Bytes,
        cx: &mut Context<'_>,
    ) -> Result<(), FlowError> {
        self.flows.send(Source::Own(id), payload.clone(), cx)
    }

    /// The largest payload in bytes that a flow of the embedding program carries at present.
    pub(super) fn max_payload(&self, id: FlowId, hop: &mut Hop) -> Option<usize> {
        hop.largest_payload(self.flows.stream(Source::Own(id))?)
    }

    /// Closes a flow for the embedding program.
    pub(super) fn close(&mut self, id: FlowId, cx: &mut Context<'_>) {
        self.own.forget_events(id);
        self.probes.give_up(id, cx.hop);
        self.flows.close(Source::Own(id), cx.now + cx.limits.last_words);
    }

    /// The next event for the embedding program.
    pub(super) fn poll_event(&mut self) -> Option<(FlowId, FlowEvent)> {
        self.own.poll_event(&mut self.flows)
    }
}

#[cfg(test)]
mod tests;
