//! PEP-ACKs as whole IP packets.

use std::net::IpAddr;

use etherparse::{IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, TcpHeader, UdpHeader};
use tandem_pep::Notice;
use tandem_wire::Ends;

const HOP_LIMIT: u8 = 64;

/// The IP packet from the client to the server. `None`: the ends are of two versions of IP, or a PEP-ACK is too long.
pub(crate) fn encode(notice: &Notice) -> Option<Vec<u8>> {
    match notice {
        Notice::Udp { ends, payload } => {
            let (from, to) = (ends.client.port(), ends.server.port());
            let header = match (ends.client.ip(), ends.server.ip()) {
                (IpAddr::V4(client), IpAddr::V4(server)) => UdpHeader::with_ipv4_checksum(
                    from,
                    to,
                    &Ipv4Header::new(0, 0, IpNumber::UDP, client.octets(), server.octets()).ok()?,
                    payload,
                ),
                (IpAddr::V6(client), IpAddr::V6(server)) => {
                    let ip = ipv6(client.octets(), server.octets(), IpNumber::UDP, 0);
                    UdpHeader::with_ipv6_checksum(from, to, &ip, payload)
                }
                _ => return None,
            };
            let content = [&header.ok()?.to_bytes(), payload.as_slice()].concat();
            in_ip(ends, IpNumber::UDP, &content)
        }
        Notice::Tcp { ends, sequence, acknowledges, options } => {
            let mut header = TcpHeader::new(ends.client.port(), ends.server.port(), *sequence, 0);
            header.ack = acknowledges.is_some();
            header.acknowledgment_number = acknowledges.unwrap_or_default();
            header.set_options_raw(options).ok()?;
            header.checksum = match (ends.client.ip(), ends.server.ip()) {
                (IpAddr::V4(client), IpAddr::V4(server)) => {
                    header.calc_checksum_ipv4_raw(client.octets(), server.octets(), &[]).ok()?
                }
                (IpAddr::V6(client), IpAddr::V6(server)) => {
                    header.calc_checksum_ipv6_raw(client.octets(), server.octets(), &[]).ok()?
                }
                _ => return None,
            };
            in_ip(ends, IpNumber::TCP, &header.to_bytes())
        }
    }
}

fn in_ip(ends: &Ends, protocol: IpNumber, content: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(content.len()).ok()?;
    let header = match (ends.client.ip(), ends.server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            let (client, server) = (client.octets(), server.octets());
            let mut ip = Ipv4Header::new(length, HOP_LIMIT, protocol, client, server).ok()?;
            ip.dont_fragment = true;
            ip.header_checksum = ip.calc_header_checksum();
            ip.to_bytes().to_vec()
        }
        (IpAddr::V6(client), IpAddr::V6(server)) => {
            ipv6(client.octets(), server.octets(), protocol, length).to_bytes().to_vec()
        }
        _ => return None,
    };
    Some([header.as_slice(), content].concat())
}

fn ipv6(source: [u8; 16], destination: [u8; 16], protocol: IpNumber, length: u16) -> Ipv6Header {
    Ipv6Header {
        traffic_class: 0,
        flow_label: Ipv6FlowLabel::ZERO,
        payload_length: length,
        next_header: protocol,
        hop_limit: HOP_LIMIT,
        source,
        destination,
    }
}
