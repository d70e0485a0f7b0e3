//! All QUIC connections of one socket.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use bytes::BytesMut;
use noq_proto::{
    ClientConfig, ConnectionError, ConnectionHandle, DatagramEvent, Dir, FourTuple, Incoming,
    ServerConfig, StreamEvent, TransportConfig,
};
use tandem_congestion::{ControllerConfig, ControllerName, Feedback, factory};
use tandem_wire::Code;
use tracing::debug;

use super::{
    ClientTls, Connection, ConnectionId, ServerTls, StreamId, Transport, UnusablePackets,
    config::{endpoint_config, initial_destination_cids},
    connection::{ecn_to_noq, from_noq},
    delivery::{Deliveries, tracking},
    demux::Demux,
};
use crate::{
    limits::Limits,
    node::{Ecn, Transmit},
};

/// An event of a connection.
#[derive(Debug)]
pub(crate) enum Event {
    /// A peer's connection was accepted. Its handshake is in progress.
    Accepted {
        /// The address of the peer, for debug logs only.
        remote: SocketAddr,
    },
    /// The handshake is complete.
    Connected,
    /// The peer opened a stream, which may have something to read.
    Opened(StreamId),
    /// A stream has bytes, an end or a reset to be read.
    Readable(StreamId),
    /// A stream that was blocked has room again, or was stopped.
    Writable(StreamId),
    /// The peer wants no more data on this stream.
    Stopped(StreamId, Code),
    /// The peer allows more streams than before.
    MoreStreams,
    /// Datagrams arrived.
    Datagrams,
    /// The connection has ended by an error, by a timeout or by the peer.
    Lost(Closed),
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// No packet arrived during the idle timeout.
    TimedOut,
    /// TLS failed at either end.
    Tls(String),
    /// The peer closed the connection with this application error.
    ByPeer(Code, String),
    /// The peer violated QUIC.
    Violation(String),
    /// Any other reason of QUIC.
    Transport(String),
}

struct Slot {
    connection: Connection,
    handle: ConnectionHandle,
    timer: Option<Instant>,
    /// Whether the connection is in [`Endpoint::ready`].
    is_ready: bool,
    /// Whether the connection is in [`Endpoint::touched`].
    is_touched: bool,
}

/// All QUIC connections of one socket.
///
/// After any call on a `&mut Connection`, drain [`Endpoint::poll_event`], and then
/// [`Endpoint::next_ready`] with [`Endpoint::poll_transmit`].
pub(crate) struct Endpoint {
    demux: Demux,
    inner: noq_proto::Endpoint,
    slots: BTreeMap<ConnectionId, Slot>,
    by_handle: BTreeMap<usize, ConnectionId>,
    next_id: u64,
    timers: BTreeSet<(Instant, ConnectionId)>,
    /// Connections that may have something to send, in the order of their turns. Each is in it at
    /// most once.
    ready: VecDeque<ConnectionId>,
    /// Connections that may have events, because they were used or got packets since they were last
    /// asked for events. Each is in it at most once. A connection that is no longer ready is not
    /// asked, and waits until it is touched again.
    touched: VecDeque<ConnectionId>,
    events: VecDeque<(ConnectionId, Event)>,
    /// Answers of the endpoint itself: version negotiation, Retry, stateless reset, refusal.
    answers: VecDeque<(Transmit, Vec<u8>)>,
    client: Option<ClientConfig>,
    server: Option<ServerConfig>,
    transport: TransportConfig,
    /// The controller of the next connection.
    controller: ControllerConfig,
    max_connections: usize,
    marks_ecn: bool,
    /// How often connections were asked for their events.
    #[cfg(test)]
    pub(super) visits: usize,
}

/// The most answers of the endpoint itself that wait to be sent. More are dropped, which costs the
/// peers that provoke them nothing.
const MAX_ANSWERS: usize = 64;

impl Endpoint {
    /// An endpoint that accepts connections.
    pub(crate) fn server(
        tls: &ServerTls,
        transport: &Transport,
        limits: &Limits,
        seed: Option<u64>,
    ) -> Self {
        let config = ServerConfig::with_crypto(tls.0.clone());
        let mut endpoint = Self::new(Some(config), transport, limits, seed);
        endpoint.max_connections = limits.connections;
        endpoint
    }

