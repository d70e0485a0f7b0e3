//! The delivery reports of a connection agree with the datagrams that its peer received.

mod accept;
mod beside;
mod handshakes;
mod hellos;
mod owners;
mod passage;
mod streams;
mod turns;
mod versions;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::{
    ClientTls, Connection, ConnectionId, DatagramId, Delivery, Endpoint, Event, ServerTls,
    StreamId, Transport,
};
use crate::limits::Limits;

pub(super) const SERVER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

const DATAGRAMS: u64 = 2000;

#[derive(Clone, Copy, Default)]
struct Path {
    /// Lost packets in percent.
    lost: u32,
    repeated: u32,
    late: u32,
    /// The client changes its address each time after this many datagrams.
    moves_after: Option<u64>,
    /// Both sides update their keys each time after this many datagrams.
    keys_after: Option<u64>,
    /// The largest packet that passes in the second half of the run.
    shrinks_to: Option<usize>,
}

impl Path {
    fn passes(&self, packet: &[u8], sent: u64) -> bool {
        let largest = self.shrinks_to.filter(|_| sent > DATAGRAMS / 2);
        largest.is_none_or(|largest| packet.len() <= largest)
    }

    /// The copies of a packet that arrive, each by how many milliseconds it is late.
    fn arrivals(&self, random: &mut StdRng) -> Vec<u64> {
        let copies = match random.random_range(0..100) {
            roll if roll < self.lost => 0,
            roll if roll < self.lost + self.repeated => 2,
            _ => 1,
        };
        let late = |_| if random.random_range(0..100) < self.late { 15 } else { 0 };
        (0..copies).map(late).collect()
    }

    /// The address of the client after it has sent this many datagrams.
    fn client(&self, sent: u64) -> SocketAddr {
        let moves = self.moves_after.map_or(0, |after| sent / after);
        SocketAddr::new(SERVER.ip(), 1000 + u16::try_from(moves).unwrap())
    }
}

/// A packet in flight: its arrival time, its number, the index of its receiver, and its bytes.
type InFlight = (Instant, u64, usize, Vec<u8>);

#[derive(Default)]
struct Outcome {
    reported: BTreeMap<u64, Delivery>,
    received: BTreeSet<u64>,
}

pub(super) fn tls() -> (ServerTls, ClientTls) {
    tls_with(std::sync::Arc::new(rustls::crypto::ring::default_provider()))
}

fn tls_with(provider: std::sync::Arc<rustls::crypto::CryptoProvider>) -> (ServerTls, ClientTls) {
    let (server, client) = rustls_with(provider);
    (server, ClientTls::new(client).unwrap())
}

fn rustls_with(
    provider: std::sync::Arc<rustls::crypto::CryptoProvider>,
) -> (ServerTls, rustls::ClientConfig) {
    let names = ["localhost".to_owned()];
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(names).unwrap();
    let certificate = cert.der().clone();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (ServerTls::new(server).unwrap(), client)
}

/// The ID of the datagram with this number.
pub(super) const fn datagram(number: u64) -> DatagramId {
    DatagramId { stream: StreamId(0), number }
}

