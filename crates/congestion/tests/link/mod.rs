//! One direction of a link: a rate, a drop-tail queue, a delay, then random loss.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tandem_units::{ByteCount, Rate, Ratio};

/// What a link is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkConfig {
    pub(crate) rate: Rate,
    /// One way.
    pub(crate) delay: Duration,
    /// Of the queue, what is being sent not counted.
    pub(crate) queue: ByteCount,
    /// Of the packets that went through the queue.
    pub(crate) loss: Ratio,
}

/// A link at work. A rate that does not change makes the queue a time: until when the link is busy.
#[derive(Debug)]
pub(crate) struct Link {
    config: LinkConfig,
    busy_until: Instant,
    random: StdRng,
    /// The longest that the queue has been since it was reset.
    #[allow(dead_code, reason = "not every test that has a link reads it")]
    pub(crate) longest_queue: ByteCount,
}

impl Link {
    pub(crate) fn new(config: LinkConfig, now: Instant, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Self { config, busy_until: now, random, longest_queue: ByteCount::ZERO }
    }

    /// From now on the link is another; what it is carrying arrives as it would have.
    #[allow(dead_code, reason = "not every test that has a link changes it")]
    pub(crate) fn replace_config(&mut self, config: LinkConfig) -> LinkConfig {
        std::mem::replace(&mut self.config, config)
    }

    /// A packet comes; the time at which it is at the other end, or `None` if it is lost.
    pub(crate) fn carry(&mut self, now: Instant, bytes: ByteCount) -> Option<Instant> {
        let wait = self.busy_until.saturating_duration_since(now);
        let queued = self.config.rate.bytes_in(wait);
        if queued + bytes > self.config.queue {
            return None;
        }
        self.longest_queue = self.longest_queue.max(queued + bytes);
        self.busy_until = self.busy_until.max(now) + self.config.rate.time_to_send(bytes);
        let is_lost = self.random.random_bool(self.config.loss.as_f64());
        (!is_lost).then_some(self.busy_until + self.config.delay)
    }
}
