//! A peer with valid QUIC and arbitrary HTTP/3. It sends the bytes that a test provides, and keeps
//! the bytes that come back.

#![expect(clippy::unwrap_used, reason = "an error here fails the test")]

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use noq_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionEvent, ConnectionHandle, ConnectionId,
    ConnectionIdGenerator, DatagramEvent, Dir, Endpoint, EndpointConfig, Event, FourTuple,
    Incoming, ReadError, ServerConfig, StreamEvent, StreamId, TransportConfig, VarInt, WriteError,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use tandem_lab::TestCertificate;
use tandem_node::{
    Input, Node, Output,
    node::{Received, SocketId, SocketKind, Transmit},
};
use tandem_wire::Code;

/// The only socket of the peer.
const SOCKET: SocketId = SocketId(0);

/// The limits that the peer sets for the node under test, by QUIC's transport parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permits {
    /// Bytes on one stream.
    pub(crate) stream_window: u32,
    /// Streams of each kind that the node may open.
    pub(crate) streams: u32,
    /// Whether the node may send DATAGRAM frames.
    pub(crate) datagrams: bool,
    /// Size of the peer's own packets, in bytes of UDP payload.
    pub(crate) packet: u16,
}

impl Default for Permits {
    fn default() -> Self {
        Self { stream_window: 1_000_000, streams: 100, datagrams: true, packet: 1200 }
    }
}

/// The data that came on a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Came {
    pub(crate) data: Vec<u8>,
    pub(crate) end: Option<StreamEnd>,
}

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    Finished,
    Reset(Code),
}

/// The end of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The node under test closed it with a code and a reason.
    ByNode(Code, String),
    /// QUIC ended it.
    ByQuic(String),
}

/// Data that waits to be sent on a stream.
#[derive(Debug, Default)]
struct Unsent {
    data: VecDeque<Bytes>,
    is_last: bool,
}

/// The other address that the peer has moved to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elsewhere {
    ip: IpAddr,
    /// Whether the peer handles what comes there. A peer that has written the address of somebody else
    /// as its source does not.
    pub(crate) hears: bool,
    /// Bytes of UDP payload from there, and to there.
    pub(crate) sent: usize,
    pub(crate) came: usize,
}

enum Role {
    Client { server: SocketAddr, config: ClientConfig },
    Server { port: u16 },
}

/// The peer, which has one connection.
pub(crate) struct RawPeer {
    role: Role,
    has_socket: bool,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    is_connected: bool,
    answers: VecDeque<(noq_proto::Transmit, Vec<u8>)>,
    unsent: BTreeMap<StreamId, Unsent>,
    /// The data that came, by stream ID.
    pub(crate) streams: BTreeMap<u64, Came>,
    /// The streams on which the node asked to stop sending.
    pub(crate) stopped: BTreeMap<u64, Code>,
    pub(crate) datagrams: Vec<Bytes>,
    pub(crate) closed: Option<Closed>,
    /// Whether streams are read, which lets the node send more on them.
    pub(crate) reads: bool,
    /// The last UDP payload that was sent.
    pub(crate) last_sent: Vec<u8>,
    /// UDP payloads to send beside the connection.
    raw: VecDeque<Bytes>,
    /// All UDP payloads that came, if a test wants them.
    pub(crate) came: Option<Vec<Bytes>>,
    /// The other address of its host that all packets leave from.
    pub(crate) elsewhere: Option<Elsewhere>,
}

/// Constructors, and the actions that a test requests. The peer performs them when the world runs.
impl RawPeer {
    /// Connects to a server. Peers with different numbers choose different connection IDs.
    pub(crate) fn client(
        number: u8,
        tls: &TestCertificate,
        server: SocketAddr,
        permits: Permits,
    ) -> Self {
        let mut tls = tls.client();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let crypto = QuicClientConfig::try_from(tls).unwrap();
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(transport(permits));
        config.initial_dst_cid_provider(Arc::new(move || ConnectionId::new(&[number; 16])));
        Self::new(number, Role::Client { server, config }, None)
    }

