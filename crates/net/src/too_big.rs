//! ICMP messages that tell a target which of its packets are too large for a tunnel: Packet Too Big
//! (RFC 4443 §3.2), and in IPv4 "fragmentation needed and DF set" (RFC 792, RFC 1191 §4).
//!
//! RFC 9298 §6.1: a proxy that drops a packet because it does not fit "SHOULD send an ICMP Packet Too
//! Big message (type 2 in IPv6 and type 3 with code 4 in IPv4) to the target" when it can. That needs
//! raw sockets, and on Linux the capability `CAP_NET_RAW`. Without it no message is sent.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use etherparse::{
    Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, IpNumber, Ipv4Header, Ipv6Header,
    UdpHeader, icmpv4::DestUnreachableHeader,
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tracing::{debug, trace};

/// The bytes of the headers of IPv4 and UDP.
const HEADERS_V4: usize = 20 + 8;

/// The bytes of the headers of IPv6 and UDP.
const HEADERS_V6: usize = 40 + 8;

/// The least MTU of IPv6. RFC 8201 §4: hosts ignore a Packet Too Big message with less.
const LEAST_MTU_V6: u32 = 1280;

/// Sends the messages. The raw sockets are opened when the first message is sent.
#[derive(Debug, Default)]
pub(crate) struct TooBig {
    v4: Option<Raw>,
    v6: Option<Raw>,
}

/// A raw socket, or the fact that this process may not have one.
#[derive(Debug)]
enum Raw {
    Open(Socket),
    Refused,
}

impl TooBig {
    /// Tells a target that a packet from it with `len` bytes of UDP payload was too large, and that
    /// `fits` bytes fit. `local` is the address to which the target sent the packet. Returns whether
    /// a message was sent.
    pub(crate) fn tell(
        &mut self,
        target: SocketAddr,
        local: SocketAddr,
        (len, fits): (usize, usize),
    ) -> bool {
        // The path MTU of the loopback device belongs to all programs of this machine.
        if target.ip().is_loopback() || target.ip() == local.ip() {
            return false;
        }
        let Some(message) = message(target, local, (len, fits)) else { return false };
        let raw = match target {
            SocketAddr::V4(_) => {
                self.v4.get_or_insert_with(|| Raw::open(Domain::IPV4, Protocol::ICMPV4))
            }
            SocketAddr::V6(_) => {
                self.v6.get_or_insert_with(|| Raw::open(Domain::IPV6, Protocol::ICMPV6))
            }
        };
        let Raw::Open(socket) = raw else { return false };
        // A raw socket has no ports.
        let sent = socket.send_to(&message, &SockAddr::from(SocketAddr::new(target.ip(), 0)));
        match sent {
            Ok(_) => {
                debug!(destination = %target, len, fits, "told the target with ICMP that a packet was too large");
            }
            Err(ref error) => trace!(destination = %target, %error, "cannot send an ICMP message"),
        }
        sent.is_ok()
    }
}

impl Raw {
    fn open(domain: Domain, protocol: Protocol) -> Self {
        let open = || -> io::Result<Socket> {
            let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        open().map_or_else(
            |error| {
                debug!(%error, "targets get no ICMP Packet Too Big, because this needs CAP_NET_RAW");
                Self::Refused
            },
            Self::Open,
        )
    }
}

/// The ICMP message without the IP header, which the kernel writes. `None`: the addresses are not of
/// one version, or the packet was longer than IP allows.
fn message(target: SocketAddr, local: SocketAddr, (len, fits): (usize, usize)) -> Option<Vec<u8>> {
    let udp_len = u16::try_from(len + UdpHeader::LEN).ok()?;
    let udp = UdpHeader {
        source_port: target.port(),
        destination_port: local.port(),
        length: udp_len,
        // The receiver knows its packet by the addresses and ports.
        checksum: 0,
    };
    let mut quoted = Vec::with_capacity(HEADERS_V6);
    let mut out = Vec::with_capacity(8 + HEADERS_V6);
    match (target.ip(), local.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let (from, to) = (from.octets(), to.octets());
            let ip = Ipv4Header::new(udp_len, 64, IpNumber::UDP, from, to).ok()?;
            quoted.extend_from_slice(&ip.to_bytes());
            quoted.extend_from_slice(&udp.to_bytes());
            let next_hop_mtu = u16::try_from(fits + HEADERS_V4).unwrap_or(u16::MAX);
            let reason = DestUnreachableHeader::FragmentationNeeded { next_hop_mtu };
            let icmp =
                Icmpv4Header::with_checksum(Icmpv4Type::DestinationUnreachable(reason), &quoted);
            out.extend_from_slice(&icmp.to_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let ip = Ipv6Header {
                payload_length: udp_len,
                next_header: IpNumber::UDP,
                hop_limit: 64,
                source: from.octets(),
                destination: to.octets(),
                ..Ipv6Header::default()
            };
            quoted.extend_from_slice(&ip.to_bytes());
            quoted.extend_from_slice(&udp.to_bytes());
            let mtu = u32::try_from(fits + HEADERS_V6).unwrap_or(u32::MAX).max(LEAST_MTU_V6);
            // RFC 3542 §3.1: the kernel writes the checksum.
            out.extend_from_slice(&Icmpv6Header::new(Icmpv6Type::PacketTooBig { mtu }).to_bytes());
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    }
    out.extend_from_slice(&quoted);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_mtu_and_quotes_the_packet() {
        let message = message(
            "198.51.100.4:53".parse().unwrap(),
            "192.0.2.1:40000".parse().unwrap(),
            (1452, 1400),
        );
        let mut expected = vec![3, 4, 0, 0, 0, 0];
        expected.extend(1428_u16.to_be_bytes());
        expected.extend([0x45, 0]);
        expected.extend(1480_u16.to_be_bytes());
        let message = message.unwrap();
        let (icmp, quoted) = message.split_at(8);
        assert_eq!((&icmp[..2], &icmp[6..]), (&expected[..2], &expected[6..8]));
        assert_eq!(quoted[..4], expected[8..]);
        assert_eq!(quoted[9], 17);
        assert_eq!(quoted[12..20], [198, 51, 100, 4, 192, 0, 2, 1]);
        assert_eq!(quoted[20..24], [0, 53, 0x9c, 0x40]);
        assert_eq!(quoted.len(), 28);
        // RFC 1071: with its checksum a message adds up to all ones.
        let words = message.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum = words.sum::<u32>();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn a_message_of_ipv6_has_at_least_the_least_mtu() {
        for (fits, mtu) in [(1400, 1448_u32), (1200, 1280)] {
            let message = message(
                "[2001:db8::4]:53".parse().unwrap(),
                "[2001:db8::1]:40000".parse().unwrap(),
                (1452, fits),
            );
            let message = message.unwrap();
            assert_eq!((message[0], message[1], message.len()), (2, 0, 8 + 48));
            assert_eq!(message[4..8], mtu.to_be_bytes());
            assert_eq!(message[8 + 40..8 + 44], [0, 53, 0x9c, 0x40]);
        }
    }

    #[test]
    fn no_message_goes_to_this_machine() {
        let (target, local) = ("127.0.0.1:53".parse().unwrap(), "127.0.0.1:9".parse().unwrap());
        assert!(!TooBig::default().tell(target, local, (1452, 1400)));
    }
}
