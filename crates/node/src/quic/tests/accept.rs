//! Strangers cannot take the places or the memory of a server from its clients.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use noq_proto::TokenMemoryCache;

use super::{SERVER, tls};
use crate::{
    limits::{Limits, Pace},
    quic::{
        ClientTls, Closed, ConnectionId, Endpoint, Event, Heaviest, ResetSecret, Returning,
        ServerTls, Steering, Transport, Turn,
    },
    stats::Accepting,
};

/// A server, and clients that connect to it.
struct Crowd {
    now: Instant,
    server: Endpoint,
    server_tls: ServerTls,
    client_tls: ClientTls,
    clients: BTreeMap<SocketAddr, Endpoint>,
    /// The address tokens that the clients at each address have got.
    tokens: BTreeMap<SocketAddr, Arc<TokenMemoryCache>>,
    /// How many clients there were. It makes each of them different.
    begun: u64,
    /// The server's connections that were accepted and not lost, by the address of their peer.
    open: BTreeMap<SocketAddr, ConnectionId>,
    lost: Vec<Closed>,
    /// Bytes of UDP payload that the server received and sent.
    received: usize,
    sent: usize,
}

impl Crowd {
    fn new(limits: &Limits) -> Self {
        Self::with(&Transport::default(), limits)
    }

    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    fn with(transport: &Transport, limits: &Limits) -> Self {
        let (server_tls, client_tls) = tls();
        Self {
            now: Instant::now(),
            server: Endpoint::server(&server_tls, transport, limits, Some(1)),
            server_tls,
            client_tls,
            clients: BTreeMap::new(),
            tokens: BTreeMap::new(),
            begun: 0,
            open: BTreeMap::new(),
            lost: Vec::new(),
            received: 0,
            sent: 0,
        }
    }

    /// Lets a client at this address send its first packet.
    fn begin(&mut self, address: &str) -> SocketAddr {
        let address = address.parse().unwrap();
        let (transport, limits) = (Transport::default(), Limits::default());
        self.begun += 1;
        let seed = Some(self.begun);
        let tokens =
            self.tokens.entry(address).or_insert_with(|| TokenMemoryCache::new(1, 2).into());
        let tls = ClientTls { tokens: tokens.clone(), ..self.client_tls.clone() };
        let mut client = Endpoint::client(&tls, &transport, &limits, seed);
        client.connect(self.now, SERVER, "localhost").unwrap();
        for packet in super::transmit(&mut client, self.now) {
            self.to_server(address, &packet);
        }
        self.clients.insert(address, client);
        address
    }

    /// Lets a client at this address connect. Returns whether the server keeps the connection.
    fn connect(&mut self, address: &str) -> bool {
        let address = self.begin(address);
        self.run();
        self.open.contains_key(&address)
    }

    fn prove(&mut self, address: &str) {
        let id = self.open[&address.parse().unwrap()];
        self.server.prove(id);
    }

    fn to_server(&mut self, from: SocketAddr, packet: &[u8]) {
        self.received += packet.len();
        self.server.handle_datagram(self.now, (from, None), None, BytesMut::from(packet));
    }

    /// Takes the events and packets of the server. Returns the packets by their destination.
    fn poll_server(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        while let Some((id, event)) = self.server.poll_event() {
            match event {
                Event::Accepted { remote } => {
                    self.open.insert(remote, id);
                }
                Event::Lost(why) => {
                    self.open.retain(|_, open| *open != id);
                    self.lost.push(why);
                }
                _ => {}
            }
        }
        let mut packets = Vec::new();
        let mut buf = Vec::new();
        loop {
            buf.clear();
            let transmit = self.server.poll_answer(&mut buf).or_else(|| {
                let id = self.server.next_ready()?;
                self.server.poll_transmit(self.now, id, &mut buf)
            });
            if let Some(transmit) = transmit {
                assert_eq!(transmit.size, buf.len());
                self.sent += buf.len();
                let segment = transmit.segment_size.unwrap_or(transmit.size);
                let split = buf.chunks(segment).map(|it| (transmit.destination, it.to_vec()));
                packets.extend(split);
            } else if self.server.next_ready().is_none() {
                return packets;
            }
        }
    }

