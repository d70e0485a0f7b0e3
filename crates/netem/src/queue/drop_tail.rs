use super::{Fifo, QueueLimit, Queued};

/// A first-in, first-out queue that drops a packet that does not fit.
#[derive(Debug)]
pub(crate) struct DropTail<T> {
    limit: QueueLimit,
    fifo: Fifo<T>,
}

impl<T> DropTail<T> {
    pub(super) const fn new(limit: QueueLimit) -> Self {
        Self { limit, fifo: Fifo::new() }
    }

    /// Adds a packet. The queue may take a small packet right after it dropped a large one.
    pub(super) fn push(&mut self, packet: Queued<T>, mut dropped: impl FnMut(Queued<T>)) {
        if self.fifo.has_room(self.limit, &packet) {
            self.fifo.push(packet);
        } else {
            dropped(packet);
        }
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

    fn push(queue: &mut DropTail<()>, size: u64) -> Vec<u64> {
        let mut dropped = Vec::new();
        queue.push(packet(size), |packet| dropped.push(packet));
        sizes(&dropped)
    }

    #[test]
    fn a_packet_that_reaches_the_limit_fits_and_a_further_byte_does_not() {
        let mut queue = DropTail::new(QueueLimit::bytes(ByteCount::new(3000)));
        assert_eq!(push(&mut queue, 1500), NONE);
        assert_eq!(push(&mut queue, 1501), [1501]);
        assert_eq!(push(&mut queue, 1500), NONE);
        assert_eq!(push(&mut queue, 1), [1]);
        assert_eq!(queue.fifo().len(), ByteCount::new(3000));
    }

    #[test]
    fn a_small_packet_fits_where_a_large_one_was_refused() {
        let mut queue = DropTail::new(QueueLimit::bytes(ByteCount::new(1600)));
        assert_eq!(push(&mut queue, 1500), NONE);
        assert_eq!(push(&mut queue, 1500), [1500]);
        assert_eq!(push(&mut queue, 100), NONE);
    }

    #[test]
    fn a_packet_limit_ignores_sizes_and_both_limits_hold() {
        let mut queue = DropTail::new(QueueLimit::packets(2));
        assert_eq!((push(&mut queue, 1500), push(&mut queue, 1500)), (vec![], vec![]));
        assert_eq!(push(&mut queue, 1), [1]);
        let limit = QueueLimit { bytes: Some(ByteCount::new(1000)), packets: Some(2) };
        let mut queue = DropTail::new(limit);
        assert_eq!((push(&mut queue, 600), push(&mut queue, 600)), (vec![], vec![600]));
        assert_eq!((push(&mut queue, 300), push(&mut queue, 1)), (vec![], vec![1]));
    }

    #[test]
    fn the_first_packet_leaves_first_and_makes_room() {
        let mut queue = DropTail::new(QueueLimit::bytes(ByteCount::new(300)));
        assert_eq!((push(&mut queue, 100), push(&mut queue, 200)), (vec![], vec![]));
        assert_eq!(queue.pop().map(|packet| packet.size), Some(ByteCount::new(100)));
        assert_eq!(push(&mut queue, 50), NONE);
        assert_eq!(queue.pop().map(|packet| packet.size), Some(ByteCount::new(200)));
        assert_eq!(queue.pop().map(|packet| packet.size), Some(ByteCount::new(50)));
        assert_eq!(queue.pop(), None);
        let lens = (queue.fifo().len(), queue.fifo().len_max());
        assert_eq!(lens, (ByteCount::ZERO, ByteCount::new(300)));
    }
}
