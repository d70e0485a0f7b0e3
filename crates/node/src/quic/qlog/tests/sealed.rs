//! What the qlog says of a sealed transport.

use tandem_wire::TransportField;

use super::*;
use crate::quic::{ConnectionId, DatagramId, DatagramTransport, StreamId};

fn field(id: tandem_wire::ConnectionId) -> TransportField {
    TransportField { id, reset: None }
}

/// Sends 600 datagrams in a sealed transport over a path that loses each 40th packet.
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn send_datagrams_with(files: &Arc<Memory>) {
    let (server_tls, client_tls) = tests::tls();
    let files: Arc<dyn QlogFiles> = files.clone();
    let datagrams = DatagramTransport::Sealed;
    let transport = Transport { qlog: Some(files), datagrams, ..Transport::default() };
    let limits = Limits::default();
    let mut sides = [
        Endpoint::client(&client_tls, &transport, &limits, Some(1)),
        Endpoint::server(&server_tls, &transport, &limits, Some(2)),
    ];
    let mut now = Instant::now();
    sides[0].connect(now, tests::SERVER, "localhost").unwrap();
    let addresses = [SocketAddr::new(tests::SERVER.ip(), 1000), tests::SERVER];
    let mut connected: [Option<ConnectionId>; 2] = [None, None];
    let (mut packets, mut received, mut has_agreed) = (0, 0, false);
    for round in 0..400_u64 {
        for index in 0..2 {
            while let Some((id, event)) = sides[index].poll_event() {
                match event {
                    Event::Connected => connected[index] = Some(id),
                    Event::Datagrams => {
                        let connection = sides[index].connection(id).unwrap();
                        received += std::iter::from_fn(|| connection.receive_datagram()).count();
                    }
                    _ => {}
                }
            }
            if let [Some(client), Some(server)] = connected {
                if !std::mem::replace(&mut has_agreed, true) {
                    let offer = sides[0].connection(client).unwrap().sealed_offer().unwrap();
                    let server = sides[1].connection(server).unwrap();
                    let grant = server.agree_on_sealed(now, field(offer)).unwrap();
                    sides[0]
                        .connection(client)
                        .unwrap()
                        .agree_on_sealed(now, field(grant))
                        .unwrap();
                }
                if index == 0 && (50..250).contains(&round) {
                    let connection = sides[0].connection(client).unwrap();
                    for number in 0..3 {
                        let data = bytes::Bytes::from(vec![7; 500]);
                        let id = DatagramId { stream: StreamId(0), number: 3 * round + number };
                        assert!(connection.send_tracked_datagram(id, data));
                    }
                }
            }
            for packet in tests::transmit(&mut sides[index], now) {
                packets += 1;
                if packets % 40 != 0 {
                    let packet = bytes::BytesMut::from(&*packet);
                    sides[1 - index].handle_datagram(now, (addresses[index], None), None, packet);
                }
            }
            now += Duration::from_millis(3);
            for side in &mut sides {
                side.handle_timeout(now);
            }
        }
    }
    assert!((550..600).contains(&received), "{received}");
}

/// The data of all events of the sealed transport of a kind.
fn of_sealed<'a>(records: &'a [Value], name: &str) -> Vec<&'a Value> {
    let name = format!("tandem:{name}");
    records.iter().filter(|record| record["name"] == *name).map(|record| &record["data"]).collect()
}

fn numbers_of(packets: &[&Value]) -> BTreeSet<u64> {
    packets.iter().map(|it| it["header"]["packet_number"].as_u64().unwrap()).collect()
}

#[test]
fn packets_of_a_sealed_transport_are_events_of_their_own() {
    let files = Arc::new(Memory::default());
    send_datagrams_with(&files);
    let files = files.records();
    let [(_, client), (_, server)] = files.as_slice() else { panic!("{files:?}") };
    let (sent, received) = (of_sealed(client, "packet_sent"), of_sealed(server, "packet_received"));
    assert!((190..450).contains(&sent.len()), "{}", sent.len());
    for received in &received {
        assert!(sent.contains(received), "number, length and frames: {received}");
    }
    assert!(sent.iter().all(|it| it["header"]["packet_type"] == "sealed"));
    let missing = &numbers_of(&sent) - &numbers_of(&received);
    let lost = numbers_of(&of_sealed(client, "packet_lost"));
    assert!(lost.len() > 3 && lost.is_subset(&missing), "{lost:?}, {missing:?}");
    let frames = |packets: &[&Value], kind: &str| {
        let all = packets.iter().flat_map(|it| it["frames"].as_array().unwrap().clone());
        all.filter(|frame| frame["frame_type"] == kind).collect::<Vec<_>>()
    };
    let datagrams = frames(&sent, "datagram");
    assert_eq!(datagrams.len(), 600);
    assert!(datagrams.iter().all(|frame| frame["raw"]["length"] == 500));
    assert_eq!(frames(&sent, "unknown"), [Value::Null; 0]);
    let acks = frames(&of_sealed(client, "packet_received"), "ack");
    assert!(acks.iter().all(|ack| ack["ack_delay"].as_f64().unwrap() <= 30.0), "{acks:?}");
    let metrics = of_sealed(client, "recovery_metrics_updated");
    for name in ["smoothed_rtt", "min_rtt", "congestion_window", "bytes_in_flight", "pacing_rate"] {
        assert!(metrics.iter().any(|it| it[name].is_number()), "{name}");
    }
    let of_quic = all(client, "packet_sent");
    let quic = |kind| frames(&of_quic, kind).len();
    assert!(quic("crypto") > 0 && quic("datagram") == 0, "QUIC's own packets stay as they were");
}

#[test]
fn without_an_agreement_there_is_no_such_event() {
    let files = Arc::new(Memory::default());
    send_with(&files);
    for (_, records) in files.records() {
        let is_ours =
            |it: &&Value| it["name"].as_str().is_some_and(|name| name.starts_with("tandem"));
        assert_eq!(records.iter().filter(is_ours).count(), 0);
    }
}
