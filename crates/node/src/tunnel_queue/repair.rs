//! What was sent and may have to be sent again: datagrams of a tunnel's flows, by number.
//!
//! A datagram is kept as it was sent until its packet is acknowledged; if it was lost it waits here
//! to be sent again. It is given up, and its flow's repair floor raised, when it has been repaired
//! for [`RTTS`], when it is older or was sent more often than the other end wants, or when there is
//! no more room.
//!
//! Time counts only while acknowledgements come: after an outage everything that was under way is as
//! old as the outage was long, and still wanted.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_wire::{CONTEXT_ID_UDP, Order, VarInt};

use super::{TooLarge, brake::Brake, item::Ids};
use crate::{
    quic::{Connection, DatagramId, Delivery, StreamId},
    repair_fields,
    stats::{GivenUp, Repaired},
};

/// A datagram is repaired for so many smoothed RTTs of the tunnel: one repair in twenty is lost again
/// at 5 % loss, and each takes the tunnel's loss detection.
const RTTS: u32 = 12;

/// A silence counts for no more than this: acknowledgements of what is under way come about so often
/// even where each flight waits for the one before.
const SILENCE_MAX: Duration = Duration::from_millis(100);

/// Numbers from the floor to the newest of a flow. An exit waits for no more of them.
const NUMBERS_MAX: usize = 7168;

/// How a flow's lost datagrams are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RepairPlan {
    /// Context ID of numbered payloads. `None`: they go without numbers, as everybody takes them.
    pub(crate) context_id: Option<VarInt>,
    /// Nothing older is sent, be it for the first time.
    pub(crate) deadline: Option<Duration>,
    /// Nothing is sent more often than so many times again.
    pub(crate) limit: Option<u8>,
    /// Whether the queue is kept short by dropping payloads that have not been sent.
    pub(crate) keeps_queue_short: bool,
    /// What to do with a payload that fits no datagram.
    pub(crate) too_large: TooLarge,
}

impl RepairPlan {
    /// As two ends of ours agreed: numbered, under this Context ID.
    pub(crate) fn numbered(
        context_id: VarInt,
        wish: repair_fields::Repair,
        too_large: TooLarge,
    ) -> Self {
        let repair_fields::Repair { order, deadline, limit } = wish;
        let keeps_queue_short = order == Order::Ordered;
        Self { context_id: Some(context_id), deadline, limit, keeps_queue_short, too_large }
    }

    /// As the draft's peers want it.
    pub(crate) const fn unnumbered(limit: u8, too_large: TooLarge) -> Self {
        let limit = Some(limit);
        Self { context_id: None, deadline: None, limit, keeps_queue_short: false, too_large }
    }

    pub(super) fn is_too_old(&self, now: Instant, since: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now.saturating_duration_since(since) > deadline)
    }

    /// What names numbered payloads of a flow.
    pub(super) fn ids(&self, stream: StreamId) -> Option<Ids> {
        Ids::new(stream, self.context_id?)
    }

    /// A datagram that was sent before as a frame with a capsule, if it may go so.
    pub(super) fn capsule(&self, stream: StreamId, datagram: Bytes) -> Option<Bytes> {
        let ids = self.ids(stream).or_else(|| Ids::new(stream, CONTEXT_ID_UDP))?;
        // A few bytes more than the payload, which was checked when it came.
        matches!(self.too_large, TooLarge::Capsule(_)).then(|| ids.into_capsule(datagram))
    }
}

/// The repair of a tunnel's flows.
#[derive(Debug)]
pub(super) struct Repair {
    flows: BTreeMap<StreamId, FlowRepair>,
    /// Which datagram is under way under which ID; the first under `first_id`.
    under_way: VecDeque<Option<(StreamId, u64)>>,
    first_id: u64,
    /// Bytes that are kept.
    bytes: usize,
    bytes_max: usize,
    /// Bytes of what waits to be sent again.
    waiting_bytes: usize,
    /// Time during which acknowledgements came.
    heard: Duration,
    last_ack: Option<Instant>,
    smoothed_rtt: Duration,
    keeps_queue_short: bool,
    /// Probes since the last acknowledgement.
    probes: u32,
    next_probe: Option<Instant>,
    /// Datagrams sent, and of those, sent again.
    sends: (u64, u64),
    stats: Repaired,
}

