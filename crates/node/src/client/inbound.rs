//! What comes in: packets, the events of connections, and payloads, which go from the hops to the connection inside or
//! to a local program.

use std::{net::SocketAddr, time::Instant};

use bytes::{Bytes, BytesMut};
use tandem_wire::{CidCapsule, Code, ErrorScope, HttpDatagram, OwnCapsule, TunnelInfo};
use tracing::debug;

use super::{
    Client, ClientPhase, Work,
    chain::{BesideArrival, Carries, FlowEnd, INSIDE_TUNNEL, Peer},
    programs::Programs,
    transfer::{self, Failure, Progress},
};
use crate::{
    beside::{Unwrapped, Violation},
    buffers, h3,
    impossible::impossible,
    node::{Ecn, Event, Output, Received},
    quic::{self, StreamId},
    tunnel::Arrival,
};

/// The most payloads of a tunnel that the connection inside gets before it processes them. A stream tunnel releases
/// thousands at once when a gap closes, and the engine ends a connection when more than 2048 pieces of a stream wait.
const PAYLOADS_PER_TURN: usize = 256;

/// The result of a look at the hops.
#[expect(clippy::large_enum_variant, reason = "it is returned and taken apart at once")]
pub(super) enum Inbound {
    Nothing,
    Progress,
    Output(Output),
}

/// Who sent a packet, and how it arrived.
struct Sender {
    remote: SocketAddr,
    ecn: Option<Ecn>,
}

impl Sender {
    /// A packet came out of a tunnel, where addresses have no meaning.
    const TUNNEL: Self = Self { remote: INSIDE_TUNNEL, ecn: None };
}

impl Client {
    /// Handles a UDP packet: of a connection that is being opened, of the first peer, or of a local program.
    pub(super) fn on_datagram(&mut self, now: Instant, received: Received) {
        let attempt = self.first.attempt_of(received.socket);
        let is_of_chain =
            received.socket == self.chain.outer_socket || self.migration.is_former(received.socket);
        if attempt.is_none() && !is_of_chain {
            self.with_programs(now, |programs, cx| programs.from_program(received, cx));
            return;
        }
        self.chain.count_outer(1, received.payload.len());
        if let Some(attempt) = attempt {
            return self.first.on_datagram(now, attempt, received);
        }
        let Received { remote, ecn, payload, .. } = received;
        self.first.heard(now);
        self.arrive(now, 0, payload, &Sender { remote, ecn });
    }

