//! What tells that a report cannot be the whole truth: a bottleneck behind the proxy, of which the
//! proxy knows nothing, or a client that reports what it likes.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::TunnelInfo;

use super::is_older;
use crate::Factor;

/// Delay that nothing explains counts above this, and above a fifth of the least RTT.
const UNEXPLAINED: Duration = Duration::from_millis(30);

/// So many smoothed RTTs it has to last.
const RTTS: u32 = 2;

/// A share of what arrives at the proxy: less than it empties the queue behind it.
const DRAIN: Factor = Factor::from_percent(85);

/// By so much the cap grows in each RTT without such a queue.
const GROWTH: Factor = Factor::from_percent(110);

/// A bottleneck that was found is looked for more closely for so long.
const KNOWN: Duration = Duration::from_secs(30);

/// Reports that are remembered at most.
const REPORTS_MAX: usize = 256;

/// How much of the end-to-end RTT the tunnel explains: the queue of the proxy, that of its bottleneck,
/// and the time in which what was lost comes again, for which everything waits that came after it.
fn in_tunnel(info: &TunnelInfo) -> Duration {
    let at_bottleneck = info.smoothed_rtt.saturating_sub(info.min_rtt);
    let is_repairing = info.retransmit_ratio > Ratio::ZERO;
    let at_exit = if is_repairing { info.min_rtt } else { Duration::ZERO };
    at_bottleneck + info.sending_rate.time_to_send(info.queue) + at_exit
}

/// What a report says of the way beyond the proxy.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    /// The least end-to-end RTT since the report before.
    rtt: Option<Duration>,
    /// How much of it the tunnel explains.
    in_tunnel: Duration,
    /// For how long the tunnel's link was gone, in which what it had waited.
    silence: Duration,
    arrival_rate: Option<Rate>,
}

/// What was measured end to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delays {
    pub(super) least_rtt: Duration,
    pub(super) smoothed_rtt: Duration,
    /// The least since the report before.
    pub(super) cycle_rtt: Option<Duration>,
    /// For how long the tunnel's link was gone since then.
    pub(super) silence: Duration,
}

/// A bottleneck between origin and proxy.
#[derive(Clone, Debug, Default)]
pub(super) struct BehindProxy {
    /// The reports of the last smoothed RTTs.
    seen: VecDeque<Seen>,
    /// Since when there is a queue there.
    since: Option<Instant>,
    /// When there was one last.
    known: Option<Instant>,
    /// What the origin sends at most because of it, and since when.
    cap: Option<(Rate, Instant)>,
}

impl BehindProxy {
    pub(super) fn cap(&self) -> Option<Rate> {
        self.cap.map(|(cap, _)| cap)
    }

    /// Looks at a report, by which the origin would send at this rate.
    pub(super) fn on_report(
        &mut self,
        now: Instant,
        info: &TunnelInfo,
        rate: Rate,
        Delays { least_rtt, smoothed_rtt, cycle_rtt, silence }: Delays,
    ) {
        let in_tunnel = in_tunnel(info);
        let (rtt, arrival_rate) = (cycle_rtt, info.arrival_rate);
        self.seen.push_back(Seen { at: now, rtt, in_tunnel, silence, arrival_rate });
        let window = smoothed_rtt * RTTS;
        while self.seen.len() > REPORTS_MAX
            || self.seen.front().is_some_and(|seen| is_older(now, seen.at, window))
        {
            self.seen.pop_front();
        }
        let is_known = self.known.is_some_and(|at| !is_older(now, at, KNOWN));
        let patience = if is_known { Duration::ZERO } else { window };
        let excess = self.excess(least_rtt, if is_known { 1 } else { REPORTS_MAX });
        let is_queueing = excess > UNEXPLAINED.max(least_rtt / 5);
        self.since = is_queueing.then(|| self.since.unwrap_or(now));
        match self.cap {
            None if self.since.is_some_and(|since| now >= since + patience) => self.drain(now),
            None => {}
            Some((_, set)) if !is_older(now, set, smoothed_rtt) => {}
            Some(_) if is_queueing => self.drain(now),
            Some((cap, _)) => self.cap = Some((GROWTH.of_rate(cap), now)),
        }
        self.cap = self.cap.filter(|(cap, _)| *cap <= rate);
    }

    /// What is left of the least RTT of so many reports when the path and the longest that the tunnel
    /// explains are taken off: packets may have waited there long before the report.
    fn excess(&self, least_rtt: Duration, reports: usize) -> Duration {
        let newest = self.seen.iter().rev().filter_map(|seen| seen.rtt).take(reports);
        let rtt = newest.min().unwrap_or_default();
        let in_tunnel = self.seen.iter().map(|seen| seen.in_tunnel).max().unwrap_or_default();
        let silence = self.seen.iter().map(|seen| seen.silence).sum();
        rtt.saturating_sub(least_rtt).saturating_sub(in_tunnel).saturating_sub(silence)
    }

    fn drain(&mut self, now: Instant) {
        self.known = Some(now);
        if let Some(most) = self.seen.iter().filter_map(|seen| seen.arrival_rate).max() {
            self.cap = Some((DRAIN.of_rate(most), now));
        }
    }
}

/// Of what is acknowledged, one part in so many may be lost besides.
const LOSS_PARTS: u64 = 10;

/// How much may be lost beyond that before reports are set aside.
const PATIENCE: ByteCount = ByteCount::new(64_000);

/// Losses count so many RTTs after reports did.
const AFTER_RTTS: u32 = 2;

/// How long reports are set aside after the first time, and at most.
const ASIDE: Duration = Duration::from_secs(2);
const ASIDE_MAX: Duration = Duration::from_secs(60);

/// Whether reports can be true: while a tunnel repairs, next to nothing is lost end to end.
#[derive(Clone, Debug, Default)]
pub(super) struct Trust {
    /// When reports counted last.
    followed: Option<Instant>,
    /// Lost beyond what may be.
    excess: ByteCount,
    aside: Option<(Instant, Duration)>,
}

impl Trust {
    pub(super) fn on_followed(&mut self, now: Instant) {
        self.followed = Some(now);
    }

    pub(super) fn on_acked(&mut self, bytes: ByteCount) {
        self.excess = self
            .excess
            .saturating_sub(bytes.mul_div_floor(ByteCount::new(1), ByteCount::new(LOSS_PARTS)));
    }

    pub(super) fn on_lost(&mut self, now: Instant, bytes: ByteCount, rtt: Duration) {
        if self.followed.is_none_or(|at| is_older(now, at, rtt * AFTER_RTTS)) {
            return;
        }
        self.excess += bytes;
        if self.excess > PATIENCE && self.holds(now) {
            let time = self.aside.map_or(ASIDE, |(_, time)| (time * 2).min(ASIDE_MAX));
            self.aside = Some((now, time));
            self.excess = ByteCount::ZERO;
        }
    }

    /// Whether reports count.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.aside.is_none_or(|(since, time)| is_older(now, since, time))
    }

    /// Whether they were set aside before.
    pub(super) const fn is_shaken(&self) -> bool {
        self.aside.is_some()
    }
}
