//! Test that a node learns how busy its thread is.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod script;

use std::net::{SocketAddr, UdpSocket};

use tandem_node::node::{Input, Load, Output, SocketId, SocketKind};

use self::script::{LOOPBACK, Wants, block_on, run, script};

#[test]
fn a_driver_says_that_there_was_no_break_and_then_when_there_is_one() {
    let (mut opened, mut told) = (None::<SocketAddr>, Vec::new());
    let sender = UdpSocket::bind(LOOPBACK).unwrap();
    let kind = SocketKind::Listen(LOOPBACK);
    let mut node = script(
        |wants| wants.push(Output::OpenSocket { socket: SocketId(0), kind }),
        |_now, input, wants: &mut Wants| {
            match input {
                Input::SocketOpened { result, .. } => opened = Some(result.unwrap()),
                Input::Datagram(_) => {}
                Input::Load(load) => told.push(load),
                other => panic!("{other:?}"),
            }
            // There is always another datagram, until the driver has noticed.
            match (told.last(), opened) {
                (None, Some(opened)) => drop(sender.send_to(b"payload", opened).unwrap()),
                (Some(Load::Idle), _) => wants.close(),
                _ => {}
            }
        },
    );
    node.hears_load = true;
    block_on(run(node));
    assert_eq!(told, [Load::Busy, Load::Idle]);
}
