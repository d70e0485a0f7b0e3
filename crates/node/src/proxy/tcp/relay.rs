//! The bytes of TCP connections, and their ends.

use std::{io, time::Instant};

use bytes::Bytes;
use tandem_wire::Code;
use tracing::info;

use super::{State, TcpFlow};
use crate::{
    error::RequestError,
    node::Output,
    proxy::{
        FlowId, Proxy,
        access::Access,
        flow::{End, Owner},
        flow_log::Line,
        request::Asks,
        users::{Direction, Verdict},
    },
    quic::{ConnectionId, earliest},
    tcp::{Outcome, TcpOutput},
};

impl Proxy {
    /// Passes bytes of a target to its stream.
    pub(super) fn on_tcp_read(&mut self, now: Instant, id: FlowId, data: Bytes) {
        let verdict = self.meter(now, id, Direction::ToClient, data.len());
        let splice = self.tcp.flows.get_mut(&id).and_then(TcpFlow::open);
        let (Some(splice), Some(peer)) = (splice, self.peers.get_mut(id.0)) else { return };
        self.stats.tcp.to_client_bytes += data.len() as u64;
        let outcome = splice.on_read(data, &mut peer.tunnel, id.1, &mut self.outputs);
        self.server.wake(id.0);
        self.settle_tcp(now, id, outcome);
        if verdict == Verdict::MonthUsed {
            self.end_right(id, &End::MonthUsed);
        }
    }

    /// Counts bytes for the user. If they came faster than the user's rate, no others are taken for a while.
    fn meter(&mut self, now: Instant, id: FlowId, way: Direction, bytes: usize) -> Verdict {
        let Some(flow) = self.tcp.flows.get_mut(&id) else { return Verdict::Pass };
        let verdict = flow.owner.meter.passed(now, way, (bytes, 0));
        if self.shares.is_busy() {
            self.shares.count(now, Some(flow.owner.who(id.0)), bytes);
        }
        self.pause(now, id, way);
        verdict
    }

    /// Takes no bytes of a direction until the user's rate and its part of a busy thread permit it. Returns whether
    /// they do not.
    fn pause(&mut self, now: Instant, id: FlowId, way: Direction) -> bool {
        let Some(flow) = self.tcp.flows.get_mut(&id) else { return false };
        if self.shares.is_busy() && self.shares.has_used(flow.owner.who(id.0)) {
            if !std::mem::replace(&mut flow.is_waiting, true) {
                self.shares.wait(now, id);
            }
        } else if let Some(wait) = flow.owner.meter.wait(now, way) {
            flow.resume_at = earliest(flow.resume_at, Some(now + wait));
        } else {
            return false;
        }
        if let Some(splice) = flow.open().filter(|_| way == Direction::ToClient) {
            splice.halt(true);
        }
        self.tcp.set_timer(id);
        true
    }

    /// Goes on with the connections that have waited for a round, as far as their users' credit reaches. The others
    /// wait for the next.
    pub(in crate::proxy) fn resume_waiting(&mut self, now: Instant) {
        let mut waiting = self.shares.next_round();
        for _ in 0..waiting.len() {
            let Some(id) = waiting.pop_front() else { break };
            let Some(flow) = self.tcp.flows.get_mut(&id) else { continue };
            if self.shares.has_used(flow.owner.who(id.0)) {
                waiting.push_back(id); // it keeps its place, so that its turn comes
                continue;
            }
            flow.is_waiting = false;
            self.resume(now, id);
        }
        self.shares.wait_on(now, waiting);
    }

    /// Goes on with a connection that has waited for the user's rate, or for its credit.
    fn resume(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.tcp.flows.get_mut(&id) else { return };
        flow.resume_at = None;
        if !self.pause(now, id, Direction::ToClient) {
            if let Some(splice) = self.tcp.flows.get_mut(&id).and_then(TcpFlow::open) {
                splice.halt(false);
            }
            self.pull_tcp(id);
        }
        self.tcp.set_timer(id);
        self.on_tcp_stream(now, id);
    }

