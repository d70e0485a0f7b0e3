use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use tandem_node::{
    Input, OsError, Output, buffers,
    node::{Progress, QueryId, Received, ResolveError, ServiceEndpoint, SocketId, Transmit},
    upstream::{UpstreamError, UpstreamInput, UpstreamOutput},
};

use super::{NameAnswer, World, run::Occurrence};
use crate::{
    HostId,
    network::{Content, Datagram},
    trace::PathEnd,
};

/// One of the resolver's answers to a query.
struct Answer {
    delay: Duration,
    result: Result<Vec<IpAddr>, ResolveError>,
    progress: Progress,
}

/// The answers in which a resolver gives addresses that it finds one after another. Each has those before it.
fn in_parts(parts: &[(Duration, Vec<IpAddr>)]) -> Vec<Answer> {
    let mut known = Vec::new();
    let mut answers = Vec::new();
    for (number, (delay, found)) in (1..).zip(parts) {
        known.extend_from_slice(found);
        let progress = if number == parts.len() { Progress::Complete } else { Progress::Partial };
        let is_empty = known.is_empty();
        let result = if is_empty { Err(ResolveError::NotFound) } else { Ok(known.clone()) };
        answers.push(Answer { delay: *delay, result, progress });
    }
    answers
}

/// The functions of an operating system.
impl World {
    pub(super) fn perform(&mut self, id: HostId, output: Output, buf: &[u8]) {
        let elapsed = self.elapsed();
        let host = self.host_mut(id);
        let answer = match output {
            Output::Transmit { socket, transmit } => {
                self.transmit(id, socket, transmit, buf);
                return;
            }
            Output::Resolve { query, host } => {
                self.resolve(id, query, &host);
                return;
            }
            Output::ResolveService { query, host, port } => {
                self.resolve_service(id, query, &host, port);
                return;
            }
            Output::OpenSocket { socket, kind } => {
                let result = host.sockets.open(socket, kind).map_err(OsError::from);
                Input::SocketOpened { socket, result }
            }
            Output::CheckPassword { check, password } => {
                Input::PasswordChecked { check, is_right: Some(password.is_right()) }
            }
            Output::CloseSocket(socket) => {
                host.sockets.close(socket);
                return;
            }
            Output::OpenFile { file, path } => {
                Input::FileOpened { file, result: host.open_file(file, &path) }
            }
            Output::ReadFile { file, offset, len } => {
                Input::FileChunk { file, result: host.read_file(file, offset, len) }
            }
            Output::CloseFile(file) => {
                host.close_file(file);
                return;
            }
            Output::BodyChunk { offset, data } => {
                let bytes = data.len() as u64;
                host.body.take(offset, data);
                Input::BodyCredit { bytes }
            }
            Output::Event(event) => {
                host.events.push((elapsed, event));
                return;
            }
            Output::PacketTooBig { peer, len, fits, .. } => {
                host.too_big.push((peer, len, fits));
                return;
            }
            Output::Tcp(output) => {
                self.perform_tcp(id, output);
                return;
            }
            Output::Upstream(UpstreamOutput::Request { exchange, .. }) => {
                let error = UpstreamError::Unresolved; // there is no such server in a world
                Input::Upstream(UpstreamInput::Failed { exchange, error })
            }
            // Tests tell nodes of the changes that they make.
            Output::Upstream(_) | Output::WatchNetwork | Output::Wait(_) => return,
        };
        self.answer_after(Duration::ZERO, id, answer);
    }

    pub(super) fn answer_after(&mut self, delay: Duration, host: HostId, input: Input) {
        let incarnation = self.host(host).incarnation;
        self.agenda.push(self.now + delay, Occurrence::Answer { host, incarnation, input });
    }

    fn resolve(&mut self, id: HostId, query: QueryId, name: &str) {
        for Answer { delay, result, progress } in self.addresses(name) {
            self.answer_after(delay, id, Input::Resolved { query, result, progress });
        }
    }

