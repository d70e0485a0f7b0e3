//! The frames in the payload of a QUIC packet ([RFC 9000 §19]), as far as it takes to tell what a
//! packet is for. Nothing here decodes a frame's values, except where the frame ends.
//!
//! [RFC 9000 §19]: https://www.rfc-editor.org/rfc/rfc9000#section-19

use crate::VarInt;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicFrameKind {
    /// PADDING. Adjacent ones are one frame here.
    Padding,
    /// ACK, with or without counts of ECN marks.
    Ack,
    /// Data of a stream.
    Stream,
    /// A datagram (RFC 9221 §4).
    Datagram,
    /// Any other frame, and everything from the first frame that cannot be decoded.
    Other,
}

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicFrame<'a> {
    /// What the frame is for.
    pub kind: QuicFrameKind,
    /// The whole frame.
    pub frame: &'a [u8],
    /// The payload at the end of a frame with data. Other frames have none.
    pub data: &'a [u8],
}

/// The frames of a packet's payload, in their order.
///
/// The payload may come from an attacker. After a frame that is truncated or of an unknown type, the
/// iterator returns the rest as one frame of the kind [`QuicFrameKind::Other`] and ends.
#[derive(Clone, Debug)]
pub struct QuicFrames<'a>(&'a [u8]);

impl<'a> QuicFrames<'a> {
    /// The frames in the decrypted payload of a packet.
    pub const fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }
}

impl<'a> Iterator for QuicFrames<'a> {
    type Item = QuicFrame<'a>;

    fn next(&mut self) -> Option<QuicFrame<'a>> {
        if self.0.is_empty() {
            return None;
        }
        let all = std::mem::take(&mut self.0);
        let mut rest = all;
        let decoded = decode(&mut rest);
        let whole = QuicFrame { kind: QuicFrameKind::Other, frame: all, data: &[] };
        let Some((kind, data)) = decoded else { return Some(whole) };
        let Some((frame, after)) = all.split_at_checked(all.len() - rest.len()) else {
            return Some(whole);
        };
        self.0 = after;
        Some(QuicFrame { kind, frame, data })
    }
}

/// Takes one frame off the front. Returns what it is for and its data. `None`: it is truncated, or its
/// type is unknown.
fn decode<'a>(rest: &mut &'a [u8]) -> Option<(QuicFrameKind, &'a [u8])> {
    let frame_type = VarInt::decode(rest).ok()?.get();
    let kind = match frame_type {
        0x00 => QuicFrameKind::Padding,
        0x02 | 0x03 => QuicFrameKind::Ack,
        0x08..=0x0f => QuicFrameKind::Stream,
        0x30 | 0x31 => QuicFrameKind::Datagram,
        _ => QuicFrameKind::Other,
    };
    let mut data: &[u8] = &[];
    match frame_type {
        0x00 => {
            let zeros = rest.iter().take_while(|&&byte| byte == 0).count();
            take(rest, zeros)?;
        }
        // PING, HANDSHAKE_DONE, IMMEDIATE_ACK
        0x01 | 0x1e | 0x1f => {}
        0x02 | 0x03 => skip_ack(rest, frame_type == 0x03)?,
        // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED, RETIRE_CONNECTION_ID
        0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => skip_integers(rest, 1)?,
        // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED
        0x05 | 0x11 | 0x15 => skip_integers(rest, 2)?,
        0x04 => skip_integers(rest, 3)?,    // RESET_STREAM
        0xaf => skip_integers(rest, 4)?,    // ACK_FREQUENCY (draft-ietf-quic-ack-frequency)
        0x07 => drop(take_prefixed(rest)?), // NEW_TOKEN
        0x06 => {
            skip_integers(rest, 1)?;
            take_prefixed(rest)?; // CRYPTO
        }
        0x08..=0x0f => {
            let has_offset = frame_type & 0x04 != 0;
            skip_integers(rest, 1 + u64::from(has_offset))?;
            data = if frame_type & 0x02 != 0 { take_prefixed(rest)? } else { std::mem::take(rest) };
        }
        0x18 => {
            skip_integers(rest, 2)?; // NEW_CONNECTION_ID
            let len = take(rest, 1)?.first().copied()?;
            take(rest, usize::from(len) + 16)?;
        }
        0x1a | 0x1b => drop(take(rest, 8)?), // PATH_CHALLENGE, PATH_RESPONSE
        0x1c | 0x1d => {
            skip_integers(rest, 1 + u64::from(frame_type == 0x1c))?; // CONNECTION_CLOSE
            take_prefixed(rest)?;
        }
        0x30 => data = std::mem::take(rest),
        0x31 => data = take_prefixed(rest)?,
        _ => return None,
    }
    Some((kind, data))
}

/// Skips the fields of an ACK frame after its type (RFC 9000 §19.3).
fn skip_ack(rest: &mut &[u8], has_ecn: bool) -> Option<()> {
    skip_integers(rest, 2)?;
    let ranges = VarInt::decode(rest).ok()?.get();
    skip_integers(rest, 1)?;
    skip_integers(rest, ranges.checked_mul(2)?)?;
    if has_ecn { skip_integers(rest, 3) } else { Some(()) }
}

