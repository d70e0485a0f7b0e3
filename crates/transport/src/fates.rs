/// The name that an owner gives to a datagram, with room for a flow and a number. The transport only hands it back.
pub type Tag = u128;

/// Hears what became of datagrams. Each one is first [sent](Self::sent), then either [acked](Self::acked) or
/// [lost](Self::lost), once. One that is lost may be [acked late](Self::late_acked) after that, once.
///
/// An owner that writes a log also hears of packets. `frames` are the plaintext of a packet, and `size` is that of the
/// whole packet, in bytes of UDP payload.
pub trait Fates {
    /// The datagram has left in the packet with this number.
    fn sent(&mut self, tag: Tag, packet_number: u64);

    /// The peer has the datagram.
    fn acked(&mut self, tag: Tag);

    /// The datagram was declared lost. It is not sent again; that is the owner's decision.
    fn lost(&mut self, tag: Tag);

    /// The peer has a datagram that was declared lost: it was only late.
    fn late_acked(&mut self, tag: Tag);

    /// A packet is about to leave.
    #[inline]
    fn packet_sent(&mut self, number: u64, frames: &[u8], size: usize) {
        let _ = (number, frames, size);
    }

    /// An authentic packet has arrived. Its frames may be a violation of the protocol.
    #[inline]
    fn packet_received(&mut self, number: u64, frames: &[u8], size: usize) {
        let _ = (number, frames, size);
    }

    /// A packet that was sent is declared lost.
    #[inline]
    fn packet_lost(&mut self, number: u64, size: usize) {
        let _ = (number, size);
    }
}

/// Where the datagrams come from: the owner's queue, which stays the only one.
pub trait Source: Fates {
    /// Whether there is no datagram.
    fn is_empty(&self) -> bool;

    /// Appends the next datagram to `out` if it has at most `room` bytes, and returns its tag. It is from then on in
    /// the transport's hands. `None`: there is none, or the next one is larger; nothing was appended.
    ///
    /// A datagram that is larger than [`Transport::datagram_max`](crate::Transport::datagram_max) never fits. The owner
    /// takes it out of its queue.
    fn next(&mut self, room: usize, out: &mut Vec<u8>) -> Option<Tag>;
}
