//! The bytes of local programs' TCP connections, and their ends.

use std::{io, time::Instant};

use bytes::Bytes;
use http::StatusCode;
use tandem_wire::{Code, ResponseHead, StrangerText};

use super::{EARLY_MAX, TcpService};
use crate::{
    client::{Client, FlowConfig, local::Refusal, start::grants},
    error::ClientError,
    h3,
    node::{Event, Output},
    quic::StreamId,
    reason::explain,
    tcp::{Form, Outcome, TcpId, TcpOutput},
};

impl Client {
    /// Handles an event of a hop if it is about a TCP connection. Otherwise it returns the event.
    pub(in crate::client) fn take_tcp_event(
        &mut self,
        now: Instant,
        index: usize,
        event: h3::Event,
    ) -> Option<h3::Event> {
        let is_last = index + 1 == self.chain.hops.len();
        let is_tcp = |stream| is_last && self.tcp.has(stream);
        match event {
            h3::Event::Response(stream, head) if is_tcp(stream) => {
                self.on_tcp_response(now, stream, &head);
            }
            h3::Event::Body(stream) if is_tcp(stream) => self.on_tcp_stream(now, stream),
            h3::Event::Failed(stream, code) if is_tcp(stream) => {
                self.on_tcp_stream_failed(now, stream, code);
            }
            other => return Some(other),
        }
        None
    }

    /// Passes bytes of a program to its stream.
    pub(super) fn on_program_read(&mut self, now: Instant, tcp: TcpId, data: Bytes) {
        let program = self.tcp.programs.get(&tcp);
        if program.is_some_and(|it| self.tcp.is_guesser(now, it))
            && let Some(program) = self.tcp.programs.get_mut(&tcp)
        {
            program.splice.socket.reset(&mut self.outputs);
            self.stats.tcp.failed += 1;
            return self.forget_program(now, tcp, Ok(()));
        }
        let Self { tcp: connections, chain, outputs, stats, .. } = self;
        let Some(program) = connections.programs.get_mut(&tcp) else { return };
        if let Some(local) = &mut program.local {
            program.splice.socket.on_read(&data);
            if data.is_empty() {
                local.program_ended();
            } else {
                local.from_program(data);
            }
            return self.run_local(now, tcp);
        }
        let (Some(upstream), Some(hop)) = (&mut program.upstream, chain.hops.last_mut()) else {
            return;
        };
        let Some(stream) = upstream.stream else { return };
        if !upstream.is_granted && !connections.is_form_known {
            upstream.early.push(data.clone());
            let early = upstream.early.iter().map(Bytes::len).sum::<usize>();
            program.splice.halt(early >= EARLY_MAX);
        }
        stats.tcp.to_target_bytes += data.len() as u64;
        let outcome = program.splice.on_read(data, &mut hop.tunnel, stream, outputs);
        hop.wake();
        self.settle_tcp(now, tcp, outcome);
    }

    /// Passes what has arrived on a stream to its program.
    pub(super) fn on_tcp_stream(&mut self, now: Instant, stream: StreamId) {
        let Self { tcp: connections, chain, outputs, stats, .. } = self;
        let Some(&tcp) = connections.by_stream.get(&stream) else { return };
        let Some(program) = connections.programs.get_mut(&tcp) else { return };
        if !program.upstream.as_ref().is_some_and(|upstream| upstream.is_granted) {
            return;
        }
        if program.local.is_some() {
            return self.on_spoken_stream(now, tcp, stream);
        }
        let hop = chain.hops.last_mut();
        let Some(mut carrier) = hop.and_then(|hop| hop.peer.carrier()) else { return };
        let before = program.splice.to_tcp;
        let outcome = program.splice.push(&mut carrier, stream, outputs);
        stats.tcp.to_client_bytes += program.splice.to_tcp - before;
        self.settle_tcp(now, tcp, outcome);
    }

    /// Asks a program for bytes if its stream has room.
    pub(super) fn pull_program(&mut self, tcp: TcpId) {
        let Self { tcp: connections, chain, outputs, .. } = self;
        let (Some(program), Some(hop)) = (connections.programs.get_mut(&tcp), chain.hops.last())
        else {
            return;
        };
        let wants = program.local.as_ref().map(|local| local.wants_program());
        match program.stream() {
            Some(stream) if wants.unwrap_or(true) => {
                program.splice.pull(&hop.tunnel, stream, outputs);
            }
            None if wants.unwrap_or(false) => program.splice.socket.read(outputs),
            Some(_) | None => {} // without a protocol, a program waits for its stream
        }
    }

