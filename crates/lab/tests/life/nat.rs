//! A router with network address translation (NAT): it hides a client behind an address of its own,
//! and may choose another address at any time.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use bytes::BytesMut;
use tandem_lab::Handle;
use tandem_node::{
    Input, Node, Output,
    node::{Received, SocketId, SocketKind, Transmit},
};

use crate::scenario::{Scenario, Testbed};

/// The client sends to this address instead of the first proxy's.
const INSIDE: &str = "10.0.0.20";

/// The address that the first proxy sees at first.
const OUTSIDE: &str = "10.0.0.21";

/// The address that it sees after the client has moved to another network.
pub(crate) const ELSEWHERE: &str = "10.0.0.22";

/// The socket towards the client.
const CLIENT_SIDE: SocketId = SocketId(0);

/// Passes packets between one client and one server.
pub(crate) struct Nat {
    server: SocketAddr,
    client: Option<SocketAddr>,
    /// The socket towards the server.
    outside: SocketId,
    outputs: VecDeque<Output>,
    packets: VecDeque<(SocketId, SocketAddr, BytesMut)>,
}

impl Nat {
    fn new(server: SocketAddr) -> Self {
        let inside = SocketAddr::new(address(INSIDE), server.port());
        let open = Output::OpenSocket { socket: CLIENT_SIDE, kind: SocketKind::Listen(inside) };
        let mut nat = Self {
            server,
            client: None,
            outside: CLIENT_SIDE,
            outputs: VecDeque::from([open]),
            packets: VecDeque::new(),
        };
        nat.open_outside(OUTSIDE);
        nat
    }

    /// Puts a router in front of a client.
    pub(crate) fn add(scenario: &Scenario, testbed: &mut Testbed) -> Handle<Self> {
        let nat = Self::new("10.0.0.2:443".parse().unwrap());
        let Testbed { world, client, .. } = testbed;
        let nat = world.add_host("nat", [INSIDE, OUTSIDE, ELSEWHERE], nat);
        world.connect(*client, nat, scenario.access.clone());
        let answer = Ok(vec![address(INSIDE)]);
        let answer = tandem_lab::NameAnswer::After(std::time::Duration::ZERO, answer);
        world.set_name("proxy1.test", answer);
        nat
    }

    /// Changes the outside address or port that the server sees. Packets to the old one are
    /// refused.
    pub(crate) fn rebind(&mut self, outside: &str) {
        self.outputs.push_back(Output::CloseSocket(self.outside));
        self.packets.retain(|(socket, ..)| *socket != self.outside);
        self.open_outside(outside);
    }

    pub(crate) fn rebind_port(&mut self) {
        self.rebind(OUTSIDE);
    }

    fn open_outside(&mut self, ip: &str) {
        self.outside = SocketId(self.outside.0 + 1);
        let kind = SocketKind::Listen(SocketAddr::new(address(ip), 0));
        self.outputs.push_back(Output::OpenSocket { socket: self.outside, kind });
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl Node for Nat {
    fn handle(&mut self, _now: Instant, input: Input) {
        let Input::Datagram(Received { socket, remote, payload, .. }) = input else { return };
        if socket == CLIENT_SIDE {
            self.client = Some(remote);
            self.packets.push_back((self.outside, self.server, payload));
        } else if let Some(client) = self.client {
            self.packets.push_back((CLIENT_SIDE, client, payload));
        }
    }

    fn poll(&mut self, _now: Instant, buf: &mut Vec<u8>) -> Output {
        if let Some(output) = self.outputs.pop_front() {
            return output;
        }
        let Some((socket, destination, payload)) = self.packets.pop_front() else {
            return Output::Wait(None);
        };
        buf.extend_from_slice(&payload);
        let size = payload.len();
        let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
        Output::Transmit { socket, transmit }
    }
}
