//! Bytes of TCP connections in a tunnel. They share its queue, and nothing else, with UDP payloads.

use bytes::Bytes;
use tandem_wire::Urgency;

use super::{End, Tunnel, queue::Queue};
use crate::quic::StreamId;

/// A TCP connection may be read from while its stream's backlog has fewer bytes.
pub(crate) const BACKLOG_SHORT: usize = Queue::BACKLOG_SHORT;

impl<E: End> Tunnel<E> {
    /// Begins the sending of bytes on a request stream, with this urgency and weight.
    pub(crate) fn open_bytes(&mut self, stream: StreamId, urgency: Urgency, weight: u8) {
        self.queue.set_urgency(stream, urgency);
        self.queue.set_weight(stream, weight);
    }

    /// Adds bytes to the backlog of a stream: `header`, then `data`. They are not dropped.
    pub(crate) fn send_bytes(&mut self, stream: StreamId, header: Bytes, data: Bytes) {
        self.queue.push_bytes(stream, header, data);
    }

    /// Ends the sending direction of a stream after its backlog.
    pub(crate) fn finish_bytes(&mut self, stream: StreamId) {
        self.queue.finish_bytes(stream);
    }

    /// Bytes in the backlog of a stream.
    pub(crate) fn backlog(&self, stream: StreamId) -> usize {
        self.queue.backlog(stream)
    }

    /// The next stream whose backlog has become shorter than [`BACKLOG_SHORT`].
    pub(crate) fn poll_drained(&mut self) -> Option<StreamId> {
        self.queue.poll_drained()
    }

    /// Whether a stream's backlog has become short.
    pub(crate) fn has_drained(&self) -> bool {
        self.queue.has_drained()
    }

    /// Forgets the backlog of a stream that has ended.
    pub(crate) fn close_bytes(&mut self, stream: StreamId) {
        self.queue.remove(stream);
    }
}
