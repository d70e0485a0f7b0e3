//! What a client does for the connections of local programs.

use std::{io, time::Instant};

use bytes::Bytes;
use http::StatusCode;
use tandem_wire::{Code, ResponseHead};

use super::{Awaited, EARLY_MAX, Program, State, TcpService};
use crate::{
    client::{Client, FlowConfig, Life, start::grants},
    error::ClientError,
    h3,
    node::{Event, Output},
    quic::StreamId,
    reason::explain,
    tcp::{Form, ListenerId, Outcome, Splice, TcpId, TcpInput, TcpOutput},
    tunnel::Carrier,
};

impl Client {
    /// Opens the listening sockets and the standard input. A second call has no effect.
    pub(in crate::client) fn listen_tcp(&mut self) {
        if !self.tcp.listeners.is_empty() || !self.tcp.awaited.is_empty() {
            return;
        }
        for index in 0..self.tcp.services.len() {
            let output = match self.tcp.services.get(index) {
                Some(TcpService::Forward { listen, .. } | TcpService::Proxy { listen, .. }) => {
                    let address = *listen;
                    let listener = ListenerId(index as u64);
                    self.tcp.listeners.insert(listener, index);
                    TcpOutput::Listen { listener, address }
                }
                Some(TcpService::Stdio { .. }) => {
                    let tcp = self.tcp.next_tcp();
                    self.tcp.awaited.insert(tcp, Awaited { service: index, listener: None });
                    TcpOutput::OpenStdio(tcp)
                }
                None => return,
            };
            self.outputs.push_back(Output::Tcp(output));
        }
    }

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

    /// Handles an input about a TCP connection.
    pub(in crate::client) fn on_tcp(&mut self, now: Instant, input: TcpInput) {
        match input {
            TcpInput::Listening { listener, result } => {
                let Some(&service) = self.tcp.listeners.get(&listener) else { return };
                match result {
                    Ok(local) => {
                        self.outputs.push_back(Output::Event(Event::Listening(local)));
                        self.accept(service, listener);
                    }
                    Err(kind) => {
                        let address = self.tcp.listen(service);
                        self.end(now, Err(ClientError::Listen { address, kind }));
                    }
                }
            }
            TcpInput::Opened { tcp, result } => self.on_program(tcp, result.is_ok()),
            TcpInput::Read { tcp, data } => self.on_program_read(now, tcp, data),
            TcpInput::Written { tcp, bytes } => {
                let parts = self.tcp.programs.get_mut(&tcp).and_then(Program::parts);
                if let Some((stream, splice)) = parts
                    && splice.on_written(bytes)
                {
                    self.on_tcp_stream(now, stream);
                }
            }
            TcpInput::Failed { tcp, error } => self.on_program_failed(now, tcp, error),
        }
    }

    /// Takes the next connection of a listener, unless there are as many as there may be.
    fn accept(&mut self, service: usize, listener: ListenerId) {
        let tcp = self.tcp.next_tcp();
        self.tcp.awaited.insert(tcp, Awaited { service, listener: Some(listener) });
        self.outputs.push_back(Output::Tcp(TcpOutput::Accept { listener, tcp }));
    }

    /// Handles a new connection of a local program.
    fn on_program(&mut self, tcp: TcpId, is_open: bool) {
        let Some(Awaited { service, listener }) = self.tcp.awaited.remove(&tcp) else { return };
        if let Some(listener) = listener {
            self.accept(service, listener);
        }
        if !is_open {
            return;
        }
        if self.tcp.len() >= self.limits.local_flows || self.life != Life::Running {
            self.stats.tcp.failed += 1;
            return self.outputs.push_back(Output::Tcp(TcpOutput::Reset(tcp)));
        }
        let target = match self.tcp.services.get(service) {
            Some(TcpService::Forward { target, .. } | TcpService::Stdio { target }) => {
                target.clone()
            }
            Some(TcpService::Proxy { .. }) | None => return,
        };
        self.tcp.programs.insert(tcp, Program { service, target, state: State::Waiting });
        self.request_tcp(tcp);
    }

