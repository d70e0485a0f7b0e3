use std::{
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::{Duration, Instant},
};

use tandem_node::{
    Input,
    node::SocketKind,
    tcp::{ListenerId, TcpId, TcpInput, TcpOutput},
};
use tandem_units::ByteCount;

use super::{World, run::Occurrence};
use crate::{
    HostId,
    tcp::{BACKLOG, CONNECT_TIMEOUT, Departure, End, EndId, Flight, Segment, TcpSocket},
};

/// The address of the other end of the standard input and output.
const UNSPECIFIED: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// An entry of the world's agenda about a TCP connection.
pub(super) enum TcpOccurrence {
    /// A segment arrives.
    Arrival(Flight),
    /// There may be something to tell the process.
    News(EndId),
    /// The operating system gives up opening a connection, if it still tries.
    GiveUp(EndId),
}

/// Methods about TCP connections.
impl World {
    /// Bounds the bytes in one direction of a connection that the peer's process has not read yet,
    /// on their way and in buffers, to this number. It is 256 kB unless this is called. A bound below
    /// rate times round-trip time slows connections down.
    ///
    /// # Panics
    /// It panics if the bound is zero.
    pub fn set_tcp_buffer(&mut self, bound: ByteCount) {
        assert!(bound > ByteCount::ZERO, "a buffer must have room for a byte");
        self.tcp.buffer = usize::try_from(bound.get()).unwrap_or(usize::MAX);
    }

    /// Makes the standard input and output of the processes on a host a connection to the program that listens at this
    /// address. It stands for the program that has started the process, with a socket pair between them, and should be
    /// on a host without a delay to this one. Without this call, a process has no standard input.
    pub fn set_stdio(&mut self, host: impl Into<HostId>, starter: SocketAddr) {
        self.host_mut(host.into()).stdio = Some(starter);
    }

    /// The number of TCP connections that the process on a host has open, or is opening.
    pub fn tcp_connections(&self, host: impl Into<HostId>) -> usize {
        let host = host.into();
        self.tcp.names.keys().filter(|(owner, _)| *owner == host).count()
    }
}

/// What processes ask.
impl World {
    pub(super) fn perform_tcp(&mut self, host: HostId, output: TcpOutput) {
        match output {
            TcpOutput::Listen { listener, address } => self.listen(host, listener, address),
            TcpOutput::Accept { listener, tcp } => {
                let socket = self.tcp.listeners.get_mut(&(host, listener));
                let socket = socket.unwrap_or_else(|| panic!("{listener:?} does not listen"));
                let earlier = socket.wanted.replace(tcp);
                assert_eq!(earlier, None, "{listener:?} accepts twice at a time");
                self.accept(host, listener);
            }
            TcpOutput::OpenStdio(tcp) => {
                let Some(starter) = self.host(host).stdio else {
                    let result = Err(ErrorKind::Unsupported.into());
                    let input = Input::Tcp(TcpInput::Opened { tcp, result });
                    return self.answer_after(Duration::ZERO, host, input);
                };
                self.open_connection(host, tcp, (starter, UNSPECIFIED));
            }
            TcpOutput::Connect { tcp, peer, .. } => self.open_connection(host, tcp, (peer, peer)),
            TcpOutput::Read { tcp, max } => self.change(host, tcp, |end| end.ask_to_read(max)),
            TcpOutput::Write { tcp, data } => self.change(host, tcp, |end| end.write(data)),
            TcpOutput::Finish(tcp) => self.change(host, tcp, End::finish),
            TcpOutput::Close(tcp) => self.leave(host, tcp, End::close),
            TcpOutput::Reset(tcp) => self.reset(host, tcp),
            // Hosts have no users.
            TcpOutput::FindUdpPorts(tcp) => {
                let result = Err(ErrorKind::Unsupported);
                let input = Input::Tcp(TcpInput::UdpPorts { tcp, result });
                self.answer_after(Duration::ZERO, host, input);
            }
        }
    }

    fn listen(&mut self, host: HostId, listener: ListenerId, address: SocketAddr) {
        let sockets = &mut self.host_mut(host).tcp_sockets;
        let result = sockets.open(TcpSocket::Listener(listener), SocketKind::Listen(address));
        if result.is_ok() {
            self.tcp.listeners.entry((host, listener)).or_default();
        }
        let result = result.map_err(Into::into);
        let input = Input::Tcp(TcpInput::Listening { listener, result });
        self.answer_after(Duration::ZERO, host, input);
    }

