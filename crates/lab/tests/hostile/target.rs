//! Hosts that send plain UDP: the target behind the proxy, and a host that sends invalid packets.

use std::{collections::VecDeque, net::SocketAddr, time::Instant};

use bytes::Bytes;
use tandem_node::{
    Input, Node, Output,
    node::{SocketId, SocketKind, Transmit},
};

/// The only socket of each host.
const SOCKET: SocketId = SocketId(0);

/// A target that listens at port 7.
#[derive(Debug, Default)]
pub(crate) struct Target {
    has_socket: bool,
    to_send: VecDeque<(SocketAddr, Bytes)>,
    /// The source of the last packet.
    last: Option<SocketAddr>,
    /// The payloads that came.
    pub(crate) came: Vec<Bytes>,
}

impl Target {
    /// Sends these payloads to the source of the last packet.
    pub(crate) fn send(&mut self, payloads: impl IntoIterator<Item = Bytes>) {
        let last = self.last.expect("a packet came before");
        self.to_send.extend(payloads.into_iter().map(|payload| (last, payload)));
    }
}

/// Sends UDP payloads to one address, and ignores the answers.
#[derive(Debug)]
pub(crate) struct Sprayer {
    to: SocketAddr,
    has_socket: bool,
    payloads: VecDeque<Bytes>,
    /// Number of bytes that came back.
    pub(crate) came: usize,
}

impl Sprayer {
    pub(crate) fn new(to: SocketAddr) -> Self {
        Self { to, has_socket: false, payloads: VecDeque::new(), came: 0 }
    }

    pub(crate) fn spray(&mut self, payload: impl Into<Bytes>) {
        self.payloads.push_back(payload.into());
    }
}

impl Node for Sprayer {
    fn handle(&mut self, _now: Instant, input: Input) {
        if let Input::Datagram(received) = input {
            self.came += received.payload.len();
        }
    }

    fn poll(&mut self, _now: Instant, buf: &mut Vec<u8>) -> Output {
        if !std::mem::replace(&mut self.has_socket, true) {
            let kind = SocketKind::ForPeer(self.to);
            return Output::OpenSocket { socket: SOCKET, kind };
        }
        let Some(payload) = self.payloads.pop_front() else { return Output::Wait(None) };
        transmit(self.to, &payload, buf)
    }
}

fn transmit(destination: SocketAddr, payload: &[u8], buf: &mut Vec<u8>) -> Output {
    buf.extend_from_slice(payload);
    let size = payload.len();
    let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
    Output::Transmit { socket: SOCKET, transmit }
}

impl Node for Target {
    fn handle(&mut self, _now: Instant, input: Input) {
        if let Input::Datagram(received) = input {
            let payload = received.payload.freeze();
            self.came.push(payload.clone());
            self.last = Some(received.remote);
            self.to_send.push_back((received.remote, payload));
        }
    }

    fn poll(&mut self, _now: Instant, buf: &mut Vec<u8>) -> Output {
        if !std::mem::replace(&mut self.has_socket, true) {
            let kind = SocketKind::Listen(([0, 0, 0, 0], 7).into());
            return Output::OpenSocket { socket: SOCKET, kind };
        }
        let Some((destination, payload)) = self.to_send.pop_front() else {
            return Output::Wait(None);
        };
        transmit(destination, &payload, buf)
    }
}
