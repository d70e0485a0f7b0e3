//! Successive datagrams of a node that are sent with one system call.
//!
//! A proxy emits datagrams towards its targets one by one, although they often arrive in trains. If
//! each is sent by itself, it costs a system call and a pass through the network stack. A batch is
//! one send with GSO (generic segmentation offload). A batch does not wait for later datagrams: it
//! is sent at the latest when the node has no more output.

use tandem_node::node::Transmit;

use crate::socket::SEND_BYTES_MAX;

/// The largest number of datagrams in one batch: the limit of one GSO send on Linux
/// (`UDP_MAX_SEGMENTS`).
const DATAGRAMS_MAX: usize = 64;

/// Datagrams of one size, from one socket, to one destination.
#[derive(Debug)]
pub(crate) struct SendBatch {
    transmit: Transmit,
    segment_size: usize,
    bytes: Vec<u8>,
}

impl SendBatch {
    /// Creates a batch from a transmit and the bytes that the node wrote to its poll buffer.
    pub(crate) fn new(transmit: Transmit, mut bytes: Vec<u8>) -> Self {
        bytes.truncate(transmit.size);
        let segment_size = transmit.segment_size.unwrap_or(transmit.size).max(1);
        Self { transmit, segment_size, bytes }
    }

    /// Appends the node's next transmit. Returns false, without any change, if it cannot be joined.
    ///
    /// Only datagrams of the same size are joined. GSO would allow a shorter last one, but if the
    /// first one were an MTU probe that is too large, the operating system would refuse both.
    pub(crate) fn append(&mut self, transmit: &Transmit, bytes: &[u8]) -> bool {
        let Some(bytes) = bytes.get(..transmit.size) else { return false };
        let is_same_path = transmit.destination == self.transmit.destination
            && transmit.src_ip == self.transmit.src_ip
            && transmit.ecn == self.transmit.ecn;
        let is_same_size = transmit.segment_size.unwrap_or(transmit.size) == self.segment_size
            && bytes.len().is_multiple_of(self.segment_size)
            && self.bytes.len().is_multiple_of(self.segment_size);
        let len = self.bytes.len() + bytes.len();
        let fits = len <= SEND_BYTES_MAX && len <= DATAGRAMS_MAX * self.segment_size;
        if !(is_same_path && is_same_size && fits) || bytes.is_empty() {
            return false;
        }
        self.bytes.extend_from_slice(bytes);
        true
    }

    /// Returns the whole batch as one transmit, and its bytes.
    pub(crate) fn into_parts(self) -> (Transmit, Vec<u8>) {
        let segment_size = (self.bytes.len() > self.segment_size).then_some(self.segment_size);
        let transmit = Transmit { size: self.bytes.len(), segment_size, ..self.transmit };
        (transmit, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tandem_node::node::Ecn;

    use super::*;

    fn transmit(size: usize, segment_size: Option<usize>) -> Transmit {
        let destination = SocketAddr::from((Ipv4Addr::LOCALHOST, 4433));
        Transmit { destination, src_ip: None, ecn: None, size, segment_size }
    }

    #[test]
    fn only_datagrams_of_one_size_and_path_are_joined() {
        let plain = transmit(1200, None);
        let elsewhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 4434));
        for (first, second, is_joined, why) in [
            (plain, plain, true, "two alike"),
            (plain, transmit(3600, Some(1200)), true, "one and three"),
            (transmit(3600, Some(1200)), plain, true, "three and one"),
            (transmit(3000, Some(1200)), plain, false, "the first ends short"),
            (plain, transmit(3000, Some(1200)), false, "the second would end short"),
            (plain, transmit(1199, None), false, "a shorter one: the first may be an MTU probe"),
            (plain, transmit(1201, None), false, "a longer one"),
            (plain, transmit(0, None), false, "an empty one"),
            (transmit(0, None), transmit(0, None), false, "two empty ones"),
            (plain, Transmit { destination: elsewhere, ..plain }, false, "another destination"),
            (plain, Transmit { ecn: Some(Ecn::Ect0), ..plain }, false, "another mark"),
            (
                plain,
                Transmit { src_ip: Some(Ipv4Addr::LOCALHOST.into()), ..plain },
                false,
                "another source",
            ),
        ] {
            let mut batch = SendBatch::new(first, vec![0; first.size]);
            assert_eq!(batch.append(&second, &vec![0; second.size]), is_joined, "{why}");
        }
    }

    #[test]
    fn a_batch_is_no_larger_than_one_send_call_allows() {
        for (size, datagrams_max) in [(1, 64), (1000, 64), (1200, 54), (65_507, 1)] {
            let one = transmit(size, None);
            let mut batch = SendBatch::new(one, vec![0; size]);
            let datagrams = 1 + (0..100).take_while(|_| batch.append(&one, &vec![0; size])).count();
            assert_eq!(datagrams, datagrams_max, "datagrams of {size} bytes");
            let (joined, bytes) = batch.into_parts();
            assert_eq!(joined.size, bytes.len());
            assert_eq!(joined.segment_size, (datagrams > 1).then_some(size));
        }
    }
}
