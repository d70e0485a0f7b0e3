//! Tests of the data that a peer may send on unidirectional streams, and of the errors that end the
//! connection.

use noq_proto::Dir;
use tandem_node::Node;
use tandem_wire::Code;

use crate::{
    bed::{Bed, Serving, Setup, fetching, origin, proxy},
    h3_bytes::{
        CANCEL_PUSH, DATA, GOAWAY, GREASE, HEADERS, MASQUE_SETTINGS, MAX_PUSH_ID, PUSH_PROMISE,
        SETTINGS, control_stream, frame, get, settings, varint,
    },
    raw_peer::RawPeer,
};

/// A frame that holds one number.
fn id_frame(frame_type: u64, id: u64) -> Vec<u8> {
    frame(frame_type, &varint(id))
}

/// Control streams that break a rule for both sides.
fn broken_control_streams() -> Vec<(&'static str, Vec<u8>, Code)> {
    let stream = |frames: Vec<u8>| [varint(0x00), frames].concat();
    let good = settings(MASQUE_SETTINGS);
    vec![
        // RFC 9114 §6.2.1.
        ("GOAWAY before SETTINGS", stream(id_frame(GOAWAY, 0)), Code::H3_MISSING_SETTINGS),
        ("GREASE before SETTINGS", stream(frame(GREASE, b"x")), Code::H3_MISSING_SETTINGS),
        ("DATA before SETTINGS", stream(frame(DATA, b"x")), Code::H3_MISSING_SETTINGS),
        // RFC 9114 §7.2.4.
        ("SETTINGS twice", control_stream(&good), Code::H3_FRAME_UNEXPECTED),
        ("a setting twice", stream(settings(&[(6, 1), (6, 1)])), Code::H3_SETTINGS_ERROR),
        // RFC 9114 §7.2.4.1 and §11.2.2.
        ("HTTP/2's 0x02", stream(settings(&[(2, 0)])), Code::H3_SETTINGS_ERROR),
        ("HTTP/2's 0x03", stream(settings(&[(3, 0)])), Code::H3_SETTINGS_ERROR),
        ("HTTP/2's 0x04", stream(settings(&[(4, 0)])), Code::H3_SETTINGS_ERROR),
        ("HTTP/2's 0x05", stream(settings(&[(5, 0)])), Code::H3_SETTINGS_ERROR),
        // RFC 9220 §5, RFC 9297 §2.1.1.
        ("extended CONNECT = 2", stream(settings(&[(8, 2)])), Code::H3_SETTINGS_ERROR),
        ("datagrams = 2", stream(settings(&[(0x33, 2)])), Code::H3_SETTINGS_ERROR),
        // RFC 9114 §7.1.
        ("a setting without value", stream(frame(SETTINGS, &[6])), Code::H3_FRAME_ERROR),
        ("GOAWAY, empty", control_stream(&frame(GOAWAY, b"")), Code::H3_FRAME_ERROR),
        ("GOAWAY, too long", control_stream(&frame(GOAWAY, &[0, 0])), Code::H3_FRAME_ERROR),
        ("GOAWAY, far too long", control_stream(&frame(GOAWAY, &[0; 9])), Code::H3_FRAME_ERROR),
        // RFC 9114 §7.2.1, §7.2.2, §7.2.5.
        ("DATA", control_stream(&frame(DATA, b"x")), Code::H3_FRAME_UNEXPECTED),
        ("HEADERS", control_stream(&frame(HEADERS, b"x")), Code::H3_FRAME_UNEXPECTED),
        ("PUSH_PROMISE", control_stream(&frame(PUSH_PROMISE, b"x")), Code::H3_FRAME_UNEXPECTED),
        // RFC 9114 §7.2.8.
        ("HTTP/2's PRIORITY", control_stream(&frame(2, b"")), Code::H3_FRAME_UNEXPECTED),
        ("HTTP/2's PING", control_stream(&frame(6, b"")), Code::H3_FRAME_UNEXPECTED),
        ("HTTP/2's WINDOW_UPDATE", control_stream(&frame(8, b"")), Code::H3_FRAME_UNEXPECTED),
        ("HTTP/2's CONTINUATION", control_stream(&frame(9, b"")), Code::H3_FRAME_UNEXPECTED),
        // RFC 9114 §10.5.
        ("SETTINGS of 5000 bytes", stream(frame(SETTINGS, &[0; 5000])), Code::H3_EXCESSIVE_LOAD),
    ]
}

