//! The one standing queue of a tunnel, at its sender. In it UDP payloads, already in the form in
//! which they are sent, wait for the tunnel's QUIC connection. Lost datagrams wait in it for their
//! retransmission.
//!
//! The engine gets at most one pacing burst of datagrams, or two congestion windows of stream data,
//! at a time. Everything else waits here, so that the length of this queue is the tunnel's queue
//! q(t).
//!
//! More urgent flows are served first. Flows of the same urgency are served by deficit round robin,
//! in proportion to their weights. A flow whose datagrams are repaired sends its lost datagrams
//! before new ones. When the queue is full, the flow that holds most of it loses its newest
//! payload.

mod aqm;
mod backlog;
mod engine;
mod entry;
mod item;
mod longest;
#[cfg(any(test, fuzzing))]
pub(in crate::tunnel) mod model;
mod outstanding;
mod room;
#[cfg(test)]
mod tests;
mod turns;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use bytes::Bytes;
use tandem_wire::Urgency;

pub(crate) use self::item::Unsent;
use self::{
    aqm::Oldest,
    backlog::Backlogs,
    engine::Engine,
    item::{Item, Unnumbered, into_capsule},
    longest::Longest,
    outstanding::Outstanding,
    turns::{TurnResult, Turns},
};
pub(super) use self::{
    item::{NUMBERS, TooLarge},
    outstanding::RepairPlan,
};
use crate::{
    carrier::QueueCarrier,
    impossible::impossible,
    limits::Limits,
    quic::{SendDatagram, StreamId, Write},
    spare,
    stats::{Dropped, Repaired},
};

/// The form in which a flow's payloads are sent (RFC 9297 §2 and §3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tunnel) enum Form {
    /// QUIC DATAGRAM frames, which are repaired only if both ends agreed to it.
    Datagram,
    /// DATAGRAM capsules on the request stream, which QUIC retransmits and delivers in order.
    Capsule,
}

/// A UDP payload that enters the queue, which copies it once.
#[derive(Debug)]
pub(super) struct Payload<'a> {
    pub(super) form: Form,
    pub(super) too_large: TooLarge,
    pub(super) data: &'a [u8],
}

/// The payloads of one flow.
#[derive(Debug, Default)]
struct FlowQueue {
    items: VecDeque<Item>,
    bytes: usize,
    /// How many of the items the queue has counted.
    counted: usize,
    /// Bytes that the flow may still send in its turn.
    deficit: usize,
    /// Whether the flow is in `turns`.
    has_turn: bool,
    /// Whether the flow's stream has no room. Its new payloads get no turn until there is room.
    is_blocked: bool,
    /// Whether the first item is the rest of a frame whose start has been sent. The rest must be
    /// sent next.
    has_begun: bool,
    /// How the flow's newest payload was to be treated if it fitted no datagram.
    too_large: TooLarge,
}

impl FlowQueue {
    fn give_turn(&mut self, turns: &mut Turns, stream: StreamId) {
        if !std::mem::replace(&mut self.has_turn, true) {
            turns.push_back(stream);
        }
    }
}

/// The most empty queues that are kept, so that a payload needs no allocation when it is the only one of its
/// flow. Each has room for 64 items at most. More flows wait at the same time only if a tunnel is slow.
const ROOMS_MAX: usize = 8;

/// The queue of one end of a tunnel.
#[derive(Debug)]
pub(super) struct Queue {
    flows: BTreeMap<StreamId, FlowQueue>,
    longest: Longest,
    /// Flows that can send something, in the order of their turns.
    turns: Turns,
    outstanding: Outstanding,
    backlogs: Backlogs,
    bytes: usize,
    /// How many items all flows have.
    items: usize,
    /// Empty queues of flows of which nothing waits any more, for the next flows.
    rooms: Vec<VecDeque<Item>>,
    bytes_max: usize,
    /// The bound instead of `bytes_max` once a flow's queue is kept short, by active queue
    /// management or by reports to its origin.
    short_bytes_max: usize,
    is_reported: bool,
    /// The largest datagram that has fitted a packet of the tunnel, in bytes.
    widest: usize,
    dropped: Dropped,
    /// Payloads that went in capsules because they fitted no datagram.
    in_capsules: u64,
}

/// What happened to the first item of a flow.
enum SendOutcome {
    /// The item was sent, or dropped.
    All,
    /// The payload now has this form, and is sent next.
    Reencoded(Item),
    /// The item waits until the engine has room.
    EngineIsFull(Item),
    /// The rest of the item waits until its stream has room.
    StreamIsFull(Item),
}

