//! The turns in which request streams are read.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use crate::quic::StreamId;

/// Request streams that may have something to read, in the order of their turns. Each stream is in
/// it at most once.
#[derive(Debug, Default)]
pub(super) struct Readable {
    turns: BTreeSet<(u64, StreamId)>,
    turn_of: BTreeMap<StreamId, u64>,
}

impl Readable {
    /// The turn after those of all other streams.
    pub(super) fn next_turn(&self) -> u64 {
        self.turns.last().map_or(0, |(last, _)| last + 1)
    }

    pub(super) fn insert(&mut self, stream: StreamId, turn: u64) {
        if let Entry::Vacant(entry) = self.turn_of.entry(stream) {
            entry.insert(turn);
            self.turns.insert((turn, stream));
        }
    }

    pub(super) fn first(&self) -> Option<StreamId> {
        self.turns.first().map(|&(_, stream)| stream)
    }

    pub(super) fn remove(&mut self, stream: StreamId) {
        if let Some(turn) = self.turn_of.remove(&stream) {
            self.turns.remove(&(turn, stream));
        }
    }
}
