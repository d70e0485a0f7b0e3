//! What the QUIC connection sends beside the sealed transport.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tandem_wire::TransportField;

use super::{SERVER, tls, transmit};
use crate::{
    limits::Limits,
    quic::{
        Connection, ConnectionId, DatagramTransport, Direction, Endpoint, Event, Read, StreamId,
        Transport,
    },
};

const ONE_WAY: Duration = Duration::from_millis(20);

/// A client and a server that have agreed on the sealed transport.
struct Pair {
    now: Instant,
    sides: [Endpoint; 2],
    ids: [ConnectionId; 2],
    in_flight: VecDeque<(Instant, usize, Vec<u8>)>,
}

impl Pair {
    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    fn new() -> Self {
        let (server_tls, client_tls) = tls();
        let transport = Transport { datagrams: DatagramTransport::Sealed, ..Transport::default() };
        let limits = Limits::default();
        let mut sides = [
            Endpoint::client(&client_tls, &transport, &limits, Some(1)),
            Endpoint::server(&server_tls, &transport, &limits, Some(2)),
        ];
        let now = Instant::now();
        let client = sides[0].connect(now, SERVER, "localhost").unwrap();
        let mut pair = Self { now, sides, ids: [client; 2], in_flight: VecDeque::new() };
        pair.run_for(Duration::from_secs(1), 0);
        let offers = [0, 1].map(|side| pair.connection(side).sealed_offer().unwrap());
        for side in [0, 1] {
            let now = pair.now;
            let peer = TransportField { id: offers[1 - side], reset: None };
            pair.connection(side).agree_on_sealed(now, peer).unwrap();
            pair.sides[side].touch(pair.ids[side]);
        }
        pair.run_for(Duration::from_secs(1), 0);
        pair
    }

    fn connection(&mut self, side: usize) -> &mut Connection {
        let id = self.ids[side];
        self.sides[side].connection(id).unwrap()
    }

    /// Sends what both sides have, and loses the first packets of the client. Returns how many packets the client sent.
    fn send(&mut self, lost: &mut usize) -> usize {
        let mut sent = 0;
        for side in [0, 1] {
            for packet in transmit(&mut self.sides[side], self.now) {
                sent += usize::from(side == 0);
                if side == 0 && *lost > 0 {
                    *lost -= 1;
                } else {
                    self.in_flight.push_back((self.now + ONE_WAY, 1 - side, packet));
                }
            }
        }
        sent
    }

    /// Lets time pass, and loses the client's next packets. Returns how many packets the client sent.
    fn run_for(&mut self, time: Duration, mut lost: usize) -> usize {
        let end = self.now + time;
        let mut sent = 0;
        loop {
            for (side, endpoint) in self.sides.iter_mut().enumerate() {
                endpoint.handle_timeout(self.now);
                while let Some((id, event)) = endpoint.poll_event() {
                    if matches!(event, Event::Connected) {
                        self.ids[side] = id;
                    }
                }
            }
            sent += self.send(&mut lost);
            let timers = self.sides.iter().filter_map(Endpoint::next_timeout);
            let next = timers.chain(self.in_flight.front().map(|(at, ..)| *at)).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = next.max(self.now + Duration::from_nanos(1));
            while self.in_flight.front().is_some_and(|(at, ..)| *at <= self.now) {
                let Some((_, side, packet)) = self.in_flight.pop_front() else { break };
                let from = if side == 0 { SERVER } else { SocketAddr::new(SERVER.ip(), 1000) };
                let packet = BytesMut::from(&*packet);
                self.sides[side].handle_datagram(self.now, (from, None), None, packet);
            }
        }
        self.now = end;
        sent
    }

    /// Writes a request on a new stream.
    fn request(&mut self) -> StreamId {
        let client = self.connection(0);
        let stream = client.open(Direction::Bidirectional).unwrap();
        client.write(stream, &mut Bytes::from_static(b"a request")).unwrap();
        self.sides[0].touch(self.ids[0]);
        stream
    }
}

#[test]
fn a_lost_request_arrives_after_one_and_three_quarters_of_a_round_trip() {
    let mut pair = Pair::new();
    let stream = pair.request();
    // The PING leaves after a quarter of an RTT, its acknowledgement arrives an RTT later, and the request half of one
    // after that. The probe timeout of the engine alone takes longer.
    pair.run_for(ONE_WAY * 7 / 2 + Duration::from_millis(2), 1);
    assert!(matches!(pair.connection(1).read(stream, 100), Read::Data(_)));
}

#[test]
fn a_request_is_followed_by_one_ping() {
    let mut pair = Pair::new();
    pair.request();
    // The request, the PING, and the acknowledgements of what the server sends beside.
    let sent = pair.run_for(Duration::from_millis(100), 0);
    assert!((2..=3).contains(&sent), "{sent} packets");
}