    /// Delivers all packets, for some round trips.
    fn run(&mut self) {
        for _ in 0..10 {
            self.wait(Duration::from_millis(10));
            self.deliver();
            let addresses: Vec<_> = self.clients.keys().copied().collect();
            for address in addresses {
                let client = self.clients.get_mut(&address).unwrap();
                while client.poll_event().is_some() {}
                for packet in super::transmit(client, self.now) {
                    self.to_server(address, &packet);
                }
            }
        }
    }

    /// Lets time pass for the server. The clients get its packets and do not answer.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        self.deliver();
        while let Some(due) = self.server.next_timeout().filter(|due| *due <= end) {
            self.now = due.max(self.now);
            self.server.handle_timeout(self.now);
            if due == end {
                break;
            }
            self.deliver();
        }
        self.now = end;
    }

    /// Delivers the packets of the server.
    fn deliver(&mut self) {
        let packets = self.poll_server();
        for (to, packet) in packets {
            if let Some(client) = self.clients.get_mut(&to) {
                client.handle_datagram(self.now, (SERVER, None), None, BytesMut::from(&*packet));
            }
        }
    }

    /// Lets a client send a packet. Returns whether the answer says that the server has forgotten it.
    fn learns_of_restart(&mut self, address: &str) -> bool {
        let address = address.parse().unwrap();
        let client = self.clients.get_mut(&address).unwrap();
        while client.poll_event().is_some() {}
        let id = *client.slots.first_key_value().unwrap().0;
        client.connection(id).unwrap().ping();
        for packet in super::transmit(client, self.now) {
            self.to_server(address, &packet);
        }
        self.deliver();
        let client = self.clients.get_mut(&address).unwrap();
        std::iter::from_fn(|| client.poll_event()).any(|(_, event)| matches!(event, Event::Lost(_)))
    }

    fn counters(&self) -> Accepting {
        self.server.accepting()
    }
}

/// Limits that a test reaches quickly.
fn few() -> Limits {
    Limits { connections: 12, connections_per_prefix: 4, ..Limits::default() }
}

#[test]
fn one_forged_packet_draws_three_times_its_bytes_at_most_and_leaves_nothing_behind() {
    let mut crowd = Crowd::new(&Limits::default());
    crowd.begin("192.0.2.1:1");
    crowd.clients.clear();
    crowd.wait(Duration::from_secs(9));
    assert_eq!(crowd.server.connections(), 1);
    crowd.wait(Duration::from_secs(2));
    crowd.poll_server();
    assert!(crowd.sent > crowd.received, "the server repeats its handshake");
    assert!(crowd.sent <= 3 * crowd.received, "{} for {} bytes", crowd.sent, crowd.received);
    assert_eq!((crowd.server.connections(), &*crowd.lost), (0, &[Closed::TimedOut][..]));
    assert_eq!(crowd.counters(), Accepting { handshakes_timed_out: 1, ..Accepting::default() });
}

#[test]
fn half_open_handshakes_make_the_server_ask_for_a_proof_of_the_address() {
    let mut crowd = Crowd::new(&Limits { unvalidated_handshakes: 3, ..Limits::default() });
    for port in 1..=20 {
        crowd.begin(&format!("192.0.2.1:{port}"));
        crowd.clients.clear();
    }
    assert_eq!((crowd.server.connections(), crowd.counters().retried), (3, 17));
    assert!(crowd.connect("192.0.2.1:100"), "a client with a real address is asked, and let in");
    assert_eq!((crowd.server.connections(), crowd.counters().retried), (4, 18));
    crowd.wait(Duration::from_secs(11));
    assert!(crowd.connect("192.0.2.1:101"));
    assert_eq!(crowd.counters().retried, 18, "nothing is half-open any more");
}

