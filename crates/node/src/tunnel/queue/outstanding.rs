//! The datagrams that are kept for retransmission, by flow and number.
//!
//! A datagram is kept as it was sent until its packet is acknowledged. If the packet is lost, the
//! datagram waits here for its retransmission. A datagram is given up in four cases: its repair has
//! taken [`RTTS`] round trips, it is older than the agreed deadline, it has been retransmitted as
//! often as the agreed limit allows, or there is no more room for it. The flow's repair floor, the
//! lowest sequence number that the sender still repairs, then rises.
//!
//! The time of a repair counts only while acknowledgements arrive. After an outage everything that
//! was in flight has aged by the length of the outage, and its receiver still wants it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_wire::{Order, VarInt};

use super::{
    TooLarge,
    aqm::Aqm,
    engine::Engine,
    item::{Ids, into_capsule},
};
use crate::{
    carrier::QueueCarrier,
    impossible::impossible,
    mode::Repair,
    quic::{self, DatagramId, Delivery, StreamId},
    spare,
    stats::{GivenUp, Repaired},
};

/// How long a datagram is repaired, in smoothed RTTs of the tunnel. At 5 % loss one retransmission
/// in twenty is lost again, and the tunnel's loss detection needs time to find each of them.
const RTTS: u32 = 12;

/// The longest time between two acknowledgements that counts. Acknowledgements of datagrams in
/// flight arrive about this often even where each flight waits for the one before.
const SILENCE_MAX: Duration = Duration::from_millis(100);

/// The most numbers from a flow's repair floor to its newest number. The egress waits for no wider
/// range.
const NUMBERS_MAX: usize = 7168;

/// The memory of a number beside the bytes of its datagram: its place in a queue that may be half
/// empty, room for a header, and what an allocator adds. A number takes it as long as a lower one is
/// repaired.
const OVERHEAD: usize = 256;

/// How a flow's lost datagrams are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tunnel) struct RepairPlan {
    /// Context ID of numbered payloads. `None`: payloads go without numbers, which every peer
    /// accepts.
    pub(in crate::tunnel) context_id: Option<VarInt>,
    /// A payload that entered the queue longer ago than this is neither sent nor retransmitted.
    pub(in crate::tunnel) deadline: Option<Duration>,
    /// A payload is retransmitted at most this many times.
    pub(in crate::tunnel) limit: Option<u8>,
    /// Whether active queue management ([`Aqm`]) drops payloads that have not been sent, to keep
    /// the flow's queue short.
    pub(in crate::tunnel) keeps_queue_short: bool,
    /// How the flow treats a payload that fits no datagram.
    pub(in crate::tunnel) too_large: TooLarge,
}

impl RepairPlan {
    /// The plan between two ends that speak our protocol: numbered payloads, under this Context ID.
    pub(in crate::tunnel) fn numbered(
        context_id: VarInt,
        wish: Repair,
        too_large: TooLarge,
    ) -> Self {
        let Repair { order, deadline, limit } = wish;
        let keeps_queue_short = order == Order::Ordered;
        Self { context_id: Some(context_id), deadline, limit, keeps_queue_short, too_large }
    }

    /// The plan with a peer that speaks draft-yang-masque-dgram-retrans: payloads without numbers.
    pub(in crate::tunnel) const fn unnumbered(limit: u8, too_large: TooLarge) -> Self {
        let limit = Some(limit);
        Self { context_id: None, deadline: None, limit, keeps_queue_short: false, too_large }
    }

    pub(super) fn is_too_old(&self, now: Instant, since: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now.saturating_duration_since(since) > deadline)
    }

    /// The IDs in front of a numbered payload of a flow.
    pub(super) fn ids(&self, stream: StreamId) -> Option<Ids> {
        Ids::new(stream, self.context_id?)
    }

    /// Turns a datagram that was sent before into a DATA frame with a capsule, if the flow may use
    /// capsules.
    pub(super) fn capsule(&self, datagram: Bytes) -> Option<Bytes> {
        // The capsule is a few bytes longer than the payload, whose length was checked on arrival.
        let may_go = matches!(self.too_large, TooLarge::Capsule(_));
        may_go.then(|| into_capsule(datagram))?
    }
}

