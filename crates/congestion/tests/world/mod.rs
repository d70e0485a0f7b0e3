//! A download between two noq endpoints over a virtual link.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use noq_proto::{
    ClientConfig, Connection, ConnectionEvent, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, Event, FourTuple, PathId, ServerConfig, StreamEvent, StreamId, TransportConfig,
    VarInt, WriteError,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tandem_congestion::Factory;
use tandem_units::{ByteCount, Rate, Ratio};

use crate::link::{Link, LinkConfig};

/// The size of a full datagram.
const MTU: u16 = 1452;
/// The length of the IPv4 and UDP headers, which the link carries too.
const HEADERS: u64 = 28;
/// noq keeps at most some 1000 out-of-order segments of a stream. With this window random loss
/// never causes more.
const STREAM_WINDOW: u32 = 2_000_000;
/// A run that takes longer has failed.
const TIME_LIMIT: Duration = Duration::from_secs(400);

/// One download and its link, which has the same properties in both directions.
#[derive(Clone)]
pub(crate) struct Download {
    pub(crate) controllers: Factory,
    pub(crate) bytes: usize,
    /// The number of bytes that the server's application has produced at a time since the start.
    pub(crate) produced: fn(Duration) -> usize,
    pub(crate) link: LinkConfig,
    pub(crate) seed: u64,
}

/// The result of a download.
#[derive(Debug, PartialEq)]
pub(crate) struct Report {
    /// The time from the first packet of the handshake to the last byte.
    pub(crate) took: Duration,
    pub(crate) lost_packets: u64,
    pub(crate) sent_packets: u64,
    /// The server's bandwidth estimate at the end, in bytes per second.
    pub(crate) bandwidth_estimate: Option<u64>,
}

impl Download {
    /// A download of 10 MB over 10 Mbit/s and 140 ms, with a queue of 0.86 bandwidth-delay
    /// products.
    pub(crate) fn new(controllers: Factory, loss: Ratio, seed: u64) -> Self {
        Self {
            controllers,
            bytes: 10_000_000,
            produced: |_| usize::MAX,
            link: LinkConfig {
                rate: Rate::from_mbps(10),
                delay: Duration::from_millis(70),
                queue: ByteCount::new(150_000),
                loss,
            },
            seed,
        }
    }

    /// Runs the download. Returns its result, or `None` if it took too long.
    pub(crate) fn run(&self) -> Option<Report> {
        let start = start();
        let mut world = World::new(self, start);
        while !world.client.is_finished && world.now < start + TIME_LIMIT && world.step() {}
        let stats = world.server.connection.as_mut()?.path_stats(PathId::ZERO)?;
        world.client.is_finished.then(|| Report {
            took: world.now - start,
            lost_packets: stats.lost_packets,
            sent_packets: stats.sent_packets,
            bandwidth_estimate: stats.bandwidth_estimate,
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "a world needs one time to count from")]
pub(crate) fn start() -> Instant {
    Instant::now()
}

struct World {
    start: Instant,
    now: Instant,
    produced: fn(Duration) -> usize,
    client: Peer,
    server: Peer,
    packets: BinaryHeap<Reverse<UnderWay>>,
    /// The number of packets that the links have carried.
    carried: u64,
    to_server: Link,
    to_client: Link,
}

/// A packet on a link: its arrival time, its number in sending order, its receiver and its bytes.
type UnderWay = (Instant, u64, Receiver, Vec<u8>);

/// The receiver of a packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Receiver {
    Client,
    Server,
}

struct Peer {
    endpoint: Endpoint,
    handle: Option<ConnectionHandle>,
    connection: Option<Connection>,
    remote: SocketAddr,
    /// The number of bytes that the answer to the request has.
    to_write: usize,
    /// The number of bytes of it that the application has produced.
    produced: usize,
    /// The number of bytes of it that were written to the stream.
    written: usize,
    stream: Option<StreamId>,
    is_finished: bool,
}

impl World {
    fn new(download: &Download, now: Instant) -> Self {
        let address = |host| SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), 443));
        let (server_config, client_config) = configs(Arc::clone(&download.controllers));
        let peer = |side: u8, server_config, remote, to_write| {
            let mut config = EndpointConfig::default();
            let mut seed = [side; 32];
            for (byte, of_seed) in seed.iter_mut().zip(download.seed.to_le_bytes()) {
                *byte = of_seed;
            }
            config.rng_seed(Some(seed));
            Peer {
                endpoint: Endpoint::new(Arc::new(config), server_config, false),
                handle: None,
                connection: None,
                remote,
                to_write,
                produced: to_write,
                written: 0,
                stream: None,
                is_finished: false,
            }
        };
        let server = peer(1, Some(Arc::new(server_config)), address(1), download.bytes);
        let mut client = peer(2, None, address(2), 1);
        let (handle, connection) = client
            .endpoint
            .connect(now, client_config, address(2), "localhost")
            .expect("a valid address");
        client.handle = Some(handle);
        client.connection = Some(connection);
        Self {
            start: now,
            now,
            produced: download.produced,
            client,
            server,
            packets: BinaryHeap::new(),
            carried: 0,
            to_server: Link::new(download.link, now, 2 * download.seed),
            to_client: Link::new(download.link, now, 2 * download.seed + 1),
        }
    }

    /// Sends all packets that can be sent, and advances the time to the next event. Returns false
    /// if there is none.
    fn step(&mut self) -> bool {
        self.transmit_to(Receiver::Client);
        self.transmit_to(Receiver::Server);
        let timers = [&self.client, &self.server]
            .into_iter()
            .filter_map(|peer| peer.connection.as_ref()?.poll_timeout());
        let is_producing =
            self.server.stream.is_some() && self.server.produced < self.server.to_write;
        let production = is_producing.then(|| self.now + Duration::from_millis(1));
        let arrival = self.packets.peek().map(|Reverse((arrival, ..))| *arrival);
        let Some(next) = timers.chain(arrival).chain(production).min() else { return false };
        // A timer may expire at the present time again, so the time always advances.
        self.now = next.max(self.now + Duration::from_nanos(1));
        self.server.produced = (self.produced)(self.now - self.start);
        for peer in [&mut self.client, &mut self.server] {
            if let Some(connection) = &mut peer.connection
                && connection.poll_timeout().is_some_and(|timer| timer <= self.now)
            {
                connection.handle_timeout(self.now);
            }
            peer.drive();
        }
        while self.packets.peek().is_some_and(|Reverse((arrival, ..))| *arrival <= self.now) {
            let Some(Reverse((_, _, receiver, packet))) = self.packets.pop() else { break };
            let peer = match receiver {
                Receiver::Client => &mut self.client,
                Receiver::Server => &mut self.server,
            };
            peer.receive(self.now, &packet);
        }
        true
    }

    fn transmit_to(&mut self, receiver: Receiver) {
        let (peer, link) = match receiver {
            Receiver::Client => (&mut self.server, &mut self.to_client),
            Receiver::Server => (&mut self.client, &mut self.to_server),
        };
        let Some(connection) = &mut peer.connection else { return };
        let mut packet = Vec::new();
        while connection.poll_transmit(self.now, NonZeroUsize::MIN, &mut packet).is_some() {
            let bytes = ByteCount::from(packet.len()) + ByteCount::new(HEADERS);
            let packet = std::mem::take(&mut packet);
            if let Some(arrival) = link.carry(self.now, bytes) {
                self.carried += 1;
                self.packets.push(Reverse((arrival, self.carried, receiver, packet)));
            }
        }
    }
}

