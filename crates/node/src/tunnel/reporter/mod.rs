//! Reports on the state of a tunnel (`TUNNEL_INFO`), so that a sender does not send faster than the
//! tunnel does. The mechanism is that of TECC (Towards Efficient QUIC Tunneling via Collaborative
//! Transmission Control, NSDI '24, §4.2.2). A proxy reports to its clients, and a client that
//! uploads reports to its own sender.

mod budget;

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::{TunnelInfo, Urgency, VarInt};

use self::budget::ReportBudget;
use super::{
    queue::Queue,
    share::{self, Claim, IDLE_INTERVALS, START_INTERVALS},
};
use crate::{
    carrier::Carrier,
    impossible::impossible,
    quic::{PathEstimate, StreamId},
};

/// The allowed intervals between two reports. With a shorter interval a sender gets more reports than
/// it can follow. With a longer one a sender follows reports on a tunnel that has changed since.
pub(crate) const REPORT_INTERVAL: RangeInclusive<Duration> =
    Duration::from_millis(5)..=Duration::from_secs(1);

/// A report is sent early when a queue is longer than twice the reported length plus this many
/// bytes.
const EARLY_BYTES: usize = 64_000;

/// Reports on the flows of one connection.
///
/// Each flow whose client asks for reports can get them, so that the limit on request streams
/// bounds their number. Only active flows cost time, and get reports.
#[derive(Debug)]
pub(super) struct Reporter {
    flows: BTreeMap<StreamId, Agreed>,
    active: BTreeMap<StreamId, Active>,
    /// What reports may cost. `None`: they do not leave the process.
    budget: Option<ReportBudget>,
    /// When reports are due. `None` while no flow is active.
    due: Option<Instant>,
    /// The start of the present interval.
    last: Option<Instant>,
    /// Datagrams that the tunnel had sent by then, and how many of them were retransmissions.
    sends: (u64, u64),
    /// The memory of turns between two reports. It is empty.
    turns: Vec<ReportTurn>,
}

/// A flow whose client asked for reports.
#[derive(Debug)]
struct Agreed {
    weight: u8,
    urgency: Urgency,
    /// The sequence number of the next report.
    sequence: u64,
}

/// A flow that has payloads, or had some a short time ago.
#[derive(Debug)]
struct Active {
    weight: u8,
    urgency: Urgency,
    /// Whether there was a report on the flow before.
    is_later: bool,
    /// The time of the last report since the flow became active.
    reported: Option<Instant>,
    /// The time from which `arrived` and `sends` count: that of the last report, or of the start of
    /// the interval in which the flow became active.
    since: Instant,
    /// Bytes that arrived from the target.
    arrived: u64,
    arrival_rate: Option<Rate>,
    /// Datagrams that the tunnel had sent by then, and how many of them were retransmissions.
    sends: (u64, u64),
    /// The fewest bytes that waited since then.
    least_queue: usize,
    /// The queue length in the last report.
    last_queue: usize,
    /// Whether any payload arrived in the present interval.
    has_arrivals: bool,
    /// Consecutive intervals in which the flow had no arrivals and no queue.
    idle: u32,
    /// Intervals since the flow became active.
    intervals: u32,
}

/// The turn of a flow's report among those that are due: first reports, then those of the flows that
/// have waited longest.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ReportTurn {
    is_later: bool,
    reported: Option<Instant>,
    stream: StreamId,
}

impl Active {
    fn new(agreed: &Agreed, since: Instant, sends: (u64, u64)) -> Self {
        let &Agreed { weight, urgency, sequence } = agreed;
        Self {
            weight,
            urgency,
            is_later: sequence > 0,
            reported: None,
            since,
            arrived: 0,
            arrival_rate: None,
            sends,
            least_queue: 0,
            last_queue: 0,
            has_arrivals: false,
            idle: 0,
            intervals: 0,
        }
    }

    /// Measures the flow, in whose queue `len` bytes wait now.
    fn measure(&mut self, now: Instant, len: usize, interval: Duration) {
        let elapsed = now.saturating_duration_since(self.since);
        let elapsed = if elapsed.is_zero() { interval } else { elapsed };
        self.arrival_rate = Rate::average(ByteCount::new(self.arrived), elapsed);
        self.least_queue = self.least_queue.min(len);
    }