    /// Handles the events of all connections. Returns whether there was one.
    ///
    /// The connections of the race come first, since one of them may become the first peer. Then an event of QUIC is
    /// followed by what HTTP/3 has made of it, before the next one may end the connection. The outer connections come
    /// before the inner ones, whose packets they carry.
    pub(super) fn take_events(&mut self, now: Instant) -> bool {
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

    /// Handles the events of connections that are being opened. Returns whether there was one.
    fn take_race_events(&mut self, now: Instant) -> bool {
        if !self.first.is_busy() {
            return false;
        }
        let mut any = false;
        self.with_first(now, |first, cx| {
            let outcome;
            (any, outcome) = first.take_events(cx);
            outcome
        });
        if self.first.is_draining() {
            self.look_elsewhere(now);
        }
        any
    }

    fn on_quic_event(&mut self, now: Instant, index: usize, event: &quic::Event) {
        match event {
            quic::Event::Lost(reason) => {
                let Some(peer) = self.chain.peer(index) else {
                    return impossible("only a connection is lost");
                };
                let error = peer.lost(reason, &self.limits);
                if self.chain.is_origin(index) {
                    self.on_peer_failed(now, index, error);
                } else {
                    self.lost.push_back((index, error));
                }
            }
            quic::Event::Connected => self.on_connected(index),
            quic::Event::MoreStreams if self.chain.is_origin(index) => {
                if let Some((fetch, origin)) = self.transfer() {
                    fetch.send_requests(origin);
                }
            }
            quic::Event::MoreStreams => {
                self.with_programs(now, Programs::request_waiting);
            }
            quic::Event::Datagrams => {
                // An origin sends none, or `inbound` finds it.
                if let Some(hop) = self.chain.hops.get_mut(index) {
                    hop.tunnel.on_datagrams();
                }
            }
            _ => {}
        }
    }

    fn on_hop_event(&mut self, now: Instant, index: usize, event: h3::Event) {
        let mut event = Some(event);
        if index + 1 == self.chain.hops.len() {
            self.with_programs(now, |programs, cx| {
                event = event.take().and_then(|event| programs.take_event(event, cx));
            });
        }
        let Some(event) = event else { return }; // it was about a TCP connection
        let Some(hop) = self.chain.hops.get_mut(index) else {
            return impossible("the event is of a hop");
        };
        match event {
            h3::Event::Settings => self.on_hop_settings(now, index),
            h3::Event::Response(stream, head) => {
                self.on_flow_response(now, index, stream, &head);
                self.tell_of_change(now, index);
            }
            h3::Event::Body(stream) => hop.tunnel.on_readable(stream),
            h3::Event::Writable(stream) => hop.tunnel.on_writable(stream),
            h3::Event::Failed(stream, code) => {
                // The stream is reset already, so the code of this end is not sent.
                let end = FlowEnd::reset_by_proxy(code);
                self.on_flow_closed(now, index, stream, &end);
            }
            h3::Event::GoAway => {
                debug!(index, "the proxy is going away");
                if index == 0 {
                    self.first.drains();
                }
            }
            h3::Event::Request(..) => impossible("a client's session refuses requests"),
        }
    }

    fn on_origin_event(&mut self, now: Instant, event: h3::Event) {
        let Some((fetch, origin)) = self.transfer() else {
            return impossible("only a transfer has an origin");
        };
        match fetch.on_event(origin, event) {
            Ok(None) => {}
            Ok(Some(event)) => self.tell(event),
            Err(failure) => self.on_fetch_failure(now, failure),
        }
    }

    /// The next piece of a body, or the end of the transfer.
    pub(super) fn poll_fetch(&mut self, now: Instant) -> Option<Output> {
        if self.life != ClientPhase::Running {
            return None;
        }
        // What is known of a response comes before its body.
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        let (fetch, origin) = self.transfer()?;
        match fetch.poll(origin)? {
            Ok(Progress::Piece { offset, data }) => Some(Output::BodyChunk { offset, data }),
            Ok(Progress::Complete) => {
                let feedback = self.stats().feedback;
                let Work::Transfer(fetch) = &self.work else {
                    return impossible("it was a transfer that is complete");
                };
                let report = transfer::report(now, fetch, &mut self.chain, feedback);
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
        match failure {
            Failure::Protocol(error) => self.protocol_error(now, self.chain.hops.len(), &error),
            Failure::Malformed(error) => {
                // RFC 9114 §4.1.2: "Malformed requests or responses that are detected MUST be
                // treated as a stream error of type H3_MESSAGE_ERROR." The connection has no other
                // use, so it is closed as a whole.
                if let Some((_, origin)) = self.transfer() {
                    origin.close(now, Code::H3_MESSAGE_ERROR, &error.to_string());
                }
                self.end(now, Err(error));
            }
            Failure::Client(error) => self.end(now, Err(error)),
        }
    }

    /// Passes the arrivals of each hop to the connection inside it, or to a local program.
    pub(super) fn receive(&mut self, now: Instant, buf: &mut Vec<u8>) -> Inbound {
        let mut inbound = Inbound::Nothing;
        for index in 0..self.chain.hops.len() {
            for _ in 0..PAYLOADS_PER_TURN {
                let hop = self.chain.hops.get_mut(index);
                let Some(arrival) = hop.and_then(|hop| hop.poll_arrival(now)) else { break }; // all is taken
                inbound = Inbound::Progress;
                self.tell_of_change(now, index);
                match arrival {
                    Arrival::Payload(stream, payload) => {
                        if let Some(hop) = self.chain.hops.get_mut(index) {
                            hop.on_tunnelled(stream, &payload);
                        }
                        if let Some(output) = self.deliver(now, index, stream, payload, buf) {
                            return Inbound::Output(output);
                        }
                    }
                    Arrival::Cid(stream, capsule) => self.on_cid(now, index, stream, capsule),
                    Arrival::Report(stream, info) => self.on_report(now, index, stream, info),
                    Arrival::Capsule(stream, capsule) => {
                        self.on_capsule(now, index, stream, capsule);
                    }
                    Arrival::Ended(stream, end) => {
                        self.on_flow_closed(now, index, stream, &FlowEnd::from(end));
                    }
                    Arrival::Broken(error) => self.protocol_error(now, index, &error),
                }
            }
        }
        if self.take_stray_datagram(now) { Inbound::Progress } else { inbound }
    }

    /// Handles a capsule of a proxy about a connection ID.
    fn on_cid(&mut self, now: Instant, index: usize, stream: StreamId, capsule: CidCapsule) {
        let Some(hop) = self.chain.hops.get_mut(index) else {
            return impossible("only hops have capsules");
        };
        if let Err(Violation(reason)) = hop.on_cid(stream, capsule) {
            let end = FlowEnd::new(Code::H3_DATAGRAM_ERROR, reason);
            return self.on_flow_closed(now, index, stream, &end);
        }
        for id in hop.beside.take_chosen(stream) {
            let outer = self.chain.around(index);
            let has_room = outer.is_none_or(|outer| outer.register_inner(id));
            if !has_room && let Some(hop) = self.chain.hops.get_mut(index) {
                hop.refuse(stream, id);
            }
        }
    }

    /// Handles a capsule that only the service of a flow can read.
    fn on_capsule(&mut self, now: Instant, index: usize, stream: StreamId, capsule: OwnCapsule) {
        let flow = self.chain.hops.get(index).and_then(|hop| hop.flows.get(&stream));
        if let Some(Carries::Program(source)) = flow.map(|flow| flow.carries) {
            self.with_programs(now, |programs, cx| programs.on_capsule(source, capsule, cx));
        }
    }

    /// The next datagram between programs and targets that are reached without the tunnel.
    pub(super) fn poll_direct(&mut self, buf: &mut Vec<u8>) -> Option<Output> {
        match &mut self.work {
            Work::Programs(programs) => programs.poll_direct(buf),
            Work::Transfer(_) => None,
        }
    }

    /// Takes the packets that came beside the connections.
    pub(super) fn take_beside(&mut self, now: Instant, buf: &mut Vec<u8>) -> Inbound {
        match self.chain.arrived.pop_front() {
            None => Inbound::Nothing,
            Some(BesideArrival { hop, stream, payload }) => {
                let output = self.deliver(now, hop, stream, payload.freeze(), buf);
                output.map_or(Inbound::Progress, Inbound::Output)
            }
        }
    }

    /// Hands a packet to the connection with this index, or to a flow of its tunnel if the packet came beside
    /// the connection.
    fn arrive(&mut self, now: Instant, index: usize, packet: BytesMut, from: &Sender) {
        let unwrapped = match self.chain.hops.get_mut(index) {
            Some(hop) => hop.unwrap(now, packet),
            None => Unwrapped::OfConnection(packet), // the end-to-end connection has no tunnel
        };
        match unwrapped {
            Unwrapped::Dropped => {} // a stranger's, and counted
            Unwrapped::Payload(stream, payload) => {
                self.chain.arrived.push_back(BesideArrival { hop: index, stream, payload });
            }
            Unwrapped::OfConnection(packet) => self.hand_over(now, index, |peer| {
                peer.handle_datagram(now, from.remote, from.ecn, packet);
            }),
        }
    }

    /// Tells the embedding program if a tunnel has changed its mode.
    pub(super) fn tell_of_change(&mut self, now: Instant, index: usize) {
        let Some(hop) = self.chain.hops.get_mut(index) else {
            return impossible("only hops have modes");
        };
        let Some(agreement) = hop.tunnel.take_change() else { return }; // it has not
        let authority = hop.peer.settings.authority.clone();
        if !self.is_refused_mode(now, index) {
            self.tell(Event::ModeChanged { hop: index, authority, agreement });
        }
    }

    /// Handles a datagram from the origin, although no request of this client has datagrams in this
    /// direction.
    fn take_stray_datagram(&mut self, now: Instant) -> bool {
        let Some((fetch, origin)) = self.transfer() else { return false }; // programs have no origin
        let Some(data) = origin.carrier().and_then(|mut carrier| carrier.receive_datagram()) else {
            return false; // none has come
        };
        let error = match HttpDatagram::decode(data) {
            Err(error) if error.scope() == ErrorScope::Connection => error.into(),
            // RFC 9297 §2: a datagram "associated with a request that has no known semantics for
            // HTTP Datagrams" ends that request; here it ends the download.
            Ok(datagram) if fetch.has_request(datagram.quarter_stream_id.stream_id()) => {
                h3::ConnectionError {
                    code: Code::H3_DATAGRAM_ERROR,
                    reason: "a datagram for a download".into(),
                }
            }
            Ok(_) | Err(_) => {
                self.stats.dropped.unknown_flow += 1;
                return true;
            }
        };
        self.protocol_error(now, self.chain.hops.len(), &error);
        true
    }

    /// Handles a proxy's report on a flow. Reports of the last proxy that sends any go to the origin, or, for
    /// local flows, to the embedding program, which may pass them on.
    fn on_report(&mut self, now: Instant, index: usize, stream: StreamId, info: TunnelInfo) {
        let mut hops = self.chain.hops.iter().skip(index);
        let Some(hop) = hops.next().filter(|hop| hop.tunnel.wants_reports()) else {
            return; // the proxy sends reports unasked
        };
        if hops.any(|hop| hop.tunnel.wants_reports()) {
            return; // those of a later proxy are nearer to the target
        }
        match hop.flows.get(&stream).map(|flow| flow.carries) {
            Some(Carries::NextPeer) => {
                if let Work::Transfer(fetch) = &mut self.work {
                    fetch.relay(now, info);
                } else {
                    self.with_programs(now, |programs, cx| programs.divide_report(&info, cx));
                }
                self.adapt(now, index, stream);
            }
            Some(Carries::Program(source)) => {
                self.with_programs(now, |programs, cx| programs.report(source, info, cx));
            }
            None => {} // the flow has ended
        }
    }

    /// Chooses again in which order the payloads of a download leave the tunnel.
    fn adapt(&mut self, now: Instant, index: usize, stream: StreamId) {
        if let Work::Transfer(fetch) = &self.work
            && let Some(choice) = fetch.choice()
            && let Some(hop) = self.chain.hops.get_mut(index)
            && hop.tunnel.choose(now, stream, choice)
        {
            self.tell(Event::Chosen { hop: index, choice });
        }
    }

    /// Passes on the next numbered payload that an egress releases.
    pub(super) fn release(&mut self, now: Instant, buf: &mut Vec<u8>) -> Inbound {
        for index in 0..self.chain.hops.len() {
            let hop = self.chain.hops.get_mut(index);
            if let Some((stream, payload)) = hop.and_then(|hop| hop.tunnel.poll_release(now)) {
                let output = self.deliver(now, index, stream, payload, buf);
                return output.map_or(Inbound::Progress, Inbound::Output);
            }
        }
        Inbound::Nothing
    }

    /// Hands a packet to the connection that it is for.
    fn hand_over(&mut self, now: Instant, index: usize, packet: impl FnOnce(&mut Peer)) {
        if let Some(peer) = self.chain.peer(index) {
            packet(peer);
        }
        if self.chain.is_origin(index)
            && let Some((fetch, origin)) = self.transfer()
        {
            fetch.on_packet(now, origin);
        }
    }

    fn deliver(
        &mut self,
        now: Instant,
        index: usize,
        stream: StreamId,
        payload: Bytes,
        buf: &mut Vec<u8>,
    ) -> Option<Output> {
        let flow = self.chain.hops.get_mut(index).and_then(|hop| hop.flows.get_mut(&stream));
        let Some(flow) = flow else {
            self.stats.dropped.unknown_flow += 1; // the flow has ended
            return None;
        };
        flow.arrived += payload.len() as u64;
        match flow.carries {
            Carries::NextPeer => {
                self.arrive(now, index + 1, into_mut(payload), &Sender::TUNNEL);
                None
            }
            Carries::Program(source) => self
                .with_programs(now, |programs, cx| programs.to_program(source, payload, buf, cx))?,
        }
    }
}

/// Makes a payload writable, because the engine decrypts packets in place. A payload is copied if it
/// shares its memory with another one, or if its memory is used again.
fn into_mut(payload: Bytes) -> BytesMut {
    payload.try_into_mut().unwrap_or_else(|shared| buffers::copy(&shared))
}
