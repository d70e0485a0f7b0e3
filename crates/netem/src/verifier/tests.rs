use std::sync::Arc;

use super::*;
use crate::{Outages, QueueConfig, QueueLimit, base_instant};

/// A log of events: time in milliseconds, event, size in bytes.
type Log<'a> = &'a [(u64, What, u64)];

use What::{
    Carried, Delivered, DroppedLoss, DroppedMtu, DroppedOutage, DroppedQueue, Duplicated, Entered,
    Queued, Started,
};

/// A link of 10 Mbit/s, on which 1250 bytes take 1 ms.
fn constant() -> LinkConfig {
    LinkConfig { capacity: Rate::from_mbps(10).into(), ..LinkConfig::default() }
}

fn trace(lines_ms: &[u32]) -> LinkConfig {
    let trace = Arc::new(RateTrace::from_millis(lines_ms.to_vec()).unwrap());
    LinkConfig { capacity: Capacity::Trace { trace, offset: Duration::ZERO }, ..constant() }
}

/// The counters of a link whose events are those of the log.
fn counted(log: Log<'_>) -> LinkStats {
    let mut stats = LinkStats::default();
    for (_, what, size) in log {
        let size = ByteCount::new(*size);
        let (counter, is_held) = match what {
            Entered => (&mut stats.entered, Some(true)),
            DroppedOutage => (&mut stats.dropped_outage, Some(false)),
            DroppedMtu => (&mut stats.dropped_mtu, Some(false)),
            DroppedLoss => (&mut stats.dropped_loss, Some(false)),
            DroppedQueue => (&mut stats.dropped_queue, Some(false)),
            What::DroppedCoDel => (&mut stats.dropped_codel, Some(false)),
            Duplicated => (&mut stats.duplicated, Some(true)),
            Delivered => (&mut stats.delivered, Some(false)),
            Carried => (&mut stats.carried, None),
            Queued | Started => continue,
        };
        counter.count(size);
        match is_held {
            Some(true) => stats.held.count(size),
            Some(false) if stats.held.packets > 0 => stats.held.uncount(size),
            _ => {}
        }
    }
    stats
}

fn replay(config: &LinkConfig, log: Log<'_>) -> Vec<BrokenRule> {
    replay_with(config, log, &counted(log))
}

fn replay_with(config: &LinkConfig, log: Log<'_>, stats: &LinkStats) -> Vec<BrokenRule> {
    let start = base_instant();
    let mut verifier = LinkVerifier::new(start, 0, config.clone());
    for (at_ms, what, size) in log {
        verifier.log(start + Duration::from_millis(*at_ms), *what, ByteCount::new(*size));
    }
    let (total, violations) = verifier.violations(stats);
    assert_eq!(total, violations.len() as u64);
    violations.into_iter().map(|violation| violation.rule).collect()
}

/// Two packets, back to back.
const TWO: [(u64, What, u64); 10] = [
    (5, Entered, 1250),
    (5, Queued, 1250),
    (5, Started, 1250),
    (5, Entered, 1250),
    (5, Queued, 1250),
    (6, Carried, 1250),
    (6, Started, 1250),
    (6, Delivered, 1250),
    (7, Carried, 1250),
    (7, Delivered, 1250),
];

#[test]
fn a_log_of_a_correct_link_is_accepted() {
    assert_eq!(replay(&constant(), &TWO), []);
}

#[test]
fn a_log_with_a_missing_or_a_repeated_event_is_refused() {
    for (number, event) in TWO.into_iter().enumerate() {
        let found = |log: Log<'_>| replay_with(&constant(), log, &counted(&TWO));
        let mut log = TWO.to_vec();
        log.remove(number);
        assert_ne!(found(&log), [], "without {event:?}");
        let mut log = TWO.to_vec();
        log.insert(number, event);
        assert_ne!(found(&log), [], "{event:?} twice");
    }
}