    /// Requests the connections that wait, after the tunnel has come up or the proxy has allowed more
    /// streams.
    pub(in crate::client) fn request_waiting_tcp(&mut self) {
        let waiting = self.tcp.programs.iter();
        let waiting = waiting.filter(|(_, program)| matches!(program.state, State::Waiting));
        for tcp in waiting.map(|(&tcp, _)| tcp).collect::<Vec<_>>() {
            if !self.request_tcp(tcp) {
                return;
            }
        }
    }

    /// Requests a connection to a program's target, if that is possible now.
    fn request_tcp(&mut self, tcp: TcpId) -> bool {
        let Self { tcp: connections, chain, outputs, .. } = self;
        let Some(hop) = chain.hops.last_mut().filter(|hop| hop.is_up) else { return false };
        let Some(program) = connections.programs.get_mut(&tcp) else { return true };
        let form = if hop.takes_extended_connect() { connections.form } else { Form::Classic };
        let Some(stream) = hop.request_tcp(&program.target, form) else { return false };
        let mut splice = Splice::new(tcp, form);
        splice.pull(&hop.tunnel, stream, outputs);
        program.state = State::Requested { stream, splice, early: Vec::new() };
        connections.by_stream.insert(stream, tcp);
        true
    }

    /// Passes bytes of a program to its stream.
    fn on_program_read(&mut self, now: Instant, tcp: TcpId, data: Bytes) {
        let Self { tcp: connections, chain, outputs, stats, .. } = self;
        let (is_form_known, program) =
            (connections.is_form_known, connections.programs.get_mut(&tcp));
        let (Some(program), Some(hop)) = (program, chain.hops.last_mut()) else { return };
        if let State::Requested { early, splice, .. } = &mut program.state
            && !is_form_known
        {
            early.push(data.clone());
            splice.halt(early.iter().map(Bytes::len).sum::<usize>() >= EARLY_MAX);
        }
        let Some((stream, splice)) = program.parts() else { return };
        stats.tcp.to_target_bytes += data.len() as u64;
        let outcome = splice.on_read(data, &mut hop.tunnel, stream, outputs);
        hop.wake();
        self.settle_tcp(now, tcp, outcome);
    }

    /// Passes what has arrived on a stream to its program.
    pub(in crate::client) fn on_tcp_stream(&mut self, now: Instant, stream: StreamId) {
        let Self { tcp: connections, chain, outputs, stats, .. } = self;
        let Some(&tcp) = connections.by_stream.get(&stream) else { return };
        let Some(program) = connections.programs.get_mut(&tcp) else { return };
        let State::Open { splice, .. } = &mut program.state else { return };
        let Some(parts) = chain.hops.last_mut().and_then(|hop| hop.peer.parts()) else { return };
        let before = splice.to_tcp;
        let outcome = splice.push(&mut Carrier::from(parts), stream, outputs);
        stats.tcp.to_client_bytes += splice.to_tcp - before;
        self.settle_tcp(now, tcp, outcome);
    }

    /// Asks a program for bytes if its stream has room.
    fn pull_program(&mut self, tcp: TcpId) {
        let Self { tcp: connections, chain, outputs, .. } = self;
        let parts = connections.programs.get_mut(&tcp).and_then(Program::parts);
        if let (Some((stream, splice)), Some(hop)) = (parts, chain.hops.last()) {
            splice.pull(&hop.tunnel, stream, outputs);
        }
    }

    /// Asks the programs for bytes whose streams have sent most of what they had. Returns whether there
    /// was one.
    pub(in crate::client) fn pull_tcp(&mut self) -> bool {
        let Self { tcp: connections, chain, outputs, .. } = self;
        let Some(hop) = chain.hops.last_mut() else { return false };
        let mut any = false;
        while let Some(stream) = hop.tunnel.poll_drained() {
            let tcp = connections.by_stream.get(&stream);
            let program = tcp.and_then(|tcp| connections.programs.get_mut(tcp));
            if let Some((_, splice)) = program.and_then(Program::parts) {
                splice.pull(&hop.tunnel, stream, outputs);
                any = true;
            }
        }
        any
    }

