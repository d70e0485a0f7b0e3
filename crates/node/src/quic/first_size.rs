//! The size of a client's first datagrams, from which a server learns what the path carries.
//!
//! A tunnel that carries further tunnels needs larger packets than others, in both directions. Only
//! the client knows how many tunnels there will be, and the engine takes no larger size from a
//! connection that exists. The client therefore makes its first datagrams as large as its packets will
//! be, and the server starts with that size: the path has just carried it.

use super::Mtu;
use crate::node::Transmit;

/// How many datagrams with Initial packets are larger than they have to be: the first two, and two after a Retry. A
/// `ClientHello` with ML-KEM takes both. Later ones are small again, so that they arrive where a path carries no large
/// ones.
const LARGER_INITIALS: u8 = 2;

/// The datagrams of a client that are yet to be made larger.
#[derive(Clone, Copy, Debug)]
pub(super) struct LargerInitials {
    size: usize,
    left: u8,
}

impl LargerInitials {
    /// `None`: a proxy starts with packets of this size anyway, and takes smaller sizes from
    /// `max_udp_payload_size`.
    pub(super) fn new(mtu: Mtu) -> Option<Self> {
        let is_larger = mtu.start > Mtu::TUNNEL.start;
        is_larger.then(|| Self { size: mtu.start.into(), left: LARGER_INITIALS })
    }

    /// Whether datagrams are to be sent one by one, because the next may be made larger.
    pub(super) const fn is_due(&self) -> bool {
        self.left > 0
    }

    /// Notes that a datagram of the server has arrived. A server that sends Retry learns the size from the datagrams
    /// that follow. After any other answer, a datagram may end with a packet that has no length of its own and reaches
    /// to the end of the datagram (RFC 9000 §12.2), so that nothing may follow it.
    pub(super) fn on_received(&mut self, datagram: &[u8]) {
        self.left = if kind(datagram) == Some(RETRY) { LARGER_INITIALS } else { 0 };
    }

    /// Makes the datagram at this offset larger. Before an answer of the server, it has nothing but an
    /// Initial packet.
    ///
    /// RFC 9000 §14.1: "Datagrams containing Initial packets MAY exceed 1200 bytes if the sender
    /// believes that the network path and peer both support the size that it chooses." The zeros that
    /// follow the packet are no packet, because the fixed bit is not set, and a server discards them
    /// (RFC 9000 §12.2 and §17.3.1).
    pub(super) fn pad(&mut self, transmit: &mut Transmit, buf: &mut Vec<u8>, offset: usize) {
        let is_initial = buf.get(offset..).and_then(kind) == Some(INITIAL);
        let is_due = is_initial && self.is_due();
        self.left = if is_due { self.left - 1 } else { 0 };
        if is_due && transmit.size < self.size {
            buf.resize(offset + self.size, 0);
            transmit.size = self.size;
        }
    }
}

/// RFC 9000 §17.2: the bits for a long header and for its type, which is 0 for Initial and 3 for Retry.
const FORM_AND_TYPE: u8 = 0xb0;
const INITIAL: u8 = 0x80;
const RETRY: u8 = 0xb0;

/// The form and the type of a datagram's first packet.
fn kind(datagram: &[u8]) -> Option<u8> {
    datagram.first().map(|first| first & FORM_AND_TYPE)
}

/// The size with which a server starts a connection whose first datagram has this length.
pub(super) fn of_server(mtu: Mtu, first: usize) -> u16 {
    let first = u16::try_from(first).unwrap_or(u16::MAX);
    mtu.start.max(first.min(mtu.probe_up_to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAIN: Mtu = Mtu { start: Mtu::CHAIN_START, ..Mtu::TUNNEL };

    /// The length of a datagram with this first byte when it leaves.
    fn sent(larger: &mut LargerInitials, first: u8) -> usize {
        let mut buf = vec![9; 7];
        buf.resize(7 + 1200, first);
        let destination = ([127, 0, 0, 1], 443).into();
        let mut transmit =
            Transmit { destination, src_ip: None, ecn: None, size: 1200, segment_size: None };
        larger.pad(&mut transmit, &mut buf, 7);
        assert_eq!(buf.len(), 7 + transmit.size);
        transmit.size
    }

    #[test]
    fn two_initials_before_an_answer_are_larger() {
        let new = || LargerInitials::new(CHAIN).unwrap();
        let mut larger = new();
        assert_eq!([0xc3, 0xc0, 0xc1].map(|first| sent(&mut larger, first)), [1384, 1384, 1200]);
        assert!(!larger.is_due());
        let mut larger = new();
        assert_eq!(sent(&mut larger, 0xc3), 1384);
        larger.on_received(&[0xf5, 0]); // Retry
        assert_eq!([0xc3, 0xc0, 0xc1].map(|first| sent(&mut larger, first)), [1384, 1384, 1200]);
        let mut larger = new();
        assert_eq!(sent(&mut larger, 0xc3), 1384);
        larger.on_received(&[0xc0, 0]); // the server's Initial
        assert_eq!(sent(&mut larger, 0xc3), 1200);
        let mut larger = new();
        assert_eq!(sent(&mut larger, 0xe3), 1200, "a Handshake packet");
        assert!(LargerInitials::new(Mtu::TUNNEL).is_none());
    }

    #[test]
    fn a_server_starts_with_what_came_if_it_is_more() {
        let expected = [(0, 1332), (1200, 1332), (1384, 1384), (1452, 1452), (2048, 1452)];
        for (first, expected) in expected {
            assert_eq!(of_server(Mtu::TUNNEL, first), expected, "{first}");
        }
        assert_eq!(of_server(Mtu::TUNNEL, usize::MAX), 1452);
    }
}
