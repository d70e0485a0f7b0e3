//! TCP connections of local programs, each of which gets a request stream through the tunnel.

mod serve;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use bytes::Bytes;

pub(super) use self::serve::authority_of;
use super::{Client, FlowConfig};
use crate::{
    error::ClientError,
    quic::StreamId,
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
        credentials: Option<Credentials>,
    },
    /// The standard input and output of the process are one connection to a target. The client ends
    /// with it.
    Stdio {
        /// The target, and how urgent its flow is.
        target: FlowConfig,
    },
}

/// A user and a password, which programs show to the local proxy. They are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user's name: 1 to 255 bytes without a colon.
    pub user: String,
    /// The password: 1 to 255 bytes.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// The form in which a hop takes requests for TCP connections.
const FIRST_FORM: Form = Form::Capsules;

/// The most bytes of a program that are kept while a hop may still refuse the form of the request, so
/// that they can be sent again in another form.
const EARLY_MAX: usize = 64 * 1024;

/// The connections of local programs.
pub(super) struct Connections {
    services: Vec<TcpService>,
    /// The service of each listening socket. Empty until the sockets are requested.
    listeners: BTreeMap<ListenerId, usize>,
    /// Connections that are awaited, and the listener or the service of each.
    awaited: BTreeMap<TcpId, Awaited>,
    programs: BTreeMap<TcpId, Program>,
    by_stream: BTreeMap<StreamId, TcpId>,
    next_id: u64,
    /// The form that the last hop takes, and whether it has granted a request in this form.
    form: Form,
    is_form_known: bool,
    /// The error of which the embedding program was told last, by service.
    told: BTreeMap<usize, ClientError>,
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
    target: FlowConfig,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The request is sent as soon as the tunnel is up and the proxy allows one more stream.
    Waiting,
    /// The request was sent. Bytes of the program follow it at once.
    Requested {
        stream: StreamId,
        splice: Splice,
        /// The bytes that were sent, in case the request has to be repeated in another form. A FIN is
        /// an empty piece.
        early: Vec<Bytes>,
    },
    /// The proxy has granted the request.
    Open { stream: StreamId, splice: Splice },
}

impl Program {
    fn parts(&mut self) -> Option<(StreamId, &mut Splice)> {
        match &mut self.state {
            State::Waiting => None,
            State::Requested { stream, splice, .. } | State::Open { stream, splice } => {
                Some((*stream, splice))
            }
        }
    }
}

impl Connections {
    pub(super) const fn new() -> Self {
        Self {
            services: Vec::new(),
            listeners: BTreeMap::new(),
            awaited: BTreeMap::new(),
            programs: BTreeMap::new(),
            by_stream: BTreeMap::new(),
            next_id: 0,
            form: FIRST_FORM,
            is_form_known: false,
            told: BTreeMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.programs.len()
    }

    /// Whether a request stream carries a TCP connection.
    pub(super) fn has(&self, stream: StreamId) -> bool {
        self.by_stream.contains_key(&stream)
    }

    fn next_tcp(&mut self) -> TcpId {
        self.next_id += 1;
        TcpId(self.next_id)
    }

    /// The address of a service's listener, which is unspecified for the standard input and output.
    fn listen(&self, service: usize) -> SocketAddr {
        match self.services.get(service) {
            Some(TcpService::Forward { listen, .. } | TcpService::Proxy { listen, .. }) => *listen,
            Some(TcpService::Stdio { .. }) | None => UNSPECIFIED,
        }
    }

    /// Forgets a program and its request stream.
    fn remove(&mut self, tcp: TcpId) -> Option<Program> {
        let mut program = self.programs.remove(&tcp)?;
        if let Some((stream, _)) = program.parts() {
            self.by_stream.remove(&stream);
        }
        Some(program)
    }
}

/// An address that stands for none.
const UNSPECIFIED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Client {
    /// Adds a way in which local programs give TCP connections to this client, before it is first
    /// polled. The client must have the task [`Task::Forward`](super::Task::Forward).
    pub fn add_tcp_service(&mut self, service: TcpService) {
        self.tcp.services.push(service);
    }
}
