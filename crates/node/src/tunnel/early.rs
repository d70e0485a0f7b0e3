//! Payloads that came before their request, or before it was granted.
//!
//! RFC 9298 §5: of a datagram with an unknown Context ID, and RFC 9297 §2.1: of a datagram whose
//! stream has not been created, "the receiver SHALL either drop that datagram silently or buffer it
//! temporarily". Every tunnel has one buffer for both, with the bounds of [`Limits`].

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_wire::VarInt;

use crate::{limits::Limits, quic::StreamId, timers::move_timer};

/// Least time that a payload waits for its request: the time in which the request's packet is repaired.
const WAIT_MIN: Duration = Duration::from_millis(200);

/// Longest time, whatever RTT the peer pretends to have.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The early payloads of a tunnel.
#[derive(Debug)]
pub(super) struct Early {
    flows: BTreeMap<StreamId, Waiting>,
    /// When payloads are dropped whose request has not come.
    timers: BTreeSet<(Instant, StreamId)>,
    /// Payloads whose request has not come.
    unseen: usize,
    unseen_max: usize,
    per_flow: usize,
    bytes_per_flow: usize,
}

/// The early payloads of one flow.
#[derive(Debug, Default)]
struct Waiting {
    payloads: VecDeque<(VarInt, Bytes)>,
    bytes: usize,
    /// Until when they wait for their request; `None`: it has come.
    until: Option<Instant>,
}

impl Early {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            flows: BTreeMap::new(),
            timers: BTreeSet::new(),
            unseen: 0,
            unseen_max: limits.early_datagrams_per_connection,
            per_flow: limits.early_datagrams_per_flow,
            bytes_per_flow: limits.early_bytes_per_flow,
        }
    }

    /// Keeps a payload until its request is granted. `false`: there is no room for it.
    pub(super) fn keep(&mut self, stream: StreamId, context_id: VarInt, payload: Bytes) -> bool {
        let waiting = self.flows.entry(stream).or_default();
        waiting.keep(context_id, payload, self.per_flow, self.bytes_per_flow)
    }

    /// Keeps a payload whose request has not come, for about a round trip. `false`: there is no room.
    pub(super) fn keep_unseen(
        &mut self,
        now: Instant,
        (stream, context_id): (StreamId, VarInt),
        payload: Bytes,
        smoothed_rtt: Duration,
    ) -> bool {
        if self.unseen >= self.unseen_max {
            return false;
        }
        // One round trip for the request's first packet, and one to repair it.
        let until = now + (2 * smoothed_rtt).clamp(WAIT_MIN, WAIT_MAX);
        let waiting = self.flows.entry(stream).or_default();
        move_timer(&mut self.timers, stream, &mut waiting.until, Some(until));
        self.unseen += 1;
        waiting.bytes += payload.len();
        waiting.payloads.push_back((context_id, payload));
        true
    }

    /// A request came: its payloads now wait for its grant. Returns how many there is no room for.
    pub(super) fn on_request(&mut self, stream: StreamId) -> usize {
        let Some(mut waiting) = self.flows.remove(&stream) else { return 0 };
        self.unseen -= waiting.payloads.len();
        move_timer(&mut self.timers, stream, &mut waiting.until, None);
        let mut kept = Waiting::default();
        let (count, bytes) = (self.per_flow, self.bytes_per_flow);
        let dropped = waiting.payloads.into_iter().filter_map(|(context_id, payload)| {
            (!kept.keep(context_id, payload, count, bytes)).then_some(())
        });
        let dropped = dropped.count();
        self.flows.insert(stream, kept);
        dropped
    }

    /// The payloads of a flow that is granted now, or has gone.
    pub(super) fn take(&mut self, stream: StreamId) -> VecDeque<(VarInt, Bytes)> {
        let Some(mut waiting) = self.flows.remove(&stream) else { return VecDeque::new() };
        if waiting.until.is_some() {
            self.unseen -= waiting.payloads.len();
            move_timer(&mut self.timers, stream, &mut waiting.until, None);
        }
        waiting.payloads
    }

    /// Drops what has waited too long for its request. Returns how many payloads.
    pub(super) fn expire(&mut self, now: Instant) -> usize {
        let mut dropped = 0;
        while let Some(&(due, stream)) = self.timers.first()
            && due <= now
        {
            dropped += self.take(stream).len();
        }
        dropped
    }

    /// When the first payload has waited too long.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(due, _)| due)
    }
}

impl Waiting {
    fn keep(&mut self, context_id: VarInt, payload: Bytes, count: usize, bytes: usize) -> bool {
        let total = self.bytes + payload.len();
        let has_room = self.payloads.len() < count && total <= bytes;
        if has_room {
            self.bytes = total;
            self.payloads.push_back((context_id, payload));
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use tandem_wire::CONTEXT_ID_UDP;

    use super::*;

    const FIRST: StreamId = StreamId(0);
    const SECOND: StreamId = StreamId(4);
    const RTT: Duration = Duration::from_millis(300);

    #[expect(clippy::disallowed_methods, reason = "there is no other way to get an Instant")]
    fn start() -> Instant {
        Instant::now()
    }

    fn early() -> Early {
        let limits = Limits {
            early_datagrams_per_flow: 3,
            early_datagrams_per_connection: 4,
            early_bytes_per_flow: 250,
            ..Limits::default()
        };
        Early::new(&limits)
    }

    fn payload(len: usize) -> Bytes {
        vec![0; len].into()
    }

    #[test]
    fn a_flow_keeps_no_more_than_its_bounds() {
        let mut early = early();
        let mut keep = |len| early.keep(FIRST, CONTEXT_ID_UDP, payload(len));
        assert_eq!([100, 100, 51, 50, 0].map(&mut keep), [true, true, false, true, false]);
        assert_eq!(early.take(FIRST).len(), 3);
        assert!(early.take(FIRST).is_empty() && early.next_timeout().is_none());
    }

    #[test]
    fn what_comes_before_its_request_waits_for_two_round_trips() {
        let (mut early, now) = (early(), start());
        for (stream, is_kept) in [(FIRST, true), (FIRST, true), (SECOND, true), (SECOND, true)] {
            let id = (stream, CONTEXT_ID_UDP);
            assert_eq!(early.keep_unseen(now, id, payload(100), RTT), is_kept);
        }
        assert!(!early.keep_unseen(now, (SECOND, CONTEXT_ID_UDP), payload(1), RTT));
        assert_eq!(early.on_request(FIRST), 0);
        assert_eq!(early.expire(now + 2 * RTT.saturating_sub(Duration::from_nanos(1))), 0);
        assert_eq!(early.next_timeout(), Some(now + 2 * RTT));
        assert_eq!(early.expire(now + 2 * RTT), 2);
        assert_eq!((early.next_timeout(), early.unseen), (None, 0));
        assert_eq!(early.take(FIRST).len(), 2);
    }

    #[test]
    fn a_request_takes_over_no_more_than_a_flow_may_keep() {
        let (mut early, now) = (early(), start());
        for _ in 0..4 {
            assert!(early.keep_unseen(now, (FIRST, CONTEXT_ID_UDP), payload(10), RTT));
        }
        assert_eq!(early.on_request(FIRST), 1);
        assert_eq!((early.take(FIRST).len(), early.unseen), (3, 0));
    }
}
