//! TCP connections of local programs, each of which gets a request stream through the tunnel: they come and end.
//! `requests` has what they ask for, `splice` moves their bytes, and `local` speaks with programs that use the proxy
//! port.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use tandem_wire::{Code, StrangerText};
use tracing::warn;

use super::{
    Context, Source,
    associate::{AssociateId, Associations},
    flows::Flows,
    requests::Asked,
    right::Right,
    told::Told,
};
use crate::{
    Cause, OsError,
    client::{
        FlowConfig,
        chain::Request,
        local::{Local, Password, Refusal},
    },
    error::ClientError,
    guesses::Guesses,
    impossible::impossible,
    limits::Limits,
    node::{Event, Output, SocketId},
    quic::earliest,
    seldom::Seldom,
    service::Service,
    tcp::{
        Form, ListenerId, Socket, Splice, TcpAddresses, TcpId, TcpInput, TcpOutput, TunnelStream,
    },
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

/// The TCP connections of local programs.
pub(super) struct Tcp {
    pub(super) services: Vec<TcpService>,
    /// Whether the standard input was requested.
    has_stdio: bool,
    /// What is known of the right to use the proxy.
    pub(super) right: Right,
    /// The service of each listening socket.
    listeners: BTreeMap<ListenerId, usize>,
    /// Connections that are awaited, and the listener or the service of each.
    awaited: BTreeMap<TcpId, Awaited>,
    pub(super) programs: BTreeMap<TcpId, Program>,
    /// Programs that had not asked for anything when they came, and until when they have to, in the order
    /// of these times.
    silent: VecDeque<(Instant, TcpId)>,
    /// When to look at the requests of connections that have not been answered.
    pub(super) unanswered: BTreeSet<(Instant, TcpId)>,
    pub(super) associations: Associations,
    next_id: u64,
    /// The form that the last hop takes, and whether it has granted a request in this form.
    pub(super) form: Form,
    pub(super) is_form_known: bool,
    /// The hosts whose programs have shown wrong passwords.
    pub(super) guesses: Guesses,
    /// What the embedding program was told, by service.
    pub(super) told: BTreeMap<usize, Told>,
    /// Limits the warnings about programs that break a protocol.
    pub(super) warning: Seldom,
    /// Limits the warnings that there are too many connections.
    full: Seldom,
}

#[derive(Clone, Copy, Debug)]
struct Awaited {
    service: usize,
    listener: Option<ListenerId>,
}

/// A connection of a local program. Its flow exists from when it wants a target.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) service: usize,
    /// The host on which the program runs.
    pub(super) host: IpAddr,
    /// The address of this host at which the program has connected.
    here: Option<IpAddr>,
    pub(super) splice: Splice,
    /// The protocol that the program speaks with this client, until all bytes pass unchanged.
    pub(super) local: Option<Box<Local>>,
    /// Whether the program has asked for nothing yet in this protocol.
    pub(super) is_silent: bool,
    /// The request for the target, until the proxy has granted it.
    pub(super) asked: Option<Asked>,
}

