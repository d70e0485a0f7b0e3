use std::collections::VecDeque;

use tandem_units::ByteCount;

use super::QueueLimit;
use crate::Packet;

/// First in, first out; a packet that does not fit is dropped.
#[derive(Debug)]
pub(crate) struct DropTail<T> {
    limit: QueueLimit,
    len: ByteCount,
    len_max: ByteCount,
    packets: VecDeque<Packet<T>>,
}

impl<T> DropTail<T> {
    pub(crate) fn new(limit: QueueLimit) -> Self {
        Self { limit, len: ByteCount::ZERO, len_max: ByteCount::ZERO, packets: VecDeque::new() }
    }

    /// Takes a packet, or gives it back if the queue would be longer than its limit.
    ///
    /// A small packet may be taken right after a large one was refused.
    pub(crate) fn push(&mut self, packet: Packet<T>) -> Result<(), Packet<T>> {
        let len = self.len + packet.size;
        if len > self.limit.0 {
            return Err(packet);
        }
        self.len = len;
        self.len_max = self.len_max.max(len);
        self.packets.push_back(packet);
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Option<Packet<T>> {
        let packet = self.packets.pop_front()?;
        self.len -= packet.size;
        Some(packet)
    }

    /// Bytes that wait.
    pub(crate) const fn len(&self) -> ByteCount {
        self.len
    }

    /// The largest [`Self::len`] so far.
    pub(crate) const fn len_max(&self) -> ByteCount {
        self.len_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(size: u64) -> Packet<u64> {
        Packet { size: ByteCount::new(size), content: size }
    }

    #[test]
    fn a_packet_that_reaches_the_limit_fits_and_one_byte_more_does_not() {
        let mut queue = DropTail::new(QueueLimit(ByteCount::new(3000)));
        assert_eq!(queue.push(packet(1500)), Ok(()));
        assert_eq!(queue.push(packet(1501)), Err(packet(1501)));
        assert_eq!(queue.push(packet(1500)), Ok(()));
        assert_eq!(queue.push(packet(1)), Err(packet(1)));
        assert_eq!(queue.len(), ByteCount::new(3000));
    }

    #[test]
    fn a_small_packet_fits_where_a_large_one_was_refused() {
        let mut queue = DropTail::new(QueueLimit(ByteCount::new(1600)));
        assert_eq!(queue.push(packet(1500)), Ok(()));
        assert_eq!(queue.push(packet(1500)), Err(packet(1500)));
        assert_eq!(queue.push(packet(100)), Ok(()));
    }

    #[test]
    fn what_came_first_leaves_first_and_makes_room() {
        let mut queue = DropTail::new(QueueLimit(ByteCount::new(300)));
        for size in [100, 200] {
            assert_eq!(queue.push(packet(size)), Ok(()));
        }
        assert_eq!(queue.pop(), Some(packet(100)));
        assert_eq!(queue.push(packet(50)), Ok(()));
        assert_eq!(queue.pop(), Some(packet(200)));
        assert_eq!(queue.pop(), Some(packet(50)));
        assert_eq!(queue.pop(), None);
        assert_eq!((queue.len(), queue.len_max()), (ByteCount::ZERO, ByteCount::new(300)));
    }
}
