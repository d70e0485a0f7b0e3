use std::{collections::VecDeque, time::Instant};

use tandem_units::ByteCount;

use super::QueueLimit;
use crate::Packet;

/// A packet at a bottleneck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queued<T> {
    pub(crate) packet: Packet<T>,
    /// The size that it counts with: its IP length, and 4 bytes more on a trace.
    pub(crate) size: ByteCount,
    /// The time at which it came to the bottleneck.
    pub(crate) since: Instant,
}

impl<T> Queued<T> {
    /// The packet, and the size that it counts with.
    pub(crate) fn with_size(self) -> (Self, ByteCount) {
        let size = self.size;
        (self, size)
    }
}

/// A first-in, first-out queue without a limit of its own.
#[derive(Debug)]
pub(super) struct Fifo<T> {
    len: ByteCount,
    len_max: ByteCount,
    packets: VecDeque<Queued<T>>,
}

impl<T> Fifo<T> {
    pub(super) const fn new() -> Self {
        Self { len: ByteCount::ZERO, len_max: ByteCount::ZERO, packets: VecDeque::new() }
    }

    /// Whether the queue with this packet would be within a limit.
    pub(super) fn has_room(&self, limit: QueueLimit, packet: &Queued<T>) -> bool {
        limit.allows(self.len + packet.size, self.packets.len() as u64 + 1)
    }

    pub(super) fn push(&mut self, packet: Queued<T>) {
        self.len += packet.size;
        self.len_max = self.len_max.max(self.len);
        self.packets.push_back(packet);
    }

    pub(super) fn pop(&mut self) -> Option<Queued<T>> {
        let packet = self.packets.pop_front()?;
        self.len -= packet.size;
        Some(packet)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) const fn len(&self) -> ByteCount {
        self.len
    }

    pub(super) const fn len_max(&self) -> ByteCount {
        self.len_max
    }
}
