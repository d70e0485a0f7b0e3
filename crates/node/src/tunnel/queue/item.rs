//! The forms in which payloads wait and are sent.

use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tandem_wire::{CONTEXT_ID_UDP, HttpDatagram, QuarterStreamId, Sequenced, VarInt};

use super::Form;
use crate::{buffers, quic::StreamId, tunnel::capsules};

/// The longest header: quarter stream ID, Context ID, sequence number and distance to the repair
/// floor.
const HEADER_MAX: usize = 8 + 4 + 8 + 8;

/// Bytes of a sequence number and the distance to the repair floor. The sequence number needs more
/// once a flow has sent 2^30 payloads.
pub(in crate::tunnel) const NUMBERS: usize = 4 + 2;

/// How a flow treats a payload that fits no datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tunnel) enum TooLarge {
    /// The payload is dropped, so that its sender finds out what fits (RFC 9298 §6.1).
    #[default]
    Drop,
    /// The payload goes in a capsule, because the tunnel promised to carry payloads of up to this
    /// size, or because a datagram of its size has fitted before. Other payloads are dropped. Both
    /// ends must have agreed to the promise.
    Capsule(usize),
}

impl TooLarge {
    /// The largest payload that fits a datagram now, and the largest that is not dropped, in bytes.
    /// `room_in` is the room in a datagram of a size, `max` the largest datagram at present, and
    /// `widest` the largest so far, on which the sender of a payload may rely.
    pub(super) fn sizes(
        self,
        room_in: impl Fn(usize) -> usize,
        max: usize,
        widest: usize,
    ) -> (usize, usize) {
        let room = room_in(max);
        match self {
            Self::Drop => (room, room),
            Self::Capsule(promised) => (room, room.max(room_in(widest)).max(promised)),
        }
    }
}

/// Why a payload did not enter the queue. It was dropped, and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsent {
    /// It fits no datagram, and may not go in a capsule. At present the tunnel carries payloads of
    /// up to this size, in bytes.
    TooLarge { fits: usize },
    /// Its flow is unknown, or the queue is full.
    Other,
}

/// An item of the queue: a payload, or a capsule without one.
#[derive(Debug)]
pub(super) enum Item {
    /// Encoded data. Of a frame with a capsule it may be only the rest.
    Encoded(Form, Bytes),
    /// A frame with a capsule that has no payload. After a part of the frame was sent, it is the rest. These
    /// frames leave in the order in which they were queued.
    Control(Bytes),
    /// A payload that gets its number when it leaves the queue.
    Unnumbered(Unnumbered),
}

impl Item {
    /// The length of the item in the queue, in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Encoded(_, data) | Self::Control(data) => data.len(),
            Self::Unnumbered(item) => item.payload_len() + NUMBERS,
        }
    }
}

/// A payload with room for a header in front of it, so that the payload is copied once.
#[derive(Debug)]
pub(super) struct Unnumbered {
    room_and_payload: BytesMut,
    pub(super) since: Instant,
    /// The `ack_time` of the queue at that time.
    pub(super) ack_time: Duration,
    /// Bytes of its flow that waited in front of it at that time.
    pub(super) ahead: usize,
}

impl Unnumbered {
    /// `arrival` is the time at which the payload entered the queue, and the `ack_time` of the
    /// queue then.
    pub(super) fn new(payload: &[u8], arrival: (Instant, Duration), ahead: usize) -> Self {
        let (since, ack_time) = arrival;
        let room_and_payload = buffers::filled(HEADER_MAX + payload.len(), |out| {
            out.put_bytes(0, HEADER_MAX);
            out.put_slice(payload);
        });
        Self { room_and_payload, since, ack_time, ahead }
    }

    pub(super) fn payload_len(&self) -> usize {
        self.room_and_payload.len() - HEADER_MAX
    }

