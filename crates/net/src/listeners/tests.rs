use std::{collections::BTreeSet, io::ErrorKind, net::Ipv4Addr, thread, time::Duration};

use super::*;

const NODES: u8 = 3;

fn open(address: &str, thread_at: usize) -> Listeners {
    let options = SocketOptions::default();
    Listeners::open(address.parse().unwrap(), NODES, thread_at, options).unwrap()
}

/// The number of the node, of those of both processes, that has received a packet, which has this length.
fn received(listeners: &Listeners, len: usize) -> usize {
    socket_that_received(listeners, len) / usize::from(listeners.lanes)
}

/// Which socket of all has received a packet, which has this length.
fn socket_that_received(listeners: &Listeners, len: usize) -> usize {
    for _ in 0..1000 {
        for (index, socket) in listeners.sockets.iter().enumerate() {
            match socket.recv(&mut [0; 1500]) {
                Ok(received) => {
                    assert_eq!(received, len);
                    return index;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("no socket has received the packet");
}

#[test]
fn packets_of_connections_are_steered_by_their_id_and_first_ones_by_their_address() {
    for at in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        let listeners = open(at, 0);
        let address = listeners.local_addr().unwrap();
        let ips = if at == "[::]:0" {
            &["127.0.0.1", "::1"][..]
        } else {
            &[at.rsplit_once(':').unwrap().0]
        };
        for ip in ips.iter().map(|ip| ip.trim_matches(['[', ']'])) {
            let to = SocketAddr::new(ip.parse().unwrap(), address.port());
            let mut chosen = [false; NODES as usize];
            for _ in 0..40 {
                let client = UdpSocket::bind((ip, 0)).unwrap();
                for first in [0, 1, 2, 100, 255_u8] {
                    client.send_to(&[0x40, first, 9, 9], to).unwrap();
                    let expected = usize::from(first % NODES);
                    assert_eq!(received(&listeners, 4), expected, "{ip}, {first}");
                    client.send_to(&[0xe0, 0, 0, 0, 1, 8, first], to).unwrap();
                    assert_eq!(received(&listeners, 7), expected, "Handshake, {ip}, {first}");
                }
                client.send_to(&[0x40], to).unwrap();
                assert_eq!(received(&listeners, 1), 0, "{ip}: a packet without an ID");
                let mut of_client = None;
                for first in [0, 1, 2, 255_u8] {
                    client.send_to(&[0xc0, 0, 0, 0, 1, 8, first], to).unwrap();
                    let index = received(&listeners, 7);
                    assert_eq!(*of_client.get_or_insert(index), index, "{ip}, {first}");
                }
                chosen[of_client.unwrap()] = true;
            }
            assert_eq!(chosen, [true; NODES as usize], "{at}, {ip}: all sockets get handshakes");
        }
    }
}

#[test]
fn a_successor_gets_new_connections_and_the_old_process_those_that_it_has() {
    let old = open("127.0.0.1:0", 0);
    let address = old.local_addr().unwrap();
    let sockets = old.for_successor().unwrap().map(|it| it.try_clone_to_owned().unwrap());
    let new =
        Listeners::adopt(sockets.collect::<Vec<_>>(), (NODES, old.turn().other()), 0).unwrap();
    let indices =
        |it: &Listeners| it.of_this_process().map(|it| it.steering().index()).collect::<Vec<_>>();
    assert_eq!((indices(&old), indices(&new)), (vec![0, 1, 2], vec![0, 1, 2]));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let goes_to = |packet: &[u8]| {
        client.send_to(packet, address).unwrap();
        received(&old, packet.len()) // both have all sockets
    };
    let first = |first| vec![0xc0, 0, 0, 0, 1, 8, first];
    assert!(goes_to(&first(1)) < 3, "the old process gets new connections until it hands over");

    new.take_new_connections(Others::Draining).unwrap();
    for byte in 0..=255_u8 {
        assert_eq!(goes_to(&[0x40, byte, 9]), usize::from(byte % 6));
        assert_eq!(goes_to(&[0xe0, 0, 0, 0, 1, 8, byte]), usize::from(byte % 6), "Handshake");
        assert!(goes_to(&first(byte)) >= 3, "a new connection");
    }

    drop(old);
    new.take_new_connections(Others::None).unwrap();
    for byte in 0..=255_u8 {
        client.send_to(&[0x40, byte, 9], address).unwrap();
        assert_eq!(received(&new, 3), usize::from(3 + byte % 3), "all are for the only process");
    }
}

#[test]
fn another_byte_of_the_id_can_say_the_node() {
    let listeners = open("127.0.0.1:0", 3);
    let address = listeners.local_addr().unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    for node in [1, 2, 0, 5_u8] {
        client.send_to(&[0x40, 7, 8, 9, node], address).unwrap();
        assert_eq!(received(&listeners, 5), usize::from(node % NODES), "{node}");
    }
    client.send_to(&[0x40, 7, 8, 9], address).unwrap();
    assert_eq!(received(&listeners, 4), 0, "the ID ends before the byte");
}

#[test]
fn an_address_has_two_lanes_and_a_connection_has_one() {
    let listeners = open("127.0.0.1:0", 0);
    let address = listeners.local_addr().unwrap();
    let mut of_all = BTreeSet::new();
    for ip in 1..60 {
        let mut of_address = BTreeSet::new();
        for _ in 0..30 {
            let client = UdpSocket::bind((Ipv4Addr::new(127, 0, 3, ip), 0)).unwrap();
            let mut of_connection = BTreeSet::new();
            for packet in [[0x40, 0, 9, 9], [0x40, 1, 9, 9], [0xc0, 0, 0, 0], [0xc0, 1, 1, 1]] {
                client.send_to(&packet, address).unwrap();
                let lanes = usize::from(listeners.lanes);
                of_connection.insert(socket_that_received(&listeners, packet.len()) % lanes);
            }
            assert_eq!(of_connection.len(), 1, "its packets keep their order");
            of_address.append(&mut of_connection);
        }
        assert_eq!(of_address.len(), 2, "127.0.3.{ip}");
        of_all.append(&mut of_address);
    }
    assert_eq!(of_all.len(), usize::from(LANES_MAX));
}

#[test]
fn neighbouring_addresses_use_all_lanes_whatever_the_key_is() {
    let mut listeners = open("127.0.0.1:0", 0);
    let address = listeners.local_addr().unwrap();
    for key in [1, 3, 0x1_0001, 0x4000_0001, 0x8000_0001, u32::MAX] {
        listeners.filter.key = key;
        listeners.take_new_connections(Others::None).unwrap();
        let mut lanes = BTreeSet::new();
        for ip in 1..60 {
            for _ in 0..8 {
                let client = UdpSocket::bind((Ipv4Addr::new(127, 0, 3, ip), 0)).unwrap();
                client.send_to(&[0x40, 0, 9, 9], address).unwrap();
                let socket = socket_that_received(&listeners, 4);
                lanes.insert(socket % usize::from(listeners.lanes));
            }
        }
        assert_eq!(lanes.len(), usize::from(LANES_MAX), "{key:#x}");
    }
}

#[test]
fn many_nodes_have_fewer_lanes_and_all_sockets_can_be_passed_on() {
    for (nodes, lanes) in [(1, 8), (15, 8), (16, 7), (43, 2), (64, 1)] {
        let options = SocketOptions::default();
        let listeners = Listeners::open("127.0.0.1:0".parse().unwrap(), nodes, 0, options).unwrap();
        let all = listeners.for_successor().unwrap().map(|it| it.try_clone_to_owned().unwrap());
        let all = Listeners::adopt(all.collect::<Vec<_>>(), (nodes, Turn::Second), 0).unwrap();
        assert_eq!((listeners.lanes, all.lanes), (lanes, lanes), "{nodes} nodes");
        all.take_new_connections(Others::Draining).unwrap();
        let parts = all.of_this_process().map(|it| it.into_parts().unwrap().0.len());
        assert_eq!(parts.collect::<Vec<_>>(), vec![usize::from(lanes); nodes.into()]);
    }
}

#[test]
fn another_program_cannot_take_part_of_the_packets() {
    let listeners = open("127.0.0.1:0", 0);
    let address = listeners.local_addr().unwrap();
    for nodes in [1, NODES] {
        let error = Listeners::open(address, nodes, 0, SocketOptions::default()).unwrap_err();
        let ClientError::Listen { address: at, error } = error else { panic!("{error}") };
        assert_eq!((at, error.kind), (address, ErrorKind::AddrInUse));
    }
}

#[test]
fn a_successor_needs_all_sockets() {
    let listeners = open("127.0.0.1:0", 0);
    let some = |number| {
        let sockets = listeners.for_successor().unwrap().take(number);
        sockets.map(|it| it.try_clone_to_owned().unwrap()).collect::<Vec<_>>()
    };
    for (number, nodes) in [(47, NODES), (48, 5), (0, 0), (0, NODES)] {
        let adopted = Listeners::adopt(some(number), (nodes, Turn::Second), 0);
        assert_eq!(adopted.unwrap_err().kind(), ErrorKind::InvalidInput, "{number}, {nodes}");
    }
}
