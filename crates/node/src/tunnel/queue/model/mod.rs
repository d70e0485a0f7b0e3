//! The queue as a state machine: flows open and close, payloads come with numbers and without, and
//! the connection below takes them, loses them and acknowledges them, all as the input says.
//!
//! The bounds on bytes and memory hold. No payload of a closed flow is sent, no number stands for
//! two payloads of a flow, and no payload is sent more often than its limit allows. What the queue
//! accepts is sent or counted as dropped. Nothing is left once all flows have closed.

pub(super) mod below;

use std::time::{Duration, Instant};

use tandem_wire::{Order, RetransmissionLimit, Urgency, VarInt};

use self::below::{Below, NUMBERED, Stream};
use super::{Form, Payload, Queue, RepairPlan, TooLarge, room::BYTES_PER_ITEM};
use crate::{
    limits::Limits,
    mode::Repair,
    quic::{self, Delivery, StreamId},
    script::Reader,
    tunnel::capsules::encode_limit,
};

/// The largest number of steps of one run.
const STEPS_MAX: usize = 300;

/// The largest number of flows that are open at the same time.
const FLOWS_MAX: usize = 20;

/// The largest payload.
const PAYLOAD_MAX: usize = 1400;

/// The largest header of a datagram, or of a capsule and its frame.
const HEADER_MAX: usize = 40;

/// The largest number of rounds until the queue is empty once the connection takes everything.
const ROUNDS_MAX: usize = 100;

static PAYLOAD: [u8; PAYLOAD_MAX] = [0; PAYLOAD_MAX];

/// How the repair of a flow may still change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RepairTerms {
    /// The flow is not repaired.
    Nothing,
    /// The flow is repaired without numbers, until the peer says more.
    Unnumbered,
    Numbered,
}

struct ModelFlow {
    stream: StreamId,
    too_large: TooLarge,
    agreed: RepairTerms,
}

struct QueueRun {
    queue: Queue,
    below: Below,
    limits: Limits,
    flows: Vec<ModelFlow>,
    streams: u64,
    /// The number of payloads that were pushed.
    pushed: u32,
    refused: u64,
    /// Bytes of capsules without payloads.
    capsules: usize,
}

/// Drives a queue as the input says.
///
/// # Panics
///
/// The queue breaks a promise.
#[cfg_attr(not(fuzzing), expect(unreachable_pub, reason = "only a fuzz target is outside"))]
pub fn run(input: &[u8]) {
    let mut reader = Reader::new(input);
    let mut run = QueueRun::new(&mut reader);
    reader.steps(STEPS_MAX, |reader| {
        run.step(reader);
        run.check();
    });
    run.end(reader.byte().is_multiple_of(2));
}

impl QueueRun {
    fn new(reader: &mut Reader<'_>) -> Self {
        let limits = Limits {
            tunnel_queue: reader.choose(&[3000, 30_000, 300_000]),
            short_tunnel_queue: reader.choose(&[10_000, 600_000]),
            repair_bytes: reader.choose(&[4000, 40_000, 1_000_000]),
            ..Limits::default()
        };
        #[expect(clippy::disallowed_methods, reason = "only differences to it matter")]
        let now = Instant::now();
        Self {
            queue: Queue::new(&limits),
            below: Below::new(now),
            limits,
            flows: Vec::new(),
            streams: 0,
            pushed: 0,
            refused: 0,
            capsules: 0,
        }
    }

    fn step(&mut self, reader: &mut Reader<'_>) {
        match reader.byte() % 32 {
            0 | 1 => self.open(reader),
            2..=4 => self.push(1, reader),
            5 | 6 => self.push(reader.byte().into(), reader),
            7 => self.close(reader.byte()),
            8..=10 => self.feed(),
            11 | 12 => self.below.room = reader.number(),
            13..=15 => self.below.transmit(reader.byte().into()),
            16 => self.below.resolve(reader.byte().into(), 1, Delivery::Acked),
            17 => self.below.resolve(0, reader.byte().into(), Delivery::Acked),
            18 | 19 => self.below.resolve(reader.byte().into(), 1, Delivery::Lost),
            20 => self.below.resolve(0, reader.byte().into(), Delivery::Lost),
            21 => self.below.resolve(0, 1, Delivery::Unknown),
            22 => self.below.drop_taken(),
            23 => self.below.max_datagram_size = reader.choose(&[1200, 0, 50, 300, 1191, 1440]),
            24 => self.below.smoothed_rtt = millis(reader),
            25 => self.below.now += millis(reader),
            26 => self.wait(),
            27 => self.round(),
            28 => self.agree(reader),
            letter => self.stream(letter, reader),
        }
    }

