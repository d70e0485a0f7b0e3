//! Tests of the sizes of packets that tunnels carry for local programs.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "an error here fails the test")]

use std::time::Duration;

use tandem_lab::{
    LinkConfig,
    endpoints::{EchoHost, SenderHost, Shot},
};
use tandem_node::{
    Event,
    client::{FlowConfig, ForwardConfig, Oversize, TunnelMode},
};
use tandem_units::ByteCount;

use super::{MS, SECOND, rmdt};
use crate::scenario::{Scenario, Testbed};

/// The lengths of the echoes, in bytes of UDP payload, and the lengths in the client's events about
/// packets that were too large: that of the packet, and the largest that fits.
type Echoes = (Vec<usize>, Vec<(usize, usize)>);

/// Sends payloads of these lengths through a tunnel to an echo server, one every 200 ms, one second
/// after the tunnel began. IP packets on the access link have at most `mtu` bytes.
fn echoes(mode: TunnelMode, oversize: Oversize, mtu: u64, lens: &[usize]) -> Echoes {
    let mut scenario = Scenario { mode, ..Scenario::new(1, 1) };
    scenario.access.mtu = Some(ByteCount::new(mtu));
    scenario.run(|testbed| {
        let Testbed { world, proxies, .. } = testbed;
        let far = LinkConfig { delay: 50 * MS, ..LinkConfig::default() };
        let echo = world.add_host("echo", ["10.0.0.8"], EchoHost::new(7));
        world.connect(proxies[0], echo, far);
        let listen = "10.0.0.1:5000".parse().unwrap();
        let flow = FlowConfig { oversize, ..FlowConfig::new("10.0.0.8", 7) };
        let forward = ForwardConfig { listen, flow };
        testbed.forward(&scenario, vec![forward]);
        let Testbed { world, client, .. } = testbed;
        let times = (0..).map(|number| SECOND + 200 * MS * number);
        let shots = lens.iter().zip(times);
        let shots = shots.map(|(&payload_len, after)| Shot { after, payload_len }).collect();
        let program = world.add_host("program", ["10.0.0.7"], SenderHost::new(listen, shots));
        world.run_for(Duration::from_secs(10));
        let replies =
            world.node(program).replies().iter().map(|reply| reply.payload.len()).collect();
        let events = world.events(*client).iter().filter_map(|(_, event)| match event {
            Event::TooLarge { len, fits, .. } => Some((*len, *fits)),
            _ => None,
        });
        (replies, events.collect())
    })
}

#[test]
fn a_tunnel_on_ethernet_carries_almost_the_whole_packet_in_a_datagram() {
    for (mode, least) in [(TunnelMode::Mdt, 1400), (rmdt(), 1380)] {
        let lens = [1, 1292, least, 1452, 1453, 1200];
        let (echoes, events) = echoes(mode, Oversize::Drop, 1500, &lens);
        assert_eq!(echoes, [1, 1292, least, 1200], "{mode:?}");
        // There is one event for the flow, with the size that fits.
        let [(1452, fits)] = events[..] else { panic!("{mode:?}: {events:?}") };
        assert!((least..1452).contains(&fits), "{mode:?}: {fits}");
        let (largest, events) = self::echoes(mode, Oversize::Drop, 1500, &[fits, fits + 1]);
        assert_eq!(largest, [fits], "{mode:?}");
        assert_eq!(events, [(fits + 1, fits)], "{mode:?}");
    }
}

#[test]
fn a_tunnel_on_a_narrower_path_carries_what_fits() {
    for (mtu, fits) in [(1400, 1280), (1360, 1280), (1250, 1150)] {
        let (echoes, _) = echoes(TunnelMode::Mdt, Oversize::Drop, mtu, &[fits, 1400]);
        assert_eq!(echoes, [fits], "{mtu}");
    }
}

#[test]
fn larger_packets_go_in_capsules_in_both_directions() {
    let lens = [1452, 100, 4000, 9000, 1452, 65_000, 1];
    for mode in [TunnelMode::Mdt, rmdt(), TunnelMode::Mst] {
        for oversize in [Oversize::Auto, Oversize::Capsule] {
            let (mut echoes, events) = echoes(mode, oversize, 1500, &lens);
            if mode == TunnelMode::Mdt {
                // A payload in a datagram may overtake a larger one before it.
                echoes.sort_by_key(|len| lens.iter().position(|it| it == len));
            }
            assert_eq!(echoes.len(), lens.len(), "{mode:?}, {oversize}: {echoes:?}");
            assert_eq!(events, [], "{mode:?}, {oversize}");
        }
    }
}
