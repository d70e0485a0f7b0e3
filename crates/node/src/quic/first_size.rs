//! The size of a client's first datagrams, from which a server learns what the path carries.
//!
//! A tunnel that carries further tunnels needs larger packets than others, in both directions. Only
//! the client knows how many tunnels there will be, and the engine takes no larger size from a
//! connection that exists. The client therefore makes its first datagrams as large as its packets will
//! be, and the server starts with that size: the path has just carried it.

use super::Mtu;
use crate::node::Transmit;

/// How many datagrams with Initial packets are larger than they have to be: the first, and the next in
/// case that the first is lost or answered with Retry. Later ones are small again, so that they arrive
/// where a path carries no large ones.
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

    /// Makes the datagram at this offset larger if it begins with an Initial packet. No other packet
    /// comes before the last of them.
    ///
    /// RFC 9000 §14.1: "Datagrams containing Initial packets MAY exceed 1200 bytes if the sender
    /// believes that the network path and peer both support the size that it chooses." The zeros that
    /// follow the packet are no packet, because the fixed bit is not set, and a server discards them
    /// (RFC 9000 §12.2 and §17.3.1).
    pub(super) fn pad(&mut self, transmit: &mut Transmit, buf: &mut Vec<u8>, offset: usize) {
        /// RFC 9000 §17.2: the bits for a long header and for its type, which is 0 for Initial.
        const FORM_AND_TYPE: u8 = 0xb0;
        const INITIAL: u8 = 0x80;
        let is_initial = buf.get(offset).is_some_and(|first| first & FORM_AND_TYPE == INITIAL);
        self.left = if is_initial { self.left.saturating_sub(1) } else { 0 };
        if is_initial && transmit.size < self.size {
            buf.resize(offset + self.size, 0);
            transmit.size = self.size;
        }
    }
}

/// The size with which a server starts a connection whose first datagram has this length.
pub(super) fn of_server(mtu: Mtu, first: usize) -> u16 {
    let first = u16::try_from(first).unwrap_or(u16::MAX);
    mtu.start.max(first.min(mtu.probe_up_to))
}
