//! Handshakes whose flights come in several packets.

use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::{ConnectionId, Endpoint, Event, SERVER, Transport, tls_with, transmit};
use crate::{
    limits::Limits,
    tls::{KeyExchange, provider},
};

fn deliver(to: &mut Endpoint, now: Instant, packets: &[Vec<u8>]) {
    for packet in packets {
        to.handle_datagram(now, (SERVER, None), None, BytesMut::from(&packet[..]));
        while to.poll_event().is_some() {}
    }
}

/// A client, the first packets of its server, and the last ones.
fn begun(now: Instant) -> ((Endpoint, ConnectionId), Endpoint, [Vec<Vec<u8>>; 2]) {
    let (server_tls, client_tls) = tls_with(provider(KeyExchange::Hybrid));
    // With larger packets, the first one has keys for the next level, and not all of the handshake.
    let (transport, limits) = (Transport::tunnel(), Limits::default());
    let mut client = Endpoint::client(&client_tls, &transport, &limits, Some(1));
    let mut server = Endpoint::server(&server_tls, &transport, &limits, Some(2));
    let id = client.connect(now, SERVER, "localhost").unwrap();
    let mut first = Vec::new();
    // The server acknowledges the first packet before it has the second one.
    for elapsed in (0..10).map(Duration::from_millis) {
        let now = now + elapsed;
        client.handle_timeout(now);
        for packet in transmit(&mut client, now) {
            deliver(&mut server, now, &[packet]);
            first.extend(transmit(&mut server, now));
        }
        server.handle_timeout(now);
        first.extend(transmit(&mut server, now));
    }
    let last = first.split_off(2.min(first.len()));
    assert!(!last.is_empty(), "the server has a flight of several packets");
    ((client, id), server, [first, last])
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn a_probe_that_is_due_when_the_last_packet_of_the_server_comes_harms_nothing() {
    let start = Instant::now();
    // The client is busy for this time before it handles its timer.
    for busy in [0, 1, 300, 5000] {
        let ((mut client, id), mut server, [first, last]) = begun(start);
        let now = start + Duration::from_millis(50);
        deliver(&mut client, now, &first);
        let answer = transmit(&mut client, now); // with it, the keys of Initial packets go
        deliver(&mut server, now, &answer);
        deliver(&mut client, now, &last);
        let mut now = now + Duration::from_millis(busy);
        client.handle_timeout(now);
        let mut is_connected = false;
        for _ in 0..10 {
            let sent = transmit(&mut client, now);
            now += Duration::from_millis(50);
            deliver(&mut server, now, &sent);
            let answer = transmit(&mut server, now);
            for packet in answer {
                client.handle_datagram(now, (SERVER, None), None, BytesMut::from(&packet[..]));
            }
            while let Some((_, event)) = client.poll_event() {
                assert!(!matches!(event, Event::Lost(_)), "{event:?}");
            }
            client.handle_timeout(now);
            is_connected |= client.peek(id).expect("it is open").is_confirmed;
        }
        assert!(is_connected, "{busy} ms");
    }
}
