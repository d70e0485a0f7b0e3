//! Who writes to standard error: the thread that has something to say, or a thread of its own for those that carry
//! packets.

use std::{
    io::{self, Write},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tracing_subscriber::fmt::MakeWriter;

use super::line;
use crate::process::{
    SystemError,
    outlet::{self, Outlet, Target, lines_of},
};

/// The queue to standard error, if a thread of its own writes there.
static OUTLET: OnceLock<Outlet> = OnceLock::new();

/// Lines that were lost while no thread of its own wrote them.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Lets a thread of its own write all lines from now on, so that no thread that carries packets waits for who reads
/// them. Commands that end by themselves do without it: their lines and their progress then come in order.
pub fn use_own_thread() -> Result<(), SystemError> {
    if OUTLET.get().is_none() {
        // Only the main thread comes here.
        drop(OUTLET.set(Outlet::start("tandem-log", Stderr)?));
    }
    Ok(())
}

/// Whether a thread of its own writes all lines.
pub fn has_own_thread() -> bool {
    OUTLET.get().is_some()
}

/// Writes whole lines. A failure is counted, because there is no other place to report it.
pub fn put(lines: &[u8]) {
    match OUTLET.get() {
        Some(outlet) => outlet.put(lines),
        None => {
            if io::stderr().write_all(lines).is_err() {
                LOST.fetch_add(lines_of(lines), Relaxed);
            }
        }
    }
}

/// How many lines were lost since the start.
pub fn lost() -> u64 {
    LOST.load(Relaxed) + OUTLET.get().map_or(0, Outlet::lost)
}

/// Waits until all lines are written, but not long if nobody takes them.
pub fn flush() {
    if let Some(outlet) = OUTLET.get() {
        outlet.flush();
    }
}

struct Stderr;

impl Target for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        outlet::write(io::stderr(), bytes)
    }

    fn notice(&self, lost: u64) -> Option<String> {
        Some(line(&format!("warning: {lost} lines of the log were lost")))
    }

    fn on_failed(&self, _: &io::Error) {}

    fn on_recovered(&self, _: u64) {}
}

/// Writes what the log formats, one event at a time.
#[derive(Clone, Copy, Debug)]
pub struct StderrWriter;

impl Write for StderrWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        put(event);
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for StderrWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Self
    }
}
