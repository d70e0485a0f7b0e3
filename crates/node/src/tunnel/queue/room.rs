//! The bounds of the queue: how much it may hold, what it drops beyond that, and how much memory that
//! takes.

use super::{FlowQueue, Item, Queue};
use crate::quic::StreamId;

/// A queue of small payloads takes more memory than it has bytes. It therefore has at most one
/// payload for this many bytes of its bound.
pub(super) const BYTES_PER_ITEM: usize = 100;

/// The queue may have this many payloads in any case.
const ITEMS_LEAST: usize = 64;

/// The memory of an item beside its bytes and its place in a queue: room for its header, what its buffer is
/// larger, and the owner of the buffer.
const ITEM_OVERHEAD: usize = 128;

/// The memory of a flow without payloads.
const FLOW_MEMORY: usize = 2 * size_of::<FlowQueue>();

impl Queue {
    /// Bytes of memory that the payloads take, those for retransmission included.
    pub(in crate::tunnel) fn memory(&self) -> usize {
        let places = self.flows.values().map(|flow| flow.items.capacity()).sum::<usize>();
        let flows = self.flows.len() * FLOW_MEMORY + places * size_of::<Item>();
        self.bytes
            + self.items * ITEM_OVERHEAD
            + flows
            + self.outstanding.memory()
            + self.backlogs.memory()
    }

    const fn bytes_max(&self) -> usize {
        let is_short = self.is_reported || self.outstanding.keeps_queue_short();
        if is_short { self.short_bytes_max } else { self.bytes_max }
    }

    /// Drops the newest payloads of the longest flow until `len` more bytes fit. `false`: there is
    /// no room, because the flow that asks would hold more than its share, or because the longest
    /// flow holds only one item.
    pub(super) fn make_room(&mut self, stream: StreamId, len: usize) -> bool {
        let bytes_max = self.bytes_max();
        let held = self.flows.get(&stream).map_or(0, |flow| flow.bytes);
        while self.bytes + len > bytes_max {
            // A flow that would exceed its share of the queue takes no room from others.
            if held + len > bytes_max / self.flows.len().max(1) {
                return false;
            }
            if !self.longest.get(&self.flows).is_some_and(|longest| self.drop_newest(longest)) {
                return false;
            }
        }
        true
    }

    /// Drops the newest payload of the flow that has most of them, if the queue has as many as it
    /// may have. `false`: the flow that asks would have more than its share.
    pub(super) fn make_place(&mut self, stream: StreamId) -> bool {
        let items_max = (self.bytes_max() / BYTES_PER_ITEM).max(ITEMS_LEAST);
        if self.items < items_max {
            return true;
        }
        let own = self.flows.get(&stream).map_or(0, |flow| flow.items.len());
        if own >= items_max / self.flows.len().max(1) {
            return false;
        }
        let most = self.flows.iter().max_by_key(|(_, flow)| flow.items.len());
        most.map(|(&stream, _)| stream).is_some_and(|stream| self.drop_newest(stream))
    }

    /// Drops the newest payload of a flow. `false`: the flow has only one item, which may have
    /// begun.
    fn drop_newest(&mut self, stream: StreamId) -> bool {
        let items = self.flows.get_mut(&stream).map(|flow| &mut flow.items);
        let Some(items) = items.filter(|items| items.len() > 1) else { return false }; // it may have begun
        let dropped = items.pop_back().map_or(0, |item| item.len());
        self.resize(stream, dropped, 0);
        self.dropped.queue_full += 1;
        true
    }
}
