//! Two engines send each other numbered datagrams. The path between them loses, delays and
//! duplicates packets, and its MTU may shrink.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use noq_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, Event,
    FourTuple, MtuDiscoveryConfig, PathId, ServerConfig, TransportConfig,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tandem_congestion::{ControllerConfig, ControllerName, Feedback, factory};

use super::super::{DatagramId, Deliveries, Delivery, StreamId, tracking};

/// The conditions of the path, and the events on it.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    pub(crate) seed: u64,
    pub(crate) controller: ControllerName,
    pub(crate) loss_percent: u32,
    pub(crate) repeat_percent: u32,
    pub(crate) delay: Duration,
    /// A random delay of up to this much is added, so that packets overtake each other.
    pub(crate) jitter: Duration,
    /// The longest datagram, in bytes.
    pub(crate) longest: usize,
    /// How many datagrams each side sends.
    pub(crate) datagrams: u64,
    pub(crate) interval: Duration,
    pub(crate) events: Vec<(Duration, Incident)>,
}

/// An event that occurs once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incident {
    /// The client's NAT changes its port.
    NewPort,
    /// The client gets another address.
    NewAddress,
    KeyUpdate,
    /// From now on the path carries packets up to this size.
    PathCarries(usize),
}

/// The delivery reports of one side, and the datagrams that the other side received.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) taken: u64,
    pub(crate) verdicts: BTreeMap<u64, Delivery>,
    pub(crate) reported_twice: u64,
    /// Whether the client's address changed.
    pub(crate) has_moved: bool,
    /// How often the other side received each datagram.
    pub(crate) received: BTreeMap<u64, u64>,
    /// How many datagrams were in flight at the end.
    pub(crate) in_flight: usize,
    /// How many datagrams the engine had taken, but not sent at the end.
    pub(crate) unsent: usize,
    /// The share of packets that the path lost, in percent.
    pub(crate) loss_percent: u32,
}

impl Outcome {
    pub(crate) fn with(&self, delivery: Delivery) -> impl Iterator<Item = u64> {
        let reported = self.verdicts.iter().filter(move |(_, verdict)| **verdict == delivery);
        reported.map(|(&id, _)| id)
    }

    /// Whether every datagram has a delivery report.
    pub(crate) fn is_complete(&self) -> bool {
        self.verdicts.len() as u64 == self.taken
    }

    /// Whether an engine surely gets everything through within the time of a run. On a path that
    /// loses more, probe timeouts double again and again. And when acknowledgements are lost while
    /// both sides wait for such timeouts, the peer's next probe acknowledges old packets again,
    /// which the engine takes for a round-trip time of seconds.
    pub(crate) fn has_good_path(&self) -> bool {
        self.loss_percent <= 10
    }

    /// Whether every datagram has a delivery report, is in flight or waits in the engine.
    pub(crate) fn is_accounted_for(&self) -> bool {
        (self.verdicts.len() + self.in_flight + self.unsent) as u64 == self.taken
    }

    /// The numbers that say what became of the datagrams.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{} of {} reported, {} in flight, {} unsent",
            self.verdicts.len(),
            self.taken,
            self.in_flight,
            self.unsent,
        )
    }

    /// How many datagrams arrived although they were declared lost.
    pub(crate) fn spurious(&self) -> usize {
        self.with(Delivery::Lost).filter(|id| self.received.contains_key(id)).count()
    }
}

struct Side {
    endpoint: Endpoint,
    handle: Option<ConnectionHandle>,
    connection: Option<Connection>,
    deliveries: Deliveries,
    next_id: u64,
    outcome: Outcome,
    received: BTreeMap<u64, u64>,
}

impl Side {
    /// Ends the connection, and notes what had no delivery report until then.
    fn end(mut self) -> Self {
        self.connection = None;
        self.outcome.in_flight = self.deliveries.numbers().len();
        self.deliveries.settle_unsent();
        self.outcome.unsent = std::iter::from_fn(|| self.deliveries.poll()).count();
        self
    }
}

/// A packet in flight: its arrival time, its number, the index of its receiver, and its bytes.
type InFlight = (Instant, u64, usize, Vec<u8>);

/// Two engines, the path between them, and the time.
pub(crate) struct Engines {
    conditions: Conditions,
    now: Instant,
    start: Instant,
    /// The client and the server.
    sides: [Side; 2],
    packets: BinaryHeap<Reverse<InFlight>>,
    carried: u64,
    random: StdRng,
    client_address: SocketAddr,
    path_carries: usize,
    next_send: Instant,
    is_confirmed: bool,
    next_event: Instant,
    /// No packet is lost for a while after a migration. The engine gives up the validation of a new
    /// path after three probe timeouts, and may then send nearly nothing for the rest of the run.
    calm_until: Instant,
}

