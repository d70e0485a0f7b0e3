//! What the resequencer costs a packet: nothing lost, and 5 % lost and repaired 400 packets later
//! (40 ms at 100 Mbit/s).

#![expect(missing_docs, reason = "Criterion's macro makes a public function")]
#![expect(clippy::disallowed_methods, reason = "a world needs one instant to begin with")]

use std::{
    collections::VecDeque,
    hint::black_box,
    time::{Duration, Instant},
};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tandem_node::tunnel::resequence::{Bounds, Resequence, Resequencer, Sequenced};
use tandem_wire::VarInt;

const PACKETS: u64 = 20_000;

/// Numbers as they arrive when every `one_in` is lost and repaired later.
fn arrivals(one_in: u64) -> Vec<u64> {
    let mut arrivals = Vec::new();
    let mut lost = VecDeque::new();
    for number in 0..PACKETS {
        if number % one_in == one_in - 1 {
            lost.push_back(number);
        } else {
            arrivals.push(number);
        }
        if lost.front().is_some_and(|lost| lost + 400 <= number) {
            arrivals.extend(lost.pop_front());
        }
    }
    arrivals
}

fn run(now: Instant, mode: Resequence, arrivals: &[u64], payload: &Bytes) -> u64 {
    let mut resequencer = Resequencer::new(mode, Bounds::default());
    for (&number, step) in arrivals.iter().zip(0..) {
        let now = now + Duration::from_micros(100) * step;
        let [sequence, floor] = [number, number.saturating_sub(1000)].map(VarInt::saturating_from);
        let datagram = Sequenced { sequence, floor, payload: payload.clone() };
        resequencer.push(now, datagram);
        while let Some(payload) = resequencer.poll_release(now) {
            black_box(payload);
        }
    }
    resequencer.stats().released
}

fn resequence(c: &mut Criterion) {
    let now = Instant::now();
    let payload = Bytes::from(vec![0; 1200]);
    let mut group = c.benchmark_group("node/resequence");
    group.throughput(Throughput::Elements(PACKETS));
    let modes = [
        ("off", Resequence::Off),
        ("window", Resequence::WINDOW),
        ("ordered", Resequence::Ordered),
    ];
    for (name, mode) in modes {
        for (loss, one_in) in [("no_loss", PACKETS + 1), ("5_percent", 20)] {
            let arrivals = arrivals(one_in);
            group.bench_function(format!("{name}/{loss}"), |b| {
                b.iter(|| run(now, mode, &arrivals, &payload));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, resequence);
criterion_main!(benches);