    const fn turn(&self, stream: StreamId) -> ReportTurn {
        ReportTurn { is_later: self.is_later, reported: self.reported, stream }
    }

    /// Begins new measurements after a report.
    const fn on_reported(&mut self, now: Instant, len: usize, sends: (u64, u64)) {
        (self.is_later, self.reported) = (true, Some(now));
        self.since = now;
        self.arrived = 0;
        self.sends = sends;
        self.last_queue = self.least_queue;
        self.least_queue = len;
    }

    /// Ends an interval, after which `len` bytes wait.
    fn end_interval(&mut self, len: usize) {
        let is_idle = !std::mem::take(&mut self.has_arrivals) && len == 0;
        self.idle = if is_idle { self.idle + 1 } else { 0 };
        self.intervals = self.intervals.saturating_add(1);
    }

    /// The share of retransmissions since the last report.
    fn retransmit_ratio(&self, (all, again): (u64, u64)) -> Ratio {
        Ratio::of(again.saturating_sub(self.sends.1), all.saturating_sub(self.sends.0).max(1))
    }

    fn arrives(&self) -> u64 {
        self.arrival_rate.map_or(0, Rate::bits_per_second)
    }

    /// Whether its sender has not had time to learn its share.
    const fn is_young(&self) -> bool {
        self.intervals < START_INTERVALS
    }

    /// Whether another flow has to expect that this one uses all of its share. This is so if some of
    /// its payloads wait. Flows that begin at the same time also leave each other their shares, or
    /// each would get all at first. An older flow does not, because a young one is often a short
    /// request that ends before it uses its share.
    const fn is_greedy(&self, other: &Self) -> bool {
        self.least_queue > 0 || (self.is_young() && other.is_young())
    }

    /// What the flow asks of the rate, beside another one.
    fn claim(&self, other: &Self) -> Claim {
        let weight = if self.idle == 0 { self.weight } else { 0 };
        let is_greedy = self.is_greedy(other);
        Claim { urgency: self.urgency, weight, arrives: self.arrives(), is_greedy }
    }
}

impl Reporter {
    /// Reports to the client of a proxy, whose cost is bounded.
    pub(super) fn to_client() -> Self {
        Self::new(Some(ReportBudget::new()))
    }

    /// Reports on a client's end of a tunnel to a connection of the same process.
    pub(super) const fn to_inside() -> Self {
        Self::new(None)
    }

    const fn new(budget: Option<ReportBudget>) -> Self {
        Self {
            flows: BTreeMap::new(),
            active: BTreeMap::new(),
            budget,
            due: None,
            last: None,
            sends: (0, 0),
            turns: Vec::new(),
        }
    }

    /// Starts the reports on a flow.
    pub(super) fn insert(&mut self, now: Instant, stream: StreamId, weight: u8, urgency: Urgency) {
        self.flows.insert(stream, Agreed { weight, urgency, sequence: 0 });
        self.activate(now, stream);
        self.due = Some(now);
    }

    pub(super) fn remove(&mut self, stream: StreamId) {
        self.flows.remove(&stream);
        self.active.remove(&stream);
        if self.active.is_empty() {
            self.due = None;
        }
    }

    /// Stops the reports on all flows.
    pub(super) fn clear(&mut self) {
        self.flows.clear();
        self.active.clear();
        self.due = None;
    }

    /// When reports are due.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Whether the client of a flow asked for reports.
    pub(super) fn reports_on(&self, stream: StreamId) -> bool {
        self.flows.contains_key(&stream)
    }

