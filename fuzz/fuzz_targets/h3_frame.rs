//! Decoded frames are independent of the splitting of the stream, and encode to a stream that
//! decodes to the same frames.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_fuzz::split;
use tandem_wire::{
    DecodeError, Frame, FrameDecoder, StreamKind, encode_continued, encode_data_header,
    encode_goaway, encode_headers, encode_settings,
};

const LEN_MAX: usize = 100;

fuzz_target!(|input: (u8, Vec<u8>, &[u8])| {
    let (kind, lengths, data) = input;
    let kind = match kind % 3 {
        0 => StreamKind::Request,
        1 => StreamKind::Control,
        _ => StreamKind::Continuation,
    };
    let whole = decode_all(kind, &split(data, &[]));
    assert_eq!(decode_all(kind, &split(data, &lengths)), whole);

    let (mut frames, _) = whole;
    let mut encoded = Vec::new();
    frames.retain(|frame| encode(frame, &mut encoded));
    let mut merged = Vec::new();
    for frame in frames {
        push(&mut merged, frame); // this joins DATA between which other frames were removed
    }
    assert_eq!(decode_all(kind, &[encoded.into()]), (merged, Ok(())));
});

/// Encodes a frame. Returns false for frames that Tandem never sends.
fn encode(frame: &Frame, out: &mut Vec<u8>) -> bool {
    match frame {
        Frame::Data(payload) => {
            encode_data_header(payload.len(), out);
            out.extend_from_slice(payload);
        }
        Frame::Headers(section) => {
            assert!(section.len() <= LEN_MAX);
            encode_headers(section, out);
        }
        Frame::Settings(settings) => encode_settings(settings, out),
        Frame::GoAway(id) => encode_goaway(*id, out),
        Frame::Continued(stream) => encode_continued(*stream, out),
        Frame::MaxPushId(_) | Frame::CancelPush(_) | Frame::Unknown { .. } => return false,
    }
    true
}

fn decode_all(kind: StreamKind, pieces: &[Bytes]) -> (Vec<Frame>, Result<(), DecodeError>) {
    let mut decoder = FrameDecoder::new(kind, LEN_MAX);
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.push(piece.clone());
        loop {
            match decoder.next() {
                Ok(Some(frame)) => push(&mut frames, frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
    }
    assert_eq!(decoder.is_at_boundary(), decoder.finish().is_ok());
    (frames, decoder.finish())
}

/// Appends a frame, and joins it with the previous one if both are DATA.
fn push(frames: &mut Vec<Frame>, frame: Frame) {
    match (frames.last_mut(), frame) {
        (Some(Frame::Data(data)), Frame::Data(piece)) => {
            *data = [&data[..], &piece[..]].concat().into();
        }
        (_, frame) => frames.push(frame),
    }
}
