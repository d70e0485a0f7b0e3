//! Test that a node answers before it gets all that waits on its sockets.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod script;

use std::{
    cell::Cell,
    net::{SocketAddr, UdpSocket},
    time::Instant,
};

use tandem_node::node::{Input, Node, Output, SocketId, SocketKind};

use self::script::{LOOPBACK, Wants, block_on, run, script};

/// The most datagrams in a round, and those of one more system call.
const MOST: u64 = 128 + 32;

/// Counts the datagrams that a node gets before it is asked for outputs.
struct Counting<'a, N> {
    node: N,
    datagrams: u64,
    most: &'a Cell<u64>,
}

impl<N: Node> Node for Counting<'_, N> {
    fn handle(&mut self, now: Instant, input: Input) {
        self.datagrams += u64::from(matches!(input, Input::Datagram(_)));
        self.most.set(self.most.get().max(self.datagrams));
        self.node.handle(now, input);
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        self.datagrams = 0;
        self.node.poll(now, buf)
    }
}

#[test]
fn a_node_answers_before_it_gets_all_that_waits_on_many_sockets() {
    const SOCKETS: u64 = 64;
    const EACH: usize = 20;
    let (mut opened, mut came, most) = (Vec::<SocketAddr>::new(), 0, Cell::new(0));
    let sender = UdpSocket::bind(LOOPBACK).unwrap();
    let node = script(
        |wants| {
            for socket in (0..SOCKETS).map(SocketId) {
                wants.push(Output::OpenSocket { socket, kind: SocketKind::Listen(LOOPBACK) });
            }
        },
        |_now, input, wants: &mut Wants| match input {
            Input::SocketOpened { result, .. } => {
                opened.push(result.unwrap());
                if opened.len() as u64 == SOCKETS {
                    for address in opened.iter().flat_map(|it| vec![it; EACH]) {
                        sender.send_to(b"payload", address).unwrap();
                    }
                }
            }
            Input::Datagram(_) => {
                came += 1;
                if came == opened.len() * EACH {
                    wants.close();
                }
            }
            other => panic!("{other:?}"),
        },
    );
    block_on(run(Counting { node, datagrams: 0, most: &most }));
    assert!(most.get() <= MOST, "{} datagrams at once", most.get());
}