    /// Notes a payload that arrived from the target of a flow, in whose queue `waiting` bytes waited
    /// before. `None`: there are no reports on the flow.
    pub(super) fn on_arrival(
        &mut self,
        now: Instant,
        stream: StreamId,
        len: usize,
        waiting: Option<usize>,
    ) {
        let Some(waiting) = waiting else { return }; // nobody wants reports on it
        self.activate(now, stream);
        let Some(flow) = self.active.get_mut(&stream) else { return }; // it has no reports
        flow.arrived += len as u64;
        flow.has_arrivals = true;
        flow.least_queue = flow.least_queue.min(waiting);
        let may_be_early = self.last.is_some_and(|last| now >= last + *REPORT_INTERVAL.start());
        if waiting > flow.last_queue.saturating_mul(2) + EARLY_BYTES && may_be_early {
            flow.least_queue = waiting;
            self.due = Some(now);
        }
        self.due.get_or_insert(now);
    }

    fn activate(&mut self, now: Instant, stream: StreamId) {
        if let Some(agreed) = self.flows.get(&stream) {
            let since = self.last.unwrap_or(now);
            self.active.entry(stream).or_insert_with(|| Active::new(agreed, since, self.sends));
        }
    }

    /// Gives the reports that are due to `send`, as far as they do not cost too much.
    pub(super) fn report_due(
        &mut self,
        now: Instant,
        carrier: &mut Carrier<'_>,
        queue: &Queue,
        interval: Option<Duration>,
        send: impl FnMut(&mut Carrier<'_>, StreamId, TunnelInfo),
    ) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let path = carrier.path_estimate();
        let interval = interval.unwrap_or(path.min_rtt);
        let interval = interval.clamp(*REPORT_INTERVAL.start(), *REPORT_INTERVAL.end());
        for (&stream, flow) in &mut self.active {
            flow.measure(now, queue.flow_len(stream), interval);
        }
        if let Some(rate) = sending_rate(&path) {
            self.report_all(now, (rate, &path), carrier, queue, send);
        }
        for (&stream, flow) in &mut self.active {
            flow.end_interval(queue.flow_len(stream));
        }
        self.active.retain(|_, flow| flow.idle < IDLE_INTERVALS);
        self.sends = queue.sends();
        let is_active = !self.active.is_empty();
        self.last = is_active.then_some(now);
        self.due = is_active.then_some(now + interval);
        if !is_active {
            self.turns = Vec::new();
        }
    }

    fn report_all(
        &mut self,
        now: Instant,
        (rate, path): (Rate, &PathEstimate),
        carrier: &mut Carrier<'_>,
        queue: &Queue,
        mut send: impl FnMut(&mut Carrier<'_>, StreamId, TunnelInfo),
    ) {
        if let Some(budget) = &mut self.budget {
            budget.earn(now, rate, carrier.received_for_reports());
        }
        let mut turns = std::mem::take(&mut self.turns);
        turns.extend(self.active.iter().map(|(&it, flow)| flow.turn(it)));
        turns.sort_unstable();
        for &ReportTurn { is_later, stream, .. } in &turns {
            if !self.budget.as_mut().is_none_or(|budget| budget.spend(!is_later)) {
                break;
            }
            let share = |rate| self.share(stream, rate);
            let (sending_rate, bandwidth) = (share(rate), path.bandwidth.map(share));
            let Some(flow) = self.active.get_mut(&stream) else {
                impossible::<()>("turns are of active flows");
                continue;
            };
            let Some(agreed) = self.flows.get_mut(&stream) else { continue };
            let info = TunnelInfo {
                sequence: VarInt::saturating_from(agreed.sequence),
                sending_rate,
                bandwidth,
                queue: ByteCount::from(flow.least_queue),
                retransmit_ratio: flow.retransmit_ratio(queue.sends()),
                min_rtt: path.min_rtt,
                smoothed_rtt: path.smoothed_rtt,
                arrival_rate: flow.arrival_rate,
            };
            send(carrier, stream, info);
            agreed.sequence += 1;
            flow.on_reported(now, queue.flow_len(stream), queue.sends());
        }
        turns.clear();
        self.turns = turns;
    }

    /// A flow's share of the tunnel's rate.
    fn share(&self, stream: StreamId, rate: Rate) -> Rate {
        let Some(flow) = self.active.get(&stream) else { return rate };
        let own = Claim { weight: flow.weight, ..flow.claim(flow) };
        let others = self.active.iter().filter(|(other, _)| **other != stream);
        share::share(rate, &own, others.map(|(_, other)| other.claim(flow)))
    }
}

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
