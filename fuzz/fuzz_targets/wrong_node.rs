//! Several servers at one address, of which each client has one: threads, a process that takes over, and
//! machines of a fleet. Packets arrive at the wrong one, as they do when the kernel joins packets of one sender.
//!
//! Whoever gets a packet, no stateless reset leaves that is valid for a connection that lives: whoever saw one
//! packet of it could end it with that.

#![no_main]

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tandem_fuzz::{
    bed::{Client as _, proxy_config, server_address},
    input::{Reader, control_stream},
    null_crypto::NullCrypto,
    raw_client::{Direction, RawClient},
};
use tandem_node::{
    Input, Node, Output, Proxy,
    limits::Limits,
    node::{Received, SocketId},
    quic::{
        Fleet, FleetSecret, Generation, OtherProcess, ResetSecret, ServerTls, Steering, Transport,
        Turn,
    },
};
use tandem_wire::RoutableIds;

/// The largest number of steps of one run.
const STEPS_MAX: usize = 200;

/// The largest number of clients.
const CLIENTS_MAX: usize = 6;

/// The most outputs of a server, one after the other.
const OUTPUTS_MAX: usize = 10_000;

/// The packet number of the first packet with a short header of a client. Nothing authenticates packets here, but a
/// server drops one that has come before, as it drops a forged one.
const REPLAYED: u32 = 2;

/// How the servers share the address.
const SHARES: [fn(usize) -> Transport; 4] = [
    |index| of_threads(index, 2, Turn::First),
    |index| of_threads(index % 2, 2, if index < 2 { Turn::First } else { Turn::Second }),
    |index| in_fleet(index, Steering::ALONE),
    |index| in_fleet(index / 2, steering(index % 2, 2, Turn::First)),
];

/// The number of servers of each share.
const SERVERS: [usize; 4] = [2, 4, 2, 4];

fn steering(index: usize, nodes: u8, turn: Turn) -> Steering {
    Steering::new(index as u8, nodes, turn).expect("there is such a node")
}

fn of_threads(index: usize, nodes: u8, turn: Turn) -> Transport {
    let reset_secret = Some(ResetSecret([1; 32]));
    Transport { steering: steering(index, nodes, turn), reset_secret, ..Transport::default() }
}

fn in_fleet(machine: usize, steering: Steering) -> Transport {
    let ids = RoutableIds::new(0, 1, 8, None).expect("the lengths are allowed");
    let generation = Generation { ids, secret: FleetSecret([2; 32]) };
    let fleet = Fleet::new(vec![machine as u8], vec![generation]).expect("the file is sound");
    Transport { steering, fleet: Some(fleet), ..Transport::default() }
}

struct World {
    servers: Vec<Proxy>,
    clients: Vec<RawClient>,
    /// The server of each client.
    homes: Vec<usize>,
    /// Whether each client has closed its connection.
    closed: Vec<bool>,
    answers: VecDeque<(SocketAddr, BytesMut)>,
    now: Instant,
}

fuzz_target!(|input: &[u8]| {
    let mut reader = Reader::new(input);
    let share = usize::from(reader.byte()) % SHARES.len();
    let mut world = World::new(share);
    for _ in 0..STEPS_MAX {
        if reader.is_empty() {
            break;
        }
        world.step(&mut reader);
    }
});

impl World {
    fn new(share: usize) -> Self {
        let (tls, other_process) =
            (ServerTls::replaced_by(Arc::new(NullCrypto)), OtherProcess::default());
        other_process.set(share == 1);
        let server = |index| {
            let mut config = proxy_config();
            let transport = SHARES[share](index);
            config.transport = Transport { other_process: other_process.clone(), ..transport };
            config.limits = Limits { connections: 100, ..Limits::default() };
            config.seed = Some(index as u64);
            Proxy::with_tls(config, &tls).expect("the settings are sound")
        };
        #[expect(clippy::disallowed_methods, reason = "only differences to it matter")]
        let now = Instant::now();
        let mut world = Self {
            servers: (0..SERVERS[share]).map(server).collect(),
            clients: Vec::new(),
            homes: Vec::new(),
            closed: Vec::new(),
            answers: VecDeque::new(),
            now,
        };
        for index in 0..world.servers.len() {
            world.drain(index);
            let (socket, result) = (SocketId(0), Ok(server_address()));
            world.servers[index].handle(now, Input::SocketOpened { socket, result });
            world.drain(index);
        }
        world
    }

