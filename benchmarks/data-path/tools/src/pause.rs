//! A pause before a thread waits for packets: while the packets of one side come faster than one in 1.25 pauses, and
//! while mostly something has come in the pauses before. Tandem (`--pause`) has the same bound on the rate. But
//! in place of the trust in pauses before, it asks how many packets a wake brings without a pause.

use std::{
    cell::RefCell,
    env, io, thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};

use crate::kernel;

/// The time over which packets are counted.
const WINDOW: Duration = Duration::from_millis(2);
const TRUST_MAX: u8 = 16;
/// The trust that a pause costs in which nothing came. One in which something came brings 1.
const VAIN: u8 = 2;
/// After so many waits without trust, one pause tries again.
const RETRY: u8 = 64;

/// From where a packet has come.
#[derive(Clone, Copy)]
pub enum Side {
    Tunnel = 0,
    Plain = 1,
}

struct Pauses {
    length: Duration,
    count: [u32; 2],
    began: Instant,
    is_fast: bool,
    trust: u8,
    waits: u8,
    ended: Option<Instant>,
}

thread_local! {
    static PAUSES: RefCell<Option<Pauses>> = const { RefCell::new(None) };
}

/// The arguments of the program, without `--pause MICROSECONDS`, which this thread follows from now on.
pub fn arguments() -> Result<Vec<String>> {
    let mut words: Vec<String> = env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--pause") {
        let length = words.get(1).context("how many microseconds?")?.parse()?;
        words.drain(..2);
        kernel::exact_timers()?;
        let pauses = Pauses {
            length: Duration::from_micros(length),
            count: [0; 2],
            began: Instant::now(),
            is_fast: false,
            trust: 0,
            waits: 0,
            ended: None,
        };
        PAUSES.set(Some(pauses));
    }
    Ok(words)
}

/// A runtime of one thread that pauses before it waits.
pub fn runtime() -> io::Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    if PAUSES.with_borrow(Option::is_some) {
        builder.on_thread_park(before_wait).on_thread_unpark(after_wait);
    }
    builder.enable_all().build()
}

/// Notes that packets have come.
pub fn came(side: Side, packets: usize) {
    with(|pauses| pauses.count[side as usize] += packets as u32);
}

pub fn before_wait() {
    with(|pauses| {
        if pauses.is_due(Instant::now()) {
            thread::sleep(pauses.length);
            pauses.ended = Some(Instant::now());
        }
    });
}

pub fn after_wait() {
    with(|pauses| {
        let Some(ended) = pauses.ended.take() else { return };
        pauses.trust = if ended.elapsed() < pauses.length / 2 {
            TRUST_MAX.min(pauses.trust + 1)
        } else {
            pauses.trust.saturating_sub(VAIN)
        };
    });
}

fn with(then: impl FnOnce(&mut Pauses)) {
    PAUSES.with_borrow_mut(|pauses| pauses.as_mut().map(then));
}

impl Pauses {
    fn is_due(&mut self, now: Instant) -> bool {
        let elapsed = now - self.began;
        if elapsed >= WINDOW {
            let fastest = self.count.into_iter().max().unwrap_or(0);
            self.is_fast = self.length * fastest * 5 >= elapsed * 4;
            (self.began, self.count) = (now, [0; 2]);
        }
        if !self.is_fast {
            return false;
        }
        self.waits += 1;
        if self.trust == 0 && self.waits < RETRY {
            return false;
        }
        self.waits = 0;
        true
    }
}
