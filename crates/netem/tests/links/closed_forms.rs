use std::{sync::Arc, time::Duration};

use tandem_netem::{Capacity, LinkConfig, LossAt, QueueConfig, QueueLimit, RateTrace, Seed};
use tandem_units::{ByteCount, Rate, Ratio};

use crate::{MS, run};

#[test]
fn a_full_trace_carries_exactly_its_opportunities() {
    let lines = vec![1, 1, 5, 9, 9, 9, 20];
    let trace = Arc::new(RateTrace::from_millis(lines).unwrap());
    let capacity = Capacity::Trace { trace, offset: Duration::ZERO };
    let link = LinkConfig {
        capacity: capacity.clone(),
        queue: QueueConfig::Infinite,
        ..LinkConfig::default()
    };
    for size in [1500, 1000, 52, 28] {
        // There are 100 rounds of 20 ms with 7 opportunities each.
        let opportunity_bytes = 700 * 1504;
        let packets = usize::try_from(opportunity_bytes / (size + 4)).unwrap();
        let run = run(link.clone(), Seed(1), vec![(Duration::ZERO, size); packets]);
        let (last, _) = *run.arrivals.last().unwrap();
        assert_eq!(run.arrivals.len(), packets);
        assert!(last <= 2000 * MS && last >= 1989 * MS, "{size} bytes: {last:?}");
        let carried = run.stats.carried;
        let unused = capacity.bytes_between(Duration::ZERO, 2000 * MS).unwrap()
            - (carried.bytes + ByteCount::new(4 * carried.packets));
        assert_eq!(unused.get(), opportunity_bytes % (size + 4));
        assert_eq!(run.stats.busy_time(crate::base()), last);
    }
}

#[test]
fn a_burst_leaves_a_full_queue_and_a_packet_in_transmission() {
    let trace = Arc::new(RateTrace::from_millis(vec![1]).unwrap());
    let trace = Capacity::Trace { trace, offset: Duration::ZERO };
    // These are the queue sizes of the calibrated emulators of Pantheon (ATC 2018).
    for packets in [14, 94, 130, 173, 426, 450] {
        for queue in [QueueConfig::DropTail, QueueConfig::DropHead] {
            let queue = queue(QueueLimit::packets(packets));
            for (capacity, survivors) in
                [(trace.clone(), packets), (Rate::from_mbps(12).into(), packets + 1)]
            {
                let link = LinkConfig { capacity, queue, ..LinkConfig::default() };
                let run = run(link, Seed(1), vec![(Duration::ZERO, 1500); 1000]);
                assert_eq!(run.stats.delivered.packets, survivors, "{queue}");
                assert_eq!(run.stats.dropped_queue.packets, 1000 - survivors, "{queue}");
                let (_, last) = *run.arrivals.last().unwrap();
                let is_newest = last == 999;
                assert_eq!(is_newest, matches!(queue, QueueConfig::DropHead(_)), "{queue}");
            }
        }
    }
}

#[test]
fn loss_before_the_queue_saves_the_capacity_that_loss_after_it_wastes() {
    let took = |loss_at| {
        let link = LinkConfig {
            capacity: Rate::from_mbps(12).into(),
            queue: QueueConfig::Infinite,
            loss: Ratio::of(1, 10).into(),
            loss_at,
            ..LinkConfig::default()
        };
        let run = run(link, Seed(1), vec![(Duration::ZERO, 1500); 10_000]);
        let stats = run.stats;
        assert_eq!(stats.delivered.packets + stats.dropped_loss.packets, 10_000);
        assert_eq!(
            stats.busy_time(crate::base()),
            MS * u32::try_from(stats.carried.packets).unwrap()
        );
        (stats.carried.packets, stats.delivered.packets)
    };
    let (carried, delivered) = took(LossAt::Before);
    assert_eq!(carried, delivered);
    assert!(delivered.abs_diff(9000) <= 120, "{delivered}"); // standard deviation 30
    assert_eq!(took(LossAt::After), (10_000, delivered));
}

#[test]
fn jitter_is_uniform_and_keeps_the_order() {
    let link = LinkConfig { delay: 20 * MS, jitter: 10 * MS, ..LinkConfig::default() };
    // The packets are far enough apart that none is held back by the one ahead of it.
    let sent: Vec<_> = (0..10_000).map(|number| (11 * MS * number, 100)).collect();
    let run_apart = run(link.clone(), Seed(1), sent.clone());
    let extra: Vec<_> = run_apart
        .arrivals
        .iter()
        .zip(&sent)
        .map(|((arrived, _), (sent, _))| arrived.abs_diff(*sent + 20 * MS))
        .collect();
    assert!(extra.iter().all(|extra| *extra <= 10 * MS));
    // The mean is 5 ms. The standard deviation of the mean is 10 ms / sqrt(12 * 10 000) = 0.03 ms.
    let mean = extra.iter().sum::<Duration>() / 10_000;
    assert!(mean.abs_diff(5 * MS) <= MS / 8, "{mean:?}");
    let early = extra.iter().filter(|extra| **extra < MS).count();
    assert!(early.abs_diff(1000) <= 120, "{early} in the first tenth");

    let together = run(link, Seed(1), (0..1000).map(|number| (MS / 10 * number, 100)));
    assert!(together.arrivals.is_sorted(), "a packet was overtaken");
    assert_eq!(together.arrivals.len(), 1000);
}

#[test]
fn packets_that_enter_during_an_outage_vanish_and_the_others_arrive() {
    let outages = Some("10ms,5ms,50ms".parse().unwrap());
    let link = LinkConfig { delay: 20 * MS, outages, ..LinkConfig::default() };
    let run = run(link, Seed(1), (0..100).map(|number| (MS * number, 100)));
    assert_eq!(run.stats.dropped_outage.packets, 10);
    let numbers: Vec<_> = run.arrivals.iter().map(|(_, number)| *number).collect();
    let expected: Vec<_> = (0..100).filter(|n| !(10..15).contains(&(n % 50))).collect();
    assert_eq!(numbers, expected);
    assert!(
        run.arrivals.contains(&(29 * MS, 9)),
        "a packet that was on its way arrives during an outage"
    );
}