    /// An endpoint that opens connections.
    pub(crate) fn client(
        tls: &ClientTls,
        transport: &Transport,
        limits: &Limits,
        seed: Option<u64>,
    ) -> Self {
        let mut config = ClientConfig::new(tls.0.clone());
        config.initial_dst_cid_provider(initial_destination_cids(seed));
        let mut endpoint = Self::new(None, transport, limits, seed);
        endpoint.client = Some(config);
        endpoint
    }

    fn new(
        server: Option<ServerConfig>,
        transport: &Transport,
        limits: &Limits,
        seed: Option<u64>,
    ) -> Self {
        Self {
            demux: Demux::default(),
            inner: noq_proto::Endpoint::new(
                Arc::new(endpoint_config(transport, seed)),
                server.clone().map(Arc::new),
                true,
            ),
            slots: BTreeMap::new(),
            by_handle: BTreeMap::new(),
            next_id: 0,
            timers: BTreeSet::new(),
            ready: VecDeque::new(),
            touched: VecDeque::new(),
            events: VecDeque::new(),
            answers: VecDeque::new(),
            client: None,
            server,
            transport: transport.to_noq(limits),
            controller: transport.controller.clone(),
            max_connections: 1,
            // RFC 9298 §6: without congestion control, the tunnel "MUST NOT signal ECN support".
            // Its packets are then Not-ECT.
            marks_ecn: transport.controller.name != ControllerName::Off,
            #[cfg(test)]
            visits: 0,
        }
    }

    /// Sets the TLS settings of the connections that this endpoint accepts from now on. The keys of
    /// Retry tokens and of stateless resets stay.
    pub(crate) fn set_tls(&mut self, tls: &ServerTls) {
        if let Some(server) = &mut self.server {
            server.crypto = tls.0.clone();
        }
    }

    /// Accepts no more connections.
    pub(crate) fn stop_accepting(&mut self) {
        self.inner.set_server_config(None);
    }