    /// Waits for a client.
    pub(crate) fn server(tls: &TestCertificate, port: u16, permits: Permits) -> Self {
        let mut tls = tls.server();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let crypto = QuicServerConfig::try_from(tls).unwrap();
        let mut config = ServerConfig::with_crypto(Arc::new(crypto));
        config.transport_config(transport(permits));
        Self::new(0, Role::Server { port }, Some(Arc::new(config)))
    }

    fn new(number: u8, role: Role, server: Option<Arc<ServerConfig>>) -> Self {
        let mut config = EndpointConfig::default();
        config.rng_seed(Some([number; 32]));
        config.cid_generator(Arc::new(|| Box::new(NumberedCids(0))));
        Self {
            role,
            has_socket: false,
            endpoint: Endpoint::new(Arc::new(config), server, true),
            connection: None,
            is_connected: false,
            answers: VecDeque::new(),
            unsent: BTreeMap::new(),
            streams: BTreeMap::new(),
            stopped: BTreeMap::new(),
            datagrams: Vec::new(),
            closed: None,
            reads: true,
            last_sent: Vec::new(),
            raw: VecDeque::new(),
            came: None,
            elsewhere: None,
        }
    }

    /// Whether the handshake is complete.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// The code that the node closed the connection with.
    pub(crate) fn closed_with(&self) -> Option<Code> {
        match self.closed {
            Some(Closed::ByNode(code, _)) => Some(code),
            Some(Closed::ByQuic(_)) | None => None,
        }
    }

    /// Opens a stream; `None` if the node allows no more streams.
    pub(crate) fn try_open(&mut self, dir: Dir) -> Option<u64> {
        let stream = self.connection().streams().open(dir)?.into();
        if dir == Dir::Bi {
            self.streams.insert(stream, Came::default());
        }
        Some(stream)
    }

    pub(crate) fn open(&mut self, dir: Dir) -> u64 {
        self.try_open(dir).expect("the node allows one more stream")
    }

    pub(crate) fn send(&mut self, stream: u64, data: impl Into<Bytes>) {
        self.unsent_on(stream).data.push_back(data.into());
    }

    pub(crate) fn finish(&mut self, stream: u64) {
        self.unsent_on(stream).is_last = true;
    }

    pub(crate) fn reset(&mut self, stream: u64, code: Code) {
        assert!(self.try_reset(stream, code), "stream {stream} is open");
    }

    /// Returns `false` if it has no effect, because the stream is closed.
    pub(crate) fn try_reset(&mut self, stream: u64, code: Code) -> bool {
        let code = VarInt::from_u64(code.get()).unwrap();
        self.unsent.remove(&stream_id(stream));
        self.connection().send_stream(stream_id(stream)).reset(code).is_ok()
    }

    /// Asks the node to send no more.
    pub(crate) fn stop(&mut self, stream: u64, code: Code) {
        assert!(self.try_stop(stream, code), "stream {stream} is open");
    }

    /// Returns `false` if it has no effect, because the stream is closed.
    pub(crate) fn try_stop(&mut self, stream: u64, code: Code) -> bool {
        let code = VarInt::from_u64(code.get()).unwrap();
        self.streams.contains_key(&stream)
            && self.connection().recv_stream(stream_id(stream)).stop(code).is_ok()
    }

    /// Closes the connection, and forgets what came on it.
    pub(crate) fn close(&mut self, now: Instant, code: Code) {
        self.close_because(now, code, "");
    }

    /// The same, with a reason for people.
    pub(crate) fn close_because(&mut self, now: Instant, code: Code, reason: &str) {
        let code = VarInt::from_u64(code.get()).unwrap();
        self.connection().close(now, code, Bytes::copy_from_slice(reason.as_bytes()));
        self.streams.clear();
        self.is_connected = false;
    }

    /// Forgets the streams on which all was sent.
    pub(crate) fn forget_sent(&mut self) {
        self.unsent.retain(|_, unsent| !unsent.data.is_empty() || unsent.is_last);
    }

    pub(crate) fn datagram(&mut self, data: impl Into<Bytes>) {
        self.connection().datagrams().send(data.into(), false).unwrap();
    }

    /// Sends a UDP payload beside the connection, from the same address.
    pub(crate) fn send_raw(&mut self, payload: impl Into<Bytes>) {
        self.raw.push_back(payload.into());
    }

