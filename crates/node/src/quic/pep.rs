//! PEP-ACKs (`docs/design/wire.md`): which packets of this endpoint's connections have passed a PEP on the path.
//!
//! A PEP names packets by slices of their bytes. The endpoint remembers the slices of what it sends, and
//! which packet number each belongs to.

#[cfg(any(test, fuzzing))]
pub(super) mod model;

use std::{
    collections::{BTreeMap, VecDeque},
    iter::Sum,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tandem_congestion::{Feedback, Passed};
use tandem_wire::{PepAck, PepId, PepKey, Slice};

use super::ConnectionId;

/// The PEPs that a server listens to, with their keys. A PEP without a key is heard, but its PEP-ACKs are
/// not authentic.
#[derive(Clone, Debug, Default)]
pub struct Peps(pub BTreeMap<PepId, Option<PepKey>>);

/// What an endpoint has counted of PEP-ACKs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PepAckStats {
    /// PEP-ACKs with at least one packet that was known.
    pub used: u64,
    /// Packets that they named and that were known.
    pub packets: u64,
    /// PEP-ACKs that name no packet of ours, or only such as were named before.
    pub unknown: u64,
    /// PEP-ACKs with a wrong MAC.
    pub forged: u64,
    /// PEP-ACKs of PEPs that this endpoint does not listen to.
    pub foreign: u64,
    /// PEP-ACKs that cannot be decoded.
    pub malformed: u64,
}

/// What all nodes of a server have counted.
impl Sum for PepAckStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, it| Self {
            used: sum.used + it.used,
            packets: sum.packets + it.packets,
            unknown: sum.unknown + it.unknown,
            forged: sum.forged + it.forged,
            foreign: sum.foreign + it.foreign,
            malformed: sum.malformed + it.malformed,
        })
    }
}

/// The most slices that are remembered: more than a second at 2 Gbit/s, in 20 MB of memory.
const SLICES_MAX: usize = 262_144;

/// A slice is forgotten after this time.
const LIFETIME: Duration = Duration::from_secs(5);

/// The age of a packet in a PEP-ACK that stands for any larger one, too.
const AGE_MAX: u16 = u16::MAX;

/// Finds the packets of PEP-ACKs.
#[derive(Debug)]
pub(super) struct Listener {
    peps: Peps,
    by_slice: BTreeMap<Slice, (ConnectionId, u64)>,
    /// When each slice was sent, the oldest first.
    order: VecDeque<(Instant, Slice)>,
    stats: PepAckStats,
}

impl Listener {
    pub(super) fn new(peps: Peps) -> Self {
        let (by_slice, order) = (BTreeMap::new(), VecDeque::new());
        Self { peps, by_slice, order, stats: PepAckStats::default() }
    }

    pub(super) const fn stats(&self) -> PepAckStats {
        self.stats
    }

    /// Remembers the slice of a packet.
    pub(super) fn insert(&mut self, now: Instant, slice: Slice, packet: (ConnectionId, u64)) {
        while let Some(&(sent, oldest)) = self.order.front() {
            if self.order.len() < SLICES_MAX && now.saturating_duration_since(sent) < LIFETIME {
                break;
            }
            self.order.pop_front();
            self.by_slice.remove(&oldest);
        }
        self.order.push_back((now, slice));
        self.by_slice.insert(slice, packet);
    }

    /// The packet with this slice.
    #[cfg(test)]
    pub(super) fn find(&self, slice: Slice) -> Option<(ConnectionId, u64)> {
        self.by_slice.get(&slice).copied()
    }