impl Tcp {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            services: Vec::new(),
            has_stdio: false,
            right: Right::default(),
            listeners: BTreeMap::new(),
            awaited: BTreeMap::new(),
            programs: BTreeMap::new(),
            silent: VecDeque::new(),
            unanswered: BTreeSet::new(),
            associations: Associations::default(),
            next_id: 0,
            form: FIRST_FORM,
            is_form_known: false,
            guesses: Guesses::new(limits),
            told: BTreeMap::new(),
            warning: Seldom::default(),
            full: Seldom::default(),
        }
    }

    pub(super) fn add_service(&mut self, service: TcpService) {
        self.services.push(service);
    }

    pub(super) const fn has_services(&self) -> bool {
        !self.services.is_empty()
    }

    /// The number of connections of programs.
    pub(super) fn len(&self) -> usize {
        self.programs.len()
    }

    /// When the next connection must be looked at that had asked for nothing, or was not answered.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let silent = self.silent.front().map(|(until, _)| *until);
        earliest(silent, self.unanswered.first().map(|(at, _)| *at))
    }

    fn next_tcp(&mut self) -> TcpId {
        self.next_id += 1;
        TcpId(self.next_id)
    }

    /// The address of a service's listener. The standard input and output have none.
    pub(super) fn listen_address(&self, service: usize) -> Option<SocketAddr> {
        match self.services.get(service)? {
            TcpService::Forward { listen, .. } | TcpService::Proxy { listen, .. } => Some(*listen),
            TcpService::Stdio { .. } => None,
        }
    }

    /// Opens the listening sockets.
    pub(super) fn listen(&mut self, cx: &mut Context<'_>) {
        for service in 0..self.services.len() {
            if let Some(address) = self.listen_address(service) {
                let listener = ListenerId(service as u64);
                self.listeners.insert(listener, service);
                cx.outputs.push_back(Output::Tcp(TcpOutput::Listen { listener, address }));
            }
        }
    }

    /// Opens the standard input, if it is a connection. A second call has no effect.
    pub(super) fn open_stdio(&mut self, cx: &mut Context<'_>) {
        if std::mem::replace(&mut self.has_stdio, true) {
            return;
        }
        for service in 0..self.services.len() {
            if self.listen_address(service).is_none() {
                let tcp = self.next_tcp();
                self.awaited.insert(tcp, Awaited { service, listener: None });
                cx.outputs.push_back(Output::Tcp(TcpOutput::OpenStdio(tcp)));
            }
        }
    }

    /// Handles an input about a TCP connection.
    pub(super) fn on_input(&mut self, input: TcpInput, flows: &mut Flows, cx: &mut Context<'_>) {
        let Some(input) = self.take_direct(input, flows, cx) else { return };
        match input {
            TcpInput::Listening { listener, result } => self.on_listening(listener, result, cx),
            TcpInput::Opened { tcp, result } => self.on_program(tcp, result, flows, cx),
            TcpInput::Read { tcp, data } => self.from_program(tcp, data, flows, cx),
            TcpInput::Written { tcp, bytes } => self.on_written(tcp, bytes, flows, cx),
            TcpInput::Failed { tcp, error } => self.on_program_failed(tcp, error, flows, cx),
            TcpInput::UdpPorts { tcp, result } => {
                self.associations.on_udp_ports(tcp, result, flows, cx);
            }
        }
    }

    fn on_listening(
        &mut self,
        listener: ListenerId,
        result: Result<SocketAddr, OsError>,
        cx: &mut Context<'_>,
    ) {
        let Some(&service) = self.listeners.get(&listener) else { return }; // of a wrong driver
        match (result, self.listen_address(service)) {
            (Ok(local), _) => {
                cx.tell(Event::Listening(local));
                self.accept(service, listener, cx);
            }
            (Err(error), Some(address)) => cx.end(Err(ClientError::Listen { address, error })),
            (Err(_), None) => impossible("each listener is of a service with an address"),
        }
    }

    /// Takes the next connection of a listener, unless there are as many as there may be.
    fn accept(&mut self, service: usize, listener: ListenerId, cx: &mut Context<'_>) {
        let tcp = self.next_tcp();
        self.awaited.insert(tcp, Awaited { service, listener: Some(listener) });
        cx.outputs.push_back(Output::Tcp(TcpOutput::Accept { listener, tcp }));
    }

    /// Handles a new connection of a local program.
    fn on_program(
        &mut self,
        tcp: TcpId,
        result: Result<TcpAddresses, OsError>,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        // The driver may also have said that the connection has failed.
        let Some(Awaited { service, listener }) = self.awaited.remove(&tcp) else { return };
        if let Some(listener) = listener {
            self.accept(service, listener, cx);
        }
        let TcpAddresses { peer, local: here } = match (result, listener) {
            (Ok(addresses), _) => addresses,
            (Err(kind), None) => return cx.end(Err(ClientError::Stdio(kind))),
            (Err(_), Some(_)) => return, // a driver repeats a failed accept
        };
        if self.len() >= cx.limits.local_connections || !cx.is_running {
            cx.stats.tcp.failed += 1;
            if let Some(left_out) = self.full.due(cx.now).filter(|_| cx.is_running) {
                let most = cx.limits.local_connections;
                warn!(most, left_out, "a program's TCP connection is reset: there are too many");
            }
            return cx.outputs.push_back(Output::Tcp(TcpOutput::Reset(tcp)));
        }
        let mut splice = Splice::new(Socket::new(tcp), TunnelStream::new(self.form));
        let local = match self.services.get(service) {
            Some(TcpService::Forward { target, .. } | TcpService::Stdio { target }) => {
                let request = Request::new(Service::Tcp(self.form), target.clone());
                flows.insert(Source::Tcp(tcp), request);
                None
            }
            Some(TcpService::Proxy { password, .. }) => {
                splice.socket.read(cx.outputs);
                Some(Box::new(Local::new(password.clone(), cx.limits.local_proxy)))
            }
            None => return impossible("each connection is of a service"),
        };
        let is_silent = local.is_some();
        let host = peer.ip();
        let program = Program { service, host, here, splice, local, is_silent, asked: None };
        self.programs.insert(tcp, program);
        if is_silent {
            self.expect_words(tcp, cx);
        } else {
            self.ask(tcp, flows, cx);
        }
    }

    /// Gives a program some time to ask for something.
    fn expect_words(&mut self, tcp: TcpId, cx: &Context<'_>) {
        let Self { silent, programs, .. } = self;
        if silent.len() >= 2 * cx.limits.local_connections {
            silent.retain(|(_, tcp)| programs.contains_key(tcp));
        }
        silent.push_back((cx.now + cx.limits.program_silence, tcp));
    }

    /// Closes the connections of programs that have asked for nothing in time.
    pub(super) fn end_silent(&mut self, flows: &mut Flows, cx: &mut Context<'_>) {
        while let Some(&(until, tcp)) = self.silent.front()
            && until <= cx.now
        {
            self.silent.pop_front();
            let program = self.programs.get_mut(&tcp).filter(|it| it.is_silent);
            let Some(program) = program else {
                continue; // it has asked for something, or has gone
            };
            program.splice.socket.close(cx.outputs);
            self.forget(tcp, Ok(()), flows, cx);
        }
    }

    /// Ends the connection that a program has to a target. Its stream is reset with this code.
    pub(super) fn disconnect(tcp: TcpId, code: Code, flows: &mut Flows, cx: &mut Context<'_>) {
        if code == Code::H3_NO_ERROR {
            flows.direct.close(Source::Tcp(tcp), cx);
        } else {
            flows.direct.reset(Source::Tcp(tcp), cx);
        }
        // A program may have none.
        if let Some(flow) = flows.remove(Source::Tcp(tcp))
            && let Some(stream) = flow.life.stream()
        {
            cx.hop.end_tcp(stream, code);
        }
    }

    /// Ends a program's connection after its stream was cut off.
    pub(super) fn cut(
        &mut self,
        tcp: TcpId,
        error: ClientError,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        cx.stats.tcp.aborted += 1;
        self.lose_target(tcp, Err(error), flows, cx);
    }

    /// Ends a program's connection whose target has been lost, or tells the protocol that the program speaks.
    pub(super) fn lose_target(
        &mut self,
        tcp: TcpId,
        result: Result<(), ClientError>,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        let Some(program) = self.programs.get_mut(&tcp) else {
            return impossible("a target is of a program");
        };
        if let Some(local) = &mut program.local {
            local.target_ended(false);
            return self.run_local(tcp, flows, cx);
        }
        program.splice.socket.reset(cx.outputs);
        self.forget(tcp, result, flows, cx);
    }

    /// Handles a program's connection that ended with an error, such as a reset.
    fn on_program_failed(
        &mut self,
        tcp: TcpId,
        error: io::ErrorKind,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        self.awaited.remove(&tcp);
        if !self.programs.contains_key(&tcp) {
            return; // it has ended already
        }
        cx.stats.tcp.reset += 1;
        let error = closed(tcp, format!("the program's connection ended: {error}"), flows, cx);
        // RFC 9114 §4.4: an error in the TCP connection is "a stream error of type H3_CONNECT_ERROR".
        Self::disconnect(tcp, Code::H3_CONNECT_ERROR, flows, cx);
        self.forget(tcp, Err(error), flows, cx);
    }

    /// Handles that a program's target cannot be reached.
    pub(super) fn fail(
        &mut self,
        tcp: TcpId,
        error: ClientError,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        cx.stats.tcp.failed += 1;
        let Some(program) = self.programs.get_mut(&tcp) else {
            return impossible("only what a program wants is refused");
        };
        let service = program.service;
        if let Some(local) = &mut program.local {
            local.on_refused(&Refusal::from(&error));
            self.tell(service, &error, cx);
            return self.run_local(tcp, flows, cx);
        }
        program.splice.socket.reset(cx.outputs);
        self.tell(service, &error, cx);
        self.forget(tcp, Err(error), flows, cx);
    }

    /// Tells the embedding program that a flow of a service was refused or has failed. The standard input has no
    /// listener: its error ends the client.
    pub(super) fn tell(&mut self, service: usize, error: &ClientError, cx: &mut Context<'_>) {
        if let Some(listen) = self.listen_address(service) {
            self.told.entry(service).or_default().tell(listen, error, cx);
        }
    }

    /// Tells the embedding program that a proxy has cut off a connection and said why. Connections that their targets
    /// cut off are a part of normal work.
    pub(super) fn tell_of_cut(&mut self, tcp: TcpId, error: &ClientError, cx: &mut Context<'_>) {
        let program = self.programs.get(&tcp).filter(|_| error.cause().is_some());
        if let Some(service) = program.map(|program| program.service) {
            self.tell(service, error, cx);
        }
    }

    /// The service through which a program has the association of a flow.
    pub(super) fn service_of(&self, flow: AssociateId) -> Option<usize> {
        let tcp = self.associations.tcp_of_flow(flow)?;
        Some(self.programs.get(&tcp)?.service)
    }

    /// Forgets a program's connection. The client ends with that of the standard input.
    pub(super) fn forget(
        &mut self,
        tcp: TcpId,
        result: Result<(), ClientError>,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        self.associations.end(tcp, flows, cx);
        flows.remove(Source::Tcp(tcp));
        flows.direct.close(Source::Tcp(tcp), cx);
        self.take_asked(tcp);
        let Some(program) = self.programs.remove(&tcp) else {
            return impossible("only a program that is there is forgotten");
        };
        if matches!(self.services.get(program.service), Some(TcpService::Stdio { .. })) {
            cx.end(result);
        }
    }

    /// Ends all programs' connections whose streams have ended with the tunnel. Those that were not granted are
    /// requested through the next one.
    pub(super) fn end_streams(&mut self, flows: &mut Flows, cx: &mut Context<'_>) {
        self.is_form_known = false;
        self.form = FIRST_FORM;
        self.right.forget_stream();
        for tcp in flows.requested_tcp() {
            if self.wait_again(tcp, flows, cx) {
                continue;
            }
            let error = closed(tcp, "the tunnel ended", flows, cx);
            Self::disconnect(tcp, Code::H3_REQUEST_CANCELLED, flows, cx);
            self.cut(tcp, error, flows, cx);
        }
    }

    /// Resets all programs' connections, because the client ends.
    pub(super) fn end_all(&mut self, flows: &mut Flows, cx: &mut Context<'_>) {
        for (tcp, _) in std::mem::take(&mut self.programs) {
            flows.remove(Source::Tcp(tcp));
            cx.outputs.push_back(Output::Tcp(TcpOutput::Reset(tcp)));
            cx.stats.tcp.aborted += 1;
        }
        flows.direct.end_all(cx);
    }

    /// Opens the socket of an association that a program has asked for.
    pub(super) fn associate(&mut self, tcp: TcpId, from: SocketAddr, cx: &mut Context<'_>) {
        let program = self.programs.get(&tcp);
        let service = program.and_then(|program| self.services.get(program.service));
        let (Some(program), Some(TcpService::Proxy { listen, .. })) = (program, service) else {
            return impossible("only programs at the proxy port ask for associations");
        };
        // The reply names the address of the socket, at which the program must reach it.
        let here = program.here.filter(|_| listen.ip().is_unspecified());
        let listen = here.map_or(listen.ip(), |here| here.to_canonical());
        self.associations.open(tcp, program.host, from, listen, cx);
    }

    /// Handles that the socket of an association is open, or cannot be opened. `false`: the socket is
    /// not one of an association.
    pub(super) fn on_association(
        &mut self,
        socket: SocketId,
        result: Result<SocketAddr, OsError>,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(tcp) = self.associations.tcp_of(socket) else { return false };
        let Some(local) = self.programs.get_mut(&tcp).and_then(|it| it.local.as_mut()) else {
            impossible::<()>("a program with an association speaks SOCKS5");
            return true;
        };
        match result {
            Ok(relay) => local.on_associated(relay),
            Err(kind) => local.on_refused(&Refusal::from(&ClientError::Socket(kind))),
        }
        self.run_local(tcp, flows, cx);
        true
    }
}

