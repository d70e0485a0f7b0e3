//! How connections share a tunnel with each other and with UDP flows.

use tandem_lab::{
    LinkConfig,
    endpoints::{Behaviour, Pace, PacedReceiver, PacedSender},
};
use tandem_node::{
    client::ForwardConfig,
    quic::DatagramTransport::{Quic, Sealed},
};
use tandem_units::{ByteCount, Rate};

use crate::{
    bed::{MS, PORT, SECOND, Target, program, serve, serve_beside, server_report, task},
    scenario::{Scenario, Testbed},
};

const BULK: u64 = 100_000_000;

/// Two programs upload for ten seconds to targets with these shares. Returns the bytes that came.
fn upload(scenario: &Scenario, testbed: &mut Testbed, shares: [(&str, u8); 2]) -> [u64; 2] {
    let targets = shares.map(|(urgency, weight)| Target {
        urgency: urgency.parse().unwrap(),
        weight,
        ..Behaviour::Sink.into()
    });
    let servers = serve(scenario, testbed, &targets);
    for (number, target) in [(1, 0), (2, 1)] {
        program(testbed, number, vec![task(target, BULK)]);
    }
    testbed.world.run_for(10 * SECOND);
    [0, 1].map(|number: usize| server_report(testbed, servers[number]).received)
}

#[test]
fn two_connections_share_a_tunnel_evenly() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let [first, second] = upload(&scenario, testbed, [("u=3", 1), ("u=3", 1)]);
        assert!(first.abs_diff(second) * 10 <= first, "{first}, {second}");
        assert!(first + second > 10_000_000, "{first}, {second}");
        testbed.world.trace().digest()
    });
}

#[test]
fn two_connections_share_a_tunnel_by_their_weights() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let [first, second] = upload(&scenario, testbed, [("u=3", 1), ("u=3", 3)]);
        assert!((3 * first).abs_diff(second) * 5 <= second, "{first}, {second}");
        assert!(first + second > 10_000_000, "{first}, {second}");
        testbed.world.trace().digest()
    });
}

#[test]
fn an_urgent_connection_precedes_all_others() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let [normal, urgent] = upload(&scenario, testbed, [("u=4", 1), ("u=1", 1)]);
        assert!(normal * 20 < urgent, "{normal}, {urgent}");
        assert!(urgent > 10_000_000, "{normal}, {urgent}");
        testbed.world.trace().digest()
    });
}

#[test]
fn a_modest_udp_flow_beside_a_bulk_upload_loses_nothing_and_waits_little() {
    for datagrams in [[Quic; 2], [Sealed; 2]] {
        loses_nothing_and_waits_little(&Scenario { datagrams, ..Scenario::new(1, 1) });
    }
}

fn loses_nothing_and_waits_little(scenario: &Scenario) {
    scenario.run(|testbed| {
        let sink = PacedReceiver::listening(PORT);
        let sink = testbed.world.add_host("UDP sink", ["10.0.0.8"], sink);
        testbed.world.connect(testbed.proxies[0], sink, LinkConfig::default());
        let udp = ForwardConfig::new("10.0.0.1:5000".parse().unwrap(), "10.0.0.8", PORT);
        let servers = serve_beside(scenario, testbed, &[Behaviour::Sink.into()], vec![udp]);
        program(testbed, 1, vec![task(0, BULK)]);
        testbed.world.run_for(2 * SECOND);
        let pace = Pace { interval: 10 * MS, duration: 8 * SECOND, payload_len: 500 };
        let sender = PacedSender::new("10.0.0.1:5000".parse().unwrap(), pace);
        let sender = testbed.world.add_host("UDP program", ["10.0.1.8"], sender);
        testbed.world.measure_delay(sender, sink);
        testbed.world.run_for(9 * SECOND);
        assert_eq!(testbed.world.node(sink).packets(), 800);
        let mut delays = testbed.world.delays().to_vec();
        delays.sort_unstable();
        // The delay of the path, and the queue of the link, which the tunnel's controller causes.
        let link = testbed.world.link_stats(testbed.client, testbed.proxies[0])[0];
        let waits = 20 * MS + link.sojourn_mean().unwrap();
        assert!(delays[400] < waits + 5 * MS, "median {:?}, {waits:?} of it below", delays[400]);
        let bulk = server_report(testbed, servers[0]).received;
        assert!(bulk > 10_000_000, "{bulk}");
        testbed.world.trace().digest()
    });
}

/// What came in each second of a UDP flow that sends at four fifths of the link's rate, and of an upload over TCP
/// through the same tunnel, in bits.
fn greedy(scenario: &Scenario, rate: Rate) -> [u64; 2] {
    const PAYLOAD: u32 = 1000;
    let mut testbed = scenario.testbed();
    let testbed = &mut testbed;
    let sink = PacedReceiver::listening(PORT);
    let sink = testbed.world.add_host("UDP sink", ["10.0.0.8"], sink);
    testbed.world.connect(testbed.proxies[0], sink, LinkConfig::default());
    let udp = ForwardConfig::new("10.0.0.1:5000".parse().unwrap(), "10.0.0.8", PORT);
    let servers = serve_beside(scenario, testbed, &[Behaviour::Sink.into()], vec![udp]);
    program(testbed, 1, vec![task(0, 10 * BULK)]);
    let interval = rate.time_to_send(ByteCount::new(PAYLOAD.into())) * 5 / 4;
    let pace = Pace { interval, duration: 20 * SECOND, payload_len: 1000 };
    let sender = PacedSender::new("10.0.0.1:5000".parse().unwrap(), pace);
    testbed.world.add_host("UDP program", ["10.0.1.8"], sender);
    let came = |testbed: &Testbed| {
        let udp = testbed.world.node(sink).packets() * u64::from(PAYLOAD);
        [udp, server_report(testbed, servers[0]).received]
    };
    testbed.world.run_for(5 * SECOND);
    let before = came(testbed);
    testbed.world.run_for(10 * SECOND);
    let after = came(testbed);
    [0, 1].map(|flow: usize| (after[flow] - before[flow]) * 8 / 10)
}

#[test]
fn a_greedy_udp_flow_and_an_upload_share_a_tunnel_as_with_datagram_frames() {
    for (mbps, delay) in [(10, 20 * MS), (30, 50 * MS)] {
        let rate = Rate::from_mbps(mbps);
        let shares = [Quic, Sealed].map(|datagrams| {
            let each = (1..=3).map(|seed| {
                let mut scenario = Scenario { datagrams: [datagrams; 2], ..Scenario::new(seed, 1) };
                (scenario.access.capacity, scenario.access.delay) = (rate.into(), delay);
                let [udp, tcp] = greedy(&scenario, rate);
                println!("{rate}, {delay:?}, {datagrams:?}: {udp} bit/s of UDP, {tcp} of TCP");
                assert!(udp + tcp > rate.bits_per_second() * 7 / 10, "{udp} and {tcp} of {rate}");
                tcp * 100 / (udp + tcp)
            });
            each.sum::<u64>() / 3
        });
        let [quic, sealed] = shares;
        println!("{rate}, {delay:?}: TCP has {quic} % with DATAGRAM frames, {sealed} % otherwise");
        // Even shares are the best ones.
        assert!(sealed.abs_diff(50) <= quic.abs_diff(50) + 10, "{quic} %, {sealed} % of TCP");
    }
}
