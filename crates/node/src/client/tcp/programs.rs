//! Connections of local programs: they come, ask for targets, and get request streams.

use std::{net::SocketAddr, time::Instant};

use super::{Awaited, Connections, Program, TcpService, Upstream};
use crate::{
    OsError,
    client::{Client, Life, local::Local},
    error::ClientError,
    node::{Event, Output},
    quic::StreamId,
    tcp::{Form, ListenerId, Socket, Splice, TcpId, TcpInput, TcpOutput, TunnelStream},
};

impl Client {
    /// Opens the listening sockets and the standard input. A second call has no effect.
    pub(in crate::client) fn listen_tcp(&mut self) {
        if std::mem::replace(&mut self.tcp.has_begun, true) {
            return;
        }
        for service in 0..self.tcp.services.len() {
            let output = if let Some(address) = self.tcp.listen(service) {
                let listener = ListenerId(service as u64);
                self.tcp.listeners.insert(listener, service);
                TcpOutput::Listen { listener, address }
            } else {
                let tcp = self.tcp.next_tcp();
                self.tcp.awaited.insert(tcp, Awaited { service, listener: None });
                TcpOutput::OpenStdio(tcp)
            };
            self.outputs.push_back(Output::Tcp(output));
        }
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
                    Err(error) => {
                        let Some(address) = self.tcp.listen(service) else { return };
                        self.end(now, Err(ClientError::Listen { address, error }));
                    }
                }
            }
            TcpInput::Opened { tcp, result } => self.on_program(now, tcp, result),
            TcpInput::Read { tcp, data } => self.on_program_read(now, tcp, data),
            TcpInput::Written { tcp, bytes } => {
                let Some(program) = self.tcp.programs.get_mut(&tcp) else { return };
                let takes_more = program.splice.socket.on_written(bytes);
                if let Some(stream) = program.stream().filter(|_| takes_more) {
                    self.on_tcp_stream(now, stream);
                }
            }
            TcpInput::Failed { tcp, error } => self.on_program_failed(now, tcp, error),
            TcpInput::UdpPorts { tcp, result } => self.on_udp_ports(now, tcp, result),
        }
    }

    /// Takes the next connection of a listener, unless there are as many as there may be.
    fn accept(&mut self, service: usize, listener: ListenerId) {
        let tcp = self.tcp.next_tcp();
        self.tcp.awaited.insert(tcp, Awaited { service, listener: Some(listener) });
        self.outputs.push_back(Output::Tcp(TcpOutput::Accept { listener, tcp }));
    }

    /// Handles a new connection of a local program.
    fn on_program(&mut self, now: Instant, tcp: TcpId, result: Result<SocketAddr, OsError>) {
        let Some(Awaited { service, listener }) = self.tcp.awaited.remove(&tcp) else { return };
        if let Some(listener) = listener {
            self.accept(service, listener);
        }
        let peer = match (result, listener) {
            (Ok(peer), _) => peer,
            (Err(kind), None) => return self.end(now, Err(ClientError::Stdio(kind))),
            (Err(_), Some(_)) => return, // a driver repeats a failed accept
        };
        if self.tcp.len() >= self.limits.local_flows || self.life != Life::Running {
            self.stats.tcp.failed += 1;
            return self.outputs.push_back(Output::Tcp(TcpOutput::Reset(tcp)));
        }
        let mut splice = Splice::new(Socket::new(tcp), TunnelStream::new(self.tcp.form));
        let (local, upstream) = match self.tcp.services.get(service) {
            Some(TcpService::Forward { target, .. } | TcpService::Stdio { target }) => {
                (None, Some(Upstream::new(target.clone())))
            }
            Some(TcpService::Proxy { password, .. }) => {
                splice.socket.read(&mut self.outputs);
                (Some(Box::new(Local::new(password.clone(), self.limits.local_proxy))), None)
            }
            None => return,
        };
        let is_silent = local.is_some();
        if is_silent {
            let Connections { silent, programs, .. } = &mut self.tcp;
            if silent.len() >= 2 * self.limits.local_flows {
                silent.retain(|(_, tcp)| programs.contains_key(tcp));
            }
            silent.push_back((now + self.limits.program_silence, tcp));
        }
        let program = Program { service, host: peer.ip(), splice, local, is_silent, upstream };
        self.tcp.programs.insert(tcp, program);
        self.request_tcp(tcp);
    }

    /// Closes the connections of programs that have asked for nothing in time.
    pub(in crate::client) fn end_silent_programs(&mut self, now: Instant) {
        while let Some(&(until, tcp)) = self.tcp.silent.front()
            && until <= now
        {
            self.tcp.silent.pop_front();
            let program = self.tcp.programs.get_mut(&tcp).filter(|it| it.is_silent);
            let Some(program) = program else {
                continue;
            };
            program.splice.socket.close(&mut self.outputs);
            self.forget_program(now, tcp, Ok(()));
        }
    }

    /// Requests the connections that wait, after the tunnel has come up or the proxy has allowed more
    /// streams.
    pub(in crate::client) fn request_waiting_tcp(&mut self) {
        let waiting = self.tcp.programs.iter().filter(|(_, program)| program.stream().is_none());
        for tcp in waiting.map(|(&tcp, _)| tcp).collect::<Vec<_>>() {
            if !self.request_tcp(tcp) {
                return;
            }
        }
    }

    /// Requests the connection that a program wants, if that is possible now. `false`: the proxy allows
    /// no more streams.
    pub(super) fn request_tcp(&mut self, tcp: TcpId) -> bool {
        let Self { tcp: connections, chain, outputs, .. } = self;
        let Some(hop) = chain.hops.last_mut().filter(|hop| hop.is_up) else { return false };
        let Some(program) = connections.programs.get_mut(&tcp) else { return true };
        let Some(upstream) = program.upstream.as_mut().filter(|it| it.stream.is_none()) else {
            return true;
        };
        let form = if hop.takes_extended_connect() { connections.form } else { Form::Classic };
        let Some(stream) = hop.request_tcp(&upstream.target, form) else { return false };
        upstream.stream = Some(stream);
        connections.by_stream.insert(stream, tcp);
        program.splice.stream = TunnelStream::new(form);
        let may_repeat = form == Form::Capsules && !connections.is_form_known;
        let early = std::mem::take(&mut upstream.early);
        for data in &early {
            program.splice.stream.send(data.clone(), &mut hop.tunnel, stream);
        }
        if may_repeat {
            upstream.early = early;
        }
        if program.local.is_none() {
            program.splice.pull(&hop.tunnel, stream, outputs);
        }
        true
    }

    /// Ends the connection that a program has to a target. Its stream is reset with this code.
    pub(super) fn disconnect(&mut self, tcp: TcpId, code: tandem_wire::Code) -> Option<StreamId> {
        let program = self.tcp.programs.get_mut(&tcp)?;
        let stream = program.upstream.take()?.stream?;
        self.tcp.by_stream.remove(&stream);
        if let Some(hop) = self.chain.hops.last_mut() {
            hop.end_tcp(stream, code);
        }
        Some(stream)
    }
}