    /// Sends from another address of its host from now on, as behind a NAT that has changed it.
    pub(crate) fn appear_at(&mut self, ip: &str) {
        let ip = ip.parse().unwrap();
        self.elsewhere = Some(Elsewhere { ip, hears: true, sent: 0, came: 0 });
    }

    /// Migrates to another address on purpose, with a new connection ID (RFC 9000 §9.5).
    pub(crate) fn migrate(&mut self, now: Instant, ip: &str) {
        self.connection().handle_network_change(None, now);
        self.appear_at(ip);
    }

    /// Keys of the TLS session (RFC 8446 §7.5).
    pub(crate) fn export(&mut self, secrets: &mut [u8], label: &[u8], context: &[u8]) {
        let session = self.connection().crypto_session();
        session.export_keying_material(secrets, label, context).unwrap();
    }

    fn connection(&mut self) -> &mut Connection {
        &mut self.connection.as_mut().expect("the connection was opened").1
    }

    fn unsent_on(&mut self, stream: u64) -> &mut Unsent {
        self.unsent.entry(stream_id(stream)).or_default()
    }
}

/// The QUIC part of the peer.
impl RawPeer {
    fn on_datagram(&mut self, now: Instant, received: Received) {
        if let Some(came) = &mut self.came {
            came.push(Bytes::copy_from_slice(&received.payload));
        }
        let to = self.elsewhere.as_mut();
        if let Some(elsewhere) = to.filter(|it| received.local_ip == Some(it.ip)) {
            elsewhere.came += received.payload.len();
            if !elsewhere.hears {
                return;
            }
        }
        let path = FourTuple::new(received.remote, None);
        let mut answer = Vec::new();
        match self.endpoint.handle(now, path, None, received.payload, &mut answer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => self.handle_event(handle, event),
            Some(DatagramEvent::NewConnection(incoming)) => self.accept(now, incoming),
            Some(DatagramEvent::Response(transmit)) => self.answers.push_back((transmit, answer)),
            None => {}
        }
    }

    fn handle_event(&mut self, to: ConnectionHandle, event: ConnectionEvent) {
        if let Some((handle, connection)) = &mut self.connection
            && *handle == to
        {
            connection.handle_event(event);
        }
    }

    fn accept(&mut self, now: Instant, incoming: Incoming) {
        let accepted = self.endpoint.accept(incoming, now, &mut Vec::new(), None);
        self.connection = Some(accepted.expect("the handshake begins well"));
    }

    fn take_events(&mut self) {
        let Some((_, connection)) = &mut self.connection else { return };
        while let Some(event) = connection.poll() {
            match event {
                Event::Connected => self.is_connected = true,
                Event::ConnectionLost { reason } => self.closed = Some(reason.into()),
                Event::DatagramReceived => {
                    self.datagrams.extend(std::iter::from_fn(|| connection.datagrams().recv()));
                }
                Event::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(stream) = connection.streams().accept(dir) {
                        self.streams.entry(stream.into()).or_default();
                    }
                }
                Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                    self.stopped.insert(id.into(), Code(error_code.into_inner()));
                }
                _ => {}
            }
        }
    }

    fn read(&mut self) {
        let Some((_, connection)) = &mut self.connection else { return };
        for (id, came) in &mut self.streams {
            let mut stream = connection.recv_stream(stream_id(*id));
            let Ok(mut chunks) = stream.read(true) else { continue };
            while came.end.is_none() {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => came.data.extend_from_slice(&chunk.bytes),
                    Ok(None) => came.end = Some(StreamEnd::Finished),
                    Err(ReadError::Blocked) => break,
                    Err(ReadError::Reset(code)) => {
                        came.end = Some(StreamEnd::Reset(Code(code.into_inner())));
                    }
                }
            }
        }
    }

    fn write(&mut self) {
        let Some((_, connection)) = &mut self.connection else { return };
        for (id, unsent) in &mut self.unsent {
            let mut stream = connection.send_stream(*id);
            while let Some(data) = unsent.data.front_mut() {
                match stream.write_chunks(&mut std::slice::from_mut(data)) {
                    Ok(_) if data.is_empty() => drop(unsent.data.pop_front()),
                    Ok(_) => {}
                    Err(WriteError::Blocked) => break,
                    Err(WriteError::Stopped(_) | WriteError::ClosedStream) => unsent.data.clear(),
                }
            }
            if unsent.data.is_empty() && std::mem::take(&mut unsent.is_last) {
                // The stream may have been stopped.
                drop(stream.finish());
            }
        }
    }

    fn exchange_endpoint_events(&mut self) {
        let Some((handle, connection)) = &mut self.connection else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
    }

    fn connect(&mut self, now: Instant) {
        if let Role::Client { server, config } = &self.role {
            let opened = self.endpoint.connect(now, config.clone(), *server, "peer.test");
            self.connection = Some(opened.unwrap());
        }
    }
}