/// The datagrams that a tunnel's flows may have to retransmit.
#[derive(Debug)]
pub(super) struct Outstanding {
    flows: BTreeMap<StreamId, FlowRepair>,
    /// How many datagrams have left whose delivery is not known.
    in_flight: usize,
    /// The datagrams that left last, at most [`PROBE_DEPTH`].
    newest: VecDeque<DatagramId>,
    /// When the engine has taken the newest datagram.
    newest_since: Option<Instant>,
    /// Bytes of all datagrams that are kept.
    bytes: usize,
    /// How many numbers of all flows are kept, with a datagram or without.
    numbers: usize,
    /// The most bytes of memory.
    bytes_max: usize,
    /// Bytes that wait for retransmission.
    waiting_bytes: usize,
    /// Time during which acknowledgements arrived, without outages.
    ack_time: Duration,
    last_ack: Option<Instant>,
    smoothed_rtt: Duration,
    keeps_queue_short: bool,
    /// Probes sent since the last acknowledgement.
    probes: u32,
    next_probe: Option<Instant>,
    /// Datagrams sent, and how many of those were retransmissions.
    sends: (u64, u64),
    stats: Repaired,
}

#[derive(Debug)]
pub(super) struct FlowRepair {
    pub(super) plan: RepairPlan,
    pub(super) aqm: Aqm,
    /// The repair floor: the lowest number that is still repaired, and the number of the first of
    /// `kept`.
    floor: u64,
    /// Payloads with a lower number were sent without a number.
    numbered_from: u64,
    kept: VecDeque<KeptPayload>,
    bytes: usize,
    /// Numbers of the datagrams that were lost, or that the engine did not take.
    waiting: BTreeSet<u64>,
    waiting_bytes: usize,
}

#[derive(Debug)]
struct KeptPayload {
    /// `None`: the datagram was acknowledged or given up, or it is not encoded yet.
    data: Option<Bytes>,
    /// When the payload entered the queue.
    since: Instant,
    /// The value of `ack_time` when the payload got its number.
    numbered_at: Duration,
    /// How often the datagram was sent.
    sends: u32,
    /// How many of those are in flight.
    in_flight: u32,
    /// The payload goes in a capsule. The engine does not report when capsules arrive.
    is_in_capsule: bool,
}

/// Why a datagram is given up.
#[derive(Clone, Copy)]
enum GiveUpReason {
    Time,
    Deadline,
    Limit,
    Room,
    Unknown,
}

impl GiveUpReason {
    const fn counter(self, given_up: &mut GivenUp) -> &mut u64 {
        match self {
            Self::Time => &mut given_up.time,
            Self::Deadline => &mut given_up.deadline,
            Self::Limit => &mut given_up.limit,
            Self::Room => &mut given_up.room,
            Self::Unknown => &mut given_up.unknown,
        }
    }
}

