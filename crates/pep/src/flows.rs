//! The flows that a PEP knows, and when each has to be told of.

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
enum Key<U> {
    Quic(U),
    Tcp(Ends),
}

#[derive(Debug)]
struct Flow {
    batch: Batch,
    /// The number of the next PEP-ACK.
    sequence: u32,
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
    by_ends: BTreeMap<Key<U>, Flow>,
    /// The flows of which packets wait.
    due: BTreeSet<(Instant, Key<U>)>,
    /// All flows, by a time at which they were not silent.
    silent: BTreeSet<(Instant, Key<U>)>,
}

impl<U: Copy + Ord> Flows<U> {
    pub(crate) fn new(max: usize) -> Self {
        let (by_ends, due, silent) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { max, by_ends, due, silent }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_ends.len()
    }

    /// Adds a packet. Returns of how many packets no PEP-ACK tells.
    pub(crate) fn observe(&mut self, now: Instant, packet: Observed<U>) -> u64 {
        let key = match packet {
            Observed::Quic { ends, .. } => Key::Quic(ends),
            Observed::Tcp { ends, is_last: true, .. } => return self.forget(Key::Tcp(ends)),
            // An acknowledgement alone is not repaired when it is lost.
            Observed::Tcp { bytes, .. } if bytes.start == bytes.end => return 0,
            Observed::Tcp { ends, .. } => Key::Tcp(ends),
        };
        let untold = self.make_room(now, key);
        let flow = self.by_ends.entry(key).or_insert_with(|| {
            self.silent.insert((now, key));
            let batch = match key {
                Key::Quic(_) => Batch::Quic(Vec::new()),
                Key::Tcp(_) => Batch::Tcp(Segments::default()),
            };
            Flow { batch, sequence: 0, first: now, told: None, due: None, last: now, listed: now }
        });
        flow.last = now;
        if flow.batch.is_full() {
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
        let due = flow.next_due(now);
        if flow.due != Some(due) {
            if let Some(former) = flow.due.replace(due) {
                self.due.remove(&(former, key));
            }
            self.due.insert((due, key));
        }
        untold
    }

    /// The next PEP-ACK that has to leave.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        start: Instant,
        config: &Config,
    ) -> Option<Notice<U>> {
        let &(_, key) = self.due.first().filter(|(due, _)| *due <= now)?;
        self.due.pop_first();
        let flow = self.by_ends.get_mut(&key)?;
        flow.due = None;
        flow.told = Some(now);
        let sequence = flow.sequence;
        flow.sequence = sequence.wrapping_add(1);
        match (key, &mut flow.batch) {
            (Key::Quic(ends), Batch::Quic(waiting)) => {
                let payload = batch::take_quic(waiting, (now, start), sequence, config);
                Some(Notice::Udp { ends, payload })
            }
            (Key::Tcp(ends), Batch::Tcp(segments)) => {
                let options = segments.take((now, start), (&ends, sequence), config);
                Some(Notice::Tcp { ends, sequence: segments.accepted(), options })
            }
            _ => None,
        }
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Forgets flows that have ended, and one more if another one finds no room. Returns of how many of
    /// their packets no PEP-ACK tells.
    fn make_room(&mut self, now: Instant, key: Key<U>) -> u64 {
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

    fn forget(&mut self, key: Key<U>) -> u64 {
        let Some(flow) = self.by_ends.remove(&key) else { return 0 };
        self.silent.remove(&(flow.listed, key));
        if let Some(due) = flow.due {
            self.due.remove(&(due, key));
        }
        flow.batch.len() as u64
    }
}

impl Flow {
    /// When the next PEP-ACK leaves.
    fn next_due(&self, now: Instant) -> Instant {
        if self.batch.is_full() {
            return now;
        }
        let earliest = self.told.map_or(now, |told| now.max(told + WAIT));
        if self.batch.is_enough() { earliest } else { earliest.max(self.first + WAIT) }
    }
}

/// Whether a flow that was active then may have ended by now.
fn is_long_ago(now: Instant, listed: Instant) -> bool {
    now.saturating_duration_since(listed) >= SILENCE
}
