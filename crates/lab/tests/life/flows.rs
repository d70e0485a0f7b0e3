//! Tests of many flows that share one connection.

use std::time::Duration;

use tandem_congestion::ControllerName;
use tandem_lab::{
    Handle, World,
    endpoints::{EchoHost, SenderHost, Shot},
};
use tandem_node::{
    Event,
    client::{Repair, TunnelMode},
    limits::Limits,
};
use tandem_units::{Rate, Ratio};

use crate::{
    MS, SECOND,
    programs::{
        Share, Streamer, TARGET_PORT, forward, forward_by_share, lost_hops, numbers, program,
    },
    scenario::{Scenario, Testbed},
};

/// Length of the payloads of a stream in bytes.
const PAYLOAD: usize = 1000;

/// An interval for 50 Mbit/s of payload, five times the rate of the access link.
const GREEDY: Duration = Duration::from_micros(160);

/// An interval for 1 Mbit/s of payload.
const MODEST: Duration = Duration::from_millis(8);

/// Targets that send at these intervals, each to a program of its own.
fn streams<const N: usize>(
    scenario: &Scenario,
    testbed: &mut Testbed,
    intervals: [Duration; N],
) -> [(Handle<Streamer>, Handle<SenderHost>); N] {
    streams_by_share(scenario, testbed, intervals, [Share::default(); N])
}

/// Targets that send at these intervals, with a share of the tunnel for each.
fn streams_by_share<const N: usize>(
    scenario: &Scenario,
    testbed: &mut Testbed,
    intervals: [Duration; N],
    shares: [Share; N],
) -> [(Handle<Streamer>, Handle<SenderHost>); N] {
    let ips = std::array::from_fn::<_, N, _>(|number| format!("10.0.0.{}", 30 + number));
    let targets = std::array::from_fn::<_, N, _>(|number| {
        let streamer = Streamer::new(intervals[number], PAYLOAD);
        testbed.world.add_host(&ips[number], [&*ips[number]], streamer)
    });
    let wanted: [_; N] = std::array::from_fn(|number| (&*ips[number], shares[number]));
    forward_by_share(scenario, testbed, &wanted);
    std::array::from_fn(|number| {
        let ip = format!("10.0.0.{}", 70 + number);
        let target = u16::try_from(number).unwrap();
        (targets[number], program(testbed, &ip, target, Shot::every(SECOND, 1, 10)))
    })
}

/// The last rate that the proxy reported for a program's packets.
fn last_reported_rate(testbed: &Testbed, ip: &str) -> Rate {
    let reported = testbed.world.events(testbed.client).iter().rev();
    let mut rates = reported.filter_map(|(_, event)| match event {
        Event::TunnelInfo { local, info } if local.ip().to_string() == ip => {
            Some(info.sending_rate)
        }
        _ => None,
    });
    rates.next().unwrap()
}

fn replies(world: &World, program: Handle<SenderHost>) -> u64 {
    world.node(program).replies().len() as u64
}

