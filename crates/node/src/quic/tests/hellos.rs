//! A server learns from a `ClientHello` of several packets whether its client will send reports.

use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::{ClientTls, Endpoint, Event, SERVER, Transport, rustls_with, transmit};
use crate::{
    limits::Limits,
    quic::LossDetection,
    tls::{KeyExchange, provider},
};

/// A server that asks whether reports will follow, with room for many handshakes, and the settings of its clients.
fn asking_server(key_exchange: KeyExchange) -> (Endpoint, rustls::ClientConfig) {
    let limits = Limits { unvalidated_handshakes: 1000, ..Limits::default() };
    let transport =
        Transport { loss_detection: LossDetection::AsClientsSay, ..Transport::default() };
    let (server_tls, tls) = rustls_with(provider(key_exchange));
    (Endpoint::server(&server_tls, &transport, &limits, Some(1)), tls)
}

/// The first packets of a client that announces reports, or does not.
fn first_flight(
    tls: &rustls::ClientConfig,
    now: Instant,
    (announces, seed): (bool, u64),
) -> Vec<Vec<u8>> {
    let tls = tls.clone();
    let tls = if announces { ClientTls::announcing_reports(tls) } else { ClientTls::new(tls) };
    let (transport, limits) = (Transport::default(), Limits::default());
    let mut client = Endpoint::client(&tls.unwrap(), &transport, &limits, Some(seed));
    client.connect(now, SERVER, "localhost").unwrap();
    // The second packet is paced.
    let times = (0..10).map(|elapsed| now + Duration::from_millis(elapsed));
    let sent = times.flat_map(|now| {
        client.handle_timeout(now);
        transmit(&mut client, now)
    });
    sent.collect()
}

/// What a server makes of packets that come a millisecond after each other: after how many of them the connection
/// began, if it did, and whether reports were announced.
fn at_server(
    server: &mut Endpoint,
    now: &mut Instant,
    packets: &[&[u8]],
) -> Option<(usize, Vec<bool>)> {
    for (count, packet) in (1..).zip(packets) {
        *now += Duration::from_millis(1);
        server.handle_timeout(*now);
        server.handle_datagram(*now, (SERVER, None), None, BytesMut::from(*packet));
        while let Some((_, event)) = server.poll_event() {
            if matches!(event, Event::Accepted { .. }) {
                let reports = &mut server.server.as_mut().unwrap().reports;
                return Some((count, std::mem::take(reports)));
            }
        }
    }
    None
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn the_whole_hello_says_whether_reports_follow_in_any_order_of_its_packets() {
    let mut now = Instant::now();
    for key_exchange in [KeyExchange::Hybrid, KeyExchange::Classical] {
        let (mut server, tls) = asking_server(key_exchange);
        // Extensions stand in another order in each hello.
        for seed in 0..40 {
            let announces = seed % 2 == 0;
            let packets = first_flight(&tls, now, (announces, seed));
            let packets: Vec<_> = packets.iter().map(Vec::as_slice).collect();
            let (order, begins) = match (&packets[..], seed % 5) {
                ([one], _) => (vec![*one], 1),
                ([one, two], 0) => (vec![*two, *one], 2),
                ([one, two], 1) => (vec![*one, *one, *two], 3),
                ([one, two], 2) => (vec![*two, *two, *one], 3),
                ([one, two], _) => (vec![*one, *two], 2),
                _ => panic!("{} packets", packets.len()),
            };
            assert_eq!(packets.len(), if key_exchange == KeyExchange::Hybrid { 2 } else { 1 });
            let begun = at_server(&mut server, &mut now, &order);
            assert_eq!(begun, Some((begins, vec![announces])), "{key_exchange:?}, seed {seed}");
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn a_connection_begins_without_the_rest_of_its_hello_after_a_moment() {
    let mut now = Instant::now();
    let (mut server, tls) = asking_server(KeyExchange::Hybrid);
    let idle = server.next_timeout();
    for seed in 0..100 {
        let packets = first_flight(&tls, now, (true, seed));
        server.handle_datagram(now, (SERVER, None), None, BytesMut::from(&packets[0][..]));
    }
    // The server waits for a limited number of clients, and begins the other connections at once.
    assert_eq!(server.connections(), 100 - super::super::hello::HELD_MAX);
    let due = server.next_timeout();
    assert!(due != idle && due <= Some(now + Duration::from_millis(50)), "it has a timer");
    now += Duration::from_millis(50);
    server.handle_timeout(now);
    assert_eq!(server.connections(), 100);
    let reports = &server.server.as_ref().unwrap().reports;
    assert!(reports.iter().all(|reports| !reports), "nothing was known of them");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn packets_that_cannot_be_read_delay_nobody() {
    let mut now = Instant::now();
    let (mut server, tls) = asking_server(KeyExchange::Hybrid);
    for seed in 0..60 {
        let packets = first_flight(&tls, now, (true, seed));
        // A second packet with an error at one place does not end what the first one began.
        let mut broken = packets[1].clone();
        let place = usize::try_from(seed).unwrap() * 20;
        broken[place] ^= 0x20;
        let order = [&packets[0][..], &broken, &packets[1]];
        let begun = at_server(&mut server, &mut now, &order);
        assert!(begun.is_some(), "an error at byte {place}");
    }
}
