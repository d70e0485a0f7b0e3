//! TCP connections of local programs, each of which gets a request stream through the tunnel.

mod associate;
mod owners;
mod programs;
mod relay;
mod speak;

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;

use self::associate::Associations;
pub(super) use self::relay::authority_of;
use super::{
    Client, FlowConfig, Work,
    local::{Local, Password},
};
use crate::{
    error::ClientError,
    guesses::Guesses,
    limits::Limits,
    quic::{LossDetection, StreamId},
    seldom::Seldom,
    tcp::{Form, ListenerId, Splice, TcpId},
};

/// A way in which local programs give TCP connections to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpService {
    /// Every connection to a local address goes to one target.
    Forward {
        /// The local address.
        listen: SocketAddr,
        /// The target, and how urgent its flows are.
        target: FlowConfig,
    },
    /// A proxy for local programs, which speaks SOCKS5 (RFC 1928) and HTTP/1.1 (RFC 9110 §9.3.6 and
    /// RFC 9112 §3.2.2).
    Proxy {
        /// The local address.
        listen: SocketAddr,
        /// What programs have to show. `None`: nothing.
        password: Option<Arc<Password>>,
    },
    /// The standard input and output of the process are one connection to a target. The client ends
    /// with it.
    Stdio {
        /// The target, and how urgent its flow is.
        target: FlowConfig,
    },
}

/// The form in which a hop takes requests for TCP connections.
const FIRST_FORM: Form = Form::Capsules;

/// The most bytes of a program that are kept while a hop may still refuse the form of the request, so
/// that they can be sent again in another form.
const EARLY_MAX: usize = 64 * 1024;

/// The connections of local programs.
pub(super) struct Connections {
    services: Vec<TcpService>,
    /// Whether the listening sockets and the standard input were requested.
    has_begun: bool,
    /// The service of each listening socket.
    listeners: BTreeMap<ListenerId, usize>,
    /// Connections that are awaited, and the listener or the service of each.
    awaited: BTreeMap<TcpId, Awaited>,
    programs: BTreeMap<TcpId, Program>,
    /// Programs that had not asked for anything when they came, and until when they have to, in the order
    /// of these times.
    silent: VecDeque<(Instant, TcpId)>,
    by_stream: BTreeMap<StreamId, TcpId>,
    associations: Associations,
    next_id: u64,
    /// The form that the last hop takes, and whether it has granted a request in this form.
    form: Form,
    is_form_known: bool,
    /// The hosts whose programs have shown wrong passwords.
    guesses: Guesses,
    /// The error of which the embedding program was told last, by service.
    told: BTreeMap<usize, ClientError>,
    /// Limits the warnings about programs that break a protocol.
    warning: Seldom,
}

#[derive(Clone, Copy, Debug)]
struct Awaited {
    service: usize,
    listener: Option<ListenerId>,
}

/// A connection of a local program.
#[derive(Debug)]
struct Program {
    service: usize,
    /// The host on which the program runs.
    host: IpAddr,
    splice: Splice,
    /// The protocol that the program speaks with this client, until all bytes pass unchanged.
    local: Option<Box<Local>>,
    /// Whether the program has asked for nothing yet in this protocol.
    is_silent: bool,
    /// The connection to a target, once one is wanted.
    upstream: Option<Upstream>,
}

/// A request for a connection to a target.
#[derive(Debug)]
struct Upstream {
    target: FlowConfig,
    /// `None` until the tunnel is up and the proxy allows one more stream.
    stream: Option<StreamId>,
    is_granted: bool,
    /// The bytes that were sent before the grant, in case the request has to be repeated in another
    /// form, or that wait for the stream. A FIN is an empty piece.
    early: Vec<Bytes>,
}

impl Upstream {
    const fn new(target: FlowConfig) -> Self {
        Self { target, stream: None, is_granted: false, early: Vec::new() }
    }
}

impl Program {
    fn stream(&self) -> Option<StreamId> {
        self.upstream.as_ref()?.stream
    }
}

impl Connections {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            services: Vec::new(),
            has_begun: false,
            listeners: BTreeMap::new(),
            awaited: BTreeMap::new(),
            programs: BTreeMap::new(),
            silent: VecDeque::new(),
            by_stream: BTreeMap::new(),
            associations: Associations::default(),
            next_id: 0,
            form: FIRST_FORM,
            is_form_known: false,
            guesses: Guesses::new(limits),
            told: BTreeMap::new(),
            warning: Seldom::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Whether a program has a connection.
    pub(super) fn has_connections(&self) -> bool {
        !self.programs.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.programs.len()
    }

    /// Whether a request stream carries a TCP connection.
    pub(super) fn has(&self, stream: StreamId) -> bool {
        self.by_stream.contains_key(&stream)
    }

    /// When the next connection must be looked at that had asked for nothing.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.silent.front().map(|(until, _)| *until)
    }

    fn next_tcp(&mut self) -> TcpId {
        self.next_id += 1;
        TcpId(self.next_id)
    }

    /// Whether a program may be another guess of a host that has shown too many wrong passwords. One that
    /// has asked for a target has shown the right one.
    fn is_guesser(&self, now: Instant, program: &Program) -> bool {
        let service = self.services.get(program.service);
        let has_password = matches!(service, Some(TcpService::Proxy { password: Some(_), .. }));
        has_password && program.is_silent && self.guesses.wait(now, program.host).is_some()
    }

    /// The address of a service's listener. The standard input and output have none.
    fn listen(&self, service: usize) -> Option<SocketAddr> {
        match self.services.get(service)? {
            TcpService::Forward { listen, .. } | TcpService::Proxy { listen, .. } => Some(*listen),
            TcpService::Stdio { .. } => None,
        }
    }

    /// Forgets a program and its request stream.
    fn remove(&mut self, tcp: TcpId) -> Option<Program> {
        let program = self.programs.remove(&tcp)?;
        if let Some(stream) = program.stream() {
            self.by_stream.remove(&stream);
        }
        Some(program)
    }
}

impl Client {
    /// Adds a way in which local programs give TCP connections to this client, before it is first
    /// polled. The client must have the task [`Task::Forward`](super::Task::Forward).
    ///
    /// A client that carries TCP only waits longer before a packet counts as lost
    /// ([`LossDetection::BehindRepair`]), so that reordering costs nothing. For UDP payloads that are
    /// repaired the wait would be a loss of time.
    pub fn add_tcp_service(&mut self, service: TcpService) {
        self.tcp.services.push(service);
        let has_udp = matches!(&self.work, Work::Forward(forward) if forward.has_listeners());
        for hop in self.chain.hops.iter_mut().filter(|_| !has_udp) {
            hop.peer.settings.transport.loss_detection = LossDetection::BehindRepair;
        }
    }
}

#[cfg(test)]
mod tests;
