//! The flows of local programs.

use std::{collections::VecDeque, time::Instant};

use bytes::Bytes;
use tandem_wire::{Code, TunnelInfo};

use super::{
    Carries, Client, TaskState,
    forward::{LocalFlow, LocalFlowId},
};
use crate::{
    node::{Event, Output, Received, SocketId, SocketKind, Transmit},
    quic::StreamId,
    tunnel_queue::Push,
};

/// Outputs that wait at most when a report is to be told: the next report comes soon enough.
const UNTOLD_MAX: usize = 256;

impl Client {
    /// Opens the listeners.
    pub(super) fn listen(&mut self) {
        let TaskState::Forward(forward) = &mut self.task else { return };
        if std::mem::replace(&mut forward.is_listening, true) {
            return;
        }
        for (index, config) in forward.configs.iter().enumerate() {
            let socket = SocketId(self.next_socket);
            self.next_socket += 1;
            forward.sockets.insert(socket, index);
            let kind = SocketKind::Listen(config.listen);
            self.outputs.push_back(Output::OpenSocket { socket, kind });
        }
    }

    /// A local program sent a packet.
    pub(super) fn from_local(&mut self, now: Instant, received: Received) {
        let id = LocalFlowId { socket: received.socket, program: received.remote };
        let TaskState::Forward(forward) = &mut self.task else { return };
        let Some(target) = forward.target(id.socket) else { return };
        let Some(hop) = self.hops.last_mut() else { return };
        if !forward.flows.contains_key(&id) {
            if forward.flows.len() >= self.limits.local_flows {
                self.stats.dropped.too_many_flows += 1;
                return;
            }
            let stream = hop.request(&target, Carries::Local(id));
            let early = VecDeque::new();
            let flow = LocalFlow { stream, early, sent_early: 0, last_active: now };
            forward.flows.insert(id, flow);
            self.stats.flows += 1;
            forward.next_look.get_or_insert(now + self.limits.flow_idle);
        }
        let Some(flow) = forward.flows.get_mut(&id) else { return };
        flow.last_active = now;
        let payload = received.payload.freeze();
        let granted =
            flow.stream.filter(|stream| hop.flows.get(stream).is_some_and(|flow| flow.is_granted));
        match (granted, flow.stream) {
            (Some(stream), _) => self.to_tunnel(now, stream, payload),
            (None, Some(stream))
                if flow.early.is_empty()
                    && flow.sent_early < self.limits.early_datagrams_per_flow
                    && hop.takes_early(&payload) =>
            {
                flow.sent_early += 1;
                self.to_tunnel(now, stream, payload);
            }
            _ if flow.early.len() < self.limits.early_datagrams_per_flow => {
                flow.early.push_back(payload);
            }
            _ => self.stats.dropped.unknown_flow += 1,
        }
    }

    fn to_tunnel(&mut self, now: Instant, stream: StreamId, payload: Bytes) {
        let Some(hop) = self.hops.last_mut() else { return };
        let len = payload.len();
        match hop.send(now, stream, payload) {
            Push::Queued => {
                self.stats.to_target_datagrams += 1;
                self.stats.to_target_bytes += len as u64;
            }
            Push::Full => self.stats.dropped.queue_full += 1,
            Push::TooLarge => self.stats.dropped.too_large += 1,
        }
    }

    /// A flow was granted: sends what waited for it.
    pub(super) fn on_local_granted(&mut self, now: Instant, id: LocalFlowId) {
        let TaskState::Forward(forward) = &mut self.task else { return };
        let Some(flow) = forward.flows.get_mut(&id) else { return };
        let Some(stream) = flow.stream else { return };
        for payload in std::mem::take(&mut flow.early) {
            self.to_tunnel(now, stream, payload);
        }
    }

    /// The proxy allows more streams than before: asks for the flows that wait.
    pub(super) fn request_waiting_flows(&mut self) {
        let TaskState::Forward(forward) = &mut self.task else { return };
        let Some(hop) = self.hops.last_mut() else { return };
        let waiting: Vec<_> = forward
            .flows
            .iter()
            .filter(|(_, flow)| flow.stream.is_none())
            .map(|(&id, _)| id)
            .collect();
        for id in waiting {
            let Some(target) = forward.target(id.socket) else { continue };
            let Some(stream) = hop.request(&target, Carries::Local(id)) else { return };
            if let Some(flow) = forward.flows.get_mut(&id) {
                flow.stream = Some(stream);
            }
        }
    }

    /// A packet for a local program came.
    pub(super) fn to_local(
        &mut self,
        now: Instant,
        id: LocalFlowId,
        payload: &[u8],
        buf: &mut Vec<u8>,
    ) -> Output {
        if let TaskState::Forward(forward) = &mut self.task
            && let Some(flow) = forward.flows.get_mut(&id)
        {
            flow.last_active = now;
        }
        self.stats.to_client_datagrams += 1;
        self.stats.to_client_bytes += payload.len() as u64;
        buf.extend_from_slice(payload);
        let transmit = Transmit {
            destination: id.program,
            src_ip: None,
            ecn: None,
            size: payload.len(),
            segment_size: None,
        };
        Output::Transmit { socket: id.socket, transmit }
    }

    /// Tells the embedding program what a program's flow gets of the tunnel.
    pub(super) fn tell_local(&mut self, id: LocalFlowId, info: TunnelInfo) {
        let event = Event::TunnelInfo { local: id.program, info };
        if self.outputs.len() < UNTOLD_MAX {
            self.outputs.push_back(Output::Event(event));
        }
    }

    /// Forgets a flow whose request has ended.
    pub(super) fn forget_local(&mut self, id: LocalFlowId) {
        if let TaskState::Forward(forward) = &mut self.task {
            forward.flows.remove(&id);
        }
    }

    /// Closes the flows that no packet has passed for long.
    pub(super) fn close_idle_flows(&mut self, now: Instant) {
        let limit = self.limits.flow_idle;
        let TaskState::Forward(forward) = &mut self.task else { return };
        if forward.next_look.is_none_or(|look| look > now) {
            return;
        }
        let idle: Vec<_> = forward
            .flows
            .iter()
            .filter(|(_, flow)| flow.last_active + limit <= now)
            .map(|(&id, flow)| (id, flow.stream))
            .collect();
        for (id, stream) in idle {
            if let (Some(stream), Some(hop)) = (stream, self.hops.last_mut()) {
                // RFC 9114 §4.1.1: "Clients SHOULD use the error code H3_REQUEST_CANCELLED to cancel
                // requests."
                hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
            }
            self.forget_local(id);
        }
        let TaskState::Forward(forward) = &mut self.task else { return };
        forward.next_look = forward.flows.values().map(|flow| flow.last_active + limit).min();
    }
}
