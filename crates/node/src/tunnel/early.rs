//! Payloads that arrive before their request, or before the request is granted.
//!
//! Both RFC 9298 §5, for a datagram with an unknown Context ID, and RFC 9297 §2.1, for a datagram
//! whose stream has not been created, say that "the receiver SHALL either drop that datagram
//! silently or buffer it temporarily". Every tunnel has one buffer for both, with the bounds of
//! [`Limits`].

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_wire::VarInt;

use crate::{limits::Limits, quic::StreamId, timers::move_timer};

/// The least time that a payload waits for its request. A lost packet of the request is
/// retransmitted within it.
const WAIT_MIN: Duration = Duration::from_millis(200);

/// The longest time that a payload waits for its request, which bounds the effect of a large RTT.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The early payloads of a tunnel.
#[derive(Debug)]
pub(super) struct Early {
    flows: BTreeMap<StreamId, Waiting>,
    /// When to drop the payloads of a flow whose request has not arrived.
    timers: BTreeSet<(Instant, StreamId)>,
    /// How many payloads wait for a request that has not arrived.
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
    /// Until when the payloads wait for their request. `None`: the request has arrived.
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

    /// Keeps a copy of a payload until its request is granted. `false`: there is no room for it.
    ///
    /// The payload itself may be a small part of a large receive buffer, which it would keep alive.
    pub(super) fn keep(&mut self, stream: StreamId, context_id: VarInt, payload: &[u8]) -> bool {
        let waiting = self.flows.entry(stream).or_default();
        let bounds = (self.per_flow, self.bytes_per_flow);
        waiting.keep(context_id, payload.len(), bounds, || Bytes::copy_from_slice(payload))
    }

    /// Keeps a copy of a payload whose request has not arrived, for about two round trips. `false`:
    /// there is no room for it.
    pub(super) fn keep_unseen(
        &mut self,
        now: Instant,
        (stream, context_id): (StreamId, VarInt),
        payload: &[u8],
        smoothed_rtt: Duration,
    ) -> bool {
        let bytes = self.flows.get(&stream).map_or(0, |waiting| waiting.bytes);
        if self.unseen >= self.unseen_max || bytes + payload.len() > self.bytes_per_flow {
            return false;
        }
        // The request may take one round trip, and its retransmission another.
        let until = now + (2 * smoothed_rtt).clamp(WAIT_MIN, WAIT_MAX);
        let waiting = self.flows.entry(stream).or_default();
        move_timer(&mut self.timers, stream, &mut waiting.until, Some(until));
        self.unseen += 1;
        waiting.bytes += payload.len();
        waiting.payloads.push_back((context_id, Bytes::copy_from_slice(payload)));
        true
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        let of_flow = |waiting: &Waiting| {
            let places = waiting.payloads.capacity() * size_of::<(VarInt, Bytes)>();
            size_of::<Waiting>() + waiting.bytes + places
        };
        self.flows.values().map(of_flow).sum()
    }

    /// Handles the arrival of a request. Its payloads now wait for its grant. Returns how many
    /// payloads were dropped because a flow may not keep them all.
    pub(super) fn on_request(&mut self, stream: StreamId) -> usize {
        let Some(mut waiting) = self.flows.remove(&stream) else { return 0 };
        self.unseen -= waiting.payloads.len();
        move_timer(&mut self.timers, stream, &mut waiting.until, None);
        let mut kept = Waiting::default();
        let bounds = (self.per_flow, self.bytes_per_flow);
        let mut dropped = 0;
        for (context_id, payload) in waiting.payloads {
            let is_kept = kept.keep(context_id, payload.len(), bounds, || payload);
            dropped += usize::from(!is_kept);
        }
        self.flows.insert(stream, kept);
        dropped
    }

    /// Takes the payloads of a flow, which is granted or has ended.
    pub(super) fn take(&mut self, stream: StreamId) -> VecDeque<(VarInt, Bytes)> {
        let Some(mut waiting) = self.flows.remove(&stream) else { return VecDeque::new() };
        if waiting.until.is_some() {
            self.unseen -= waiting.payloads.len();
            move_timer(&mut self.timers, stream, &mut waiting.until, None);
        }
        waiting.payloads
    }

