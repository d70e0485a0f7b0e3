//! Packets that reach the wrong one of several nodes, each of which knows the secret of stateless resets: another
//! thread, another process, another machine.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tandem_wire::{RoutableIds, TransportField};

use super::{SERVER, tls, transmit};
use crate::{
    limits::Limits,
    quic::{
        Closed, ConnectionId, Endpoint, Event, Fleet, FleetSecret, Generation, Neighbours,
        OtherProcess, ResetKeys, ResetSecret, ServerTls, Steering, Transport, Turn,
        UnusablePackets,
    },
};

/// How many forged packets each of the other nodes gets.
const TRIES: u64 = 1000;

const CLIENT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1000);

/// A node of a server with these settings.
fn node(tls: &ServerTls, transport: &Transport) -> Endpoint {
    Endpoint::server(tls, transport, &Limits::default(), None)
}

/// The nodes of one process.
fn threads(nodes: u8, turn: Turn, of_process: &Transport) -> Vec<Transport> {
    let steering = (0..nodes).map(|index| Steering::new(index, nodes, turn).unwrap());
    steering.map(|steering| Transport { steering, ..of_process.clone() }).collect()
}

fn process() -> Transport {
    Transport { reset_secret: Some(ResetSecret([7; 32])), ..Transport::default() }
}

/// The nodes of two processes, of which one takes over from the other.
fn takeover(nodes: u8, of_process: &Transport) -> Vec<Transport> {
    let process = || Transport { other_process: OtherProcess::default(), ..of_process.clone() };
    let (old, new) = (process(), process());
    old.other_process.set(true);
    new.other_process.set(true);
    let mut all = threads(nodes, Turn::First, &old);
    all.extend(threads(nodes, Turn::Second, &new));
    all
}

/// Machines of a fleet. Each of them knows that the others are there.
fn machines(count: u8, key: Option<&[u8; 16]>) -> Vec<Transport> {
    let generation = |rotation| Generation {
        ids: RoutableIds::new(rotation, 2, 8, key).unwrap(),
        secret: FleetSecret([rotation; 32]),
    };
    let server_id = |machine: u8| vec![0, machine];
    let machine = |machine| {
        let fleet = Fleet::new(server_id(machine), vec![generation(1), generation(0)]).unwrap();
        let others = (0..count).filter(|other| *other != machine).map(server_id);
        let others = others.map(|server_id| (server_id, SERVER));
        let fleet = Some(fleet.with_neighbours(Neighbours::new(others)));
        Transport { fleet, ..Transport::default() }
    };
    (0..count).map(machine).collect()
}

/// A client with a connection to one of several nodes.
struct Connected {
    now: Instant,
    nodes: Vec<Endpoint>,
    owner: usize,
    client: Endpoint,
    /// The connection IDs in the client's packets.
    seen: BTreeSet<Vec<u8>>,
    why_lost: Option<Closed>,
    /// The connection at the client and at its node.
    ids: [Option<ConnectionId>; 2],
}

impl Connected {
    /// A client whose `seen` packets are those of its sealed transport.
    fn sealed(settings: &[Transport], owner: usize) -> Self {
        let mut connected = Self::new(settings, owner);
        let [client, node] = connected.ids.map(|id| id.expect("the handshake completes"));
        let client = connected.client.connection(client).unwrap();
        let node = connected.nodes[owner].connection(node).unwrap();
        let (offer, grant) = (client.sealed_offer().unwrap(), node.sealed_offer().unwrap());
        let reset = ResetKeys::new(&settings[owner]).unwrap().token(&grant);
        let now = connected.now;
        node.agree_on_sealed(now, TransportField { id: offer, reset: None }).unwrap();
        client.agree_on_sealed(now, TransportField { id: grant, reset }).unwrap();
        connected.client.touch(connected.ids[0].unwrap());
        connected.seen.clear();
        connected.run();
        assert_eq!(connected.seen.first().map(Vec::as_slice), Some(&grant[..]));
        connected.seen.retain(|id| *id == grant[..]);
        connected
    }

