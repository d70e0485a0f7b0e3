//! How much the access domain takes: a model of its rate and of its queue, which belongs to the user alone.

use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate};

use super::MdccConfig;
use crate::{Factor, RateSample, segments::DomainRtt};

/// If the queue is shorter than this part of its target, the domain may carry more.
const EMPTY_DIVISOR: u32 = 4;

/// The factors of the window in rounds of probing, one after the other.
const PROBES: [Factor; 3] =
    [Factor::from_percent(125), Factor::from_percent(150), Factor::from_percent(200)];

/// The pacing rate as a factor of what the domain takes.
const PACING: Factor = Factor::from_percent(110);

/// A loss that is detected this many rounds after a probe, or earlier, is due to it.
const LOSS_ROUNDS: u32 = 2;

/// The rounds without probing after a probe that has lost packets.
const PROBE_PAUSE: u32 = 10;

/// The factor of the window while the least RTT is measured.
const DRAIN: Factor = Factor::from_percent(75);

/// The least time between two such measurements.
const DRAIN_PAUSE: Duration = Duration::from_secs(4);

/// The factor of the rate after a round that has lost more than [`MdccConfig::loss_max`].
const AFTER_LOSS: Factor = Factor::from_percent(70);

/// The least window and the least target queue in packets.
const PACKETS_LEAST: u64 = 3;

/// What one packet-timed round trip has shown.
#[derive(Clone, Copy, Debug, Default)]
struct AccessRound {
    /// The round ends when a packet is acknowledged that was sent after so much was delivered.
    end: ByteCount,
    /// The least RTT of the access domain.
    least: Option<Duration>,
    /// The largest rate.
    rate: Option<Rate>,
    acked: ByteCount,
    lost: ByteCount,
}

/// The access domain of one connection.
#[derive(Clone, Debug)]
pub(super) struct Access {
    config: MdccConfig,
    packet: ByteCount,
    round: AccessRound,
    /// The largest rate of the round before.
    rate_before: Option<Rate>,
    /// The step of [`PROBES`].
    probe: Option<usize>,
    /// The rounds since the last one of probing.
    since_probe: u32,
    /// The rounds without probing that are left.
    pause: u32,
    is_draining: bool,
    /// When it began to drain the queue last.
    drained: Option<Instant>,
    /// The least RTT in the present ACK frame.
    newest: Option<Duration>,
}

impl Access {
    pub(super) fn new(config: MdccConfig, packet: ByteCount) -> Self {
        Self {
            config,
            packet,
            round: AccessRound::default(),
            rate_before: None,
            probe: Some(PROBES.len() - 1),
            since_probe: 0,
            pause: 0,
            is_draining: false,
            drained: None,
            newest: None,
        }
    }

    pub(super) const fn set_packet(&mut self, packet: ByteCount) {
        self.packet = packet;
    }

    /// Notes how long a packet took from the PEP to the receiver, with its acknowledgement.
    pub(super) fn on_rtt(&mut self, rtt: Duration) {
        let least = |before: Option<Duration>| Some(before.map_or(rtt, |before| before.min(rtt)));
        self.newest = least(self.newest);
        self.round.least = least(self.round.least);
    }

    pub(super) fn on_acked(&mut self, bytes: ByteCount) {
        self.round.acked += bytes;
    }

    pub(super) fn on_lost(&mut self, bytes: ByteCount) {
        self.round.lost += bytes;
    }

    /// Ends an ACK frame. `delivered`: the bytes delivered so far.
    pub(super) fn on_sample(
        &mut self,
        now: Instant,
        sample: &RateSample,
        delivered: ByteCount,
        rtt: &DomainRtt,
    ) {
        if let Some(rate) = sample.delivery_rate
            && (!sample.is_app_limited || self.rate().is_none_or(|most| rate > most))
        {
            self.round.rate = self.round.rate.max(Some(rate));
        }
        let newest = self.newest.take().map(|newest| newest.saturating_sub(rtt.least));
        if newest.is_some_and(|queue| queue > self.target()) {
            self.probe = None;
        }
        if sample.prior_delivered >= self.round.end {
            self.end_round(now, delivered, rtt);
        }
    }

    fn end_round(&mut self, now: Instant, delivered: ByteCount, rtt: &DomainRtt) {
        let round = std::mem::replace(
            &mut self.round,
            AccessRound { end: delivered, ..AccessRound::default() },
        );
        let queue = round.least.map(|least| least.saturating_sub(rtt.least));
        let target = self.target();
        self.rate_before = round.rate.or(self.rate_before);
        let bound = self.config.loss_max.of_bytes(round.acked + round.lost);
        self.since_probe = self.probe.map_or(self.since_probe.saturating_add(1), |_| 0);
        self.pause = self.pause.saturating_sub(1);
        if round.lost > bound && round.lost > self.packet.saturating_mul(PACKETS_LEAST) {
            if self.since_probe <= LOSS_ROUNDS {
                self.pause = PROBE_PAUSE; // the buffer is too small for what was tried, and the rate is right
            } else {
                self.rate_before = self.rate_before.map(|rate| AFTER_LOSS.of_rate(rate));
            }
            self.probe = None;
        } else if self.pause > 0 {
            self.probe = None;
        } else if queue.is_some_and(|queue| queue < target / EMPTY_DIVISOR) {
            let next = self.probe.map_or(0, |step| (step + 1).min(PROBES.len() - 1));
            self.probe = Some(next);
        } else if queue.is_some() {
            self.probe = None;
        }
        // One round is enough for a sample without a queue, unless the least RTT has really grown.
        let is_over =
            self.drained.is_some_and(|at| now.saturating_duration_since(at) < DRAIN_PAUSE);
        self.is_draining = !is_over && rtt.is_stale(now, target / EMPTY_DIVISOR);
        if self.is_draining {
            self.drained = Some(now);
        }
    }

    /// The largest rate of this round and of the one before.
    pub(super) fn rate(&self) -> Option<Rate> {
        self.rate_before.max(self.round.rate)
    }

    /// The target of the queue: a time, and some packets at least.
    fn target(&self) -> Duration {
        let packets = self.packet.saturating_mul(PACKETS_LEAST);
        let least = self.rate().map(|rate| rate.time_to_send(packets)).unwrap_or_default();
        self.config.queue_target.max(least)
    }

    /// How much may be in flight, if the path has this RTT with an empty queue here. `None`: no rate is known.
    pub(super) fn window(&self, rtt: Duration) -> Option<ByteCount> {
        let rate = self.rate()?;
        let least = self.packet.saturating_mul(PACKETS_LEAST);
        if self.is_draining {
            return Some(DRAIN.of_bytes(rate.bytes_in(rtt)).max(least));
        }
        let window = rate.bytes_in(rtt + self.target());
        Some(self.factor().of_bytes(window) + least)
    }

    /// The rate at which packets leave, if the access domain is the limit. It is little more than what the
    /// domain takes, so that packets fill its queue evenly, and not in a burst for each round trip.
    pub(super) fn pacing_rate(&self) -> Option<Rate> {
        let factor = if self.is_draining { DRAIN } else { self.factor() };
        Some(PACING.of_rate(factor.of_rate(self.rate()?)))
    }

    /// The factor of the window in this round of probing.
    fn factor(&self) -> Factor {
        self.probe.and_then(|step| PROBES.get(step)).copied().unwrap_or(Factor::ONE)
    }
}