    /// Asks the programs for bytes whose streams have sent most of what they had. Returns whether there
    /// was one.
    pub(in crate::client) fn pull_tcp(&mut self) -> bool {
        let mut any = false;
        while let Some(stream) =
            self.chain.hops.last_mut().and_then(|hop| hop.tunnel.poll_drained())
        {
            any = true;
            if let Some(&tcp) = self.tcp.by_stream.get(&stream) {
                self.pull_program(tcp);
            }
        }
        any
    }

    /// Handles the answer to a request for a connection.
    fn on_tcp_response(&mut self, now: Instant, stream: StreamId, head: &ResponseHead) {
        let connections = &mut self.tcp;
        let Some(&tcp) = connections.by_stream.get(&stream) else { return };
        let Some(program) = connections.programs.get_mut(&tcp) else { return };
        let Some(upstream) = program.upstream.as_mut().filter(|it| !it.is_granted) else { return };
        let is_capsules = program.splice.stream.form() == Form::Capsules;
        if head.status.is_success() && is_capsules && !grants(head) {
            program.splice.socket.reset(&mut self.outputs);
            return self.settle_tcp(now, tcp, Outcome::Malformed(Code::H3_MESSAGE_ERROR));
        }
        if head.status.is_success() {
            (upstream.is_granted, upstream.early) = (true, Vec::new());
            program.splice.halt(false);
            connections.is_form_known = true;
            connections.told.remove(&program.service);
            self.stats.tcp.opened += 1;
            if let Some(local) = &mut program.local {
                local.on_granted();
                self.run_local(now, tcp);
            }
            self.pull_program(tcp);
            return self.on_tcp_stream(now, stream);
        }
        if is_capsules && !connections.is_form_known && lacks_form(head.status) {
            connections.form = Form::Classic;
            connections.by_stream.remove(&stream);
            upstream.stream = None;
            program.splice.halt(false);
            if let Some(hop) = self.chain.hops.last_mut() {
                hop.end_tcp(stream, Code::H3_REQUEST_CANCELLED);
            }
            self.request_tcp(tcp);
            return;
        }
        let target = authority_of(&upstream.target);
        let Some(hop) = self.chain.hops.last_mut() else { return };
        let error = hop.refused(target, head);
        self.disconnect(tcp, Code::H3_REQUEST_CANCELLED);
        self.fail_program(now, tcp, error);
    }

    fn settle_tcp(&mut self, now: Instant, tcp: TcpId, outcome: Outcome) {
        let (code, reason) = match outcome {
            Outcome::Open => return,
            Outcome::Finished => {
                self.stats.tcp.finished += 1;
                return self.forget_program(now, tcp, Ok(()));
            }
            Outcome::Broken(error) => {
                let last = self.chain.hops.len().saturating_sub(1);
                return self.protocol_error(now, last, &error);
            }
            Outcome::Malformed(code) => (code, "the proxy's answer is malformed".into()),
            Outcome::Cut(Some(status)) => (Code::H3_REQUEST_CANCELLED, explain(&status)),
            Outcome::Closed | Outcome::Cut(None) => {
                (Code::H3_REQUEST_CANCELLED, "the connection was reset".into())
            }
        };
        self.stats.tcp.aborted += 1;
        let error = self.tcp_closed(tcp, reason);
        self.disconnect(tcp, code);
        self.forget_program(now, tcp, Err(error));
    }

    /// Handles the end of a stream that the session has reset.
    fn on_tcp_stream_failed(&mut self, now: Instant, stream: StreamId, code: Code) {
        let Some(&tcp) = self.tcp.by_stream.get(&stream) else { return };
        let error = self.tcp_closed(tcp, format!("its stream was reset ({code})"));
        self.disconnect(tcp, code);
        self.cut_program(now, tcp, error);
    }