/// Lets a client send tracked datagrams until all have delivery reports.
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn send_over(path: &Path, seed: u64) -> Outcome {
    let (server_tls, client_tls) = tls();
    let (transport, limits) = (Transport::default(), Limits::default());
    let mut now = Instant::now();
    let end = now + Duration::from_secs(600);
    let mut random = StdRng::seed_from_u64(seed);
    let mut sides = [
        Endpoint::client(&client_tls, &transport, &limits, Some(seed)),
        Endpoint::server(&server_tls, &transport, &limits, Some(seed + 1)),
    ];
    let client = sides[0].connect(now, SERVER, "localhost").unwrap();
    let mut packets = BinaryHeap::<Reverse<InFlight>>::new();
    let (mut carried, mut next_id) = (0, 0);
    let mut outcome = Outcome::default();
    let mut is_connected = false;
    while outcome.reported.len() < usize::try_from(DATAGRAMS).unwrap() {
        assert!(now < end, "{} of {DATAGRAMS} delivery reports arrived", outcome.reported.len());
        for side in &mut sides {
            while let Some((id, event)) = side.poll_event() {
                assert!(!matches!(event, Event::Lost(_)), "{event:?}");
                is_connected |= id == client && matches!(event, Event::Connected);
                while let Some(data) = side.connection(id).and_then(Connection::receive_datagram) {
                    let is_new =
                        outcome.received.insert(u64::from_be_bytes(*data.first_chunk().unwrap()));
                    assert!(is_new, "the engine drops duplicates");
                }
            }
        }
        let connection = sides[0].connection(client).unwrap();
        while is_connected && next_id < DATAGRAMS && connection.has_room_for_datagram(1452) {
            if path.keys_after.is_some_and(|after| next_id % after == after - 1) {
                connection.inner().force_key_update();
            }
            let full = connection.max_datagram_size().unwrap();
            let mut data = vec![0; [8, 1000, full][random.random_range(0..3)]];
            data[..8].copy_from_slice(&next_id.to_be_bytes());
            if !connection.send_tracked_datagram(datagram(next_id), Bytes::from(data)) {
                break;
            }
            next_id += 1;
        }
        while let Some((DatagramId { number: id, .. }, delivery)) = connection.poll_delivery() {
            assert_eq!(outcome.reported.insert(id, delivery), None, "{id} is reported of twice");
        }
        if let Some((DatagramId { number: newest, .. }, sent)) = connection.newest_datagram() {
            assert!(sent <= now && newest < next_id && !outcome.reported.contains_key(&newest));
        }
        for (index, side) in sides.iter_mut().enumerate() {
            for packet in transmit(side, now).iter().filter(|packet| path.passes(packet, next_id)) {
                for late in path.arrivals(&mut random) {
                    carried += 1;
                    let arrival = now + Duration::from_millis(20 + late);
                    packets.push(Reverse((arrival, carried, 1 - index, packet.clone())));
                }
            }
        }
        let timers = sides.iter().filter_map(Endpoint::next_timeout);
        let arrival = packets.peek().map(|Reverse((at, ..))| *at);
        now = timers.chain(arrival).min().unwrap().max(now + Duration::from_nanos(1));
        for side in &mut sides {
            side.handle_timeout(now);
        }
        while packets.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, _, index, packet))) = packets.pop() else { break };
            let from = if index == 0 { SERVER } else { path.client(next_id) };
            sides[index].handle_datagram(now, (from, None), None, BytesMut::from(&*packet));
        }
    }
    outcome
}

pub(super) fn transmit(side: &mut Endpoint, now: Instant) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    let mut buf = Vec::new();
    while let Some(id) = side.next_ready() {
        let Some(transmit) = side.poll_transmit(now, ConnectionId(id.0), &mut buf) else {
            continue;
        };
        let segment = transmit.segment_size.unwrap_or(transmit.size);
        sent.extend(buf.chunks(segment).map(<[u8]>::to_vec));
        buf.clear();
    }
    sent
}

#[test]
fn delivery_reports_agree_with_the_received_datagrams() {
    for seed in 1..=4 {
        let path = Path { lost: 10, repeated: 5, late: 10, ..Path::default() };
        let Outcome { reported, received } = send_over(&path, seed);
        for (id, delivery) in &reported {
            match delivery {
                Delivery::Acked => {
                    assert!(received.contains(id), "seed {seed}: {id} never arrived");
                }
                // A datagram that arrived late may be reported as lost.
                Delivery::Lost => {}
                Delivery::Unknown | Delivery::Late => {
                    panic!("seed {seed}: the delivery of {id} is not known")
                }
            }
        }
        let missing = reported.keys().filter(|id| !received.contains(id)).count();
        assert!((50..500).contains(&missing), "seed {seed}: {missing} did not arrive");
    }
}

#[test]
fn without_reordering_no_received_datagram_is_reported_as_lost() {
    for seed in 1..=4 {
        assert_exact(&Path { lost: 5, repeated: 5, ..Path::default() }, seed);
    }
}

/// Asserts that the delivery reports are exactly the datagrams that the peer received.
fn assert_exact(path: &Path, seed: u64) {
    let Outcome { reported, received } = send_over(path, seed);
    for (id, delivery) in &reported {
        let came = received.contains(id);
        assert_eq!(*delivery == Delivery::Acked, came, "seed {seed}: {id} {delivery:?}");
    }
}

#[test]
fn key_updates_and_a_smaller_mtu_do_not_change_the_reports() {
    for seed in 1..=3 {
        let path = Path { lost: 3, ..Path::default() };
        assert_exact(&Path { keys_after: Some(300), ..path }, seed);
        assert_exact(&Path { shrinks_to: Some(1300), ..path }, seed);
    }
}

#[test]
fn after_a_migration_acknowledged_datagrams_have_arrived() {
    for seed in 1..=3 {
        let path = Path { lost: 3, moves_after: Some(400), ..Path::default() };
        let Outcome { reported, received } = send_over(&path, seed);
        let arrived = reported.iter().filter(|(_, delivery)| **delivery == Delivery::Acked);
        let wrong = arrived.filter(|(id, _)| !received.contains(id)).count();
        assert_eq!(wrong, 0, "seed {seed}");
    }
}
