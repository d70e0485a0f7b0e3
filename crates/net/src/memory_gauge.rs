//! When a driver measures the memory of its process.

use std::time::{Duration, Instant};

/// Measures the memory of the process, but not too often.
pub(crate) struct MemoryGauge {
    measure: Option<fn() -> u64>,
    next: Option<Instant>,
    /// Whether the node shares the memory with others.
    is_shared: bool,
}

impl MemoryGauge {
    /// The time between two measurements. A link of 10 Gbit/s carries 25 MB in this time.
    const INTERVAL: Duration = Duration::from_millis(20);

    /// How much later the next measurement is at the latest, for a node that shares the memory with others.
    /// It may have the heaviest connection when nothing else wakes it.
    const IDLE: Duration = Duration::from_millis(480);

    pub(crate) fn new(measure: Option<fn() -> u64>, is_shared: bool) -> Self {
        Self { measure, next: None, is_shared }
    }

    /// When to measure at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let next = self.next.filter(|_| self.is_shared)?;
        Some(next + Self::IDLE)
    }

    /// The bytes in use, if it is time for a measurement.
    pub(crate) fn measure(&mut self, now: Instant) -> Option<u64> {
        let measure = self.measure?;
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        self.next = Some(now + Self::INTERVAL);
        Some(measure())
    }
}