fn assert_closes(bed: &mut Bed<impl Node + 'static>, what: &str, code: Code) {
    bed.run();
    assert_eq!(bed.closed_with(), Some(code), "{what}: {:?}", bed.seen().closed);
}

#[test]
fn a_control_stream_that_breaks_a_rule_ends_the_connection_to_a_server() {
    for (what, bytes, code) in broken_control_streams() {
        let mut bed = Setup::default().proxy();
        bed.open_with(Dir::Uni, bytes);
        assert_closes(&mut bed, what, code);
        let stats = bed.stats();
        assert_eq!((stats.connections_broken, stats.connections_open), (1, 0), "{what}");
    }
}

#[test]
fn a_control_stream_that_breaks_a_rule_ends_the_connection_of_a_client() {
    for (what, bytes, code) in broken_control_streams() {
        let mut bed = fetching(1);
        bed.open_with(Dir::Uni, bytes);
        assert_closes(&mut bed, what, code);
        assert!(matches!(bed.ended(), Some(Err(_))), "{what}");
    }
}

#[test]
fn a_critical_stream_that_ends_takes_the_connection_with_it() {
    type Act = fn(&mut RawPeer, u64);
    // RFC 9114 §6.2.1 and RFC 9204 §4.2.
    let close = Code::H3_CLOSED_CRITICAL_STREAM;
    let ends: [(&str, Act); 2] =
        [("FIN", RawPeer::finish), ("RESET", |peer, stream| peer.reset(stream, Code::H3_NO_ERROR))];
    for (how, end) in ends {
        for (what, bytes) in [
            ("control", control_stream(&[])),
            ("control, before SETTINGS", varint(0x00)),
            ("control, inside of a frame", control_stream(&[0x21, 9, 0])),
            ("QPACK encoder", varint(0x02)),
            ("QPACK decoder", varint(0x03)),
        ] {
            let mut bed = Setup::default().origin();
            let stream = bed.open_with(Dir::Uni, bytes);
            bed.run();
            assert_eq!(bed.seen().closed, None, "{what}");
            end(bed.peer(), stream);
            assert_closes(&mut bed, &format!("{how} of {what}"), close);
        }
    }
    let mut bed = Setup::default().origin().with_control_stream();
    let its_own = *bed.seen().streams.keys().next().expect("the server opened its control stream");
    bed.peer().stop(its_own, Code::H3_NO_ERROR);
    assert_closes(&mut bed, "STOP_SENDING of the server's control stream", close);
}

#[test]
fn each_critical_stream_comes_once() {
    // RFC 9114 §6.2.1 and RFC 9204 §4.2.
    for (what, stream_type) in [("control", 0x00), ("QPACK encoder", 0x02), ("decoder", 0x03)] {
        let mut bed = Setup::default().proxy();
        bed.open_with(Dir::Uni, varint(stream_type));
        bed.run();
        assert_eq!(bed.seen().closed, None, "one {what} stream");
        bed.open_with(Dir::Uni, varint(stream_type));
        assert_closes(&mut bed, what, Code::H3_STREAM_CREATION_ERROR);
    }
}