    fn step(&mut self, reader: &mut Reader) {
        let (what, client, server) = (reader.byte(), reader.byte(), reader.byte());
        match what % 8 {
            0 => self.connect(usize::from(server) % self.servers.len()),
            1 => {
                self.now += Duration::from_millis(server.into());
                for index in 0..self.servers.len() {
                    self.servers[index].handle(self.now, Input::Timeout);
                }
                self.exchange();
            }
            2 if client >= 0xf0 => {
                let Some(at) = usize::from(server).checked_rem(self.clients.len()) else { return };
                self.closed[at] = true;
                let now = self.now;
                self.clients[at].close(now);
                self.exchange();
            }
            _ => self.stray(what, client, server, reader),
        }
    }

    fn connect(&mut self, home: usize) {
        let index = self.clients.len();
        if index >= CLIENTS_MAX {
            return;
        }
        let address = SocketAddr::from(([192, 0, 2, 1], 50_000 + index as u16));
        let mut client = RawClient::connect(address, 65_536);
        client.open(Direction::Out, &control_stream());
        self.clients.push(client);
        self.homes.push(home);
        self.closed.push(false);
        self.exchange();
    }

    /// Delivers a packet with one of the IDs of a client to any server.
    fn stray(&mut self, what: u8, client: u8, server: u8, reader: &mut Reader) {
        let Some(at) = usize::from(client).checked_rem(self.clients.len()) else { return };
        let server = usize::from(server) % self.servers.len();
        let (id, len) = (reader.byte(), usize::from(reader.number() % 1500));
        let issued = &self.clients[at].issued;
        let Some(id) = usize::from(id).checked_rem(issued.len()) else { return };
        let is_short = what & 0x80 == 0;
        let mut packet = vec![if is_short { 0x43 } else { what }];
        packet.extend(&issued[id].0);
        if is_short {
            packet.extend(REPLAYED.to_be_bytes());
        }
        packet.extend(reader.bytes());
        packet.resize(packet.len().max(len), what);
        // An attacker may have any address, also that of the client.
        let remote = if what & 0x40 == 0 {
            SocketAddr::from(([198, 51, 100, 1], 1))
        } else {
            self.clients[at].address()
        };
        self.deliver(server, remote, BytesMut::from(&packet[..]));
        self.exchange();
    }

    fn deliver(&mut self, server: usize, remote: SocketAddr, payload: BytesMut) {
        let local_ip = Some(server_address().ip());
        let received = Received { socket: SocketId(0), remote, local_ip, ecn: None, payload };
        self.servers[server].handle(self.now, Input::Datagram(received));
        self.drain(server);
    }

    fn exchange(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            let mut is_busy = false;
            for index in 0..self.servers.len() {
                self.drain(index);
            }
            while let Some((to, packet)) = self.answers.pop_front() {
                let client = self.clients.iter_mut().find(|client| client.address() == to);
                if let Some(client) = client {
                    client.handle(self.now, server_address(), packet);
                }
            }
            for at in 0..self.clients.len() {
                if let Some(packet) = self.clients[at].poll(self.now) {
                    let address = self.clients[at].address();
                    self.deliver(self.homes[at], address, packet);
                    is_busy = true;
                }
            }
            if !is_busy && self.answers.is_empty() {
                return;
            }
        }
        panic!("clients and servers never become idle");
    }

    fn drain(&mut self, server: usize) {
        let mut buf = Vec::new();
        for _ in 0..OUTPUTS_MAX {
            buf.clear();
            match self.servers[server].poll(self.now, &mut buf) {
                Output::Wait(_) => return,
                Output::Transmit { transmit, .. } => {
                    for packet in buf.chunks(transmit.segment_size.unwrap_or(buf.len()).max(1)) {
                        self.check(server, packet);
                        self.answers.push_back((transmit.destination, BytesMut::from(packet)));
                    }
                }
                _ => {}
            }
        }
        panic!("a server emitted {OUTPUTS_MAX} successive outputs");
    }

    /// RFC 9000 §10.3.2: a token must not leave while its connection ID "is in use".
    fn check(&self, server: usize, packet: &[u8]) {
        let Some((_, end)) = packet.split_last_chunk::<16>() else { return };
        for (at, client) in self.clients.iter().enumerate().filter(|(at, _)| !self.closed[*at]) {
            // The client itself gets the tokens in packets of its connection.
            let is_reset = client.issued.iter().any(|(_, token)| token == end)
                && !packet.get(1..).is_some_and(|rest| rest.starts_with(client.own()));
            assert!(
                !is_reset,
                "server {server} tells how to end what server {} has",
                self.homes[at]
            );
        }
    }
}