#[test]
fn a_link_above_its_rate_is_caught() {
    let size = ByteCount::new(1250);
    let fast = |first, second| {
        let mut log = TWO;
        (log[5].0, log[6].0, log[7].0, log[8].0, log[9].0) = (first, first, first, second, second);
        replay(&constant(), &log)
    };
    assert_eq!(fast(6, 7), []);
    assert_eq!(fast(5, 6), [BrokenRule::TooFast { size }, BrokenRule::TooFast { size }]);
    assert_eq!(fast(6, 6), [BrokenRule::TooFast { size }]);
    // An idle time earns no capacity: the second packet cannot start before the first is done.
    assert_eq!(fast(8, 8), [BrokenRule::TooFast { size }]);
    assert_eq!(fast(8, 9), []);
}

#[test]
fn a_link_that_is_too_fast_by_parts_of_a_nanosecond_is_caught() {
    // 700 Mbit/s: 1500 bytes take 17 142.857 ns.
    let config = LinkConfig { capacity: Rate::from_mbps(700).into(), ..LinkConfig::default() };
    let found = |nanos_per_packet: fn(u64) -> u64| {
        let start = base_instant();
        let mut verifier = LinkVerifier::new(start, 0, config.clone());
        let size = ByteCount::new(1500);
        verifier.log(start, Queued, size);
        for number in 1..1000 {
            let at = start + Duration::from_nanos(nanos_per_packet(number - 1));
            verifier.log(at, Queued, size);
            verifier.log(at, Started, size);
            let at = start + Duration::from_nanos(nanos_per_packet(number));
            verifier.log(at, Carried, size);
        }
        verifier.violations
    };
    let too_fast = |violation: &Violation| matches!(violation.rule, BrokenRule::TooFast { .. });
    assert!(!found(|number| (number * 120_000).div_ceil(7)).iter().any(too_fast));
    assert!(found(|number| number * 17_142).iter().any(too_fast));
}

#[test]
fn a_packet_between_or_beyond_opportunities_is_caught() {
    let size = ByteCount::new(1500);
    let at = |carried_ms: [u64; 3]| {
        let mut log: Vec<_> = [1500; 3].iter().map(|size| (0, Entered, *size)).collect();
        log.extend([1500; 3].iter().map(|size| (0, Queued, *size)));
        for at_ms in carried_ms {
            log.extend([Started, Carried, Delivered].map(|what| (at_ms, what, 1500)));
        }
        replay(&trace(&[2, 5, 5, 10]), &log)
    };
    assert_eq!(at([2, 5, 5]), []);
    assert_eq!(at([10, 10, 12]), []);
    assert_eq!(at([2, 5, 15]), []);
    assert_eq!(at([1, 5, 5]), [BrokenRule::NoOpportunity { size }]);
    assert_eq!(at([2, 2, 5]), [BrokenRule::TooFast { size }]);
    assert_eq!(at([2, 5, 6]), [BrokenRule::NoOpportunity { size }]);
    // Here 1000 rounds are skipped without a walk.
    assert_eq!(at([10_002, 10_005, 10_006]), [BrokenRule::NoOpportunity { size }]);
}

#[test]
fn an_opportunity_before_a_packet_came_does_not_carry_it() {
    let late = |came_ms| {
        let log = [
            (came_ms, Entered, 1500),
            (came_ms, Queued, 1500),
            (5, Started, 1500),
            (5, Carried, 1500),
            (5, Delivered, 1500),
        ];
        replay(&trace(&[2, 5, 10]), &log)
    };
    assert_eq!(late(0), []);
    assert_eq!(late(4), []);
    assert_eq!(late(5), [BrokenRule::TooFast { size: ByteCount::new(1500) }]);
}