    /// Ends a program's connection after its stream was cut off.
    fn cut_program(&mut self, now: Instant, tcp: TcpId, error: ClientError) {
        self.stats.tcp.aborted += 1;
        let Some(program) = self.tcp.programs.get_mut(&tcp) else { return };
        if let Some(local) = &mut program.local {
            local.target_ended(false);
            return self.run_local(now, tcp);
        }
        program.splice.socket.reset(&mut self.outputs);
        self.forget_program(now, tcp, Err(error));
    }

    /// Handles a program's connection that ended with an error, such as a reset.
    pub(super) fn on_program_failed(&mut self, now: Instant, tcp: TcpId, error: io::ErrorKind) {
        self.tcp.awaited.remove(&tcp);
        if !self.tcp.programs.contains_key(&tcp) {
            return;
        }
        self.stats.tcp.reset += 1;
        let error = self.tcp_closed(tcp, format!("the program's connection ended: {error}"));
        // RFC 9114 §4.4: an error in the TCP connection is "a stream error of type H3_CONNECT_ERROR".
        self.disconnect(tcp, Code::H3_CONNECT_ERROR);
        self.forget_program(now, tcp, Err(error));
    }

    /// Handles that a program's target cannot be reached.
    fn fail_program(&mut self, now: Instant, tcp: TcpId, error: ClientError) {
        self.stats.tcp.failed += 1;
        let Some(program) = self.tcp.programs.get_mut(&tcp) else { return };
        if let Some(local) = &mut program.local {
            local.on_refused(&Refusal::from(&error));
            return self.run_local(now, tcp);
        }
        program.splice.socket.reset(&mut self.outputs);
        let service = program.service;
        if let Some(listen) = self.tcp.listen(service)
            && self.tcp.told.get(&service) != Some(&error)
        {
            self.tcp.told.insert(service, error.clone());
            let event = Event::FlowFailed { listen, error: error.clone() };
            self.outputs.push_back(Output::Event(event));
        }
        self.forget_program(now, tcp, Err(error));
    }

    fn tcp_closed(&self, tcp: TcpId, reason: impl Into<StrangerText>) -> ClientError {
        let peer = self.chain.hops.last().map(|hop| hop.peer.settings.authority.clone());
        let upstream = self.tcp.programs.get(&tcp).and_then(|program| program.upstream.as_ref());
        let target = upstream.map(|upstream| authority_of(&upstream.target));
        let (peer, target) = (peer.unwrap_or_default(), target.unwrap_or_default());
        ClientError::FlowClosed { peer, target: target.into(), reason: reason.into() }
    }

    /// Forgets a program's connection. The client ends with that of the standard input.
    pub(super) fn forget_program(
        &mut self,
        now: Instant,
        tcp: TcpId,
        result: Result<(), ClientError>,
    ) {
        self.end_association(now, tcp);
        let Some(program) = self.tcp.remove(tcp) else { return };
        if matches!(self.tcp.services.get(program.service), Some(TcpService::Stdio { .. })) {
            self.end(now, result);
        }
    }

    /// Ends all programs' connections whose streams have ended with the tunnel.
    pub(in crate::client) fn end_tcp_streams(&mut self, now: Instant) {
        self.tcp.is_form_known = false;
        self.tcp.form = super::FIRST_FORM;
        for tcp in self.tcp.by_stream.values().copied().collect::<Vec<_>>() {
            let error = self.tcp_closed(tcp, "the tunnel ended".to_owned());
            self.disconnect(tcp, Code::H3_REQUEST_CANCELLED);
            self.cut_program(now, tcp, error);
        }
    }

    /// Resets all programs' connections, because the client ends.
    pub(in crate::client) fn end_all_tcp(&mut self) {
        for (tcp, _) in std::mem::take(&mut self.tcp.programs) {
            self.outputs.push_back(Output::Tcp(TcpOutput::Reset(tcp)));
            self.stats.tcp.aborted += 1;
        }
        self.tcp.by_stream.clear();
    }
}

/// Whether a proxy that answers with this status may take the request in another form.
fn lacks_form(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED
            | StatusCode::UPGRADE_REQUIRED
            | StatusCode::BAD_REQUEST
    )
}

/// Host and port of a target, as the authority of a CONNECT request has them.
pub(in crate::client) fn authority_of(target: &FlowConfig) -> String {
    let FlowConfig { host, port, .. } = target;
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
