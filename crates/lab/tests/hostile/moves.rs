//! Tests of clients that appear at another address while their packets travel beside the connection.

use bytes::Bytes;

use crate::{
    bed::{ELSEWHERE, Serving},
    beside::{CID, Forwarding, Sealing, packet},
};

/// A flow that forwards both ways, with its virtual IDs towards the target and the client.
fn both_ways() -> (Forwarding, [tandem_wire::ConnectionId; 2]) {
    let mut flow = Forwarding::new();
    let to_target = flow.register_target(&CID);
    let to_client = flow.register_client(&CID);
    flow.acknowledge(&CID, to_client);
    flow.forward(&packet(0x40), &to_target);
    assert_eq!(flow.forwarded_back(&to_client), [packet(0x40)]);
    (flow, [to_target, to_client])
}

/// The target sends packets of the connection in the flow.
fn send_from_target(flow: &mut Forwarding, count: usize) {
    let target = flow.bed.target;
    let packets = std::iter::repeat_n(Bytes::from(packet(0x41)), count);
    flow.bed.world.node_mut(target).send(packets);
    flow.bed.run();
}

#[test]
fn nothing_is_forwarded_to_an_address_that_is_not_validated() {
    let (mut flow, [_, to_client]) = both_ways();
    let stream = flow.stream;
    flow.bed.peer().appear_at(ELSEWHERE);
    flow.bed.peer().elsewhere.as_mut().unwrap().hears = false;
    flow.bed.echo(stream, b"from there");
    send_from_target(&mut flow, 1000);
    assert_eq!(flow.forwarded_back(&to_client).len(), 1, "only the packet before");
    let elsewhere = flow.bed.seen().elsewhere.unwrap();
    // RFC 9000 §8.2.1: the probe of an address has 1200 bytes. The engine sends it even if that is more
    // than three times what came from there.
    assert_eq!(elsewhere.came, 1200, "the only packet is a probe: {elsewhere:?}");
    // The client answers the probes, and its packets are forwarded there.
    flow.bed.peer().elsewhere.as_mut().unwrap().hears = true;
    for _ in 0..10 {
        flow.bed.echo(stream, b"still there?");
    }
    send_from_target(&mut flow, 7);
    assert_eq!(flow.forwarded_back(&to_client).len(), 1 + 7);
    flow.bed.assert_serves("another address");
}

#[test]
fn all_ids_are_forgotten_when_a_client_migrates_on_purpose() {
    let (mut flow, [to_target, to_client]) = both_ways();
    let (now, stream) = (flow.bed.world.now(), flow.stream);
    flow.bed.peer().migrate(now, ELSEWHERE);
    assert_eq!(flow.bed.echo(stream, b"from there"), [b"from there"]);
    assert_eq!(flow.forward(&packet(0x42), &to_target), Vec::<Bytes>::new());
    flow.bed.peer().datagrams.clear();
    send_from_target(&mut flow, 3);
    assert_eq!(flow.forwarded_back(&to_client).len(), 1, "only the packet before");
    assert_eq!(flow.bed.echoed(stream), vec![packet(0x41); 3], "they come in the tunnel");
    // The client may register its IDs again, and gets other virtual ones.
    let again = [flow.register_target(&CID), flow.register_client(&CID)];
    assert!(again.iter().all(|id| ![to_target, to_client].contains(id)));
    flow.acknowledge(&CID, again[1]);
    assert_eq!(flow.forward(&packet(0x43), &again[0]), [packet(0x43)]);
    assert_eq!(flow.forwarded_back(&again[1]), [packet(0x43)]);
    flow.bed.assert_serves("migration");
}

#[test]
fn sealed_packets_end_when_a_client_migrates_on_purpose() {
    let mut flow = Sealing::new();
    let (now, stream) = (flow.bed.world.now(), flow.stream);
    let sealed = flow.sealed(b"before");
    assert_eq!(flow.send(sealed).len(), 1);
    flow.opened();
    flow.bed.peer().migrate(now, ELSEWHERE);
    assert_eq!(flow.bed.echo(stream, b"from there"), [b"from there"]);
    let sealed = flow.sealed(b"after");
    assert_eq!(flow.send(sealed), Vec::<Bytes>::new());
    assert_eq!(flow.opened(), [[0_u8; 0]; 0]);
    flow.bed.assert_serves("migration");
}
