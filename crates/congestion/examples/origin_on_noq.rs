//! A server on plain noq-proto whose sender follows its client's reports of a tunnel on the path.
//!
//! The comments (1), (2) and (3) mark the code that is specific to it; every program on noq-proto
//! has the rest. Client and server are one process here, and the reports are invented, while a real
//! client gets them from its proxy. The packets go through loopback sockets, with an additional
//! delay that stands for a longer path:
//!
//! ```text
//! $ cargo run -p tandem-congestion --example origin_on_noq
//! reported 4 Mbit/s, sends at 4.442672 Mbit/s
//! reported 12 Mbit/s, sends at 12.561664 Mbit/s
//! reported 6 Mbit/s, sends at 6.506712 Mbit/s
//! ```

use std::{
    collections::VecDeque,
    error::Error,
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    num::NonZeroUsize,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use noq_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    Event, FourTuple, PathId, ServerConfig, StreamEvent, StreamId, TransportConfig, VarInt,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tandem_congestion::{Applied, ControllerName, Feedback, TunnelInfo, factory};
use tandem_units::{Rate, Ratio};

/// The delay of the path in each direction.
const DELAY: Duration = Duration::from_millis(10);

/// The time between two reports.
const INTERVAL: Duration = Duration::from_millis(10);
/// The number of reports with each rate.
const REPORTS: u64 = 50;

/// The controller's default target for the delay in the tunnel's queue. If a report has a queue of
/// this delay, the sender sends at the tunnel's rate.
const QUEUE_TARGET: Duration = Duration::from_millis(40);

/// A reported rate and the pacing rate that followed from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// The rate at which the tunnel can send, according to the reports.
    pub(crate) reported: Rate,
    /// The server's pacing rate after some RTTs.
    pub(crate) pacing: Rate,
}

fn main() -> Result<(), Box<dyn Error>> {
    for Step { reported, pacing } in run()? {
        println!("reported {reported}, sends at {pacing}");
    }
    Ok(())
}

/// Downloads while the client reports a tunnel with one rate after the other.
pub(crate) fn run() -> Result<Vec<Step>, Box<dyn Error>> {
    let (server_config, client_config) = configs()?;
    let mut server = Server::new(server_config)?;
    let mut client = Client::new(client_config, server.host.socket.local_addr()?)?;
    let mut steps = Vec::new();
    for reported in [4, 12, 6].map(Rate::from_mbps) {
        let goal = server.used + REPORTS;
        for _turn in 0..100_000 {
            client.turn(Some(reported))?;
            server.turn()?;
            if server.used >= goal {
                break;
            }
            thread::sleep(Duration::from_micros(200));
        }
        let pacing = server.pacing().ok_or("no connection")?;
        steps.push(Step { reported, pacing });
    }
    Ok(steps)
}

/// The server, which answers each request with an endless body.
struct Server {
    host: Host,
    config: ServerConfig,
    /// The handle of the connection's controller.
    feedback: Feedback,
    answering: Option<StreamId>,
    /// The number of reports that the sender followed.
    used: u64,
}

impl Server {
    fn new(config: ServerConfig) -> Result<Self, Box<dyn Error>> {
        let host = Host::bind(Some(config.clone()))?;
        Ok(Self { host, config, feedback: Feedback::default(), answering: None, used: 0 })
    }

    fn turn(&mut self) -> Result<(), Box<dyn Error>> {
        let now = now();
        let Self { host, config, feedback, answering, used } = self;
        host.receive(now, || {
            *feedback = Feedback::default(); // (1) each connection has its own
            accepting(config, feedback)
        })?;
        let Some((_, connection)) = &mut host.connection else { return Ok(()) };
        while let Some(event) = connection.poll() {
            if matches!(event, Event::Stream(StreamEvent::Opened { dir: Dir::Bi })) {
                *answering = connection.streams().accept(Dir::Bi);
            }
        }
        // (3) A report has arrived, and the sender follows it from now on.
        while let Some(datagram) = connection.datagrams().recv() {
            match TunnelInfo::decode(datagram).map(|info| feedback.apply(now, &info)) {
                Ok(Applied::Used) => *used += 1,
                Ok(Applied::Stale | Applied::NotListening) => {}
                Err(error) => eprintln!("report ignored: {error}"),
            }
        }
        if let Some(stream) = *answering {
            while let Ok(1..) = connection.send_stream(stream).write(&[0; 10_000]) {}
        }
        host.transmit(now)
    }

    /// Returns the pacing rate.
    fn pacing(&self) -> Option<Rate> {
        let (_, connection) = self.host.connection.as_ref()?;
        let bytes_per_second = connection.congestion_state(PathId::ZERO)?.metrics().pacing_rate?;
        Rate::from_bps(bytes_per_second * 8)
    }
}

/// (2) Configures a connection whose controller takes reports, and whose loss-detection thresholds
/// leave the tunnel time to repair.
fn accepting(config: &ServerConfig, feedback: &Feedback) -> Arc<ServerConfig> {
    let mut transport = TransportConfig::default();
    transport
        .congestion_controller_factory(factory(&ControllerName::Tecc.into(), feedback.clone()))
        .packet_threshold(1000)
        .time_threshold(1.75);
    let mut config = config.clone();
    config.transport_config(Arc::new(transport));
    Arc::new(config)
}