    /// Handles a PEP-ACK. Gives what it says of each connection to `report`.
    pub(super) fn on_pep_ack(
        &mut self,
        payload: &[u8],
        mut report: impl FnMut(ConnectionId, &Passed<'_>),
    ) {
        let Ok(ack) = PepAck::decode(payload) else {
            self.stats.malformed += 1;
            return;
        };
        let Some(key) = self.peps.0.get(&ack.pep) else {
            self.stats.foreign += 1;
            return;
        };
        if key.as_ref().is_some_and(|key| !key.authenticates(payload)) {
            self.stats.forged += 1;
            return;
        }
        let is_authentic = key.is_some();
        // A PEP-ACK names packets of one connection, but who sends it may mix them.
        let mut connections: BTreeMap<ConnectionId, Vec<(u64, Duration)>> = BTreeMap::new();
        for seen in ack.seen.iter().filter(|seen| seen.age < AGE_MAX) {
            if let Some((id, number)) = self.by_slice.remove(&seen.slice) {
                let age = Duration::from_micros(seen.age.into());
                connections.entry(id).or_default().push((number, age));
            }
        }
        let counter =
            if connections.is_empty() { &mut self.stats.unknown } else { &mut self.stats.used };
        *counter += 1;
        for (id, packets) in connections {
            self.stats.packets += packets.len() as u64;
            let (pep, sequence) = (ack.pep, ack.sequence);
            report(id, &Passed { pep, is_authentic, sequence, packets: &packets });
        }
    }
}

/// A packet that the engine has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) number: u64,
    /// Its size, which is that of its UDP payload if it has a short header.
    pub(super) bytes: u16,
}

/// Notes the packet numbers of what one connection sends, and tells the connection's [`Feedback`] of the
/// packets of which PEP-ACKs may tell. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(super) struct Passage {
    pub(super) feedback: Feedback,
    /// The ack-eliciting packets since the last call of the engine that makes packets.
    made: Arc<Mutex<Vec<Made>>>,
}

impl Passage {
    pub(super) fn new(feedback: Feedback) -> Self {
        Self { feedback, made: Arc::default() }
    }

    /// The engine has made a packet that the peer has to acknowledge.
    pub(super) fn on_made(&self, made: Made) {
        self.made().push(made);
    }

    /// The engine is about to make packets.
    pub(super) fn before_packets(&self) {
        self.made().clear();
    }

    /// The slices and numbers of packets that the engine has made in one call. `payloads` holds their UDP
    /// payloads, which are `segment_size` bytes long except for the last one. Packets of more than
    /// `size_max` bytes probe whether the path carries them, and may get lost for that reason.
    pub(super) fn slices(
        &self,
        now: Instant,
        (payloads, segment_size): (&[u8], Option<usize>),
        size_max: usize,
    ) -> Vec<(Slice, u64)> {
        let made = std::mem::take(&mut *self.made());
        let segment_size = segment_size.unwrap_or(payloads.len()).max(1);
        let Some(matched) = matched(&made, payloads.chunks(segment_size)) else {
            return Vec::new();
        };
        let mut slices = Vec::with_capacity(made.len());
        for (made, slice) in matched {
            if usize::from(made.bytes) <= size_max {
                self.feedback.on_sent(now, made.number, made.bytes);
                slices.push((slice, made.number));
            }
        }
        slices
    }

    fn made(&self) -> MutexGuard<'_, Vec<Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Matches packets with their UDP payloads. `None`: they cannot be told apart with certainty.
///
/// The engine reports packets in the order in which it makes them, but not those that need no
/// acknowledgement. A packet with a short header has a payload for itself. So if all payloads have short
/// headers, and there are as many as packets, each belongs to the packet at its place.
fn matched<'a>(
    made: &'a [Made],
    payloads: impl ExactSizeIterator<Item = &'a [u8]>,
) -> Option<Vec<(Made, Slice)>> {
    if payloads.len() != made.len() {
        return None;
    }
    let pairs = made.iter().zip(payloads).map(|(made, payload)| {
        let has_size = usize::from(made.bytes) == payload.len();
        let is_short = payload.first().is_some_and(|first| first & 0x80 == 0);
        (has_size && is_short).then(|| (*made, Slice::of(payload)))
    });
    let pairs = pairs.collect::<Option<Vec<_>>>()?;
    let with_slices = pairs.into_iter().filter_map(|(made, slice)| Some((made, slice?)));
    Some(with_slices.collect())
}

#[cfg(test)]
mod tests;
