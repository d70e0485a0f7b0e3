use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tandem_netem::{
    Capacity, LinkConfig, QueueConfig, QueueLimit, RateTrace, Seed, TRACE_OVERHEAD,
};
use tandem_units::ByteCount;

use crate::{MS, run};

/// Cases with expected departures and drops, whose rules reproduce the logs of real `mm-link` runs
/// packet by packet.
const VECTORS: &str = include_str!("mahimahi_vectors.json");

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

fn rows(value: &Value) -> Vec<Vec<u64>> {
    value.as_array().unwrap().iter().map(numbers).collect()
}

fn millis(time: Duration) -> u64 {
    assert_eq!(time.subsec_nanos() % 1_000_000, 0, "{time:?} is not a whole number of ms");
    u64::try_from(time.as_millis()).unwrap()
}

fn link(case: &Value) -> LinkConfig {
    let lines = numbers(&case["trace_ms"]).into_iter().map(|ms| u32::try_from(ms).unwrap());
    let trace = RateTrace::from_millis(lines.collect()).unwrap();
    let repeat = case["repeat"].as_bool().unwrap();
    let trace = Arc::new(if repeat { trace } else { trace.once() });
    let limit = |name: &str| Some(case["queue"][name].as_u64().unwrap()).filter(|n| *n > 0);
    let limit = QueueLimit { bytes: limit("bytes").map(ByteCount::new), packets: limit("packets") };
    let queue = match case["queue"]["kind"].as_str().unwrap() {
        "infinite" => QueueConfig::Infinite,
        "droptail" => QueueConfig::DropTail(limit),
        "drophead" => QueueConfig::DropHead(limit),
        kind => panic!("no queue is called {kind}"),
    };
    let capacity = Capacity::Trace { trace, offset: Duration::ZERO };
    LinkConfig { capacity, queue, ..LinkConfig::default() }
}

#[test]
fn every_departure_and_drop_equals_mahimahis() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let cases = vectors["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 16);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let arrivals = rows(&case["arrivals"]);
        let packets = arrivals.iter().map(|arrival| {
            let at = Duration::from_millis(arrival[0]);
            (at, arrival[1] - TRACE_OVERHEAD.get())
        });
        // Packets that are still in the link at the end of the case have neither departed nor been
        // dropped.
        let until = Duration::from_millis(case["until_ms"].as_u64().unwrap());
        let run = run(link(case), Seed(1), packets);

        let departures = run.arrivals.iter().filter(|(at, _)| *at <= until).map(|(at, number)| {
            let came = arrivals[usize::try_from(*number).unwrap()][0];
            vec![*number, millis(*at), millis(*at) - came]
        });
        assert_eq!(departures.collect::<Vec<_>>(), rows(&case["departures"]), "{name}");

        // Both queues drop in the order of arrival.
        let mut is_out = vec![false; arrivals.len()];
        for (_, number) in &run.arrivals {
            is_out[usize::try_from(*number).unwrap()] = true;
        }
        let left = usize::try_from(run.stats.held.packets).unwrap();
        let missing = (0..).zip(is_out).filter(|(_, is_out)| !is_out).map(|(number, _)| number);
        let missing: Vec<u64> = missing.collect();
        assert_eq!(missing.len(), run.drops.len() + left, "{name}");
        let drops = missing.into_iter().zip(run.drops).map(|(number, at)| vec![number, millis(at)]);
        assert_eq!(drops.collect::<Vec<_>>(), rows(&case["drops"]), "{name}");
    }
}

#[test]
fn a_trace_starts_at_any_offset_and_continues_in_order() {
    let trace = Arc::new(RateTrace::from_millis(vec![3, 10, 11, 20]).unwrap());
    let arrivals = |offset: Duration| {
        let capacity = Capacity::Trace { trace: trace.clone(), offset };
        let link = LinkConfig { capacity, ..LinkConfig::default() };
        let run = run(link, Seed(1), [(Duration::ZERO, 1500); 5]);
        run.arrivals.into_iter().map(|(at, _)| at.as_micros()).collect::<Vec<_>>()
    };
    assert_eq!(arrivals(Duration::ZERO), [3000, 10_000, 11_000, 20_000, 23_000]);
    assert_eq!(arrivals(10 * MS), [1000, 10_000, 13_000, 20_000, 21_000]);
    assert_eq!(arrivals(10 * MS), arrivals(30 * MS));
    assert_eq!(arrivals(MS / 2), [2500, 9500, 10_500, 19_500, 22_500]);
}

#[test]
fn a_packet_of_more_than_1500_bytes_does_not_fit_a_trace() {
    let trace = Arc::new(RateTrace::from_millis(vec![1]).unwrap());
    let capacity = Capacity::Trace { trace, offset: Duration::ZERO };
    for (mtu, passes, vanishes) in [(None, 1500, 1501), (Some(1400), 1400, 1401)] {
        let mtu = mtu.map(ByteCount::new);
        let link = LinkConfig { capacity: capacity.clone(), mtu, ..LinkConfig::default() };
        let run = run(link, Seed(1), [(Duration::ZERO, passes), (Duration::ZERO, vanishes)]);
        assert_eq!(run.arrivals, [(MS, 0)]);
        assert_eq!(run.stats.dropped_mtu.packets, 1);
    }
}

#[test]
fn an_idle_trace_has_no_events() {
    let trace = Arc::new(RateTrace::from_millis(vec![1]).unwrap());
    let capacity = Capacity::Trace { trace, offset: Duration::ZERO };
    let link = LinkConfig { capacity, ..LinkConfig::default() };
    let start = crate::base();
    let mut path = tandem_netem::Path::new(start, vec![link], Seed(1));
    let mut events = 0;
    for hour in 1..=10 {
        let now = start + Duration::from_secs(3600) * hour;
        path.push(now, tandem_netem::Packet { size: ByteCount::new(1500), content: hour.into() });
        while let Some(at) = path.next_event() {
            crate::drain(&mut path, at, |at, _| assert_eq!(at, now + MS));
            events += 1;
        }
    }
    assert_eq!(events, 10, "one for each packet");
}
