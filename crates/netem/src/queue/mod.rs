//! Queues in front of a bottleneck. Each kind has a file.

mod codel;
mod config;
mod drop_head;
mod drop_tail;
mod fifo;

use std::time::Instant;

use codel::CoDel;
pub use config::{ParseQueueError, QueueConfig, QueueLimit};
use drop_head::DropHead;
use drop_tail::DropTail;
use fifo::Fifo;
pub(crate) use fifo::Queued;
use tandem_units::ByteCount;

/// The state of a queue.
#[derive(Debug)]
pub(crate) enum Queue<T> {
    DropTail(DropTail<T>),
    DropHead(DropHead<T>),
    CoDel(CoDel<T>),
}

impl<T> Queue<T> {
    /// Makes an empty queue. `mtu` is the size of a full packet on the link, as the queue counts
    /// it.
    pub(crate) fn new(config: QueueConfig, mtu: ByteCount) -> Self {
        match config {
            QueueConfig::DropTail(limit) => Self::DropTail(DropTail::new(limit)),
            QueueConfig::DropHead(limit) => Self::DropHead(DropHead::new(limit)),
            QueueConfig::CoDel { limit, target, interval } => {
                Self::CoDel(CoDel::new(limit, codel::Times { target, interval }, mtu))
            }
            QueueConfig::Infinite => {
                Self::DropTail(DropTail::new(QueueLimit { bytes: None, packets: None }))
            }
        }
    }

    /// Adds a packet. Packets that the queue drops, which may include this one, go to `dropped`.
    pub(crate) fn push(&mut self, packet: Queued<T>, dropped: impl FnMut(Queued<T>)) {
        match self {
            Self::DropTail(queue) => queue.push(packet, dropped),
            Self::DropHead(queue) => queue.push(packet, dropped),
            Self::CoDel(queue) => queue.push(packet, dropped),
        }
    }

    /// Takes the next packet to send. Packets that the queue drops before it go to `dropped`.
    pub(crate) fn pop(
        &mut self,
        now: Instant,
        dropped: impl FnMut(Queued<T>),
    ) -> Option<Queued<T>> {
        match self {
            Self::DropTail(queue) => queue.pop(),
            Self::DropHead(queue) => queue.pop(),
            Self::CoDel(queue) => queue.pop(now, dropped),
        }
    }

    /// Whether no packet waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.fifo().is_empty()
    }

    /// The bytes that wait.
    pub(crate) const fn len(&self) -> ByteCount {
        self.fifo().len()
    }

    /// The largest [`Self::len`] so far.
    pub(crate) const fn len_max(&self) -> ByteCount {
        self.fifo().len_max()
    }

    const fn fifo(&self) -> &Fifo<T> {
        match self {
            Self::DropTail(queue) => queue.fifo(),
            Self::DropHead(queue) => queue.fifo(),
            Self::CoDel(queue) => queue.fifo(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Packet, base_instant};

    /// The sizes of an empty list of packets.
    pub(super) const NONE: [u64; 0] = [];

    /// A packet of this size.
    pub(super) fn packet(size: u64) -> Queued<()> {
        let size = ByteCount::new(size);
        Queued { packet: Packet { size, content: () }, size, since: base_instant() }
    }

    pub(super) fn sizes(packets: &[Queued<()>]) -> Vec<u64> {
        packets.iter().map(|packet| packet.size.get()).collect()
    }
}
