//! Where repaired payloads leave a tunnel: they are brought into order, flow by flow, and wait for
//! each other within the bounds of the node.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_wire::{DecodeError, Order, Sequenced, VarInt};

use crate::{
    repair_fields::Repair,
    resequence::{self, Bounds, Resequence, Resequencer, ResequencerStats},
    timers::move_timer,
};

/// The resequencers of a node's flows, each named by `K`.
#[derive(Debug)]
pub(crate) struct TunnelExit<K> {
    flows: BTreeMap<K, ExitFlow>,
    timers: BTreeSet<(Instant, K)>,
    /// Flows that may have payloads to release.
    releasing: VecDeque<K>,
    held_bytes: usize,
    held_bytes_max: usize,
    /// Of flows that have ended.
    ended: ResequencerStats,
}

#[derive(Debug)]
struct ExitFlow {
    context_id: VarInt,
    resequencer: Resequencer,
    held_bytes: usize,
    timer: Option<Instant>,
    is_releasing: bool,
}

/// What was agreed on for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExitPlan {
    /// The Context ID of its numbered payloads.
    pub(crate) context_id: VarInt,
    pub(crate) order: Order,
    /// Nothing older is of use to whom it is for.
    pub(crate) deadline: Option<Duration>,
}

impl ExitPlan {
    /// Payloads under this Context ID leave as the client wishes.
    pub(crate) const fn new(context_id: VarInt, wish: Repair) -> Self {
        Self { context_id, order: wish.order, deadline: wish.deadline }
    }
}

impl<K: Copy + Ord> TunnelExit<K> {
    /// Flows that together hold at most so many bytes of payload.
    pub(crate) fn new(held_bytes_max: usize) -> Self {
        Self {
            flows: BTreeMap::new(),
            timers: BTreeSet::new(),
            releasing: VecDeque::new(),
            held_bytes: 0,
            held_bytes_max,
            ended: ResequencerStats::default(),
        }
    }

    /// Numbered payloads of this flow are going to come.
    pub(crate) fn insert(&mut self, key: K, plan: ExitPlan) {
        let mode = match plan.order {
            Order::Off => Resequence::Off,
            Order::Window => Resequence::WINDOW,
            Order::Ordered => Resequence::Ordered,
        };
        let mut bounds = Bounds::default();
        if let Some(deadline) = plan.deadline {
            bounds.gap_max = bounds.gap_max.min(deadline);
        }
        self.remove(key);
        let flow = ExitFlow {
            context_id: plan.context_id,
            resequencer: Resequencer::new(mode, bounds),
            held_bytes: 0,
            timer: None,
            is_releasing: false,
        };
        self.flows.insert(key, flow);
    }

    /// Whether payloads of this flow under this Context ID are numbered.
    pub(crate) fn takes(&self, key: K, context_id: VarInt) -> bool {
        self.flows.get(&key).is_some_and(|flow| flow.context_id == context_id)
    }

    /// Takes what follows the Context ID of a numbered payload.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        key: K,
        data: Bytes,
        smoothed_rtt: Duration,
    ) -> Result<(), DecodeError> {
        let Sequenced { sequence, floor, payload } = Sequenced::decode(data)?;
        let Some(flow) = self.flows.get_mut(&key) else { return Ok(()) };
        flow.resequencer.set_smoothed_rtt(smoothed_rtt);
        let numbered =
            resequence::Sequenced { number: sequence.get(), repair_floor: floor.get(), payload };
        flow.resequencer.push(now, numbered);
        self.look_at(key);
        if self.held_bytes > self.held_bytes_max {
            self.flush_longest(now);
        }
        Ok(())
    }

    /// The flow that holds most waits for nothing any more.
    fn flush_longest(&mut self, now: Instant) {
        let longest = self.flows.iter_mut().max_by_key(|(_, flow)| flow.held_bytes);
        if let Some((&key, flow)) = longest {
            flow.resequencer.flush(now);
            self.look_at(key);
        }
    }

    /// The next payload that may go. Who takes it is to read before it takes another.
    pub(crate) fn poll_release(&mut self, now: Instant) -> Option<(K, Bytes)> {
        while let Some(&key) = self.releasing.front() {
            let flow = self.flows.get_mut(&key);
            if let Some(payload) = flow.and_then(|flow| flow.resequencer.poll_release(now)) {
                self.note(key);
                return Some((key, payload));
            }
            self.releasing.pop_front();
            if let Some(flow) = self.flows.get_mut(&key) {
                flow.is_releasing = false;
            }
            self.note(key);
        }
        None
    }

    /// Gaps that have had their time are waited for no more.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(due, key)) = self.timers.first() {
            if due > now {
                return;
            }
            self.timers.pop_first();
            if let Some(flow) = self.flows.get_mut(&key) {
                flow.timer = None; // until its releases have been polled
                if !std::mem::replace(&mut flow.is_releasing, true) {
                    self.releasing.push_back(key);
                }
            }
        }
    }

    /// When the first gap has had its time.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(due, _)| due)
    }

    /// Forgets a flow, and what it held.
    pub(crate) fn remove(&mut self, key: K) {
        let Some(flow) = self.flows.remove(&key) else { return };
        self.held_bytes -= flow.held_bytes;
        self.ended.add(flow.resequencer.stats());
        if let Some(timer) = flow.timer {
            self.timers.remove(&(timer, key));
        }
        if flow.is_releasing {
            self.releasing.retain(|&other| other != key);
        }
    }

    /// Forgets all flows.
    pub(crate) fn clear(&mut self) {
        while let Some((&key, _)) = self.flows.first_key_value() {
            self.remove(key);
        }
    }

    /// What all flows counted.
    pub(crate) fn stats(&self) -> ResequencerStats {
        let mut stats = self.ended;
        for flow in self.flows.values() {
            stats.add(flow.resequencer.stats());
        }
        stats
    }

    /// Something may be released.
    fn look_at(&mut self, key: K) {
        if let Some(flow) = self.flows.get_mut(&key)
            && !std::mem::replace(&mut flow.is_releasing, true)
        {
            self.releasing.push_back(key);
        }
        self.note(key);
    }

    /// Notes how much a flow holds, and until when.
    fn note(&mut self, key: K) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let held_bytes = flow.resequencer.held_bytes();
        self.held_bytes = self.held_bytes - flow.held_bytes + held_bytes;
        flow.held_bytes = held_bytes;
        move_timer(&mut self.timers, key, &mut flow.timer, flow.resequencer.next_timeout());
    }
}