    /// Opens a connection. The error is the engine's message about a name or an address that it
    /// cannot use.
    pub(crate) fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        server_name: &str,
    ) -> Result<ConnectionId, String> {
        let mut config = self.client.clone().ok_or_else(|| "not a client".to_owned())?;
        let (deliveries, feedback) = (Deliveries::default(), Feedback::default());
        config.transport_config(self.transport(&deliveries, &feedback));
        let (handle, connection) = self
            .inner
            .connect(now, config, remote, server_name)
            .map_err(|error| error.to_string())?;
        Ok(self.insert(handle, Connection::new(connection, deliveries, feedback)))
    }

    /// The settings of one connection. Its controllers report the delivery of its datagrams, and
    /// take reports on a tunnel.
    fn transport(&mut self, deliveries: &Deliveries, feedback: &Feedback) -> Arc<TransportConfig> {
        let mut transport = self.transport.clone();
        let controllers = factory(&self.controller, feedback.clone());
        self.controller.seed = self.controller.seed.wrapping_add(1);
        transport.congestion_controller_factory(tracking(controllers, deliveries.clone()));
        Arc::new(transport)
    }

    /// Handles a received UDP payload.
    pub(crate) fn handle_datagram(
        &mut self,
        now: Instant,
        (remote, local_ip): (SocketAddr, Option<IpAddr>),
        ecn: Option<Ecn>,
        payload: BytesMut,
    ) {
        if !self.demux.is_for_engine(&payload) {
            return;
        }
        let path = FourTuple::new(remote, local_ip);
        let mut answer = Vec::new();
        match self.inner.handle(now, path, ecn.map(ecn_to_noq), payload, &mut answer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(&id) = self.by_handle.get(&handle.0)
                    && let Some(slot) = self.slots.get_mut(&id)
                {
                    slot.connection.inner().handle_event(event);
                    self.touch(id);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.accept(now, incoming),
            Some(DatagramEvent::Response(transmit)) => self.answer(&transmit, answer),
            None => {}
        }
    }

    fn accept(&mut self, now: Instant, incoming: Incoming) {
        let mut answer = Vec::new();
        if self.slots.len() >= self.max_connections {
            debug!(limit = self.max_connections, "connection refused: too many");
            let transmit = self.inner.refuse(incoming, &mut answer);
            return self.answer(&transmit, answer);
        }
        // Under load, a peer must first prove that it can receive at its address (RFC 9000 §8.1.2).
        if self.slots.len() >= self.max_connections / 2
            && !incoming.remote_address_validated()
            && incoming.may_retry()
        {
            if let Ok(transmit) = self.inner.retry(incoming, &mut answer) {
                self.answer(&transmit, answer);
            }
            return;
        }
        let remote = incoming.remote_address();
        let (deliveries, feedback) = (Deliveries::default(), Feedback::default());
        let config = self.server.clone().map(|mut config| {
            config.transport_config(self.transport(&deliveries, &feedback));
            Arc::new(config)
        });
        match self.inner.accept(incoming, now, &mut answer, config) {
            Ok((handle, connection)) => {
                let id = self.insert(handle, Connection::new(connection, deliveries, feedback));
                self.events.push_back((id, Event::Accepted { remote }));
            }
            Err(error) => {
                debug!(cause = %error.cause, "connection not accepted");
                if let Some(transmit) = error.response {
                    self.answer(&transmit, answer);
                }
            }
        }
    }

    fn insert(&mut self, handle: ConnectionHandle, connection: Connection) -> ConnectionId {
        let id = ConnectionId(self.next_id);
        self.next_id += 1;
        self.by_handle.insert(handle.0, id);
        let slot = Slot { connection, handle, timer: None, is_ready: false, is_touched: false };
        self.slots.insert(id, slot);
        self.touch(id);
        id
    }

    fn answer(&mut self, transmit: &noq_proto::Transmit, bytes: Vec<u8>) {
        if self.answers.len() < MAX_ANSWERS {
            self.answers.push_back((from_noq(transmit), bytes));
        }
    }

    /// Notes that a connection changed, so that it is asked for events and gets a turn to send.
    fn touch(&mut self, id: ConnectionId) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        if !std::mem::replace(&mut slot.is_ready, true) {
            self.ready.push_back(id);
        }
        if !std::mem::replace(&mut slot.is_touched, true) {
            self.touched.push_back(id);
        }
    }

    /// Runs the timers that are due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(due, id)) = self.timers.first() {
            if due > now {
                break;
            }
            self.timers.pop_first();
            if let Some(slot) = self.slots.get_mut(&id) {
                slot.timer = None;
                slot.connection.inner().handle_timeout(now);
                self.touch(id);
            }
        }
    }

    /// When the first timer is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(due, _)| due)
    }

    /// A connection for use, which is then asked for events and gets a turn to send. `None`: it has
    /// ended.
    pub(crate) fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.touch(id);
        self.slots.get_mut(&id).map(|slot| &mut slot.connection)
    }

    /// A connection for reading, which is not asked for events because of this call.
    pub(crate) fn peek(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slots.get_mut(&id).map(|slot| &mut slot.connection)
    }

    /// Received UDP payloads that belonged to no connection and got no answer.
    pub(crate) const fn unusable_packets(&self) -> UnusablePackets {
        self.demux.unusable()
    }

    /// Whether no connection is left, not even one that is being closed.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The next event.
    pub(crate) fn poll_event(&mut self) -> Option<(ConnectionId, Event)> {
        if self.events.is_empty() {
            while let Some(id) = self.touched.pop_front() {
                self.collect_events(id);
            }
        }
        self.events.pop_front()
    }

    fn collect_events(&mut self, id: ConnectionId) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        slot.is_touched = false;
        if !slot.is_ready {
            return;
        }
        #[cfg(test)]
        {
            self.visits += 1;
        }
        let connection = slot.connection.inner();
        while let Some(event) = connection.poll() {
            match event {
                noq_proto::Event::Connected => self.events.push_back((id, Event::Connected)),
                noq_proto::Event::ConnectionLost { reason } => {
                    self.events.push_back((id, Event::Lost(Closed::from(reason))));
                }
                noq_proto::Event::DatagramReceived => {
                    self.events.push_back((id, Event::Datagrams));
                }
                noq_proto::Event::Stream(StreamEvent::Opened { dir }) => {
                    accept_streams(connection, dir, |stream| {
                        self.events.push_back((id, Event::Opened(stream)));
                    });
                }
                noq_proto::Event::Stream(StreamEvent::Readable { id: stream }) => {
                    self.events.push_back((id, Event::Readable(StreamId(stream.into()))));
                }
                noq_proto::Event::Stream(StreamEvent::Writable { id: stream }) => {
                    self.events.push_back((id, Event::Writable(StreamId(stream.into()))));
                }
                noq_proto::Event::Stream(StreamEvent::Stopped { id: stream, error_code }) => {
                    let code = Code(error_code.into_inner());
                    self.events.push_back((id, Event::Stopped(StreamId(stream.into()), code)));
                }
                noq_proto::Event::Stream(StreamEvent::Available { .. }) => {
                    self.events.push_back((id, Event::MoreStreams));
                }
                noq_proto::Event::Stream(StreamEvent::Finished { .. })
                | noq_proto::Event::HandshakeDataReady
                | noq_proto::Event::HandshakeConfirmed
                | noq_proto::Event::DatagramsUnblocked
                | noq_proto::Event::Path(_)
                | noq_proto::Event::NatTraversal(_) => {}
            }
        }
    }

    /// The next packet of the endpoint itself.
    pub(crate) fn poll_answer(&mut self, buf: &mut Vec<u8>) -> Option<Transmit> {
        let (transmit, bytes) = self.answers.pop_front()?;
        buf.extend_from_slice(&bytes);
        Some(transmit)
    }

    /// The connection whose turn it is to send. It stays in the round of ready connections until
    /// [`Endpoint::poll_transmit`] returns `None` for it.
    pub(crate) fn next_ready(&self) -> Option<ConnectionId> {
        self.ready.front().copied()
    }

    /// The next packets of the connection that [`Endpoint::next_ready`] returned. Its turn ends
    /// with them. `None`: it has nothing to send, and leaves the round until it is touched again.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        id: ConnectionId,
        buf: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let slot = self.slots.get_mut(&id)?;
        if let Some(mut transmit) = slot.connection.poll_transmit(now, buf) {
            transmit.ecn = transmit.ecn.filter(|_| self.marks_ecn);
            self.ready.rotate_left(1);
            self.touch(id);
            return Some(transmit);
        }
        self.exchange_endpoint_events(id);
        None
    }

    /// Passes events between the endpoint and the connection, and updates the connection's timer.
    fn exchange_endpoint_events(&mut self, id: ConnectionId) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let mut is_drained = false;
        let mut is_answered = false;
        while let Some(event) = slot.connection.inner().poll_endpoint_events() {
            is_drained |= event.is_drained();
            if let Some(event) = self.inner.handle_event(slot.handle, event) {
                slot.connection.inner().handle_event(event);
                is_answered = true;
            }
        }
        if is_answered {
            return self.touch(id); // It stays ready, because new connection IDs may have to be sent.
        }
        let timer = slot.connection.inner().poll_timeout();
        if slot.timer != timer || is_drained {
            if let Some(old) = slot.timer.take() {
                self.timers.remove(&(old, id));
            }
            if let Some(new) = timer
                && !is_drained
            {
                slot.timer = Some(new);
                self.timers.insert((new, id));
            }
        }
        slot.is_ready = false;
        let handle = slot.handle.0;
        let first = self.ready.pop_front();
        debug_assert_eq!(first, Some(id), "only the connection whose turn it is sends");
        if is_drained {
            self.slots.remove(&id);
            self.by_handle.remove(&handle);
        }
    }
}