    fn flow(&mut self, index: u8) -> Option<&mut ModelFlow> {
        let index = usize::from(index).checked_rem(self.flows.len())?;
        self.flows.get_mut(index)
    }

    fn open(&mut self, reader: &mut Reader<'_>) {
        if self.flows.len() >= FLOWS_MAX {
            return;
        }
        let stream = StreamId(4 * self.streams);
        self.streams += 1;
        self.below.streams.insert(stream, Stream::new());
        let too_large = reader.choose(&[TooLarge::Drop, TooLarge::Capsule(1280)]);
        self.flows.push(ModelFlow { stream, too_large, agreed: RepairTerms::Nothing });
        let index = self.flows.len() - 1;
        match reader.byte() % 4 {
            0 => {}
            1 => self.repair(index, RepairTerms::Unnumbered, reader),
            _ => self.repair(index, RepairTerms::Numbered, reader),
        }
    }

    /// Starts the repair of a flow, or changes it.
    fn repair(&mut self, index: usize, agreed: RepairTerms, reader: &mut Reader<'_>) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        let plan = if agreed == RepairTerms::Unnumbered {
            RepairPlan::unnumbered(reader.byte() % 4, flow.too_large)
        } else {
            let order = reader.choose(&[Order::Ordered, Order::Off]);
            let deadline = reader.choose(&[None, Some(Duration::from_millis(50))]);
            let limit = reader.choose(&[None, Some(0), Some(1), Some(3)]);
            RepairPlan::numbered(NUMBERED, Repair { order, deadline, limit }, flow.too_large)
        };
        flow.agreed = agreed;
        let stream = self.below.streams.get_mut(&flow.stream).expect("the flow is open");
        let sends_max = plan.limit.map_or(u32::MAX, |limit| u32::from(limit) + 1);
        stream.sends_max = stream.sends_max.max(sends_max);
        self.queue.set_repair(flow.stream, plan);
    }

    /// Continues the agreement on a flow that is repaired without numbers, as peers may.
    fn agree(&mut self, reader: &mut Reader<'_>) {
        let Some(index) = usize::from(reader.byte()).checked_rem(self.flows.len()) else { return };
        let Some(flow) = self.flows.get_mut(index) else { return };
        if flow.agreed != RepairTerms::Unnumbered {
            return;
        }
        match reader.choose(&[RepairTerms::Nothing, RepairTerms::Unnumbered, RepairTerms::Numbered])
        {
            RepairTerms::Nothing => {
                flow.agreed = RepairTerms::Nothing;
                self.queue.end_repair(flow.stream);
                // Payloads that the engine did not take are gone with the repair.
                let stream = self.below.streams.get_mut(&flow.stream);
                stream.expect("the flow is open").may_lack = true;
            }
            agreed => self.repair(index, agreed, reader),
        }
    }

    fn push(&mut self, count: usize, reader: &mut Reader<'_>) {
        let (index, len) = (reader.byte(), reader.number() % PAYLOAD_MAX);
        let form = reader.choose(&[Form::Datagram, Form::Datagram, Form::Datagram, Form::Capsule]);
        let Some(&mut ModelFlow { stream, too_large, .. }) = self.flow(index) else { return };
        for _ in 0..count {
            let id = self.pushed;
            self.pushed += 1;
            let mut data = id.to_be_bytes().to_vec();
            data.extend(PAYLOAD.iter().take(len));
            let (bytes, items) = (self.queue.bytes, self.queue.items);
            let payload = Payload { form, too_large, data: &data };
            let max = self.below.max_datagram_size;
            if self.queue.push(self.below.now, stream, payload, max).is_ok() {
                let stream = self.below.streams.get_mut(&stream).expect("the flow is open");
                stream.sends.insert(id, 0);
            } else {
                self.refused += 1;
            }
            assert!(self.queue.bytes <= bytes.max(self.bytes_max()));
            assert!(self.queue.items <= items.max(self.items_max()));
        }
    }

    fn bytes_max(&self) -> usize {
        self.limits.tunnel_queue.max(self.limits.short_tunnel_queue)
    }

    fn items_max(&self) -> usize {
        (self.bytes_max() / BYTES_PER_ITEM).max(64)
    }

    fn close(&mut self, index: u8) {
        let Some(index) = usize::from(index).checked_rem(self.flows.len()) else { return };
        let stream = self.flows.swap_remove(index).stream;
        self.queue.remove(stream);
        self.below.streams.remove(&stream).expect("the flow was open");
    }

    fn feed(&mut self) {
        let Self { queue, below, .. } = self;
        queue.feed(below.now, below);
        assert!(below.reports.is_empty(), "{} delivery reports are left", below.reports.len());
        let next = queue.next_timeout();
        assert!(next.is_none_or(|next| next > below.now), "the timer is in the past");
    }

    /// Feeds the queue when its timer is due.
    fn wait(&mut self) {
        if let Some(due) = self.queue.next_timeout() {
            self.below.now = due;
            self.feed();
        }
    }

    /// Lets the connection take everything, and the peer acknowledge it.
    fn round(&mut self) {
        self.below.room = 100_000;
        for (stream, state) in &mut self.below.streams {
            state.room = 100_000;
            self.queue.on_writable(*stream);
        }
        self.feed();
        self.below.transmit(usize::MAX);
        self.below.now += Duration::from_millis(10);
        self.below.resolve(0, self.below.in_flight.len(), Delivery::Acked);
        self.feed();
    }

    fn stream(&mut self, letter: u8, reader: &mut Reader<'_>) {
        let Some(&mut ModelFlow { stream, .. }) = self.flow(reader.byte()) else { return };
        let state = self.below.streams.get_mut(&stream).expect("the flow is open");
        match (letter, reader.byte()) {
            (29, choice) => {
                state.room = usize::from(choice) * 20;
                self.queue.on_writable(stream);
            }
            (30, 0) => {
                state.is_stopped = true;
                self.queue.on_writable(stream);
            }
            (30, 1) => self.queue.set_reported(),
            (30, choice) => {
                self.queue.set_weight(stream, choice);
                let urgency = Urgency::parse_field(if choice % 2 == 0 { "u=0" } else { "u=3" });
                self.queue.set_urgency(stream, urgency);
            }
            (_, choice) => {
                let limit = VarInt::from_u32(choice.into());
                let frame = encode_limit(RetransmissionLimit { context_id: None, limit });
                self.capsules += frame.len();
                self.queue.push_capsule(stream, frame);
            }
        }
    }

    fn check(&self) {
        let Self { queue, below, limits, .. } = self;
        let bytes = queue.flows.values().map(|flow| flow.bytes).sum::<usize>();
        let items = queue.flows.values().flat_map(|flow| &flow.items);
        assert_eq!((queue.bytes, queue.bytes), (bytes, items.clone().map(super::Item::len).sum()));
        assert_eq!(queue.items, items.count());
        assert!(queue.flows.keys().all(|stream| below.streams.contains_key(stream)));
        queue.outstanding.check(limits.repair_bytes + PAYLOAD_MAX + HEADER_MAX);
        // Payloads whose datagrams no longer fit wait in capsules besides.
        let headers = (queue.items + self.capsules) * HEADER_MAX;
        let most = self.bytes_max() + limits.repair_bytes + headers + PAYLOAD_MAX;
        assert!(queue.bytes <= most, "{} of {most} bytes", queue.bytes);
    }

    /// Closes all flows, after everything was sent or at once.
    fn end(&mut self, is_drained: bool) {
        if is_drained {
            self.drain();
        }
        for _ in 0..self.flows.len() {
            self.close(0);
        }
        self.feed();
        self.below.transmit(usize::MAX);
        self.below.resolve(0, self.below.in_flight.len(), Delivery::Acked);
        self.feed();
        let queue = &self.queue;
        assert_eq!((queue.len(), queue.bytes, queue.items, queue.flows.len()), (0, 0, 0, 0));
        assert_eq!((queue.turns.front(), queue.next_timeout()), (None, None));
        let most = 128 * quic::IN_FLIGHT_MEMORY;
        assert!(queue.memory() <= most, "{} bytes of memory are left", queue.memory());
    }

    fn drain(&mut self) {
        self.below.max_datagram_size = 1200;
        for _ in 0..ROUNDS_MAX {
            self.round();
            if self.queue.is_empty() && self.below.taken.is_empty() {
                break;
            }
        }
        self.check();
        assert_eq!((self.queue.len(), self.queue.next_timeout()), (0, None));
        let sends = self.below.streams.iter().filter(|(_, it)| !it.is_stopped && !it.may_lack);
        let unsent = sends.flat_map(|(_, stream)| stream.sends.values().filter(|it| **it == 0));
        let given_up = self.queue.repaired().given_up.total();
        let dropped = self.queue.dropped().total() - self.refused + given_up;
        let unsent = unsent.count() as u64;
        assert!(unsent <= dropped, "{unsent} payloads are missing, {dropped} were dropped");
    }
}

fn millis(reader: &mut Reader<'_>) -> Duration {
    Duration::from_millis(u64::from(reader.byte()))
}
