//! A pause before a thread waits for packets, by Tandem's own rule. The thread does not know when the engine of its
//! tunnel is due, which ends Tandem's pauses earlier.

use std::{
    cell::RefCell,
    env, io,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rule::{Pause, Pauses};
use tokio::runtime::{Builder, Runtime};

#[path = "../../../../crates/net/src/pause.rs"]
#[expect(dead_code, reason = "nothing is urgent here, and the length has no default")]
mod rule;

/// From where a packet has come.
#[derive(Clone, Copy)]
pub enum Side {
    Tunnel = 0,
    Plain = 1,
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
        let pause = Pause::UpTo(Duration::from_micros(length));
        PAUSES.set(Some(Pauses::new(pause, Instant::now())));
    }
    Ok(words)
}

/// A runtime of one thread that pauses before it waits.
pub fn runtime() -> io::Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    if PAUSES.with_borrow(Option::is_some) {
        builder.on_thread_park(before_wait);
    }
    builder.enable_all().build()
}

/// Notes that packets have come.
pub fn came(side: Side, packets: usize) {
    with(|pauses| pauses.on_received(side as u64, packets as u64));
}

pub fn before_wait() {
    with(|pauses| {
        if let Some(length) = pauses.before_wait(Instant::now(), None) {
            pauses.sleep(length);
        }
    });
}

fn with(then: impl FnOnce(&mut Pauses)) {
    PAUSES.with_borrow_mut(|pauses| pauses.as_mut().map(then));
}
