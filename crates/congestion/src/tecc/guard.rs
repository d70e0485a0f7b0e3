//! What tells that a report cannot be the whole truth: a bottleneck behind the proxy, of which the
//! proxy knows nothing, or a client that reports what it likes.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tandem_units::{ByteCount, Rate};
use tandem_wire::TunnelInfo;

use super::is_older;

/// Delay that nothing explains counts above this, and above a fifth of the least RTT.
const UNEXPLAINED: Duration = Duration::from_millis(30);

/// What arrives at the proxy is less than this share of what is sent, in percent.
const LESS_PERCENT: u64 = 80;

/// So many RTTs it has to last.
const RTTS: u32 = 2;

/// A share of what arrives at the proxy, in percent: less than it empties the queue behind it.
const DRAIN_PERCENT: u64 = 85;

/// By so many percent the cap grows in each RTT without such a queue.
const GROWTH_PERCENT: u64 = 110;

/// Reports that are remembered at most.
const ARRIVALS_MAX: usize = 256;

/// A bottleneck between origin and proxy.
#[derive(Clone, Debug, Default)]
pub(super) struct BehindProxy {
    /// What arrived at the proxy, of late.
    arrivals: VecDeque<(Instant, Rate)>,
    /// Since when there is a queue there.
    since: Option<Instant>,
    /// What the origin sends at most because of it, and since when.
    cap: Option<(Rate, Instant)>,
}

impl BehindProxy {
    pub(super) fn cap(&self) -> Option<Rate> {
        self.cap.map(|(cap, _)| cap)
    }

    /// Looks at a report. `cycle_rtt`: the least end-to-end RTT since the last; `rate`: what the
    /// origin would send at.
    pub(super) fn on_report(
        &mut self,
        now: Instant,
        info: &TunnelInfo,
        (least_rtt, cycle_rtt): (Duration, Option<Duration>),
        rate: Rate,
    ) {
        let window = least_rtt * RTTS;
        self.arrivals.extend(info.arrival_rate.map(|rate| (now, rate)));
        while self.arrivals.len() > ARRIVALS_MAX
            || self.arrivals.front().is_some_and(|(at, _)| is_older(now, *at, window))
        {
            self.arrivals.pop_front();
        }
        let (Some(cycle_rtt), Some(arrives)) = (cycle_rtt, self.most()) else { return };
        let in_tunnel = info.smoothed_rtt.saturating_sub(info.min_rtt);
        let explained = info.sending_rate.time_to_send(info.queue) + in_tunnel;
        let excess = cycle_rtt.saturating_sub(least_rtt).saturating_sub(explained);
        let is_queueing = excess > UNEXPLAINED.max(least_rtt / 5);
        match self.cap {
            None => {
                let is_less = arrives.bits_per_second() < percent(rate, LESS_PERCENT);
                let since = (is_queueing && is_less).then(|| self.since.unwrap_or(now));
                self.since = since;
                if since.is_some_and(|since| is_older(now, since, window)) {
                    self.set_cap(now, percent(arrives, DRAIN_PERCENT));
                }
            }
            Some((_, set)) if !is_older(now, set, least_rtt) => {}
            Some(_) if is_queueing => self.set_cap(now, percent(arrives, DRAIN_PERCENT)),
            Some((cap, _)) => self.set_cap(now, percent(cap, GROWTH_PERCENT)),
        }
        if self.cap().is_some_and(|cap| cap > rate) {
            self.cap = None;
            self.since = None;
        }
    }

    fn set_cap(&mut self, now: Instant, bits_per_second: u64) {
        self.cap = Rate::from_bps(bits_per_second).map(|cap| (cap, now));
    }

    fn most(&self) -> Option<Rate> {
        self.arrivals.iter().map(|(_, rate)| *rate).max()
    }
}

fn percent(rate: Rate, percent: u64) -> u64 {
    rate.bits_per_second().saturating_mul(percent) / 100
}

/// Of what is sent, one part in so many may be lost in a round.
const LOSS_PARTS: u64 = 5;

/// So many rounds in a row.
const LOSSY_ROUNDS: u32 = 2;

/// Rounds with less say nothing.
const ROUND_LEAST: ByteCount = ByteCount::new(30_000);

/// How long reports are set aside after the first time, and at most.
const ASIDE: Duration = Duration::from_secs(2);
const ASIDE_MAX: Duration = Duration::from_secs(60);

/// Whether reports can be true: while a tunnel repairs, next to nothing is lost end to end.
#[derive(Clone, Debug, Default)]
pub(super) struct Trust {
    acked: ByteCount,
    lost: ByteCount,
    lossy_rounds: u32,
    aside: Option<(Instant, Duration)>,
}

impl Trust {
    pub(super) fn on_acked(&mut self, bytes: ByteCount) {
        self.acked += bytes;
    }

    pub(super) fn on_lost(&mut self, bytes: ByteCount) {
        self.lost += bytes;
    }

    /// Whether reports count.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.aside.is_none_or(|(since, time)| is_older(now, since, time))
    }

    /// A round trip has ended, in which reports counted or not.
    pub(super) fn on_round(&mut self, now: Instant, is_following: bool) {
        if self.acked + self.lost < ROUND_LEAST {
            return;
        }
        let sent = self.acked + self.lost;
        let is_lossy = is_following && self.lost.saturating_mul(LOSS_PARTS) > sent;
        self.lossy_rounds = if is_lossy { self.lossy_rounds + 1 } else { 0 };
        (self.acked, self.lost) = (ByteCount::ZERO, ByteCount::ZERO);
        if self.lossy_rounds >= LOSSY_ROUNDS {
            let time = self.aside.map_or(ASIDE, |(_, time)| (time * 2).min(ASIDE_MAX));
            self.aside = Some((now, time));
            self.lossy_rounds = 0;
        }
    }
}
