//! The local programs at one end of the tunnel, and the target at the other one.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use socket2::{Domain, Socket, Type};

/// No packet may be lost because a socket of the benchmark is full.
const SOCKET_BUFFER: usize = 4 << 20;
const OPENING_LIMIT: Duration = Duration::from_secs(10);
/// An opening packet is sent again after this time.
const OPENING_AGAIN: Duration = Duration::from_millis(20);
/// So many flows are opened at the same time.
const OPENING_AT_ONCE: usize = 16;

/// What a packet is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Opening = 0,
    Data = 1,
    Echo = 2,
}

/// The first bytes of each packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub run: u32,
    pub number: u32,
    pub kind: Kind,
}

impl Head {
    pub fn payload(self, bytes: usize) -> Vec<u8> {
        let mut payload = Vec::with_capacity(bytes);
        payload.extend(self.run.to_le_bytes());
        payload.extend(self.number.to_le_bytes());
        payload.push(self.kind as u8);
        payload.resize(bytes.max(payload.len()), 0);
        payload
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        let run = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
        let number = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?);
        let kind = match bytes.get(8)? {
            0 => Kind::Opening,
            1 => Kind::Data,
            2 => Kind::Echo,
            _ => return None,
        };
        Some(Self { run, number, kind })
    }
}

/// The local programs have an address, and thus ports, of their own.
const PROGRAMS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A UDP socket on loopback with large buffers.
pub fn socket() -> io::Result<UdpSocket> {
    socket_of(Ipv4Addr::LOCALHOST)
}

fn socket_of(address: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.bind(&SocketAddr::from((address, 0)).into())?;
    Ok(socket.into())
}

/// Local programs, each with a socket of its own, and thus with a flow of its own. They stay open from run to run.
pub struct Ends {
    pub target: UdpSocket,
    pub locals: Vec<UdpSocket>,
    /// Where the target sends packets of each flow.
    pub sources: Vec<Option<SocketAddrV4>>,
    run: u32,
}

impl Ends {
    pub fn new() -> io::Result<Self> {
        let target = socket()?;
        target.set_nonblocking(true)?;
        Ok(Self { target, locals: Vec::new(), sources: Vec::new(), run: 0 })
    }

    /// Waits until each flow carries packets to the target. Returns the number of the run.
    pub fn open(&mut self, flows: usize, client: SocketAddr) -> Result<u32> {
        while self.locals.len() < flows {
            let local = socket_of(PROGRAMS)?;
            local.connect(client)?;
            local.set_nonblocking(true)?;
            self.locals.push(local);
        }
        self.run += 1;
        self.sources = vec![None; flows];
        let begin = Instant::now();
        let mut sent: Vec<Option<Instant>> = vec![None; flows];
        while begin.elapsed() < OPENING_LIMIT {
            self.hear_openings();
            let missing: Vec<usize> =
                (0..flows).filter(|&flow| self.sources[flow].is_none()).collect();
            if missing.is_empty() {
                return Ok(self.run);
            }
            for flow in missing.into_iter().take(OPENING_AT_ONCE) {
                if sent[flow].is_none_or(|then| then.elapsed() > OPENING_AGAIN) {
                    let head = Head { run: self.run, number: flow as u32, kind: Kind::Opening };
                    // A refusal is the answer to a packet from before.
                    let _ = self.locals[flow].send(&head.payload(64));
                    sent[flow] = Some(Instant::now());
                }
            }
            thread::sleep(Duration::from_micros(500));
        }
        bail!("a flow did not open within {OPENING_LIMIT:?}")
    }

    fn hear_openings(&mut self) {
        let mut packet = [0; 2048];
        while let Ok((length, SocketAddr::V4(source))) = self.target.recv_from(&mut packet) {
            let head = Head::read(&packet[..length]);
            if let Some(Head { run, number, kind: Kind::Opening }) = head
                && run == self.run
                && let Some(known) = self.sources.get_mut(number as usize)
            {
                *known = Some(source);
            }
        }
    }
}
