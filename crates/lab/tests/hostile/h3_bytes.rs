//! Builds and reads HTTP/3 as bytes, valid or invalid.

#![expect(clippy::unwrap_used, reason = "an error here fails the test")]

use bytes::{BufMut, Bytes};
use tandem_wire::{
    Frame, FrameDecoder, ResponseHead, StreamKind, VarInt, encode_capsule, encode_datagram_capsule,
    qpack::encode_field_section,
};

use crate::raw_peer::{Came, StreamEnd};

/// What a proxy says about how clients may log in.
pub(crate) const CHALLENGES: [&str; 2] =
    ["Basic realm=\"tandem\", charset=\"UTF-8\"", "Bearer realm=\"tandem\""];

pub(crate) const DATA: u64 = 0x00;
pub(crate) const HEADERS: u64 = 0x01;
pub(crate) const CANCEL_PUSH: u64 = 0x03;
pub(crate) const SETTINGS: u64 = 0x04;
pub(crate) const PUSH_PROMISE: u64 = 0x05;
pub(crate) const GOAWAY: u64 = 0x07;
pub(crate) const MAX_PUSH_ID: u64 = 0x0d;
/// A reserved type of frame, stream, setting and capsule, which must be ignored (RFC 9114 §7.2.8).
pub(crate) const GREASE: u64 = 0x1f * 1000 + 0x21;

/// SETTINGS with extended CONNECT and HTTP Datagrams (RFC 9220, RFC 9297).
pub(crate) const MASQUE_SETTINGS: &[(u64, u64)] = &[(0x08, 1), (0x33, 1)];

pub(crate) fn varint(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    VarInt::try_from(value).unwrap().encode(&mut out);
    out
}

/// A frame, a capsule, or anything else that is a type, a length and a value.
pub(crate) fn frame(frame_type: u64, payload: &[u8]) -> Vec<u8> {
    [varint(frame_type), varint(payload.len() as u64), payload.to_vec()].concat()
}

pub(crate) fn settings(settings: &[(u64, u64)]) -> Vec<u8> {
    let pairs = settings.iter().map(|(id, value)| [varint(*id), varint(*value)].concat());
    frame(SETTINGS, &pairs.collect::<Vec<_>>().concat())
}

pub(crate) fn headers(lines: &[(&str, &str)]) -> Vec<u8> {
    let lines = lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    frame(HEADERS, &encode_field_section(lines))
}

/// A whole control stream: its type, SETTINGS, and frames.
pub(crate) fn control_stream(more: &[u8]) -> Vec<u8> {
    [varint(0x00), settings(MASQUE_SETTINGS), more.to_vec()].concat()
}

/// The request for the channel of a client's reports.
pub(crate) fn open_channel() -> Vec<u8> {
    headers(&connect_lines("tandem-quic-info", "/.well-known/tandem-quic-info"))
}

pub(crate) fn get(path: &str) -> Vec<u8> {
    headers(&[
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "peer.test"),
        (":path", path),
    ])
}

/// The pseudo-header fields of an extended CONNECT request (RFC 9220).
pub(crate) fn connect_lines<'a>(protocol: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        (":method", "CONNECT"),
        (":protocol", protocol),
        (":scheme", "https"),
        (":authority", "peer.test"),
        (":path", path),
    ]
}

/// The pseudo-header fields of a CONNECT-UDP request (RFC 9298 §3.4).
pub(crate) fn connect_udp_lines(path: &str) -> Vec<(&str, &str)> {
    connect_lines("connect-udp", path)
}

/// DATA with these capsules.
pub(crate) fn data(capsules: &[Vec<u8>]) -> Vec<u8> {
    frame(DATA, &capsules.concat())
}

/// A request for a flow to this target, with the default template.
pub(crate) fn connect_udp(host: &str, port: &str) -> Vec<u8> {
    let path = format!("/.well-known/masque/udp/{host}/{port}/");
    let mut lines = connect_udp_lines(&path);
    lines.push(("capsule-protocol", "?1"));
    headers(&lines)
}

/// A request for a flow with a `tandem-group` field.
pub(crate) fn connect_udp_group(host: &str, port: &str, group: &str) -> Vec<u8> {
    let path = format!("/.well-known/masque/udp/{host}/{port}/");
    let mut lines = connect_udp_lines(&path);
    lines.extend([("capsule-protocol", "?1"), ("tandem-group", group)]);
    headers(&lines)
}

/// The data of a DATAGRAM frame with a UDP payload for the flow of this request stream.
pub(crate) fn udp_datagram(stream: u64, payload: &[u8]) -> Bytes {
    http_datagram(stream, 0, payload)
}

pub(crate) fn http_datagram(stream: u64, context: u64, payload: &[u8]) -> Bytes {
    [varint(stream / 4), varint(context), payload.to_vec()].concat().into()
}

pub(crate) fn datagram_capsule(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_datagram_capsule(VarInt::from_u32(0), payload, &mut out);
    out
}

pub(crate) fn capsule(capsule_type: u64, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_capsule(VarInt::try_from(capsule_type).unwrap(), value, &mut out);
    out
}

/// An answer on a request stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) head: ResponseHead,
    pub(crate) body: Vec<u8>,
    pub(crate) end: Option<StreamEnd>,
}

impl Answer {
    /// Reads the answer on a request stream; `None` if its head has not arrived yet.
    ///
    /// # Panics
    /// It panics if the answer is not valid HTTP/3.
    pub(crate) fn read(came: &Came) -> Option<Self> {
        let mut decoder = FrameDecoder::new(StreamKind::Request, 100_000);
        decoder.push(Bytes::copy_from_slice(&came.data));
        let mut head = None;
        let mut body = Vec::new();
        while let Some(frame) = decoder.next().unwrap() {
            match frame {
                Frame::Headers(section) => {
                    let before = head.replace(ResponseHead::decode(section, 100_000).unwrap());
                    assert_eq!(before, None, "one answer per request");
                }
                Frame::Data(data) => body.put_slice(&data),
                _ => {}
            }
        }
        Some(Self { head: head?, body, end: came.end })
    }

    pub(crate) fn status(&self) -> u16 {
        self.head.status.as_u16()
    }

    /// A field of the head as text; empty if there is none.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.head.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// All values of a field.
    pub(crate) fn fields(&self, name: &str) -> Vec<&str> {
        self.head.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }
}
