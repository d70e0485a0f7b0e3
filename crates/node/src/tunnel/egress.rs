//! The egress of a tunnel. It brings the numbered payloads of each flow into order before they
//! leave the tunnel. They wait for missing payloads, within bounds.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_wire::{DecodeError, Order, Sequenced};

use super::resequence::{Bounds, Resequence, Resequencer, ResequencerStats};
use crate::impossible::impossible;
use crate::{quic::StreamId, timers::move_timer};

/// The resequencers of a tunnel's flows.
#[derive(Debug)]
pub(super) struct Egress {
    flows: BTreeMap<StreamId, EgressFlow>,
    timers: BTreeSet<(Instant, StreamId)>,
    /// Flows that may have payloads to release.
    releasing: VecDeque<StreamId>,
    held_bytes: usize,
    held_bytes_max: usize,
    /// The counters of flows that have ended.
    ended: ResequencerStats,
}

#[derive(Debug)]
struct EgressFlow {
    resequencer: Resequencer,
    held_bytes: usize,
    timer: Option<Instant>,
    is_releasing: bool,
}

impl Egress {
    /// An egress whose flows together hold at most `held_bytes_max` bytes of memory.
    pub(super) fn new(held_bytes_max: usize) -> Self {
        Self {
            flows: BTreeMap::new(),
            timers: BTreeSet::new(),
            releasing: VecDeque::new(),
            held_bytes: 0,
            held_bytes_max,
            ended: ResequencerStats::default(),
        }
    }

    /// Adds a flow with numbered payloads. No payload waits longer than `deadline`.
    pub(super) fn insert(&mut self, key: StreamId, order: Order, deadline: Option<Duration>) {
        let mode = Resequence::from(order);
        let mut bounds = Bounds::default();
        if let Some(deadline) = deadline {
            bounds.gap_max = bounds.gap_max.min(deadline);
        }
        self.remove(key);
        let flow = EgressFlow {
            resequencer: Resequencer::new(mode, bounds),
            held_bytes: 0,
            timer: None,
            is_releasing: false,
        };
        self.flows.insert(key, flow);
    }

    /// Changes the order of a flow's payloads.
    pub(super) fn set_order(&mut self, now: Instant, key: StreamId, order: Order) {
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.resequencer.set_mode(now, order.into());
            self.look_at(key);
        }
    }

    /// Takes a numbered payload: the part of the HTTP Datagram after its Context ID.
    pub(super) fn push(
        &mut self,
        now: Instant,
        key: StreamId,
        data: Bytes,
        smoothed_rtt: Duration,
    ) -> Result<(), DecodeError> {
        let numbered = Sequenced::decode(data)?;
        let Some(flow) = self.flows.get_mut(&key) else { return Ok(()) };
        flow.resequencer.set_smoothed_rtt(smoothed_rtt);
        flow.resequencer.push(now, numbered);
        self.look_at(key);
        if self.held_bytes > self.held_bytes_max {
            self.flush_longest(now);
        }
        Ok(())
    }

    /// Makes the flow that holds most give up its missing payloads.
    pub(super) fn flush_longest(&mut self, now: Instant) {
        let longest = self.flows.iter_mut().max_by_key(|(_, flow)| flow.held_bytes);
        if let Some((&key, flow)) = longest {
            flow.resequencer.flush(now);
            self.look_at(key);
        }
    }

    /// Makes all flows give up their missing payloads. Returns whether a payload was waiting for one.
    pub(super) fn flush(&mut self, now: Instant) -> bool {
        let holding = self.flows.iter_mut().filter(|(_, flow)| flow.held_bytes > 0);
        let holding = holding.map(|(&key, flow)| {
            flow.resequencer.flush(now);
            key
        });
        let holding: Vec<_> = holding.collect();
        for &key in &holding {
            self.look_at(key);
        }
        !holding.is_empty()
    }

    /// The next payload that may leave the tunnel. The connection inside must process it before it
    /// gets the next one.
    pub(super) fn poll_release(&mut self, now: Instant) -> Option<(StreamId, Bytes)> {
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

    /// Schedules the flows whose oldest gap has timed out, so that [`Egress::poll_release`] gives
    /// it up.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(due, key)) = self.timers.first() {
            if due > now {
                return;
            }
            self.timers.pop_first();
            if let Some(flow) = self.flows.get_mut(&key) {
                flow.timer = None; // set again when its payloads are polled
                if !std::mem::replace(&mut flow.is_releasing, true) {
                    self.releasing.push_back(key);
                }
            }
        }
    }

    /// When the first gap times out.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(due, _)| due)
    }

    /// Removes a flow and the payloads that it holds.
    pub(super) fn remove(&mut self, key: StreamId) {
        let Some(flow) = self.flows.remove(&key) else { return }; // its payloads have no numbers
        self.held_bytes -= flow.held_bytes;
        self.ended.add(flow.resequencer.stats());
        if let Some(timer) = flow.timer {
            self.timers.remove(&(timer, key));
        }
        if flow.is_releasing {
            self.releasing.retain(|&other| other != key);
        }
    }

    /// Bytes of memory that the payloads of all flows take.
    pub(super) const fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        let of_flow = |flow: &EgressFlow| size_of::<EgressFlow>() + flow.resequencer.memory();
        self.flows.values().map(of_flow).sum()
    }

    /// The most bytes of memory that the payloads of one flow take.
    pub(super) fn longest(&self) -> usize {
        self.flows.values().map(|flow| flow.held_bytes).max().unwrap_or(0)
    }

    /// The counters of all flows.
    pub(super) fn stats(&self) -> ResequencerStats {
        let mut stats = self.ended;
        for flow in self.flows.values() {
            stats.add(flow.resequencer.stats());
        }
        stats
    }

    /// Notes that a flow may have payloads to release.
    fn look_at(&mut self, key: StreamId) {
        if let Some(flow) = self.flows.get_mut(&key)
            && !std::mem::replace(&mut flow.is_releasing, true)
        {
            self.releasing.push_back(key);
        }
        self.note(key);
    }

    /// Updates how much a flow holds, and when it times out.
    fn note(&mut self, key: StreamId) {
        let Some(flow) = self.flows.get_mut(&key) else {
            return impossible("only a flow of the egress holds payloads");
        };
        let held_bytes = flow.resequencer.held_bytes();
        self.held_bytes = self.held_bytes - flow.held_bytes + held_bytes;
        flow.held_bytes = held_bytes;
        move_timer(&mut self.timers, key, &mut flow.timer, flow.resequencer.next_timeout());
    }
}

