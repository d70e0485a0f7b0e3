//! A PEP as in the paper, to compare with: each packet waits in a queue for this program, which lets it pass and then
//! sends a PEP-ACK for it. `nfqueue NUMBER` prints a line when it is ready, and runs until it is killed.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use pep_bench::config;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tandem_wire::{
    Ends, PepAck, SeenPacket, Slice,
    pep_ack::tcp::{SeenBytes, TcpPepAck},
};

fn main() -> Result<()> {
    let number = std::env::args().nth(1).context("the number of the queue is missing")?.parse()?;
    let mut queue = nfq::Queue::open()?;
    queue.bind(number)?;
    queue.set_copy_range(number, 128)?;
    queue.set_queue_max_len(number, 8192)?;
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)))?;
    let (config, start) = (config(), Instant::now());
    let mut first = None;
    println!("ready");
    for sequence in 0.. {
        let mut message = queue.recv()?;
        let packet = message.get_payload().to_vec();
        message.set_verdict(nfq::Verdict::Accept);
        queue.verdict(message)?;
        let seen = Seen { sequence, time: start.elapsed(), first: &mut first };
        if let Some((server, ack)) = pep_ack(&packet, seen, &config) {
            socket.send_to(&ack, &SockAddr::from(SocketAddr::new(server.into(), 0)))?;
        }
    }
    Ok(())
}

struct Seen<'a> {
    sequence: u32,
    time: Duration,
    /// The first byte of TCP.
    first: &'a mut Option<u32>,
}

/// The server and the PEP-ACK for a packet, of which only the first bytes are here.
fn pep_ack(packet: &[u8], seen: Seen<'_>, config: &tandem_pep::Config) -> Option<(Ipv4Addr, Vec<u8>)> {
    let header = etherparse::Ipv4HeaderSlice::from_slice(packet).ok()?;
    let (server, client) = (header.source_addr(), header.destination_addr());
    let rest = packet.get(header.slice().len()..)?;
    let ports = |source: u16, destination: u16| Ends {
        client: (client, destination).into(),
        server: (server, source).into(),
    };
    let time = u32::try_from(seen.time.as_micros() & 0xffff_ffff).ok()?;
    let ip = etherparse::PacketBuilder::ipv4(client.octets(), server.octets(), 64);
    let mut whole = Vec::new();
    if header.protocol() == etherparse::ip_number::UDP {
        let (udp, payload) = etherparse::UdpHeader::from_slice(rest).ok()?;
        let slice = SeenPacket { slice: Slice::of(payload)?, age: 0 };
        let ack = PepAck { pep: config.id, sequence: seen.sequence, time, seen: vec![slice] };
        let mut content = Vec::new();
        ack.encode(config.key.as_ref(), &mut content);
        ip.udp(udp.destination_port, udp.source_port).write(&mut whole, &content).ok()?;
    } else {
        let (tcp, _) = etherparse::TcpHeader::from_slice(rest).ok()?;
        let length = u32::from(header.total_len()) - 20 - u32::try_from(tcp.header_len()).ok()?;
        let bytes = SeenBytes {
            start: *seen.first.get_or_insert(tcp.sequence_number),
            end: tcp.sequence_number.wrapping_add(length),
        };
        let ack = TcpPepAck { pep: config.id, sequence: seen.sequence, time, seen: vec![bytes] };
        let mut options = Vec::new();
        ack.encode(&ports(tcp.source_port, tcp.destination_port), config.key.as_ref(), &mut options);
        let segment = ip.tcp(tcp.destination_port, tcp.source_port, tcp.acknowledgment_number, 0);
        segment.options_raw(&options).ok()?.write(&mut whole, &[]).ok()?;
    }
    Some((server, whole))
}