#[test]
fn a_push_stream_ends_the_connection() {
    // RFC 9114 §6.2.2: only servers can push. §4.6: they must not push before they are allowed to.
    let push = [varint(0x01), varint(0)].concat();
    let mut bed = origin();
    bed.open_with(Dir::Uni, push.clone());
    assert_closes(&mut bed, "a push to a server", Code::H3_STREAM_CREATION_ERROR);
    let mut bed = fetching(1).with_control_stream();
    bed.open_with(Dir::Uni, push);
    assert_closes(&mut bed, "a push to a client", Code::H3_ID_ERROR);
}

#[test]
fn an_identifier_that_cannot_be_ends_the_connection() {
    let ids = |frames: &[(u64, u64)]| -> Vec<u8> {
        frames.iter().flat_map(|(frame_type, id)| id_frame(*frame_type, *id)).collect()
    };
    // To servers: RFC 9114 §5.2, §7.2.3, §7.2.7.
    for (what, frames, code) in [
        ("a second GOAWAY that takes more", ids(&[(GOAWAY, 3), (GOAWAY, 4)]), Code::H3_ID_ERROR),
        ("CANCEL_PUSH of no push", ids(&[(CANCEL_PUSH, 0)]), Code::H3_ID_ERROR),
        (
            "CANCEL_PUSH of no push, allowed",
            ids(&[(MAX_PUSH_ID, 5), (CANCEL_PUSH, 0)]),
            Code::H3_ID_ERROR,
        ),
        ("MAX_PUSH_ID that shrinks", ids(&[(MAX_PUSH_ID, 5), (MAX_PUSH_ID, 4)]), Code::H3_ID_ERROR),
    ] {
        let mut bed = Setup::default().origin();
        bed.open_with(Dir::Uni, control_stream(&frames));
        assert_closes(&mut bed, what, code);
    }
    // To clients: RFC 9114 §5.2, §7.2.3, §7.2.6, §7.2.7.
    for (what, frames, code) in [
        ("a second GOAWAY that takes more", ids(&[(GOAWAY, 4), (GOAWAY, 8)]), Code::H3_ID_ERROR),
        ("GOAWAY with a server's stream", ids(&[(GOAWAY, 5)]), Code::H3_ID_ERROR),
        ("GOAWAY with a unidirectional stream", ids(&[(GOAWAY, 6)]), Code::H3_ID_ERROR),
        ("CANCEL_PUSH", ids(&[(CANCEL_PUSH, 0)]), Code::H3_ID_ERROR),
        ("MAX_PUSH_ID", ids(&[(MAX_PUSH_ID, 0)]), Code::H3_FRAME_UNEXPECTED),
    ] {
        let mut bed = fetching(1);
        bed.open_with(Dir::Uni, control_stream(&frames));
        assert_closes(&mut bed, what, code);
    }
}

#[test]
fn what_a_client_may_say_on_its_control_stream_does_no_harm() {
    for (what, frames) in [
        ("GOAWAY", id_frame(GOAWAY, 0)),
        ("GOAWAY twice", [id_frame(GOAWAY, 9), id_frame(GOAWAY, 9)].concat()),
        ("MAX_PUSH_ID", [id_frame(MAX_PUSH_ID, 0), id_frame(MAX_PUSH_ID, 1)].concat()),
        ("GREASE", frame(GREASE, &vec![0; 100_000])),
        ("GREASE without end", [varint(GREASE), varint(1 << 60), vec![0; 1000]].concat()),
    ] {
        let mut bed = Setup::default().proxy();
        bed.open_with(Dir::Uni, control_stream(&frames));
        bed.run();
        bed.assert_serves(what);
    }
    let mut bed = Setup::default().proxy();
    let unknown = settings(&[(0x33, 1), (GREASE, 7), (0x4d44, 1), (1 << 61, 1 << 61)]);
    bed.open_with(Dir::Uni, [varint(0x00), unknown].concat());
    bed.run();
    bed.assert_serves("unknown settings");
}

