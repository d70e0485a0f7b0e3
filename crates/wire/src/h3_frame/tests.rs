use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::Code;

const LEN_MAX: usize = 100;

type Outcome = (Vec<Frame>, Result<(), DecodeError>);

/// Returns all frames of a stream that arrives in `pieces`, with successive pieces of DATA joined,
/// and the result at its end.
fn decode_all(kind: StreamKind, pieces: &[Bytes]) -> Outcome {
    let mut decoder = FrameDecoder::new(kind, LEN_MAX);
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.push(piece.clone());
        loop {
            match decoder.next() {
                Ok(Some(Frame::Data(piece))) => append_data(&mut frames, piece),
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
    }
    assert_eq!(decoder.is_at_boundary(), decoder.finish().is_ok());
    (frames, decoder.finish())
}

fn append_data(frames: &mut Vec<Frame>, piece: Bytes) {
    assert!(!piece.is_empty(), "a piece of DATA is never empty");
    match frames.last_mut() {
        Some(Frame::Data(data)) => *data = [&data[..], &piece[..]].concat().into(),
        Some(_) | None => frames.push(Frame::Data(piece)),
    }
}

fn decode(kind: StreamKind, data: &'static [u8]) -> Outcome {
    decode_all(kind, &[Bytes::from_static(data)])
}

fn split(data: &[u8], splits: &[Index]) -> Vec<Bytes> {
    let mut cuts: Vec<usize> = splits.iter().map(|split| split.index(data.len() + 1)).collect();
    cuts.extend([0, data.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|cut| Bytes::copy_from_slice(&data[cut[0]..cut[1]])).collect()
}

#[test]
fn request_streams_carry_headers_data_and_unknown_frames() {
    let headers = Frame::Headers(Bytes::from_static(&[1, 2]));
    let data = Frame::Data(Bytes::from_static(&[7, 8, 9]));
    let unknown = Frame::Unknown { frame_type: VarInt::from_u32(0x21), len: 2 };
    for (bytes, frames) in [
        (&[][..], vec![]),
        (&[0x01, 2, 1, 2], vec![headers.clone()]),
        (&[0x00, 3, 7, 8, 9], vec![data.clone()]),
        (&[0x00, 0], vec![]),
        (&[0x00, 1, 7, 0x00, 2, 8, 9], vec![data.clone()]),
        (&[0x21, 2, 0, 0, 0x40, 1, 2, 1, 2], vec![unknown, headers]),
        (&[0xac, 0x4b, 0x1d, 0x7a, 2, 0x40, 14], vec![Frame::Continued(VarInt::from_u32(14))]),
    ] {
        assert_eq!(decode(StreamKind::Request, bytes), (frames, Ok(())), "{bytes:02x?}");
    }
}

#[test]
fn the_control_stream_carries_settings_and_ids() {
    let settings = Frame::Settings(Settings { h3_datagram: true, ..Settings::default() });
    let id = VarInt::from_u32(5);
    for (bytes, frame) in [
        (&[0x04, 2, 0x33, 1, 0x07, 1, 5][..], Frame::GoAway(id)),
        (&[0x04, 2, 0x33, 1, 0x0d, 2, 0x40, 5], Frame::MaxPushId(id)),
        (&[0x04, 2, 0x33, 1, 0x03, 1, 5], Frame::CancelPush(id)),
        (
            &[0x04, 2, 0x33, 1, 0x21, 0],
            Frame::Unknown { frame_type: VarInt::from_u32(0x21), len: 0 },
        ),
    ] {
        let expected = (vec![settings.clone(), frame], Ok(()));
        assert_eq!(decode(StreamKind::Control, bytes), expected, "{bytes:02x?}");
    }
}

#[test]
fn every_violation_has_its_code() {
    use StreamKind::{Continuation, Control, Request};
    for (kind, bytes, code) in [
        (Control, &[0x07, 1, 5][..], Code::H3_MISSING_SETTINGS),
        (Control, &[0x00, 0], Code::H3_MISSING_SETTINGS),
        (Control, &[0x21, 0], Code::H3_MISSING_SETTINGS),
        (Control, &[0x04, 0, 0x04, 0], Code::H3_FRAME_UNEXPECTED),
        (Control, &[0x04, 0, 0x00, 0], Code::H3_FRAME_UNEXPECTED),
        (Control, &[0x04, 0, 0x01, 0], Code::H3_FRAME_UNEXPECTED),
        (Control, &[0x04, 0, 0x05, 0], Code::H3_FRAME_UNEXPECTED),
        (Control, &[0x04, 0, 0x02, 0], Code::H3_FRAME_UNEXPECTED),
        (Control, &[0x04, 2, 0x02, 0], Code::H3_SETTINGS_ERROR),
        (Control, &[0x04, 1, 0x33], Code::H3_FRAME_ERROR),
        (Control, &[0x04, 0x40, 101], Code::H3_EXCESSIVE_LOAD),
        (Control, &[0x04, 0, 0x07, 0], Code::H3_FRAME_ERROR),
        (Control, &[0x04, 0, 0x07, 2, 5, 5], Code::H3_FRAME_ERROR),
        (Control, &[0x04, 0, 0x07, 1, 0x40], Code::H3_FRAME_ERROR),
        (Control, &[0x04, 0, 0x0d, 9], Code::H3_FRAME_ERROR),
        (Request, &[0x03, 1, 5], Code::H3_FRAME_UNEXPECTED),
        (Request, &[0x04, 0], Code::H3_FRAME_UNEXPECTED),
        (Request, &[0x07, 1, 5], Code::H3_FRAME_UNEXPECTED),
        (Request, &[0x0d, 1, 5], Code::H3_FRAME_UNEXPECTED),
        (Request, &[0x02, 0], Code::H3_FRAME_UNEXPECTED),
        (Request, &[0x06, 0], Code::H3_FRAME_UNEXPECTED),
        (Request, &[0x08, 0], Code::H3_FRAME_UNEXPECTED),
        (Request, &[0x09, 0], Code::H3_FRAME_UNEXPECTED),
        (Request, &[0x05, 0], Code::H3_ID_ERROR),
        (Request, &[0x01, 0x40, 101], Code::H3_EXCESSIVE_LOAD),
        (Request, &[0x01], Code::H3_FRAME_ERROR),
        (Request, &[0x01, 1], Code::H3_FRAME_ERROR),
        (Request, &[0x00, 2, 1], Code::H3_FRAME_ERROR),
        (Request, &[0x21, 2, 1], Code::H3_FRAME_ERROR),
        (Continuation, &[0x01, 0], Code::H3_FRAME_UNEXPECTED),
        (Continuation, &[0x05, 0], Code::H3_FRAME_UNEXPECTED),
        (Continuation, &[0x06, 0], Code::H3_FRAME_UNEXPECTED),
        (Continuation, &[0x07, 1, 5], Code::H3_FRAME_UNEXPECTED),
        (Continuation, &[0xac, 0x4b, 0x1d, 0x7a, 1, 14], Code::H3_FRAME_UNEXPECTED),
        (Continuation, &[0x00, 2, 1], Code::H3_FRAME_ERROR),
        (Request, &[0xac, 0x4b, 0x1d, 0x7a, 0], Code::H3_FRAME_ERROR),
        (Request, &[0xac, 0x4b, 0x1d, 0x7a, 9], Code::H3_FRAME_ERROR),
        (Control, &[0x04, 0, 0xac, 0x4b, 0x1d, 0x7a, 1, 14], Code::H3_FRAME_UNEXPECTED),
    ] {
        let (_, end) = decode(kind, bytes);
        assert_eq!(end.expect_err("a violation").code(), code, "{kind} {bytes:02x?}");
    }
}

#[test]
fn an_error_stays() {
    let mut decoder = FrameDecoder::new(StreamKind::Request, LEN_MAX);
    decoder.push(Bytes::from_static(&[0x04, 0, 0x00, 1, 9]));
    let error = decoder.next().expect_err("SETTINGS on a request stream");
    assert_eq!(decoder.next(), Err(error.clone()));
    assert_eq!(decoder.finish(), Err(error));
    assert!(!decoder.is_at_boundary());
}

#[test]
fn data_and_unknown_frames_have_no_limit_and_are_not_kept() {
    for frame_type in [0x00, 0x21] {
        let mut decoder = FrameDecoder::new(StreamKind::Request, LEN_MAX);
        decoder.push(Bytes::from(vec![frame_type, 0x80, 0x0f, 0x42, 0x40])); // 1 000 000 bytes
        let mut data_len = 0;
        for _ in 0..1000 {
            decoder.push(Bytes::from_static(&[0; 1000]));
            while let Some(frame) = decoder.next().expect("no violation") {
                data_len += if let Frame::Data(piece) = frame { piece.len() } else { 0 };
            }
            assert!(decoder.chunks.is_empty());
        }
        assert_eq!(decoder.finish(), Ok(()));
        assert_eq!(data_len, if frame_type == 0x00 { 1_000_000 } else { 0 });
    }
}

#[test]
fn data_is_shared_and_not_copied() {
    let bytes = Bytes::from_static(&[0x00, 3, 7, 8, 9]);
    let mut decoder = FrameDecoder::new(StreamKind::Request, LEN_MAX);
    decoder.push(bytes.clone());
    let Ok(Some(Frame::Data(piece))) = decoder.next() else { panic!("no data") };
    assert_eq!(piece.as_ptr(), bytes.slice(2..).as_ptr());
}

proptest! {
    #[test]
    fn encoded_frames_decode_to_themselves_however_they_are_split(
        field_section in proptest::collection::vec(any::<u8>(), 0..=LEN_MAX),
        data in proptest::collection::vec(any::<u8>(), 1..300),
        splits: Vec<Index>,
    ) {
        let mut bytes = Vec::new();
        encode_headers(&field_section, &mut bytes);
        encode_data_header(data.len(), &mut bytes);
        bytes.extend_from_slice(&data);
        let frames = vec![Frame::Headers(field_section.into()), Frame::Data(data.into())];
        prop_assert_eq!(decode_all(StreamKind::Request, &split(&bytes, &splits)), (frames, Ok(())));
    }

    #[test]
    fn control_frames_decode_to_themselves_however_they_are_split(
        h3_datagram: bool,
        id in 0..=VarInt::MAX,
        splits: Vec<Index>,
    ) {
        let settings = Settings { h3_datagram, ..Settings::default() };
        let id = VarInt::try_from(id).unwrap();
        let mut bytes = Vec::new();
        encode_settings(&settings, &mut bytes);
        encode_goaway(id, &mut bytes);
        let frames = vec![Frame::Settings(settings), Frame::GoAway(id)];
        prop_assert_eq!(decode_all(StreamKind::Control, &split(&bytes, &splits)), (frames, Ok(())));
    }

    #[test]
    fn any_bytes_give_the_same_frames_however_they_are_split(
        is_control: bool,
        bytes in proptest::collection::vec(prop_oneof![0_u8..16, any::<u8>()], 0..200),
        splits: Vec<Index>,
    ) {
        let kind = if is_control { StreamKind::Control } else { StreamKind::Request };
        let whole = decode_all(kind, &[Bytes::copy_from_slice(&bytes)]);
        prop_assert_eq!(decode_all(kind, &split(&bytes, &splits)), whole);
    }
}
