//! Small nodes for tests of worlds and tunnels.

mod paced;
mod shared_address;
mod tcp;

use std::{
    collections::VecDeque,
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_node::{
    Input, Node, Output,
    node::{Received, SocketId, SocketKind, Transmit},
};

pub use paced::{Pace, PacedReceiver, PacedSender};
pub use shared_address::{Owner, SharedAddress};
pub use tcp::{Behaviour, Reading, TcpProgram, TcpReport, TcpServer, TcpTask, TcpTypist};

/// The only socket that these nodes have.
const SOCKET: SocketId = SocketId(0);

/// One UDP payload that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time of arrival.
    pub at: Instant,
    /// The sender's address.
    pub remote: SocketAddr,
    /// The payload.
    pub payload: Bytes,
}

impl Arrival {
    fn new(at: Instant, Received { remote, payload, .. }: Received) -> Self {
        Self { at, remote, payload: payload.freeze() }
    }
}

/// Sends every UDP payload back to its sender.
#[derive(Debug)]
pub struct EchoHost {
    to_open: Option<SocketKind>,
    to_send: VecDeque<Received>,
    echoed: u64,
}

impl EchoHost {
    /// Listens at this port of all IPv4 addresses.
    pub const fn new(port: u16) -> Self {
        Self::with(listen(port))
    }

    /// Listens at this address.
    pub const fn at(address: SocketAddr) -> Self {
        Self::with(SocketKind::Listen(address))
    }

    const fn with(kind: SocketKind) -> Self {
        Self { to_open: Some(kind), to_send: VecDeque::new(), echoed: 0 }
    }

    /// Number of datagrams that were sent back.
    pub const fn echoed(&self) -> u64 {
        self.echoed
    }
}

impl Node for EchoHost {
    fn handle(&mut self, _now: Instant, input: Input) {
        if let Input::Datagram(received) = input {
            self.to_send.push_back(received);
        }
    }

    fn poll(&mut self, _now: Instant, buf: &mut Vec<u8>) -> Output {
        if let Some(kind) = self.to_open.take() {
            return Output::OpenSocket { socket: SOCKET, kind };
        }
        let Some(received) = self.to_send.pop_front() else { return Output::Wait(None) };
        self.echoed += 1;
        buf.extend_from_slice(&received.payload);
        let transmit = Transmit {
            destination: received.remote,
            src_ip: received.local_ip,
            ecn: received.ecn,
            size: buf.len(),
            segment_size: None,
        };
        Output::Transmit { socket: SOCKET, transmit }
    }
}

/// Keeps every UDP payload that arrives.
#[derive(Debug)]
pub struct SinkHost {
    to_open: Option<SocketKind>,
    arrivals: Vec<Arrival>,
}

impl SinkHost {
    /// Listens at this port of all IPv4 addresses.
    pub const fn new(port: u16) -> Self {
        Self { to_open: Some(listen(port)), arrivals: Vec::new() }
    }

    /// The payloads that arrived, in order of time.
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }
}

impl Node for SinkHost {
    fn handle(&mut self, now: Instant, input: Input) {
        if let Input::Datagram(received) = input {
            self.arrivals.push(Arrival::new(now, received));
        }
    }

    fn poll(&mut self, _now: Instant, _buf: &mut Vec<u8>) -> Output {
        let kind = self.to_open.take();
        kind.map_or(Output::Wait(None), |kind| Output::OpenSocket { socket: SOCKET, kind })
    }
}

/// Sends UDP payloads at given times and keeps the replies. It does not retransmit.
#[derive(Debug)]
pub struct SenderHost {
    target: SocketAddr,
    schedule: VecDeque<Shot>,
    state: SenderState,
    sent: u64,
    replies: Vec<Arrival>,
}

#[derive(Debug)]
enum SenderState {
    Closed,
    Opening,
    Sending { since: Instant },
    Failed(ErrorKind),
}

/// One UDP payload to send. It begins with its number, counted from 0, as 8 bytes in network order.
/// The remaining bytes are zero. A shorter payload holds only the first bytes of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shot {
    /// The time at which to send it, counted from the opening of the socket.
    pub after: Duration,
    /// Length of the UDP payload in bytes.
    pub payload_len: usize,
}

impl Shot {
    /// Makes `count` payloads of one length: one at the beginning, and one after each interval.
    pub fn every(interval: Duration, count: u32, payload_len: usize) -> Vec<Self> {
        (0..count).map(|number| Self { after: interval * number, payload_len }).collect()
    }
}

impl SenderHost {
    /// Makes a sender to this address that uses a connected socket. The schedule must be in order
    /// of time.
    pub fn new(target: SocketAddr, schedule: Vec<Shot>) -> Self {
        let schedule = VecDeque::from(schedule);
        Self { target, schedule, state: SenderState::Closed, sent: 0, replies: Vec::new() }
    }

    /// Number of payloads that were sent.
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// The replies, in order of time.
    pub fn replies(&self) -> &[Arrival] {
        &self.replies
    }

    /// The error that stopped the sender, if the socket could not be opened or failed.
    pub const fn failure(&self) -> Option<ErrorKind> {
        match self.state {
            SenderState::Failed(error) => Some(error),
            SenderState::Closed | SenderState::Opening | SenderState::Sending { .. } => None,
        }
    }

    fn next_shot(&mut self, now: Instant, since: Instant, buf: &mut Vec<u8>) -> Output {
        let Some(shot) = self.schedule.front().copied() else { return Output::Wait(None) };
        if now < since + shot.after {
            return Output::Wait(Some(since + shot.after));
        }
        self.schedule.pop_front();
        buf.extend_from_slice(&self.sent.to_be_bytes());
        buf.resize(shot.payload_len, 0);
        self.sent += 1;
        let transmit = Transmit {
            destination: self.target,
            src_ip: None,
            ecn: None,
            size: shot.payload_len,
            segment_size: None,
        };
        Output::Transmit { socket: SOCKET, transmit }
    }
}

impl Node for SenderHost {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::SocketOpened { result: Ok(_), .. } => {
                self.state = SenderState::Sending { since: now };
            }
            Input::SocketOpened { result: Err(error), .. } => {
                self.state = SenderState::Failed(error.kind);
            }
            Input::SocketFailed { error, .. } => self.state = SenderState::Failed(error),
            Input::Datagram(received) => self.replies.push(Arrival::new(now, received)),
            _ => {}
        }
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        match self.state {
            SenderState::Closed => {
                self.state = SenderState::Opening;
                let kind = SocketKind::Connected(self.target);
                Output::OpenSocket { socket: SOCKET, kind }
            }
            SenderState::Sending { since } => self.next_shot(now, since, buf),
            SenderState::Opening | SenderState::Failed(_) => Output::Wait(None),
        }
    }
}

const fn listen(port: u16) -> SocketKind {
    SocketKind::Listen(SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), port))
}
