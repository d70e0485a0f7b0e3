//! The timers of a sender: the next loss, probes, and memory that is given back.

use std::time::{Duration, Instant};

use super::{IDLE, Recovery};
use crate::fates::Fates;

/// The longest time between two probes, unless the RTT asks for more. A path that comes back is noticed within it.
const PROBE_TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// Doublings of the probe timeout.
const BACK_OFF_MAX: u32 = 16;

/// For how many probe timeouts a late acknowledgement of a lost packet is waited for.
const LATE_PROBE_TIMEOUTS: u32 = 3;

impl Recovery {
    /// When something is to be done about what was sent. `may_probe`: whether packets may leave.
    pub(crate) fn next_timeout(&self, may_probe: bool) -> Option<Instant> {
        if self.loss_time.is_some() {
            return self.loss_time;
        }
        if self.in_flight > 0 { may_probe.then(|| self.probe_time()) } else { self.idle_time() }
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        may_probe: bool,
        fates: &mut (impl Fates + ?Sized),
    ) {
        if self.loss_time.is_some_and(|time| time <= now) {
            self.detect_losses(now, fates);
            self.forget(now);
        } else if self.loss_time.is_none()
            && may_probe
            && self.in_flight > 0
            && self.probe_time() <= now
        {
            // RFC 9002 §6.2.4: one or two packets; the first time may be an accident.
            self.probes = if self.probe_count == 0 { 1 } else { 2 };
            self.probe_count = (self.probe_count + 1).min(BACK_OFF_MAX);
            self.probe_base = now;
            self.counts.probe_timeouts += 1;
            self.ecn.on_probe_timeout();
        } else if self.idle_time().is_some_and(|time| time <= now) {
            self.sent.forget(Some(now));
            self.sent.release();
        }
    }

    fn probe_time(&self) -> Instant {
        let timeout = self.rtt.probe_timeout();
        let backed_off = timeout.saturating_mul(1 << self.probe_count);
        self.probe_base + backed_off.min(PROBE_TIMEOUT_MAX.max(timeout))
    }

    /// When an idle sender gives memory back.
    fn idle_time(&self) -> Option<Instant> {
        let holds = !self.sent.is_empty() || self.sent.has_spare();
        (holds && self.in_flight == 0)
            .then(|| self.probe_base + (self.rtt.probe_timeout() * LATE_PROBE_TIMEOUTS).max(IDLE))
    }

    pub(super) fn forget(&mut self, now: Instant) {
        let late = self.rtt.probe_timeout() * LATE_PROBE_TIMEOUTS;
        self.sent.forget(now.checked_sub(late));
    }
}
