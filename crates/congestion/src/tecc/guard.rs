//! The checks of reports against the origin's end-to-end measurements.
//!
//! A report can be incomplete: the bottleneck may lie between origin and proxy, where the proxy
//! does not see it ([`BehindProxy`]). A report can also be false: a client may invent it
//! ([`Trust`]).

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::TunnelInfo;

use super::is_older;
use crate::Factor;

/// A delay that the report does not explain counts as a queue between origin and proxy if it is
/// above this and above a fifth of the least RTT.
const UNEXPLAINED: Duration = Duration::from_millis(30);

/// The unexplained delay has to last for this number of smoothed RTTs.
const RTTS: u32 = 2;

/// The cap that drains the queue between origin and proxy, as a share of the rate at which packets
/// arrive at the proxy.
const DRAIN: Factor = Factor::from_percent(85);

/// The growth of the cap in each RTT without such a queue.
const GROWTH: Factor = Factor::from_percent(110);

/// For this time after such a queue was found, a single report is enough to find it again.
const KNOWN: Duration = Duration::from_secs(30);

/// The largest number of reports that are kept.
const REPORTS_MAX: usize = 256;

/// Returns the part of the end-to-end RTT that the tunnel explains. It is the delay in the proxy's
/// queue, the delay in the queue of the tunnel's bottleneck and, if the tunnel repairs losses, the
/// time of one retransmission, for which all later packets wait in the resequencer.
fn in_tunnel(info: &TunnelInfo) -> Duration {
    let at_bottleneck = info.smoothed_rtt.saturating_sub(info.min_rtt);
    let is_repairing = info.retransmit_ratio > Ratio::ZERO;
    let at_exit = if is_repairing { info.min_rtt } else { Duration::ZERO };
    at_bottleneck + info.sending_rate.time_to_send(info.queue) + at_exit
}

/// What one report, and the measurements since the previous one, say about the path between origin
/// and proxy.
#[derive(Clone, Copy, Debug)]
struct SeenReport {
    at: Instant,
    /// The least end-to-end RTT since the previous report.
    rtt: Option<Duration>,
    /// The part of it that the tunnel explains.
    in_tunnel: Duration,
    /// The longest interruption of the tunnel's link, during which packets waited in the tunnel.
    silence: Duration,
    arrival_rate: Option<Rate>,
}

/// The end-to-end measurements that a report is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct E2eDelays {
    pub(super) least_rtt: Duration,
    pub(super) smoothed_rtt: Duration,
    /// The least RTT since the previous report.
    pub(super) cycle_rtt: Option<Duration>,
    /// The longest interruption of the tunnel's link since then.
    pub(super) silence: Duration,
}

/// Finds a bottleneck between origin and proxy, and limits the origin's rate while there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct BehindProxy {
    /// The reports of the last smoothed RTTs.
    seen: VecDeque<SeenReport>,
    /// The time at which the present queue was first seen.
    since: Option<Instant>,
    /// The time at which a queue was last drained.
    known: Option<Instant>,
    /// The limit of the origin's rate, and the time at which it was last set.
    cap: Option<(Rate, Instant)>,
}

impl BehindProxy {
    pub(super) fn cap(&self) -> Option<Rate> {
        self.cap.map(|(cap, _)| cap)
    }

    /// Examines a report from which Algorithm 1 has computed the rate `rate`.
    pub(super) fn on_report(
        &mut self,
        now: Instant,
        info: &TunnelInfo,
        rate: Rate,
        E2eDelays { least_rtt, smoothed_rtt, cycle_rtt, silence }: E2eDelays,
    ) {
        let in_tunnel = in_tunnel(info);
        let (rtt, arrival_rate) = (cycle_rtt, info.arrival_rate);
        self.seen.push_back(SeenReport { at: now, rtt, in_tunnel, silence, arrival_rate });
        let window = smoothed_rtt * RTTS;
        while self.seen.len() > REPORTS_MAX
            || self.seen.front().is_some_and(|seen| is_older(now, seen.at, window))
        {
            self.seen.pop_front();
        }
        let is_known = self.known.is_some_and(|at| !is_older(now, at, KNOWN));
        let confirmation = if is_known { Duration::ZERO } else { window };
        let excess = self.excess(least_rtt, if is_known { 1 } else { REPORTS_MAX });
        let is_queueing = excess > UNEXPLAINED.max(least_rtt / 5);
        self.since = is_queueing.then(|| self.since.unwrap_or(now));
        match self.cap {
            None if self.since.is_some_and(|since| now >= since + confirmation) => self.drain(now),
            None => {}
            Some((_, set)) if !is_older(now, set, smoothed_rtt) => {}
            Some(_) if is_queueing => self.drain(now),
            Some((cap, _)) => self.cap = Some((GROWTH.of_rate(cap), now)),
        }
        self.cap = self.cap.filter(|(cap, _)| *cap <= rate);
    }

