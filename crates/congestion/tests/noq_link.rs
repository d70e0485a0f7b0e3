//! Downloads between two noq endpoints over a virtual link: what a controller is worth in the end.
//!
//! The table behind the claims below is printed by
//! `cargo test --release -p tandem-congestion --test noq_link -- --ignored --nocapture`.

mod link;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use link::{Link, LinkConfig};
use noq_proto::{
    ClientConfig, Connection, ConnectionEvent, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, Event, FourTuple, PathId, ServerConfig, StreamEvent, StreamId, TransportConfig,
    VarInt, WriteError,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tandem_congestion::{ControllerConfig, ControllerName, factory};
use tandem_units::{ByteCount, Rate, Ratio};

/// The size of a full datagram.
const MTU: u16 = 1452;
/// IPv4 and UDP headers, which the link carries too.
const HEADERS: u64 = 28;
/// noq keeps at most some 1000 pieces out of order; this is what random loss never exceeds.
const STREAM_WINDOW: u32 = 2_000_000;
/// A run that takes longer has failed.
const TIME_LIMIT: Duration = Duration::from_secs(400);

/// One download and its link, the same in both directions.
#[derive(Clone)]
struct Download {
    controller: ControllerConfig,
    bytes: usize,
    link: LinkConfig,
    /// Once the client has so many bytes it says no more for so long; see `pauses`.
    seed: u64,
}

/// What came of it.
#[derive(Debug, PartialEq)]
struct Report {
    /// From the first packet to the last byte, the handshake included.
    took: Duration,
    lost_packets: u64,
    sent_packets: u64,
    congestion_window: u64,
    rtt: Duration,
}

impl Download {
    fn new(controller: ControllerName, loss: Ratio, seed: u64) -> Self {
        Self {
            controller: controller.into(),
            bytes: 10_000_000,
            link: LinkConfig {
                rate: Rate::from_mbps(10),
                delay: Duration::from_millis(70),
                queue: ByteCount::new(150_000),
                loss,
            },
            seed,
        }
    }

    fn run(&self) -> Option<Report> {
        let start = start();
        let mut world = World::new(self, start);
        while !world.is_done() && world.now < start + TIME_LIMIT {
            if !world.step() {
                break;
            }
        }
        let stats = world.server.connection.as_mut()?.path_stats(PathId::ZERO)?;
        world.client.is_finished.then(|| Report {
            took: world.now - start,
            lost_packets: stats.lost_packets,
            sent_packets: stats.sent_packets,
            congestion_window: stats.cwnd,
            rtt: stats.rtt,
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "a world needs one time to count from")]
fn start() -> Instant {
    Instant::now()
}

struct World {
    now: Instant,
    client: Peer,
    server: Peer,
    /// Packets under way: arrival, order, to the server or not, and the bytes.
    packets: BinaryHeap<Reverse<(Instant, u64, bool, Vec<u8>)>>,
    carried: u64,
    to_server: Link,
    to_client: Link,
}

struct Peer {
    endpoint: Endpoint,
    handle: Option<ConnectionHandle>,
    connection: Option<Connection>,
    remote: SocketAddr,
    /// What is still to be written on the stream of the request.
    to_write: usize,
    stream: Option<StreamId>,
    is_finished: bool,
}

impl World {
    fn new(download: &Download, now: Instant) -> Self {
        let address = |host| SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), 443));
        let (server_config, client_config) = configs(&download.controller);
        let peer = |side: u8, server_config, remote, to_write| {
            let mut config = EndpointConfig::default();
            let mut seed = [side; 32];
            seed[..8].copy_from_slice(&download.seed.to_le_bytes());
            config.rng_seed(Some(seed));
            Peer {
                endpoint: Endpoint::new(Arc::new(config), server_config, false),
                handle: None,
                connection: None,
                remote,
                to_write,
                stream: None,
                is_finished: false,
            }
        };
        let server = peer(1, Some(Arc::new(server_config)), address(1), download.bytes);
        let mut client = peer(2, None, address(2), 1);
        let (handle, connection) =
            client.endpoint.connect(now, client_config, address(2), "localhost").unwrap();
        client.handle = Some(handle);
        client.connection = Some(connection);
        Self {
            now,
            client,
            server,
            packets: BinaryHeap::new(),
            carried: 0,
            to_server: Link::new(download.link, now, 2 * download.seed),
            to_client: Link::new(download.link, now, 2 * download.seed + 1),
        }
    }

    fn is_done(&self) -> bool {
        self.client.is_finished
    }

    /// Sends what can be sent and goes to the next moment at which something happens.
    fn step(&mut self) -> bool {
        self.transmit(false);
        self.transmit(true);
        let timers = [&self.client, &self.server]
            .into_iter()
            .filter_map(|peer| peer.connection.as_ref()?.poll_timeout());
        let arrival = self.packets.peek().map(|Reverse((arrival, ..))| *arrival);
        let Some(next) = timers.chain(arrival).min() else { return false };
        // A timer may ask for the same instant again.
        self.now = next.max(self.now + Duration::from_nanos(1));
        for peer in [&mut self.client, &mut self.server] {
            if let Some(connection) = &mut peer.connection
                && connection.poll_timeout().is_some_and(|timer| timer <= self.now)
            {
                connection.handle_timeout(self.now);
            }
            peer.drive();
        }
        while self.packets.peek().is_some_and(|Reverse((arrival, ..))| *arrival <= self.now) {
            let Some(Reverse((_, _, is_to_server, packet))) = self.packets.pop() else { break };
            let peer = if is_to_server { &mut self.server } else { &mut self.client };
            peer.receive(self.now, &packet);
        }
        true
    }

    fn transmit(&mut self, is_to_server: bool) {
        let (peer, link) = if is_to_server {
            (&mut self.client, &mut self.to_server)
        } else {
            (&mut self.server, &mut self.to_client)
        };
        let Some(connection) = &mut peer.connection else { return };
        let mut packet = Vec::new();
        while connection.poll_transmit(self.now, NonZeroUsize::MIN, &mut packet).is_some() {
            let bytes = ByteCount::from(packet.len()) + ByteCount::new(HEADERS);
            let packet = std::mem::take(&mut packet);
            if let Some(arrival) = link.carry(self.now, bytes) {
                self.carried += 1;
                self.packets.push(Reverse((arrival, self.carried, is_to_server, packet)));
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
                let (handle, connection) =
                    self.endpoint.accept(incoming, now, &mut response, None).unwrap();
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

    /// Answers everything that the connection says.
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
            let _ = chunks.finalize();
        }
        let zeros = [0; 65_536];
        while self.to_write > 0 {
            let len = self.to_write.min(zeros.len());
            match connection.send_stream(id).write(&zeros[..len]) {
                Ok(written) => self.to_write -= written,
                Err(WriteError::Blocked) => return,
                Err(error) => panic!("cannot write: {error}"),
            }
            if self.to_write == 0 {
                connection.send_stream(id).finish().unwrap();
            }
        }
    }
}

fn configs(controller: &ControllerConfig) -> (ServerConfig, ClientConfig) {
    static CERTIFICATE: OnceLock<(CertificateDer<'static>, PrivatePkcs8KeyDer<'static>)> =
        OnceLock::new();
    let (certificate, key) = CERTIFICATE.get_or_init(|| {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        (certificate.der().clone(), PrivatePkcs8KeyDer::from(key.serialize_der()))
    });
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let key = PrivateKeyDer::from(key.clone_key());
    let mut server = ServerConfig::with_single_cert(vec![certificate.clone()], key).unwrap();
    let mut client = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();

    let mut transport = TransportConfig::default();
    transport
        .initial_mtu(MTU)
        .min_mtu(MTU)
        .mtu_discovery_config(None)
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(STREAM_WINDOW))
        .max_idle_timeout(None)
        .congestion_controller_factory(factory(controller));
    let transport = Arc::new(transport);
    server.transport_config(Arc::clone(&transport));
    client.transport_config(transport);
    (server, client)
}

