//! The one standing queue of a tunnel, at its sender: UDP payloads that wait for the tunnel's QUIC
//! connection to send them, in the form in which they go.
//!
//! The engine is given no more than one pacing burst of datagrams, or two congestion windows of
//! stream data, at a time, so that the length here is the tunnel's queue q(t). Flows have their turns
//! by deficit round robin. When the queue is full, the flow that holds most of it loses its newest.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName};
use tandem_wire::{
    CONTEXT_ID_UDP, HttpDatagram, MAX_UDP_PAYLOAD, QuarterStreamId, encode_data_header,
    encode_datagram_capsule,
};

use crate::{
    h3::Session,
    quic::{Connection, SendDatagram, StreamId, Write},
};

/// In which form a flow's payloads go (RFC 9297 §2 and §3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// QUIC DATAGRAM frames: not repaired.
    Datagram,
    /// DATAGRAM capsules on the request stream: repaired and in order.
    Capsule,
}

/// Our own field of a request, and of the answer that agrees: the size of UDP payloads that the
/// client promised to the connection inside (an Integer, RFC 9651). See `docs/wire.md`.
pub(crate) const PROMISED_SIZE: HeaderName = HeaderName::from_static("tandem-promised-size");

/// The value of that field, if it is there and sane.
pub(crate) fn promised_size(headers: &HeaderMap) -> Option<usize> {
    let size = headers.get(PROMISED_SIZE)?.to_str().ok()?.parse().ok()?;
    (1200..=MAX_UDP_PAYLOAD).contains(&size).then_some(size)
}

/// What to do with a payload that fits no datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLarge {
    /// RFC 9298 §6.1: it SHOULD be dropped, so that whoever sent it finds out what fits.
    Drop,
    /// It was promised to fit, so it goes in a capsule until the tunnel's packets are full again.
    /// Only for payloads of at most this size, and only if the other end said that it reads them.
    Capsule(usize),
}

/// What became of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Push {
    /// It waits.
    Queued,
    /// There is no room for it.
    Full,
    /// It fits no packet.
    TooLarge,
}

/// Bytes that a flow may send in its turn: a full packet.
const QUANTUM: usize = 1500;

/// Encoded payloads of one flow.
#[derive(Debug, Default)]
struct FlowQueue {
    items: VecDeque<(Form, Bytes)>,
    bytes: usize,
    /// Bytes that it may still send in its turn.
    deficit: usize,
    /// Its stream has no room; it has no turn until there is.
    is_blocked: bool,
    /// Some of its first item has been sent: a frame whose rest has to follow.
    is_begun: bool,
}

/// What was dropped after it was queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LateDrops {
    /// To make room for another flow.
    pub(crate) queue_full: u64,
    /// The path's MTU shrank while it waited.
    pub(crate) too_large: u64,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct TunnelQueue {
    flows: BTreeMap<StreamId, FlowQueue>,
    /// Flows that have something to send and may, in the order of their turns.
    turns: VecDeque<StreamId>,
    bytes: usize,
    bytes_max: usize,
    drops: LateDrops,
}

