//! PEPs between network namespaces: what they send must be PEP-ACKs to `tandem-wire` and to the kernel's checks.
//!
//! ```text
//! cargo test -p tandem-pep-linux --test namespaces -- --ignored        as root
//! ```
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

mod bed;

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use bed::{Bed, SERVER_PORT, received};
use etherparse::PacketBuilder;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tandem_pep::{Config, TcpForm};
use tandem_pep_linux::{Maker, Stats};
use tandem_wire::{Ends, PepAck, PepId, PepKey, Slice, pep_ack::tcp::TcpPepAck};

const PACKETS: u16 = 200;
const BYTES: usize = 2_000_000;
const MAKERS: [Maker; 4] = [
    Maker::UserSpace,
    Maker::Kernel { packets: 1 },
    Maker::Kernel { packets: 3 }, // with a padding that has no room in the same block
    Maker::Kernel { packets: Maker::PACKETS_MAX },
];

fn key() -> PepKey {
    PepKey::new([9; PepKey::LEN])
}

fn config(key: Option<PepKey>) -> Config {
    Config { id: PepId(0x0102_0304), key, flows_max: 1000, tcp_form: TcpForm::Flagless }
}

fn ends(is_ipv6: bool) -> Ends {
    let end = |place, port| SocketAddr::new(Bed::address(place, is_ipv6), port);
    Ends { client: end("client", 50_000), server: end("server", SERVER_PORT) }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn each_quic_packet_is_told_of_once_and_in_order() {
    let bed = Bed::new("tandem-quic");
    for maker in MAKERS {
        for is_ipv6 in [false, true] {
            for key in [Some(key()), None] {
                let (sent, acks, stats) = quic(&bed, is_ipv6, config(key.clone()), maker);
                let what = format!("{maker:?}, IPv6: {is_ipv6}, key: {key:?}, {stats:?}");
                let is_authentic = |ack: &Vec<u8>| self::key().authenticates(ack);
                assert!(acks.iter().all(|ack| is_authentic(ack) == key.is_some()), "{what}");
                let acks: Vec<_> = acks.iter().map(|ack| PepAck::decode(ack).unwrap()).collect();
                let told: Vec<_> =
                    acks.iter().flat_map(|ack| &ack.seen).map(|seen| seen.slice).collect();
                assert!(told == sent, "{} of {}, {what}", told.len(), sent.len());
                assert!((0..).zip(&acks).all(|(number, ack)| ack.sequence == number), "{what}");
                assert!(acks.iter().all(|ack| ack.pep == PepId(0x0102_0304)), "{what}");
                assert!(acks.windows(2).all(|two| two[1].time.wrapping_sub(two[0].time) < 1 << 31));
                for ack in &acks {
                    assert!(ack.seen.windows(2).all(|two| two[0].age >= two[1].age), "{what}");
                }
                if let Maker::Kernel { packets } = maker {
                    let most = acks.iter().map(|ack| ack.seen.len()).max().unwrap();
                    assert_eq!((most, acks[0].seen.len()), (packets.into(), 1), "{what}");
                }
                assert_eq!((stats.pep.notices, stats.unsent), (acks.len() as u64, 0), "{what}");
            }
        }
    }
}

/// The slices of what was sent, and the PEP-ACKs that have come. All packets reach the client.
fn quic(
    bed: &Bed,
    is_ipv6: bool,
    config: Config,
    maker: Maker,
) -> (Vec<Slice>, Vec<Vec<u8>>, Stats) {
    let Ends { client, server } = ends(is_ipv6);
    let pep = bed.pep(config, maker);
    let receiver = bed.udp("client", client);
    let heard = bed.udp("server", server);
    // The checksums of these packets are complete, other than those of UDP sockets: so the kernel
    // checks those of PEP-ACKs.
    let raw = bed.inside("server", move || {
        let domain = if is_ipv6 { Domain::IPV6 } else { Domain::IPV4 };
        let raw = Socket::new(domain, Type::RAW, Some(Protocol::from(255))).unwrap();
        if is_ipv6 { raw.set_header_included_v6(true) } else { raw.set_header_included_v4(true) }
            .unwrap();
        raw
    });
    let mut sent = Vec::new();
    for number in 0..=PACKETS {
        let mut payload = vec![0x40; 35 + usize::from(number)];
        payload[25..27].copy_from_slice(&number.to_be_bytes());
        let mut packet = Vec::new();
        let builder = match (server, client) {
            (SocketAddr::V4(server), SocketAddr::V4(client)) => {
                PacketBuilder::ipv4(server.ip().octets(), client.ip().octets(), 64)
            }
            (SocketAddr::V6(server), SocketAddr::V6(client)) => {
                PacketBuilder::ipv6(server.ip().octets(), client.ip().octets(), 64)
            }
            _ => unreachable!(),
        };
        let builder = builder.udp(server.port(), client.port());
        builder.write(&mut packet, &payload).unwrap();
        if number == PACKETS {
            thread::sleep(Duration::from_millis(5)); // the kernel acknowledges the others with this one
        }
        raw.send_to(&packet, &SockAddr::from(SocketAddr::new(client.ip(), 0))).unwrap();
        sent.push(Slice::of(&payload).unwrap());
    }
    let acks = received(|buffer| heard.recv(buffer));
    let arrived = received(|buffer| receiver.recv(buffer)).len();
    assert_eq!(arrived, sent.len(), "{maker:?}, IPv6: {is_ipv6}");
    (sent, acks, pep.end())
}

#[test]
#[ignore = "needs root and network namespaces"]
fn tcp_connections_are_told_of_and_not_disturbed() {
    let bed = Bed::new("tandem-tcp");
    for maker in MAKERS {
        for is_ipv6 in [false, true] {
            for key in [Some(key()), None] {
                let (ends, acks, stats) = tcp(&bed, is_ipv6, config(key.clone()), maker);
                let what = format!("{maker:?}, IPv6: {is_ipv6}, key: {key:?}, {stats:?}");
                let is_authentic = |ack: &Vec<u8>| ends.authenticates(&self::key(), ack);
                assert!(acks.iter().all(|ack| is_authentic(ack) == key.is_some()), "{what}");
                let acks: Vec<_> = acks.iter().map(|ack| TcpPepAck::decode(ack).unwrap()).collect();
                assert!((0..).zip(&acks).all(|(number, ack)| ack.sequence == number), "{what}");
                assert!(acks.iter().all(|ack| ack.pep == PepId(0x0102_0304)), "{what}");
                let first = acks[0].seen[0].start;
                let ends =
                    acks.iter().flat_map(|ack| &ack.seen).map(|seen| seen.end.wrapping_sub(first));
                let (all, told) = (u32::try_from(BYTES).unwrap(), ends.max().unwrap());
                assert!((all / 2..=all).contains(&told), "{told}, {what}");
                assert_eq!((stats.pep.notices, stats.unsent), (acks.len() as u64, 0), "{what}");
            }
        }
    }
}

/// The ends of a connection and the options of its PEP-ACKs. All bytes reach the client.
fn tcp(bed: &Bed, is_ipv6: bool, config: Config, maker: Maker) -> (Ends, Vec<Vec<u8>>, Stats) {
    let Ends { server, .. } = ends(is_ipv6);
    let pep = bed.pep(config, maker);
    let (listener, raw) = bed.inside("server", move || {
        let domain = if is_ipv6 { Domain::IPV6 } else { Domain::IPV4 };
        let raw = Socket::new(domain, Type::RAW, Some(Protocol::TCP)).unwrap();
        raw.set_recv_buffer_size(1 << 24).unwrap();
        raw.set_read_timeout(Some(bed::SILENCE)).unwrap();
        (TcpListener::bind(server).unwrap(), raw)
    });
    let mut client = bed.inside("client", move || TcpStream::connect(server).unwrap());
    let (mut stream, peer) = listener.accept().unwrap();
    let writer = thread::spawn(move || {
        stream.write_all(&vec![7; BYTES]).unwrap();
        thread::sleep(Duration::from_millis(20)); // a PEP acknowledges nothing after FIN
    });
    let mut body = Vec::new();
    client.read_to_end(&mut body).unwrap();
    assert_eq!(body.len(), BYTES);
    writer.join().unwrap();
    let packets = received(|buffer| (&raw).read(buffer));
    let ends = Ends { client: peer, server };
    (ends, packets.iter().filter_map(|packet| option(packet, &ends)).collect(), pep.end())
}

/// The option of a PEP-ACK. `None`: it is another segment. Panics if it has a wrong checksum.
fn option(packet: &[u8], ends: &Ends) -> Option<Vec<u8>> {
    let at = if ends.server.is_ipv4() { usize::from(packet[0] & 15) * 4 } else { 0 };
    let (header, data) = etherparse::TcpHeader::from_slice(&packet[at..]).unwrap();
    let option = header.options.as_slice();
    if option.first() != Some(&253) {
        return None;
    }
    assert!(data.is_empty() && header.source_port == ends.client.port());
    assert!(!(header.ack || header.syn || header.fin || header.rst || header.psh || header.urg));
    let client_ip = ends.client.ip();
    let (whole, pseudo) = match (client_ip, ends.server.ip()) {
        (std::net::IpAddr::V4(client), std::net::IpAddr::V4(server)) => (
            header.calc_checksum_ipv4_raw(client.octets(), server.octets(), &[]).unwrap(),
            pseudo_sum(&client.octets(), &server.octets(), header.header_len()),
        ),
        (std::net::IpAddr::V6(client), std::net::IpAddr::V6(server)) => (
            header.calc_checksum_ipv6_raw(client.octets(), server.octets(), &[]).unwrap(),
            pseudo_sum(&client.octets(), &server.octets(), header.header_len()),
        ),
        _ => unreachable!(),
    };
    // Devices complete checksums, and these ones have none of their own: both forms reach the server.
    assert!([whole, pseudo].contains(&header.checksum), "{header:?}");
    Some(option.to_vec())
}

/// What the kernel writes for a device that completes the checksum.
fn pseudo_sum(client: &[u8], server: &[u8], len: usize) -> u16 {
    let words = client
        .chunks(2)
        .chain(server.chunks(2))
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum = words.sum::<u32>() + 6 + u32::try_from(len).unwrap();
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()
}
