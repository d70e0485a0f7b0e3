use tandem_units::ByteCount;

/// Bytes of headers around a UDP payload: IPv4 (20, RFC 791 §3.1) and UDP (8, RFC 768). The same
/// number is added for IPv6, so that a result does not depend on the kind of address.
pub const UDP_IP_OVERHEAD: ByteCount = ByteCount::new(28);

/// A packet that a link carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<T> {
    /// Size of the IP packet. Rates, queue limits and MTUs count this.
    pub size: ByteCount,
    /// The content, which the link does not look at.
    pub content: T,
}

impl<T> Packet<T> {
    /// An IP packet with a UDP payload of this length in bytes.
    pub fn udp(payload_len: usize, content: T) -> Self {
        Self { size: ByteCount::from(payload_len) + UDP_IP_OVERHEAD, content }
    }
}