impl TunnelQueue {
    /// A queue of at most `bytes_max` bytes of encoded payloads.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            flows: BTreeMap::new(),
            turns: VecDeque::new(),
            bytes: 0,
            bytes_max,
            drops: LateDrops::default(),
        }
    }

    /// Bytes of encoded payloads that wait: q(t).
    pub(crate) const fn len(&self) -> usize {
        self.bytes
    }

    /// Encodes a payload and puts it at the end of its flow. `max_datagram_size` is what fits a
    /// packet of the tunnel now.
    pub(crate) fn push(
        &mut self,
        stream: StreamId,
        (form, too_large): (Form, TooLarge),
        payload: Bytes,
        max_datagram_size: usize,
    ) -> Push {
        let fits = fits_datagram(stream, &payload, max_datagram_size);
        let (form, encoded) = match (form, too_large) {
            (Form::Datagram, _) if fits => (form, encode_datagram(stream, payload)),
            (Form::Datagram, TooLarge::Capsule(max)) if payload.len() <= max => {
                (Form::Capsule, Some(encode_capsule(&payload)))
            }
            (Form::Datagram, _) => (form, None),
            (Form::Capsule, _) => (form, Some(encode_capsule(&payload))),
        };
        let Some(encoded) = encoded else { return Push::TooLarge };
        if self.bytes + encoded.len() > self.bytes_max && !self.make_room(stream, encoded.len()) {
            return Push::Full;
        }
        let flow = self.flows.entry(stream).or_default();
        if flow.items.is_empty() && !flow.is_blocked {
            self.turns.push_back(stream);
        }
        self.bytes += encoded.len();
        flow.bytes += encoded.len();
        flow.items.push_back((form, encoded));
        Push::Queued
    }

    /// Drops the newest of the longest flow, unless that is the one that asks.
    fn make_room(&mut self, stream: StreamId, len: usize) -> bool {
        let held = self.flows.get(&stream).map_or(0, |flow| flow.bytes);
        while self.bytes + len > self.bytes_max {
            // A flow below its share takes from the longest; one above it waits for its own.
            if held + len > self.bytes_max / self.flows.len().max(1) {
                return false;
            }
            let longest = self.flows.iter().max_by_key(|(_, flow)| flow.bytes);
            let Some((&longest, _)) = longest.filter(|(_, flow)| flow.items.len() > 1) else {
                return false;
            };
            let dropped = self.flows.get_mut(&longest).and_then(|flow| {
                let (_, item) = flow.items.pop_back()?;
                flow.bytes -= item.len();
                Some(item.len())
            });
            self.bytes -= dropped.unwrap_or(0);
            self.drops.queue_full += 1;
        }
        true
    }

    /// Gives the engine as much as it is to have at once.
    pub(crate) fn feed(&mut self, session: &mut Session, connection: &mut Connection) {
        let mut is_window_set = false;
        while let Some(&stream) = self.turns.front() {
            let Some(flow) = self.flows.get_mut(&stream) else {
                self.turns.pop_front();
                continue;
            };
            let Some((form, mut item)) = flow.items.pop_front() else {
                self.turns.pop_front();
                self.flows.remove(&stream);
                continue;
            };
            let len = item.len();
            let was_begun = std::mem::replace(&mut flow.is_begun, false);
            if len > flow.deficit && self.turns.len() > 1 {
                flow.deficit += QUANTUM;
                flow.is_begun = was_begun;
                flow.items.push_front((form, item));
                self.turns.rotate_left(1);
                continue;
            }
            let left = match form {
                Form::Datagram => match connection.send_datagram(item) {
                    SendDatagram::Taken => 0,
                    SendDatagram::Blocked(item) => {
                        flow.items.push_front((form, item));
                        return;
                    }
                    SendDatagram::TooLarge => {
                        self.drops.too_large += 1;
                        0
                    }
                },
                Form::Capsule => {
                    if !std::mem::replace(&mut is_window_set, true) {
                        connection.hold_two_windows();
                    }
                    match session.write_body(connection, stream, &mut item) {
                        // Done, or the stream has gone, and with it the flow.
                        Ok(Write::Done) | Err(_) => 0,
                        Ok(Write::Blocked) => {
                            let left = item.len();
                            flow.items.push_front((form, item));
                            flow.is_blocked = true;
                            flow.is_begun = was_begun || left < len;
                            self.turns.pop_front();
                            left
                        }
                    }
                }
            };
            self.bytes -= len - left;
            flow.bytes -= len - left;
            flow.deficit = flow.deficit.saturating_sub(len - left);
        }
    }

    /// The stream of a flow has room again.
    pub(crate) fn on_writable(&mut self, stream: StreamId) {
        if let Some(flow) = self.flows.get_mut(&stream)
            && std::mem::replace(&mut flow.is_blocked, false)
        {
            self.turns.push_back(stream);
        }
    }

    /// Whether a frame of a flow has been sent in part only.
    pub(crate) fn is_within_frame(&self, stream: StreamId) -> bool {
        self.flows.get(&stream).is_some_and(|flow| flow.is_begun)
    }

    /// Forgets a flow.
    pub(crate) fn remove(&mut self, stream: StreamId) {
        if let Some(flow) = self.flows.remove(&stream) {
            self.bytes -= flow.bytes;
            self.turns.retain(|&other| other != stream);
        }
    }

    /// What was dropped after it was queued, since the last call.
    pub(crate) fn take_drops(&mut self) -> LateDrops {
        std::mem::take(&mut self.drops)
    }
}