    /// Gives the process the next connection of a listener, if it wants one and there is one.
    fn accept(&mut self, host: HostId, listener: ListenerId) {
        let Some(socket) = self.tcp.listeners.get_mut(&(host, listener)) else { return };
        if socket.wanted.is_none() {
            return;
        }
        let Some(id) = socket.backlog.pop_front() else { return };
        let Some(name) = socket.wanted.take() else { return };
        self.tcp.name(host, name, id);
        if let Some(end) = self.tcp.ends.get_mut(&id) {
            end.accept(name);
        }
        self.schedule_news(id);
    }

    /// Opens a connection. `shown`: the address of the peer that the process is told.
    fn open_connection(
        &mut self,
        host: HostId,
        tcp: TcpId,
        (destination, shown): (SocketAddr, SocketAddr),
    ) {
        let id = self.tcp.next_end();
        let sockets = &mut self.host_mut(host).tcp_sockets;
        let source = sockets.open(TcpSocket::Connection(id), SocketKind::ForPeer(destination));
        let source = source.map_err(|error| match error {
            ErrorKind::AddrInUse => ErrorKind::QuotaExceeded,
            other => other,
        });
        let route = source.and_then(|source| {
            let to = self.network.owner(destination.ip());
            Ok((source, to.ok_or(ErrorKind::HostUnreachable)?))
        });
        let to = route.map_or(host, |(_, to)| to);
        self.tcp.name(host, tcp, id);
        let mut end = End::opening((host, to), shown, Some(tcp));
        match route {
            Ok((source, _)) => {
                self.tcp.ends.insert(id, end);
                self.send_segment(id, Segment::Syn { source, destination });
                let give_up = Occurrence::Tcp(TcpOccurrence::GiveUp(id));
                self.agenda.push(self.now + CONNECT_TIMEOUT, give_up);
            }
            Err(error) => {
                end.fail(error);
                self.tcp.ends.insert(id, end);
                self.schedule_news(id);
            }
        }
    }

    /// Changes an end of a process. It has no effect if the connection has failed, because the
    /// process may not know that yet.
    fn change(&mut self, host: HostId, tcp: TcpId, change: impl FnOnce(&mut End)) {
        if let Some((id, end)) = self.tcp.named(host, tcp) {
            change(end);
            self.proceed(id);
        }
    }

    /// Takes an end away from its process, which gets no more inputs about it.
    fn leave(&mut self, host: HostId, tcp: TcpId, change: impl FnOnce(&mut End)) {
        self.change(host, tcp, change);
        self.tcp.names.remove(&(host, tcp));
        self.host_mut(host).forget_tcp(tcp);
    }

    fn reset(&mut self, host: HostId, tcp: TcpId) {
        if let Some((id, end)) = self.tcp.named(host, tcp) {
            if !end.is_opening() {
                self.send_segment(id, Segment::Rst);
            }
            self.forget(id);
        }
        self.leave(host, tcp, |_| ());
    }

    /// The process of a host has ended.
    pub(super) fn end_tcp(&mut self, host: HostId) {
        self.tcp.names.retain(|(owner, _), _| *owner != host);
        let mut unaccepted = Vec::new();
        self.tcp.listeners.retain(|(owner, _), listener| {
            if *owner == host {
                unaccepted.extend(listener.backlog.drain(..));
            }
            *owner != host
        });
        for id in unaccepted {
            self.send_segment(id, Segment::Rst);
            self.forget(id);
        }
        for id in self.tcp.of_host(host) {
            if let Some(end) = self.tcp.ends.get_mut(&id) {
                end.abandon();
            }
            self.proceed(id);
        }
    }
}

/// What the operating systems do.
impl World {
    pub(super) fn meet_tcp(&mut self, what: TcpOccurrence) {
        match what {
            TcpOccurrence::Arrival(flight) => {
                let at = self.elapsed();
                self.trace.record_tcp(at, flight.between, &flight.segment);
                self.arrive(flight);
            }
            TcpOccurrence::News(id) => self.tell(id),
            TcpOccurrence::GiveUp(id) => {
                if let Some(end) = self.tcp.ends.get_mut(&id).filter(|end| end.is_opening()) {
                    end.fail(ErrorKind::TimedOut);
                    self.tell(id);
                }
            }
        }
    }

