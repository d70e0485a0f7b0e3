//! Sends packets at an even rate: `send quic|tcp SERVER CLIENT RATE COUNT`. Prints the rate that it reached.
//!
//! Each packet has its number in its slice, or in its sequence number. The TCP segments belong to no connection.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use etherparse::PacketBuilder;
use pep_bench::{CLIENT_PORT, SERVER_PORT, TCP_BYTES, UDP_BYTES};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [protocol, server, client, rate, count] = given.as_slice() else {
        anyhow::bail!("send quic|tcp SERVER CLIENT RATE COUNT");
    };
    let is_tcp = protocol == "tcp";
    let (server, client): (Ipv4Addr, Ipv4Addr) = (server.parse()?, client.parse()?);
    let (rate, count): (f64, u32) = (rate.parse()?, count.parse()?);
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)))?;
    let to = SockAddr::from(SocketAddr::new(client.into(), 0));
    let interval = Duration::from_secs_f64(1.0 / rate);
    let start = Instant::now();
    let mut next = start;
    let mut packet = Vec::with_capacity(2048);
    for number in 0..count {
        packet.clear();
        write(&mut packet, is_tcp, (server, client), number)?;
        while Instant::now() < next {
            std::hint::spin_loop();
        }
        socket.send_to(&packet, &to).context("sending")?;
        // After a pause of the machine, no burst follows that never was asked for.
        next = (next + interval).max(Instant::now());
    }
    println!("{:.0}", f64::from(count) / start.elapsed().as_secs_f64());
    Ok(())
}

fn write(packet: &mut Vec<u8>, is_tcp: bool, ends: (Ipv4Addr, Ipv4Addr), number: u32) -> Result<()> {
    let ip = PacketBuilder::ipv4(ends.0.octets(), ends.1.octets(), 64);
    if is_tcp {
        let sequence = number.wrapping_mul(TCP_BYTES);
        let payload = [0x55; TCP_BYTES as usize];
        ip.tcp(SERVER_PORT, CLIENT_PORT, sequence, 65_000).ack(1).write(packet, &payload)?;
    } else {
        let mut payload = [0x55; UDP_BYTES];
        if let Some(slice) = payload.get_mut(25..29) {
            slice.copy_from_slice(&number.to_be_bytes());
        }
        ip.udp(SERVER_PORT, CLIENT_PORT).write(packet, &payload)?;
    }
    Ok(())
}