impl Program {
    /// Whether the program may be another guess of a host that has shown too many wrong passwords. One that has asked
    /// for a target has shown the right one.
    pub(super) fn is_guesser(
        &self,
        now: Instant,
        services: &[TcpService],
        guesses: &Guesses,
    ) -> bool {
        let service = services.get(self.service);
        let has_password = matches!(service, Some(TcpService::Proxy { password: Some(_), .. }));
        has_password && self.is_silent && guesses.wait(now, self.host).is_some()
    }
}

/// The error for a connection that has ended.
pub(super) fn closed(
    tcp: TcpId,
    reason: impl Into<StrangerText>,
    flows: &Flows,
    cx: &Context<'_>,
) -> ClientError {
    closed_for(tcp, (reason.into(), None), flows, cx)
}

/// The same with the cause, if the proxy has told it.
pub(super) fn closed_for(
    tcp: TcpId,
    (reason, cause): (StrangerText, Option<Cause>),
    flows: &Flows,
    cx: &Context<'_>,
) -> ClientError {
    let peer = cx.hop.peer.settings.authority.clone();
    // A program that speaks a local protocol may have no target at present.
    let flow = flows.get(Source::Tcp(tcp));
    let target = flow.map(|flow| flow.request.authority()).unwrap_or_default();
    ClientError::FlowClosed { peer, target: target.into(), reason, cause }
}