#[test]
fn a_download_repeats_exactly() {
    let mut download = Download::new(ControllerName::Bbr1, Ratio::of(5, 100), 7);
    download.bytes = 1_000_000;
    let report = download.run();
    assert!(report.is_some());
    assert_eq!(report, download.run());
}

#[test]
#[ignore = "prints the table of all controllers and loss rates"]
fn table() {
    let seeds: u64 = std::env::var("SEEDS").map_or(30, |seeds| seeds.parse().unwrap());
    for controller in ControllerName::ALL {
        if std::env::var("ONLY").is_ok_and(|only| only != controller.as_str()) {
            continue;
        }
        for loss_percent in [0, 1, 5, 10, 15] {
            let mut times = Vec::new();
            let (mut lost, mut sent) = (0, 0);
            for seed in 1..=seeds {
                let mut download = Download::new(controller, Ratio::of(loss_percent, 100), seed);
                download.controller.seed = seed;
                if let Ok(rate) = std::env::var("RATE") {
                    let rate = rate.parse().unwrap();
                    download.link.rate = Rate::from_mbps(rate);
                    download.link.queue = ByteCount::new((rate * 12_500).max(150_000));
                }
                if let Ok(up) = std::env::var("UP") {
                    download.controller.bbr_up_gain_percent = up.parse().unwrap();
                }
                if let Ok(iw) = std::env::var("IW") {
                    download.controller.initial_window_packets = iw.parse().unwrap();
                }
                if let Ok(mb) = std::env::var("MB") {
                    download.bytes = (mb.parse::<f64>().unwrap() * 1e6) as usize;
                }
                let Some(report) = download.run() else {
                    println!("{controller} {loss_percent} % seed {seed}: not finished");
                    continue;
                };
                times.push(report.took);
                lost += report.lost_packets;
                sent += report.sent_packets;
            }
            let mean = times.iter().sum::<Duration>() / u32::try_from(times.len().max(1)).unwrap();
            let max = times.iter().max().copied().unwrap_or_default();
            println!(
                "{controller} {loss_percent:2} %: mean {:.3} s, max {:.3} s, lost {lost} of {sent}",
                mean.as_secs_f64(),
                max.as_secs_f64(),
            );
        }
    }
}