impl Outstanding {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            flows: BTreeMap::new(),
            in_flight: 0,
            newest: VecDeque::new(),
            newest_since: None,
            bytes: 0,
            numbers: 0,
            bytes_max,
            waiting_bytes: 0,
            ack_time: Duration::ZERO,
            last_ack: None,
            smoothed_rtt: Duration::ZERO,
            keeps_queue_short: false,
            probes: 0,
            next_probe: None,
            sends: (0, 0),
            stats: Repaired::default(),
        }
    }

    /// Starts the repair of a flow, or changes it.
    pub(super) fn set_plan(&mut self, stream: StreamId, plan: RepairPlan) {
        self.keeps_queue_short |= plan.keeps_queue_short;
        let flow = self.flows.entry(stream).or_insert_with(|| FlowRepair::new(plan));
        if flow.plan.context_id.is_none() && plan.context_id.is_some() {
            flow.numbered_from = flow.next();
        }
        flow.plan = plan;
    }

    pub(super) fn flow(&mut self, stream: StreamId) -> Option<&mut FlowRepair> {
        self.flows.get_mut(&stream)
    }

    /// Time during which acknowledgements arrived, without outages.
    pub(super) const fn ack_time(&self) -> Duration {
        self.ack_time
    }

    /// Whether active queue management keeps, or kept, the queue of some flow short.
    pub(super) const fn keeps_queue_short(&self) -> bool {
        self.keeps_queue_short
    }

    /// Whether no flow is repaired, and no delivery report is due.
    pub(super) fn is_idle(&self) -> bool {
        self.flows.is_empty() && self.in_flight == 0
    }

    /// Bytes that wait for retransmission.
    pub(super) const fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Bytes of one flow that wait for retransmission.
    pub(super) fn waiting_bytes_of(&self, stream: StreamId) -> usize {
        self.flows.get(&stream).map_or(0, |flow| flow.waiting_bytes)
    }

    /// Bytes of memory that the kept datagrams take.
    const fn kept_memory(&self) -> usize {
        self.bytes + self.numbers * OVERHEAD
    }

    /// Bytes of memory that everything takes.
    pub(super) fn memory(&self) -> usize {
        let flows = self.flows.len() * 2 * size_of::<FlowRepair>();
        self.kept_memory() + flows + self.in_flight * quic::IN_FLIGHT_MEMORY
    }

    /// Datagrams sent, and how many of those were retransmissions.
    pub(super) const fn sends(&self) -> (u64, u64) {
        self.sends
    }

    /// When the next probe may be due.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.next_probe
    }

    /// Counts of what was retransmitted, and of what was given up.
    pub(super) const fn stats(&self) -> &Repaired {
        &self.stats
    }

    pub(super) fn remove(&mut self, stream: StreamId) {
        if let Some(flow) = self.flows.remove(&stream) {
            self.bytes -= flow.bytes;
            self.numbers -= flow.kept.len();
            self.waiting_bytes -= flow.waiting_bytes;
        }
    }

    /// Takes the delivery reports of the engine. Calls `lost` with the flow of each datagram that
    /// now waits for retransmission.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        carrier: &mut impl QueueCarrier,
        mut lost: impl FnMut(StreamId),
    ) {
        self.smoothed_rtt = carrier.smoothed_rtt();
        let mut is_acked = false;
        while let Some((DatagramId { stream, number }, delivery)) = carrier.poll_delivery() {
            is_acked |= delivery == Delivery::Acked;
            self.in_flight -= usize::from(delivery != Delivery::Late);
            match delivery {
                Delivery::Acked | Delivery::Late => self.stop_repair(stream, number, None),
                Delivery::Lost if self.on_lost(now, stream, number) => lost(stream),
                Delivery::Lost => {}
                Delivery::Unknown => self.stop_repair(stream, number, Some(GiveUpReason::Unknown)),
            }
        }
        if is_acked {
            let before = self.last_ack.replace(now).unwrap_or(now);
            self.ack_time += now.saturating_duration_since(before).min(SILENCE_MAX);
            self.probes = 0;
        }
    }

    /// Handles a loss. Returns whether the datagram now waits for retransmission.
    fn on_lost(&mut self, now: Instant, stream: StreamId, number: u64) -> bool {
        let Some(flow) = self.flows.get_mut(&stream) else { return false }; // it has ended
        let Some(kept) = flow.kept_mut(number) else { return false }; // it has arrived or is given up
        kept.in_flight = kept.in_flight.saturating_sub(1);
        let Some(data) = kept.data.as_ref().filter(|_| kept.in_flight == 0) else { return false };
        let len = data.len();
        if let Some(cause) = flow.gives_up(now, number, self.ack_time, self.smoothed_rtt) {
            self.stop_repair(stream, number, Some(cause));
            return false;
        }
        if flow.waiting.insert(number) {
            flow.waiting_bytes += len;
            self.waiting_bytes += len;
        }
        true
    }

    /// Stops the repair of a datagram, which was acknowledged (no cause) or is given up.
    fn stop_repair(&mut self, stream: StreamId, number: u64, cause: Option<GiveUpReason>) {
        let Some(flow) = self.flows.get_mut(&stream) else { return }; // it has ended
        // Otherwise it has arrived or is given up, or went in a capsule.
        let Some(data) = flow.kept_mut(number).and_then(|kept| kept.data.take()) else { return };
        flow.bytes -= data.len();
        self.bytes -= data.len();
        if flow.waiting.remove(&number) {
            flow.waiting_bytes -= data.len();
            self.waiting_bytes -= data.len();
        }
        self.numbers -= flow.raise_floor(self.ack_time, self.smoothed_rtt);
        if let Some(cause) = cause {
            *cause.counter(&mut self.stats.given_up) += 1;
        }
    }

    /// The lowest number of a flow that waits for retransmission, and its datagram.
    pub(super) fn next_lost(&mut self, now: Instant, stream: StreamId) -> Option<(u64, Bytes)> {
        loop {
            let flow = self.flows.get_mut(&stream)?;
            let number = *flow.waiting.first()?;
            if let Some(cause) = flow.gives_up(now, number, self.ack_time, self.smoothed_rtt) {
                self.stop_repair(stream, number, Some(cause));
                continue;
            }
            return Some((number, flow.kept_mut(number)?.data.clone()?));
        }
    }

    /// Gives the next number of a flow to a payload that entered the queue at `since`. Returns the
    /// number and the repair floor.
    pub(super) fn number(&mut self, stream: StreamId, len: usize, since: Instant) -> (u64, u64) {
        while self.kept_memory() + len + OVERHEAD > self.bytes_max && self.give_up_of_longest() {}
        let Self { flows, ack_time, smoothed_rtt, .. } = self;
        let Some(flow) = flows.get_mut(&stream) else {
            return impossible("only a flow that is repaired has numbers");
        };
        self.numbers -= flow.raise_floor(*ack_time, *smoothed_rtt);
        if flow.kept.len() >= NUMBERS_MAX {
            self.give_up_oldest(stream);
        }
        let ack_time = self.ack_time;
        let Some(flow) = self.flows.get_mut(&stream) else { return impossible("it stays") };
        let number = flow.next();
        self.numbers += 1;
        flow.kept.push_back(KeptPayload {
            data: None,
            since,
            numbered_at: ack_time,
            sends: 0,
            in_flight: 0,
            is_in_capsule: false,
        });
        (number, flow.floor.max(flow.numbered_from))
    }

    fn give_up_of_longest(&mut self) -> bool {
        let memory = |flow: &FlowRepair| flow.bytes + flow.kept.len() * OVERHEAD;
        let longest = self.flows.iter().max_by_key(|(_, flow)| memory(flow));
        longest.map(|(&stream, _)| stream).is_some_and(|stream| self.give_up_oldest(stream))
    }

    /// Gives up the lowest number that a flow still repairs. `false`: there is none.
    fn give_up_oldest(&mut self, stream: StreamId) -> bool {
        let Some(flow) = self.flows.get_mut(&stream) else { return false };
        let oldest = flow.floor;
        let Some(kept) = flow.kept.front_mut() else { return false }; // there is none
        kept.is_in_capsule = false;
        self.stop_repair(stream, oldest, Some(GiveUpReason::Room));
        // A number in a capsule has no datagram whose repair stops.
        let Some(flow) = self.flows.get_mut(&stream) else { return impossible("it stays") };
        self.numbers -= flow.raise_floor(self.ack_time, self.smoothed_rtt);
        true
    }

    /// Keeps the datagram with this number until it is acknowledged or given up.
    pub(super) fn keep(&mut self, stream: StreamId, number: u64, data: Bytes) {
        let Some(flow) = self.flows.get_mut(&stream) else { return };
        let len = data.len();
        let Some(kept) = flow.kept_mut(number) else { return };
        kept.data = Some(data);
        flow.bytes += len;
        self.bytes += len;
        self.stats.kept_bytes_max = self.stats.kept_bytes_max.max(self.bytes as u64);
    }

    /// The payload with this number goes in a capsule.
    pub(super) fn note_capsule(&mut self, stream: StreamId, number: u64) {
        if let Some(kept) = self.flows.get_mut(&stream).and_then(|flow| flow.kept_mut(number)) {
            kept.is_in_capsule = true;
        }
        self.stop_repair(stream, number, None);
    }

    /// Gives the datagram with this number to the engine. `false`: the engine has no room, and the
    /// datagram waits for retransmission.
    pub(super) fn send(
        &mut self,
        engine: &mut Engine<'_, impl QueueCarrier>,
        stream: StreamId,
        number: u64,
    ) -> bool {
        let Some(flow) = self.flows.get_mut(&stream) else { return true };
        let Some(kept) = flow.kept_mut(number) else { return true }; // it is given up
        let Some(data) = kept.data.clone() else { return true }; // it has arrived
        let len = data.len();
        let id = DatagramId { stream, number };
        if !engine.carrier.send_tracked_datagram(id, data) {
            if flow.waiting.insert(number) {
                flow.waiting_bytes += len;
                self.waiting_bytes += len;
            }
            return false;
        }
        let again = u64::from(kept.sends > 0);
        self.sends = (self.sends.0 + 1, self.sends.1 + again);
        self.stats.sent_again += again;
        kept.sends += 1;
        kept.in_flight += 1;
        if flow.waiting.remove(&number) {
            flow.waiting_bytes -= len;
            self.waiting_bytes -= len;
        }
        self.in_flight += 1;
        if self.newest.len() == PROBE_DEPTH {
            self.newest.pop_front();
        }
        self.newest.push_back(id);
        self.newest_since = Some(engine.now);
        true
    }

    /// Sends a probe, as RFC 9002 §6.2 does: retransmits the newest datagram if no acknowledgement
    /// has arrived for a while and nothing else waits. Without a probe the loss of the last packets
    /// would stay undetected, because only acknowledgements of later packets show a loss.
    pub(super) fn probe(&mut self, engine: &mut Engine<'_, impl QueueCarrier>) {
        self.next_probe = None;
        let Some((newest, sent)) = engine.carrier.newest_datagram() else { return }; // all have arrived
        // The engine still has unsent datagrams, which serve as a probe.
        if self.newest.back() != Some(&newest) || Some(sent) < self.newest_since {
            return;
        }
        let Some(DatagramId { stream, number }) = self.probe_candidate() else { return }; // nothing is left to repair
        let probe_timeout = self.smoothed_rtt + self.smoothed_rtt / 4;
        let due =
            sent + (probe_timeout * (1 << self.probes.min(PROBE_DOUBLINGS_MAX))).max(PROBE_LEAST);
        if due > engine.now {
            self.next_probe = Some(due);
        } else if self.send(engine, stream, number) {
            self.probes += 1;
            self.stats.probes += 1;
        }
    }

    /// Cancels the probe until the queue is fed again. A time in the past must not stay set,
    /// because it would wake the node again and again.
    pub(super) const fn cancel_probe(&mut self) {
        self.next_probe = None;
    }

    /// The newest datagram in flight that is not acknowledged and may be retransmitted.
    fn probe_candidate(&self) -> Option<DatagramId> {
        let may_go = |&DatagramId { stream, number }: &DatagramId| {
            let flow = self.flows.get(&stream)?;
            let kept = flow.kept(number)?;
            let limit = flow.plan.limit.map_or(u32::MAX, u32::from);
            Some(kept.data.is_some() && kept.in_flight > 0 && kept.sends <= limit)
        };
        self.newest.iter().rev().copied().find(|id| may_go(id) == Some(true))
    }
}