    /// Handles the answer to a request for a connection.
    pub(in crate::client) fn on_tcp_response(
        &mut self,
        now: Instant,
        stream: StreamId,
        head: &ResponseHead,
    ) {
        let connections = &mut self.tcp;
        let Some(&tcp) = connections.by_stream.get(&stream) else { return };
        let Some(program) = connections.programs.get_mut(&tcp) else { return };
        let State::Requested { splice, early, .. } = &mut program.state else { return };
        let is_capsules = splice.form() == Form::Capsules;
        if head.status.is_success() && is_capsules && !grants(head) {
            return self.settle_tcp(now, tcp, Outcome::Malformed(Code::H3_MESSAGE_ERROR));
        }
        if head.status.is_success() {
            splice.halt(false);
            let state = std::mem::replace(&mut program.state, State::Waiting);
            if let State::Requested { stream, splice, .. } = state {
                program.state = State::Open { stream, splice };
            }
            connections.is_form_known = true;
            connections.told.remove(&program.service);
            self.stats.tcp.opened += 1;
            self.pull_program(tcp);
            return self.on_tcp_stream(now, stream);
        }
        if is_capsules && !connections.is_form_known && lacks_form(head.status) {
            connections.form = Form::Classic;
            let early = std::mem::take(early);
            return self.repeat_tcp(tcp, stream, early);
        }
        let target = authority_of(&program.target);
        let Some(hop) = self.chain.hops.last_mut() else { return };
        let error = hop.refused(target, head);
        hop.end_tcp(stream, Code::H3_REQUEST_CANCELLED);
        self.fail_program(now, tcp, error);
    }

    /// Repeats a request in the classic form, because the proxy does not know the other.
    fn repeat_tcp(&mut self, tcp: TcpId, stream: StreamId, early: Vec<Bytes>) {
        let Self { tcp: connections, chain, .. } = self;
        connections.by_stream.remove(&stream);
        let (Some(hop), Some(program)) =
            (chain.hops.last_mut(), connections.programs.get_mut(&tcp))
        else {
            return;
        };
        hop.end_tcp(stream, Code::H3_REQUEST_CANCELLED);
        let state = std::mem::replace(&mut program.state, State::Waiting);
        let State::Requested { mut splice, .. } = state else { return };
        let Some(stream) = hop.request_tcp(&program.target, Form::Classic) else {
            // The bytes that were read cannot wait without a stream.
            return self.reset_program(tcp);
        };
        splice.repeat(Form::Classic, early, &mut hop.tunnel, stream);
        program.state = State::Requested { stream, splice, early: Vec::new() };
        connections.by_stream.insert(stream, tcp);
        connections.is_form_known = true; // there is no other form left
    }

    fn settle_tcp(&mut self, now: Instant, tcp: TcpId, outcome: Outcome) {
        let stream = self.tcp.programs.get_mut(&tcp).and_then(Program::parts).map(|(it, _)| it);
        let code = match outcome {
            Outcome::Open => return,
            Outcome::Finished => {
                self.stats.tcp.finished += 1;
                self.forget_program(now, tcp, Ok(()));
                return;
            }
            Outcome::Broken(error) => {
                let last = self.chain.hops.len().saturating_sub(1);
                return self.protocol_error(now, last, &error);
            }
            Outcome::Malformed(code) => code,
            Outcome::Cut(_) => Code::H3_REQUEST_CANCELLED,
        };
        if let (Some(stream), Some(hop)) = (stream, self.chain.hops.last_mut()) {
            hop.end_tcp(stream, code);
        }
        self.stats.tcp.aborted += 1;
        let reason = match outcome {
            Outcome::Cut(Some(status)) => explain(&status),
            Outcome::Malformed(_) => "the proxy's answer is malformed".to_owned(),
            _ => "the connection was reset".to_owned(),
        };
        let error = self.tcp_closed(tcp, reason);
        self.forget_program(now, tcp, Err(error));
    }

