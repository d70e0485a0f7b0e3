//! What an end of a tunnel tells of it, so that who sends through it sends no faster than it can
//! (`TUNNEL_INFO`, TECC §4.2.2): a proxy its clients, a client that uploads its own sender.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::{TunnelInfo, Urgency, VarInt};

use super::{carrier::Carrier, queue::Queue};
use crate::{
    proxy::ProxyConfig,
    quic::{PathEstimate, StreamId},
};

/// Flows of one connection that are reported on at most; the others get no reports.
const FLOWS_MAX: usize = 64;

/// A queue that has grown to twice of what was reported, and by this, is reported at once.
const EARLY_BYTES: usize = 64_000;

/// Reports on a flow of which nothing comes and nothing waits, before it is left alone.
const IDLE_REPORTS: u32 = 3;

/// So many reports a flow is young: some end-to-end round trips.
const YOUNG_REPORTS: u32 = 16;

/// Reports on the flows of one connection.
#[derive(Debug, Default)]
pub(super) struct Reporter {
    flows: BTreeMap<StreamId, Reported>,
    /// When reports are due; `None` while nothing comes.
    due: Option<Instant>,
    last: Option<Instant>,
    /// Datagrams that the tunnel had sent, and sent again, at the last report.
    sends: (u64, u64),
}

/// A flow that is reported on.
#[derive(Debug)]
struct Reported {
    weight: u8,
    urgency: Urgency,
    sequence: u64,
    /// The fewest bytes that waited since the last report.
    least_queue: usize,
    /// What the last report said of it.
    last_queue: usize,
    /// Bytes that came from the target since the last report.
    arrived: u64,
    arrival_rate: Option<Rate>,
    /// Reports in a row without anything to say.
    idle: u32,
    /// Reports since it was silent.
    reports: u32,
}

impl Reported {
    fn arrives(&self) -> u64 {
        self.arrival_rate.map_or(0, Rate::bits_per_second)
    }

    /// Whether it takes all of its share: some of it waits, or it has not had time to hear how much its
    /// share is.
    const fn is_greedy(&self) -> bool {
        self.least_queue > 0 || self.reports < YOUNG_REPORTS
    }
}

