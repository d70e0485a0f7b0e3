//! Tests of the uploads of a client.

use tandem_wire::Code;

use crate::{
    bed::{Serving, Setup},
    h3_bytes::{DATA, frame, headers},
    raw_peer::StreamEnd,
};
use noq_proto::Dir;

/// The head of an upload with these values of Content-Length.
fn put(lengths: &[&str]) -> Vec<u8> {
    let mut lines = vec![
        (":method", "PUT"),
        (":scheme", "https"),
        (":authority", "peer.test"),
        (":path", "/upload"),
    ];
    lines.extend(lengths.iter().map(|length| ("content-length", *length)));
    headers(&lines)
}

fn setup() -> Setup {
    Setup { takes_uploads: true, ..Setup::default() }
}

#[test]
fn an_upload_says_how_long_it_is_and_is_not_too_long() {
    for (lengths, status) in [
        (&[][..], 411),
        (&["many"], 400),
        (&["3", "4"], 400),
        (&["-1"], 400),
        (&["10000000001"], 413),
        (&["18446744073709551616"], 400),
    ] {
        let mut bed = setup().origin().with_control_stream();
        assert_eq!(bed.ask(put(lengths)).status(), status, "{lengths:?}");
        bed.assert_serves("an upload that is refused");
    }
}

#[test]
fn an_upload_is_answered_when_all_of_it_has_come() {
    for pieces in [&[""][..], &["abcd"], &["ab", "", "cd"]] {
        let len = pieces.concat().len().to_string();
        let mut bed = setup().origin().with_control_stream();
        let stream = bed.open_with(Dir::Bi, put(&[&len]));
        for piece in pieces {
            bed.peer().send(stream, frame(DATA, piece.as_bytes()));
            bed.run();
            assert!(
                bed.came(stream).data.is_empty(),
                "the answer came before the end of the upload"
            );
        }
        bed.peer().finish(stream);
        bed.run();
        let answer = bed.answer(stream);
        assert_eq!((answer.status(), answer.end), (204, Some(StreamEnd::Finished)));
        assert_eq!(bed.stats().upload_bytes.to_string(), len);
        bed.assert_serves("an upload");
    }
}

#[test]
fn an_upload_that_is_longer_or_shorter_than_it_says_is_malformed() {
    for (length, body) in [("3", "abcd"), ("5", "abcd"), ("0", "a"), ("1", "")] {
        let mut bed = setup().origin().with_control_stream();
        let request = [put(&[length]), frame(DATA, body.as_bytes())].concat();
        let stream = bed.open_with(Dir::Bi, request);
        bed.peer().finish(stream);
        bed.run();
        let end = bed.came(stream).end;
        assert_eq!(end, Some(StreamEnd::Reset(Code::H3_MESSAGE_ERROR)), "{length}: {body}");
        bed.assert_serves("an upload that is malformed");
    }
}

#[test]
fn an_upload_that_is_given_up_is_forgotten() {
    let mut bed = setup().origin().with_control_stream();
    for _ in 0..50 {
        let stream = bed.open_with(Dir::Bi, put(&["1000"]));
        bed.run();
        bed.peer().reset(stream, Code::H3_REQUEST_CANCELLED);
        bed.run();
    }
    bed.assert_serves("fifty uploads that were given up");
}