/// The client, which sends one request, reads the answer, and sends reports.
struct Client {
    host: Host,
    request: Option<StreamId>,
    sequence: u64,
    next_report: Instant,
}

impl Client {
    fn new(config: ClientConfig, server: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let mut host = Host::bind(None)?;
        host.connection = Some(host.endpoint.connect(now(), config, server, "localhost")?);
        Ok(Self { host, request: None, sequence: 0, next_report: now() })
    }

    fn turn(&mut self, reported: Option<Rate>) -> Result<(), Box<dyn Error>> {
        let now = now();
        self.host.receive(now, || unreachable!("nobody connects to a client"))?;
        let Some((_, connection)) = &mut self.host.connection else { return Ok(()) };
        while let Some(event) = connection.poll() {
            if let Event::Connected = event {
                self.request = connection.streams().open(Dir::Bi);
            }
            if let Event::ConnectionLost { reason } = event {
                return Err(reason.into());
            }
        }
        if let Some(stream) = self.request {
            if self.sequence == 0 {
                connection.send_stream(stream).write(b"please")?;
            }
            if let Ok(mut chunks) = connection.recv_stream(stream).read(true) {
                while let Ok(Some(_)) = chunks.next(usize::MAX) {}
            }
            if let Some(rate) = reported.filter(|_| self.next_report <= now) {
                self.next_report = now + INTERVAL;
                let mut datagram = BytesMut::new();
                report(self.sequence, rate).encode(&mut datagram);
                self.sequence += 1;
                connection.datagrams().send(datagram.freeze(), true)?;
            }
        }
        self.host.transmit(now)
    }
}

/// The report of a proxy on a tunnel whose queue has its target length.
fn report(sequence: u64, sending_rate: Rate) -> TunnelInfo {
    TunnelInfo {
        sequence: sequence.try_into().unwrap_or_default(),
        sending_rate,
        bandwidth: None,
        queue: sending_rate.bytes_in(QUEUE_TARGET),
        retransmit_ratio: Ratio::ZERO,
        min_rtt: DELAY,
        smoothed_rtt: DELAY,
        arrival_rate: None,
    }
}

/// One end of the path, with a socket and at most one connection.
struct Host {
    socket: UdpSocket,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    /// The packets that were received, with the time at which they arrive over the longer path.
    arriving: VecDeque<(Instant, SocketAddr, BytesMut)>,
}

impl Host {
    fn bind(server: Option<ServerConfig>) -> Result<Self, Box<dyn Error>> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let endpoint =
            Endpoint::new(Arc::new(EndpointConfig::default()), server.map(Arc::new), true);
        Ok(Self { socket, endpoint, connection: None, arriving: VecDeque::new() })
    }

    fn receive(
        &mut self,
        now: Instant,
        mut accepting: impl FnMut() -> Arc<ServerConfig>,
    ) -> Result<(), Box<dyn Error>> {
        let mut buffer = [0; 2000];
        loop {
            match self.socket.recv_from(&mut buffer) {
                Ok((len, from)) => {
                    let packet = BytesMut::from(buffer.get(..len).unwrap_or_default());
                    self.arriving.push_back((now + DELAY, from, packet));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        while self.arriving.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, from, packet)) = self.arriving.pop_front() else { break };
            let (path, mut answer) = (FourTuple::new(from, None), Vec::new());
            match self.endpoint.handle(now, path, None, packet, &mut answer) {
                Some(DatagramEvent::NewConnection(incoming)) => {
                    let config = Some(accepting());
                    let accepted = self.endpoint.accept(incoming, now, &mut answer, config);
                    self.connection = Some(accepted.map_err(|error| error.cause)?);
                }
                Some(DatagramEvent::ConnectionEvent(_, event)) => {
                    if let Some((_, connection)) = &mut self.connection {
                        connection.handle_event(event);
                    }
                }
                Some(DatagramEvent::Response(_)) | None => {}
            }
        }
        let Some((handle, connection)) = &mut self.connection else { return Ok(()) };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        if connection.poll_timeout().is_some_and(|timer| timer <= now) {
            connection.handle_timeout(now);
        }
        Ok(())
    }

    fn transmit(&mut self, now: Instant) -> Result<(), Box<dyn Error>> {
        let Some((_, connection)) = &mut self.connection else { return Ok(()) };
        let mut packet = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, NonZeroUsize::MIN, &mut packet) {
            self.socket.send_to(&packet, transmit.destination)?;
            packet.clear();
        }
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "this program has the real clock")]
fn now() -> Instant {
    Instant::now()
}

fn configs() -> Result<(ServerConfig, ClientConfig), Box<dyn Error>> {
    let key = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new(["localhost".to_owned()])?.self_signed(&key)?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().clone())?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let server = ServerConfig::with_single_cert(vec![certificate.der().clone()], key)?;
    let mut client = ClientConfig::with_root_certificates(Arc::new(roots))?;
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(1_000_000));
    client.transport_config(Arc::new(transport));
    Ok((server, client))
}