    /// Passes what has arrived on a stream to its target.
    pub(in crate::proxy) fn on_tcp_stream(&mut self, now: Instant, id: FlowId) {
        if self.pause(now, id, Direction::ToTarget) {
            return;
        }
        let splice = self.tcp.flows.get_mut(&id).and_then(TcpFlow::open);
        let (Some(splice), Some(mut carrier)) = (splice, self.server.carrier(id.0)) else {
            return;
        };
        let before = splice.to_tcp;
        let outcome = splice.push(&mut carrier, id.1, &mut self.outputs);
        let pushed = splice.to_tcp - before;
        self.stats.tcp.to_target_bytes += pushed;
        let pushed = usize::try_from(pushed).unwrap_or(usize::MAX);
        let verdict = self.meter(now, id, Direction::ToTarget, pushed);
        self.settle_tcp(now, id, outcome);
        if verdict == Verdict::MonthUsed {
            self.end_right(id, &End::MonthUsed);
        }
    }

    /// Asks a target for bytes if its stream has room.
    pub(super) fn pull_tcp(&mut self, id: FlowId) {
        let splice = self.tcp.flows.get_mut(&id).and_then(TcpFlow::open);
        if let (Some(splice), Some(peer)) = (splice, self.peers.get(id.0)) {
            splice.pull(&peer.tunnel, id.1, &mut self.outputs);
        }
    }

    /// Asks the targets for bytes whose streams have sent most of what they had.
    pub(in crate::proxy) fn pull_drained(&mut self, id: ConnectionId) {
        while let Some(stream) = self.peers.get_mut(id).and_then(|it| it.tunnel.poll_drained()) {
            self.pull_tcp((id, stream));
        }
    }

    fn settle_tcp(&mut self, now: Instant, id: FlowId, outcome: Outcome) {
        match outcome {
            Outcome::Open => {}
            Outcome::Finished => {
                self.stats.tcp.finished += 1;
                self.end_tcp(id, &"finished");
            }
            Outcome::Closed => {
                self.stats.tcp.finished += 1;
                self.close_bytes(id);
                self.end_tcp(id, &"closed by the client");
            }
            Outcome::Cut(_) => {
                // The session has reset the stream, or it was read to its end. The connection is reset.
                self.stats.tcp.aborted += 1;
                self.cut_tcp(id, Code::H3_CONNECT_ERROR, &"cut off by the client");
            }
            Outcome::Malformed(code) => {
                self.stats.tcp.aborted += 1;
                self.cut_tcp(id, code, &"malformed capsules");
            }
            Outcome::Broken(error) => self.server.break_connection(now, id.0, &error),
        }
    }

    /// Handles the end of a connection to a target by an error.
    ///
    /// RFC 9114 §4.4: "A TCP connection error is signaled by resetting the stream. A proxy treats any
    /// error in the TCP connection, which includes receiving a TCP segment with the RST bit set, as a
    /// stream error of type `H3_CONNECT_ERROR`."
    pub(super) fn on_tcp_failed(&mut self, id: FlowId, error: io::ErrorKind) {
        self.stats.tcp.reset += 1;
        self.cut_tcp(id, Code::H3_CONNECT_ERROR, &error);
    }

    /// Handles the end of a stream by its client, which has reset it. RFC 9114 §4.4: "if a proxy detects
    /// an error with the stream or the QUIC connection, it MUST close the TCP connection", with the RST
    /// bit set if it can.
    ///
    /// With `H3_NO_ERROR` the client needs the connection no more, and it is closed.
    pub(in crate::proxy) fn on_tcp_stream_failed(&mut self, id: FlowId, code: Code) {
        let splice = self.tcp.flows.get_mut(&id).and_then(TcpFlow::open);
        if let Some(splice) = splice.filter(|_| code == Code::H3_NO_ERROR) {
            splice.socket.close(&mut self.outputs);
            self.stats.tcp.finished += 1;
        } else {
            self.reset_connections(id);
            self.stats.tcp.aborted += 1;
        }
        self.close_bytes(id);
        self.end_tcp(id, &End::Reset(code));
    }

