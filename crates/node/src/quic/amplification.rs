//! The anti-amplification limit for unvalidated addresses (RFC 9000 §8.1).

/// RFC 9000 §8.1: "an endpoint MUST limit the amount of data it sends to the unvalidated address to
/// three times the amount of data received from that address."
const FACTOR: u64 = 3;

/// The UDP payloads of a connection whose peer has not proven that it can receive at its address.
///
/// The engine has a limit of its own, but sends a whole packet as long as a single byte is left of
/// it. It is therefore not asked for packets while a whole one would exceed the limit. What it has to
/// send waits in the engine until the peer sends more.
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

    /// Counts a sent UDP payload of this length.
    pub(super) const fn on_sent(&mut self, len: usize) {
        self.sent += len as u64;
    }

    /// Whether a UDP payload of this length may be sent.
    pub(super) const fn permits(&self, len: usize) -> bool {
        self.sent + len as u64 <= self.received * FACTOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_bytes_are_sent_for_each_received_byte_at_most() {
        let mut peer = Unvalidated::default();
        assert!(peer.permits(0) && !peer.permits(1));
        peer.on_received(1200);
        assert!(peer.permits(3600) && !peer.permits(3601));
        peer.on_sent(1422);
        assert!(peer.permits(2178) && !peer.permits(2179));
        peer.on_received(1);
        assert!(peer.permits(2181) && !peer.permits(2182));
    }
}