fn fits_datagram(stream: StreamId, payload: &[u8], max_datagram_size: usize) -> bool {
    QuarterStreamId::from_stream_id(stream.0).is_some_and(|id| {
        payload.len() + HttpDatagram::overhead(id, CONTEXT_ID_UDP) <= max_datagram_size
    })
}

fn encode_datagram(stream: StreamId, payload: Bytes) -> Option<Bytes> {
    let quarter_stream_id = QuarterStreamId::from_stream_id(stream.0)?;
    let datagram = HttpDatagram { quarter_stream_id, context_id: CONTEXT_ID_UDP, payload };
    Some(datagram.encode_to_bytes())
}

/// A DATA frame with one DATAGRAM capsule.
fn encode_capsule(payload: &[u8]) -> Bytes {
    /// Type, length and context ID of a capsule, or type and length of a frame, at their longest.
    const HEADER_MAX: usize = 16;
    let mut capsule = BytesMut::with_capacity(payload.len() + HEADER_MAX);
    encode_datagram_capsule(CONTEXT_ID_UDP, payload, &mut capsule);
    let mut frame = BytesMut::with_capacity(capsule.len() + HEADER_MAX);
    encode_data_header(capsule.len(), &mut frame);
    frame.extend_from_slice(&capsule);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: StreamId = StreamId(0);
    const SECOND: StreamId = StreamId(4);

    fn push(queue: &mut TunnelQueue, stream: StreamId, len: usize) -> Push {
        // Two bytes of overhead: quarter stream ID and context ID.
        queue.push(stream, (Form::Datagram, TooLarge::Drop), Bytes::from(vec![0; len - 2]), 1200)
    }

    #[test]
    fn a_flow_alone_loses_what_comes_when_the_queue_is_full() {
        let mut queue = TunnelQueue::new(100);
        assert_eq!(push(&mut queue, FIRST, 60), Push::Queued);
        assert_eq!(push(&mut queue, FIRST, 41), Push::Full);
        assert_eq!(push(&mut queue, FIRST, 40), Push::Queued);
        assert_eq!(push(&mut queue, FIRST, 2), Push::Full);
        assert_eq!(queue.bytes, 100);
    }

    #[test]
    fn a_flow_below_its_share_takes_from_the_longest() {
        let mut queue = TunnelQueue::new(1000);
        for _ in 0..10 {
            assert_eq!(push(&mut queue, FIRST, 100), Push::Queued);
        }
        for _ in 0..5 {
            assert_eq!(push(&mut queue, SECOND, 100), Push::Queued);
        }
        assert_eq!(queue.take_drops().queue_full, 5);
        assert_eq!(push(&mut queue, SECOND, 100), Push::Full);
        assert_eq!(queue.bytes, 1000);
    }

    #[test]
    fn what_fits_no_packet_is_refused() {
        let mut queue = TunnelQueue::new(10_000);
        assert_eq!(push(&mut queue, FIRST, 1200), Push::Queued);
        assert_eq!(push(&mut queue, FIRST, 1201), Push::TooLarge);
        let long = Bytes::from(vec![0; 5000]);
        let capsule = (Form::Capsule, TooLarge::Drop);
        assert_eq!(queue.push(FIRST, capsule, long, 1200), Push::Queued);
    }

    #[test]
    fn what_was_promised_to_fit_goes_in_a_capsule() {
        let mut queue = TunnelQueue::new(10_000);
        let form = (Form::Datagram, TooLarge::Capsule(1280));
        let mut push = |len: usize| queue.push(FIRST, form, Bytes::from(vec![0; len]), 1160);
        assert_eq!(push(1158), Push::Queued);
        assert_eq!(push(1280), Push::Queued);
        assert_eq!(push(1281), Push::TooLarge);
        let forms: Vec<_> = queue.flows[&FIRST].items.iter().map(|(form, _)| *form).collect();
        assert_eq!(forms, [Form::Datagram, Form::Capsule]);
    }

    #[test]
    fn a_flow_that_goes_leaves_nothing() {
        let mut queue = TunnelQueue::new(1000);
        push(&mut queue, FIRST, 100);
        push(&mut queue, SECOND, 100);
        queue.remove(FIRST);
        assert_eq!((queue.bytes, queue.turns.len(), queue.flows.len()), (100, 1, 1));
    }
}
