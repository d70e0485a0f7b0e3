//! Local programs whose packets a client carries, and the targets that answer them.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tandem_lab::{
    Handle, World,
    endpoints::{SenderHost, Shot},
};
use tandem_node::{
    Event, Input, Node, Output,
    client::{FlowConfig, ForwardConfig, Urgency},
    node::{SocketId, SocketKind, Transmit},
};

use crate::scenario::{Scenario, Testbed};

/// The port at which every target listens.
pub(crate) const TARGET_PORT: u16 = 7;

/// The only socket of a target.
const SOCKET: SocketId = SocketId(0);

/// Sends payloads at a steady rate to the host that sent the first payload to it.
pub(crate) struct Streamer {
    to_open: Option<SocketKind>,
    interval: Duration,
    payload_len: usize,
    /// The destination, and the time of the first payload.
    peer: Option<(SocketAddr, Instant)>,
    pub(crate) sent: u64,
}

impl Streamer {
    pub(crate) fn new(interval: Duration, payload_len: usize) -> Self {
        let listen = SocketAddr::from(([0, 0, 0, 0], TARGET_PORT));
        let to_open = Some(SocketKind::Listen(listen));
        Self { to_open, interval, payload_len, peer: None, sent: 0 }
    }
}

impl Node for Streamer {
    fn handle(&mut self, now: Instant, input: Input) {
        if let Input::Datagram(received) = input {
            self.peer.get_or_insert((received.remote, now));
        }
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        if let Some(kind) = self.to_open.take() {
            return Output::OpenSocket { socket: SOCKET, kind };
        }
        let Some((destination, since)) = self.peer else { return Output::Wait(None) };
        let due = since + self.interval * u32::try_from(self.sent).unwrap();
        if now < due {
            return Output::Wait(Some(due));
        }
        buf.extend_from_slice(&self.sent.to_be_bytes());
        buf.resize(self.payload_len, 0);
        self.sent += 1;
        let size = self.payload_len;
        let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
        Output::Transmit { socket: SOCKET, transmit }
    }
}

/// The address at which the client listens for the programs of a target. Targets count from 0.
pub(crate) fn listener(target: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 5000 + target))
}

/// Makes the client carry the packets of programs to these targets, and waits until it does.
pub(crate) fn forward(scenario: &Scenario, testbed: &mut Testbed, targets: &[&str]) {
    let targets: Vec<_> = targets.iter().map(|host| (*host, Share::default())).collect();
    forward_by_share(scenario, testbed, &targets);
}

/// The share of a flow in a tunnel that several flows use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) urgency: Urgency,
    pub(crate) weight: u8,
}

impl Default for Share {
    fn default() -> Self {
        Self { urgency: Urgency::default(), weight: 1 }
    }
}

/// Makes the client carry the packets of programs to these targets, with a share for each target.
pub(crate) fn forward_by_share(
    scenario: &Scenario,
    testbed: &mut Testbed,
    targets: &[(&str, Share)],
) {
    let configs = targets.iter().zip(0..).map(|((host, share), number)| ForwardConfig {
        listen: listener(number),
        flow: FlowConfig {
            urgency: share.urgency,
            weight: share.weight,
            ..FlowConfig::new(*host, TARGET_PORT)
        },
    });
    testbed.forward(scenario, configs.collect());
}

/// Starts a program that sends to a target, counted from 0.
pub(crate) fn program(
    testbed: &mut Testbed,
    ip: &str,
    target: u16,
    shots: Vec<Shot>,
) -> Handle<SenderHost> {
    let program = SenderHost::new(listener(target), shots);
    testbed.world.add_host(&format!("program {ip}"), [ip], program)
}

/// The numbers of the payloads that came back to a program, in that order.
pub(crate) fn numbers(world: &World, program: Handle<SenderHost>) -> Vec<u64> {
    let number =
        |payload: &[u8]| payload.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    world.node(program).replies().iter().map(|reply| number(&reply.payload)).collect()
}

/// The errors of the hops that the client lost.
pub(crate) fn lost_hops(testbed: &Testbed) -> Vec<String> {
    let lost = testbed.world.events(testbed.client).iter().filter_map(|(_, event)| match event {
        Event::HopLost { error, .. } => Some(error.to_string()),
        _ => None,
    });
    lost.collect()
}