#[test]
fn strangers_of_one_prefix_displace_each_other_only() {
    let mut crowd = Crowd::new(&few());
    for user in ["192.0.2.1:1", "192.0.2.1:2", "198.51.100.1:1"] {
        assert!(crowd.connect(user));
    }
    crowd.prove("192.0.2.1:1");
    for port in 10..40 {
        assert!(crowd.connect(&format!("192.0.2.{port}:1")), "{port}");
    }
    let open: Vec<_> = crowd.open.keys().map(ToString::to_string).collect();
    let expected = ["192.0.2.1:1", "192.0.2.36:1", "192.0.2.37:1", "192.0.2.38:1", "192.0.2.39:1"];
    assert_eq!(open, [&expected[..], &["198.51.100.1:1"]].concat());
    assert_eq!(crowd.counters().refused, 0);
    assert_eq!(crowd.counters().displaced, 27);
}

#[test]
fn a_client_with_a_permitted_request_stays_when_strangers_take_all_places() {
    let mut crowd = Crowd::new(&few());
    assert!(crowd.connect("192.0.2.1:1"));
    crowd.prove("192.0.2.1:1");
    for prefix in 0..8 {
        for host in 1..=4 {
            assert!(crowd.connect(&format!("10.0.{prefix}.{host}:1")));
        }
    }
    assert_eq!(crowd.server.connections(), 12);
    assert!(crowd.open.contains_key(&"192.0.2.1:1".parse().unwrap()));
    assert!(crowd.connect("203.0.113.1:1"), "a new client gets a place");
    crowd.prove("203.0.113.1:1");
    assert!(crowd.connect("10.0.9.1:1") && crowd.connect("10.0.9.2:1"));
    assert!(crowd.open.contains_key(&"203.0.113.1:1".parse().unwrap()));
}

#[test]
fn one_prefix_with_every_place_gives_some_to_others() {
    let mut crowd = Crowd::new(&few());
    for host in 1..=12 {
        let address = format!("192.0.2.{host}:1");
        assert!(crowd.connect(&address));
        crowd.prove(&address);
    }
    assert!(!crowd.connect("192.0.2.13:1"), "it has more than its share");
    assert!(crowd.connect("198.51.100.1:1"));
    crowd.prove("198.51.100.1:1");
    assert!(!crowd.open.contains_key(&"192.0.2.12:1".parse().unwrap()), "the newest has gone");
    assert_eq!((crowd.open.len(), crowd.counters().refused), (12, 1));
}

#[test]
fn memory_is_taken_from_strangers_and_then_from_the_heaviest() {
    let limits = Limits { memory: 6_000_000, ..Limits::default() };
    let mut crowd = Crowd::new(&limits);
    let users = ["192.0.2.1:1", "192.0.2.1:2", "192.0.2.1:3"];
    for user in users {
        assert!(crowd.connect(user));
        crowd.prove(user);
    }
    assert!(crowd.connect("198.51.100.1:1"));
    let heavy = crowd.open[&users[1].parse().unwrap()];
    let weigh = |id| if id == heavy { 1_000_000 } else { 0 };

    crowd.server.set_memory_in_use(crowd.now, 3_000_000, weigh);
    crowd.run();
    assert_eq!(crowd.open.len(), 4, "half may be used");

    crowd.server.set_memory_in_use(crowd.now, 3_000_001, weigh);
    crowd.run();
    assert_eq!(crowd.open.len(), 3);
    assert!(!crowd.open.values().any(|id| *id == heavy), "a stranger had no time for a request");
    assert!(!crowd.connect("198.51.100.2:1") || crowd.open.len() == 3, "no place in addition");

    crowd.server.set_memory_in_use(crowd.now, 0, weigh);
    assert!(crowd.connect("198.51.100.3:1"));
    crowd.wait(Duration::from_secs(4));
    crowd.server.set_memory_in_use(crowd.now, 3_100_000, weigh);
    crowd.run();
    let open: Vec<_> = crowd.open.keys().map(ToString::to_string).collect();
    assert_eq!(open, [users[0], users[2]], "the strangers had time for a request");
    assert_eq!(crowd.counters().closed_for_memory, 3);
}

