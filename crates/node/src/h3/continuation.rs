//! Request streams that continue on other streams.
//!
//! The window of a QUIC stream is the same for all streams, and small enough for a reader that pauses. A
//! tunnel that needs more bytes in flight sends a part of them on the request stream, the next parts on
//! unidirectional streams of their own, and so on. A frame on the request stream says where each of them
//! belongs (`docs/design/wire.md`). So the request stream's window, which moves as the peer reads, bounds them all.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use tandem_units::ByteCount;
use tandem_wire::{Code, VarInt, encode_continuation_header, encode_continued};

use crate::quic::{CONTINUATION_LEN, Connection, Direction, StreamGone, StreamId, Write};

/// The most parts on other streams between two parts on the request stream. With 12, a peer that grants
/// windows of 2 MB lets 26 MB be in flight: 80 Mbit/s with an RTT of 2.6 s, or 1 Gbit/s with one of 0.2 s.
const PARTS_MAX: u64 = 12;

/// The streams of the peer that continue its requests.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    request_of: BTreeMap<StreamId, StreamId>,
}

impl Incoming {
    /// Notes that a stream of the peer continues a request stream.
    pub(super) fn insert(&mut self, stream: StreamId, request: StreamId) {
        self.request_of.insert(stream, request);
    }

    /// The request stream that a stream continues.
    pub(super) fn request_of(&self, stream: StreamId) -> Option<StreamId> {
        self.request_of.get(&stream).copied()
    }

    /// Forgets a stream that has been read to its end.
    pub(super) fn remove(&mut self, stream: StreamId) {
        self.request_of.remove(&stream);
    }

    /// Stops all streams of a request that is not read any more. The connection has few of them
    /// (`CONTINUATIONS_MAX` in `quic`).
    pub(super) fn end(&mut self, connection: &mut Connection, request: StreamId, code: Code) {
        self.request_of.retain(|&stream, &mut of| {
            if of == request {
                connection.stop(stream, code);
            }
            of != request
        });
    }
}

/// The streams of this end that continue its requests.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    parts: BTreeMap<StreamId, SendingPart>,
    /// The request stream of each current continuation stream.
    request_of: BTreeMap<StreamId, StreamId>,
}

/// The part of a request's bytes that is being sent.
#[derive(Debug, Default)]
struct SendingPart {
    /// The stream that carries it. `None`: the request stream.
    stream: Option<StreamId>,
    /// What of the stream's beginning has not been sent.
    header: Bytes,
    sent: u64,
    /// How many parts went on other streams since the last one on the request stream.
    elsewhere: u64,
}

impl Outgoing {
    /// Chooses the stream on which the next frame of a request goes. Without `may_continue`, that is the
    /// request stream. Returns the CONTINUED frame that the request stream must carry first, if any.
    pub(super) fn begin_frame(
        &mut self,
        connection: &mut Connection,
        request: StreamId,
        may_continue: bool,
    ) -> Option<Bytes> {
        let part = self.parts.entry(request).or_default();
        if part.sent < CONTINUATION_LEN {
            return None;
        }
        part.sent = 0;
        if let Some(stream) = part.stream.take() {
            self.request_of.remove(&stream);
            finish(connection, stream);
        }
        let wants_more = part.elsewhere < elsewhere_max(connection.congestion_window());
        let opened = (may_continue && wants_more)
            .then(|| connection.open(Direction::Unidirectional))
            .flatten();
        let Some(stream) = opened else {
            part.elsewhere = 0;
            return None;
        };
        part.elsewhere += 1;
        part.stream = Some(stream);
        self.request_of.insert(stream, request);
        let mut header = BytesMut::new();
        encode_continuation_header(VarInt::saturating_from(request.0), &mut header);
        part.header = header.freeze();
        let mut frame = BytesMut::new();
        encode_continued(VarInt::saturating_from(stream.0), &mut frame);
        Some(frame.freeze())
    }

    /// Writes as much of a request's next bytes as flow control and buffers allow, and removes it from
    /// the front of `data`.
    pub(super) fn write(
        &mut self,
        connection: &mut Connection,
        request: StreamId,
        data: &mut Bytes,
    ) -> Result<Write, StreamGone> {
        let Some(part) = self.parts.get_mut(&request) else {
            return connection.write(request, data);
        };
        let stream = part.stream.unwrap_or(request);
        if connection.write(stream, &mut part.header)? == Write::Blocked {
            return Ok(Write::Blocked);
        }
        let len = data.len();
        let result = connection.write(stream, data);
        part.sent += (len - data.len()) as u64;
        result
    }

    /// The stream on which a request's next bytes go.
    pub(super) fn stream(&self, request: StreamId) -> StreamId {
        self.parts.get(&request).and_then(|part| part.stream).unwrap_or(request)
    }

    /// The request stream that one of this end's streams continues at present.
    pub(super) fn request_of(&self, stream: StreamId) -> Option<StreamId> {
        self.request_of.get(&stream).copied()
    }

    /// Ends the current stream of a request whose bytes have all been written.
    pub(super) fn finish(&mut self, connection: &mut Connection, request: StreamId) {
        if let Some(stream) = self.remove(request) {
            finish(connection, stream);
        }
    }

    /// Resets the current stream of a request.
    pub(super) fn reset(&mut self, connection: &mut Connection, request: StreamId, code: Code) {
        if let Some(stream) = self.remove(request) {
            connection.reset(stream, code);
        }
    }

    fn remove(&mut self, request: StreamId) -> Option<StreamId> {
        let stream = self.parts.remove(&request)?.stream?;
        self.request_of.remove(&stream);
        Some(stream)
    }
}

/// How many parts may go on other streams between two on the request stream, with this congestion window.
/// The request stream alone has room for two parts in flight.
fn elsewhere_max(window: ByteCount) -> u64 {
    (window.get() / (2 * CONTINUATION_LEN)).min(PARTS_MAX)
}

fn finish(connection: &mut Connection, stream: StreamId) {
    if connection.finish(stream).is_err() {
        tracing::debug!(%stream, "the peer stopped the stream before its end");
    }
}