    /// Handles the end of a stream that the session has reset.
    pub(in crate::client) fn on_tcp_stream_failed(
        &mut self,
        now: Instant,
        stream: StreamId,
        code: Code,
    ) {
        let Some(&tcp) = self.tcp.by_stream.get(&stream) else { return };
        if let Some(hop) = self.chain.hops.last_mut() {
            hop.end_tcp(stream, code);
        }
        self.outputs.push_back(Output::Tcp(TcpOutput::Reset(tcp)));
        self.stats.tcp.aborted += 1;
        let error = self.tcp_closed(tcp, format!("its stream was reset ({code})"));
        self.forget_program(now, tcp, Err(error));
    }

    /// Handles a program's connection that ended with an error, such as a reset.
    fn on_program_failed(&mut self, now: Instant, tcp: TcpId, error: io::ErrorKind) {
        self.tcp.awaited.remove(&tcp);
        let parts = self.tcp.programs.get_mut(&tcp).and_then(Program::parts);
        if let (Some((stream, _)), Some(hop)) = (parts, self.chain.hops.last_mut()) {
            // RFC 9114 §4.4: "Correspondingly, if a proxy detects an error with the stream or the QUIC
            // connection, it MUST close the TCP connection."
            hop.end_tcp(stream, Code::H3_CONNECT_ERROR);
        }
        self.stats.tcp.reset += 1;
        let error = self.tcp_closed(tcp, format!("the program's connection ended: {error}"));
        self.forget_program(now, tcp, Err(error));
    }

    /// Refuses a program's connection, because its target cannot be reached.
    fn fail_program(&mut self, now: Instant, tcp: TcpId, error: ClientError) {
        self.stats.tcp.failed += 1;
        self.outputs.push_back(Output::Tcp(TcpOutput::Reset(tcp)));
        let Some(program) = self.tcp.programs.get(&tcp) else { return };
        let service = program.service;
        if self.tcp.told.get(&service) != Some(&error) {
            self.tcp.told.insert(service, error.clone());
            let listen = self.tcp.listen(service);
            if !listen.ip().is_unspecified() || listen.port() != 0 {
                let event = Event::FlowFailed { listen, error: error.clone() };
                self.outputs.push_back(Output::Event(event));
            }
        }
        self.forget_program(now, tcp, Err(error));
    }

    fn reset_program(&mut self, tcp: TcpId) {
        self.outputs.push_back(Output::Tcp(TcpOutput::Reset(tcp)));
        self.stats.tcp.aborted += 1;
        self.tcp.remove(tcp);
    }

    fn tcp_closed(&self, tcp: TcpId, reason: String) -> ClientError {
        let peer = self.chain.hops.last().map(|hop| hop.peer.settings.authority.clone());
        let target = self.tcp.programs.get(&tcp).map(|program| authority_of(&program.target));
        let (peer, target) = (peer.unwrap_or_default(), target.unwrap_or_default());
        ClientError::FlowClosed { peer, target, reason }
    }

    /// Forgets a program's connection. The client ends with that of the standard input.
    fn forget_program(&mut self, now: Instant, tcp: TcpId, result: Result<(), ClientError>) {
        let Some(program) = self.tcp.remove(tcp) else { return };
        if matches!(self.tcp.services.get(program.service), Some(TcpService::Stdio { .. })) {
            self.end(now, result);
        }
    }

    /// Resets all programs whose streams have ended with the tunnel.
    pub(in crate::client) fn end_tcp_streams(&mut self, now: Instant) {
        self.tcp.is_form_known = false;
        self.tcp.form = super::FIRST_FORM;
        for (_, tcp) in std::mem::take(&mut self.tcp.by_stream) {
            self.outputs.push_back(Output::Tcp(TcpOutput::Reset(tcp)));
            self.stats.tcp.aborted += 1;
            let error = self.tcp_closed(tcp, "the tunnel ended".to_owned());
            self.forget_program(now, tcp, Err(error));
        }
    }

    /// Resets all programs, because the client ends.
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