    /// Drops the payloads that have waited too long for their request. Returns how many they are.
    pub(super) fn expire(&mut self, now: Instant) -> usize {
        let mut dropped = 0;
        while let Some(&(due, stream)) = self.timers.first()
            && due <= now
        {
            dropped += self.take(stream).len();
        }
        dropped
    }

    /// When the first payloads will have waited too long.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(due, _)| due)
    }
}

impl Waiting {
    fn keep(
        &mut self,
        context_id: VarInt,
        len: usize,
        (count, bytes): (usize, usize),
        payload: impl FnOnce() -> Bytes,
    ) -> bool {
        let total = self.bytes + len;
        let has_room = self.payloads.len() < count && total <= bytes;
        if has_room {
            self.bytes = total;
            self.payloads.push_back((context_id, payload()));
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use tandem_wire::CONTEXT_ID_UDP;

    use super::*;
    use crate::test_start;

    const FIRST: StreamId = StreamId(0);
    const SECOND: StreamId = StreamId(4);
    const RTT: Duration = Duration::from_millis(300);

    fn early() -> Early {
        let limits = Limits {
            early_datagrams_per_flow: 3,
            early_datagrams_per_connection: 4,
            early_bytes_per_flow: 250,
            ..Limits::default()
        };
        Early::new(&limits)
    }

    fn payload(len: usize) -> &'static [u8] {
        &[0; 300][..len]
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
    fn a_payload_before_its_request_waits_for_two_round_trips() {
        let (mut early, now) = (early(), test_start());
        for (stream, is_kept) in [(FIRST, true), (FIRST, true), (SECOND, true), (SECOND, true)] {
            let id = (stream, CONTEXT_ID_UDP);
            assert_eq!(early.keep_unseen(now, id, payload(100), RTT), is_kept);
        }
        assert!(!early.keep_unseen(now, (SECOND, CONTEXT_ID_UDP), payload(1), RTT));
        assert_eq!(early.on_request(FIRST), 0);
        assert_eq!(early.expire(now + (2 * RTT).saturating_sub(Duration::from_nanos(1))), 0);
        assert_eq!(early.next_timeout(), Some(now + 2 * RTT));
        assert_eq!(early.expire(now + 2 * RTT), 2);
        assert_eq!((early.next_timeout(), early.unseen), (None, 0));
        assert_eq!(early.take(FIRST).len(), 2);
    }

    #[test]
    fn what_waits_keeps_no_packet_alive_and_no_more_than_its_bytes() {
        let (mut early, now) = (Early::new(&Limits::default()), test_start());
        let kept = allocation_counter::measure(|| {
            for flow in 0..100 {
                let packet = Bytes::from(vec![0; 64_000]);
                let stream = StreamId(4 * flow);
                early.keep_unseen(now, (stream, CONTEXT_ID_UDP), &packet.slice(..1), RTT);
                early.keep(StreamId(4 * flow + 1000), CONTEXT_ID_UDP, &packet.slice(..1));
            }
            // The bytes of a flow have a bound before its request arrives, too.
            for _ in 0..30 {
                early.keep_unseen(now, (FIRST, CONTEXT_ID_UDP), &[0; 1400], RTT);
            }
        });
        assert_eq!(early.unseen, 64);
        let kept = usize::try_from(kept.bytes_current).unwrap();
        assert!(kept < early.memory() + 20_000, "{kept} bytes, {} are counted", early.memory());
        assert!(early.memory() < 100_000, "{} bytes", early.memory());
        let before = early.memory();
        (0..500).for_each(|flow| drop(early.take(StreamId(4 * flow))));
        assert_eq!((early.memory(), early.unseen), (0, 0), "{before} bytes before");
    }

    #[test]
    fn a_flow_keeps_no_more_bytes_before_its_request_than_after() {
        let (mut early, now) = (early(), test_start());
        let mut keep = |len| early.keep_unseen(now, (FIRST, CONTEXT_ID_UDP), payload(len), RTT);
        assert_eq!([200, 51, 50].map(&mut keep), [true, false, true]);
    }

    #[test]
    fn a_request_takes_over_no_more_than_a_flow_may_keep() {
        let (mut early, now) = (early(), test_start());
        for _ in 0..4 {
            assert!(early.keep_unseen(now, (FIRST, CONTEXT_ID_UDP), payload(10), RTT));
        }
        assert_eq!(early.on_request(FIRST), 1);
        assert_eq!((early.take(FIRST).len(), early.unseen), (3, 0));
    }
}