/// Least time from the newest datagram to the probe after it.
const PROBE_LEAST: Duration = Duration::from_millis(10);

/// How often, at most, the time between probes doubles while no acknowledgement arrives.
const PROBE_DOUBLINGS_MAX: u32 = 6;

/// How many of the newest datagrams are searched for one to probe with.
const PROBE_DEPTH: usize = 16;

impl FlowRepair {
    fn new(plan: RepairPlan) -> Self {
        Self {
            plan,
            aqm: Aqm::default(),
            floor: 0,
            numbered_from: 0,
            kept: VecDeque::new(),
            bytes: 0,
            waiting: BTreeSet::new(),
            waiting_bytes: 0,
        }
    }

    /// The number of the next payload.
    pub(super) fn next(&self) -> u64 {
        self.floor + self.kept.len() as u64
    }

    fn kept(&self, number: u64) -> Option<&KeptPayload> {
        self.kept.get(usize::try_from(number.checked_sub(self.floor)?).ok()?)
    }

    fn kept_mut(&mut self, number: u64) -> Option<&mut KeptPayload> {
        self.kept.get_mut(usize::try_from(number.checked_sub(self.floor)?).ok()?)
    }

    /// Why a number is to be given up. `None`: it is still repaired.
    fn gives_up(
        &self,
        now: Instant,
        number: u64,
        ack_time: Duration,
        smoothed_rtt: Duration,
    ) -> Option<GiveUpReason> {
        let kept = self.kept(number)?;
        if self.plan.is_too_old(now, kept.since) {
            Some(GiveUpReason::Deadline)
        } else if self.plan.limit.is_some_and(|limit| kept.sends > u32::from(limit)) {
            Some(GiveUpReason::Limit)
        } else if ack_time.saturating_sub(kept.numbered_at) > smoothed_rtt * RTTS {
            Some(GiveUpReason::Time)
        } else {
            None
        }
    }

