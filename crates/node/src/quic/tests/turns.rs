//! An endpoint asks only the connections that changed for events, and lets connections send in
//! turns.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};

use super::{SERVER, tls};
use crate::{
    limits::Limits,
    quic::{Connection, ConnectionId, Endpoint, Event, SendDatagram, Transport},
};

/// A server and clients that have connected to it.
struct Star {
    now: Instant,
    server: Endpoint,
    clients: Vec<(Endpoint, ConnectionId, SocketAddr)>,
    /// The server's IDs of the connections, in the order of the clients.
    connections: Vec<ConnectionId>,
}

impl Star {
    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    fn new(clients: u16) -> Self {
        let (server_tls, client_tls) = tls();
        let (transport, limits) = (Transport::default(), Limits::default());
        let server = Endpoint::server(&server_tls, &transport, &limits, Some(1));
        let mut star =
            Self { now: Instant::now(), server, clients: Vec::new(), connections: Vec::new() };
        for number in 0..clients {
            let seed = Some(100 + u64::from(number));
            let mut client = Endpoint::client(&client_tls, &transport, &limits, seed);
            let id = client.connect(star.now, SERVER, "localhost").unwrap();
            let address = SocketAddr::new(SERVER.ip(), 1000 + number);
            star.clients.push((client, id, address));
            // The clients connect one after the other, so that the connections are in their order.
            star.run();
        }
        assert_eq!(star.connections.len(), usize::from(clients));
        star
    }

    /// Delivers all packets, for 20 rounds of 10 ms.
    fn run(&mut self) {
        for _ in 0..20 {
            self.now += Duration::from_millis(10);
            self.server.handle_timeout(self.now);
            for index in 0..self.clients.len() {
                let (client, ..) = &mut self.clients[index];
                client.handle_timeout(self.now);
                while client.poll_event().is_some() {}
                for packet in super::transmit(client, self.now) {
                    self.deliver(index, &packet);
                }
            }
            while let Some((id, event)) = self.server.poll_event() {
                if matches!(event, Event::Connected) {
                    self.connections.push(id);
                }
            }
            self.flush();
        }
    }

    /// Delivers a packet of a client to the server.
    fn deliver(&mut self, client: usize, packet: &[u8]) {
        let from = (self.clients[client].2, None);
        self.server.handle_datagram(self.now, from, None, BytesMut::from(packet));
    }

    /// Delivers the packets of the server to its clients. Returns the connections in the order of
    /// their turns.
    fn flush(&mut self) -> Vec<ConnectionId> {
        let (mut turns, mut buf) = (Vec::new(), Vec::new());
        while let Some(id) = self.server.next_ready() {
            let Some(transmit) = self.server.poll_transmit(self.now, id, &mut buf) else {
                continue;
            };
            turns.push(id);
            let (client, ..) =
                self.clients.iter_mut().find(|(_, _, at)| *at == transmit.destination).unwrap();
            for packet in buf.chunks(transmit.segment_size.unwrap_or(transmit.size)) {
                let from = (SERVER, None);
                client.handle_datagram(self.now, from, None, BytesMut::from(packet));
            }
            buf.clear();
        }
        turns
    }

    /// Lets a client send a datagram to the server. Returns how many connections the server asks
    /// for events.
    fn visits_for_a_datagram(&mut self, client: usize) -> usize {
        let (endpoint, id, _) = &mut self.clients[client];
        let connection = endpoint.connection(*id).unwrap();
        assert_eq!(connection.send_datagram(Bytes::from_static(b"data")), SendDatagram::Taken);
        let packets = super::transmit(endpoint, self.now);
        let before = self.server.visits;
        for packet in packets {
            self.deliver(client, &packet);
        }
        let mut came = 0;
        while let Some((id, event)) = self.server.poll_event() {
            assert_eq!(id, self.connections[client]);
            came += usize::from(matches!(event, Event::Datagrams));
        }
        assert_eq!(came, 1);
        let visits = self.server.visits - before;
        let connection = self.server.connection(self.connections[client]);
        assert!(connection.and_then(Connection::receive_datagram).is_some());
        while self.server.poll_event().is_some() {}
        visits
    }
}

#[test]
fn only_the_connection_of_a_packet_is_asked_for_events() {
    for clients in [1, 10, 60] {
        let mut star = Star::new(clients);
        assert_eq!(star.visits_for_a_datagram(0), 1, "{clients} connections, all idle");
        for client in 0..clients.into() {
            let id = star.connections[client];
            star.server.connection(id).unwrap().ping();
        }
        while star.server.poll_event().is_some() {}
        assert_eq!(star.visits_for_a_datagram(0), 1, "{clients} connections, all ready to send");
        // After the turn of one connection, the others are not asked again.
        let (before, mut buf) = (star.server.visits, Vec::new());
        let id = star.server.next_ready().unwrap();
        assert!(star.server.poll_transmit(star.now, id, &mut buf).is_some());
        while star.server.poll_event().is_some() {}
        assert_eq!(star.server.visits - before, 1, "{clients} connections");
    }
}

#[test]
fn connections_send_in_turns_in_the_order_in_which_they_became_ready() {
    let mut star = Star::new(3);
    let order: Vec<_> = [2, 0, 1].map(|client: usize| star.connections[client]).into();
    for id in &order {
        let connection = star.server.connection(*id).unwrap();
        // The engine gets more datagrams than one system call takes.
        while connection.has_room_for_datagram(1000) {
            let sent = connection.send_datagram(Bytes::from(vec![0; 1000]));
            assert_eq!(sent, SendDatagram::Taken);
        }
    }
    while star.server.poll_event().is_some() {}
    let turns = star.flush();
    assert_eq!(turns[..3], order[..], "{turns:?}");
    assert_eq!(turns[3..6], order[..], "{turns:?}");
}

/// How many of 60 turns a connection gets, and the most turns for which it waits, beside eight
/// connections of which all have more to send than a busy thread can.
fn turns_beside_eight_others(are_one_user: bool) -> (usize, usize) {
    let mut star = Star::new(9);
    let (polite, greedy) = (star.connections[0], star.connections[1..].to_vec());
    if are_one_user {
        star.server.set_user(polite, 1);
        for id in greedy {
            star.server.set_user(id, 2);
        }
    }
    let (mut buf, mut got, mut waited, mut longest) = (Vec::new(), 0, 0, 0);
    for _ in 0..60 {
        for id in star.connections.clone() {
            // What a full congestion window holds back is not the subject here.
            star.server.connection(id).unwrap().ping();
        }
        while star.server.poll_event().is_some() {}
        let id = star.server.next_ready().unwrap();
        assert!(star.server.poll_transmit(star.now, id, &mut buf).is_some());
        waited = if id == polite { 0 } else { waited + 1 };
        got += usize::from(id == polite);
        longest = longest.max(waited);
    }
    (got, longest)
}

#[test]
fn a_user_with_eight_connections_takes_one_turn_in_two() {
    let (got, longest) = turns_beside_eight_others(false);
    assert!((6..=7).contains(&got) && longest == 8, "by connection: {got}, {longest}");
    let (got, longest) = turns_beside_eight_others(true);
    assert!((29..=31).contains(&got) && longest <= 2, "by user: {got}, {longest}");
}
