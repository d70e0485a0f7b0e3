//! IP packets that are read from a device.

use std::io;

use bytes::{Bytes, BytesMut};

/// Shortest IPv4 header in bytes (RFC 791 §3.1), and length of the IPv6 header (RFC 8200 §3).
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;

/// The reason for which bytes are not an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketError {
    /// The version is neither IPv4 nor IPv6.
    NotIp,
    /// The packet is shorter than its header, or its length field is wrong.
    Truncated,
}

/// The length of the IP packet in bytes, according to its header.
pub(super) fn ip_len(packet: &[u8]) -> Result<usize, PacketError> {
    let field = |at: usize| match packet.get(at..at + 2) {
        Some(&[high, low]) => usize::from(u16::from_be_bytes([high, low])),
        _ => 0,
    };
    let (header, len) = match packet.first().map(|byte| byte >> 4) {
        Some(4) => (IPV4_HEADER, field(2)),               // Total Length
        Some(6) => (IPV6_HEADER, IPV6_HEADER + field(4)), // Payload Length
        _ => return Err(PacketError::NotIp),
    };
    if packet.len() < header || !(header..=packet.len()).contains(&len) {
        return Err(PacketError::Truncated);
    }
    Ok(len)
}

/// Bytes that are allocated at a time. One allocation holds 43 packets of 1500 bytes, or one IP
/// packet of the largest size.
const CHUNK: usize = 65_536;

/// The memory into which packets are read. Packets share it, and it is freed with the last of them.
#[derive(Debug)]
pub(super) struct PacketBuffer {
    /// The unused rest, which is all zeros.
    rest: BytesMut,
    packet_max: usize,
}

impl PacketBuffer {
    /// A buffer for packets of at most this many bytes.
    pub(super) fn new(packet_max: u16) -> Self {
        Self { rest: BytesMut::new(), packet_max: packet_max.into() }
    }

    /// Lets `read` write a packet into the buffer and returns the packet. `read` returns its
    /// length.
    pub(super) fn fill(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Bytes> {
        if self.rest.len() < self.packet_max {
            self.rest = BytesMut::zeroed(CHUNK.max(self.packet_max));
        }
        let len = read(&mut self.rest)?.min(self.rest.len());
        Ok(self.rest.split_to(len).freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of a packet of this version whose length field says `len`, cut to `bytes` bytes.
    fn packet(version: u8, len: u16, bytes: usize) -> Vec<u8> {
        let mut packet = vec![0; bytes.max(6)];
        packet[0] = version << 4;
        let at = if version == 6 { 4 } else { 2 };
        packet[at..at + 2].copy_from_slice(&len.to_be_bytes());
        packet.truncate(bytes);
        packet
    }

    #[test]
    fn a_packet_is_as_long_as_its_header_says() {
        use PacketError::{NotIp, Truncated};
        for (version, len, bytes, expected) in [
            (4, 20, 20, Ok(20)),
            (4, 1500, 1500, Ok(1500)),
            (4, 60, 64, Ok(60)), // padded
            (4, 19, 64, Err(Truncated)),
            (4, 20, 19, Err(Truncated)),
            (4, 1501, 1500, Err(Truncated)),
            (4, 0, 1, Err(Truncated)),
            (6, 0, 40, Ok(40)),
            (6, 1460, 1500, Ok(1500)),
            (6, 1461, 1500, Err(Truncated)),
            (6, 0, 39, Err(Truncated)),
            (5, 20, 20, Err(NotIp)),
            (0, 20, 20, Err(NotIp)),
            (15, 20, 20, Err(NotIp)),
            (4, 20, 0, Err(NotIp)),
        ] {
            let seen = ip_len(&packet(version, len, bytes));
            assert_eq!(seen, expected, "version {version}, length {len}, {bytes} bytes");
        }
    }

    #[test]
    fn packets_share_chunks_without_overwriting_each_other() {
        let mut buffer = PacketBuffer::new(1500);
        let mut fill = |byte: u8| {
            let read = |room: &mut [u8]| {
                assert!(room.len() >= 1500);
                room[..1500].fill(byte);
                Ok(1500)
            };
            buffer.fill(read).unwrap()
        };
        let packets: Vec<_> = (0..100).map(&mut fill).collect();
        for (number, packet) in (0..100).zip(&packets) {
            assert!(packet.len() == 1500 && packet.iter().all(|byte| *byte == number));
        }
    }

    #[test]
    fn a_read_that_fails_uses_no_room() {
        let mut buffer = PacketBuffer::new(CHUNK.try_into().unwrap_or(u16::MAX));
        for _ in 0..3 {
            let blocked = buffer.fill(|_| Err(io::ErrorKind::WouldBlock.into()));
            assert_eq!(blocked.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        assert_eq!(buffer.rest.len(), CHUNK);
    }
}
