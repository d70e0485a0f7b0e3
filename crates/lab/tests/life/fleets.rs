//! Machines of a fleet behind a load balancer, one of which dies.

use std::time::Duration;

use tandem_node::{
    Event, Proxy,
    client::{Repair, TunnelMode},
    quic::{
        DatagramTransport::{Quic, Sealed},
        Fleet, FleetSecret, Generation, Neighbours, Transport,
    },
};
use tandem_units::ByteCount;
use tandem_wire::{Order, RoutableIds};

use crate::{
    MS,
    scenario::{Scenario, certificate},
};

/// A machine with this number, and what it knows of the other one, whose number is 1 or 0.
fn machine(scenario: &Scenario, number: u8) -> (Proxy, Neighbours) {
    let ids = RoutableIds::new(0, 1, 8, None).unwrap();
    let generation = Generation { ids, secret: FleetSecret([9; 32]) };
    let neighbours = Neighbours::new([(vec![1 - number], "10.0.0.77:443".parse().unwrap())]);
    let fleet = Fleet::new(vec![number], vec![generation]).unwrap();
    let fleet = Some(fleet.with_neighbours(neighbours.clone()));
    let own = Transport { fleet, ..Transport::default() };
    (scenario.proxy_with(&certificate(), 1 + usize::from(number), own), neighbours)
}

/// Lets a machine die in the middle of a download. Another one gets its packets, and learns after this time that it is
/// gone. Returns how long the client then waits for a new tunnel.
fn wait_for_tunnel(scenario: &Scenario, until_known: Duration) -> Duration {
    scenario.run(|testbed| {
        let (first, _) = machine(scenario, 0);
        testbed.world.replace(testbed.proxies[0], first);
        testbed.run_until_fetched(ByteCount::new(scenario.file.get() / 4));
        let (second, neighbours) = machine(scenario, 1);
        testbed.world.replace(testbed.proxies[0], second);
        testbed.world.run_for(until_known);
        neighbours.set_gone(0, true);
        let known = testbed.world.elapsed();
        let is_new =
            |(at, event): &&(Duration, Event)| *at > known && matches!(event, Event::HopUp { .. });
        let outcome = testbed.finish();
        assert_eq!(outcome.report().bytes, scenario.file.get());
        assert_eq!(outcome.report().connections[0].datagrams, scenario.datagrams[0]);
        let events = testbed.world.events(testbed.client);
        let (built, _) = events.iter().find(is_new).expect("the tunnel is built again");
        built.saturating_sub(known)
    })
}

#[test]
fn clients_are_reset_when_their_machine_is_known_to_be_gone_and_not_when_they_next_send() {
    let tecc = TunnelMode::Tecc(Repair { order: Order::Window, ..Repair::default() });
    for (mode, datagrams) in [
        (TunnelMode::Mdt, [Quic; 2]),
        (TunnelMode::Mdt, [Sealed; 2]),
        (TunnelMode::Mst, [Quic; 2]),
        (TunnelMode::Rmdt(Repair::default()), [Quic; 2]),
        (TunnelMode::Rmdt(Repair::default()), [Sealed; 2]),
        (tecc, [Sealed; 2]),
    ] {
        for until_known in [700, 800, 900, 1000, 1500, 2000] {
            let scenario = Scenario { mode, datagrams, ..Scenario::new(1, 1) };
            let waited = wait_for_tunnel(&scenario, MS * until_known);
            // Half a round trip until the client gets the reset, and two for its new tunnel take 100 ms together. The
            // machine looks every 50 ms.
            assert!(waited <= 200 * MS, "{mode:?}, {datagrams:?}, {until_known} ms: {waited:?}");
        }
    }
}
