//! The one standing queue of a tunnel, at its sender: UDP payloads that wait for the tunnel's QUIC
//! connection to send them, in the form in which they go, and those of them that have to go again.
//!
//! The engine is given no more than one pacing burst of datagrams, or two congestion windows of
//! stream data, at a time, so that the length here is the tunnel's queue q(t). Flows have their turns
//! by urgency, and those of the same urgency by deficit round robin, in proportion to their weights; a
//! flow whose datagrams are repaired sends those that were lost before new ones. When the queue is full, the flow that holds most of it loses its newest.

mod aqm;
mod item;
mod longest;
mod outstanding;
#[cfg(test)]
mod tests;
mod turns;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use bytes::Bytes;
use tandem_wire::{CONTEXT_ID_UDP, Urgency};

use self::{
    aqm::Oldest,
    item::{Ids, Item, Unnumbered, encode_datagram, fits_datagram},
    longest::Longest,
    outstanding::Outstanding,
    turns::Turns,
};
pub(super) use self::{item::NUMBERS, outstanding::RepairPlan};
use super::{capsules::encode_payload, carrier::Carrier};
use crate::{
    limits::Limits,
    quic::{SendDatagram, StreamId, Write},
    stats::{Dropped, Repaired},
};

/// In which form a flow's payloads go (RFC 9297 §2 and §3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tunnel) enum Form {
    /// QUIC DATAGRAM frames: repaired only if both ends agreed to it.
    Datagram,
    /// DATAGRAM capsules on the request stream: repaired and in order.
    Capsule,
}

/// What to do with a payload that fits no datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tunnel) enum TooLarge {
    /// RFC 9298 §6.1: it SHOULD be dropped, so that its sender finds out what fits.
    Drop,
    /// It was promised to fit, so it goes in a capsule until the tunnel's packets are full again.
    /// Only for payloads of at most this size, and only if the other end said that it reads them.
    Capsule(usize),
}

impl TooLarge {
    const fn allows_capsule(self, len: usize) -> bool {
        match self {
            Self::Drop => false,
            Self::Capsule(max) => len <= max,
        }
    }
}

/// A UDP payload that comes to the queue, which copies it once.
#[derive(Debug)]
pub(super) struct Payload<'a> {
    pub(super) form: Form,
    pub(super) too_large: TooLarge,
    pub(super) data: &'a [u8],
}

/// Payloads of one flow.
#[derive(Debug, Default)]
struct FlowQueue {
    items: VecDeque<Item>,
    bytes: usize,
    /// Bytes that it may still send in its turn.
    deficit: usize,
    /// It stands in `turns`.
    has_turn: bool,
    /// Its stream has no room; capsules have no turn until there is.
    is_blocked: bool,
    /// Some of its first item has been sent: a frame whose rest has to follow.
    is_begun: bool,
}

impl FlowQueue {
    fn give_turn(&mut self, turns: &mut Turns, stream: StreamId) {
        if !std::mem::replace(&mut self.has_turn, true) {
            turns.push_back(stream);
        }
    }
}

/// The queue.
#[derive(Debug)]
pub(super) struct Queue {
    flows: BTreeMap<StreamId, FlowQueue>,
    longest: Longest,
    /// Flows that have something to send and may, in the order of their turns.
    turns: Turns,
    outstanding: Outstanding,
    bytes: usize,
    bytes_max: usize,
    /// While there is a flow whose queue is kept short, here or by its origin.
    short_bytes_max: usize,
    is_reported: bool,
    dropped: Dropped,
}

/// What a flow did in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It sent something, or dropped it.
    Used,
    /// It may go on when all others had their turn.
    Ended,
    /// It has nothing that may go.
    Nothing,
    /// The engine has as much as it is to have at once.
    EngineIsFull,
}

/// What became of the first of a flow's payloads in its turn.
enum Sent {
    /// It went, or was dropped.
    All,
    /// It goes so instead, next.
    Instead(Item),
    /// It waits until the engine has room.
    EngineIsFull(Item),
    /// What is left of it waits until its stream has room.
    StreamIsFull(Item),
}