#[test]
fn a_control_stream_may_come_in_any_pieces() {
    let bytes = control_stream(&frame(GREASE, b"grease"));
    for split in 1..bytes.len() {
        let mut bed = Setup::default().proxy();
        let stream = bed.peer().open(Dir::Uni);
        let (first, second) = bytes.split_at(split);
        bed.send_pieces(stream, [first, second]);
        bed.assert_serves(&format!("a split at {split}"));
    }
    let mut bed = Setup::default().proxy();
    let stream = bed.peer().open(Dir::Uni);
    bed.send_pieces(stream, bytes.chunks(1));
    bed.assert_serves("single bytes");
}

#[test]
fn streams_of_unknown_types_are_turned_away_and_do_no_harm() {
    let mut bed = proxy();
    let unknown = bed.open_with(Dir::Uni, [varint(GREASE), vec![0; 50_000]].concat());
    bed.run();
    assert_eq!(bed.seen().stopped.get(&unknown), Some(&Code::H3_STREAM_CREATION_ERROR));
    // RFC 9114 §6.2: "A receiver MUST tolerate unidirectional streams being closed or reset prior
    // to the reception of the unidirectional stream header."
    let cut = bed.open_with(Dir::Uni, vec![0xc0, 0, 0]);
    bed.peer().finish(cut);
    let reset = bed.open_with(Dir::Uni, vec![0x40]);
    bed.run();
    bed.peer().reset(reset, Code::H3_NO_ERROR);
    bed.run();
    bed.assert_serves("streams of unknown types");
    // Each stream makes room for the next.
    for _ in 0..100 {
        let stream = bed.open_with(Dir::Uni, varint(GREASE));
        bed.peer().finish(stream);
        bed.run();
    }
    bed.assert_serves("many streams of unknown types");
}

#[test]
fn a_dynamic_table_that_was_not_offered_ends_the_connection() {
    let error = Code::QPACK_ENCODER_STREAM_ERROR;
    for (what, stream_type, instruction, code) in [
        // RFC 9204 §3.2.3, §4.3: the capacity must be 0, and no entry fits into that.
        ("capacity 1", 0x02, &[0x21][..], error),
        ("capacity 220", 0x02, &[0x3f, 0xbd, 0x01], error),
        ("insert with name reference", 0x02, &[0xc0, 0x01, b'x'], error),
        ("insert with literal name", 0x02, &[0x41, b'a', 0x01, b'b'], error),
        ("duplicate", 0x02, &[0x00], error),
        ("capacity 0, then an insert", 0x02, &[0x20, 0xc0, 0x00], error),
        // RFC 9204 §4.4.1, §4.4.3: we insert no entries, and refer to none.
        ("section acknowledgement", 0x03, &[0x80], Code::QPACK_DECODER_STREAM_ERROR),
        ("increment 0", 0x03, &[0x00], Code::QPACK_DECODER_STREAM_ERROR),
        ("increment 1", 0x03, &[0x01], Code::QPACK_DECODER_STREAM_ERROR),
    ] {
        let mut bed = origin();
        let bytes = [varint(stream_type), instruction.to_vec()].concat();
        bed.open_with(Dir::Uni, bytes.clone());
        assert_closes(&mut bed, what, code);
        let mut bed = fetching(1).with_control_stream();
        bed.open_with(Dir::Uni, bytes);
        assert_closes(&mut bed, what, code);
    }
}

#[test]
fn qpack_streams_that_say_nothing_wrong_do_no_harm() {
    // RFC 9204 §4.3.1 with capacity 0; §4.4.2, stream cancellation, with a long stream ID.
    let mut bed = origin();
    let encoder = bed.peer().open(Dir::Uni);
    let decoder = bed.peer().open(Dir::Uni);
    bed.send_pieces(encoder, [&[0x02][..], &[0x20, 0x20]]);
    bed.send_pieces(decoder, [&[0x03][..], &[0x40, 0x7f], &[0x80], &[0x80, 0x01, 0x44]]);
    bed.assert_serves("QPACK instructions");
    assert_eq!(bed.ask(get("/nothing")).status(), 404);
}
