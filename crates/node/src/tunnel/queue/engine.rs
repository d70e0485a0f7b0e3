//! The engine below the queue, as one call of the queue sees it.

use std::time::Instant;

use crate::carrier::QueueCarrier;

/// The carrier that takes payloads, and the time at which it takes them.
pub(super) struct Engine<'a, C> {
    pub(super) now: Instant,
    pub(super) carrier: &'a mut C,
    /// The limit on the stream data in the engine that was set last.
    held: Option<StreamAllowance>,
}

/// How much stream data the engine may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamAllowance {
    /// Two congestion windows, for capsules.
    TwoWindows,
    /// What is in flight and one burst, for bytes of TCP connections.
    Burst,
}

impl<'a, C: QueueCarrier> Engine<'a, C> {
    pub(super) const fn new(now: Instant, carrier: &'a mut C) -> Self {
        Self { now, carrier, held: None }
    }

    pub(super) fn hold_two_windows(&mut self) {
        if self.held.replace(StreamAllowance::TwoWindows) != Some(StreamAllowance::TwoWindows) {
            self.carrier.hold_two_windows();
        }
    }

    pub(super) fn hold_burst(&mut self) {
        if self.held.replace(StreamAllowance::Burst) != Some(StreamAllowance::Burst) {
            self.carrier.hold_burst();
        }
    }
}
