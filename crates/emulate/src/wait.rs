//! Lets an emulator wait with one thread and one system call (`ppoll`), whose deadline has a
//! resolution of nanoseconds. Tokio's timers have a resolution of 1 ms, which at 10 Mbit/s is the
//! transmission time of one packet.

use std::{
    io,
    num::NonZeroU64,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, Timespec, poll},
    io::Errno,
    process::setpriority_process,
    thread::set_current_timer_slack,
};

/// The longest time until a request to stop is noticed.
const STOP_LATENCY: Duration = Duration::from_millis(50);

/// The highest priority of ordinary threads.
const NICE_MIN: i32 = -20;

/// Makes Linux wake this thread as soon as its deadline has come. By default Linux may wake it 50
/// us later, to wake several threads at once, and milliseconds later if the cores are busy. Only
/// root may raise the priority. If the kernel refuses, packets may be late by these times.
pub(crate) fn wake_in_time() {
    set_current_timer_slack(Some(NonZeroU64::MIN)).ok(); // On Linux this is the priority of the thread, not of the process.
    setpriority_process(None, NICE_MIN).ok();
}

/// Waits until a descriptor is ready or the time `next` has come, but no longer than
/// [`STOP_LATENCY`], so that the caller can check whether to stop.
pub(crate) fn wait(fds: &mut [PollFd], next: Option<Instant>, now: Instant) -> io::Result<()> {
    let timeout = next.map_or(STOP_LATENCY, |at| at.saturating_duration_since(now));
    let timeout = timeout.min(STOP_LATENCY);
    let timeout = Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