/// Skips integers. The loop ends with the bytes, of which each integer has at least one.
fn skip_integers(rest: &mut &[u8], count: u64) -> Option<()> {
    for _ in 0..count {
        VarInt::decode(rest).ok()?;
    }
    Some(())
}

/// Takes bytes after their length.
fn take_prefixed<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = VarInt::decode(rest).ok()?.get();
    take(rest, usize::try_from(len).ok()?)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds(payload: &[u8]) -> Vec<(QuicFrameKind, usize, usize)> {
        QuicFrames::new(payload).map(|it| (it.kind, it.frame.len(), it.data.len())).collect()
    }

    #[test]
    fn each_frame_ends_where_it_should() {
        use QuicFrameKind::{Ack, Datagram, Other, Padding, Stream};
        for (what, frame, expected) in [
            ("PADDING", &[0, 0, 0][..], (Padding, 3, 0)),
            ("PING", &[1], (Other, 1, 0)),
            ("ACK of one range", &[2, 9, 0, 0, 4], (Ack, 5, 0)),
            ("ACK of three ranges", &[2, 0x40, 99, 0, 2, 4, 1, 1, 2, 2], (Ack, 10, 0)),
            ("ACK with ECN", &[3, 9, 0, 0, 4, 1, 0, 0], (Ack, 8, 0)),
            ("RESET_STREAM", &[4, 0, 1, 2], (Other, 4, 0)),
            ("STOP_SENDING", &[5, 0, 1], (Other, 3, 0)),
            ("CRYPTO", &[6, 0, 2, 7, 7], (Other, 5, 0)),
            ("NEW_TOKEN", &[7, 1, 7], (Other, 3, 0)),
            ("STREAM with a length", &[0x0a, 0, 2, 7, 7], (Stream, 5, 2)),
            ("STREAM with all", &[0x0f, 0, 9, 1, 7], (Stream, 5, 1)),
            ("MAX_DATA", &[0x10, 0x40, 99], (Other, 3, 0)),
            ("MAX_STREAM_DATA", &[0x11, 0, 9], (Other, 3, 0)),
            ("MAX_STREAMS", &[0x12, 9], (Other, 2, 0)),
            ("STREAM_DATA_BLOCKED", &[0x15, 0, 9], (Other, 3, 0)),
            ("RETIRE_CONNECTION_ID", &[0x19, 1], (Other, 2, 0)),
            ("PATH_CHALLENGE", &[0x1a, 1, 2, 3, 4, 5, 6, 7, 8], (Other, 9, 0)),
            ("CONNECTION_CLOSE of QUIC", &[0x1c, 1, 0, 1, 7], (Other, 5, 0)),
            ("CONNECTION_CLOSE of the application", &[0x1d, 1, 1, 7], (Other, 4, 0)),
            ("HANDSHAKE_DONE", &[0x1e], (Other, 1, 0)),
            ("IMMEDIATE_ACK", &[0x1f], (Other, 1, 0)),
            ("DATAGRAM with a length", &[0x31, 2, 7, 7], (Datagram, 4, 2)),
            ("ACK_FREQUENCY", &[0x40, 0xaf, 0, 1, 2, 3], (Other, 6, 0)),
        ] {
            let mut payload = frame.to_vec();
            assert_eq!(kinds(&payload), [expected], "{what}");
            payload.push(1);
            assert_eq!(kinds(&payload), [expected, (Other, 1, 0)], "{what}, and a PING");
        }
        let mut new_connection_id = vec![0x18, 1, 0, 8];
        new_connection_id.extend([7; 24]);
        assert_eq!(kinds(&new_connection_id), [(Other, 28, 0)]);
    }

    #[test]
    fn data_without_a_length_reaches_to_the_end() {
        use QuicFrameKind::{Ack, Datagram, Stream};
        assert_eq!(
            kinds(&[2, 9, 0, 0, 4, 0x30, 1, 2, 3]),
            [(Ack, 5, 0), (Datagram, 4, 3)],
            "DATAGRAM"
        );
        assert_eq!(kinds(&[0x08, 0, 1, 2]), [(Stream, 4, 2)], "STREAM");
    }

    #[test]
    fn what_cannot_be_decoded_is_one_frame() {
        use QuicFrameKind::{Other, Padding};
        for payload in [
            &[2, 9, 0, 0x3f, 4][..], // an ACK frame that says that it has 63 more ranges
            &[0x31, 9, 1],           // a DATAGRAM frame that is cut
            &[0x40],                 // a type that is cut
            &[0x21, 1, 2, 3],        // an unknown type
            &[0x07, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], // an endless token
        ] {
            assert_eq!(kinds(payload), [(Other, payload.len(), 0)], "{payload:?}");
        }
        assert_eq!(kinds(&[0, 0, 0x21, 9]), [(Padding, 2, 0), (Other, 2, 0)]);
    }

    proptest! {
        #[test]
        fn frames_cover_any_payload(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let frames: Vec<u8> =
                QuicFrames::new(&payload).flat_map(|it| it.frame.to_vec()).collect();
            prop_assert_eq!(frames, payload);
        }
    }
}