impl From<Order> for Resequence {
    fn from(order: Order) -> Self {
        match order {
            Order::Off => Self::Off,
            Order::Window => Self::WINDOW,
            Order::Ordered => Self::Ordered,
        }
    }
}

impl ResequencerStats {
    /// Adds the counters of another resequencer.
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

    use tandem_wire::VarInt;

    use super::{super::resequence::OVERHEAD, *};
    use crate::test_start;

    const MS: Duration = Duration::from_millis(1);

    fn egress(flows: u8, held_bytes_max: usize) -> Egress {
        let mut egress = Egress::new(held_bytes_max);
        for flow in 0..flows {
            egress.insert(StreamId(flow.into()), Order::Ordered, None);
        }
        egress
    }

    fn push(egress: &mut Egress, now: Instant, flow: u8, number: u32) {
        let numbered = Sequenced {
            sequence: VarInt::from_u32(number),
            floor: VarInt::from_u32(0),
            payload: Bytes::from(vec![flow; 100]),
        };
        let mut data = BytesMut::new();
        numbered.encode(&mut data);
        egress.push(now, StreamId(flow.into()), data.freeze(), 40 * MS).unwrap();
    }

    fn released(egress: &mut Egress, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| egress.poll_release(now)).map(|(flow, _)| flow.0).collect()
    }

    #[test]
    fn a_flow_that_waits_does_not_delay_another() {
        let (mut egress, now) = (egress(2, 1_000_000), test_start());
        push(&mut egress, now, 0, 1);
        push(&mut egress, now, 1, 0);
        assert_eq!(released(&mut egress, now), [1]);
        push(&mut egress, now, 0, 0);
        assert_eq!(released(&mut egress, now), [0, 0]);
        assert_eq!(egress.next_timeout(), None);
    }

    #[test]
    fn a_gap_is_given_up_when_its_time_is_over() {
        let (mut egress, now) = (egress(2, 1_000_000), test_start());
        push(&mut egress, now, 0, 1);
        let due = egress.next_timeout().unwrap();
        egress.handle_timeout(due);
        assert_eq!(released(&mut egress, due), [0]);
        assert_eq!(egress.next_timeout(), None);
        egress.handle_timeout(due + MS);
        assert_eq!(egress.stats().given_up.silence, 1);
    }

    #[test]
    fn beyond_the_common_bound_the_flow_that_holds_most_is_flushed() {
        let (mut egress, now) = (egress(2, 10 * (100 + OVERHEAD) + 2 * OVERHEAD), test_start());
        (1..=6).for_each(|number| push(&mut egress, now, 0, number));
        (1..=4).for_each(|number| push(&mut egress, now, 1, number));
        assert_eq!(released(&mut egress, now), [0_u64; 0]);
        push(&mut egress, now, 1, 5);
        assert_eq!(released(&mut egress, now), [0; 6]);
        assert_eq!(egress.held_bytes, 5 * (100 + OVERHEAD) + OVERHEAD);
    }

    #[test]
    fn a_flush_releases_everything_once() {
        let (mut egress, now) = (egress(3, 1_000_000), test_start());
        push(&mut egress, now, 0, 1);
        push(&mut egress, now, 2, 3);
        push(&mut egress, now, 2, 5);
        assert_eq!(released(&mut egress, now), [0_u64; 0]);
        assert!(egress.flush(now));
        assert_eq!(released(&mut egress, now), [0, 2, 2]);
        assert!(!egress.flush(now));
        assert_eq!((egress.held_bytes, egress.next_timeout()), (0, None));
    }

    #[test]
    fn a_removed_flow_leaves_nothing() {
        let (mut egress, now) = (egress(1, 1000), test_start());
        push(&mut egress, now, 0, 1);
        egress.remove(StreamId(0));
        assert!(egress.timers.is_empty() && egress.releasing.is_empty() && egress.held_bytes == 0);
        assert_eq!(egress.stats().waited, 1);
    }
}