#[test]
fn a_crowd_of_strangers_pays_before_users_do_even_if_it_has_just_come() {
    let limits = Limits { memory: 6_000_000, ..Limits::default() };
    let mut crowd = Crowd::new(&limits);
    let user = "192.0.2.1:1";
    assert!(crowd.connect(user));
    crowd.prove(user);
    let newcomer = "203.0.113.1:1";
    assert!(crowd.connect(newcomer));
    for port in 1..=40 {
        assert!(crowd.connect(&format!("198.51.100.1:{port}")));
    }
    let of_user = crowd.open[&user.parse().unwrap()];
    let weigh = |id| if id == of_user { 1_000_000 } else { 50_000 };
    crowd.server.set_memory_in_use(crowd.now, 3_900_000, weigh);
    crowd.run();
    for who in [user, newcomer] {
        assert!(crowd.open.contains_key(&who.parse().unwrap()), "{who}");
    }
    assert!(crowd.open.len() < 42 - 5, "{} are left", crowd.open.len());
    // The next ones would be clients who have just come.
    crowd.server.set_memory_in_use(crowd.now, 5_900_000, weigh);
    crowd.run();
    assert!(!crowd.open.contains_key(&user.parse().unwrap()));
    assert!(crowd.open.len() < 18);
}

#[test]
fn the_heaviest_connection_of_all_nodes_is_closed() {
    let limits = Limits { memory: 6_000_000, ..Limits::default() };
    let heaviest = Heaviest::default();
    let mut nodes = [0, 1].map(|index| {
        let steering = Steering::new(index, 2, Turn::First).unwrap();
        let heaviest = heaviest.clone();
        let mut node =
            Crowd::with(&Transport { steering, heaviest, ..Transport::default() }, &limits);
        assert!(node.connect("192.0.2.1:1") && node.connect("192.0.2.1:2"));
        node.prove("192.0.2.1:1");
        node.prove("192.0.2.1:2");
        node
    });
    let set = |node: &mut Crowd, bytes: u64, weight: u64| {
        let heavy = *node.open.values().next().unwrap();
        let weigh = |id| if id == heavy { weight } else { 0 };
        node.server.set_memory_in_use(node.now, bytes, weigh);
        node.run();
        node.open.len()
    };
    let [light, heavy] = &mut nodes;
    assert_eq!((set(heavy, 2_900_000, 2_000_000), set(light, 2_900_000, 500_000)), (2, 2));
    assert_eq!(set(light, 3_100_000, 500_000), 2, "the other node has a heavier one");
    assert_eq!(set(heavy, 3_100_000, 2_000_000), 1);
    // The heavy one has gone, but something else has taken its memory.
    assert_eq!(set(light, 3_100_000, 500_000), 1);
    assert_eq!((set(light, 1_000_000, 0), set(heavy, 1_000_000, 0)), (1, 1));
    assert_eq!(
        heaviest.of_others(Steering::new(2, 3, Turn::First).unwrap()),
        0,
        "nobody is short of memory"
    );
}

/// Limits with which a prefix has this many handshakes at once, and then one each ten seconds.
fn paced(at_once: u32) -> Limits {
    let prefix = Duration::from_secs(10);
    let handshakes =
        Pace { prefix, node: Duration::from_millis(100), burst: prefix * at_once, prefixes: 100 };
    Limits { handshakes, ..Limits::default() }
}

