//! How busy the driver's thread is.

use std::time::{Duration, Instant};

use tandem_node::node::Load;

/// How the driver waited for inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It slept until there was one.
    Slept,
    /// It looked for one although it could have slept, and there was none.
    LookedInVain,
    /// There was one already.
    No,
}

impl Wait {
    /// How a driver waited that looked for inputs although it could have slept, or slept.
    pub(crate) const fn of((looked, slept): (bool, bool), has_input: bool) -> Self {
        match (looked, slept) {
            (true, _) if !has_input => Self::LookedInVain,
            (_, true) => Self::Slept,
            _ => Self::No,
        }
    }
}

/// Measures how busy the thread is.
///
/// A thread that seems to sleep may only have asked the kernel for inputs that were there already. So when a thread has
/// not been idle for a while, it looks before it sleeps. Times of sleeping would not tell: a control group can stop a
/// thread at any instruction.
pub(crate) struct LoadGauge {
    /// When the thread had nothing to do last.
    last_idle: Instant,
    /// Whether the driver has looked in vain since the last input.
    is_idle: bool,
    /// The present window, while the thread is busy.
    busy: Option<BusyWindow>,
}

/// A time over which a busy thread is watched.
struct BusyWindow {
    began: Instant,
    idle: Duration,
}

impl LoadGauge {
    /// How long a thread has something to do without a break until it is busy. What waits then has waited for about as
    /// long. Bursts of a few milliseconds are usual.
    const BUSY_AFTER: Duration = Duration::from_millis(50);

    /// How long a thread may have been without a break before it looks.
    const LOOK_AFTER: Duration = Duration::from_millis(10);

    /// A sleep that is as long was one, even if the driver did not look before.
    const SLEEP: Duration = Duration::from_millis(1);

    /// The length of a window.
    const WINDOW: Duration = Duration::from_millis(500);

    pub(crate) const fn new(now: Instant) -> Self {
        Self { last_idle: now, is_idle: false, busy: None }
    }

    /// Whether the driver has to look for inputs before it sleeps.
    pub(crate) fn must_look(&self, now: Instant) -> bool {
        !self.is_idle && (self.busy.is_some() || now - self.last_idle >= Self::LOOK_AFTER)
    }

    /// Notes how the driver waited, and from when to when. Returns what the node is told.
    pub(crate) fn on_wait(&mut self, wait: Wait, from: Instant, to: Instant) -> Option<Load> {
        match wait {
            Wait::Slept if self.is_idle || to - from >= Self::SLEEP => {
                self.last_idle = to;
                if let Some(window) = &mut self.busy {
                    window.idle += to - from;
                }
            }
            Wait::LookedInVain => self.last_idle = to,
            Wait::Slept | Wait::No => {}
        }
        self.is_idle = wait == Wait::LookedInVain;
        let Some(window) = &self.busy else {
            let is_busy = to - self.last_idle >= Self::BUSY_AFTER;
            self.busy = is_busy.then_some(BusyWindow { began: to, idle: Duration::ZERO });
            return is_busy.then_some(Load::Busy);
        };
        if to - window.began >= Self::WINDOW {
            // A thread that has a part of a processor, in a control group, cannot be less than busy for more than that
            // part.
            let is_over = window.idle >= (to - window.began) * 3 / 4;
            self.busy = (!is_over).then_some(BusyWindow { began: to, idle: Duration::ZERO });
            if is_over {
                return Some(Load::Normal);
            }
        }
        self.is_idle.then_some(Load::Idle)
    }
}

#[cfg(test)]
mod tests {
    use super::{Wait::*, *};

    const MS: Duration = Duration::from_millis(1);

    /// What the node is told when a driver waits so often, in one way and for as many milliseconds each.
    fn told(
        gauge: &mut LoadGauge,
        now: &mut Instant,
        (times, wait, ms): (u32, Wait, u32),
    ) -> Vec<Load> {
        let mut told = Vec::new();
        for _ in 0..times {
            let from = *now;
            *now += ms * MS;
            told.extend(gauge.on_wait(wait, from, *now));
        }
        told
    }

    #[test]
    fn a_thread_is_busy_after_a_time_without_a_break_and_until_it_mostly_sleeps() {
        use Load::{Busy, Idle, Normal};
        let mut now = crate::clock::now();
        let mut gauge = LoadGauge::new(now);
        for (what, wait, expected) in [
            ("a burst", (49, No, 1), &[][..]),
            ("a sleep", (1, Slept, 1), &[]),
            ("another burst", (49, No, 1), &[]),
            ("what may be a call that took its time", (1, Slept, 0), &[]),
            ("no break", (1, No, 1), &[Busy]),
            ("no break for longer", (1000, No, 1), &[]),
            ("a moment without work", (1, LookedInVain, 0), &[Idle]),
            ("a short sleep", (1, Slept, 1), &[]),
            ("many", (2, LookedInVain, 0), &[Idle, Idle]),
            ("work", (499, No, 1), &[]),
            ("a look", (1, LookedInVain, 0), &[Idle]),
            ("a long sleep", (1, Slept, 2000), &[Normal]),
            ("a look that tells nobody", (1, LookedInVain, 0), &[]),
            ("work again", (50, No, 1), &[Busy]),
        ] {
            assert_eq!(told(&mut gauge, &mut now, wait), expected, "{what}");
        }
    }

    #[test]
    fn a_driver_looks_before_it_sleeps_if_the_thread_was_not_idle_of_late() {
        let mut now = crate::clock::now();
        let mut gauge = LoadGauge::new(now);
        assert!(!gauge.must_look(now));
        told(&mut gauge, &mut now, (10, No, 1));
        assert!(gauge.must_look(now));
        told(&mut gauge, &mut now, (1, LookedInVain, 0));
        assert!(!gauge.must_look(now), "it would look for ever");
        told(&mut gauge, &mut now, (50, No, 1));
        for _ in 0..3 {
            assert!(gauge.must_look(now), "a busy thread always looks");
            told(&mut gauge, &mut now, (1, LookedInVain, 0));
            told(&mut gauge, &mut now, (1, Slept, 0));
        }
    }
}
