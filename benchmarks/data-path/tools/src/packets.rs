//! Packets at an even rate or in bursts, and who receives them.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    ends::{Ends, Head, Kind},
    kernel::{self, Receiver},
};

/// The sink looks at its sockets so often. Nobody pays for waking it.
const LOOK: Duration = Duration::from_micros(300);
/// The number of sockets at which it looks at a time. Even the last of 10,000 flows is heard every 50 ms.
const LOOK_AT: usize = 64;
/// After this time without a packet nothing more is expected.
const SILENCE: Duration = Duration::from_millis(150);
const DRAIN_LIMIT: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the local programs to the target.
    Up,
    Down,
}

#[derive(Clone, Copy)]
pub struct Load {
    pub direction: Direction,
    pub flows: usize,
    pub bytes: usize,
    pub packets_per_second: u64,
    /// A burst belongs to one flow; flows have bursts in turn.
    pub burst: usize,
    /// The end of the load, unless something else ends it before.
    pub count: u64,
}

/// The CPUs of the generator, which the client shares, and of the sink, which the proxy shares.
#[derive(Clone, Copy)]
pub struct Cpus {
    pub generator: usize,
    pub sink: usize,
}

pub struct Sent {
    pub packets: u64,
    pub elapsed: Duration,
    /// How late bursts were, in microseconds: the 99th of 100.
    pub late_p99_us: u32,
}

pub struct Outcome {
    pub sent: Sent,
    pub received: u64,
    /// From the first packet until the last one had arrived.
    pub seconds: f64,
    /// What each process spent until the last packet had arrived.
    pub cpu_nanos: Vec<u64>,
}

/// Sends while `go_on` says so. Between packets it gives its CPU to the client.
pub fn generate(ends: &Ends, load: Load, run: u32, go_on: impl Fn() -> bool) -> Sent {
    let payload = Head { run, number: 0, kind: Kind::Data }.payload(load.bytes);
    let interval = load.burst as f64 / load.packets_per_second as f64;
    let begin = Instant::now();
    let mut late = Vec::new();
    let mut packets = 0;
    let mut bursts = 0_usize;
    while packets < load.count && go_on() {
        let due = begin + Duration::from_secs_f64(bursts as f64 * interval);
        while Instant::now() < due {
            thread::yield_now();
        }
        late.push(due.elapsed().as_micros() as u32);
        let flow = bursts % load.flows;
        let mut left = load.burst;
        let mut refusals = 0;
        while left > 0 && refusals < 10 {
            let sent = match load.direction {
                Direction::Up => kernel::send(&ends.locals[flow], &payload, None, left),
                Direction::Down => kernel::send(&ends.target, &payload, ends.sources[flow], left),
            };
            match sent {
                Ok(sent) => left -= sent,
                Err(_) => refusals += 1,
            }
        }
        packets += load.burst as u64;
        bursts += 1;
    }
    let elapsed = begin.elapsed();
    late.sort_unstable();
    let late_p99_us = late.get(late.len() * 99 / 100).copied().unwrap_or(0);
    Sent { packets, elapsed, late_p99_us }
}

/// Counts the packets of a run until `stop`.
pub fn sink(ends: &Ends, load: Load, run: u32, received: &AtomicU64, stop: &AtomicBool) {
    let mut receiver = Receiver::default();
    let sockets = match load.direction {
        Direction::Up => std::slice::from_ref(&ends.target),
        Direction::Down => &ends.locals[..load.flows],
    };
    let mut next = 0;
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
        for _ in 0..LOOK_AT.min(sockets.len()) {
            let mut wanted = 0;
            let mut each = |head: &[u8], length: usize| {
                let ours = Head { run, number: 0, kind: Kind::Data };
                wanted += u64::from(length == load.bytes && Head::read(head) == Some(ours));
            };
            while receiver.receive(&sockets[next], &mut each) == kernel::BATCH {}
            received.fetch_add(wanted, Ordering::Relaxed);
            next = (next + 1) % sockets.len();
        }
    }
}

/// One run, from its first packet until the last one has arrived or nothing arrives any more.
pub fn measure(ends: &Ends, load: Load, run: u32, pids: &[i32], cpus: Cpus) -> Result<Outcome> {
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let spent = || pids.iter().map(|&pid| kernel::cpu_nanos(pid)).collect::<Result<Vec<_>, _>>();
    thread::scope(|scope| {
        let sink = scope
            .spawn(|| kernel::pin(cpus.sink).map(|()| sink(ends, load, run, &received, &stop)));
        let before = spent()?;
        let begin = Instant::now();
        let sent = generate(ends, load, run, || true);
        let seconds = (drain(sent.packets, &received) - begin).as_secs_f64();
        let after = spent()?;
        stop.store(true, Ordering::Relaxed);
        sink.join().expect("the sink panicked")?;
        let cpu_nanos = after.iter().zip(before).map(|(after, before)| after - before).collect();
        Ok(Outcome { sent, received: received.load(Ordering::Relaxed), seconds, cpu_nanos })
    })
}

/// Waits for the last packet. Returns when it came.
pub fn drain(sent: u64, received: &AtomicU64) -> Instant {
    let begin = Instant::now();
    let (mut known, mut since) = (0, begin);
    while since.elapsed() < SILENCE && begin.elapsed() < DRAIN_LIMIT {
        let now = received.load(Ordering::Relaxed);
        if now > known {
            (known, since) = (now, Instant::now());
        }
        if now >= sent {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    since
}