#[test]
fn forged_packets_take_half_of_what_a_prefix_may_begin_and_leave_the_rest() {
    let mut crowd = Crowd::new(&paced(20));
    for port in 1..=40 {
        crowd.begin(&format!("192.0.2.1:{port}"));
        crowd.clients.clear();
        crowd.poll_server();
    }
    let counters = crowd.counters();
    assert_eq!((crowd.server.connections(), counters.retried), (10, 30));
    assert!(crowd.connect("192.0.2.2:1"), "a real client of the prefix is asked, and let in");
    assert!(crowd.connect("198.51.100.1:1"));
    assert_eq!(crowd.counters().retried, 31, "another prefix is not even asked");
    assert_eq!((crowd.counters().over_prefix_pace, crowd.counters().over_pace), (0, 0));
}

#[test]
fn a_busy_prefix_has_to_wait_and_another_has_not() {
    let mut crowd = Crowd::new(&paced(20));
    let open: Vec<_> =
        (1..=30).filter(|host| crowd.connect(&format!("192.0.2.{host}:1"))).collect();
    assert_eq!(open, (1..=15).collect::<Vec<_>>(), "a quarter is for clients that come again");
    assert_eq!(crowd.counters().over_prefix_pace, 15);
    assert!(crowd.lost.is_empty(), "nobody was refused: {:?}", crowd.lost);
    assert!(crowd.connect("198.51.100.1:1"));
    crowd.wait(Duration::from_secs(10));
    let late = "192.0.2.16:1".parse().unwrap();
    let client = crowd.clients.get_mut(&late).unwrap();
    client.handle_timeout(crowd.now);
    crowd.run();
    assert!(crowd.open.contains_key(&late), "it repeats its packet, and is let in");
}

#[test]
fn a_client_with_a_permitted_request_comes_again_past_strangers_of_its_address() {
    let returning = Some(Returning::new());
    let mut crowd = Crowd::with(&Transport { returning, ..Transport::default() }, &paced(20));
    let (user, stranger) = ("192.0.2.1:1", "192.0.2.1:2");
    for address in [user, stranger] {
        assert!(crowd.connect(address));
    }
    crowd.prove(user);
    crowd.run();
    for port in 10..40 {
        crowd.connect(&format!("192.0.2.1:{port}"));
    }
    let put_off = crowd.counters().over_prefix_pace;
    assert_eq!(put_off, 17);
    let mut come_again = |address: &str| {
        crowd.open.remove(&address.parse().unwrap());
        crowd.connect(address)
    };
    assert!(!come_again(stranger), "it has a token too, but made no permitted request");
    assert!(come_again(user));
    assert!(!come_again(user), "the new connection has made no request yet");
    assert_eq!(crowd.counters().over_prefix_pace, put_off + 2);
}

#[test]
fn all_peers_of_a_server_learn_at_once_that_it_has_restarted() {
    let reset_secret = Some(ResetSecret([7; 32]));
    let transport = Transport { reset_secret, ..Transport::default() };
    for (what, stranger, packets) in [
        ("nobody else", "203.0.113.1:9", 0),
        ("a stranger beside them", "192.0.2.200:9", 5),
        ("a stranger from elsewhere", "203.0.113.1:9", 5),
        ("more than the budget of a prefix, from elsewhere", "203.0.113.1:9", 40),
    ] {
        let mut crowd = Crowd::with(&transport, &Limits::default());
        let peers: Vec<_> = (1..=150).map(|host| format!("192.0.2.{host}:1")).collect();
        for peer in &peers {
            assert!(crowd.connect(peer), "{peer}");
        }
        let limits = Limits::default();
        crowd.server = Endpoint::server(&crowd.server_tls, &transport, &limits, Some(2));
        let mut told = 0;
        for peer in &peers {
            crowd.wait(Duration::from_millis(1));
            let from = stranger.parse().unwrap();
            for number in 0..packets {
                let mut packet = [number; 61];
                packet[0] = 0x40;
                packet[1] = u8::try_from(told % 250).unwrap();
                crowd.to_server(from, &packet);
            }
            told += usize::from(crowd.learns_of_restart(peer));
        }
        assert_eq!(told, peers.len(), "{what}");
        let too_many = crowd.server.unusable_packets().too_many;
        assert_eq!(too_many > 0, packets > 10, "{what}: {too_many}");
    }
}
