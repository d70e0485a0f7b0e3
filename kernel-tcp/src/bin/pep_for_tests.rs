//! A PEP for the tests of the congestion control: a packet socket in, the core of the PEP, raw sockets out.
//!
//! It sees a packet only after the kernel has forwarded it, and copies each one. That is enough for the
//! rates of the tests.
#![expect(clippy::disallowed_methods, reason = "this is a driver, which has the clock")]

use std::{
    io::{ErrorKind, Read as _},
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Instant,
};

use anyhow::{Context as _, Result};
use clap::Parser;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use socket2::{Domain, Protocol, Socket, Type};
use tandem_kernel_tcp::key;
use tandem_pep::{Config, Notice, Observed, Pep, TcpForm};
use tandem_wire::{Ends, PepKey, pep_ack::tcp::SeenBytes};

/// Protocols of Ethernet frames, in network byte order as packet sockets want them.
const ETH_P_IP: u16 = 0x0800_u16.to_be();
const ETH_P_IPV6: u16 = 0x86dd_u16.to_be();

/// The largest packet.
const PACKET_MAX: usize = 65_536;

#[derive(Parser)]
struct Arguments {
    /// Address of the server, whose packets are observed
    #[arg(long)]
    server: IpAddr,

    /// File with the PEP: ID KEY
    #[arg(long)]
    pep: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (id, key) = key::read(&arguments.pep)?;
    let (key, tcp_form) = (Some(PepKey::new(key)), TcpForm::default());
    let mut pep = Pep::new(Config { id, key, flows_max: 1000, tcp_form }, Instant::now());
    let input = tap(if arguments.server.is_ipv4() { ETH_P_IP } else { ETH_P_IPV6 })?;
    let output = raw(arguments.server)?;
    eprintln!("ready");
    let mut buffer = vec![0; PACKET_MAX];
    loop {
        wait(&input, pep.next_timeout())?;
        match (&input).read(&mut buffer) {
            Ok(len) => {
                let packet = buffer.get(..len).unwrap_or_default();
                if let Some(observed) = observed(packet, arguments.server) {
                    pep.observe(Instant::now(), observed);
                }
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error).context("packet socket"),
        }
        while let Some(notice) = pep.poll(Instant::now()) {
            send(&output, &notice)?;
        }
    }
}

/// Waits until a packet comes or this time is reached.
fn wait(input: &Socket, until: Option<Instant>) -> Result<()> {
    let left = until.map(|at| at.saturating_duration_since(Instant::now()));
    let left = left.map(Timespec::try_from).transpose()?;
    match poll(&mut [PollFd::new(input, PollFlags::IN)], left.as_ref()) {
        Err(error) if error != Errno::INTR => Err(error).context("packet socket"),
        _ => Ok(()),
    }
}

/// A socket that gets each packet of a protocol that arrives on any device, from its network header on.
fn tap(protocol: u16) -> Result<Socket> {
    let protocol = Protocol::from(i32::from(protocol));
    let socket =
        Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol)).context("packet socket")?;
    socket.set_recv_buffer_size(8_000_000)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A socket that sends packets with their headers.
fn raw(server: IpAddr) -> Result<Socket> {
    const IPPROTO_RAW: i32 = 255;
    let domain = if server.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(IPPROTO_RAW)));
    let socket = socket.context("raw socket")?;
    if server.is_ipv4() {
        socket.set_header_included_v4(true)?;
    } else {
        socket.set_header_included_v6(true)?;
    }
    Ok(socket)
}

/// What the PEP has to know of a packet. `None`: it is no TCP segment of the server.
fn observed(packet: &[u8], server: IpAddr) -> Option<Observed> {
    let packet = SlicedPacket::from_ip(packet).ok()?;
    let (source, destination) = match packet.net? {
        NetSlice::Ipv4(ip) => {
            (ip.header().source_addr().into(), IpAddr::from(ip.header().destination_addr()))
        }
        NetSlice::Ipv6(ip) => {
            (ip.header().source_addr().into(), IpAddr::from(ip.header().destination_addr()))
        }
        NetSlice::Arp(_) => return None,
    };
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { return None };
    if source != server {
        return None;
    }
    let client = SocketAddr::new(destination, tcp.destination_port());
    let server = SocketAddr::new(source, tcp.source_port());
    let start = tcp.sequence_number();
    let len = u32::try_from(tcp.payload().len()).ok()?;
    Some(Observed::Tcp {
        ends: Ends { client, server },
        bytes: SeenBytes { start, end: start.wrapping_add(len) },
        acknowledges: tcp.acknowledgment_number(),
        is_last: tcp.fin() || tcp.rst(),
    })
}

/// Sends a PEP-ACK in the name of the client.
fn send(output: &Socket, notice: &Notice) -> Result<()> {
    const WINDOW: u16 = 65_535;
    const TTL: u8 = 64;
    let Notice::Tcp { ends: Ends { client, server }, sequence, options, .. } = notice else {
        return Ok(()); // nothing else was observed
    };
    let ip = match (client.ip(), server.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), TTL),
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), TTL),
        _ => return Ok(()),
    };
    let tcp = ip.tcp(client.port(), server.port(), *sequence, WINDOW).options_raw(options)?;
    let mut packet = Vec::with_capacity(tcp.size(0));
    tcp.write(&mut packet, &[])?;
    // The port is that of no protocol, but the kernel wants 0 for raw IPv6.
    output.send_to(&packet, &SocketAddr::new(server.ip(), 0).into()).context("raw socket")?;
    Ok(())
}
