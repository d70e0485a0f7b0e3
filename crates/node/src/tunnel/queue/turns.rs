use std::collections::{BTreeMap, VecDeque};

use tandem_wire::Urgency;

use crate::quic::StreamId;

/// Bytes that a flow of weight 1 may send in its turn: a full packet.
const QUANTUM: usize = 1500;

/// Whose turn it is: that of the most urgent flows (RFC 9218 §4.1), and of those one after the other;
/// each turn is as long as the flow's weight.
#[derive(Debug, Default)]
pub(super) struct Turns {
    by_urgency: [VecDeque<StreamId>; Urgency::COUNT],
    /// Of flows whose urgency is not the default.
    urgencies: BTreeMap<StreamId, Urgency>,
    /// Of flows whose weight is not 1.
    weights: BTreeMap<StreamId, u8>,
}

impl Turns {
    /// From the flow's next turn on.
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

    /// From the flow's next turn on.
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

    /// The front has had its turn, and comes again after its equals.
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

    /// Whether the front has no equal.
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
    fn a_turn_is_as_long_as_the_weight() {
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
    fn the_urgent_go_first_and_equals_take_turns() {
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