impl Queue {
    /// An empty queue with these limits.
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            flows: BTreeMap::new(),
            longest: Longest::default(),
            turns: Turns::default(),
            outstanding: Outstanding::new(limits.repair_bytes),
            backlogs: Backlogs::default(),
            bytes: 0,
            items: 0,
            rooms: Vec::new(),
            bytes_max: limits.tunnel_queue,
            short_bytes_max: limits.short_tunnel_queue.max(limits.tunnel_queue),
            is_reported: false,
            widest: 0,
            dropped: Dropped::default(),
            in_capsules: 0,
        }
    }

    /// Bytes of encoded payloads that wait, retransmissions included: q(t).
    pub(super) const fn len(&self) -> usize {
        self.bytes + self.outstanding.waiting_bytes()
    }

    /// Bytes of one request stream that wait for their first transmission.
    pub(super) fn waiting(&self, stream: StreamId) -> usize {
        self.flows.get(&stream).map_or(0, |flow| flow.bytes)
    }

    /// Bytes of one flow that wait, retransmissions included.
    pub(super) fn flow_len(&self, stream: StreamId) -> usize {
        self.waiting(stream) + self.outstanding.waiting_bytes_of(stream)
    }

    /// Datagrams of repaired flows that were sent, and how many of those were retransmissions.
    pub(super) const fn sends(&self) -> (u64, u64) {
        self.outstanding.sends()
    }

    /// Sets how urgent a flow is. More urgent flows are served first, even if nothing is left for
    /// the others.
    pub(super) fn set_urgency(&mut self, stream: StreamId, urgency: Urgency) {
        self.turns.set_urgency(stream, urgency);
    }

    /// Sets the weight of a flow, which is 1 at first. Flows of the same urgency share the tunnel
    /// in proportion to their weights.
    pub(super) fn set_weight(&mut self, stream: StreamId, weight: u8) {
        self.turns.set_weight(stream, weight);
    }

    /// Notes that origins get reports on the length of the queue.
    pub(super) const fn set_reported(&mut self) {
        self.is_reported = true;
    }

    /// How urgent a flow is.
    pub(super) fn urgency(&self, stream: StreamId) -> Urgency {
        self.turns.urgency(stream)
    }

    /// Starts the repair of a flow's datagrams, or changes how they are repaired.
    pub(super) fn set_repair(&mut self, stream: StreamId, plan: RepairPlan) {
        self.outstanding.set_plan(stream, plan);
    }

    /// Stops the repair of a flow.
    pub(super) fn end_repair(&mut self, stream: StreamId) {
        self.outstanding.remove(stream);
    }

    /// Puts a capsule that holds no payload in front of the payloads of its stream that have not begun, and
    /// behind other such capsules. Returns how many of them wait.
    pub(super) fn push_capsule(&mut self, stream: StreamId, frame: Bytes) -> usize {
        let flow = self.flows.entry(stream).or_default();
        let begun = usize::from(flow.has_begun);
        let before = flow.items.iter().skip(begun).take_while(|it| matches!(it, Item::Control(_)));
        let waiting = before.count();
        let index = begun.min(flow.items.len()) + waiting;
        let len = frame.len();
        flow.items.insert(index, Item::Control(frame));
        self.resize(stream, 0, len);
        self.give_turn(stream);
        waiting + 1
    }

    /// Puts a payload at the end of its flow. `max_datagram_size` is the largest datagram that fits
    /// a packet of the tunnel now. With an error the payload was dropped, and counted.
    pub(super) fn push(
        &mut self,
        now: Instant,
        stream: StreamId,
        payload: Payload<'_>,
        max_datagram_size: usize,
    ) -> Result<(), Unsent> {
        self.widest = self.widest.max(max_datagram_size);
        let too_large = payload.too_large;
        let item = self.to_item(now, stream, payload, max_datagram_size).map_err(|fits| {
            self.dropped.too_large += 1;
            Unsent::TooLarge { fits }
        })?;
        let len = item.len();
        if !self.make_room(stream, len) || !self.make_place(stream) {
            self.dropped.queue_full += 1;
            return Err(Unsent::Other);
        }
        let flow = self.flows.entry(stream).or_insert_with(|| {
            let items = self.rooms.pop().unwrap_or_default();
            FlowQueue { items, ..FlowQueue::default() }
        });
        flow.too_large = too_large;
        let is_first = flow.items.is_empty();
        flow.items.push_back(item);
        if is_first && !flow.is_blocked {
            flow.give_turn(&mut self.turns, stream);
        }
        self.resize(stream, 0, len);
        Ok(())
    }

    /// Notes that `removed` bytes left a flow and `added` bytes entered it, with their items.
    fn resize(&mut self, stream: StreamId, removed: usize, added: usize) {
        let Some(flow) = self.flows.get_mut(&stream) else { return }; // nothing of it waits
        self.items = self.items + flow.items.len() - flow.counted;
        flow.counted = flow.items.len();
        spare::give_back(&mut flow.items);
        let before = flow.bytes;
        flow.bytes = before + added - removed;
        self.bytes = self.bytes + added - removed;
        let after = flow.bytes;
        self.longest.resize(&self.flows, stream, (before, after));
    }

    fn give_turn(&mut self, stream: StreamId) {
        if let Some(flow) = self.flows.get_mut(&stream) {
            flow.give_turn(&mut self.turns, stream);
        }
    }

    /// Gives the engine as much data as it may hold at once.
    pub(super) fn feed(&mut self, now: Instant, carrier: &mut impl QueueCarrier) {
        let is_repaired = !self.outstanding.is_idle();
        if is_repaired {
            self.settle(now, carrier);
        }
        let mut engine = Engine::new(now, carrier);
        while let Some(stream) = self.turns.front() {
            let mut turn = TurnResult::Nothing;
            if self.backlogs.has(stream) {
                turn = self.backlog_turn(&mut engine, stream);
            } else if is_repaired {
                turn = self.repair_turn(&mut engine, stream);
            }
            if turn == TurnResult::Nothing && !self.backlogs.has(stream) {
                turn = self.item_turn(&mut engine, stream);
            }
            match turn {
                TurnResult::Used => {}
                TurnResult::Ended => self.turns.rotate(),
                TurnResult::Nothing => self.end_turns(stream),
                // No probe is needed: acknowledgements of the data that still waits will show what
                // was lost.
                TurnResult::EngineIsFull => return self.outstanding.cancel_probe(),
            }
        }
        if is_repaired {
            self.outstanding.probe(&mut engine);
        } else {
            self.outstanding.cancel_probe();
        }
    }

    /// Takes the delivery reports of the engine, and gives the flows with lost datagrams a turn.
    fn settle(&mut self, now: Instant, carrier: &mut impl QueueCarrier) {
        let Self { flows, turns, outstanding, .. } = self;
        outstanding.settle(now, carrier, |stream| {
            flows.entry(stream).or_default().give_turn(turns, stream);
        });
    }

    /// Takes the first flow out of the round until it can send something.
    fn end_turns(&mut self, stream: StreamId) {
        self.turns.pop_front();
        self.end_backlog_turns(stream);
        if let Some(flow) = self.flows.get_mut(&stream) {
            flow.has_turn = false;
            if flow.items.is_empty() {
                let room = self.flows.remove(&stream).map(|flow| flow.items);
                self.longest.remove(stream, 0);
                self.rooms.extend(room.filter(|_| self.rooms.len() < ROOMS_MAX));
            }
        }
    }

    /// Whether a flow may send `len` bytes now. If not, its deficit grows by its quantum for the
    /// next turn.
    fn may_send(&mut self, stream: StreamId, len: usize) -> bool {
        let is_alone = self.turns.is_alone();
        let Some(flow) = self.flows.get_mut(&stream) else { return false };
        let may_send = len <= flow.deficit || is_alone;
        if !may_send {
            flow.deficit += self.turns.quantum(stream);
        }
        may_send
    }

    /// Retransmits the lost datagram of a flow that has the lowest number.
    fn repair_turn(
        &mut self,
        engine: &mut Engine<'_, impl QueueCarrier>,
        stream: StreamId,
    ) -> TurnResult {
        let Some((number, data)) = self.outstanding.next_lost(engine.now, stream) else {
            return TurnResult::Nothing;
        };
        let len = data.len();
        if len > engine.carrier.max_datagram_size() {
            self.repair_in_capsule(stream, number, data);
            return TurnResult::Used;
        }
        if !self.may_send(stream, len) {
            return TurnResult::Ended;
        }
        if !self.outstanding.send(engine, stream, number) {
            return TurnResult::EngineIsFull;
        }
        if let Some(flow) = self.flows.get_mut(&stream) {
            flow.deficit = flow.deficit.saturating_sub(len);
        }
        TurnResult::Used
    }

    /// Retransmits a payload in a capsule, because the path MTU has shrunk since it was sent and
    /// its datagram no longer fits a packet.
    fn repair_in_capsule(&mut self, stream: StreamId, number: u64, datagram: Bytes) {
        let Some(flow) = self.outstanding.flow(stream) else {
            return impossible("only a repaired flow loses datagrams");
        };
        let frame = flow.plan.capsule(datagram);
        self.outstanding.note_capsule(stream, number);
        match frame {
            Some(frame) => self.insert_frame(stream, frame),
            None => self.dropped.too_large += 1,
        }
    }

    /// Puts a frame in front of the items of its stream that have not begun.
    fn insert_frame(&mut self, stream: StreamId, frame: Bytes) {
        let len = frame.len();
        self.in_capsules += 1;
        let flow = self.flows.entry(stream).or_default();
        flow.items.insert(usize::from(flow.has_begun), Item::Encoded(Form::Capsule, frame));
        self.resize(stream, 0, len);
    }

    /// Sends the first item of a flow.
    fn item_turn(
        &mut self,
        engine: &mut Engine<'_, impl QueueCarrier>,
        stream: StreamId,
    ) -> TurnResult {
        let Some(flow) = self.flows.get_mut(&stream).filter(|flow| !flow.is_blocked) else {
            return TurnResult::Nothing;
        };
        let Some(len) = flow.items.front().map(Item::len) else { return TurnResult::Nothing };
        if !self.may_send(stream, len) {
            return TurnResult::Ended;
        }
        let Some(flow) = self.flows.get_mut(&stream) else { return TurnResult::Nothing };
        let Some(item) = flow.items.pop_front() else { return TurnResult::Nothing };
        let had_begun = std::mem::replace(&mut flow.has_begun, false);
        let behind = flow.bytes - len;
        let sent = match item {
            Item::Encoded(Form::Capsule, frame) => {
                send_frame(engine, stream, frame, |rest| Item::Encoded(Form::Capsule, rest))
            }
            Item::Encoded(Form::Datagram, data) => self.send_datagram(engine, stream, data),
            Item::Control(frame) => send_frame(engine, stream, frame, Item::Control),
            Item::Unnumbered(item) => self.send_unnumbered(engine, stream, item, behind),
        };
        let Some(flow) = self.flows.get_mut(&stream) else { return TurnResult::Nothing };
        let (left, turn) = match sent {
            SendOutcome::All => (None, TurnResult::Used),
            SendOutcome::Reencoded(frame) => {
                self.in_capsules += 1;
                (Some(frame), TurnResult::Used)
            }
            SendOutcome::EngineIsFull(item) => (Some(item), TurnResult::EngineIsFull),
            SendOutcome::StreamIsFull(item) => {
                flow.is_blocked = true;
                flow.has_begun = had_begun || item.len() < len;
                (Some(item), TurnResult::Nothing)
            }
        };
        let left_len = left.as_ref().map_or(0, Item::len);
        if let Some(item) = left {
            flow.items.push_front(item);
        }
        flow.deficit = flow.deficit.saturating_sub(len.saturating_sub(left_len));
        self.resize(stream, len, left_len);
        turn
    }

    fn send_datagram(
        &mut self,
        engine: &mut Engine<'_, impl QueueCarrier>,
        stream: StreamId,
        data: Bytes,
    ) -> SendOutcome {
        if data.len() > engine.carrier.max_datagram_size() {
            // The packets of the tunnel have become smaller since the payload entered the queue.
            let flow = self.flows.get(&stream);
            let may_go = flow.is_some_and(|flow| flow.too_large != TooLarge::Drop);
            let frame = may_go.then(|| into_capsule(data)).flatten();
            self.dropped.too_large += u64::from(frame.is_none());
            return frame.map_or(SendOutcome::All, |frame| {
                SendOutcome::Reencoded(Item::Encoded(Form::Capsule, frame))
            });
        }
        if self.outstanding.flow(stream).is_some_and(|flow| flow.plan.limit != Some(0)) {
            if !engine.carrier.has_room_for_datagram(data.len()) {
                return SendOutcome::EngineIsFull(Item::Encoded(Form::Datagram, data));
            }
            let (number, _) = self.outstanding.number(stream, data.len(), engine.now);
            self.outstanding.keep(stream, number, data);
            self.outstanding.send(engine, stream, number);
            return SendOutcome::All;
        }
        match engine.carrier.send_datagram(data) {
            SendDatagram::Taken => SendOutcome::All,
            SendDatagram::Blocked(data) => {
                SendOutcome::EngineIsFull(Item::Encoded(Form::Datagram, data))
            }
            SendDatagram::TooLarge => {
                self.dropped.too_large += 1;
                SendOutcome::All
            }
        }
    }

    /// Gives a payload its number, after the last point at which it can be dropped, and sends it.
    fn send_unnumbered(
        &mut self,
        engine: &mut Engine<'_, impl QueueCarrier>,
        stream: StreamId,
        item: Unnumbered,
        behind: usize,
    ) -> SendOutcome {
        let len = item.payload_len();
        let max = engine.carrier.max_datagram_size();
        // A larger payload goes in a capsule, and needs no room for itself among datagrams.
        if !engine.carrier.has_room_for_datagram(len.min(max)) {
            return SendOutcome::EngineIsFull(Item::Unnumbered(item));
        }
        let ack_time = self.outstanding.ack_time();
        let Some(flow) = self.outstanding.flow(stream) else { return SendOutcome::All };
        let (now, since) = (engine.now, item.since);
        let oldest = Oldest { since: item.ack_time, ahead: item.ahead, behind };
        if flow.plan.is_too_old(now, since) {
            self.dropped.deadline += 1;
            return SendOutcome::All;
        }
        if flow.plan.keeps_queue_short && flow.aqm.drops(now, ack_time, oldest) {
            self.dropped.standing_queue += 1;
            return SendOutcome::All;
        }
        let Some(ids) = flow.plan.ids(stream) else { return SendOutcome::All };
        let (next, too_large) = (flow.next(), flow.plan.too_large);
        let (room, most) = too_large.sizes(|size| ids.room(next, size), max, self.widest);
        if len > most {
            self.dropped.too_large += 1;
            return SendOutcome::All;
        }
        let (number, floor) = self.outstanding.number(stream, len, since);
        let datagram = item.number(ids, number, floor);
        if len <= room {
            self.outstanding.keep(stream, number, datagram);
            self.outstanding.send(engine, stream, number);
            return SendOutcome::All;
        }
        self.outstanding.note_capsule(stream, number);
        into_capsule(datagram).map_or(SendOutcome::All, |frame| {
            SendOutcome::Reencoded(Item::Encoded(Form::Capsule, frame))
        })
    }

    /// When to feed the queue even if nothing arrives before.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.outstanding.next_timeout()
    }

    /// Notes that a stream has room again.
    pub(super) fn on_writable(&mut self, stream: StreamId) {
        self.unblock_backlog(stream);
        if let Some(flow) = self.flows.get_mut(&stream)
            && std::mem::replace(&mut flow.is_blocked, false)
        {
            self.give_turn(stream);
        }
    }

    /// Whether only a part of a frame has been sent on a stream.
    pub(super) fn is_within_frame(&self, stream: StreamId) -> bool {
        self.flows.get(&stream).is_some_and(|flow| flow.has_begun)
    }

    /// Removes a flow and everything that waits for it.
    pub(super) fn remove(&mut self, stream: StreamId) {
        self.remove_backlog(stream);
        self.outstanding.remove(stream);
        self.resize(stream, self.waiting(stream), 0);
        if let Some(flow) = self.flows.remove(&stream) {
            self.items -= flow.items.len();
        }
        self.longest.remove(stream, 0);
        self.turns.remove(stream);
    }

    /// Counts of dropped payloads, by cause.
    pub(super) const fn dropped(&self) -> &Dropped {
        &self.dropped
    }

    /// How many payloads went in capsules because they fitted no datagram.
    pub(super) const fn in_capsules(&self) -> u64 {
        self.in_capsules
    }

    /// Counts of what was repaired, and of what was given up.
    pub(super) const fn repaired(&self) -> &Repaired {
        self.outstanding.stats()
    }
}

fn send_frame(
    engine: &mut Engine<'_, impl QueueCarrier>,
    stream: StreamId,
    mut frame: Bytes,
    rest: impl FnOnce(Bytes) -> Item,
) -> SendOutcome {
    engine.hold_two_windows();
    match engine.carrier.write_body(stream, &mut frame) {
        // The frame was sent, or its stream no longer exists.
        Ok(Write::Done) | Err(_) => SendOutcome::All,
        Ok(Write::Blocked) => SendOutcome::StreamIsFull(rest(frame)),
    }
}
