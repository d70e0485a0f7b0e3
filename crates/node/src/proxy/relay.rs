//! The data path: datagrams between clients and targets.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_wire::{
    CONTEXT_ID_UDP, Capsule, Code, HttpDatagram, RetransmissionLimit, VarInt, split_context_id,
};

use super::{FlowId, Proxy, flow::End, is_payload};
use crate::{
    h3::{Body, ConnectionError},
    node::{Output, SocketId, Transmit},
    quic::{ConnectionId, StreamId},
    repair_fields::{Said, wanted_limit},
    tunnel_queue::{Form, Payload, Push, RepairPlan},
};

/// Most bytes in one call of the operating system towards a target.
const MAX_BATCH: usize = 60_000;
/// Most datagrams in one call, the kernel's own limit for GSO.
const MAX_BATCH_SEGMENTS: usize = 64;

/// Least time that a datagram waits for its request: so long it may take to repair that one.
const EARLY_LEAST: Duration = Duration::from_millis(200);
/// Longest time, whatever RTT a client pretends.
const EARLY_MOST: Duration = Duration::from_secs(1);

/// Datagrams of one flow to its target, all of one size but the last, which may be shorter.
struct Batch {
    socket: SocketId,
    target: SocketAddr,
    flow: FlowId,
    segment: usize,
    count: usize,
}

impl Proxy {
    /// Passes a payload from a target to the tunnel's queue.
    pub(super) fn from_target(&mut self, now: Instant, socket: SocketId, payload: Bytes) {
        let Some(&(id, stream)) = self.flows_by_socket.get(&socket) else { return };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some((session, connection)) = self.server.parts(id) else { return };
        // RFC 9297 §2.1.1: "QUIC DATAGRAM frames MUST NOT be sent until the SETTINGS_H3_DATAGRAM
        // setting has been both sent and received with a value of 1."
        let takes_datagrams = session.peer_settings().is_some_and(|settings| settings.h3_datagram);
        let Some(flow) = peer.flows.get_mut(&stream) else { return };
        flow.last_active = now;
        let len = payload.len();
        let max_size = connection.max_datagram_size().unwrap_or(0);
        let form = if takes_datagrams { flow.form } else { Form::Capsule };
        let queue = &mut peer.queue;
        let stream = match form {
            Form::Datagram => stream,
            Form::Capsule => flow.group.pick(|it| queue.waiting(it)).unwrap_or(stream),
        };
        let payload = Payload { form, too_large: flow.too_large, data: payload };
        match queue.push(now, stream, payload, max_size) {
            Push::Queued => {
                flow.to_client_datagrams += 1;
                self.stats.to_client_datagrams += 1;
                self.stats.to_client_bytes += len as u64;
                peer.reporter.on_arrival(now, stream, len);
            }
            Push::Full => self.stats.dropped.queue_full += 1,
            Push::TooLarge => self.stats.dropped.too_large += 1,
        }
    }

    /// Sends the next datagrams of clients to one target: as many of one flow and of one size as
    /// follow each other.
    pub(super) fn relay_from_client(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let mut batch: Option<Batch> = None;
        while let Some((id, datagram)) = self.next_from_client(now) {
            let flow_id = (id, StreamId(datagram.quarter_stream_id.stream_id()));
            let len = datagram.payload.len();
            if let Some(open) = &batch
                && !open.takes(flow_id, len, buf.len())
            {
                self.read_ahead = Some((id, datagram));
                break;
            }
            let Some((socket, target)) = self.to_target(now, flow_id, datagram, buf) else {
                continue;
            };
            let open = batch.get_or_insert(Batch::new(socket, target, flow_id, len));
            open.count += 1;
            if open.is_full(len) {
                break;
            }
        }
        batch.map(|batch| batch.into_output(buf.len()))
    }

