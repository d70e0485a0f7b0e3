use super::{Fifo, QueueLimit, Queued};

/// A first-in, first-out queue that drops the oldest packets to make room for a new one.
#[derive(Debug)]
pub(crate) struct DropHead<T> {
    limit: QueueLimit,
    fifo: Fifo<T>,
}

impl<T> DropHead<T> {
    pub(super) const fn new(limit: QueueLimit) -> Self {
        Self { limit, fifo: Fifo::new() }
    }

    /// Adds a packet. A packet that is larger than the limit is dropped too, after all packets
    /// ahead of it.
    pub(super) fn push(&mut self, packet: Queued<T>, mut dropped: impl FnMut(Queued<T>)) {
        while !self.fifo.has_room(self.limit, &packet) {
            let Some(oldest) = self.fifo.pop() else { return dropped(packet) };
            dropped(oldest);
        }
        self.fifo.push(packet);
    }

    pub(super) fn pop(&mut self) -> Option<Queued<T>> {
        self.fifo.pop()
    }

    pub(super) const fn fifo(&self) -> &Fifo<T> {
        &self.fifo
    }
}

#[cfg(test)]
mod tests {
    use tandem_units::ByteCount;

    use super::*;
    use crate::queue::tests::{NONE, packet, sizes};

    fn push(queue: &mut DropHead<()>, size: u64) -> Vec<u64> {
        let mut dropped = Vec::new();
        queue.push(packet(size), |packet| dropped.push(packet));
        sizes(&dropped)
    }

    #[test]
    fn the_oldest_packets_are_dropped_until_the_newest_fits() {
        let mut queue = DropHead::new(QueueLimit::bytes(ByteCount::new(1000)));
        for size in [100, 200, 300, 400] {
            assert_eq!(push(&mut queue, size), NONE);
        }
        assert_eq!(push(&mut queue, 250), [100, 200]);
        assert_eq!(queue.pop().map(|packet| packet.size), Some(ByteCount::new(300)));
        let lens = (queue.fifo().len(), queue.fifo().len_max());
        assert_eq!(lens, (ByteCount::new(650), ByteCount::new(1000)));
    }

    #[test]
    fn a_packet_above_the_limit_is_dropped_with_all_waiting_packets() {
        let mut queue = DropHead::new(QueueLimit::bytes(ByteCount::new(1000)));
        assert_eq!(push(&mut queue, 500), NONE);
        assert_eq!(push(&mut queue, 1001), [500, 1001]);
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn a_packet_limit_ignores_sizes() {
        let mut queue = DropHead::new(QueueLimit::packets(2));
        assert_eq!((push(&mut queue, 1), push(&mut queue, 2)), (vec![], vec![]));
        assert_eq!(push(&mut queue, 1500), [1]);
    }
}