impl Reporter {
    /// Reports on a flow from now on. `false`: on too many already.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        stream: StreamId,
        weight: u8,
        urgency: Urgency,
    ) -> bool {
        if self.flows.len() >= FLOWS_MAX {
            return false;
        }
        let reported = Reported {
            weight,
            urgency,
            sequence: 0,
            least_queue: 0,
            last_queue: 0,
            arrived: 0,
            arrival_rate: None,
            idle: 0,
            reports: 0,
        };
        self.flows.insert(stream, reported);
        self.due = Some(now);
        true
    }

    pub(super) fn remove(&mut self, stream: StreamId) {
        self.flows.remove(&stream);
        if self.flows.is_empty() {
            self.due = None;
        }
    }

    /// Reports on nothing any more.
    pub(super) fn clear(&mut self) {
        self.flows.clear();
        self.due = None;
    }

    /// When reports are due.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// A payload came from the target of a flow.
    pub(super) fn on_arrival(&mut self, now: Instant, stream: StreamId, len: usize) {
        let Some(flow) = self.flows.get_mut(&stream) else { return };
        flow.arrived += len as u64;
        if std::mem::take(&mut flow.idle) >= IDLE_REPORTS {
            flow.reports = 0;
        }
        self.due.get_or_insert(now);
    }

    /// Notes how much waits, after the tunnel has sent what it could.
    pub(super) fn observe(&mut self, now: Instant, queue: &Queue) {
        let least = *ProxyConfig::FEEDBACK_INTERVAL.start();
        let may_be_early = self.last.is_some_and(|last| now >= last + least);
        for (&stream, flow) in &mut self.flows {
            let len = queue.flow_len(stream);
            if len > flow.last_queue.saturating_mul(2) + EARLY_BYTES && may_be_early {
                flow.least_queue = len;
                self.due = Some(now);
            }
            flow.least_queue = flow.least_queue.min(len);
        }
    }

    /// The reports that are due.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        carrier: &Carrier<'_>,
        queue: &Queue,
        interval: Option<Duration>,
    ) -> Vec<(StreamId, TunnelInfo)> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let path = &carrier.path_estimate();
        let interval = interval.unwrap_or(path.min_rtt);
        let allowed = ProxyConfig::FEEDBACK_INTERVAL;
        let interval = interval.clamp(*allowed.start(), *allowed.end());
        let elapsed = self.last.map_or(interval, |last| now.saturating_duration_since(last));
        let sends = queue.sends();
        let (all, again) = (sends.0 - self.sends.0, sends.1 - self.sends.1);
        for flow in self.flows.values_mut() {
            flow.arrival_rate = Rate::average(ByteCount::new(flow.arrived), elapsed);
        }
        let mut reports = Vec::new();
        let streams: Vec<_> = self.flows.keys().copied().collect();
        for stream in streams {
            let Some(info) = self.report(stream, path, Ratio::of(again, all.max(1))) else {
                continue;
            };
            reports.push((stream, info));
            let Some(flow) = self.flows.get_mut(&stream) else { continue };
            flow.sequence += 1;
            flow.reports += 1;
            flow.last_queue = flow.least_queue;
            flow.least_queue = queue.flow_len(stream);
            flow.idle = if flow.arrived == 0 && flow.least_queue == 0 { flow.idle + 1 } else { 0 };
            flow.arrived = 0;
        }
        self.sends = sends;
        let is_active = self.flows.values().any(|flow| flow.idle < IDLE_REPORTS);
        self.last = is_active.then_some(now);
        self.due = is_active.then_some(now + interval);
        reports
    }

    /// `None`: there is nothing to say of this flow.
    fn report(
        &self,
        stream: StreamId,
        path: &PathEstimate,
        retransmit_ratio: Ratio,
    ) -> Option<TunnelInfo> {
        let flow = self.flows.get(&stream).filter(|flow| flow.idle < IDLE_REPORTS)?;
        let rate = sending_rate(path)?;
        Some(TunnelInfo {
            sequence: VarInt::saturating_from(flow.sequence),
            sending_rate: self.share(stream, rate),
            bandwidth: path.bandwidth.map(|bandwidth| self.share(stream, bandwidth)),
            queue: ByteCount::from(flow.least_queue),
            retransmit_ratio,
            min_rtt: path.min_rtt,
            smoothed_rtt: path.smoothed_rtt,
            arrival_rate: flow.arrival_rate,
        })
    }

    /// A flow's part of what the tunnel can send: its share, by weight, of what more urgent flows and
    /// those leave that take less than theirs.
    fn share(&self, stream: StreamId, rate: Rate) -> Rate {
        let Some(flow) = self.flows.get(&stream) else { return rate };
        let arrives = |other: &Reported| other.arrives();
        let others = || self.flows.iter().filter(|(other, _)| **other != stream).map(|(_, it)| it);
        let urgent = others().filter(|it| it.urgency < flow.urgency).map(arrives).sum::<u64>();
        let left = rate.bits_per_second().saturating_sub(urgent);
        let equals = || others().filter(|it| it.urgency == flow.urgency && it.idle == 0);
        let weights = |flows: &mut dyn Iterator<Item = &Reported>| {
            u64::from(flow.weight) + flows.map(|it| u64::from(it.weight)).sum::<u64>()
        };
        let all = weights(&mut equals());
        let fair = |it: &Reported| left * u64::from(it.weight) / all;
        let modest = equals().filter(|it| !it.is_greedy()).map(|it| it.arrives().min(fair(it)));
        let greedy = weights(&mut equals().filter(|it| it.is_greedy()));
        let share = left.saturating_sub(modest.sum()) * u64::from(flow.weight) / greedy;
        Rate::from_bps(share).unwrap_or(SHARE_LEAST)
    }
}

/// Less is said to nobody: whoever sends nothing does not hear of it when it could send more.
const SHARE_LEAST: Rate = Rate::from_bps(10_000).expect("not zero");

/// Tr: what the tunnel can send.
///
/// While it starts up, its bandwidth says how fast the origin sends. Then it is twice that, but not
/// less than what a new tunnel begins with; less by as much as the RTT has grown, because then
/// the bottleneck has more than it carries.
fn sending_rate(path: &PathEstimate) -> Option<Rate> {
    let window = Rate::average(path.congestion_window, path.smoothed_rtt);
    let Some(pacing) = path.pacing_rate.filter(|_| path.is_starting) else {
        return path.bandwidth.or(path.pacing_rate).or(window);
    };
    let grown = path.smoothed_rtt.max(path.min_rtt);
    let usual = (path.min_rtt + path.min_rtt / 4).min(grown);
    let first = Rate::average(path.initial_window.saturating_mul(3), path.min_rtt);
    let twice = path.bandwidth.and_then(|it| Rate::from_bps(2 * it.bits_per_second()));
    let rate = pacing.min(twice.max(first).unwrap_or(pacing));
    let rate = Rate::average(rate.bytes_in(usual), grown).unwrap_or(rate);
    Some(path.bandwidth.map_or(rate, |bandwidth| rate.max(bandwidth)))
}