    /// Returns the delay that neither the path nor the tunnel explains: the least RTT of the newest
    /// `reports` reports minus the path's least RTT, minus the largest delay that the tunnel
    /// explained in any kept report, minus the interruptions of its link. The largest one counts
    /// because packets may have waited in the tunnel long before the report.
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

/// The acknowledged bytes per byte of loss that is tolerated.
const LOSS_PARTS: u64 = 10;

/// The loss beyond that, in bytes, at which reports are set aside: this, and at least what is acknowledged in
/// [`EXCESS_TIME`].
const EXCESS_LEAST: ByteCount = ByteCount::new(64_000);

/// On a path of 10 Mbit/s it stands for [`EXCESS_LEAST`]. On a faster path more packets are lost when a start
/// overflows a queue, although the reports are true.
const EXCESS_TIME: Duration = Duration::from_millis(50);

/// Losses count until this number of smoothed RTTs after reports were last followed.
const AFTER_RTTS: u32 = 2;

/// The time for which reports are set aside at first. It doubles each time, up to [`ASIDE_MAX`].
const ASIDE: Duration = Duration::from_secs(2);
/// The longest time for which reports are set aside.
const ASIDE_MAX: Duration = Duration::from_secs(60);

/// Reports count as doubtful for this number of times the time for which they were set aside, counted from
/// when they were set aside: at first for a minute, so that a liar gains hardly more than by one lie.
const DOUBT: u32 = 30;

/// Decides by the end-to-end loss whether reports can be true: while a tunnel repairs losses,
/// hardly any packet is lost end to end.
#[derive(Clone, Debug, Default)]
pub(super) struct Trust {
    /// The time at which reports were last followed.
    followed: Option<Instant>,
    /// The bytes lost beyond the tolerated share.
    excess: ByteCount,
    /// The time at which reports were last set aside, and for how long.
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

    /// Notes a loss on a path with this smoothed RTT and acknowledged rate.
    pub(super) fn on_lost(
        &mut self,
        now: Instant,
        bytes: ByteCount,
        (rtt, acked): (Duration, Option<Rate>),
    ) {
        if self.followed.is_none_or(|at| is_older(now, at, rtt * AFTER_RTTS)) {
            return;
        }
        self.excess += bytes;
        let acked = acked.map_or(ByteCount::ZERO, |rate| rate.bytes_in(EXCESS_TIME));
        if self.excess > EXCESS_LEAST.max(acked) && self.holds(now) {
            let time = self.aside.map_or(ASIDE, |(_, time)| (time * 2).min(ASIDE_MAX));
            self.aside = Some((now, time));
            self.excess = ByteCount::ZERO;
        }
    }

    /// Returns whether reports are not set aside at present.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.aside.is_none_or(|(since, time)| is_older(now, since, time))
    }

    /// Returns whether reports were set aside lately.
    pub(super) fn is_shaken(&self, now: Instant) -> bool {
        self.aside.is_some_and(|(since, time)| !is_older(now, since, time * DOUBT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_start;

    const RTT: Duration = Duration::from_millis(80);

    #[test]
    fn the_loss_that_shakes_trust_grows_with_the_rate() {
        for (mbps, bytes) in
            [(0, 64_000), (1, 64_000), (10, 64_000), (100, 625_000), (1000, 6_250_000)]
        {
            let acked = (mbps > 0).then(|| Rate::from_mbps(mbps));
            for (lost, holds) in [(bytes, true), (bytes + 1, false)] {
                let now = test_start();
                let mut trust = Trust::default();
                trust.on_followed(now);
                trust.on_lost(now, ByteCount::new(lost), (RTT, acked));
                assert_eq!(trust.holds(now), holds, "{mbps} Mbit/s, {lost} bytes");
            }
        }
    }

    #[test]
    fn trust_comes_back_later_each_time() {
        let mut now = test_start();
        let mut trust = Trust::default();
        for seconds in [2, 4, 8, 16, 32, 60, 60] {
            trust.on_followed(now);
            assert!(!trust.is_shaken(now));
            trust.on_lost(now, ByteCount::new(100_000), (RTT, None));
            let at = |time: u64| now + Duration::from_secs(time) + Duration::from_millis(1);
            assert!(!trust.holds(at(seconds - 1)) && trust.holds(at(seconds)), "{seconds} s");
            let doubt = seconds * u64::from(DOUBT);
            assert!(trust.is_shaken(at(doubt - 1)) && !trust.is_shaken(at(doubt)), "{seconds} s");
            now = at(doubt);
        }
    }
}