    fn next_from_client(&mut self, now: Instant) -> Option<(ConnectionId, HttpDatagram)> {
        if let Some(read_ahead) = self.read_ahead.take() {
            return Some(read_ahead);
        }
        while let Some(&id) = self.relaying.front() {
            let Some(data) =
                self.server.parts(id).and_then(|(_, connection)| connection.receive_datagram())
            else {
                self.relaying.pop_front();
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.has_datagrams = false;
                }
                continue;
            };
            match HttpDatagram::decode(data) {
                Ok(datagram) => return Some((id, datagram)),
                Err(error) => {
                    // RFC 9297 §2.1: "Receipt of a QUIC DATAGRAM frame whose payload is too short
                    // to allow parsing the Quarter Stream ID field MUST be treated as an HTTP/3
                    // connection error of type H3_DATAGRAM_ERROR."
                    self.stats.dropped.malformed += 1;
                    if error.code() == Code::H3_DATAGRAM_ERROR
                        && error.scope() == tandem_wire::ErrorScope::Connection
                    {
                        self.server.break_connection(now, id, &error.into());
                    }
                }
            }
        }
        None
    }

    /// Appends the payload to `buf` if it may go to the flow's target now.
    fn to_target(
        &mut self,
        now: Instant,
        id: FlowId,
        datagram: HttpDatagram,
        buf: &mut Vec<u8>,
    ) -> Option<(SocketId, SocketAddr)> {
        let peer = self.peers.get_mut(&id.0)?;
        // RFC 9298 §5: "the receiver SHALL either drop that datagram silently or buffer it
        // temporarily". Nothing that we know registers a Context ID.
        if datagram.context_id != CONTEXT_ID_UDP {
            self.take_numbered(now, id, datagram.context_id, datagram.payload);
            return None;
        }
        // RFC 9297 §2.1: "If a datagram is received after the corresponding stream's receive side
        // is closed, the received datagrams MUST be silently dropped." And of a stream that has not
        // yet been created: "the receiver SHALL either drop that datagram silently or buffer it
        // temporarily".
        let Some(flow) = peer.flows.get_mut(&id.1) else {
            self.keep_early(now, id, datagram);
            return None;
        };
        if !is_payload(&datagram.payload) {
            // RFC 9298 §5: "An endpoint that receives an HTTP Datagram using Context ID zero whose
            // UDP Proxying Payload field is longer than 65527 MUST abort the corresponding stream."
            self.abort_flow(id, Code::H3_DATAGRAM_ERROR, End::Malformed("payload too long"));
            return None;
        }
        let Some(open) = flow.open() else {
            if !flow.keep_early(datagram.payload) {
                self.stats.dropped.unknown_flow += 1;
            }
            return None;
        };
        flow.last_active = now;
        flow.form = Form::Datagram;
        flow.to_target_datagrams += 1;
        self.stats.to_target_datagrams += 1;
        self.stats.to_target_bytes += datagram.payload.len() as u64;
        buf.extend_from_slice(&datagram.payload);
        Some(open)
    }

    /// Takes what came under another Context ID than that of plain payloads.
    fn take_numbered(&mut self, now: Instant, id: FlowId, context_id: VarInt, data: Bytes) {
        if !self.exit.takes(id, context_id) {
            self.stats.dropped.unknown_context += 1;
            return;
        }
        let Some((_, connection)) = self.server.parts(id.0) else { return };
        let smoothed_rtt = connection.smoothed_rtt();
        if self.exit.push(now, id, data, smoothed_rtt).is_err() {
            self.stats.dropped.malformed += 1;
        }
    }

    /// Sends the next payloads to one target that waited for those before them.
    pub(super) fn relay_released(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let mut batch: Option<Batch> = None;
        while let Some((flow_id, payload)) = self.next_released(now) {
            let flow = self.peers.get_mut(&flow_id.0).and_then(|it| it.flows.get_mut(&flow_id.1));
            let Some((flow, (socket, target))) =
                flow.and_then(|flow| flow.open().map(|open| (flow, open)))
            else {
                continue;
            };
            let len = payload.len();
            if !is_payload(&payload) {
                self.stats.dropped.malformed += 1;
                continue;
            }
            if let Some(open) = &batch
                && !open.takes(flow_id, len, buf.len())
            {
                self.released_ahead = Some((flow_id, payload));
                break;
            }
            flow.last_active = now;
            flow.to_target_datagrams += 1;
            self.stats.to_target_datagrams += 1;
            self.stats.to_target_bytes += len as u64;
            buf.extend_from_slice(&payload);
            let open = batch.get_or_insert(Batch::new(socket, target, flow_id, len));
            open.count += 1;
            if open.is_full(len) {
                break;
            }
        }
        batch.map(|batch| batch.into_output(buf.len()))
    }

    fn next_released(&mut self, now: Instant) -> Option<(FlowId, Bytes)> {
        self.released_ahead.take().or_else(|| self.exit.poll_release(now))
    }

    /// Keeps a datagram whose request has not come, if that may come.
    fn keep_early(&mut self, now: Instant, id: FlowId, datagram: HttpDatagram) {
        let Some((session, connection)) = self.server.parts(id.0) else { return };
        if session.cannot_come(id.1, self.limits.request_streams) {
            // RFC 9297 §2.1: a datagram for "a stream that cannot be created due to client-initiated
            // bidirectional stream limits [...] SHOULD be treated as an HTTP/3 connection error of
            // type H3_ID_ERROR."
            let reason = format!("a datagram for stream {}, beyond the limit", id.1);
            let error = ConnectionError { code: Code::H3_ID_ERROR, reason };
            self.stats.dropped.unknown_flow += 1;
            return self.server.break_connection(now, id.0, &error);
        }
        // "On the order of a round trip": one for the request's first packet, one to repair it.
        let wait = (2 * connection.stats().smoothed_rtt).clamp(EARLY_LEAST, EARLY_MOST);
        let may_come = session.may_come(id.1);
        let Some(peer) = self.peers.get_mut(&id.0) else { return };
        if may_come && peer.early.len() < self.limits.early_datagrams_per_connection {
            peer.early.push_back((now + wait, datagram));
            self.timers.insert((now + wait, id));
        } else {
            self.stats.dropped.unknown_flow += 1;
        }
    }

    /// Puts what came before the request was granted back on the way, in order.
    pub(super) fn relay_early(&mut self, id: FlowId) {
        let Some(flow) = self.peers.get_mut(&id.0).and_then(|peer| peer.flows.get_mut(&id.1))
        else {
            return;
        };
        let Some((socket, target)) = flow.open() else { return };
        while let Some(payload) = flow.take_early() {
            flow.to_target_datagrams += 1;
            self.stats.to_target_datagrams += 1;
            self.stats.to_target_bytes += payload.len() as u64;
            self.early.push_back((socket, target, payload));
        }
    }

    /// The next payload that waited for its request to be granted.
    pub(super) fn poll_early(&mut self, buf: &mut Vec<u8>) -> Option<Output> {
        let (socket, target, payload) = self.early.pop_front()?;
        buf.extend_from_slice(&payload);
        Some(to_target(socket, target, payload.len(), None))
    }

    /// Notes that a request stream may have something to read.
    pub(super) fn on_readable(&mut self, id: FlowId) {
        if !self.readable.contains(&id) {
            self.readable.push_back(id);
        }
    }

    /// Sends the next payload that came in a capsule.
    pub(super) fn relay_capsule(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        while let Some(&id) = self.readable.front() {
            let Some(value) = self.next_capsule(now, id) else {
                self.readable.pop_front();
                continue;
            };
            let Ok((context_id, payload)) = split_context_id(value) else {
                self.stats.dropped.malformed += 1;
                continue;
            };
            if context_id != CONTEXT_ID_UDP {
                self.take_numbered(now, id, context_id, payload);
                continue;
            }
            if !is_payload(&payload) {
                self.abort_flow(id, Code::H3_DATAGRAM_ERROR, End::Malformed("payload too long"));
                continue;
            }
            let Some(flow) = self.peers.get_mut(&id.0).and_then(|peer| peer.flows.get_mut(&id.1))
            else {
                continue;
            };
            flow.last_active = now;
            if flow.repair.is_nothing() {
                flow.form = Form::Capsule;
            }
            let Some((socket, target)) = flow.open() else {
                if !flow.keep_early(payload) {
                    self.stats.dropped.unknown_flow += 1;
                }
                continue;
            };
            flow.to_target_datagrams += 1;
            self.stats.to_target_datagrams += 1;
            self.stats.to_target_bytes += payload.len() as u64;
            buf.extend_from_slice(&payload);
            return Some(to_target(socket, target, payload.len(), None));
        }
        None
    }

    /// The value of the next DATAGRAM capsule on a flow's request stream (RFC 9297 §3); other types
    /// are skipped. `None`: nothing at the moment, or never again.
    fn next_capsule(&mut self, now: Instant, id: FlowId) -> Option<Bytes> {
        loop {
            let flow = self.peers.get_mut(&id.0).and_then(|peer| peer.flows.get_mut(&id.1));
            let has_flow = flow.is_some();
            if let Some(flow) = flow {
                match flow.capsules.next() {
                    Ok(Some(Capsule::Datagram(value))) => return Some(value),
                    Ok(Some(Capsule::RetransmissionLimit(limit))) => {
                        self.on_limit(id, limit);
                        continue;
                    }
                    Ok(Some(Capsule::Unknown { .. })) => continue,
                    Ok(None) => {}
                    Err(error) => {
                        self.abort_flow(id, error.code(), End::Malformed("malformed capsule"));
                        return None;
                    }
                }
            }
            let (session, connection) = self.server.parts(id.0)?;
            match session.read_body(connection, id.1) {
                Ok(Body::Data(data)) if has_flow => {
                    let flow =
                        self.peers.get_mut(&id.0).and_then(|peer| peer.flows.get_mut(&id.1))?;
                    flow.capsules.push(data);
                }
                Ok(Body::Data(_)) => {} // of a request that was refused
                Ok(Body::Blocked) => return None,
                Ok(Body::End) => {
                    self.on_client_end(id);
                    return None;
                }
                Ok(Body::Failed(code)) => {
                    self.close_flow(id, End::Reset(code));
                    return None;
                }
                Err(error) => {
                    self.server.break_connection(now, id.0, &error);
                    return None;
                }
            }
        }
    }

    /// The client says how often to send lost datagrams again.
    fn on_limit(&mut self, id: FlowId, limit: RetransmissionLimit) {
        let Some(peer) = self.peers.get_mut(&id.0) else { return };
        if let Some(flow) = peer.flows.get(&id.1).filter(|flow| flow.repair == Said::Draft)
            && let Some(limit) = wanted_limit(limit)
        {
            peer.queue.set_repair(id.1, RepairPlan::unnumbered(limit, flow.too_large));
        }
    }

    /// The client finished its side: so do we, and the flow ends.
    fn on_client_end(&mut self, id: FlowId) {
        let flow = self.peers.get(&id.0).and_then(|peer| peer.flows.get(&id.1));
        if let Some(Err(error)) = flow.map(|flow| flow.capsules.finish()) {
            // RFC 9297 §3.3: "If the receive side of a stream carrying Capsules is terminated
            // cleanly [...] and the last Capsule on the stream was truncated, this MUST be treated
            // as if it were a malformed or incomplete message."
            return self.abort_flow(id, error.code(), End::Malformed("truncated capsule"));
        }
        if flow.is_some_and(|flow| flow.open().is_none()) {
            return self.abort_flow(id, Code::H3_REQUEST_CANCELLED, End::ByClient);
        }
        if self.peers.get(&id.0).is_some_and(|peer| peer.queue.is_within_frame(id.1)) {
            // RFC 9114 §7.1: a frame that the end of the stream cuts is "a connection error of type
            // H3_FRAME_ERROR". A reset may cut it.
            return self.abort_flow(id, Code::H3_NO_ERROR, End::ByClient);
        }
        self.close_flow(id, End::ByClient);
        if let Some((session, connection)) = self.server.parts(id.0) {
            session.finish(connection, id.1);
        }
    }
}

impl Batch {
    const fn new(socket: SocketId, target: SocketAddr, flow: FlowId, segment: usize) -> Self {
        Self { socket, target, flow, segment, count: 0 }
    }

    /// Whether a payload of a flow may follow `bytes` of others.
    fn takes(&self, flow: FlowId, len: usize, bytes: usize) -> bool {
        // An empty one would be no segment of its own.
        self.flow == flow && len != 0 && len <= self.segment && bytes + len <= MAX_BATCH
    }

    /// Whether nothing may follow its last payload, which is so long.
    const fn is_full(&self, len: usize) -> bool {
        len < self.segment || len == 0 || self.count == MAX_BATCH_SEGMENTS
    }

    fn into_output(self, size: usize) -> Output {
        to_target(self.socket, self.target, size, (self.count > 1).then_some(self.segment))
    }
}

fn to_target(
    socket: SocketId,
    destination: SocketAddr,
    size: usize,
    segment_size: Option<usize>,
) -> Output {
    // RFC 9298 §6.2: a UDP proxy "MUST set the ECN bits to Not-ECT on UDP packets it sends to the
    // target."
    let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size };
    Output::Transmit { socket, transmit }
}