    fn arrive(&mut self, Flight { between: (from, to), to: id, segment }: Flight) {
        if let Segment::Syn { source, destination } = segment {
            return self.arrive_syn((from, to), id, source, destination);
        }
        let Some(end) = self.tcp.ends.get_mut(&id) else {
            if matches!(segment, Segment::SynAck | Segment::Data(_)) {
                self.send_from((to, from), id, Segment::Rst);
            }
            return;
        };
        match segment {
            Segment::SynAck => end.opened(),
            Segment::Data(data) => {
                if !end.receive(data) {
                    self.send_segment(id, Segment::Rst);
                    self.forget(id);
                }
            }
            Segment::Credit(bytes) => end.credit(bytes),
            Segment::Fin => end.receive_fin(),
            Segment::Rst if end.is_opening() => end.fail(ErrorKind::ConnectionRefused),
            Segment::Rst => end.fail(ErrorKind::ConnectionReset),
            Segment::Syn { .. } => {}
        }
        self.proceed(id);
    }

    fn arrive_syn(
        &mut self,
        (from, to): (HostId, HostId),
        id: EndId,
        source: SocketAddr,
        destination: SocketAddr,
    ) {
        let bound = self.host(to).tcp_sockets.bound_to(destination);
        let Some((TcpSocket::Listener(listener), _)) = bound else {
            return self.send_from((to, from), id, Segment::Rst);
        };
        let Some(socket) = self.tcp.listeners.get_mut(&(to, listener)) else { return };
        if socket.backlog.len() >= BACKLOG {
            return;
        }
        socket.backlog.push_back(id);
        self.tcp.ends.insert(id, End::accepting((to, from), source));
        self.send_segment(id, Segment::SynAck);
        self.accept(to, listener);
    }

    /// Sends what an end can send after a change, and sees to it that the process learns of the
    /// change.
    fn proceed(&mut self, id: EndId) {
        let Some(end) = self.tcp.ends.get_mut(&id) else { return };
        let Departure { segments, is_last } = end.depart(self.tcp.buffer);
        for segment in segments {
            self.send_segment(id, segment);
        }
        if is_last {
            self.forget(id);
        } else {
            self.schedule_news(id);
        }
    }

    fn send_segment(&mut self, id: EndId, segment: Segment) {
        let Some(end) = self.tcp.ends.get_mut(&id) else { return };
        let between = end.between();
        let at = end.arrival(self.network.tcp_arrival(self.now, between));
        self.push_flight(at, Flight { between, to: id.peer(), segment });
    }

    /// Sends a segment for an end that does not exist.
    fn send_from(&mut self, between: (HostId, HostId), id: EndId, segment: Segment) {
        let at = self.network.tcp_arrival(self.now, between);
        self.push_flight(at, Flight { between, to: id.peer(), segment });
    }

    fn push_flight(&mut self, at: Instant, flight: Flight) {
        self.agenda.push(at, Occurrence::Tcp(TcpOccurrence::Arrival(flight)));
    }

    fn schedule_news(&mut self, id: EndId) {
        if let Some(end) = self.tcp.ends.get_mut(&id).filter(|end| !end.is_scheduled) {
            end.is_scheduled = true;
            self.agenda.push(self.now, Occurrence::Tcp(TcpOccurrence::News(id)));
        }
    }

    /// Tells a process everything that there is to tell about a connection.
    fn tell(&mut self, id: EndId) {
        if let Some(end) = self.tcp.ends.get_mut(&id) {
            end.is_scheduled = false;
        }
        while let Some(end) = self.tcp.ends.get_mut(&id)
            && let Some(input) = end.next_input()
        {
            let host = end.host();
            match &input {
                TcpInput::Read { data, .. } if !data.is_empty() => {
                    let read = Segment::Credit(data.len());
                    self.send_segment(id, read);
                }
                TcpInput::Failed { tcp, .. } | TcpInput::Opened { tcp, result: Err(_) } => {
                    let tcp = *tcp;
                    self.forget(id);
                    self.tcp.names.remove(&(host, tcp));
                }
                _ => {}
            }
            self.feed(host, Input::Tcp(input));
        }
    }

    /// Removes an end. Its process must have forgotten its name.
    fn forget(&mut self, id: EndId) {
        if let Some(end) = self.tcp.ends.remove(&id) {
            let sockets = &mut self.host_mut(end.host()).tcp_sockets;
            sockets.close(TcpSocket::Connection(id));
        }
    }
}

#[cfg(test)]
mod tests;
