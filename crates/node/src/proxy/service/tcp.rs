//! TCP connections to targets: CONNECT (RFC 9114 §4.4), and templated CONNECT-TCP
//! (draft-ietf-httpbis-connect-tcp).

use std::{io, net::SocketAddr, time::Instant};

use bytes::Bytes;
use tandem_wire::Code;

use super::{Attempt, Open};
use crate::{
    error::RequestError,
    h3,
    impossible::impossible,
    proxy::{
        FlowId, Proxy,
        answer::connected,
        flow::{End, Flow, Stage, StreamFate},
        request::Permitted,
        users::{Direction, MeterVerdict},
    },
    quic::{ConnectionId, earliest},
    service::Service,
    stats::TcpStats,
    tcp::{Form, Outcome, Socket, Splice, TcpId, TcpInput, TunnelStream},
    tunnel::urgency,
};

/// What a flow with a TCP connection has, once it is open.
#[derive(Debug)]
pub(crate) struct Tcp {
    pub(in crate::proxy) splice: Splice,
    pub(in crate::proxy) target: SocketAddr,
    /// When bytes may pass again, after the user's rate has been reached.
    pub(in crate::proxy) resume_at: Option<Instant>,
    /// Whether the connection waits for a round in which its user has credit.
    is_waiting: bool,
}

impl Tcp {
    fn new(tcp: TcpId, form: Form, target: SocketAddr) -> Self {
        let splice = Splice::new(Socket::new(tcp), TunnelStream::new(form));
        Self { splice, target, resume_at: None, is_waiting: false }
    }

    /// Whether the stream can still carry a capsule for the client.
    pub(in crate::proxy) fn takes_last_words(&self) -> bool {
        self.splice.stream.form() == Form::Capsules && !self.splice.socket.has_read_fin()
    }
}

impl Flow {
    fn tcp(&mut self) -> Option<&mut Tcp> {
        match &mut self.stage {
            Stage::Open(Open::Tcp(tcp)) => Some(tcp),
            _ => None,
        }
    }
}

/// Counts the end of a flow with a TCP connection. Refused requests count elsewhere.
pub(super) const fn count_end(is_open: bool, end: &End, stats: &mut TcpStats) {
    let counter = match end {
        End::Refused => return,
        End::Finished | End::ByClient => &mut stats.finished,
        End::Reset(Code::H3_NO_ERROR) if is_open => &mut stats.finished,
        End::Failed(_) => &mut stats.reset,
        _ => &mut stats.aborted,
    };
    *counter += 1;
}

impl Proxy {
    /// Opens a flow with a TCP connection.
    pub(super) fn open_tcp(
        &mut self,
        now: Instant,
        id: FlowId,
        request: Permitted<'_>,
    ) -> Result<(), RequestError> {
        let target = self.admission.tcp_target(request.target)?;
        let urgency = urgency(request.headers);
        self.open_flow(now, id, Permitted { target, ..request })?;
        if let Some(peer) = self.peers.get_mut(id.0) {
            peer.tunnel.open_bytes(id.1, urgency, 1);
        }
        self.advance_race(now, id);
        Ok(())
    }

    /// Handles an input about a TCP connection.
    pub(in crate::proxy) fn on_tcp(&mut self, now: Instant, input: TcpInput) {
        let (TcpInput::Opened { tcp, .. }
        | TcpInput::Read { tcp, .. }
        | TcpInput::Written { tcp, .. }
        | TcpInput::Failed { tcp, .. }) = input
        else {
            return; // a proxy listens for no TCP connections, and asks for no ports of programs
        };
        // The flow may have ended before.
        let Some(id) = self.targets.flow_of_tcp(tcp) else { return };
        match input {
            TcpInput::Opened { result: Ok(_), .. } => self.on_connected(now, id, tcp),
            TcpInput::Opened { result: Err(error), .. } => {
                self.targets.disconnect(tcp);
                self.on_attempt_failed(now, id, (Attempt::Tcp(tcp), error));
            }
            TcpInput::Read { data, .. } => self.on_tcp_read(now, id, data),
            TcpInput::Written { bytes, .. } => {
                let tcp = self.peers.flow_mut(id).and_then(Flow::tcp);
                if tcp.is_some_and(|tcp| tcp.splice.socket.on_written(bytes)) {
                    self.on_tcp_stream(now, id);
                }
            }
            TcpInput::Failed { error, .. } => self.on_tcp_failed(id, error),
            TcpInput::Listening { .. } | TcpInput::UdpPorts { .. } => {}
        }
    }

