//! Packets that leave beside a connection, until the driver takes them.

use std::{collections::VecDeque, net::SocketAddr};

use crate::node::Transmit;

/// The most packets that wait for the driver. A driver hands a node fewer packets before it takes what
/// the node sends.
const PACKETS_MAX: usize = 4096;

/// The most bytes in one system call.
const BATCH_MAX: usize = 60_000;

/// The most datagrams in one system call: the kernel's limit for GSO (generic segmentation offload).
const SEGMENTS_MAX: usize = 64;

/// Packets that leave in the order in which they were added. `K` says where each goes.
#[derive(Debug)]
pub(crate) struct Outbox<K> {
    bytes: Vec<u8>,
    /// Where the packet in front begins in `bytes`.
    begin: usize,
    packets: VecDeque<(K, usize)>,
}

/// Packets that leave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch<K> {
    pub(crate) to: K,
    /// The number of bytes.
    size: usize,
    /// The size of each packet, of which only the last may be shorter.
    pub(crate) segment: usize,
    count: usize,
}

impl<K> Default for Outbox<K> {
    fn default() -> Self {
        Self { bytes: Vec::new(), begin: 0, packets: VecDeque::new() }
    }
}

impl<K: Copy + PartialEq> Outbox<K> {
    /// Adds a packet, which `write` appends to the bytes that it gets. Nothing is added if it returns
    /// `None`, or if too many packets wait.
    pub(crate) fn add<T>(
        &mut self,
        to: K,
        write: impl FnOnce(&mut Vec<u8>) -> Option<T>,
    ) -> Option<T> {
        if self.packets.len() >= PACKETS_MAX {
            return None;
        }
        let before = self.bytes.len();
        let result = write(&mut self.bytes);
        match self.bytes.len().checked_sub(before) {
            Some(len) if result.is_some() => self.packets.push_back((to, len)),
            _ => self.bytes.truncate(before),
        }
        result
    }

    /// The packet that was added last.
    pub(crate) fn last(&self) -> Option<&[u8]> {
        let &(_, len) = self.packets.back()?;
        self.bytes.get(self.bytes.len().checked_sub(len)?..)
    }

    /// Takes the next packets to one destination, at the end of `buf`.
    pub(crate) fn poll(&mut self, buf: &mut Vec<u8>) -> Option<Batch<K>> {
        let &(to, segment) = self.packets.front()?;
        let (mut size, mut count) = (0, 0);
        while let Some(&(next, len)) = self.packets.front() {
            let is_over = next != to || len > segment || size + len > BATCH_MAX;
            // GSO cannot send an empty payload as a segment of its own.
            if count > 0 && (is_over || count == SEGMENTS_MAX || len == 0) {
                break;
            }
            self.packets.pop_front();
            (size, count) = (size + len, count + 1);
            if len < segment {
                break;
            }
        }
        let end = self.begin + size;
        buf.extend_from_slice(self.bytes.get(self.begin..end).unwrap_or_default());
        self.begin = end;
        if self.packets.is_empty() {
            self.bytes.clear();
            self.begin = 0;
        }
        Some(Batch { to, size, segment, count })
    }
}

impl<K> Batch<K> {
    /// The number of packets.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// What the driver is told.
    pub(crate) fn transmit(&self, destination: SocketAddr) -> Transmit {
        // The draft's §6.7: a proxy that does not preserve ECN marks "MUST set ECN marks to zero".
        let segment_size = (self.count > 1).then_some(self.segment);
        Transmit { destination, src_ip: None, ecn: None, size: self.size, segment_size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(outbox: &mut Outbox<u8>, to: u8, len: usize) -> bool {
        let written = outbox.add(to, |out| {
            out.resize(out.len() + len, to);
            Some(())
        });
        written.is_some()
    }

    #[test]
    fn packets_of_one_size_to_one_destination_leave_together() {
        let mut outbox = Outbox::default();
        for (to, len) in [(1, 100), (1, 100), (1, 60), (1, 100), (2, 100), (2, 120), (2, 0)] {
            assert!(add(&mut outbox, to, len));
        }
        let mut seen = Vec::new();
        let mut buf = Vec::new();
        while let Some(batch) = outbox.poll(&mut buf) {
            let transmit = batch.transmit(([192, 0, 2, 1], 1).into());
            assert_eq!(buf.len(), transmit.size);
            assert!(buf.iter().all(|&byte| byte == batch.to));
            seen.push((batch.to, transmit.size, transmit.segment_size));
            buf.clear();
        }
        let expected =
            [(1, 260, Some(100)), (1, 100, None), (2, 100, None), (2, 120, None), (2, 0, None)];
        assert_eq!(seen, expected);
        assert!(outbox.bytes.is_empty());
    }

    #[test]
    fn a_system_call_gets_no_more_than_the_kernel_takes() {
        for (len, segments) in [(10, SEGMENTS_MAX), (1400, BATCH_MAX / 1400)] {
            let mut outbox = Outbox::default();
            for _ in 0..100 {
                add(&mut outbox, 1, len);
            }
            let batch = outbox.poll(&mut Vec::new()).unwrap();
            assert_eq!((batch.count(), batch.size), (segments, len * segments));
        }
    }

    #[test]
    fn what_cannot_be_written_and_what_is_too_much_is_not_added() {
        let mut outbox = Outbox::default();
        let failed: Option<()> = outbox.add(1, |out| {
            out.push(7);
            None
        });
        assert_eq!((failed, outbox.bytes.len()), (None, 0));
        for _ in 0..PACKETS_MAX {
            assert!(add(&mut outbox, 1, 1));
        }
        assert!(!add(&mut outbox, 1, 1));
        assert_eq!(outbox.bytes.len(), PACKETS_MAX);
    }
}