const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 443);

impl Engines {
    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    pub(crate) fn new(conditions: Conditions) -> Self {
        let now = Instant::now();
        let deliveries = [Deliveries::default(), Deliveries::default()];
        let (server, client) = configs(&conditions, &deliveries);
        let mut sides = deliveries.map(|deliveries| Side {
            endpoint: Endpoint::new(Arc::new(EndpointConfig::default()), None, true),
            handle: None,
            connection: None,
            deliveries,
            next_id: 0,
            outcome: Outcome::default(),
            received: BTreeMap::new(),
        });
        sides[1].endpoint.set_server_config(Some(Arc::new(server)));
        let (handle, connection) =
            sides[0].endpoint.connect(now, client, SERVER, "localhost").unwrap();
        sides[0].handle = Some(handle);
        sides[0].connection = Some(connection);
        Self {
            now,
            start: now,
            sides,
            packets: BinaryHeap::new(),
            carried: 0,
            random: StdRng::seed_from_u64(conditions.seed),
            client_address: SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), 1000)),
            path_carries: 1500,
            next_send: now,
            is_confirmed: false,
            next_event: now,
            calm_until: now,
            conditions,
        }
    }

    /// Runs until all datagrams have been sent and have delivery reports, or for 1000 seconds.
    /// Returns the outcomes of the client and of the server.
    pub(crate) fn run(mut self) -> [Outcome; 2] {
        let end = self.start + Duration::from_secs(1000);
        while self.now < end && !self.is_done() && self.step() {}
        let has_moved = self.calm_until > self.start;
        let loss_percent = self.conditions.loss_percent;
        let [client, server] = self.sides.map(Side::end);
        [
            Outcome { received: server.received, has_moved, loss_percent, ..client.outcome },
            Outcome { received: client.received, has_moved, loss_percent, ..server.outcome },
        ]
    }

    fn is_done(&self) -> bool {
        self.sides
            .iter()
            .all(|side| side.next_id >= self.conditions.datagrams && side.outcome.is_complete())
    }

    fn step(&mut self) -> bool {
        self.run_incident();
        if self.is_confirmed && self.now >= self.next_send {
            self.next_send = self.now + self.conditions.interval;
            self.send();
        }
        for index in 0..2 {
            self.transmit(index);
            self.collect(index);
        }
        let timers = self.sides.iter().filter_map(|side| side.connection.as_ref()?.poll_timeout());
        let arrival = self.packets.peek().map(|Reverse((arrival, ..))| *arrival);
        let sends = self.sides.iter().any(|side| side.next_id < self.conditions.datagrams);
        let send = (sends && self.is_confirmed).then_some(self.next_send);
        let Some(next) = timers.chain(arrival).chain(send).min() else { return false };
        self.now = next.max(self.now + Duration::from_nanos(1));
        for side in &mut self.sides {
            if let Some(connection) = &mut side.connection
                && connection.poll_timeout().is_some_and(|timer| timer <= self.now)
            {
                connection.handle_timeout(self.now);
            }
        }
        while self.packets.peek().is_some_and(|Reverse((arrival, ..))| *arrival <= self.now) {
            let Some(Reverse((_, _, index, packet))) = self.packets.pop() else { break };
            self.receive(index, &packet);
        }
        true
    }

    fn run_incident(&mut self) {
        // Before the handshake is confirmed there is no migration (RFC 9000 §9) and no key update
        // (RFC 9001 §6). A further key update must wait for the acknowledgement of the last.
        if !self.is_confirmed || self.now < self.next_event {
            return;
        }
        let elapsed = self.now - self.start;
        let due = self.conditions.events.iter().position(|(at, _)| *at <= elapsed);
        if let Some((_, incident)) = due.map(|index| self.conditions.events.remove(index)) {
            self.next_event = self.now + Duration::from_secs(2);
            match incident {
                Incident::NewPort => {
                    self.calm_until = self.next_event;
                    self.client_address.set_port(self.client_address.port() + 1);
                }
                Incident::NewAddress => {
                    self.calm_until = self.next_event;
                    let host = self.random.random_range(10..250);
                    self.client_address.set_ip(Ipv4Addr::new(10, 0, 0, host).into());
                }
                Incident::PathCarries(bytes) => self.path_carries = bytes,
                Incident::KeyUpdate => {
                    self.sides[0].connection.as_mut().unwrap().force_key_update();
                }
            }
        }
    }

    fn send(&mut self) {
        for side in &mut self.sides {
            let Some(connection) = &mut side.connection else { continue };
            let Some(max) = connection.datagrams().max_size() else { continue };
            for _ in 0..self.random.random_range(1..4) {
                if side.next_id >= self.conditions.datagrams {
                    continue;
                }
                // Small datagrams share packets.
                let longest = max.min(self.conditions.longest);
                let len = if self.random.random_bool(0.3) {
                    self.random.random_range(8..100)
                } else {
                    longest
                };
                let mut data = vec![0; len];
                data[..8].copy_from_slice(&side.next_id.to_be_bytes());
                let id = DatagramId { stream: StreamId(0), number: side.next_id };
                side.next_id += 1;
                let tracked = side.deliveries.track(id, Bytes::from(data));
                if connection.datagrams().send(tracked, false).is_ok() {
                    side.outcome.taken += 1;
                } else {
                    side.deliveries.untrack(id);
                }
            }
        }
    }

    fn transmit(&mut self, index: usize) {
        let side = &mut self.sides[index];
        let Some(connection) = &mut side.connection else { return };
        side.deliveries.settle_unsent();
        let segments = NonZeroUsize::new(10).unwrap();
        let mut packets = Vec::new();
        while let Some(transmit) = connection.poll_transmit(self.now, segments, &mut packets) {
            for packet in packets.chunks(transmit.segment_size.unwrap_or(transmit.size)) {
                let random = &mut self.random;
                let is_lost = packet.len() > self.path_carries
                    || random.random_ratio(self.conditions.loss_percent, 100)
                        && self.now >= self.calm_until;
                let copies = match is_lost {
                    true => 0,
                    false if random.random_ratio(self.conditions.repeat_percent, 100) => 2,
                    false => 1,
                };
                for _ in 0..copies {
                    let late = self.conditions.jitter.mul_f64(random.random());
                    let arrival = self.now + self.conditions.delay + late;
                    self.carried += 1;
                    let to = 1 - index;
                    self.packets.push(Reverse((arrival, self.carried, to, packet.to_vec())));
                }
            }
            packets.clear();
        }
    }

    fn receive(&mut self, index: usize, packet: &[u8]) {
        let from = if index == 0 { SERVER } else { self.client_address };
        let side = &mut self.sides[index];
        let path = FourTuple::new(from, None);
        let mut answer = Vec::new();
        match side.endpoint.handle(self.now, path, None, BytesMut::from(packet), &mut answer) {
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = side.endpoint.accept(incoming, self.now, &mut answer, None);
                let (handle, connection) = accepted.unwrap();
                side.handle = Some(handle);
                side.connection = Some(connection);
            }
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                side.connection.as_mut().unwrap().handle_event(event);
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
        self.collect(index);
    }

    /// Handles the events, datagrams and delivery reports of a side.
    fn collect(&mut self, index: usize) {
        let side = &mut self.sides[index];
        let (Some(connection), Some(handle)) = (&mut side.connection, side.handle) else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = side.endpoint.handle_event(handle, event) {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll() {
            assert!(!matches!(event, Event::ConnectionLost { .. }), "{event:?}");
            self.is_confirmed |= index == 0 && matches!(event, Event::HandshakeConfirmed);
        }
        while let Some(data) = connection.datagrams().recv() {
            let id = u64::from_be_bytes(data[..8].try_into().unwrap());
            *side.received.entry(id).or_default() += 1;
        }
        while let Some((DatagramId { number: id, .. }, delivery)) = side.deliveries.poll() {
            let reported_before = side.outcome.verdicts.insert(id, delivery).is_some();
            side.outcome.reported_twice += u64::from(reported_before);
        }
        // The engine shows the state of the controller inside.
        assert!(connection.congestion_state(PathId::ZERO).is_some_and(|it| it.window() > 0));
    }
}

fn configs(conditions: &Conditions, deliveries: &[Deliveries; 2]) -> (ServerConfig, ClientConfig) {
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
    let transport = |deliveries: &Deliveries| {
        let controller = ControllerConfig { seed: conditions.seed, ..conditions.controller.into() };
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.black_hole_cooldown(Duration::from_secs(5)).interval(Duration::from_secs(6));
        let mut transport = TransportConfig::default();
        transport
            .mtu_discovery_config(Some(discovery))
            .max_idle_timeout(None)
            .keep_alive_interval(Some(Duration::from_millis(10)))
            .congestion_controller_factory(tracking(
                factory(&controller, Feedback::default()),
                (deliveries.clone(), None, None),
            ));
        Arc::new(transport)
    };
    client.transport_config(transport(&deliveries[0]));
    server.transport_config(transport(&deliveries[1]));
    (server, client)
}