#[test]
fn a_queue_above_its_limit_is_caught() {
    let fill = |link: LinkConfig, limit| {
        let mut log = vec![(0, Entered, 1000), (0, Queued, 1000), (0, Started, 1000)];
        log.extend([(1, Entered, 1000), (1, Queued, 1000), (1, Entered, 1000), (1, Queued, 1000)]);
        replay(&LinkConfig { queue: QueueConfig::DropTail(limit), ..link }, &log)
    };
    let bytes = |bytes| QueueLimit::bytes(ByteCount::new(bytes));
    let too_long =
        |limit| BrokenRule::QueueTooLong { bytes: ByteCount::new(2000), packets: 2, limit };
    assert_eq!(fill(constant(), bytes(2000)), []);
    assert_eq!(fill(constant(), bytes(1999)), [too_long(bytes(1999))]);
    assert_eq!(fill(constant(), QueueLimit::packets(2)), []);
    assert_eq!(fill(constant(), QueueLimit::packets(1)), [too_long(QueueLimit::packets(1))]);
    assert_eq!(fill(trace(&[50]), bytes(2008)), []);
    assert_ne!(fill(trace(&[50]), bytes(2007)), []);
}

#[test]
fn a_link_that_does_not_drop_as_configured_is_caught() {
    let size = ByteCount::new(1250);
    let mtu = ByteCount::new(1249);
    let config = LinkConfig { mtu: Some(mtu), ..constant() };
    assert_eq!(replay(&config, &TWO), [(); 2].map(|()| BrokenRule::PassedMtu { size, mtu }));
    let ms = Duration::from_millis;
    let outages = Outages { first: ms(1), length: ms(1), period: Some(ms(2)) };
    let config = LinkConfig { outages: Some(outages), ..constant() };
    assert_eq!(replay(&config, &TWO), [(); 2].map(|()| BrokenRule::PassedOutage { size }));
    let config = LinkConfig { delay: ms(7), ..constant() };
    assert_eq!(replay(&config, &TWO), [BrokenRule::TooSoon { delay: ms(7) }]);
}

#[test]
fn packets_that_appear_or_vanish_are_caught() {
    let from_nowhere = |log: Log<'_>| {
        let found = replay(&constant(), log);
        found.iter().any(|rule| matches!(rule, BrokenRule::FromNowhere { .. }))
    };
    for what in [DroppedOutage, DroppedMtu, DroppedLoss, DroppedQueue, Queued, Started, Delivered] {
        assert!(from_nowhere(&[(0, what, 100)]), "{what:?}");
    }
    assert!(!from_nowhere(&TWO));
    let unbalanced = |held| {
        let mut stats = counted(&TWO);
        stats.held.bytes = ByteCount::new(held);
        replay_with(&constant(), &TWO, &stats)
    };
    let rule = BrokenRule::Unbalanced { seen: 2500, delivered: 2500, dropped: 0, held: 1 };
    assert_eq!(unbalanced(1), [rule]);
    let mut stats = counted(&TWO);
    stats.dropped_loss.packets = 1;
    let found = replay_with(&constant(), &TWO, &stats);
    assert!(matches!(found[..], [BrokenRule::Miscounted { what: "lost", .. }]), "{found:?}");
}

#[test]
fn time_that_runs_backwards_and_a_second_packet_in_transmission_are_caught() {
    let mut log = TWO.to_vec();
    log[5].0 = 3;
    assert!(replay(&constant(), &log).contains(&BrokenRule::Backwards));
    let mut log = TWO.to_vec();
    log.swap(5, 6);
    assert!(replay(&constant(), &log).contains(&BrokenRule::TwoAtATime));
}

#[test]
fn a_bounded_number_is_kept_and_all_are_counted() {
    let start = base_instant();
    let mut verifier = LinkVerifier::new(start, 3, constant());
    for _ in 0..1000 {
        verifier.log(start, Delivered, ByteCount::new(1));
    }
    let (total, first) = verifier.violations(&LinkStats::default());
    assert!(total >= 1000 && first.len() == KEPT_MAX, "{total}, {}", first.len());
    let text = first[0].to_string();
    assert!(text.starts_with("link 3 after 0ns: there are more packets at the end"), "{text}");
}
