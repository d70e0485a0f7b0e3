//! The records of the BPF program, which `bpf/mirror.bpf.c` defines as `struct record`.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tandem_pep::Observed;
use tandem_wire::{Ends, Slice, pep_ack::tcp::SeenBytes};

/// The length of a record in bytes.
pub(crate) const LEN: usize = 72;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// A packet that the BPF program has seen, and when, by the kernel's monotonic clock.
pub(crate) fn decode(record: &[u8]) -> Option<(Duration, Observed)> {
    let (record, _) = record.split_first_chunk::<LEN>()?;
    let (nanos, rest) = record.split_first_chunk::<8>()?;
    let (server, rest) = rest.split_first_chunk::<16>()?;
    let (client, rest) = rest.split_first_chunk::<16>()?;
    let (server_port, rest) = rest.split_first_chunk::<2>()?;
    let (client_port, rest) = rest.split_first_chunk::<2>()?;
    let (&[protocol, flags, from_client, _], rest) = rest.split_first_chunk::<4>()?;
    let (sequence, rest) = rest.split_first_chunk::<4>()?;
    let (acknowledges, rest) = rest.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (slice, _) = rest.split_first_chunk::<{ Slice::LEN }>()?;
    let ends = Ends { client: end(*client, *client_port), server: end(*server, *server_port) };
    let observed = match protocol {
        TCP => {
            // SYN takes a sequence number before the data (RFC 9293 §3.4).
            let syn = u32::from(flags & SYN != 0);
            let start = u32::from_ne_bytes(*sequence).wrapping_add(syn);
            let end = start.wrapping_add(u32::from_ne_bytes(*length));
            let acknowledges = u32::from_ne_bytes(*acknowledges);
            if from_client != 0 {
                let next = end.wrapping_add(u32::from(flags & FIN != 0));
                Observed::Client { ends, acknowledges, next }
            } else {
                let (bytes, is_last) = (SeenBytes { start, end }, flags & (FIN | RST) != 0);
                Observed::Tcp { ends, bytes, acknowledges, is_last }
            }
        }
        UDP => Observed::Quic { ends, slice: Slice(*slice) },
        _ => return None,
    };
    Some((Duration::from_nanos(u64::from_ne_bytes(*nanos)), observed))
}

/// IPv4 addresses are mapped into IPv6 in records.
fn end(address: [u8; 16], port: [u8; 2]) -> SocketAddr {
    let address = IpAddr::V6(Ipv6Addr::from(address)).to_canonical();
    SocketAddr::new(address, u16::from_be_bytes(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(protocol: u8, flags: u8) -> Vec<u8> {
        let mut bytes = 5_000_000_u64.to_ne_bytes().to_vec();
        for last in [1, 2] {
            bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last]);
        }
        bytes.extend([0x01, 0xbb, 0x10, 0x00, protocol, flags, 0, 0]);
        for number in [100_u32, 200, 50] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend([7; 12]);
        bytes
    }

    fn ends() -> Ends {
        Ends { client: "192.0.2.2:4096".parse().unwrap(), server: "192.0.2.1:443".parse().unwrap() }
    }

    #[test]
    fn records_become_packets() {
        let quic = Observed::Quic { ends: ends(), slice: Slice([7; 10]) };
        assert_eq!(decode(&record(UDP, 0)), Some((Duration::from_millis(5), quic)));
        for (flags, start, is_last) in [(0x10, 100, false), (0x11, 100, true), (0x12, 101, false)] {
            let bytes = SeenBytes { start, end: start + 50 };
            let tcp = Observed::Tcp { ends: ends(), bytes, acknowledges: 200, is_last };
            assert_eq!(decode(&record(TCP, flags)), Some((Duration::from_millis(5), tcp)));
        }
    }

    #[test]
    fn segments_of_clients_have_an_acknowledgement_and_an_end() {
        for (flags, next) in [(0x10, 150), (0x11, 151)] {
            let mut bytes = record(TCP, flags);
            bytes[46] = 1;
            let client = Observed::Client { ends: ends(), acknowledges: 200, next };
            assert_eq!(decode(&bytes), Some((Duration::from_millis(5), client)));
        }
    }

    #[test]
    fn short_records_and_other_protocols_are_none() {
        assert_eq!(record(TCP, 0).len(), LEN);
        assert_eq!(decode(record(TCP, 0).split_last().unwrap().1), None);
        assert_eq!(decode(&record(1, 0)), None);
    }
}
