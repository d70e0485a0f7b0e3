//! The driver's one timer.
//!
//! On Linux it is a kernel timer (`timerfd`) of its own, because tokio's own timers go by whole
//! milliseconds and ring 1 ms late on average: a node that paces packets 200 µs apart would send
//! bursts, and would not behave as it does in virtual time. Elsewhere, or if the kernel gives no
//! timer, tokio's have to do.

use std::{
    io,
    os::fd::OwnedFd,
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use tokio::{
    io::unix::AsyncFd,
    time::{Sleep, sleep_until},
};
use tracing::debug;

use crate::clock;

/// A timer that is set anew again and again. It may ring too early, never too late by design.
pub(crate) struct Alarm {
    timer: Timer,
    /// When the timer rings; `None`: it does not.
    armed: Option<Instant>,
}

enum Timer {
    Kernel(AsyncFd<OwnedFd>),
    Tokio(Pin<Box<Sleep>>),
}

impl Alarm {
    /// Not set; needs a tokio runtime.
    pub(crate) fn new() -> Self {
        let timer = kernel_timer().map_or_else(
            |error| {
                debug!(%error, "no kernel timer: deadlines are rounded up to milliseconds");
                Timer::Tokio(Box::pin(sleep_until(clock::now().into())))
            },
            Timer::Kernel,
        );
        Self { timer, armed: None }
    }

    /// Rings at this time at the latest.
    ///
    /// A timer that is to ring before is left as it is: the deadlines of a busy connection move
    /// forward with every packet, and one ring in vain per round trip is cheaper than a system call
    /// per packet.
    pub(crate) fn set(&mut self, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if self.armed.is_some_and(|armed| armed <= deadline) {
            return;
        }
        self.armed = Some(deadline);
        match &mut self.timer {
            Timer::Kernel(timer) => {
                if let Err(error) = arm(timer.get_ref(), deadline) {
                    debug!(%error, "kernel timer failed: deadlines are rounded up to milliseconds");
                    self.timer = Timer::Tokio(Box::pin(sleep_until(deadline.into())));
                }
            }
            Timer::Tokio(sleep) => sleep.as_mut().reset(deadline.into()),
        }
    }

    /// Ready once for every time that the alarm rings.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.armed.is_none() {
            return Poll::Pending;
        }
        let rings = match &mut self.timer {
            Timer::Kernel(timer) => poll_kernel(timer, context),
            Timer::Tokio(sleep) => sleep.as_mut().poll(context),
        };
        if rings.is_ready() {
            self.armed = None;
        }
        rings
    }
}

fn poll_kernel(timer: &AsyncFd<OwnedFd>, context: &mut Context<'_>) -> Poll<()> {
    loop {
        let Poll::Ready(Ok(mut guard)) = timer.poll_read_ready(context) else {
            return Poll::Pending; // not yet, or the runtime ends
        };
        if guard.try_io(|timer| acknowledge(timer.get_ref())).is_ok() {
            return Poll::Ready(());
        }
    }
}

#[cfg(target_os = "linux")]
#[expect(
    deprecated,
    reason = "unsound for types whose descriptor may change or be closed; an `OwnedFd`'s cannot"
)]
fn kernel_timer() -> io::Result<AsyncFd<OwnedFd>> {
    use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    AsyncFd::with_interest(timer, tokio::io::Interest::READABLE)
}

#[cfg(target_os = "linux")]
fn arm(timer: &OwnedFd, deadline: Instant) -> io::Result<()> {
    use std::time::Duration;

    use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};

    // Zero would disarm it.
    let left = deadline.saturating_duration_since(clock::now()).max(Duration::from_nanos(1));
    let seconds = left.as_secs().try_into().unwrap_or(i64::MAX);
    let timer_spec = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos().into() },
    };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &timer_spec)?;
    Ok(())
}

/// Takes note that the timer rang, so that it is not readable any more.
#[cfg(target_os = "linux")]
fn acknowledge(timer: &OwnedFd) -> io::Result<()> {
    let mut rings = [0; 8];
    rustix::io::read(timer, &mut rings)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn kernel_timer() -> io::Result<AsyncFd<OwnedFd>> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn arm(_timer: &OwnedFd, _deadline: Instant) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn acknowledge(_timer: &OwnedFd) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