impl Peer {
    fn receive(&mut self, now: Instant, packet: &[u8]) {
        let path = FourTuple::new(self.remote, None);
        let mut response = Vec::new();
        match self.endpoint.handle(now, path, None, BytesMut::from(packet), &mut response) {
            Some(DatagramEvent::NewConnection(incoming)) => {
                let (handle, connection) = self
                    .endpoint
                    .accept(incoming, now, &mut response, None)
                    .expect("a valid packet");
                self.handle = Some(handle);
                self.connection = Some(connection);
            }
            Some(DatagramEvent::ConnectionEvent(_, event)) => self.handle(event),
            Some(DatagramEvent::Response(_)) | None => {}
        }
        self.drive();
    }

    fn handle(&mut self, event: ConnectionEvent) {
        if let Some(connection) = &mut self.connection {
            connection.handle_event(event);
        }
    }

    /// Processes all events of the connection.
    fn drive(&mut self) {
        let Some(handle) = self.handle else { return };
        while let Some(event) = self.connection.as_mut().and_then(Connection::poll_endpoint_events)
        {
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                self.handle(event);
            }
        }
        let Some(connection) = &mut self.connection else { return };
        while let Some(event) = connection.poll() {
            match event {
                Event::Connected if connection.side().is_client() => {
                    self.stream = connection.streams().open(Dir::Bi);
                }
                Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                    self.stream = connection.streams().accept(Dir::Bi);
                }
                Event::ConnectionLost { reason } => panic!("connection lost: {reason}"),
                _ => {}
            }
        }
        self.read_and_write();
    }

    fn read_and_write(&mut self) {
        let (Some(connection), Some(id)) = (&mut self.connection, self.stream) else { return };
        if let Ok(mut chunks) = connection.recv_stream(id).read(true) {
            loop {
                match chunks.next(usize::MAX) {
                    Ok(Some(_)) => {}
                    Ok(None) => {
                        self.is_finished = true;
                        break;
                    }
                    Err(_) => break,
                }
            }
            // Its result says whether to transmit, which happens after every event in any case.
            drop(chunks);
        }
        let zeros = [0; 16_384];
        while self.written < self.to_write.min(self.produced) {
            let len = self.to_write.min(self.produced) - self.written;
            let (data, _) = zeros.split_at(len.min(zeros.len()));
            match connection.send_stream(id).write(data) {
                Ok(written) => self.written += written,
                Err(WriteError::Blocked) => return,
                Err(error) => panic!("cannot write: {error}"),
            }
            if self.written == self.to_write {
                connection.send_stream(id).finish().expect("the stream is open");
            }
        }
    }
}

fn configs(controllers: Factory) -> (ServerConfig, ClientConfig) {
    static CERTIFICATE: OnceLock<(CertificateDer<'static>, PrivatePkcs8KeyDer<'static>)> =
        OnceLock::new();
    let (certificate, key) = CERTIFICATE.get_or_init(|| {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        (certificate.der().clone(), PrivatePkcs8KeyDer::from(key.serialize_der()))
    });
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).expect("a root");
    let key = PrivateKeyDer::from(key.clone_key());
    let mut server =
        ServerConfig::with_single_cert(vec![certificate.clone()], key).expect("a key that fits");
    let mut client = ClientConfig::with_root_certificates(Arc::new(roots)).expect("valid roots");

    let mut transport = TransportConfig::default();
    transport
        .initial_mtu(MTU)
        .min_mtu(MTU)
        .mtu_discovery_config(None)
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(STREAM_WINDOW))
        .max_idle_timeout(None)
        .congestion_controller_factory(controllers);
    let transport = Arc::new(transport);
    server.transport_config(Arc::clone(&transport));
    client.transport_config(transport);
    (server, client)
}
