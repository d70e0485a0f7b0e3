//! The flows that a PEP knows, and when each needs a PEP-ACK.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use tandem_wire::Ends;

use super::{
    Config, Notice, Observed, SILENCE, WAIT,
    batch::{self, Batch, Segments},
};

/// A flow: its transport protocol and its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FlowKey<U> {
    Quic(U),
    Tcp(Ends),
}

#[derive(Debug)]
struct PepFlow {
    batch: Batch,
    /// The number of the next PEP-ACK.
    sequence: u32,
    /// Whether the number after that is skipped, because it would have covered packets that found no room.
    skips: bool,
    /// How often the PEP had missed packets when the last one of this flow came.
    misses: u64,
    /// When the first packet came that waits.
    first: Instant,
    /// When the last PEP-ACK left.
    told: Option<Instant>,
    /// When the next PEP-ACK leaves: its place in `Flows::due`.
    due: Option<Instant>,
    /// When the last packet came.
    last: Instant,
    /// Its place in `Flows::silent`, which is not after `last`.
    listed: Instant,
}

#[derive(Debug)]
pub(crate) struct Flows<U> {
    max: usize,
    by_ends: BTreeMap<FlowKey<U>, PepFlow>,
    /// The flows of which packets wait.
    due: BTreeSet<(Instant, FlowKey<U>)>,
    /// All flows, by a time at which they were not silent.
    silent: BTreeSet<(Instant, FlowKey<U>)>,
    /// How often the PEP has missed packets.
    misses: u64,
    /// Whether the PEP-ACK of the last packet has no room for another one.
    is_full: bool,
}

