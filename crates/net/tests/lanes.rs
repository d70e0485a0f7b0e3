//! Test that a flood at a server's address fills only queues of its own.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![cfg(target_os = "linux")]

mod script;

use std::net::{Ipv4Addr, UdpSocket};

use tandem_net::{DriverOptions, Finished, Listeners, SocketOptions};
use tandem_node::node::{Input, Output, SocketId, SocketKind};

use self::script::{LOOPBACK, Wants, block_on, script};

#[test]
fn packets_of_others_arrive_while_a_flood_overflows_its_own_queue() {
    const OTHERS: u8 = 32;
    let options = SocketOptions { buffer_bytes: 64 << 10, ..SocketOptions::default() };
    let listeners = Listeners::open(LOOPBACK, 1, 0, options).unwrap();
    let address = listeners.local_addr().unwrap();
    let listener = listeners.of_this_process().next();

    // The sockets are not read yet, so that the flood overflows its own.
    let flooder = UdpSocket::bind(LOOPBACK).unwrap();
    for _ in 0..2000 {
        flooder.send_to(&[0; 1000], address).unwrap();
    }
    for other in 1..=OTHERS {
        let client = UdpSocket::bind((Ipv4Addr::new(127, 0, 4, other), 0)).unwrap();
        client.send_to(&[0x40, 0, other], address).unwrap();
    }
    flooder.send_to(b"last", address).unwrap();

    let (mut flood, mut arrived) = (0, Vec::new());
    let node = script(
        |wants| {
            let kind = SocketKind::Listen(LOOPBACK);
            wants.push(Output::OpenSocket { socket: SocketId(0), kind });
        },
        |now, input, wants: &mut Wants| match input {
            Input::Datagram(received) if received.payload.len() == 3 => {
                arrived.extend(received.payload.last().copied());
            }
            Input::Datagram(_) => flood += 1,
            // Everything that has arrived is received in much less time.
            Input::SocketOpened { .. } => {
                wants.deadline = Some(now + std::time::Duration::from_millis(300));
            }
            Input::Timeout => wants.close(),
            other => panic!("{other:?}"),
        },
    );
    let options = DriverOptions { listener, ..DriverOptions::default() };
    let never = std::future::pending::<()>();
    let Finished { stats, result, .. } = block_on(tandem_net::run(node, &mut (), options, never));
    result.unwrap();
    assert!((1..2000).contains(&flood), "{flood} packets of the flood were not lost");
    // Each is in the flood's lane with a chance of 1 in 8.
    assert!(arrived.len() > usize::from(OTHERS) / 2, "only these arrived: {arrived:?}");
    arrived.dedup();
    assert_eq!(stats.datagrams_received, flood + arrived.len() as u64, "each once");
}
