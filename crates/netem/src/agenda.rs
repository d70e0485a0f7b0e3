use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    time::Instant,
};

/// Events in order of time. Events of the same time stay in the order in which they were added.
#[derive(Debug)]
pub struct Agenda<T> {
    entries: BinaryHeap<Reverse<AgendaEntry<T>>>,
    sequence: u64,
}

#[derive(Debug)]
struct AgendaEntry<T> {
    at: Instant,
    sequence: u64,
    what: T,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Agenda<T> {
    /// An empty agenda.
    pub const fn new() -> Self {
        Self { entries: BinaryHeap::new(), sequence: 0 }
    }

    /// Adds an event.
    pub fn push(&mut self, at: Instant, what: T) {
        let sequence = self.sequence;
        self.sequence += 1;
        self.entries.push(Reverse(AgendaEntry { at, sequence, what }));
    }

    /// The time at which the next event is due.
    pub fn next_at(&self) -> Option<Instant> {
        self.entries.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the next event if it is due by `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Instant, T)> {
        self.next_at().filter(|at| *at <= now)?;
        self.entries.pop().map(|Reverse(AgendaEntry { at, what, .. })| (at, what))
    }
}

impl<T> Ord for AgendaEntry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl<T> PartialOrd for AgendaEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for AgendaEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for AgendaEntry<T> {}