#[test]
fn a_thousand_flows_share_a_connection_and_are_closed_when_they_are_idle() {
    for mode in [TunnelMode::Mdt, TunnelMode::Mst, TunnelMode::Msgt(4)] {
        let scenario = Scenario { mode, ..Scenario::new(1, 1) };
        scenario.run(|testbed| {
            testbed.world.add_host("echo", ["10.0.0.8"], EchoHost::new(TARGET_PORT));
            forward(&scenario, testbed, &["10.0.0.8"]);
            let programs: Vec<_> = (0..1000)
                .map(|number| {
                    let ip = format!("10.1.{}.{}", number / 250, number % 250 + 1);
                    program(testbed, &ip, 0, Shot::every(2 * SECOND, 2, 100))
                })
                .collect();
            testbed.world.run_for(5 * SECOND);
            for program in &programs {
                assert_eq!(numbers(&testbed.world, *program), [0, 1]);
            }
            let (client, proxy) = (testbed.client, testbed.proxies[0]);
            let open = |world: &mut World| {
                (
                    world.node_mut(client).stats().flows_open,
                    world.node_mut(proxy).stats().flows_open,
                )
            };
            assert_eq!(open(&mut testbed.world), (1000, 1000), "{mode:?}");
            testbed.world.run_for(Limits::default().flow_idle + SECOND);
            assert_eq!(open(&mut testbed.world), (0, 0), "{mode:?}");
            assert_eq!(lost_hops(testbed), [] as [&str; 0]);
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn the_flow_that_has_been_silent_for_longest_makes_room_for_a_new_one() {
    let limits = Limits { local_flows: 3, ..Limits::default() };
    let scenario = Scenario { limits, ..Scenario::new(1, 1) };
    scenario.run(|testbed| {
        testbed.world.add_host("echo", ["10.0.0.8"], EchoHost::new(TARGET_PORT));
        forward(&scenario, testbed, &["10.0.0.8"]);
        let shots = |seconds: &[u32]| -> Vec<_> {
            let shot = |second: &u32| Shot { after: SECOND * *second, payload_len: 9 };
            seconds.iter().map(shot).collect()
        };
        // All three places are taken, and the second program is the first to fall silent.
        let steady = program(testbed, "10.1.0.1", 0, shots(&[1, 2, 3, 4, 5, 6]));
        let silent = program(testbed, "10.1.0.2", 0, shots(&[1, 6]));
        let third = program(testbed, "10.1.0.3", 0, shots(&[1, 3, 4, 5]));
        let fourth = program(testbed, "10.1.0.4", 0, shots(&[4]));
        testbed.world.run_for(SECOND * 5 + MS * 500);
        assert_eq!(numbers(&testbed.world, steady).len(), 5);
        assert_eq!(numbers(&testbed.world, silent), [0]);
        assert_eq!(numbers(&testbed.world, third), [0, 1, 2, 3]);
        assert_eq!(numbers(&testbed.world, fourth), [0]);
        let (client, proxy) = (testbed.client, testbed.proxies[0]);
        let stats = testbed.world.node_mut(client).stats();
        assert_eq!((stats.flows, stats.flows_open, stats.flows_ended.for_others), (4, 3, 1));
        assert_eq!(stats.dropped.too_many_flows, 0);
        assert_eq!(testbed.world.node_mut(proxy).stats().flows_open, 3);
        // The program whose flow ended gets a new one, in the place of the fourth.
        testbed.world.run_for(SECOND * 2);
        assert_eq!(numbers(&testbed.world, silent), [0, 1]);
        assert_eq!(testbed.world.node_mut(client).stats().flows_ended.for_others, 2);
        testbed.world.trace().digest()
    });
}

#[test]
fn flows_in_use_keep_their_places() {
    let limits = Limits { local_flows: 2, ..Limits::default() };
    let scenario = Scenario { limits, ..Scenario::new(1, 1) };
    scenario.run(|testbed| {
        testbed.world.add_host("echo", ["10.0.0.8"], EchoHost::new(TARGET_PORT));
        forward(&scenario, testbed, &["10.0.0.8"]);
        let users = ["10.1.0.1", "10.1.0.2"]
            .map(|ip| program(testbed, ip, 0, Shot::every(MS * 500, 20, 9)));
        let late = Shot { after: SECOND * 3, payload_len: 9 };
        let late = program(testbed, "10.1.0.3", 0, vec![late]);
        testbed.world.run_for(SECOND * 12);
        for user in users {
            assert_eq!(numbers(&testbed.world, user).len(), 20);
        }
        assert_eq!(numbers(&testbed.world, late), [] as [u64; 0]);
        let client = testbed.client;
        let stats = testbed.world.node_mut(client).stats();
        assert_eq!((stats.flows_ended.for_others, stats.dropped.too_many_flows), (0, 1));
        testbed.world.trace().digest()
    });
}

#[test]
fn each_of_a_thousand_flows_gets_reports_also_after_a_pause() {
    /// Programs that send again, one after the other.
    const AGAIN: [u32; 4] = [0, 63, 64, 999];
    let scenario = Scenario {
        mode: TunnelMode::Tecc(Repair::default()),
        controller: ControllerName::Bbr1Tunnel,
        ..Scenario::new(1, 1)
    };
    scenario.run(|testbed| {
        testbed.world.add_host("echo", ["10.0.0.8"], EchoHost::new(TARGET_PORT));
        forward(&scenario, testbed, &["10.0.0.8"]);
        let ip = |number: u32| format!("10.1.{}.{}", number / 250, number % 250 + 1);
        for number in 0..1000 {
            let again = AGAIN.iter().position(|it| *it == number);
            let again = again.map(|place| 40 * SECOND + SECOND * u32::try_from(place).unwrap());
            let times = [Some(5 * MS * number), again].into_iter().flatten();
            let shots = times.map(|after| Shot { after, payload_len: 100 }).collect();
            program(testbed, &ip(number), 0, shots);
        }
        let reported = |world: &World, ip: &str| {
            let events = world.events(testbed.client).iter();
            let is_its = |event: &Event| {
                matches!(event, Event::TunnelInfo { local, .. } if local.ip().to_string() == ip)
            };
            events.filter(|(_, event)| is_its(event)).count()
        };
        testbed.world.run_for(30 * SECOND);
        let without =
            (0..1000).filter(|number| reported(&testbed.world, &ip(*number)) == 0).count();
        assert_eq!(without, 0, "flows without a report");
        let before = AGAIN.map(|number| reported(&testbed.world, &ip(number)));
        testbed.world.run_for(20 * SECOND);
        for (number, before) in AGAIN.into_iter().zip(before) {
            assert!(reported(&testbed.world, &ip(number)) > before, "program {number}");
        }
        testbed.world.trace().digest()
    });
}

#[test]
fn a_modest_flow_beside_a_flood_loses_next_to_nothing() {
    for mode in [TunnelMode::Mdt, TunnelMode::Mst, TunnelMode::Msgt(4)] {
        let scenario = Scenario { mode, ..Scenario::new(1, 1) };
        scenario.run(|testbed| {
            let [(_, flooded), (modest, program)] = streams(&scenario, testbed, [GREEDY, MODEST]);
            testbed.world.run_for(6 * SECOND);
            let sent = testbed.world.node(modest).sent;
            let came = replies(&testbed.world, program);
            // The payloads of 150 ms may still be on their way.
            assert!((came + 20) * 100 >= sent * 99, "{mode:?}: {came} of {sent}");
            let flood = replies(&testbed.world, flooded);
            let mbps = flood * PAYLOAD as u64 * 8 / 6_000_000;
            assert!(mbps >= 6, "{mode:?}: {mbps} Mbit/s are left for the flood");
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn urgent_payloads_precede_all_others() {
    for mode in [TunnelMode::Mdt, TunnelMode::Mst] {
        let scenario = Scenario { mode, ..Scenario::new(1, 1) };
        scenario.run(|testbed| {
            let shares = ["u=4", "u=1"]
                .map(|text| Share { urgency: text.parse().unwrap(), ..Share::default() });
            let streams = streams_by_share(&scenario, testbed, [GREEDY, GREEDY], shares);
            testbed.world.run_for(6 * SECOND);
            let [(_, normal), (_, urgent)] = streams;
            let came = [normal, urgent].map(|program| replies(&testbed.world, program));
            assert!(came[0] * 20 < came[1], "{mode:?}: {came:?}");
            assert!(came[1] >= 4_500, "{mode:?}: {came:?}");
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn two_greedy_flows_share_a_tunnel_evenly() {
    for mode in [TunnelMode::Mdt, TunnelMode::Mst, TunnelMode::Msgt(4)] {
        let scenario = Scenario { mode, ..Scenario::new(1, 1) };
        scenario.run(|testbed| {
            let streams = streams(&scenario, testbed, [GREEDY, GREEDY]);
            testbed.world.run_for(6 * SECOND);
            let came = streams.map(|(_, program)| replies(&testbed.world, program));
            let [first, second] = came;
            assert!(first.abs_diff(second) * 10 <= first.max(second), "{mode:?}: {came:?}");
            assert!(first + second >= 4_500, "{mode:?}: {came:?}");
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn two_greedy_flows_share_a_tunnel_by_their_weights() {
    let repair = Repair::default();
    for mode in [TunnelMode::Mdt, TunnelMode::Rmdt(repair), TunnelMode::Tecc(repair)] {
        let scenario = Scenario { mode, ..Scenario::new(1, 1) };
        scenario.run(|testbed| {
            let shares = [1, 3].map(|weight| Share { weight, ..Share::default() });
            let streams = streams_by_share(&scenario, testbed, [GREEDY, GREEDY], shares);
            testbed.world.run_for(6 * SECOND);
            let came = streams.map(|(_, program)| replies(&testbed.world, program));
            let [first, second] = came;
            assert!((3 * first).abs_diff(second) * 10 <= second, "{mode:?}: {came:?}");
            assert!(first + second >= 4_500, "{mode:?}: {came:?}");
            if let TunnelMode::Tecc(_) = mode {
                let reported = ["10.0.0.70", "10.0.0.71"].map(|ip| last_reported_rate(testbed, ip));
                let [first, second] = reported.map(Rate::bits_per_second);
                assert!((3 * first).abs_diff(second) * 10 <= second, "{reported:?}");
                assert!((8_000_000..12_000_000).contains(&(first + second)), "{reported:?}");
            }
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn capsules_that_the_path_cannot_carry_wait_within_the_queue_and_do_not_block_others() {
    let limits = Limits { tunnel_queue: 200_000, ..Limits::default() };
    let mut scenario = Scenario { limits, mode: TunnelMode::Mst, ..Scenario::new(1, 1) };
    scenario.access.loss = Ratio::of(5, 100).into();
    scenario.run(|testbed| {
        let streams = streams(&scenario, testbed, [GREEDY, MODEST]);
        let mut most = 0;
        for _ in 0..60 {
            testbed.world.run_for(100 * MS);
            let world = &mut testbed.world;
            let stats = world.node_mut(testbed.proxies[0]).stats();
            assert_eq!(stats.flows_open, 2);
            let sent: u64 = streams.iter().map(|(target, _)| world.node(*target).sent).sum();
            let came: u64 = streams.iter().map(|(_, program)| replies(world, *program)).sum();
            most = most.max((sent - came - stats.dropped.total()) * PAYLOAD as u64);
        }
        let stats = testbed.world.node_mut(testbed.proxies[0]).stats();
        assert!(stats.dropped.queue_full > 6_000, "{stats:?}");
        // The bound is the tunnel's queue, and two windows that the engine holds until the client
        // has read them.
        assert!(most <= 700_000, "{most} bytes wait");
        let [_, (modest, program)] = streams;
        let sent = testbed.world.node(modest).sent;
        let came = replies(&testbed.world, program);
        assert!((came + 60) * 100 >= sent * 99, "{came} of {sent}");
        testbed.world.trace().digest()
    });
}

#[test]
fn a_steady_stream_leaves_the_tunnel_as_steady_as_it_came() {
    // RFC 9298 §6: proxies should not make traffic burstier.
    for mode in [TunnelMode::Mdt, TunnelMode::Mst, TunnelMode::Msgt(4)] {
        let scenario = Scenario { mode, ..Scenario::new(1, 2) };
        scenario.run(|testbed| {
            let [(_, program)] = streams(&scenario, testbed, [MODEST]);
            testbed.world.run_for(4 * SECOND);
            let replies = testbed.world.node(program).replies();
            assert!(replies.len() > 450, "{mode:?}: {}", replies.len());
            let gaps = replies.windows(2).map(|pair| pair[1].at - pair[0].at);
            // Payloads that come every 8 ms leave every 8 ms, within the time of one packet at the
            // bottleneck, which an acknowledgement may occupy.
            let uneven: Vec<_> = gaps.filter(|gap| gap.abs_diff(MODEST) > 2 * MS).collect();
            assert_eq!(uneven, [] as [Duration; 0], "{mode:?}");
            testbed.world.trace().digest()
        });
    }
}
