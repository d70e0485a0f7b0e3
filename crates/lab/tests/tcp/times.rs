//! The times that a tunnel adds.

use std::time::Duration;

use tandem_lab::{
    Handle,
    endpoints::{Behaviour, TcpTask, TcpTypist},
};
use tandem_units::{ByteCount, Rate};

use crate::{
    bed::{MS, SECOND, TARGET_RTT, TUNNEL_RTT, finish, listener, program, serve, task},
    scenario::{Scenario, Testbed},
};

/// The RTT between two proxies.
const HOP_RTT: Duration = Duration::from_millis(20);

/// The median of these times.
fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn a_connection_costs_one_round_trip_of_the_tunnel_and_data_goes_with_the_request() {
    for proxies in [1, 2] {
        let scenario = Scenario::new(1, proxies);
        scenario.run(|testbed| {
            let tunnel = if proxies == 1 { TUNNEL_RTT } else { TUNNEL_RTT + HOP_RTT };
            let targets = [Behaviour::Source(100), Behaviour::Echo].map(Into::into);
            let servers = serve(&scenario, testbed, &targets);
            let at = |number: u32| number * 73 * MS;
            let first = (0..40).map(|number| TcpTask { after: at(number), ..task(0, 0) });
            let second = (0..40).map(|number| TcpTask { after: at(number), ..task(1, 100) });
            let (first, second) = (first.collect(), second.collect());
            let programs = [program(testbed, 1, first), program(testbed, 2, second)];
            for program in programs {
                finish(testbed, program, 10 * SECOND);
            }
            // A target that speaks first does so as soon as it has the SYN of the proxy, so that its
            // bytes come with the answer.
            let [speaks_first, answers] = programs.map(|program| {
                let reports = testbed.world.node(program).reports();
                median(reports.map(|report| report.first_byte.unwrap() - report.began))
            });
            let connect = tunnel + TARGET_RTT;
            assert!((connect..connect + 2 * MS).contains(&speaks_first), "{speaks_first:?}");
            let echo = connect + TARGET_RTT;
            assert!((echo..echo + 2 * MS).contains(&answers), "{answers:?}");
            // The request reaches the target half a round trip after the connection is open there.
            let reports = testbed.world.node(servers[1]).reports();
            let data = reports.map(|report| report.first_byte.unwrap() - report.began);
            assert_eq!(median(data), TARGET_RTT);
            testbed.world.trace().digest()
        });
    }
}

/// The times of round trips of somebody who types beside a bulk transfer, beyond those of the empty
/// path.
#[derive(Debug)]
struct Typing {
    median: Duration,
    /// The 95th percentile.
    most: Duration,
    /// The mean time of packets in the queue of the access link and in transmission, in the direction
    /// of the bulk transfer. The controller of the tunnel causes it.
    link: Duration,
}

/// Lets somebody type beside a bulk transfer of a program over an access link with this rate.
fn typing_beside(
    scenario: &Scenario,
    testbed: &mut Testbed,
    bulk: Behaviour,
    rate: Rate,
) -> Typing {
    let (client, proxy) = (testbed.client, testbed.proxies[0]);
    // A target 100 ms away must not bound the rate.
    testbed.world.set_tcp_buffer(ByteCount::new(4_000_000));
    let is_upload = bulk == Behaviour::Sink;
    serve(scenario, testbed, &[bulk, Behaviour::Echo].map(Into::into));
    let send = if is_upload { BULK } else { 0 };
    let busy = program(testbed, 1, vec![TcpTask { finishes: false, ..task(0, send) }]);
    testbed.world.run_for(2 * SECOND);
    let typist = TcpTypist::new(listener(1), 100 * MS, 80, 20);
    let typist: Handle<TcpTypist> = testbed.world.add_host("typist", ["10.0.1.7"], typist);
    testbed.world.run_for(9 * SECOND);
    assert_eq!(testbed.world.node(busy).report(0).result, None, "the bulk transfer goes on");
    let (from, to) = if is_upload { (client.id(), proxy.id()) } else { (proxy.id(), client.id()) };
    let links = testbed.world.link_stats(from, to);
    let link = links.iter().find(|link| link.queued_max.get() > 0).unwrap();
    let full = rate.bytes_in(11 * SECOND).get();
    assert!(link.delivered.bytes.get() * 10 > full * 9, "the link is not busy: {link:?}");
    // The first round trip includes the opening of the connection to the target.
    let mut times = testbed.world.node(typist).round_trips()[1..].to_vec();
    assert_eq!(times.len(), 79);
    times.sort_unstable();
    let more =
        |percent: usize| times[times.len() * percent / 100].saturating_sub(TUNNEL_RTT + TARGET_RTT);
    Typing { median: more(50), most: more(95), link: link.sojourn_mean().unwrap() }
}

/// The bytes of a transfer that does not end in these tests.
const BULK: u64 = 1_000_000_000;

/// Checks that keystrokes beside a bulk transfer wait for the link's queue, and for a few full packets
/// of our own at most.
fn keystrokes_wait_little(bulk: Behaviour) {
    for (mbps, own) in [(10, 8 * MS), (50, 3 * MS)] {
        let mut scenario = Scenario::new(1, 1);
        let rate = Rate::from_mbps(mbps);
        scenario.access.capacity = rate.into();
        scenario.run(|testbed| {
            let typing = typing_beside(&scenario, testbed, bulk, rate);
            assert!(typing.median < typing.link + own, "{mbps} Mbit/s: {typing:?}");
            assert!(typing.most < typing.link + 30 * MS, "{mbps} Mbit/s: {typing:?}");
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn keystrokes_beside_a_bulk_upload_wait_a_few_milliseconds() {
    keystrokes_wait_little(Behaviour::Sink);
}

#[test]
fn keystrokes_beside_a_bulk_download_wait_a_few_milliseconds() {
    keystrokes_wait_little(Behaviour::Source(BULK));
}
