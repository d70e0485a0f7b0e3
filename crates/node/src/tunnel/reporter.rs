//! Reports on the state of a tunnel (`TUNNEL_INFO`), so that a sender does not send faster than the
//! tunnel does. The mechanism is that of TECC (Towards Efficient QUIC Tunneling via Collaborative
//! Transmission Control, NSDI '24, §4.2.2). A proxy reports to its clients, and a client that
//! uploads reports to its own sender.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::{TunnelInfo, Urgency, VarInt};

use super::{carrier::Carrier, queue::Queue};
use crate::quic::{PathEstimate, StreamId};

/// The allowed intervals between two reports. With a shorter interval a sender gets more reports than
/// it can follow. With a longer one a sender follows reports on a tunnel that has changed since.
pub(crate) const REPORT_INTERVAL: RangeInclusive<Duration> =
    Duration::from_millis(5)..=Duration::from_secs(1);

/// The most flows of one connection that get reports. Further flows get none.
const FLOWS_MAX: usize = 64;

/// A report is sent early when a queue is longer than twice the reported length plus this many
/// bytes.
const EARLY_BYTES: usize = 64_000;

/// Reports that a flow without arrivals and without waiting payloads still gets before its reports
/// stop.
const IDLE_REPORTS: u32 = 3;

/// The number of reports after its start during which a flow counts as greedy. They take some
/// end-to-end round trips.
const START_REPORTS: u32 = 16;

/// Reports on the flows of one connection.
#[derive(Debug, Default)]
pub(super) struct Reporter {
    flows: BTreeMap<StreamId, Reported>,
    /// When reports are due. `None` while no flow is active.
    due: Option<Instant>,
    last: Option<Instant>,
    /// Datagrams that the tunnel had sent, and how many of them were retransmissions, at the last
    /// report.
    sends: (u64, u64),
}

/// A flow that gets reports.
#[derive(Debug)]
struct Reported {
    weight: u8,
    urgency: Urgency,
    sequence: u64,
    /// The fewest bytes that waited since the last report.
    least_queue: usize,
    /// The queue length in the last report.
    last_queue: usize,
    /// Bytes that arrived from the target since the last report.
    arrived: u64,
    arrival_rate: Option<Rate>,
    /// Consecutive report times at which the flow had no arrivals and no queue.
    idle: u32,
    /// Reports since the flow started, or became active again.
    reports: u32,
}

impl Reported {
    fn arrives(&self) -> u64 {
        self.arrival_rate.map_or(0, Rate::bits_per_second)
    }

    /// Whether the flow would use all of its share. This is so if some of its payloads wait, or if
    /// its sender has not had time to learn its share.
    const fn is_greedy(&self) -> bool {
        self.least_queue > 0 || self.reports < START_REPORTS
    }
}

impl Reporter {
    /// Starts the reports on a flow. `false`: too many flows get reports already.
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

    /// Stops the reports on all flows.
    pub(super) fn clear(&mut self) {
        self.flows.clear();
        self.due = None;
    }

    /// Whether it reports on no flow.
    pub(super) fn is_idle(&self) -> bool {
        self.flows.is_empty()
    }

    /// When reports are due.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Notes a payload that arrived from the target of a flow.
    pub(super) fn on_arrival(&mut self, now: Instant, stream: StreamId, len: usize) {
        let Some(flow) = self.flows.get_mut(&stream) else { return };
        flow.arrived += len as u64;
        if std::mem::take(&mut flow.idle) >= IDLE_REPORTS {
            flow.reports = 0;
        }
        self.due.get_or_insert(now);
    }

    /// Notes how much waits after the tunnel has sent as much as it could.
    pub(super) fn observe(&mut self, now: Instant, queue: &Queue) {
        let least = *REPORT_INTERVAL.start();
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
        let allowed = REPORT_INTERVAL;
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

    /// Makes a report on a flow. `None`: the flow is idle, or the tunnel's rate is not known.
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

    /// A flow's share, by weight, of the tunnel's rate. It is a share of what is left by more
    /// urgent flows and by flows that use less than their own share.
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

/// The least share that a report states. A share never falls below this, because a flow that sends
/// nothing gets no report when it could send more.
const SHARE_LEAST: Rate = Rate::from_bps(10_000).expect("not zero");

/// The rate at which the tunnel can send, Tr in the TECC paper.
///
/// It is the tunnel's bandwidth estimate.
///
/// While the tunnel's congestion control starts up, its bandwidth estimate is application-limited:
/// it shows how fast the origin sends. The rate is then twice the estimate, but at least three
/// initial windows per minimum RTT, and at most the pacing rate. It is reduced in proportion when
/// the RTT has grown by more than a quarter, because then the bottleneck gets more than it carries.
/// It never falls below the estimate.
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
