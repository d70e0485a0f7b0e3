//! The driver's timer.
//!
//! On Linux it is a kernel timer (`timerfd`). tokio's timers have a resolution of one millisecond
//! and expire 1 ms late on average: a node that paces packets 200 µs apart would send bursts, and
//! would behave differently from virtual time. Elsewhere, or if the kernel provides no timer, a
//! timer of tokio takes its place.

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

/// A timer that can be set repeatedly. It may expire too early, but by design never too late.
pub(crate) struct Alarm {
    timer: Timer,
    /// The time at which the timer expires; `None` if it is not set.
    armed: Option<Instant>,
}

enum Timer {
    Kernel(AsyncFd<OwnedFd>),
    Tokio(Pin<Box<Sleep>>),
}

impl Alarm {
    /// Creates an alarm that is not set. The caller must be in a tokio runtime.
    pub(crate) fn new() -> Self {
        let timer = kernel_timer().map_or_else(
            |error| {
                debug!(%error, "there is no kernel timer: deadlines are rounded up to milliseconds");
                Timer::Tokio(Box::pin(sleep_until(clock::now().into())))
            },
            Timer::Kernel,
        );
        Self { timer, armed: None }
    }

    /// Sets the alarm to expire at `deadline` at the latest.
    ///
    /// A timer that expires earlier is not changed. The deadlines of a busy connection move forward
    /// with every packet, and one unnecessary expiry per round trip is cheaper than a system call
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
                    debug!(%error, "the kernel timer failed: deadlines are rounded up to milliseconds");
                    self.timer = Timer::Tokio(Box::pin(sleep_until(deadline.into())));
                }
            }
            Timer::Tokio(sleep) => sleep.as_mut().reset(deadline.into()),
        }
    }

    /// Is ready once for each expiry of the alarm.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.armed.is_none() {
            return Poll::Pending;
        }
        let expired = match &mut self.timer {
            Timer::Kernel(timer) => poll_kernel(timer, context),
            Timer::Tokio(sleep) => sleep.as_mut().poll(context),
        };
        if expired.is_ready() {
            self.armed = None;
        }
        expired
    }
}

fn poll_kernel(timer: &AsyncFd<OwnedFd>, context: &mut Context<'_>) -> Poll<()> {
    loop {
        let Poll::Ready(Ok(mut guard)) = timer.poll_read_ready(context) else {
            return Poll::Pending; // the timer has not expired, or the runtime ends
        };
        if guard.try_io(|timer| acknowledge(timer.get_ref())).is_ok() {
            return Poll::Ready(());
        }
    }
}

#[cfg(target_os = "linux")]
#[expect(
    deprecated,
    reason = "it is unsound if a type's descriptor can change or be closed; an `OwnedFd`'s cannot"
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

    // A time of zero would disarm the timer.
    let left = deadline.saturating_duration_since(clock::now()).max(Duration::from_nanos(1));
    let seconds = left.as_secs().try_into().unwrap_or(i64::MAX);
    let timer_spec = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos().into() },
    };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &timer_spec)?;
    Ok(())
}

/// Reads the number of expiries, so that the timer is no longer readable.
#[cfg(target_os = "linux")]
fn acknowledge(timer: &OwnedFd) -> io::Result<()> {
    let mut expiries = [0; 8];
    rustix::io::read(timer, &mut expiries)?;
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