    /// Grants a request with the connection that was opened first. The other attempts end.
    fn on_connected(&mut self, now: Instant, id: FlowId, tcp: TcpId) {
        let Some(target) = self.on_attempt_opened(id, Attempt::Tcp(tcp)) else { return }; // it has lost
        let Some((flow, _)) = self.peers.flow_of_target(id) else {
            return impossible("a flow lets go of its connections when it ends");
        };
        let Service::Tcp(form) = flow.service else {
            return impossible("TCP connections are of requests for TCP");
        };
        flow.stage = Stage::Open(Open::Tcp(Box::new(Tcp::new(tcp, form, target))));
        self.stats.tcp.opened += 1;
        self.log.opened(id, flow);
        self.set_timer(id);
        self.answer(id, &connected(target, form), h3::End::More);
        self.pull_tcp(id);
        // The client may have sent data with its request.
        self.on_tcp_stream(now, id);
    }

    /// Passes bytes of a target to its stream.
    fn on_tcp_read(&mut self, now: Instant, id: FlowId, data: Bytes) {
        let verdict = self.meter(now, id, Direction::ToClient, data.len());
        let Some(peer) = self.peers.get_mut(id.0) else {
            return impossible("a flow is of a peer");
        };
        let Some(tcp) = peer.flows.get_mut(&id.1).and_then(|flow| flow.tcp()) else { return }; // its connection is not open yet
        self.stats.tcp.to_client_bytes += data.len() as u64;
        let outcome = tcp.splice.on_read(data, &mut peer.tunnel, id.1, &mut self.outputs);
        self.server.wake(id.0);
        self.settle_tcp(now, id, outcome);
        if verdict == MeterVerdict::MonthUsed {
            self.revoke(id, &End::MonthUsed);
        }
    }

    /// Counts bytes for the user. If they came faster than the user's rate, no others are taken for a while.
    fn meter(&mut self, now: Instant, id: FlowId, way: Direction, bytes: usize) -> MeterVerdict {
        let Some(flow) = self.peers.flow_mut(id) else { return MeterVerdict::Pass };
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
        let Some(flow) = self.peers.flow_mut(id) else { return false }; // it has ended
        let (who, wait) = (flow.owner.who(id.0), flow.owner.meter.wait(now, way));
        let Some(tcp) = flow.tcp() else { return false }; // it is not open yet
        if self.shares.is_busy() && self.shares.has_used(who) {
            if !std::mem::replace(&mut tcp.is_waiting, true) {
                self.shares.wait(now, id);
            }
        } else if let Some(wait) = wait {
            tcp.resume_at = earliest(tcp.resume_at, Some(now + wait));
        } else {
            return false;
        }
        if way == Direction::ToClient {
            tcp.splice.halt(true);
        }
        self.set_timer(id);
        true
    }

    /// Goes on with the connections that have waited for a round, as far as their users' credit reaches. The others
    /// wait for the next.
    pub(in crate::proxy) fn resume_waiting(&mut self, now: Instant) {
        let mut waiting = self.shares.next_round();
        for _ in 0..waiting.len() {
            let Some(id) = waiting.pop_front() else { break };
            let Some(flow) = self.peers.flow_mut(id) else { continue }; // it has ended
            if self.shares.has_used(flow.owner.who(id.0)) {
                waiting.push_back(id); // it keeps its place, so that its turn comes
                continue;
            }
            if let Some(tcp) = flow.tcp() {
                tcp.is_waiting = false;
            }
            self.resume(now, id);
        }
        self.shares.wait_on(now, waiting);
    }

