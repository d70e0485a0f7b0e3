use std::collections::{BTreeMap, VecDeque};

use tandem_wire::Urgency;

use crate::quic::StreamId;

/// Bytes that a flow of weight 1 may send in its turn: one full packet.
const QUANTUM: usize = 1500;

/// The order in which flows send. The most urgent flows come first (RFC 9218 §4.1), and flows of
/// the same urgency take turns. The length of a turn is proportional to the flow's weight.
#[derive(Debug, Default)]
pub(super) struct Turns {
    by_urgency: [VecDeque<StreamId>; Urgency::COUNT],
    /// The urgencies of flows that do not have the default urgency.
    urgencies: BTreeMap<StreamId, Urgency>,
    /// The weights of flows that do not have weight 1.
    weights: BTreeMap<StreamId, u8>,
}

/// The result of a flow's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnResult {
    /// The flow sent something, or dropped it.
    Used,
    /// The flow has used up its turn, and continues after the other flows.
    Ended,
    /// The flow has nothing that it can send.
    Nothing,
    /// The engine has as much data as it may hold at once.
    EngineIsFull,
}

impl Turns {
    /// Sets a flow's urgency, from its next turn on.
    pub(super) fn set_urgency(&mut self, stream: StreamId, urgency: Urgency) {
        if urgency == Urgency::default() {
            self.urgencies.remove(&stream);
        } else {
            self.urgencies.insert(stream, urgency);
        }
    }

    pub(super) fn urgency(&self, stream: StreamId) -> Urgency {
        self.urgencies.get(&stream).copied().unwrap_or_default()
    }

    /// Sets a flow's weight, from its next turn on.
    pub(super) fn set_weight(&mut self, stream: StreamId, weight: u8) {
        if weight <= 1 {
            self.weights.remove(&stream);
        } else {
            self.weights.insert(stream, weight);
        }
    }

    /// Bytes that a flow may send in its turn.
    pub(super) fn quantum(&self, stream: StreamId) -> usize {
        QUANTUM * usize::from(self.weights.get(&stream).copied().unwrap_or(1))
    }

    pub(super) fn front(&self) -> Option<StreamId> {
        self.by_urgency.iter().find_map(|turns| turns.front().copied())
    }

    pub(super) fn push_back(&mut self, stream: StreamId) {
        let urgency = self.urgency(stream);
        if let Some(turns) = self.by_urgency.get_mut(usize::from(urgency.get())) {
            turns.push_back(stream);
        }
    }

    /// Moves the first flow behind the others of its urgency.
    pub(super) fn rotate(&mut self) {
        if let Some(turns) = self.most_urgent() {
            turns.rotate_left(1);
        }
    }

    pub(super) fn pop_front(&mut self) {
        if let Some(turns) = self.most_urgent() {
            turns.pop_front();
        }
    }

    /// Whether no other flow of the first flow's urgency has a turn.
    pub(super) fn is_alone(&self) -> bool {
        self.by_urgency.iter().find(|turns| !turns.is_empty()).is_some_and(|turns| turns.len() == 1)
    }

    pub(super) fn remove(&mut self, stream: StreamId) {
        self.urgencies.remove(&stream);
        self.weights.remove(&stream);
        for turns in &mut self.by_urgency {
            turns.retain(|&other| other != stream);
        }
    }

    fn most_urgent(&mut self) -> Option<&mut VecDeque<StreamId>> {
        self.by_urgency.iter_mut().find(|turns| !turns.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: StreamId = StreamId(0);
    const FIRST: StreamId = StreamId(4);
    const SECOND: StreamId = StreamId(8);

    #[test]
    fn the_length_of_a_turn_is_proportional_to_the_weight() {
        let mut turns = Turns::default();
        turns.set_weight(FIRST, 3);
        assert_eq!((turns.quantum(FIRST), turns.quantum(SECOND)), (3 * QUANTUM, QUANTUM));
        turns.set_weight(FIRST, 1);
        turns.set_weight(SECOND, 64);
        turns.remove(SECOND);
        assert_eq!((turns.quantum(FIRST), turns.quantum(SECOND)), (QUANTUM, QUANTUM));
        assert!(turns.weights.is_empty());
    }

    #[test]
    fn urgent_flows_go_first_and_equal_flows_take_turns() {
        let mut turns = Turns::default();
        turns.set_urgency(FIRST, "u=1".parse().unwrap());
        turns.set_urgency(SECOND, "u=1".parse().unwrap());
        for stream in [LATE, FIRST, SECOND] {
            turns.push_back(stream);
        }
        assert_eq!((turns.front(), turns.is_alone()), (Some(FIRST), false));
        turns.rotate();
        assert_eq!(turns.front(), Some(SECOND));
        turns.pop_front();
        assert_eq!((turns.front(), turns.is_alone()), (Some(FIRST), true));
        turns.remove(FIRST);
        assert_eq!(turns.front(), Some(LATE));
        turns.remove(LATE);
        assert_eq!((turns.front(), turns.is_alone()), (None, false));
    }
}
