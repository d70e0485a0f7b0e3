mod sealed;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use tandem_wire::QuicFrame;

use super::*;
use crate::{
    limits::Limits,
    quic::{Direction, Endpoint, Event, Transport, Write as Written, tests},
};

/// Files in memory, with their names.
#[derive(Debug, Default)]
struct Memory {
    files: Mutex<Vec<(String, Shared)>>,
    /// How many bytes a file takes before its device is full.
    room: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct Shared {
    bytes: Arc<Mutex<Vec<u8>>>,
    room: Option<usize>,
}

impl QlogFiles for Memory {
    fn create(&self, name: &str) -> io::Result<Box<dyn Write + Send>> {
        let file = Shared { room: self.room, ..Shared::default() };
        self.files.lock().unwrap().push((name.to_owned(), file.clone()));
        Ok(Box::new(file))
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = self.bytes.lock().unwrap();
        if self.room.is_some_and(|room| written.len() > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        written.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Memory {
    /// The records of each file, with its name.
    fn records(&self) -> Vec<(String, Vec<Value>)> {
        let files = self.files.lock().unwrap();
        let records = |file: &Shared| {
            let text = String::from_utf8(file.bytes.lock().unwrap().clone()).unwrap();
            let records = text.split(RECORD_SEPARATOR).skip(1);
            records.map(|record| serde_json::from_str(record).unwrap()).collect()
        };
        files.iter().map(|(name, file)| (name.clone(), records(file))).collect()
    }
}

/// Sends a stream over a path that loses each 40th packet, and returns the client's statistics.
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn send_with(files: &Arc<Memory>) -> crate::stats::ConnectionStats {
    let (server_tls, client_tls) = tests::tls();
    let files: Arc<dyn QlogFiles> = files.clone();
    let transport = Transport { qlog: Some(files), ..Transport::default() };
    let limits = Limits::default();
    let mut sides = [
        Endpoint::client(&client_tls, &transport, &limits, Some(1)),
        Endpoint::server(&server_tls, &transport, &limits, Some(2)),
    ];
    let mut now = Instant::now();
    let client = sides[0].connect(now, tests::SERVER, "localhost").unwrap();
    let addresses = [SocketAddr::new(tests::SERVER.ip(), 1000), tests::SERVER];
    let (mut packets, mut has_read) = (0, 0);
    for _ in 0..200 {
        for index in 0..2 {
            while let Some((id, event)) = sides[index].poll_event() {
                let Some(connection) = sides[index].connection(id) else { continue };
                match event {
                    Event::Connected if index == 0 => {
                        let stream = connection.open(Direction::Unidirectional).unwrap();
                        let data = &mut bytes::Bytes::from(vec![7; 200_000]);
                        assert_eq!(connection.write(stream, data), Ok(Written::Done));
                    }
                    Event::Readable(stream) => {
                        while let crate::quic::Read::Data(data) = connection.read(stream, 9999) {
                            has_read += data.len();
                        }
                    }
                    _ => {}
                }
            }
            for packet in tests::transmit(&mut sides[index], now) {
                packets += 1;
                if packets % 40 != 0 {
                    let packet = bytes::BytesMut::from(&*packet);
                    sides[1 - index].handle_datagram(now, (addresses[index], None), None, packet);
                }
            }
        }
        now += Duration::from_millis(5);
        for side in &mut sides {
            side.handle_timeout(now);
        }
    }
    assert_eq!(has_read, 200_000);
    let connection = sides[0].connection(client).unwrap();
    let stats = connection.stats();
    connection.close(now, tandem_wire::Code::H3_NO_ERROR, "enough");
    while sides[0].poll_event().is_some() {}
    stats
}

/// The data of all events of a kind.
fn all<'a>(records: &'a [Value], name: &str) -> Vec<&'a Value> {
    let name = format!("quic:{name}");
    records.iter().filter(|record| record["name"] == *name).map(|record| &record["data"]).collect()
}

fn numbers(packets: &[&Value]) -> BTreeSet<u64> {
    let of_1rtt = packets.iter().filter(|packet| packet["header"]["packet_type"] == "1RTT");
    of_1rtt.map(|packet| packet["header"]["packet_number"].as_u64().unwrap()).collect()
}

#[test]
fn both_ends_tell_of_the_same_packets() {
    let files = Arc::new(Memory::default());
    let stats = send_with(&files);
    let files = files.records();
    let [(client_name, client), (server_name, server)] = files.as_slice() else {
        panic!("{files:?}")
    };
    let id = client_name.strip_suffix("-client").unwrap();
    assert_eq!(server_name.strip_suffix("-server"), Some(id), "one group of files");
    assert_eq!(client[0]["trace"]["common_fields"]["group_id"], id);

    let (sent, received) = (all(client, "packet_sent"), all(server, "packet_received"));
    let lost = numbers(&all(client, "packet_lost"));
    assert!(!lost.is_empty() && lost.len() as u64 <= stats.lost_packets, "{}", lost.len());
    let (sent_numbers, received_numbers) = (numbers(&sent), numbers(&received));
    assert!(received_numbers.is_subset(&sent_numbers));
    let missing: BTreeSet<_> = sent_numbers.difference(&received_numbers).copied().collect();
    assert!(lost.is_subset(&missing), "{lost:?}, {missing:?}");
    for received in received.iter().filter(|it| it["header"]["packet_type"] == "1RTT") {
        let twin = sent.iter().find(|sent| {
            let (one, other) = (&sent["header"], &received["header"]);
            one["packet_number"] == other["packet_number"]
                && one["packet_type"] == other["packet_type"]
        });
        assert_eq!(twin, Some(received), "header, length and frames");
    }
    let stream_bytes: u64 = (sent.iter())
        .flat_map(|packet| packet["frames"].as_array().unwrap())
        .filter(|frame| frame["frame_type"] == "stream")
        .map(|frame| frame["raw"]["length"].as_u64().unwrap())
        .sum();
    assert!((200_000..250_000).contains(&stream_bytes), "{stream_bytes}");
    let unknown = |packets: &[&Value]| packets.iter().any(|it| it.to_string().contains("unknown"));
    assert!(!unknown(&sent) && !unknown(&received), "a frame of the engine is not known");
}

#[test]
fn the_rest_of_the_file_is_there_too() {
    let files = Arc::new(Memory::default());
    send_with(&files);
    for (name, records) in files.records() {
        let parameters = all(&records, "parameters_set");
        let initiators: Vec<_> = parameters.iter().map(|it| &it["initiator"]).collect();
        assert_eq!(initiators, ["local", "remote"], "{name}");
        for parameters in parameters {
            assert_eq!(parameters["max_datagram_frame_size"], 65_535, "{name}");
            assert!(parameters["initial_source_connection_id"].is_string(), "{name}");
        }
        assert_eq!(all(&records, "connection_started").len(), 1, "{name}");
        let metrics = all(&records, "recovery_metrics_updated");
        assert!(metrics.iter().any(|it| it["smoothed_rtt"].is_number()), "{name}");
        let sizes = all(&records, "mtu_updated");
        assert!(sizes.iter().any(|it| it["new"] == 1452), "{name}: {sizes:?}");
        let times: Vec<_> = records[1..].iter().map(|it| it["time"].as_f64().unwrap()).collect();
        assert!(times.is_sorted() && times[times.len() - 1] > 10.0, "{name}");
        let text = Value::from(records).to_string();
        assert!(!text.contains("null"), "{name}: what is not known is left out");
        assert!(!text.contains("token"), "{name}: tokens are secrets");
    }
    let records = files.records();
    let closed = all(&records[0].1, "connection_closed");
    assert_eq!(closed, [&json!({ "initiator": "local", "error_code": 0x100, "reason": "enough" })]);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn a_client_says_where_a_connection_belongs_and_a_tunnel_what_it_repairs() {
    let files = Arc::new(Memory::default());
    let qlogs = Qlogs::new(files.clone());
    let offset = Duration::from_micros(1500);
    let place = Place { chain: 0x77, layer: 1, is_end_to_end: false, offset };
    let mut qlog = Qlog::begin(&qlogs, Instant::now(), (true, Some(place)), &[0xab]).unwrap();
    for total in [0, 2, 2, 5] {
        qlog.repairs(total);
    }
    drop(qlog);
    let records = &files.records()[0].1;
    let head = &records[0];
    // Programs that draw qlogs ask for these.
    assert_eq!((&head["qlog_version"], &head["qlog_format"]), (&json!("0.3"), &json!("JSON-SEQ")));
    let fields = &head["trace"]["common_fields"];
    assert_eq!(
        (&fields["group_id"], &fields["tandem_chain"]),
        (&json!("ab"), &json!("0000000000000077"))
    );
    assert_eq!((&fields["tandem_layer"], &fields["tandem_offset"]), (&json!(1), &json!(1.5)));
    let counts: Vec<_> = records[1..].iter().map(|record| &record["data"]["count"]).collect();
    assert_eq!(counts, [2, 3]);
    assert_eq!(records[1]["name"], "tandem:datagrams_repaired");
}

#[test]
fn a_full_device_ends_the_file_and_nothing_else() {
    let files = Arc::new(Memory { room: Some(3000), ..Memory::default() });
    send_with(&files);
    for (_, file) in files.files.lock().unwrap().iter() {
        assert!((3000..10_000).contains(&file.bytes.lock().unwrap().len()));
    }
}

#[test]
fn frames_have_the_fields_of_qlog() {
    for (payload, expected) in [
        (&[0, 0][..], json!({ "frame_type": "padding", "raw": { "length": 2 } })),
        (&[1], json!({ "frame_type": "ping" })),
        (
            &[2, 20, 0x40, 125, 1, 4, 3, 2],
            json!({ "frame_type": "ack", "ack_delay": 1.0, "acked_ranges": [[16, 20], [9, 11]] }),
        ),
        (
            &[3, 0, 0, 0, 0, 3, 4, 5],
            json!({
                "frame_type": "ack", "ack_delay": 0.0, "acked_ranges": [[0, 0]],
                "ect0": 3, "ect1": 4, "ce": 5,
            }),
        ),
        (
            &[4, 8, 2, 9],
            json!({
                "frame_type": "reset_stream", "stream_id": 8, "error": "unknown", "error_code": 2,
                "final_size": 9,
            }),
        ),
        (
            &[0x0f, 4, 9, 1, 7],
            json!({
                "frame_type": "stream", "stream_id": 4, "offset": 9, "fin": true,
                "raw": { "length": 1 },
            }),
        ),
        (
            &[0x07, 2, 7, 7],
            json!({ "frame_type": "new_token", "token": { "raw": { "length": 2 } } }),
        ),
        (
            &[0x13, 9],
            json!({ "frame_type": "max_streams", "stream_type": "unidirectional", "maximum": 9 }),
        ),
        (
            &[0x1c, 1, 6, 2, b'n', b'o'],
            json!({
                "frame_type": "connection_close", "error_space": "transport", "error_code": 1,
                "trigger_frame_type": 6, "reason": "no",
            }),
        ),
        (&[0x31, 2, 7, 7], json!({ "frame_type": "datagram", "raw": { "length": 2 } })),
        // An ACK frame that acknowledges packets before the first one, and a type that nobody knows.
        (&[2, 1, 0, 0, 2], json!({ "frame_type": "unknown", "raw": { "length": 5 } })),
        (&[0x21, 1], json!({ "frame_type": "unknown", "raw": { "length": 2 } })),
    ] {
        let frames: Vec<QuicFrame<'_>> = QuicFrames::new(payload).collect();
        let [frame] = frames.as_slice() else { panic!("{frames:?}") };
        assert_eq!(super::frames::json(frame, 3), expected, "{payload:?}");
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_logged(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        for frame in QuicFrames::new(&bytes) {
            proptest::prop_assert!(super::frames::json(&frame, 70).is_object());
        }
        let (parameters, _) = parameters::decode(&bytes);
        proptest::prop_assert!(parameters.len() <= bytes.len());
        proptest::prop_assert!(header::json(PacketType::OneRtt, 0, &bytes).is_object());
        proptest::prop_assert!(header::json(PacketType::Initial, 0, &bytes).is_object());
    }
}