fn accept_streams(
    connection: &mut noq_proto::Connection,
    dir: Dir,
    mut opened: impl FnMut(StreamId),
) {
    while let Some(stream) = connection.streams().accept(dir) {
        opened(StreamId(stream.into()));
    }
}

/// The earlier of two deadlines, each of which may be missing.
pub(crate) fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl From<ConnectionError> for Closed {
    fn from(error: ConnectionError) -> Self {
        /// TLS alerts are the QUIC errors 0x0100 to 0x01ff (RFC 9001 §4.8).
        fn is_tls(code: u64) -> bool {
            (0x100..0x200).contains(&code)
        }
        match error {
            ConnectionError::TimedOut => Self::TimedOut,
            ConnectionError::TransportError(error) if is_tls(u64::from(error.code)) => {
                Self::Tls(error.reason)
            }
            ConnectionError::ConnectionClosed(close) if is_tls(u64::from(close.error_code)) => {
                Self::Tls(format!("the peer says: {close}"))
            }
            ConnectionError::ApplicationClosed(close) => Self::ByPeer(
                Code(close.error_code.into_inner()),
                String::from_utf8_lossy(&close.reason).into_owned(),
            ),
            ConnectionError::TransportError(error) => Self::Violation(error.to_string()),
            other => Self::Transport(other.to_string()),
        }
    }
}

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TimedOut => f.write_str("no packet for the idle timeout"),
            Self::Tls(reason) => write!(f, "TLS: {reason}"),
            Self::ByPeer(code, reason) if reason.is_empty() => {
                write!(f, "closed by the peer with {code}")
            }
            Self::ByPeer(code, reason) => write!(f, "closed by the peer with {code}: {reason}"),
            Self::Violation(reason) | Self::Transport(reason) => f.write_str(reason),
        }
    }
}
