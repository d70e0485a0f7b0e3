//! A host that sends back each payload with an ECN mark.

use std::{collections::VecDeque, time::Instant};

use tandem_node::{
    Input, Node, Output,
    node::{Ecn, Received, SocketId, SocketKind, Transmit},
};

/// The only socket of the host.
const SOCKET: SocketId = SocketId(0);

/// A host that listens at port 7.
#[derive(Debug)]
pub(crate) struct Marker {
    mark: Ecn,
    has_socket: bool,
    to_send: VecDeque<Received>,
    /// The marks of the payloads that arrived.
    pub(crate) marks: Vec<Option<Ecn>>,
}

impl Marker {
    /// Makes a host that puts this mark on the payloads that it sends back.
    pub(crate) fn new(mark: Ecn) -> Self {
        Self { mark, has_socket: false, to_send: VecDeque::new(), marks: Vec::new() }
    }
}

impl Node for Marker {
    fn handle(&mut self, _now: Instant, input: Input) {
        if let Input::Datagram(received) = input {
            self.marks.push(received.ecn);
            self.to_send.push_back(received);
        }
    }

    fn poll(&mut self, _now: Instant, buf: &mut Vec<u8>) -> Output {
        if !std::mem::replace(&mut self.has_socket, true) {
            let kind = SocketKind::Listen(([0, 0, 0, 0], 7).into());
            return Output::OpenSocket { socket: SOCKET, kind };
        }
        let Some(Received { remote, payload, .. }) = self.to_send.pop_front() else {
            return Output::Wait(None);
        };
        buf.extend_from_slice(&payload);
        let transmit = Transmit {
            destination: remote,
            src_ip: None,
            ecn: Some(self.mark),
            size: payload.len(),
            segment_size: None,
        };
        Output::Transmit { socket: SOCKET, transmit }
    }
}
