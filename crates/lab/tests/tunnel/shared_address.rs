//! Several proxies at one address, and packets that reach the wrong one: another thread, process or machine.

#![expect(clippy::unwrap_used, reason = "an error here fails the test")]

use std::{ops::Range, time::Duration};

use tandem_lab::{
    Contents, FileSet, Handle, LinkConfig, NameAnswer, Seed, World,
    endpoints::{Owner, SharedAddress},
};
use tandem_node::{
    Event, Proxy,
    client::{Repair, TunnelMode},
    quic::{
        Fleet, FleetSecret, Generation, Neighbours, OtherProcess, ResetSecret, Steering, Transport,
        Turn,
    },
};
use tandem_units::ByteCount;
use tandem_wire::{Order, RoutableIds};

use crate::scenario::{Scenario, certificate};

/// Nodes at one address.
struct Arrangement {
    what: &'static str,
    nodes: Vec<Transport>,
    owner: fn(&[u8]) -> Option<usize>,
    /// Which nodes get new connections.
    new: Range<usize>,
}

fn steered(index: u8, nodes: u8, turn: Turn, transport: Transport) -> Transport {
    Transport { steering: Steering::new(index, nodes, turn).unwrap(), ..transport }
}

fn alone() -> Transport {
    Transport { reset_secret: Some(ResetSecret([7; 32])), ..Transport::default() }
}

fn shared() -> Transport {
    let other_process = OtherProcess::default();
    other_process.set(true);
    Transport { other_process, ..alone() }
}

fn machine(server_id: u8) -> Transport {
    let ids = RoutableIds::new(0, 1, 8, None).unwrap();
    let generation = Generation { ids, secret: FleetSecret([9; 32]) };
    let fleet = Fleet::new(vec![server_id], vec![generation]).unwrap();
    let other = (vec![1 - server_id], "10.0.0.77:443".parse().unwrap());
    let fleet = Some(fleet.with_neighbours(Neighbours::new([other])));
    Transport { fleet, ..Transport::default() }
}

/// The byte of a connection ID at which a server receives packets, counted from 0.
fn byte(packet: &[u8], at: usize) -> Option<usize> {
    let id_at = match packet.first()? {
        0..0x80 => 1,
        first if first & 0x30 == 0x20 => 6, // a Handshake packet
        _ => return None,
    };
    packet.get(id_at + at).copied().map(usize::from)
}

fn arrangements() -> [Arrangement; 4] {
    let thread = |index| steered(index, 2, Turn::First, alone());
    let process = |turn| steered(0, 1, turn, shared());
    let takes_over = |index, turn| steered(index, 2, turn, shared());
    [
        Arrangement {
            what: "two threads",
            nodes: vec![thread(0), thread(1)],
            owner: |packet| byte(packet, 0).map(|it| it % 2),
            new: 0..2,
        },
        Arrangement {
            what: "a process that takes over",
            nodes: vec![process(Turn::First), process(Turn::Second)],
            owner: |packet| byte(packet, 0).map(|it| it % 2),
            new: 1..2,
        },
        Arrangement {
            what: "a process with two threads, from which another takes over",
            nodes: vec![
                takes_over(0, Turn::First),
                takes_over(1, Turn::First),
                takes_over(0, Turn::Second),
                takes_over(1, Turn::Second),
            ],
            owner: |packet| byte(packet, 0).map(|it| it % 4),
            new: 0..2,
        },
        Arrangement {
            what: "two machines",
            nodes: vec![machine(0), machine(1)],
            owner: |packet| byte(packet, 1),
            new: 0..2,
        },
    ]
}

/// A download through such proxies. Returns how many packets reached a wrong one.
fn download(scenario: &Scenario, arrangement: &Arrangement) -> u64 {
    let tls = certificate();
    let mut world = World::new(Seed(scenario.seed.0));
    let client = world.add_host("client", ["10.0.0.1"], scenario.client(Scenario::fetch()));
    let origin = world.add_host("origin", ["10.0.0.9"], scenario.origin(&tls));
    let nodes = arrangement.nodes.iter().zip(1..);
    let nodes = nodes.map(|(own, number)| scenario.proxy_with(&tls, number, own.clone()));
    let owner: Owner = Box::new(arrangement.owner);
    let shared = SharedAddress::new(nodes, owner, arrangement.new.clone());
    let proxy: Handle<SharedAddress<Proxy>> = world.add_host("proxy", ["10.0.0.2"], shared);
    for (name, ip) in [("proxy1.test", "10.0.0.2"), ("origin.test", "10.0.0.9")] {
        world.set_name(name, NameAnswer::After(Duration::ZERO, Ok(vec![ip.parse().unwrap()])));
    }
    let link = || LinkConfig { delay: Duration::from_millis(10), ..LinkConfig::default() };
    world.connect(client, proxy, link());
    world.connect(proxy, origin, link());
    let contents = Contents::Generated { len: scenario.file, seed: Seed(1) };
    world.set_files(origin, FileSet::new().with("file", contents.clone()));
    let ended = |world: &World| matches!(world.events(client), [.., (_, Event::Closed(_))]);
    assert!(world.run_until(Duration::from_secs(60), ended), "{}", arrangement.what);
    let (what, mode) = (arrangement.what, scenario.mode);
    let events = world.events(client);
    let lost = events.iter().find(|(_, event)| matches!(event, Event::HopLost { .. }));
    assert!(lost.is_none(), "{what}, {mode:?}: {lost:?}");
    assert!(matches!(events, [.., (_, Event::Closed(Ok(())))]), "{what}, {mode:?}");
    assert_eq!(world.body(client).sha256(), contents.sha256(), "{what}, {mode:?}");
    let shared = world.node_mut(proxy);
    let counted = |it: &mut Proxy| it.stats().unusable_packets.for_another;
    let counted: u64 = shared.nodes_mut().map(counted).sum();
    assert_eq!(counted, shared.strays(), "{what}, {mode:?}");
    counted
}

#[test]
fn a_node_that_gets_the_packets_of_others_ends_no_tunnel() {
    for arrangement in arrangements() {
        for mode in [
            TunnelMode::Mdt,
            TunnelMode::Forward,
            TunnelMode::Uack { both_ways: true },
            TunnelMode::Mst,
            TunnelMode::Msgt(4),
            TunnelMode::Rmdt(Repair::default()),
            TunnelMode::Tecc(Repair { order: Order::Window, ..Repair::default() }),
        ] {
            for seed in 1..=2 {
                let file = ByteCount::new(300_000);
                let scenario = Scenario { file, mode, ..Scenario::new(seed, 1) };
                let strays = download(&scenario, &arrangement);
                assert!(strays > 20, "{}: {strays} packets went astray", arrangement.what);
            }
        }
    }
}