    /// Goes on with a connection that has waited for the user's rate, or for its credit.
    pub(in crate::proxy) fn resume(&mut self, now: Instant, id: FlowId) {
        let Some(tcp) = self.peers.flow_mut(id).and_then(Flow::tcp) else { return }; // it has ended, or is not open
        tcp.resume_at = None;
        if !self.pause(now, id, Direction::ToClient) {
            if let Some(tcp) = self.peers.flow_mut(id).and_then(Flow::tcp) {
                tcp.splice.halt(false);
            }
            self.pull_tcp(id);
        }
        self.set_timer(id);
        self.on_tcp_stream(now, id);
    }

    /// Passes what has arrived on a stream to its target.
    pub(in crate::proxy) fn on_tcp_stream(&mut self, now: Instant, id: FlowId) {
        if self.pause(now, id, Direction::ToTarget) {
            return;
        }
        let Some(tcp) = self.peers.flow_mut(id).and_then(Flow::tcp) else { return }; // it has ended, or is not open
        let Some(mut carrier) = self.server.carrier(id.0) else { return }; // the client has gone
        let before = tcp.splice.to_tcp;
        let outcome = tcp.splice.push(&mut carrier, id.1, &mut self.outputs);
        let pushed = tcp.splice.to_tcp - before;
        self.stats.tcp.to_target_bytes += pushed;
        let pushed = usize::try_from(pushed).unwrap_or(usize::MAX);
        let verdict = self.meter(now, id, Direction::ToTarget, pushed);
        self.settle_tcp(now, id, outcome);
        if verdict == MeterVerdict::MonthUsed {
            self.revoke(id, &End::MonthUsed);
        }
    }

    /// Asks a target for bytes if its stream has room.
    fn pull_tcp(&mut self, id: FlowId) {
        if let Some(peer) = self.peers.get_mut(id.0)
            && let Some(tcp) = peer.flows.get_mut(&id.1).and_then(|flow| flow.tcp())
        {
            tcp.splice.pull(&peer.tunnel, id.1, &mut self.outputs);
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
            Outcome::Finished => self.end_flow(id, &End::Finished, StreamFate::Drains),
            Outcome::Closed => self.end_flow(id, &End::ByClient, StreamFate::Left),
            // The session has reset the stream, or it was read to its end.
            Outcome::Cut(_) => {
                self.end_flow(id, &End::CutOff, StreamFate::Reset(Code::H3_CONNECT_ERROR));
            }
            Outcome::Malformed(code) => {
                let end = End::Malformed("malformed capsules".into());
                self.end_flow(id, &end, StreamFate::Reset(code));
            }
            Outcome::Broken(error) => self.server.break_connection(now, id.0, &error),
        }
    }

    /// Handles the end of a connection to a target by an error.
    ///
    /// RFC 9114 §4.4: "A TCP connection error is signaled by resetting the stream. A proxy treats any
    /// error in the TCP connection, which includes receiving a TCP segment with the RST bit set, as a
    /// stream error of type `H3_CONNECT_ERROR`."
    fn on_tcp_failed(&mut self, id: FlowId, error: io::ErrorKind) {
        if let Some(tcp) = self.peers.flow_mut(id).and_then(Flow::tcp) {
            tcp.splice.socket.on_failed();
        }
        self.end_flow(id, &End::Failed(error), StreamFate::Reset(Code::H3_CONNECT_ERROR));
    }

    /// Handles the end of a stream by its client, which has reset it. RFC 9114 §4.4: "if a proxy detects
    /// an error with the stream or the QUIC connection, it MUST close the TCP connection", with the RST
    /// bit set if it can.
    ///
    /// With `H3_NO_ERROR` the client needs a TCP connection no more, and it is closed.
    pub(in crate::proxy) fn on_stream_failed(&mut self, id: FlowId, code: Code) {
        if let Some(tcp) = self.peers.flow_mut(id).and_then(Flow::tcp)
            && code == Code::H3_NO_ERROR
        {
            tcp.splice.socket.close(&mut self.outputs);
        }
        if let Some(peer) = self.peers.get_mut(id.0) {
            peer.passwords.forget(id.1);
        }
        self.end_flow(id, &End::Reset(code), StreamFate::Left);
    }
}