    /// Resets the stream of a connection that has ended.
    fn cut_tcp(&mut self, id: FlowId, code: Code, reason: &dyn std::fmt::Display) {
        self.close_bytes(id);
        if let Some(mut carrier) = self.server.carrier(id.0) {
            carrier.reset(id.1, code);
        }
        self.end_tcp(id, reason);
    }

    fn close_bytes(&mut self, id: FlowId) {
        if let Some(peer) = self.peers.get_mut(id.0) {
            peer.tunnel.close_bytes(id.1);
        }
    }

    /// Refuses a request for a connection.
    pub(super) fn refuse_tcp(&mut self, id: FlowId, error: &RequestError) {
        let Some(flow) = self.tcp.flows.get(&id) else { return };
        let form = flow.form;
        self.reset_connections(id);
        self.close_bytes(id);
        self.end_tcp(id, &End::Refused);
        self.refuse(id, error, Asks::Tcp(form));
    }

    /// Resets the connections of a flow.
    fn reset_connections(&mut self, id: FlowId) {
        let connections = self.tcp.flows.get(&id).map(TcpFlow::connections);
        for tcp in connections.into_iter().flatten() {
            self.outputs.push_back(Output::Tcp(TcpOutput::Reset(tcp)));
        }
    }

    /// Forgets a flow.
    fn end_tcp(&mut self, id: FlowId, reason: &dyn std::fmt::Display) {
        let Some(flow) = self.tcp.remove(id) else { return };
        for _ in flow.connections() {
            self.targets.give_place(id.0);
        }
        match &flow.state {
            State::Resolving { query, .. } => self.targets.forget_query(*query),
            State::Connecting(_) => {}
            State::Open { splice, target } => {
                let Owner { user, client, trace_id, meter, .. } = &flow.owner;
                if !self.log.may_log(user, Line::Closed) {
                    return;
                }
                info!(
                    connection = id.0.0, flow = id.1.0, trace_id = trace_id.map(display), %user,
                    client = client.map(display), %target, %reason, protocol = "tcp",
                    active_s = meter.active().as_secs_f64(), to_target_bytes = splice.to_tcp,
                    to_client_bytes = splice.from_tcp, "flow closed"
                );
            }
        }
    }

    /// Resets all connections for a client whose connection has ended.
    pub(in crate::proxy) fn end_tcp_of(&mut self, id: ConnectionId) {
        let flows = self.tcp.of_connection(id).map(|(&id, _)| id).collect::<Vec<_>>();
        for id in flows {
            self.reset_connections(id);
            self.stats.tcp.aborted += 1;
            self.end_tcp(id, &End::WithConnection);
        }
    }

    /// Ends the connections that were opened with a token that is no longer permitted.
    pub(in crate::proxy) fn revoke_tcp(&mut self, access: &Access) {
        let flows = self.tcp.flows.iter();
        let revoked = flows.filter(|(_, flow)| !access.still_permits(&flow.owner.user));
        for id in revoked.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.end_right(id, &End::Revoked);
        }
    }

    /// Ends a connection whose user has lost its right to it.
    fn end_right(&mut self, id: FlowId, end: &End) {
        if !self.tcp.has(id) {
            return;
        }
        self.reset_connections(id);
        self.stats.tcp.aborted += 1;
        self.cut_tcp(id, Code::H3_REQUEST_CANCELLED, end);
    }

    /// Runs the timers that are due: of names that are being resolved, and of attempts to connect.
    pub(in crate::proxy) fn handle_tcp_timeout(&mut self, now: Instant) {
        while let Some(&(due, id)) = self.tcp.timers.first() {
            if due > now {
                break;
            }
            self.tcp.timers.pop_first();
            let Some(flow) = self.tcp.flows.get_mut(&id) else { continue };
            flow.timer = None;
            match flow.state {
                State::Resolving { .. } => {
                    let (host, timeout) = ((&flow.target.0).into(), self.limits.dns_timeout);
                    self.refuse_tcp(id, &RequestError::DnsTimeout { host, timeout });
                }
                State::Connecting(_) => self.advance_race(now, id),
                State::Open { .. } if flow.owner.user.until.is_some_and(|until| until <= now) => {
                    self.end_right(id, &End::Expired);
                }
                State::Open { .. } => self.resume(now, id),
            }
        }
    }
}
