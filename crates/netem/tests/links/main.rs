//! Tests links against independent results: Mahimahi's rules and closed forms.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

mod closed_forms;
mod mahimahi;

use std::time::{Duration, Instant};

use tandem_netem::{LinkConfig, LinkStats, Packet, Path, Seed};
use tandem_units::ByteCount;

const MS: Duration = Duration::from_millis(1);

/// The fate of the packets that were sent over one link. Each packet is identified by its number.
struct Run {
    /// The arrivals, with times after the start of the path.
    arrivals: Vec<(Duration, u64)>,
    /// The drops, with the time of each drop.
    drops: Vec<Duration>,
    stats: LinkStats,
}

/// Sends packets of these sizes (as IP packets) at these times after the start of the path.
fn run(link: LinkConfig, seed: Seed, packets: impl IntoIterator<Item = (Duration, u64)>) -> Run {
    let start = base();
    let mut path = Path::new(start, vec![link], seed);
    let mut run = Run { arrivals: Vec::new(), drops: Vec::new(), stats: LinkStats::default() };
    let dropped = |path: &Path<u64>| {
        let stats = path.stats()[0];
        let [full, codel] = [stats.dropped_queue, stats.dropped_codel];
        usize::try_from(full.packets + codel.packets).unwrap()
    };
    for (number, (at, size)) in (0..).zip(packets) {
        drain(&mut path, start + at, |at, number| run.arrivals.push((at - start, number)));
        path.push(start + at, Packet { size: ByteCount::new(size), content: number });
        run.drops.resize(dropped(&path), at);
    }
    while let Some(next) = path.next_event() {
        drain(&mut path, next, |at, number| run.arrivals.push((at - start, number)));
        run.drops.resize(dropped(&path), next - start);
        assert!(next < start + Duration::from_secs(3600), "the link never empties");
    }
    run.stats = path.stats()[0];
    run
}

fn drain(path: &mut Path<u64>, until: Instant, mut arrived: impl FnMut(Instant, u64)) {
    while let Some((at, packet)) = path.pop(until) {
        arrived(at, packet.content);
    }
}

/// Some instant; the tests use only differences to it.
#[expect(clippy::disallowed_methods, reason = "there is no other way to get an instant")]
fn base() -> Instant {
    Instant::now()
}
