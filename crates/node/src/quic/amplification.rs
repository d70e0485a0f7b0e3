//! The limit on what a server sends to an address that nobody has proven to have.

use crate::node::Transmit;

/// RFC 9000 §8.1: "an endpoint MUST limit the amount of data it sends to the unvalidated address to
/// three times the amount of data received from that address."
const FACTOR: u64 = 3;

/// The UDP payloads of a connection whose peer has not proven that it can receive at its address.
///
/// The engine has a limit of its own, but sends a whole packet as long as a single byte is left of
/// it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unvalidated {
    received: u64,
    sent: u64,
}

impl Unvalidated {
    /// Counts a received UDP payload of this length.
    pub(super) const fn on_received(&mut self, len: usize) {
        self.received += len as u64;
    }

    /// Leaves as many of these datagrams as may be sent, and counts them. `None`: none of them may
    /// be sent. To the engine, the others count as lost.
    pub(super) fn limit(&mut self, transmit: Transmit) -> Option<Transmit> {
        let left = (self.received * FACTOR).saturating_sub(self.sent);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let size = match transmit.segment_size {
            _ if transmit.size <= left => transmit.size,
            Some(segment) => left - left.checked_rem(segment)?,
            None => 0,
        };
        self.sent += size as u64;
        (size > 0).then_some(Transmit { size, ..transmit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_bytes_are_sent_for_each_received_byte_and_no_packet_is_cut() {
        let transmit = |size, segment_size| Transmit {
            destination: ([127, 0, 0, 1], 1).into(),
            src_ip: None,
            ecn: None,
            size,
            segment_size,
        };
        let mut peer = Unvalidated::default();
        let mut send = |received, size, segment_size| {
            peer.on_received(received);
            peer.limit(transmit(size, segment_size)).map_or(0, |transmit| transmit.size)
        };
        assert_eq!(send(0, 1, None), 0);
        assert_eq!(send(1200, 1422, Some(1200)), 1422);
        assert_eq!(send(0, 2400, Some(1200)), 1200, "978 bytes are left after the first");
        assert_eq!(send(0, 979, None), 0);
        assert_eq!(send(0, 978, None), 978);
        assert_eq!(send(1, 3, Some(1)), 3);
        assert_eq!(send(1, 7, Some(2)), 2);
    }
}