#[derive(Debug)]
pub(super) struct FlowRepair {
    pub(super) plan: RepairPlan,
    pub(super) brake: Brake,
    /// The repair floor, which is the number of `kept`'s first.
    floor: u64,
    /// What has a lower number went without it.
    numbered_from: u64,
    kept: VecDeque<Kept>,
    bytes: usize,
    /// Numbers of what was lost, or not taken by the engine.
    waiting: BTreeSet<u64>,
    waiting_bytes: usize,
}

#[derive(Debug)]
struct Kept {
    /// `None`: it has arrived or was given up.
    data: Option<Bytes>,
    /// When it came to the queue.
    since: Instant,
    /// What `heard` was when it got its number.
    numbered: Duration,
    /// How often it was sent.
    sends: u32,
    /// How many of those are under way.
    under_way: u32,
    /// It goes in a capsule, of whose arrival nothing is known.
    is_in_capsule: bool,
}

/// Why something is repaired no more.
#[derive(Clone, Copy)]
enum Cause {
    Time,
    Deadline,
    Limit,
    Room,
    Unknown,
}

impl Cause {
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

impl Repair {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            flows: BTreeMap::new(),
            under_way: VecDeque::new(),
            first_id: 0,
            bytes: 0,
            bytes_max,
            waiting_bytes: 0,
            heard: Duration::ZERO,
            last_ack: None,
            smoothed_rtt: Duration::ZERO,
            keeps_queue_short: false,
            probes: 0,
            next_probe: None,
            sends: (0, 0),
            stats: Repaired::default(),
        }
    }

    /// Begins the repair of a flow, or changes it.
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

    /// Time during which acknowledgements came.
    pub(super) const fn heard(&self) -> Duration {
        self.heard
    }

    /// Whether a flow's queue is, or was, kept short.
    pub(super) const fn keeps_queue_short(&self) -> bool {
        self.keeps_queue_short
    }

    /// Whether no flow is repaired.
    pub(super) fn is_idle(&self) -> bool {
        self.flows.is_empty()
    }

    /// Bytes of what waits to be sent again.
    pub(super) const fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// The same of one flow.
    pub(super) fn waiting_bytes_of(&self, stream: StreamId) -> usize {
        self.flows.get(&stream).map_or(0, |flow| flow.waiting_bytes)
    }

    /// Datagrams sent, and of those, sent again.
    pub(super) const fn sends(&self) -> (u64, u64) {
        self.sends
    }

    /// When to look whether the end of what was sent is to be sent again.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.next_probe
    }

    pub(super) fn take_stats(&mut self) -> Repaired {
        std::mem::take(&mut self.stats)
    }

    pub(super) fn remove(&mut self, stream: StreamId) {
        if let Some(flow) = self.flows.remove(&stream) {
            self.bytes -= flow.bytes;
            self.waiting_bytes -= flow.waiting_bytes;
        }
    }

    /// Learns what became of datagrams; tells the flows of those that were lost.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        mut lost: impl FnMut(StreamId),
    ) {
        self.smoothed_rtt = connection.smoothed_rtt();
        let mut is_heard = false;
        while let Some((DatagramId(id), delivery)) = connection.poll_delivery() {
            is_heard |= delivery == Delivery::Acked;
            let Some((stream, number)) = self.take_under_way(id) else { continue };
            match delivery {
                Delivery::Acked => self.settle_number(stream, number, None),
                Delivery::Lost if self.on_lost(now, stream, number) => lost(stream),
                Delivery::Lost => {}
                Delivery::Unknown => self.settle_number(stream, number, Some(Cause::Unknown)),
            }
        }
        if is_heard {
            let before = self.last_ack.replace(now).unwrap_or(now);
            self.heard += now.saturating_duration_since(before).min(SILENCE_MAX);
            self.probes = 0;
        }
    }

    fn take_under_way(&mut self, id: u64) -> Option<(StreamId, u64)> {
        let index = usize::try_from(id.checked_sub(self.first_id)?).ok()?;
        let taken = self.under_way.get_mut(index)?.take();
        while self.under_way.front().is_some_and(Option::is_none) {
            self.under_way.pop_front();
            self.first_id += 1;
        }
        taken
    }

    /// Whether it waits now to be sent again.
    fn on_lost(&mut self, now: Instant, stream: StreamId, number: u64) -> bool {
        let Some(flow) = self.flows.get_mut(&stream) else { return false };
        let Some(kept) = flow.kept_mut(number) else { return false };
        kept.under_way = kept.under_way.saturating_sub(1);
        let Some(data) = kept.data.as_ref().filter(|_| kept.under_way == 0) else { return false };
        let len = data.len();
        if let Some(cause) = flow.gives_up(now, number, self.heard, self.smoothed_rtt) {
            self.settle_number(stream, number, Some(cause));
            return false;
        }
        if flow.waiting.insert(number) {
            flow.waiting_bytes += len;
            self.waiting_bytes += len;
        }
        true
    }

    /// It has arrived, or is given up for a cause.
    fn settle_number(&mut self, stream: StreamId, number: u64, cause: Option<Cause>) {
        let Some(flow) = self.flows.get_mut(&stream) else { return };
        let Some(data) = flow.kept_mut(number).and_then(|kept| kept.data.take()) else { return };
        flow.bytes -= data.len();
        self.bytes -= data.len();
        if flow.waiting.remove(&number) {
            flow.waiting_bytes -= data.len();
            self.waiting_bytes -= data.len();
        }
        flow.raise_floor(self.heard, self.smoothed_rtt);
        if let Some(cause) = cause {
            *cause.counter(&mut self.stats.given_up) += 1;
        }
    }

    /// The lowest number of a flow that is to be sent again.
    pub(super) fn next_waiting(&mut self, now: Instant, stream: StreamId) -> Option<(u64, Bytes)> {
        loop {
            let flow = self.flows.get_mut(&stream)?;
            let number = *flow.waiting.first()?;
            if let Some(cause) = flow.gives_up(now, number, self.heard, self.smoothed_rtt) {
                self.settle_number(stream, number, Some(cause));
                continue;
            }
            return Some((number, flow.kept_mut(number)?.data.clone()?));
        }
    }

    /// Gives the next number of a flow to a payload that came at `since`, and says what the floor
    /// is.
    pub(super) fn number(&mut self, stream: StreamId, len: usize, since: Instant) -> (u64, u64) {
        while self.bytes + len > self.bytes_max && self.give_up_of_longest() {}
        let Self { flows, heard, smoothed_rtt, .. } = self;
        let Some(flow) = flows.get_mut(&stream) else { return (0, 0) };
        flow.raise_floor(*heard, *smoothed_rtt);
        if flow.kept.len() >= NUMBERS_MAX {
            let oldest = flow.floor;
            flow.forget_capsule(oldest);
            self.settle_number(stream, oldest, Some(Cause::Room));
        }
        let heard = self.heard;
        let Some(flow) = self.flows.get_mut(&stream) else { return (0, 0) };
        let number = flow.next();
        flow.kept.push_back(Kept {
            data: None,
            since,
            numbered: heard,
            sends: 0,
            under_way: 0,
            is_in_capsule: false,
        });
        (number, flow.floor.max(flow.numbered_from))
    }

    fn give_up_of_longest(&mut self) -> bool {
        let longest = self.flows.iter().max_by_key(|(_, flow)| flow.bytes);
        let Some((&stream, flow)) = longest else { return false };
        let Some(number) = flow.oldest() else { return false };
        self.settle_number(stream, number, Some(Cause::Room));
        true
    }

    /// Keeps what got this number until it has arrived.
    pub(super) fn keep(&mut self, stream: StreamId, number: u64, data: Bytes) {
        let Some(flow) = self.flows.get_mut(&stream) else { return };
        let len = data.len();
        let Some(kept) = flow.kept_mut(number) else { return };
        kept.data = Some(data);
        flow.bytes += len;
        self.bytes += len;
        self.stats.kept_bytes_max = self.stats.kept_bytes_max.max(self.bytes as u64);
    }

    /// What got this number goes in a capsule.
    pub(super) fn goes_in_capsule(&mut self, stream: StreamId, number: u64) {
        if let Some(kept) = self.flows.get_mut(&stream).and_then(|flow| flow.kept_mut(number)) {
            kept.is_in_capsule = true;
        }
        self.settle_number(stream, number, None);
    }

    /// Gives the engine what is kept under a number. `false`: it has no room; then it waits.
    pub(super) fn send(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        number: u64,
    ) -> bool {
        let Some(flow) = self.flows.get_mut(&stream) else { return true };
        let Some(kept) = flow.kept_mut(number) else { return true };
        let Some(data) = kept.data.clone() else { return true };
        let len = data.len();
        let id = self.first_id + self.under_way.len() as u64;
        if !connection.send_tracked_datagram(DatagramId(id), data) {
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
        kept.under_way += 1;
        if flow.waiting.remove(&number) {
            flow.waiting_bytes -= len;
            self.waiting_bytes -= len;
        }
        self.under_way.push_back(Some((stream, number)));
        true
    }

    /// Sends the end of what was sent once more if no acknowledgement has come for a while and
    /// nothing else is to be sent: only what follows a packet shows that it was lost.
    pub(super) fn probe(&mut self, now: Instant, connection: &mut Connection) {
        self.next_probe = None;
        let Some((DatagramId(newest), sent)) = connection.newest_datagram() else { return };
        let last = self.first_id + self.under_way.len() as u64;
        // What the engine has not sent yet is to be sent anyway.
        if newest + 1 != last {
            return;
        }
        let Some((stream, number)) = self.newest_wanted() else { return };
        let patience = self.smoothed_rtt + self.smoothed_rtt / 4;
        let due = sent + (patience * (1 << self.probes.min(PROBE_DOUBLINGS_MAX))).max(PROBE_LEAST);
        if due > now {
            self.next_probe = Some(due);
        } else if self.send(connection, stream, number) {
            self.probes += 1;
            self.stats.probes += 1;
        }
    }

    /// Nothing is to be probed before the queue is fed again. A time that has passed must not stay: the
    /// node would be woken for it again and again.
    pub(super) const fn cancel_probe(&mut self) {
        self.next_probe = None;
    }

    /// The newest that is under way, has not arrived, and may be sent again.
    fn newest_wanted(&self) -> Option<(StreamId, u64)> {
        let mut newest = self.under_way.iter().rev().take(PROBE_DEPTH).flatten().copied();
        newest.find(|(stream, number)| {
            let flow = self.flows.get(stream);
            flow.is_some_and(|flow| {
                flow.kept(*number).is_some_and(|kept| {
                    let limit = flow.plan.limit.map_or(u32::MAX, u32::from);
                    kept.data.is_some() && kept.sends <= limit
                })
            })
        })
    }
}