    /// Raises the repair floor over the numbers that were acknowledged or given up. Returns how many
    /// they are.
    fn raise_floor(&mut self, ack_time: Duration, smoothed_rtt: Duration) -> usize {
        let before = self.kept.len();
        while let Some(kept) = self.kept.front() {
            let is_in_transit = kept.is_in_capsule
                && ack_time.saturating_sub(kept.numbered_at) <= smoothed_rtt * RTTS;
            if kept.data.is_some() || is_in_transit {
                break;
            }
            self.kept.pop_front();
            self.floor += 1;
        }
        spare::give_back(&mut self.kept);
        before - self.kept.len()
    }
}

#[cfg(any(test, fuzzing))]
impl Outstanding {
    /// Checks that all sums are those of their parts, and that the kept datagrams take at most this
    /// number of bytes.
    pub(super) fn check(&self, bytes_max: usize) {
        let sum = |part: fn(&FlowRepair) -> usize| self.flows.values().map(part).sum::<usize>();
        let kept = |flow: &FlowRepair| {
            flow.kept.iter().flat_map(|kept| &kept.data).map(Bytes::len).sum::<usize>()
        };
        assert_eq!((self.bytes, self.bytes), (sum(|flow| flow.bytes), sum(kept)));
        assert_eq!(self.numbers, sum(|flow| flow.kept.len()));
        assert_eq!(self.waiting_bytes, sum(|flow| flow.waiting_bytes));
        assert!(self.kept_memory() <= bytes_max, "{} of {bytes_max}", self.kept_memory());
        assert!(self.flows.values().all(|flow| flow.kept.len() <= NUMBERS_MAX));
    }
}
