//! UDP payloads at a constant rate.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tandem_node::{
    Input, Node, Output,
    node::{SocketKind, Transmit},
};

use super::{SOCKET, listen};

/// The parameters of a sender with a constant rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The time from one payload to the next, which must be above zero.
    pub interval: Duration,
    /// The time for which payloads are sent.
    pub duration: Duration,
    /// Length of each UDP payload in bytes, at least 8.
    pub payload_len: usize,
}

/// Sends UDP payloads at a constant rate and does not retransmit. It sends either to a given
/// address from the start, or to the first host that sends it a payload, from that time on.
#[derive(Debug)]
pub struct PacedSender {
    pace: Pace,
    to_open: Option<SocketKind>,
    target: Option<SocketAddr>,
    started: Option<Instant>,
    sent: u64,
}

impl PacedSender {
    /// Makes a sender to this address.
    pub const fn new(target: SocketAddr, pace: Pace) -> Self {
        let to_open = Some(SocketKind::ForPeer(target));
        Self { pace, to_open, target: Some(target), started: None, sent: 0 }
    }

    /// Makes a sender to the first host that sends a payload to this port.
    pub const fn on_request(port: u16, pace: Pace) -> Self {
        Self { pace, to_open: Some(listen(port)), target: None, started: None, sent: 0 }
    }

    /// Number of payloads that were sent.
    pub const fn sent(&self) -> u64 {
        self.sent
    }
}

impl Node for PacedSender {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::SocketOpened { result: Ok(_), .. } if self.target.is_some() => {
                self.started = Some(now);
            }
            Input::Datagram(received) if self.target.is_none() => {
                self.target = Some(received.remote);
                self.started = Some(now);
            }
            _ => {}
        }
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        if let Some(kind) = self.to_open.take() {
            return Output::OpenSocket { socket: SOCKET, kind };
        }
        let (Some(started), Some(destination)) = (self.started, self.target) else {
            return Output::Wait(None);
        };
        let number = u32::try_from(self.sent).unwrap_or(u32::MAX);
        let after = self.pace.interval.saturating_mul(number);
        if after >= self.pace.duration {
            return Output::Wait(None);
        }
        if now < started + after {
            return Output::Wait(Some(started + after));
        }
        // The number at the end of the payload identifies it at its destination.
        let number_bytes = self.sent.to_be_bytes();
        buf.resize(self.pace.payload_len.saturating_sub(number_bytes.len()), 0);
        buf.extend_from_slice(&number_bytes);
        self.sent += 1;
        let size = buf.len();
        let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
        Output::Transmit { socket: SOCKET, transmit }
    }
}

/// Counts the payloads that arrive. It can also ask a [`PacedSender`] to begin, and then repeats
/// the request until the first payload arrives.
#[derive(Debug)]
pub struct PacedReceiver {
    to_open: Option<SocketKind>,
    /// The sender to ask, and the time of the next request.
    sender: Option<(SocketAddr, Option<Instant>)>,
    packets: u64,
    bytes: u64,
}

impl PacedReceiver {
    /// The time after which the request is repeated.
    const RETRY_INTERVAL: Duration = Duration::from_millis(500);

    /// Makes a receiver that counts the payloads that arrive at a port.
    pub const fn listening(port: u16) -> Self {
        Self { to_open: Some(listen(port)), sender: None, packets: 0, bytes: 0 }
    }

    /// Makes a receiver that asks this sender to begin.
    pub const fn asking(sender: SocketAddr) -> Self {
        let to_open = Some(SocketKind::Connected(sender));
        Self { to_open, sender: Some((sender, None)), packets: 0, bytes: 0 }
    }

    /// Number of payloads that arrived.
    pub const fn packets(&self) -> u64 {
        self.packets
    }

    /// Total length of the payloads in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Node for PacedReceiver {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::SocketOpened { result: Ok(_), .. } => {
                if let Some((_, ask)) = &mut self.sender {
                    *ask = Some(now);
                }
            }
            Input::Datagram(received) => {
                self.packets += 1;
                self.bytes += received.payload.len() as u64;
                self.sender = None;
            }
            _ => {}
        }
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        if let Some(kind) = self.to_open.take() {
            return Output::OpenSocket { socket: SOCKET, kind };
        }
        let Some((destination, Some(ask))) = &mut self.sender else { return Output::Wait(None) };
        if now < *ask {
            return Output::Wait(Some(*ask));
        }
        *ask = now + Self::RETRY_INTERVAL;
        buf.extend_from_slice(b"begin");
        let destination = *destination;
        let size = buf.len();
        let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
        Output::Transmit { socket: SOCKET, transmit }
    }
}
