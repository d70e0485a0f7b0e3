//! A model of one direction of a link, with a rate, a drop-tail queue, a delay and random loss.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tandem_units::{ByteCount, Rate, Ratio};

/// The properties of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkConfig {
    pub(crate) rate: Rate,
    /// The one-way delay.
    pub(crate) delay: Duration,
    /// The capacity of the queue.
    pub(crate) queue: ByteCount,
    /// The share of random loss among the packets that went through the queue.
    pub(crate) loss: Ratio,
}

/// The state of a link. Because the rate is constant, the time until which the link is busy stands
/// for the length of the queue.
#[derive(Debug)]
pub(crate) struct Link {
    config: LinkConfig,
    busy_until: Instant,
    random: StdRng,
    /// The largest length of the queue since this value was reset.
    #[allow(dead_code, reason = "not every test that has a link reads it")]
    pub(crate) longest_queue: ByteCount,
}

impl Link {
    pub(crate) fn new(config: LinkConfig, now: Instant, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Self { config, busy_until: now, random, longest_queue: ByteCount::ZERO }
    }

    /// Replaces the properties of the link and returns the old ones. Packets under way arrive as
    /// before.
    #[allow(dead_code, reason = "not every test that has a link changes it")]
    pub(crate) fn replace_config(&mut self, config: LinkConfig) -> LinkConfig {
        std::mem::replace(&mut self.config, config)
    }

    /// Carries a packet. Returns the time at which it arrives at the other end, or `None` if it is
    /// lost.
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