    /// Both of these.
    fn both(settings: &[Transport], owner: usize) -> [(&'static str, Self); 2] {
        let sealed = Self::sealed(settings, owner);
        [("QUIC", Self::new(settings, owner)), ("the sealed transport", sealed)]
    }

    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    fn new(settings: &[Transport], owner: usize) -> Self {
        let (server_tls, client_tls) = tls();
        let limits = Limits::default();
        let mut client = Endpoint::client(&client_tls, &Transport::default(), &limits, None);
        let now = Instant::now();
        client.connect(now, SERVER, "localhost").unwrap();
        let nodes = settings.iter().map(|transport| node(&server_tls, transport)).collect();
        let mut connected = Self {
            now,
            nodes,
            owner,
            client,
            seen: BTreeSet::new(),
            why_lost: None,
            ids: [None; 2],
        };
        connected.run();
        assert!(!connected.seen.is_empty(), "the handshake completes");
        connected
    }

    fn is_reset(&self) -> bool {
        matches!(&self.why_lost, Some(Closed::Transport(why)) if why.to_string().contains("reset"))
    }

    /// Lets the client and its node exchange packets for some round trips.
    fn run(&mut self) {
        let len = self.nodes[self.owner].id_len;
        for _ in 0..6 {
            self.now += Duration::from_millis(20);
            for packet in transmit(&mut self.client, self.now) {
                if packet[0] & 0x80 == 0 {
                    self.seen.insert(packet[1..=len].to_vec());
                }
                self.to_node(self.owner, &packet);
            }
            while let Some((id, _)) = self.nodes[self.owner].poll_event() {
                self.ids[1] = Some(id);
            }
            for packet in transmit(&mut self.nodes[self.owner], self.now) {
                self.to_client(&packet);
            }
        }
    }

    fn to_node(&mut self, node: usize, packet: &[u8]) {
        let packet = BytesMut::from(packet);
        self.nodes[node].handle_datagram(self.now, (CLIENT, None), None, packet);
    }

    fn to_client(&mut self, packet: &[u8]) {
        self.client.handle_datagram(self.now, (SERVER, None), None, BytesMut::from(packet));
        while let Some((id, event)) = self.client.poll_event() {
            self.ids[0] = Some(id);
            if let Event::Lost(why) = event {
                self.why_lost = Some(why);
            }
        }
    }

    /// A packet that has one of the client's connection IDs, as one that nobody but the owner can read.
    fn packet(&self) -> Vec<u8> {
        let id = self.seen.last().expect("the client has sent packets");
        [&[0x40], &id[..], &[0x55; 1200]].concat()
    }

    /// Sends a node forged packets with IDs that were seen, and the client what could be learnt from the answers.
    fn attack(&mut self, node: usize, tries: u64) {
        let mut random = StdRng::seed_from_u64(node as u64);
        let seen: Vec<_> = self.seen.iter().cloned().collect();
        for number in 0..tries {
            self.now += Duration::from_millis(20); // at most as often as the engine sends resets
            let id = &seen[usize::try_from(number).unwrap() % seen.len()];
            let mut packet = vec![0; random.random_range(id.len() + 1..1400)];
            random.fill(&mut packet[..]);
            packet[0] = 0x40 | packet[0] & 0x3f;
            packet[1..=id.len()].copy_from_slice(id);
            self.to_node(node, &packet);
            let mut answer = Vec::new();
            while self.nodes[node].poll_answer(&mut answer).is_some() {
                let token = answer.split_off(answer.len() - 16);
                let mut forged = vec![0x55; 30];
                forged.extend(token);
                self.to_client(&forged);
                answer.clear();
            }
        }
    }
}

#[test]
fn no_node_but_its_own_can_be_made_to_end_a_connection() {
    let key = Some(&[9; 16]);
    let in_fleet = |machine: usize| machines(2, key).swap_remove(machine);
    let two_machines = |of: fn(u8, &Transport) -> Vec<Transport>| {
        let mut all = of(2, &in_fleet(0));
        all.extend(of(2, &in_fleet(1)));
        all
    };
    let arrangements = [
        ("two threads", threads(2, Turn::First, &process())),
        ("three threads of a process that took over", threads(3, Turn::Second, &process())),
        ("takeover", takeover(1, &process())),
        ("takeover with two threads", takeover(2, &process())),
        ("three machines", machines(3, None)),
        ("three machines with a key", machines(3, key)),
        ("machines with threads", two_machines(|nodes, it| threads(nodes, Turn::First, it))),
        ("machines, threads and takeovers", two_machines(takeover)),
    ];
    for (what, settings) in arrangements {
        for owner in 0..settings.len() {
            for (of, mut connected) in Connected::both(&settings, owner) {
                let what = format!("{what}, {of}");
                for other in (0..settings.len()).filter(|other| *other != owner) {
                    connected.attack(other, TRIES);
                    assert_eq!(connected.why_lost, None, "{what}: {owner}, {other}");
                    let UnusablePackets { for_another, .. } =
                        connected.nodes[other].unusable_packets();
                    assert_eq!(for_another, TRIES, "{what}: {owner}, {other}");
                }
                connected.attack(owner, 10);
                connected.run();
                assert_eq!(connected.why_lost, None, "{what}: {owner}");
            }
        }
    }
}

#[test]
fn the_node_of_a_lost_connection_ends_it() {
    // One that does would show that the test above can fail.
    let takes_over = threads(2, Turn::Second, &process());
    for (what, settings) in [
        ("a thread", threads(2, Turn::First, &process())),
        ("a process that took over and is alone now", takes_over),
        ("a machine", machines(2, Some(&[9; 16]))),
    ] {
        for (of, mut connected) in Connected::both(&settings, 1) {
            let (server_tls, _) = tls();
            connected.nodes[1] = node(&server_tls, &settings[1]);
            connected.attack(1, 1);
            assert!(connected.is_reset(), "{what}, {of}: {:?}", connected.why_lost);
        }
    }
}

#[test]
fn only_a_reset_with_the_right_token_and_address_ends_a_connection_with_a_sealed_transport() {
    let settings = [process()];
    let token = |connected: &Connected| {
        let id = connected.seen.first().expect("it is that of the sealed transport");
        *ResetKeys::new(&settings[0]).unwrap().token(id).unwrap().as_bytes()
    };
    let elsewhere = SocketAddr::new(SERVER.ip(), 7);
    for (what, front, change, from, expected) in [
        ("a reset", vec![0x41; 5], 0, SERVER, true),
        ("the largest one", vec![0x7f; 1400], 0, SERVER, true),
        ("another token", vec![0x41; 5], 1, SERVER, false),
        ("another address", vec![0x41; 5], 0, elsewhere, false),
        ("a long header", vec![0xc1; 30], 0, SERVER, false),
        ("too short", vec![0x41; 4], 0, SERVER, false),
    ] {
        let mut connected = Connected::sealed(&settings, 0);
        let mut packet = front;
        packet.extend(token(&connected));
        *packet.last_mut().unwrap() ^= change;
        connected.client.handle_datagram(
            connected.now,
            (from, None),
            None,
            BytesMut::from(&packet[..]),
        );
        connected.to_client(&[]);
        assert_eq!(connected.is_reset(), expected, "{what}: {:?}", connected.why_lost);
        let client = connected.ids[0].unwrap();
        let is_open = connected.client.connection(client).is_some_and(|it| !it.is_closed());
        assert_eq!(is_open, !expected, "{what}");
    }
}

#[test]
fn another_machine_ends_the_connections_of_one_that_is_gone() {
    let settings = machines(3, Some(&[9; 16]));
    let neighbours = settings[2].fleet.as_ref().unwrap().neighbours().clone();
    for (of, mut connected) in Connected::both(&settings, 1) {
        neighbours.set_gone(1, false);
        connected.attack(2, 10);
        assert_eq!(connected.why_lost, None, "{of}");
        assert_eq!(neighbours.take_asked().collect::<Vec<_>>(), [1], "the second of the others");
        neighbours.set_gone(1, true);
        connected.attack(2, 1);
        assert!(connected.is_reset(), "{of}: {:?}", connected.why_lost);
    }
}

#[test]
fn packets_that_came_before_their_machine_was_known_to_be_gone_are_answered_then() {
    let settings = machines(3, Some(&[9; 16]));
    for (is_gone, patience) in [(true, 1000), (false, 1000), (true, 4000)] {
        let mut connected = Connected::new(&settings, 1);
        let packet = connected.packet();
        connected.to_node(2, &packet);
        connected.now += Duration::from_millis(patience);
        let neighbours = settings[2].fleet.as_ref().unwrap().neighbours().clone();
        neighbours.set_gone(1, is_gone);
        assert!(connected.nodes[2].next_timeout().is_some_and(|at| at < connected.now));
        connected.nodes[2].handle_timeout(connected.now);
        let mut answer = Vec::new();
        while connected.nodes[2].poll_answer(&mut answer).is_some() {
            assert!(answer.len() < packet.len(), "a reset is smaller than the packet");
            connected.to_client(&std::mem::take(&mut answer));
        }
        let expected = is_gone && patience == 1000;
        assert_eq!(connected.is_reset(), expected, "{is_gone}, {patience}");
        assert_eq!(connected.nodes[2].next_timeout().is_some(), !is_gone, "{is_gone}, {patience}");
        neighbours.set_gone(1, false);
    }
}

#[test]
fn the_ids_of_a_process_that_has_ended_belong_to_the_node_that_gets_their_packets() {
    let settings = takeover(2, &process());
    let mut connected = Connected::new(&settings, 1);
    connected.attack(3, 10);
    assert_eq!(connected.why_lost, None, "the old process still has it");
    settings[3].other_process.set(false);
    connected.attack(2, 10);
    assert_eq!(connected.why_lost, None, "the other thread gets no such packets");
    connected.attack(3, 1);
    assert!(connected.is_reset(), "{:?}", connected.why_lost);
}