/// Where payloads go, and when.
struct Engine<'a, 'c> {
    now: Instant,
    carrier: &'a mut Carrier<'c>,
    is_window_set: bool,
}

impl Queue {
    /// A queue that holds no more than these limits.
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            flows: BTreeMap::new(),
            longest: Longest::default(),
            turns: Turns::default(),
            outstanding: Outstanding::new(limits.repair_bytes),
            bytes: 0,
            bytes_max: limits.tunnel_queue,
            short_bytes_max: limits.short_tunnel_queue.max(limits.tunnel_queue),
            is_reported: false,
            dropped: Dropped::default(),
        }
    }

    /// Bytes of encoded payloads that wait, be it to go again: q(t).
    pub(super) const fn len(&self) -> usize {
        self.bytes + self.outstanding.waiting_bytes()
    }

    /// Bytes that wait for a request stream to be sent for the first time.
    pub(super) fn waiting(&self, stream: StreamId) -> usize {
        self.flows.get(&stream).map_or(0, |flow| flow.bytes)
    }

    /// Bytes of a flow that wait, be it to go again.
    pub(super) fn flow_len(&self, stream: StreamId) -> usize {
        self.waiting(stream) + self.outstanding.waiting_bytes_of(stream)
    }

    /// Repaired datagrams that were sent, and of those, sent again.
    pub(super) const fn sends(&self) -> (u64, u64) {
        self.outstanding.sends()
    }

    /// More urgent flows go first, whatever that leaves for others.
    pub(super) fn set_urgency(&mut self, stream: StreamId, urgency: Urgency) {
        self.turns.set_urgency(stream, urgency);
    }

    /// Flows that are as urgent share the tunnel in proportion to their weights, 1 unless it is said.
    pub(super) fn set_weight(&mut self, stream: StreamId, weight: u8) {
        self.turns.set_weight(stream, weight);
    }

    /// Origins hear how long the queue is.
    pub(super) const fn set_reported(&mut self) {
        self.is_reported = true;
    }

    /// How urgent a flow is.
    pub(super) fn urgency(&self, stream: StreamId) -> Urgency {
        self.turns.urgency(stream)
    }

    /// From now on datagrams of this flow are repaired, or repaired in another way.
    pub(super) fn set_repair(&mut self, stream: StreamId, plan: RepairPlan) {
        self.outstanding.set_plan(stream, plan);
    }

    /// Repairs nothing of a flow any more.
    pub(super) fn end_repair(&mut self, stream: StreamId) {
        self.outstanding.remove(stream);
    }

    /// Puts a capsule that is no payload before all that has not begun.
    pub(super) fn push_capsule(&mut self, stream: StreamId, frame: Bytes) {
        self.insert_frame(stream, frame);
        self.give_turn(stream);
    }

    /// Puts a payload at the end of its flow. `max_datagram_size` is what fits a packet of the tunnel
    /// now. `false`: it was dropped, and counted.
    pub(super) fn push(
        &mut self,
        now: Instant,
        stream: StreamId,
        payload: Payload<'_>,
        max_datagram_size: usize,
    ) -> bool {
        let Some(item) = self.to_item(now, stream, payload, max_datagram_size) else {
            self.dropped.too_large += 1;
            return false;
        };
        let len = item.len();
        if self.bytes + len > self.bytes_max() && !self.make_room(stream, len) {
            self.dropped.queue_full += 1;
            return false;
        }
        let flow = self.flows.entry(stream).or_default();
        let is_first = flow.items.is_empty();
        flow.items.push_back(item);
        if is_first && !flow.is_blocked {
            flow.give_turn(&mut self.turns, stream);
        }
        self.resize(stream, 0, len);
        true
    }

    /// Notes that a flow holds `gone` bytes less and `come` bytes more.
    fn resize(&mut self, stream: StreamId, gone: usize, come: usize) {
        let Some(flow) = self.flows.get_mut(&stream) else { return };
        let before = flow.bytes;
        flow.bytes = before + come - gone;
        self.bytes = self.bytes + come - gone;
        self.longest.resize(stream, before, flow.bytes);
    }

    fn to_item(
        &mut self,
        now: Instant,
        stream: StreamId,
        Payload { form, too_large, data }: Payload<'_>,
        max_datagram_size: usize,
    ) -> Option<Item> {
        if form == Form::Capsule {
            return Some(Item::Encoded(form, encode_payload(CONTEXT_ID_UDP, data)));
        }
        let may_go_in_capsule = too_large.allows_capsule(data.len());
        let ack_time = self.outstanding.ack_time();
        if let Some(flow) = self.outstanding.flow(stream)
            && let Some(context_id) = flow.plan.context_id
        {
            let ids = Ids::new(stream, context_id)?;
            let fits = ids.fits_numbered(data.len(), flow.next(), max_datagram_size);
            let ahead = self.flows.get(&stream).map_or(0, |flow| flow.bytes);
            return (fits || may_go_in_capsule)
                .then(|| Item::Unnumbered(Unnumbered::new(data, (now, ack_time), ahead)));
        }
        if fits_datagram(stream, data, max_datagram_size) {
            return Some(Item::Encoded(form, encode_datagram(stream, data)?));
        }
        let capsule = || Item::Encoded(Form::Capsule, encode_payload(CONTEXT_ID_UDP, data));
        may_go_in_capsule.then(capsule)
    }

    fn give_turn(&mut self, stream: StreamId) {
        if let Some(flow) = self.flows.get_mut(&stream) {
            flow.give_turn(&mut self.turns, stream);
        }
    }

    const fn bytes_max(&self) -> usize {
        let is_short = self.is_reported || self.outstanding.keeps_queue_short();
        if is_short { self.short_bytes_max } else { self.bytes_max }
    }

    /// Drops the newest of the longest flow, unless that is the one that asks.
    fn make_room(&mut self, stream: StreamId, len: usize) -> bool {
        let bytes_max = self.bytes_max();
        let held = self.flows.get(&stream).map_or(0, |flow| flow.bytes);
        while self.bytes + len > bytes_max {
            // A flow below its share takes from the longest; one above it waits for its own.
            if held + len > bytes_max / self.flows.len().max(1) {
                return false;
            }
            let longest = self.longest.get();
            let items = longest.and_then(|stream| Some(&mut self.flows.get_mut(&stream)?.items));
            let (Some(longest), Some(items)) = (longest, items.filter(|items| items.len() > 1))
            else {
                return false;
            };
            let dropped = items.pop_back().map_or(0, |item| item.len());
            self.resize(longest, dropped, 0);
            self.dropped.queue_full += 1;
        }
        true
    }

    /// Gives the engine as much as it is to have at once.
    pub(super) fn feed(&mut self, now: Instant, carrier: &mut Carrier<'_>) {
        let is_repaired = !self.outstanding.is_idle();
        if is_repaired {
            self.settle(now, carrier);
        }
        let mut engine = Engine { now, carrier, is_window_set: false };
        while let Some(stream) = self.turns.front() {
            let mut turn = Turn::Nothing;
            if is_repaired {
                turn = self.repair_turn(&mut engine, stream);
            }
            if turn == Turn::Nothing {
                turn = self.item_turn(&mut engine, stream);
            }
            match turn {
                Turn::Used => {}
                Turn::Ended => self.turns.rotate(),
                Turn::Nothing => self.end_turns(stream),
                // What is to be sent anyway will tell what became of what was sent before.
                Turn::EngineIsFull => return self.outstanding.cancel_probe(),
            }
        }
        if is_repaired {
            self.outstanding.probe(now, engine.carrier);
        } else {
            self.outstanding.cancel_probe();
        }
    }

    /// Learns which datagrams were lost, and gives their flows a turn.
    fn settle(&mut self, now: Instant, carrier: &mut Carrier<'_>) {
        let Self { flows, turns, outstanding, .. } = self;
        outstanding.settle(now, carrier, |stream| {
            flows.entry(stream).or_default().give_turn(turns, stream);
        });
    }

    /// Ends the turns of the first flow until it has something that may go.
    fn end_turns(&mut self, stream: StreamId) {
        self.turns.pop_front();
        if let Some(flow) = self.flows.get_mut(&stream) {
            flow.has_turn = false;
            if flow.items.is_empty() {
                self.flows.remove(&stream); // it holds no bytes
            }
        }
    }

    /// Whether a flow may send so many bytes now; else it gets more for its next turn.
    fn may_send(&mut self, stream: StreamId, len: usize) -> bool {
        let is_alone = self.turns.is_alone();
        let Some(flow) = self.flows.get_mut(&stream) else { return false };
        let may_send = len <= flow.deficit || is_alone;
        if !may_send {
            flow.deficit += self.turns.quantum(stream);
        }
        may_send
    }

    /// Sends the lowest number of a flow that was lost.
    fn repair_turn(&mut self, engine: &mut Engine<'_, '_>, stream: StreamId) -> Turn {
        let Some((number, data)) = self.outstanding.next_waiting(engine.now, stream) else {
            return Turn::Nothing;
        };
        let len = data.len();
        if len > engine.carrier.max_datagram_size() {
            self.repair_in_capsule(stream, number, data);
            return Turn::Used;
        }
        if !self.may_send(stream, len) {
            return Turn::Ended;
        }
        if !self.outstanding.send(engine.carrier, stream, number) {
            return Turn::EngineIsFull;
        }
        if let Some(flow) = self.flows.get_mut(&stream) {
            flow.deficit = flow.deficit.saturating_sub(len);
        }
        Turn::Used
    }

    /// The path's MTU has shrunk since the first time.
    fn repair_in_capsule(&mut self, stream: StreamId, number: u64, datagram: Bytes) {
        let Some(flow) = self.outstanding.flow(stream) else { return };
        let frame = flow.plan.capsule(stream, datagram);
        self.outstanding.goes_in_capsule(stream, number);
        match frame {
            Some(frame) => self.insert_frame(stream, frame),
            None => self.dropped.too_large += 1,
        }
    }

    /// Puts a frame before all that has not begun.
    fn insert_frame(&mut self, stream: StreamId, frame: Bytes) {
        let len = frame.len();
        let flow = self.flows.entry(stream).or_default();
        flow.items.insert(usize::from(flow.is_begun), Item::Encoded(Form::Capsule, frame));
        self.resize(stream, 0, len);
    }

    /// Sends the first of what waits for the first time.
    fn item_turn(&mut self, engine: &mut Engine<'_, '_>, stream: StreamId) -> Turn {
        let Some(flow) = self.flows.get_mut(&stream).filter(|flow| !flow.is_blocked) else {
            return Turn::Nothing;
        };
        let Some(len) = flow.items.front().map(Item::len) else { return Turn::Nothing };
        if !self.may_send(stream, len) {
            return Turn::Ended;
        }
        let Some(flow) = self.flows.get_mut(&stream) else { return Turn::Nothing };
        let Some(item) = flow.items.pop_front() else { return Turn::Nothing };
        let was_begun = std::mem::replace(&mut flow.is_begun, false);
        let behind = flow.bytes - len;
        let sent = match item {
            Item::Encoded(Form::Capsule, frame) => send_frame(engine, stream, frame),
            Item::Encoded(Form::Datagram, data) => self.send_datagram(engine, stream, data),
            Item::Unnumbered(item) => self.send_unnumbered(engine, stream, item, behind),
        };
        let Some(flow) = self.flows.get_mut(&stream) else { return Turn::Nothing };
        let (left, turn) = match sent {
            Sent::All => (None, Turn::Used),
            Sent::Instead(frame) => (Some(frame), Turn::Used),
            Sent::EngineIsFull(item) => (Some(item), Turn::EngineIsFull),
            Sent::StreamIsFull(item) => {
                flow.is_blocked = true;
                flow.is_begun = was_begun || item.len() < len;
                (Some(item), Turn::Nothing)
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
        engine: &mut Engine<'_, '_>,
        stream: StreamId,
        data: Bytes,
    ) -> Sent {
        if self.outstanding.flow(stream).is_some_and(|flow| flow.plan.limit != Some(0)) {
            if !engine.carrier.has_room_for_datagram(data.len()) {
                return Sent::EngineIsFull(Item::Encoded(Form::Datagram, data));
            }
            let (number, _) = self.outstanding.number(stream, data.len(), engine.now);
            self.outstanding.keep(stream, number, data);
            self.outstanding.send(engine.carrier, stream, number);
            return Sent::All;
        }
        match engine.carrier.send_datagram(data) {
            SendDatagram::Taken => Sent::All,
            SendDatagram::Blocked(data) => Sent::EngineIsFull(Item::Encoded(Form::Datagram, data)),
            SendDatagram::TooLarge => {
                self.dropped.too_large += 1;
                Sent::All
            }
        }
    }

    /// A payload gets its number now that nothing can drop it any more.
    fn send_unnumbered(
        &mut self,
        engine: &mut Engine<'_, '_>,
        stream: StreamId,
        item: Unnumbered,
        behind: usize,
    ) -> Sent {
        let len = item.payload_len();
        if !engine.carrier.has_room_for_datagram(len) {
            return Sent::EngineIsFull(Item::Unnumbered(item));
        }
        let ack_time = self.outstanding.ack_time();
        let Some(flow) = self.outstanding.flow(stream) else { return Sent::All };
        let (now, since) = (engine.now, item.since);
        let oldest = Oldest { since: item.ack_time, ahead: item.ahead, behind };
        if flow.plan.is_too_old(now, since) {
            self.dropped.deadline += 1;
            return Sent::All;
        }
        if flow.plan.keeps_queue_short && flow.aqm.drops(now, ack_time, oldest) {
            self.dropped.standing_queue += 1;
            return Sent::All;
        }
        let Some(ids) = flow.plan.ids(stream) else { return Sent::All };
        let max = engine.carrier.max_datagram_size();
        let fits = ids.fits_numbered(len, flow.next(), max);
        if !fits && !flow.plan.too_large.allows_capsule(len) {
            self.dropped.too_large += 1;
            return Sent::All;
        }
        let (number, floor) = self.outstanding.number(stream, len, since);
        let datagram = item.number(ids, number, floor);
        if fits {
            self.outstanding.keep(stream, number, datagram);
            self.outstanding.send(engine.carrier, stream, number);
            return Sent::All;
        }
        self.outstanding.goes_in_capsule(stream, number);
        Sent::Instead(Item::Encoded(Form::Capsule, ids.into_capsule(datagram)))
    }

    /// When the queue wants to be fed although nothing happens.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.outstanding.next_timeout()
    }

    /// The stream of a flow has room again.
    pub(super) fn on_writable(&mut self, stream: StreamId) {
        if let Some(flow) = self.flows.get_mut(&stream)
            && std::mem::replace(&mut flow.is_blocked, false)
        {
            self.give_turn(stream);
        }
    }

    /// Whether a frame of a flow has been sent in part only.
    pub(super) fn is_within_frame(&self, stream: StreamId) -> bool {
        self.flows.get(&stream).is_some_and(|flow| flow.is_begun)
    }

    /// Forgets a flow.
    pub(super) fn remove(&mut self, stream: StreamId) {
        self.outstanding.remove(stream);
        self.resize(stream, self.waiting(stream), 0);
        self.flows.remove(&stream);
        self.turns.remove(stream);
    }

    /// What was dropped, by cause.
    pub(super) const fn dropped(&self) -> &Dropped {
        &self.dropped
    }

    /// What was repaired, and what was not.
    pub(super) const fn repaired(&self) -> &Repaired {
        self.outstanding.stats()
    }
}

fn send_frame(engine: &mut Engine<'_, '_>, stream: StreamId, mut frame: Bytes) -> Sent {
    if !std::mem::replace(&mut engine.is_window_set, true) {
        engine.carrier.hold_two_windows();
    }
    match engine.carrier.write_body(stream, &mut frame) {
        // Done, or the stream has gone, and with it the flow.
        Ok(Write::Done) | Err(_) => Sent::All,
        Ok(Write::Blocked) => Sent::StreamIsFull(Item::Encoded(Form::Capsule, frame)),
    }
}
