//! A proxy that relays correctly, and sends the reports that a test provides.

use std::{collections::VecDeque, net::SocketAddr, time::Instant};

use bytes::Bytes;
use tandem_lab::TestCertificate;
use tandem_node::{
    Input, Node, Output,
    node::{SocketId, SocketKind, Transmit},
};

use crate::{
    h3_bytes::{http_datagram, udp_datagram},
    raw_peer::{Permits, RawPeer},
};

/// The socket towards the origin.
const TO_TARGET: SocketId = SocketId(1);

/// The request stream of the only flow.
const FLOW: u64 = 0;

/// The Context ID of reports.
pub(crate) const REPORTS: u64 = 3;

/// A proxy that relays correctly.
pub(crate) struct RelayingPeer {
    pub(crate) peer: RawPeer,
    target: SocketAddr,
    has_socket: bool,
    to_target: VecDeque<Bytes>,
}

impl RelayingPeer {
    pub(crate) fn new(tls: &TestCertificate, target: SocketAddr) -> Self {
        let permits = Permits { packet: 1332, ..Permits::default() };
        let peer = RawPeer::server(tls, 443, permits);
        Self { peer, target, has_socket: false, to_target: VecDeque::new() }
    }

    /// Sends a report on the flow.
    pub(crate) fn report(&mut self, report: &[u8]) {
        self.peer.datagram(http_datagram(FLOW, REPORTS, report));
    }
}

impl Node for RelayingPeer {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Datagram(received) if received.socket == TO_TARGET => {
                self.peer.datagram(udp_datagram(FLOW, &received.payload));
            }
            Input::SocketOpened { socket: TO_TARGET, result } => drop(result.expect("a socket")),
            other => self.peer.handle(now, other),
        }
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        if !std::mem::replace(&mut self.has_socket, true) {
            let kind = SocketKind::Connected(self.target);
            return Output::OpenSocket { socket: TO_TARGET, kind };
        }
        let output = self.peer.poll(now, buf);
        if !matches!(output, Output::Wait(_)) {
            return output;
        }
        let prefix = udp_datagram(FLOW, b"");
        let came = self.peer.datagrams.drain(..);
        self.to_target.extend(came.filter(|data| data.starts_with(&prefix)).map(|data| {
            // The payload follows the IDs.
            data.slice(prefix.len()..)
        }));
        let Some(payload) = self.to_target.pop_front() else { return output };
        buf.clear();
        buf.extend_from_slice(&payload);
        let size = payload.len();
        let destination = self.target;
        let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
        Output::Transmit { socket: TO_TARGET, transmit }
    }
}