/// Least time without an acknowledgement until the end is sent again.
const PROBE_LEAST: Duration = Duration::from_millis(10);

/// How often the time between probes doubles, as long as none is acknowledged.
const PROBE_DOUBLINGS_MAX: u32 = 6;

/// How many of what is under way are looked at for one that is still wanted.
const PROBE_DEPTH: usize = 16;

impl FlowRepair {
    fn new(plan: RepairPlan) -> Self {
        Self {
            plan,
            brake: Brake::default(),
            floor: 0,
            numbered_from: 0,
            kept: VecDeque::new(),
            bytes: 0,
            waiting: BTreeSet::new(),
            waiting_bytes: 0,
        }
    }

    /// The next number.
    pub(super) fn next(&self) -> u64 {
        self.floor + self.kept.len() as u64
    }

    fn kept(&self, number: u64) -> Option<&Kept> {
        self.kept.get(usize::try_from(number.checked_sub(self.floor)?).ok()?)
    }

    fn kept_mut(&mut self, number: u64) -> Option<&mut Kept> {
        self.kept.get_mut(usize::try_from(number.checked_sub(self.floor)?).ok()?)
    }

    fn oldest(&self) -> Option<u64> {
        let index = self.kept.iter().position(|kept| kept.data.is_some())?;
        Some(self.floor + index as u64)
    }

    /// Why it is not to be sent again, if it is not.
    fn gives_up(
        &self,
        now: Instant,
        number: u64,
        heard: Duration,
        smoothed_rtt: Duration,
    ) -> Option<Cause> {
        let kept = self.kept(number)?;
        if self.plan.is_too_old(now, kept.since) {
            Some(Cause::Deadline)
        } else if self.plan.limit.is_some_and(|limit| kept.sends > u32::from(limit)) {
            Some(Cause::Limit)
        } else if heard.saturating_sub(kept.numbered) > smoothed_rtt * RTTS {
            Some(Cause::Time)
        } else {
            None
        }
    }

    fn forget_capsule(&mut self, number: u64) {
        if let Some(kept) = self.kept_mut(number) {
            kept.is_in_capsule = false;
        }
    }

    /// Leaves behind what has arrived or was given up.
    fn raise_floor(&mut self, heard: Duration, smoothed_rtt: Duration) {
        while let Some(kept) = self.kept.front() {
            let is_on_its_way =
                kept.is_in_capsule && heard.saturating_sub(kept.numbered) <= smoothed_rtt * RTTS;
            if kept.data.is_some() || is_on_its_way {
                return;
            }
            self.kept.pop_front();
            self.floor += 1;
        }
    }
}
