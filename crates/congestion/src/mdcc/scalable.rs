use std::time::Instant;

use tandem_units::ByteCount;

/// The window of Scalable TCP (T. Kelly, *Scalable TCP: improving performance in highspeed wide area
/// networks*, 2003), with which the paper lets acknowledgements of the receiver clock the access domain.
#[derive(Clone, Debug)]
pub(super) struct Scalable {
    window: ByteCount,
    has_lost: bool,
    recovery_start: Option<Instant>,
}

/// `a`: the window grows by a hundredth of what is acknowledged.
const GROWTH_DIVISOR: u64 = 100;

/// `b`: a loss takes an eighth of the window.
const LOSS_DIVISOR: u64 = 8;

impl Scalable {
    pub(super) const fn new(window: ByteCount) -> Self {
        Self { window, has_lost: false, recovery_start: None }
    }

    pub(super) const fn window(&self) -> ByteCount {
        self.window
    }

    /// Grows the window. `is_limit`: it keeps the sender from sending more.
    pub(super) fn on_acked(&mut self, bytes: ByteCount, sent: Instant, is_limit: bool) {
        if !is_limit || self.recovery_start.is_some_and(|start| sent <= start) {
            return;
        }
        // It keeps the slow start of TCP.
        let divisor = if self.has_lost { GROWTH_DIVISOR } else { 1 };
        self.window += ByteCount::new(bytes.get() / divisor);
    }

    /// Reduces the window, unless the packet was sent before the last reduction.
    pub(super) fn on_congestion(&mut self, now: Instant, sent: Instant, least: ByteCount) {
        if self.recovery_start.is_some_and(|start| sent <= start) {
            return;
        }
        (self.recovery_start, self.has_lost) = (Some(now), true);
        let lost = ByteCount::new(self.window.get() / LOSS_DIVISOR);
        self.window = self.window.saturating_sub(lost).max(least);
    }

    pub(super) const fn restart(&mut self, window: ByteCount) {
        (self.window, self.recovery_start) = (window, None);
    }
}
