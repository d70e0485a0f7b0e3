//! Inbound payloads, which go from the hops to the connection inside or to a local program.

use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use tandem_wire::{CidCapsule, Code, ErrorScope, HttpDatagram, TunnelInfo};

use super::{
    Client, Work,
    flow::{Carries, FlowEnd},
    hop::Hop,
    own::INTERNAL,
    peer::{INSIDE_TUNNEL, Peer},
};
use crate::{
    beside::{Unwrapped, Violation},
    buffers, h3,
    node::{Ecn, Event, Output},
    quic::StreamId,
    reason::explain,
    tunnel::{Arrival, StreamEnd},
};

/// The most outputs that may wait when a report for the embedding program is added. With more, the
/// report is dropped, because the next one follows soon.
const WAITING_OUTPUTS_MAX: usize = 256;

/// The most payloads of a tunnel that the connection inside gets before it processes them. A stream tunnel releases
/// thousands at once when a gap closes, and the engine ends a connection when more than 2048 pieces of a stream wait.
const PAYLOADS_PER_TURN: usize = 256;

/// The result of a look at the hops.
pub(super) enum Inbound {
    Nothing,
    Progress,
    Output(Output),
}

impl Client {
    /// Passes the arrivals of each hop to the connection inside it, or to a local program.
    pub(super) fn receive(&mut self, now: Instant, buf: &mut Vec<u8>) -> Inbound {
        let mut inbound = Inbound::Nothing;
        for index in 0..self.chain.hops.len() {
            for _ in 0..PAYLOADS_PER_TURN {
                let hop = self.chain.hops.get_mut(index);
                let Some(arrival) = hop.and_then(|hop| hop.poll_arrival(now)) else { break };
                inbound = Inbound::Progress;
                self.tell_of_change(now, index);
                match arrival {
                    Arrival::Payload(stream, payload) => {
                        if let Some(hop) = self.chain.hops.get_mut(index) {
                            hop.on_tunnelled(stream, &payload);
                        }
                        if let Some(output) = self.deliver(now, (index, stream), payload, buf) {
                            return Inbound::Output(output);
                        }
                    }
                    Arrival::Cid(stream, capsule) => self.on_cid(now, index, stream, capsule),
                    Arrival::Report(stream, info) => self.on_report(now, index, stream, info),
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
        let Some(hop) = self.chain.hops.get_mut(index) else { return };
        if let Err(Violation(reason)) = hop.on_cid(stream, capsule) {
            let end = FlowEnd::new(Code::H3_DATAGRAM_ERROR, reason);
            return self.on_flow_closed(now, index, stream, &end);
        }
        for id in hop.beside.take_chosen(stream) {
            let outer = index.checked_sub(1).and_then(|outer| self.chain.hops.get_mut(outer));
            let has_room = outer.is_none_or(|outer| outer.register_inner(id));
            if !has_room && let Some(hop) = self.chain.hops.get_mut(index) {
                hop.refuse(stream, id);
            }
        }
    }

    /// Takes the packets that came beside the connections.
    pub(super) fn take_beside(&mut self, now: Instant, buf: &mut Vec<u8>) -> Inbound {
        let Some((index, stream, payload)) = self.chain.arrived.pop_front() else {
            return Inbound::Nothing;
        };
        let output = self.deliver(now, (index, stream), payload.freeze(), buf);
        output.map_or(Inbound::Progress, Inbound::Output)
    }

    /// Hands a packet to the connection with this index, or to a flow of its tunnel if the packet came beside
    /// the connection.
    pub(super) fn arrive(
        &mut self,
        now: Instant,
        index: usize,
        packet: BytesMut,
        from: (SocketAddr, Option<IpAddr>, Option<Ecn>),
    ) {
        let unwrapped = match self.chain.hops.get_mut(index) {
            Some(hop) => hop.unwrap(now, packet),
            None => Unwrapped::OfConnection(packet), // the end-to-end connection has no tunnel
        };
        let packet = match unwrapped {
            Unwrapped::Dropped => return,
            Unwrapped::Payload(stream, payload) => {
                return self.chain.arrived.push_back((index, stream, payload));
            }
            Unwrapped::OfConnection(packet) => packet,
        };
        let (remote, local_ip, ecn) = from;
        self.hand_over(now, index, |peer| {
            peer.handle_datagram(now, (remote, local_ip), ecn, packet);
        });
    }

    /// Tells the embedding program if a tunnel has changed its mode.
    pub(super) fn tell_of_change(&mut self, now: Instant, index: usize) {
        let Some(hop) = self.chain.hops.get_mut(index) else { return };
        let Some(agreement) = hop.tunnel.take_change() else { return };
        let authority = hop.peer.settings.authority.clone();
        if !self.is_refused_mode(now, index) {
            let event = Event::ModeChanged { hop: index, authority, agreement };
            self.outputs.push_back(Output::Event(event));
        }
    }

    /// Handles a datagram from the origin, although no request of this client has datagrams in this
    /// direction.
    fn take_stray_datagram(&mut self, now: Instant) -> bool {
        let Some((fetch, origin)) = self.fetch() else { return false };
        let Some(data) = origin.carrier().and_then(|mut carrier| carrier.receive_datagram()) else {
            return false;
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
        let is_last = !self.chain.hops.iter().skip(index + 1).any(|hop| hop.tunnel.wants_reports());
        let Some(hop) = self.chain.hops.get(index).filter(|hop| hop.tunnel.wants_reports()) else {
            return;
        };
        match hop.flows.get(&stream).filter(|_| is_last).map(|flow| flow.carries) {
            Some(Carries::NextPeer) => {
                if let Some((fetch, _)) = self.fetch() {
                    fetch.relay(now, info);
                } else {
                    self.divide_report(now, &info);
                }
                self.adapt(now, index, stream);
            }
            Some(carries) => self.report_to_program(carries, info),
            None => {}
        }
    }

    /// Tells the flows inside the tunnel of an outer hop their shares of a report on it.
    fn divide_report(&mut self, now: Instant, info: &TunnelInfo) {
        let Some((forward, hop)) = self.forward() else { return };
        let tunnel = &hop.tunnel;
        let granted = hop.flows.iter_mut().filter(|(stream, _)| tunnel.is_granted(**stream));
        let shares = forward.division.divide(now, info, granted.map(|(_, flow)| flow));
        for (carries, info) in shares {
            self.report_to_program(carries, info);
        }
    }

    /// Tells the embedding program of a report on one of its flows.
    fn report_to_program(&mut self, carries: Carries, info: TunnelInfo) {
        match carries {
            Carries::Local(id) if self.outputs.len() < WAITING_OUTPUTS_MAX => {
                let event = Event::TunnelInfo { local: id.program, info };
                self.outputs.push_back(Output::Event(event));
            }
            Carries::Own(id) => {
                let Self { work, limits, .. } = self;
                if let Work::Forward(forward) = work {
                    forward.own.on_report(id, info, limits);
                }
            }
            Carries::Local(_) | Carries::NextPeer | Carries::Ahead(_) => {}
        }
    }

    /// Chooses again in which order the payloads of a download leave the tunnel.
    fn adapt(&mut self, now: Instant, index: usize, stream: StreamId) {
        if let Work::Fetch(fetch) = &self.work
            && let Some(choice) = fetch.choice()
            && let Some(hop) = self.chain.hops.get_mut(index)
            && hop.tunnel.choose(now, stream, choice)
        {
            self.outputs.push_back(Output::Event(Event::Chosen { hop: index, choice }));
        }
    }

    /// Passes on the next numbered payload that an egress releases.
    pub(super) fn release(&mut self, now: Instant, buf: &mut Vec<u8>) -> Inbound {
        for index in 0..self.chain.hops.len() {
            let hop: Option<&mut Hop> = self.chain.hops.get_mut(index);
            if let Some((stream, payload)) = hop.and_then(|hop| hop.tunnel.poll_release(now)) {
                let output = self.deliver(now, (index, stream), payload, buf);
                return output.map_or(Inbound::Progress, Inbound::Output);
            }
        }
        Inbound::Nothing
    }

    /// Hands a packet to the connection that it is for.
    pub(super) fn hand_over(&mut self, now: Instant, index: usize, packet: impl FnOnce(&mut Peer)) {
        if let Some(peer) = self.chain.peer(index) {
            packet(peer);
        }
        if self.chain.is_origin(index)
            && let Some((fetch, origin)) = self.fetch()
        {
            fetch.on_packet(now, origin);
        }
    }

    fn deliver(
        &mut self,
        now: Instant,
        (index, stream): (usize, StreamId),
        payload: Bytes,
        buf: &mut Vec<u8>,
    ) -> Option<Output> {
        let flow = self.chain.hops.get_mut(index).and_then(|hop| hop.flows.get_mut(&stream));
        let carries = flow.map(|flow| {
            flow.arrived += payload.len() as u64;
            flow.carries
        });
        match (carries, &mut self.work) {
            (Some(Carries::NextPeer), _) => {
                self.arrive(now, index + 1, into_mut(payload), (INSIDE_TUNNEL, None, None));
                None
            }
            (Some(Carries::Local(id)), Work::Forward(forward)) => {
                self.stats.to_client_datagrams += 1;
                self.stats.to_client_bytes += payload.len() as u64;
                buf.extend_from_slice(&payload);
                Some(forward.to_local(now, id, &payload))
            }
            (Some(Carries::Own(id)), _) if id.0 >= INTERNAL => {
                self.to_associated(id, &payload, buf)
            }
            (Some(Carries::Own(id)), Work::Forward(forward)) => {
                forward.own.on_payload(id, payload, (&self.limits, &mut self.stats));
                None
            }
            (Some(Carries::Local(_) | Carries::Own(_) | Carries::Ahead(_)) | None, _) => {
                self.stats.dropped.unknown_flow += 1;
                None
            }
        }
    }
}

impl From<StreamEnd> for FlowEnd {
    fn from(end: StreamEnd) -> Self {
        match end {
            StreamEnd::Finished => Self::orderly("the proxy ended the request stream"),
            StreamEnd::Reset(code) if code == Code::H3_NO_ERROR => Self::orderly(code.to_string()),
            StreamEnd::Reset(code) => Self::reset_by_proxy(code),
            StreamEnd::Failed(proxy_status) => Self::new(Code::H3_NO_ERROR, explain(&proxy_status)),
            StreamEnd::Malformed(code, reason) => Self::new(code, reason),
        }
    }
}

/// Makes a payload writable, because the engine decrypts packets in place. A payload is copied if it
/// shares its memory with another one, or if its memory is used again.
fn into_mut(payload: Bytes) -> BytesMut {
    payload.try_into_mut().unwrap_or_else(|shared| buffers::copy(&shared))
}
