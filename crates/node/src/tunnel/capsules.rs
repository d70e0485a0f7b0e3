//! Capsules on request streams (RFC 9297 §3). Both roles read and write them here.

use bytes::{BufMut, Bytes, BytesMut};
use tandem_wire::{
    CAPSULE_TYPE_PROXY_STATUS, CAPSULE_TYPE_REPAIR, Capsule, CapsuleDecoder, CidCapsule, Code,
    DecodeError, OwnCapsule, ProxyStatus, RepairField, RetransmissionLimit, StrangerText, VarInt,
    datagram_capsule_len, encode_capsule, encode_data_header, encode_datagram_capsule,
    split_context_id,
};

use crate::carrier::Carrier;
use crate::{
    buffers,
    h3::{Body, ConnectionError},
    quic::StreamId,
};

/// The next thing that arrives on a request stream.
#[derive(Debug)]
pub(super) enum OnStream {
    /// The value of a DATAGRAM capsule: a Context ID and the payload after it.
    Payload(VarInt, Bytes),
    /// A DATAGRAM capsule without a Context ID.
    Malformed,
    /// The peer says how often to retransmit lost datagrams.
    Limit(RetransmissionLimit),
    /// A client says how the flow is repaired from now on.
    Repair(RepairField),
    /// The peer says why it ends the flow, as in a `Proxy-Status` field.
    ProxyStatus(StrangerText),
    /// Something about a connection ID of the flow.
    Cid(CidCapsule),
    /// Something that only the flow's service can read.
    Own(OwnCapsule),
    /// The stream has ended, and the flow ends with it.
    Ended(StreamEnd),
    /// The peer violated HTTP/3.
    Broken(ConnectionError),
}

/// How a request stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The peer ended the stream after a complete capsule.
    Finished,
    /// The peer reset the stream.
    Reset(Code),
    /// The proxy ends the flow, for the reason in this value of `Proxy-Status`.
    Failed(StrangerText),
    /// The peer sent something that it must not send. The stream must be ended with this code.
    Malformed(Code, StrangerText),
}

impl StreamEnd {
    /// RFC 9297 §3.3: an error in the Capsule Protocol "MUST be treated as if it were a malformed or
    /// incomplete message".
    fn malformed(error: &DecodeError) -> Self {
        Self::Malformed(error.code(), error.to_string().into())
    }
}

/// Reads from a request stream. `None`: nothing more has arrived. A stream without a decoder
/// belongs to a request that was refused, and its data is dropped.
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
                Ok(Some(Capsule::ProxyStatus(value))) => {
                    return Some(OnStream::ProxyStatus(StrangerText::from_bytes(&value)));
                }
                Ok(Some(Capsule::Repair(value))) => {
                    match str::from_utf8(&value).map(RepairField::parse) {
                        Ok(Ok(field)) => return Some(OnStream::Repair(field)),
                        Ok(Err(_)) | Err(_) => return Some(OnStream::Malformed),
                    }
                }
                Ok(Some(Capsule::Cid(capsule))) => return Some(OnStream::Cid(capsule)),
                Ok(Some(Capsule::Own(capsule))) => return Some(OnStream::Own(capsule)),
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

/// The longest header of a DATA frame: its type and length.
const FRAME_HEADER_MAX: usize = 16;

/// Encodes a DATA frame with one DATAGRAM capsule. The payload is copied once.
pub(super) fn encode_payload(context_id: VarInt, payload: &[u8]) -> Bytes {
    let len = datagram_capsule_len(context_id, payload.len());
    let frame = buffers::filled(FRAME_HEADER_MAX + len, |frame| {
        encode_data_header(len, frame);
        encode_datagram_capsule(context_id, payload, frame);
    });
    frame.freeze()
}

/// Encodes a DATA frame with one capsule that holds a retransmission limit.
pub(super) fn encode_limit(limit: RetransmissionLimit) -> Bytes {
    let mut capsule = Vec::new();
    limit.encode(&mut capsule);
    in_frame(&capsule, 0)
}

/// Encodes a DATA frame with one capsule that changes how a flow is repaired.
pub(super) fn encode_repair(field: &RepairField) -> Bytes {
    encode_field(CAPSULE_TYPE_REPAIR, field.encode().as_bytes())
}

/// Encodes a DATA frame with one capsule that says why a flow ends.
pub(crate) fn encode_proxy_status(status: &ProxyStatus) -> Bytes {
    encode_field(CAPSULE_TYPE_PROXY_STATUS, status.encode().as_bytes())
}

/// Encodes a DATA frame with one capsule, whose value is that of a header field.
fn encode_field(capsule_type: VarInt, value: &[u8]) -> Bytes {
    let mut capsule = Vec::new();
    encode_capsule(capsule_type, value, &mut capsule);
    in_frame(&capsule, 0)
}

/// A DATA frame that begins with these bytes. `more` bytes follow, which the caller sends.
pub(crate) fn in_frame(start: &[u8], more: usize) -> Bytes {
    let mut frame = BytesMut::with_capacity(FRAME_HEADER_MAX + start.len());
    encode_data_header(start.len() + more, &mut frame);
    frame.put_slice(start);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use tandem_wire::{Frame, FrameDecoder, StreamKind};

    use super::*;

    /// Decodes the capsule in an encoded DATA frame.
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