impl<U: Copy + Ord> Flows<U> {
    pub(crate) fn new(max: usize) -> Self {
        let (by_ends, due, silent) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { max, by_ends, due, silent, misses: 0, is_full: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_ends.len()
    }

    /// Whether the PEP-ACK of the last packet has no room for another one.
    pub(crate) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Adds a packet. Returns of how many packets no PEP-ACK tells.
    pub(crate) fn observe(&mut self, now: Instant, packet: Observed<U>) -> u64 {
        let key = match packet {
            Observed::Quic { ends, .. } => FlowKey::Quic(ends),
            Observed::Tcp { ends, is_last: true, .. } => return self.forget(FlowKey::Tcp(ends)),
            // An acknowledgement alone is not repaired when it is lost.
            Observed::Tcp { bytes, .. } if bytes.start == bytes.end => return 0,
            Observed::Tcp { ends, .. } => FlowKey::Tcp(ends),
            Observed::Client { .. } => return 0,
        };
        let mut untold = self.make_room(now, key);
        let flow = self.by_ends.entry(key).or_insert_with(|| {
            self.silent.insert((now, key));
            let batch = match key {
                FlowKey::Quic(_) => Batch::Quic(Vec::new()),
                FlowKey::Tcp(_) => Batch::Tcp(Segments::default()),
            };
            PepFlow::new(batch, now, self.misses)
        });
        flow.last = now;
        untold += flow.catch_up(self.misses);
        if flow.batch.is_full() {
            flow.skips = true;
            return untold + 1;
        }
        if flow.batch.len() == 0 {
            flow.first = now;
        }
        match (&mut flow.batch, packet) {
            (Batch::Quic(waiting), Observed::Quic { slice, .. }) => waiting.push((slice, now)),
            (Batch::Tcp(segments), Observed::Tcp { bytes, acknowledges, .. }) => {
                segments.add(now, bytes, acknowledges);
            }
            _ => {}
        }
        self.is_full = flow.batch.is_full();
        list(&mut self.due, (key, flow), now);
        untold
    }

    /// Notes the acknowledgement number of a client, and the sequence number after its data.
    pub(crate) fn observe_client(&mut self, now: Instant, ends: Ends, numbers: (u32, u32)) {
        let key = FlowKey::Tcp(ends);
        let Some(flow) = self.by_ends.get_mut(&key) else { return };
        let Batch::Tcp(segments) = &mut flow.batch else { return };
        segments.hear(now, numbers);
        if segments.is_waiting() && flow.due.is_none() {
            list(&mut self.due, (key, flow), now);
        }
    }

    /// From now on, a number is missing in each flow.
    pub(crate) fn miss(&mut self) {
        self.misses += 1;
    }

    /// The next PEP-ACK that has to leave.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        start: Instant,
        config: &Config,
    ) -> Option<Notice<U>> {
        self.is_full = false;
        loop {
            let &(_, key) = self.due.first().filter(|(due, _)| *due <= now)?;
            self.due.pop_first();
            let flow = self.by_ends.get_mut(&key)?;
            flow.due = None;
            let notice = match (key, &mut flow.batch) {
                (FlowKey::Quic(ends), Batch::Quic(waiting)) => {
                    let payload = batch::take_quic(waiting, (now, start), flow.sequence, config);
                    Some(Notice::Udp { ends, payload })
                }
                // Otherwise it is listed again when its client is heard.
                (FlowKey::Tcp(ends), Batch::Tcp(segments)) => {
                    segments.take((now, start), (ends, flow.sequence), config)
                }
                _ => None,
            };
            if notice.is_some() {
                flow.told = Some(now);
                let skipped = u32::from(std::mem::take(&mut flow.skips));
                flow.sequence = flow.sequence.wrapping_add(1 + skipped);
                return notice;
            }
        }
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Forgets flows that have ended, and one more if another one finds no room. Returns of how many of
    /// their packets no PEP-ACK tells.
    fn make_room(&mut self, now: Instant, key: FlowKey<U>) -> u64 {
        let is_full = self.by_ends.len() >= self.max && !self.by_ends.contains_key(&key);
        let mut untold = 0;
        while let Some(&(listed, oldest)) = self.silent.first() {
            let Some(flow) = self.by_ends.get_mut(&oldest) else { break };
            let has_ended = now.saturating_duration_since(flow.last) >= SILENCE;
            if !has_ended && flow.last > listed && (is_full || is_long_ago(now, listed)) {
                flow.listed = flow.last;
                self.silent.pop_first();
                self.silent.insert((flow.last, oldest));
            } else if has_ended || (is_full && self.by_ends.len() >= self.max) {
                untold += self.forget(oldest);
            } else {
                break;
            }
        }
        untold
    }

    fn forget(&mut self, key: FlowKey<U>) -> u64 {
        let Some(flow) = self.by_ends.remove(&key) else { return 0 };
        self.silent.remove(&(flow.listed, key));
        if let Some(due) = flow.due {
            self.due.remove(&(due, key));
        }
        flow.batch.len() as u64
    }
}

impl PepFlow {
    fn new(batch: Batch, now: Instant, misses: u64) -> Self {
        let (first, last, listed) = (now, now, now);
        let (told, due) = (None, None);
        Self { batch, sequence: 0, skips: false, misses, first, told, due, last, listed }
    }

    /// Skips a number if the PEP has missed packets. Returns of how many that came before no PEP-ACK
    /// tells: one PEP-ACK must not cover packets before and after those.
    fn catch_up(&mut self, misses: u64) -> u64 {
        if self.misses == misses {
            return 0;
        }
        self.misses = misses;
        self.sequence = self.sequence.wrapping_add(1);
        self.batch.clear() as u64
    }

    /// When the next PEP-ACK leaves.
    fn next_due(&self, now: Instant) -> Instant {
        if self.batch.is_full() {
            return now;
        }
        let earliest = self.told.map_or(now, |told| now.max(told + WAIT));
        if self.batch.is_enough() { earliest } else { earliest.max(self.first + WAIT) }
    }
}

/// Lists a flow of which packets wait.
fn list<U: Copy + Ord>(
    listed: &mut BTreeSet<(Instant, FlowKey<U>)>,
    (key, flow): (FlowKey<U>, &mut PepFlow),
    now: Instant,
) {
    let due = flow.next_due(now);
    if flow.due != Some(due) {
        if let Some(former) = flow.due.replace(due) {
            listed.remove(&(former, key));
        }
        listed.insert((due, key));
    }
}

/// Whether a flow that was active then may have ended by now.
fn is_long_ago(now: Instant, listed: Instant) -> bool {
    now.saturating_duration_since(listed) >= SILENCE
}
