//! Capsules on request streams (RFC 9297 §3): the one reader and the one writer of both roles.

use bytes::{BufMut, Bytes, BytesMut};
use tandem_wire::{
    Capsule, CapsuleDecoder, Code, DecodeError, RetransmissionLimit, VarInt, datagram_capsule_len,
    encode_data_header, encode_datagram_capsule, split_context_id,
};

use super::Carrier;
use crate::{
    h3::{Body, ConnectionError},
    quic::StreamId,
};

/// What came next on a request stream.
#[derive(Debug)]
pub(super) enum OnStream {
    /// The value of a DATAGRAM capsule: a Context ID, and what follows it.
    Payload(VarInt, Bytes),
    /// A DATAGRAM capsule without a Context ID.
    Malformed,
    /// The peer says how often to send lost datagrams again.
    Limit(RetransmissionLimit),
    /// The stream has ended, and with it the flow.
    Ended(StreamEnd),
    /// The peer broke HTTP/3.
    Broken(ConnectionError),
}

/// How a request stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The peer finished it after a whole capsule.
    Finished,
    /// The peer gave it up.
    Reset(Code),
    /// What came must not be sent; the stream is to be ended with this code.
    Malformed(Code, String),
}

impl StreamEnd {
    /// RFC 9297 §3.3: an error in the Capsule Protocol "MUST be treated as if it were a malformed or
    /// incomplete message".
    fn malformed(error: &DecodeError) -> Self {
        Self::Malformed(error.code(), error.to_string())
    }
}

/// Reads on a request stream. `None`: nothing more has come. What comes on a stream without a
/// decoder, because its request was refused, is dropped.
pub(super) fn read(
    mut decoder: Option<&mut CapsuleDecoder>,
    carrier: &mut Carrier<'_>,
    stream: StreamId,
) -> Option<OnStream> {
    loop {
        if let Some(decoder) = &mut decoder {
            match decoder.next() {
                Ok(Some(Capsule::Datagram(value))) => {
                    return Some(match split_context_id(value) {
                        Ok((context_id, payload)) => OnStream::Payload(context_id, payload),
                        Err(_) => OnStream::Malformed,
                    });
                }
                Ok(Some(Capsule::RetransmissionLimit(limit))) => {
                    return Some(OnStream::Limit(limit));
                }
                Ok(Some(Capsule::Unknown { .. })) => continue,
                Ok(None) => {}
                Err(error) => return Some(OnStream::Ended(StreamEnd::malformed(&error))),
            }
        }
        return Some(match carrier.read_body(stream) {
            Ok(Body::Data(data)) => {
                if let Some(decoder) = &mut decoder {
                    decoder.push(data);
                }
                continue;
            }
            Ok(Body::Blocked) => return None,
            // RFC 9297 §3.3: "If the receive side of a stream carrying Capsules is terminated cleanly
            // [...] and the last Capsule on the stream was truncated, this MUST be treated as if it
            // were a malformed or incomplete message."
            Ok(Body::End) => {
                OnStream::Ended(match decoder.as_ref().map(|decoder| decoder.finish()) {
                    Some(Err(error)) => StreamEnd::malformed(&error),
                    Some(Ok(())) | None => StreamEnd::Finished,
                })
            }
            Ok(Body::Failed(code)) => OnStream::Ended(StreamEnd::Reset(code)),
            Err(error) => OnStream::Broken(error),
        });
    }
}

/// Type and length of a DATA frame, at their longest.
const FRAME_HEADER_MAX: usize = 16;

/// A DATA frame with one DATAGRAM capsule; the payload is copied once.
pub(super) fn encode_payload(context_id: VarInt, payload: &[u8]) -> Bytes {
    let len = datagram_capsule_len(context_id, payload.len());
    let mut frame = BytesMut::with_capacity(FRAME_HEADER_MAX + len);
    encode_data_header(len, &mut frame);
    encode_datagram_capsule(context_id, payload, &mut frame);
    frame.freeze()
}

/// A DATA frame with one capsule of another kind.
pub(super) fn encode_limit(limit: RetransmissionLimit) -> Bytes {
    let mut capsule = Vec::new();
    limit.encode(&mut capsule);
    let mut frame = BytesMut::with_capacity(FRAME_HEADER_MAX + capsule.len());
    encode_data_header(capsule.len(), &mut frame);
    frame.put_slice(&capsule);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use tandem_wire::{Frame, FrameDecoder, StreamKind};

    use super::*;

    /// The capsule in the DATA frame that these bytes are.
    fn capsule_in(frame: Bytes) -> Capsule {
        let mut frames = FrameDecoder::new(StreamKind::Request, 100_000);
        let mut capsules = CapsuleDecoder::new(100_000);
        frames.push(frame);
        while let Some(frame) = frames.next().unwrap() {
            let Frame::Data(data) = frame else { panic!("{frame:?}") };
            capsules.push(data);
        }
        capsules.next().unwrap().unwrap()
    }

    #[test]
    fn a_payload_is_one_capsule_in_one_frame() {
        for (context_id, len) in [(0, 0), (0, 61), (0, 62), (2, 1200), (2, 65_527)] {
            let context_id = VarInt::from_u32(context_id);
            let payload = vec![7; len];
            let frame = encode_payload(context_id, &payload);
            let Capsule::Datagram(value) = capsule_in(frame) else { panic!("{len}") };
            let (seen, rest) = split_context_id(value).unwrap();
            assert_eq!((seen, &rest[..]), (context_id, &payload[..]));
        }
    }

    #[test]
    fn a_limit_is_one_capsule_in_one_frame() {
        let limit = RetransmissionLimit { context_id: None, limit: VarInt::from_u32(3) };
        assert_eq!(capsule_in(encode_limit(limit)), Capsule::RetransmissionLimit(limit));
    }
}