impl ResequencerStats {
    /// Adds what another counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.released += other.released;
        self.waited += other.waited;
        self.waited_time += other.waited_time;
        self.held_bytes_max = self.held_bytes_max.max(other.held_bytes_max);
        self.held_packets_max = self.held_packets_max.max(other.held_packets_max);
        self.given_up.floor += other.given_up.floor;
        self.given_up.time += other.given_up.time;
        self.given_up.silence += other.given_up.silence;
        self.given_up.bytes += other.given_up.bytes;
        self.given_up.packets += other.given_up.packets;
        self.given_up.flush += other.given_up.flush;
        self.late += other.late;
        self.duplicates += other.duplicates;
        self.stale += other.stale;
        self.out_of_range += other.out_of_range;
        self.floors_out_of_range += other.floors_out_of_range;
        self.overrun += other.overrun;
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const CONTEXT_ID: VarInt = VarInt::from_u32(1);

    #[expect(clippy::disallowed_methods, reason = "there is no other way to get an Instant")]
    fn start() -> Instant {
        Instant::now()
    }

    fn exit(flows: u8, held_bytes_max: usize) -> TunnelExit<u8> {
        let mut exit = TunnelExit::new(held_bytes_max);
        for flow in 0..flows {
            let order = Order::Ordered;
            exit.insert(flow, ExitPlan { context_id: CONTEXT_ID, order, deadline: None });
        }
        exit
    }

    fn push(exit: &mut TunnelExit<u8>, now: Instant, flow: u8, number: u32) {
        let numbered = Sequenced {
            sequence: VarInt::from_u32(number),
            floor: VarInt::from_u32(0),
            payload: Bytes::from(vec![flow; 100]),
        };
        let mut data = BytesMut::new();
        numbered.encode(&mut data);
        exit.push(now, flow, data.freeze(), 40 * MS).unwrap();
    }

    fn released(exit: &mut TunnelExit<u8>, now: Instant) -> Vec<u8> {
        std::iter::from_fn(|| exit.poll_release(now)).map(|(flow, _)| flow).collect()
    }

    #[test]
    fn a_flow_that_waits_holds_no_other_up() {
        let (mut exit, now) = (exit(2, 1_000_000), start());
        push(&mut exit, now, 0, 1);
        push(&mut exit, now, 1, 0);
        assert_eq!(released(&mut exit, now), [1]);
        push(&mut exit, now, 0, 0);
        assert_eq!(released(&mut exit, now), [0, 0]);
        assert_eq!(exit.next_timeout(), None);
    }

    #[test]
    fn a_gap_that_has_had_its_time_is_waited_for_no_more() {
        let (mut exit, now) = (exit(2, 1_000_000), start());
        push(&mut exit, now, 0, 1);
        let due = exit.next_timeout().unwrap();
        exit.handle_timeout(due);
        assert_eq!(released(&mut exit, due), [0]);
        assert_eq!(exit.next_timeout(), None);
        exit.handle_timeout(due + MS);
        assert_eq!(exit.stats().given_up.silence, 1);
    }

    #[test]
    fn beyond_the_bound_of_all_the_flow_that_holds_most_waits_no_more() {
        let (mut exit, now) = (exit(2, 1000), start());
        (1..=6).for_each(|number| push(&mut exit, now, 0, number));
        (1..=4).for_each(|number| push(&mut exit, now, 1, number));
        assert_eq!(released(&mut exit, now), [0_u8; 0]);
        push(&mut exit, now, 1, 5);
        assert_eq!(released(&mut exit, now), [0; 6]);
        assert_eq!(exit.held_bytes, 500);
    }

    #[test]
    fn a_flow_that_goes_leaves_nothing() {
        let (mut exit, now) = (exit(1, 1000), start());
        push(&mut exit, now, 0, 1);
        assert!(exit.takes(0, CONTEXT_ID) && !exit.takes(0, VarInt::from_u32(3)));
        exit.remove(0);
        assert!(exit.timers.is_empty() && exit.releasing.is_empty() && exit.held_bytes == 0);
        assert!(!exit.takes(0, CONTEXT_ID));
        assert_eq!(exit.stats().waited, 1);
    }
}