impl Node for RawPeer {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Datagram(received) => self.on_datagram(now, received),
            Input::SocketOpened { result, .. } => {
                result.unwrap();
                self.connect(now);
            }
            Input::Timeout => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_timeout(now);
                }
            }
            _ => {}
        }
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        let mut output = self.poll_output(now, buf);
        if let (Output::Transmit { transmit, .. }, Some(elsewhere)) =
            (&mut output, &mut self.elsewhere)
        {
            transmit.src_ip = Some(elsewhere.ip);
            elsewhere.sent += transmit.size;
        }
        output
    }
}

impl RawPeer {
    fn poll_output(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        if !std::mem::replace(&mut self.has_socket, true) {
            let port = match self.role {
                Role::Client { .. } => 0,
                Role::Server { port } => port,
            };
            let kind = SocketKind::Listen(([0, 0, 0, 0], port).into());
            return Output::OpenSocket { socket: SOCKET, kind };
        }
        if let Some((transmit, bytes)) = self.answers.pop_front() {
            buf.extend_from_slice(&bytes);
            return to_output(&transmit);
        }
        if let (Some(payload), Role::Client { server, .. }) = (self.raw.pop_front(), &self.role) {
            buf.extend_from_slice(&payload);
            let (size, destination) = (payload.len(), *server);
            let transmit =
                Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
            return Output::Transmit { socket: SOCKET, transmit };
        }
        self.take_events();
        if self.reads {
            self.read();
        }
        self.write();
        let Some((_, connection)) = &mut self.connection else { return Output::Wait(None) };
        let transmit = connection.poll_transmit(now, NonZeroUsize::MIN, buf);
        self.exchange_endpoint_events();
        match transmit {
            Some(transmit) => {
                self.last_sent.clone_from(buf);
                to_output(&transmit)
            }
            None => Output::Wait(self.connection().poll_timeout()),
        }
    }
}

fn to_output(transmit: &noq_proto::Transmit) -> Output {
    let &noq_proto::Transmit { destination, size, segment_size, src_ip, .. } = transmit;
    let transmit = Transmit { destination, src_ip, ecn: None, size, segment_size };
    Output::Transmit { socket: SOCKET, transmit }
}

fn stream_id(id: u64) -> StreamId {
    StreamId::from(VarInt::from_u64(id).unwrap())
}

fn transport(permits: Permits) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .stream_receive_window(VarInt::from_u32(permits.stream_window))
        .max_concurrent_bidi_streams(VarInt::from_u32(permits.streams))
        .max_concurrent_uni_streams(VarInt::from_u32(permits.streams))
        .keep_alive_interval(Some(Duration::from_secs(10)))
        .datagram_receive_buffer_size(permits.datagrams.then_some(10_000_000))
        .datagram_send_buffer_size(10_000_000)
        .initial_mtu(permits.packet)
        .mtu_discovery_config(None);
    Arc::new(config)
}

impl From<ConnectionError> for Closed {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) => {
                let reason = String::from_utf8_lossy(&close.reason).into_owned();
                Self::ByNode(Code(close.error_code.into_inner()), reason)
            }
            other => Self::ByQuic(other.to_string()),
        }
    }
}

/// Connection IDs 1, 2, 3 and so on, so that each run is the same.
struct NumberedCids(u64);

impl ConnectionIdGenerator for NumberedCids {
    fn generate_cid(&mut self) -> ConnectionId {
        self.0 += 1;
        ConnectionId::new(&self.0.to_be_bytes())
    }

    fn cid_len(&self) -> usize {
        size_of::<u64>()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