    fn resolve_service(&mut self, id: HostId, query: QueryId, name: &str, port: u16) {
        let endpoint = |addresses: Vec<IpAddr>| {
            let addresses = addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
            vec![ServiceEndpoint { priority: 0, addresses, ech: None }]
        };
        if let Some(endpoints) = self.services.get(&name.to_ascii_lowercase()) {
            let (result, progress) = (Ok(endpoints.clone()), Progress::Complete);
            let input = Input::ServiceResolved { query, result, progress };
            return self.answer_after(Duration::ZERO, id, input);
        }
        for Answer { delay, result, progress } in self.addresses(name) {
            let result = result.map(endpoint);
            self.answer_after(delay, id, Input::ServiceResolved { query, result, progress });
        }
    }

    /// The resolver's answers about a name. There are none if it never answers.
    fn addresses(&self, name: &str) -> Vec<Answer> {
        let complete = |delay, result| vec![Answer { delay, result, progress: Progress::Complete }];
        match (self.names.get(&name.to_ascii_lowercase()), name.parse()) {
            (None, Ok(literal)) => complete(Duration::ZERO, Ok(vec![literal])),
            (None, Err(_)) => complete(Duration::ZERO, Err(ResolveError::NotFound)),
            (Some(NameAnswer::After(delay, result)), _) => complete(*delay, result.clone()),
            (Some(NameAnswer::Parts(parts)), _) => in_parts(parts),
            (Some(NameAnswer::Never), _) => Vec::new(),
        }
    }

    fn transmit(&mut self, id: HostId, socket: SocketId, transmit: Transmit, buf: &[u8]) {
        let host = self.host(id);
        let Some(open) = host.sockets.get(socket) else {
            panic!("{} sends from {socket:?}, which is not open", host.name);
        };
        let local = transmit.src_ip.map(|ip| SocketAddr::new(ip, open.local.port()));
        let source = host.sockets.source(local.unwrap_or(open.local), transmit.destination);
        let Some(source) = source.filter(|source| host.sockets.addresses().contains(&source.ip()))
        else {
            self.network.stats.unroutable += 1;
            if open.peer.is_some() {
                let error = ErrorKind::NetworkUnreachable;
                self.answer_after(Duration::ZERO, id, Input::SocketFailed { socket, error });
            }
            return;
        };
        let bytes = buf.get(..transmit.size).expect("the payload is in the buffer");
        let send = |world: &mut Self, payload: &[u8]| {
            let payload = Bytes::copy_from_slice(payload);
            world.delays.on_sent(world.now, id, &payload);
            let content = Content::Udp { ecn: transmit.ecn, payload };
            world.send(id, source, transmit.destination, content);
        };
        match transmit.segment_size {
            Some(segment_size) => {
                bytes.chunks(segment_size).for_each(|segment| send(self, segment));
            }
            None => send(self, bytes),
        }
    }

    fn send(&mut self, id: HostId, source: SocketAddr, destination: SocketAddr, content: Content) {
        let Some(packet) = self.network.packet(id, source, destination, content) else { return };
        self.record(PathEnd::Sent, &packet);
        if let Some(path) = self.network.send(self.now, packet) {
            self.schedule_path(path);
        }
    }

    pub(super) fn deliver(&mut self, datagram: Datagram) {
        let Datagram { to, source, destination, content, .. } = datagram;
        let sockets = &self.host(to).sockets;
        if !sockets.addresses().contains(&destination.ip()) {
            self.network.stats.unroutable += 1; // the host has moved to another network
            return;
        }
        let bound = sockets.bound_to(destination);
        match content {
            Content::Udp { ecn, payload } => {
                let bound = bound.filter(|(_, open)| open.peer.is_none_or(|peer| peer == source));
                let Some((socket, _)) = bound else {
                    self.network.stats.refused += 1;
                    self.send(to, destination, source, Content::PortUnreachable);
                    return;
                };
                self.delays.on_delivered(self.now, to, &payload);
                let payload = buffers::copy(&payload); // as the driver of real sockets does
                let local_ip = Some(destination.ip());
                let received = Received { socket, remote: source, local_ip, ecn, payload };
                self.feed(to, Input::Datagram(received));
            }
            Content::PortUnreachable => {
                // Only a connected socket receives this error.
                if let Some((socket, _)) = bound.filter(|(_, open)| open.peer == Some(source)) {
                    let error = ErrorKind::ConnectionRefused;
                    self.feed(to, Input::SocketFailed { socket, error });
                }
            }
        }
    }
}