    /// Writes the header in front of the payload. Returns the HTTP Datagram.
    pub(super) fn number(mut self, ids: Ids, sequence: u64, floor: u64) -> Bytes {
        let mut header = [0; HEADER_MAX];
        let mut unused = &mut header[..];
        HttpDatagram::encode_ids(ids.quarter_stream_id, ids.context_id, &mut unused);
        numbers(sequence, floor).encode(&mut unused);
        let unused = unused.len();
        self.room_and_payload.advance(unused);
        for (room, byte) in self.room_and_payload.iter_mut().zip(header).take(HEADER_MAX - unused) {
            *room = byte;
        }
        self.room_and_payload.freeze()
    }
}

/// The IDs in front of a payload: those of its flow and of its kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ids {
    pub(super) quarter_stream_id: QuarterStreamId,
    pub(super) context_id: VarInt,
}

impl Ids {
    pub(super) fn new(stream: StreamId, context_id: VarInt) -> Option<Self> {
        let quarter_stream_id = QuarterStreamId::from_stream_id(stream.0)?;
        Some(Self { quarter_stream_id, context_id })
    }

    /// The largest payload, in bytes, that fits a datagram of `max` bytes, if `next` becomes its
    /// number.
    pub(super) const fn room(self, next: u64, max: usize) -> usize {
        let ids = HttpDatagram::overhead(self.quarter_stream_id, self.context_id);
        let sequence = VarInt::saturating_from(next).encoded_len();
        let more = sequence.saturating_sub(4);
        max.saturating_sub(ids + NUMBERS + more)
    }
}

/// Turns an HTTP Datagram into a DATA frame with a DATAGRAM capsule.
pub(super) fn into_capsule(datagram: Bytes) -> Option<Bytes> {
    let HttpDatagram { context_id, payload, .. } = HttpDatagram::decode(datagram).ok()?;
    Some(capsules::encode_payload(context_id, &payload))
}

fn numbers(sequence: u64, floor: u64) -> Sequenced {
    Sequenced {
        sequence: VarInt::saturating_from(sequence),
        floor: VarInt::saturating_from(floor),
        payload: Bytes::new(),
    }
}

/// The largest payload without a number, in bytes, that fits a datagram of `max` bytes.
pub(super) fn room_in(stream: StreamId, max: usize) -> usize {
    let id = QuarterStreamId::from_stream_id(stream.0);
    id.map_or(0, |id| max.saturating_sub(HttpDatagram::overhead(id, CONTEXT_ID_UDP)))
}

/// Encodes a payload without a number as an HTTP Datagram. The payload is copied once.
pub(super) fn encode_datagram(stream: StreamId, payload: &[u8]) -> Option<Bytes> {
    let quarter_stream_id = QuarterStreamId::from_stream_id(stream.0)?;
    let overhead = HttpDatagram::overhead(quarter_stream_id, CONTEXT_ID_UDP);
    let datagram = buffers::filled(overhead + payload.len(), |out| {
        HttpDatagram::encode_ids(quarter_stream_id, CONTEXT_ID_UDP, out);
        out.put_slice(payload);
    });
    Some(datagram.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_written_in_front_of_the_payload() {
        let stream = StreamId(4 * 100);
        let ids = Ids::new(stream, VarInt::from_u32(2)).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the time does not matter")]
        let now = Instant::now();
        for (sequence, floor) in [(0, 0), (63, 0), (70_000, 69_000), (1 << 40, 1)] {
            let item = Unnumbered::new(b"payload", (now, Duration::ZERO), 0);
            let datagram = HttpDatagram::decode(item.number(ids, sequence, floor)).unwrap();
            assert_eq!(datagram.quarter_stream_id.stream_id(), stream.0);
            assert_eq!(datagram.context_id, VarInt::from_u32(2));
            let sequenced = Sequenced::decode(datagram.payload).unwrap();
            assert_eq!((sequenced.sequence.get(), sequenced.floor.get()), (sequence, floor));
            assert_eq!(sequenced.payload, &b"payload"[..]);
        }
    }
}
