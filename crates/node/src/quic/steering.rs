//! Several nodes at one address, each of which runs in a thread of its own, and for a while in two processes.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// Which of the nodes at one address this one is. The first byte of each connection ID that the node
/// chooses says so, so that the operating system can give a packet to its node wherever it comes from.
///
/// The packets of a client that knows no connection ID of the server yet begin the handshake. The operating system must
/// give those of one address and port to the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    /// The place of this node among all at the address, also those of another process.
    slot: u8,
    slots: u8,
    /// The number of nodes of this process.
    nodes: u8,
}

/// Which of the two processes that can share an address one is. A process that takes over from another one has the
/// other turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turn {
    /// That of a process that has taken over from none.
    #[default]
    First,
    /// That of its successor.
    Second,
}

impl Turn {
    /// That of the other process.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// The slots before those of this process.
    pub const fn first_slot(self, nodes: u8) -> u8 {
        match self {
            Self::First => 0,
            Self::Second => nodes,
        }
    }
}

/// Whether another process at the address has connections. The node then answers no packet with one of its connection
/// IDs.
#[derive(Clone, Debug, Default)]
pub struct OtherProcess(Arc<AtomicBool>);

impl OtherProcess {
    /// Tells all nodes of this process.
    pub fn set(&self, is_there: bool) {
        self.0.store(is_there, Relaxed);
    }

    pub(super) fn is_there(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl Default for Steering {
    fn default() -> Self {
        Self::ALONE
    }
}

impl Steering {
    /// A node that has the address for itself.
    pub const ALONE: Self = Self { slot: 0, slots: 1, nodes: 1 };

    /// The most nodes of one process. The first byte still has an unpredictable bit, and the other bytes have
    /// all.
    pub const NODES_MAX: u8 = 64;

    /// The node with this index, counted from 0, of this many nodes of a process. `None`: there is no such node, or
    /// there are more than [`Self::NODES_MAX`].
    pub const fn new(index: u8, nodes: u8, turn: Turn) -> Option<Self> {
        if index < nodes && nodes <= Self::NODES_MAX {
            Some(Self { slot: turn.first_slot(nodes) + index, slots: 2 * nodes, nodes })
        } else {
            None
        }
    }

    /// Which slot gets packets whose connection ID begins with this byte: the remainder of a division by
    /// the number of slots. The filter of a group of sockets computes the same.
    pub const fn slot_of(self, first: u8) -> u8 {
        first % self.slots
    }

    /// Whether this node may say that the connection of an ID with this first byte does not exist. It is the only one
    /// at the address that may. `is_shared`: another process has connections at the address. Without it, the IDs of
    /// such a process belong to the node to which the filter of the sockets gives their packets.
    pub(super) const fn answers_for(self, first: u8, is_shared: bool) -> bool {
        let slot = self.slot_of(first);
        slot == self.slot || !is_shared && slot % self.nodes == self.index()
    }

    /// The number of nodes of this process.
    pub const fn nodes(self) -> u8 {
        self.nodes
    }

    /// The index of this node among those of its process, counted from 0.
    pub const fn index(self) -> u8 {
        self.slot % self.nodes
    }

    /// Makes a random connection ID one of this node.
    pub(crate) fn mark(self, id: &mut [u8]) {
        if let Some(first) = id.first_mut() {
            let random = *first - *first % self.slots;
            // Above 255, it is that of the slots before.
            let above = || random - self.slots + self.slot;
            *first = random.checked_add(self.slot).unwrap_or_else(above);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_id_is_one_of_the_node() {
        let all =
            (1..=Steering::NODES_MAX).flat_map(|nodes| (0..nodes).map(move |index| (index, nodes)));
        for ((index, nodes), turn) in all.flat_map(|it| [(it, Turn::First), (it, Turn::Second)]) {
            let steering = Steering::new(index, nodes, turn).unwrap();
            let of_other = Steering::new(index, nodes, turn.other()).unwrap();
            assert_eq!((steering.index(), steering.nodes()), (index, nodes));
            for first in 0..=255 {
                let mut id = [first, 7];
                steering.mark(&mut id);
                let slot = turn.first_slot(nodes) + index;
                assert_eq!(steering.slot_of(id[0]), slot, "{steering:?}, {first}");
                assert_eq!(id[1], 7);
                assert!(first.abs_diff(id[0]) < 2 * nodes, "{steering:?}, {first}: {id:?}");
                assert!(steering.answers_for(id[0], true), "{steering:?}, {first}: {id:?}");
                assert!(!of_other.answers_for(id[0], true), "{steering:?}, {first}: {id:?}");
            }
        }
        assert_eq!(Steering::new(2, 2, Turn::First), None);
        assert_eq!(Steering::new(0, Steering::NODES_MAX + 1, Turn::First), None);
    }

    #[test]
    fn a_node_alone_changes_no_id() {
        for first in 0..=255 {
            let mut id = [first];
            Steering::ALONE.mark(&mut id);
            assert_eq!(id, [first]);
            assert!(Steering::ALONE.answers_for(first, true));
        }
    }

    #[test]
    fn one_node_and_no_other_answers_for_an_id() {
        for nodes in [1, 2, 3, 5, Steering::NODES_MAX] {
            let of = |turn| (0..nodes).map(move |index| Steering::new(index, nodes, turn).unwrap());
            for first in 0..=255 {
                let both = of(Turn::First).chain(of(Turn::Second));
                let answer = both.filter(|node| node.answers_for(first, true)).count();
                assert_eq!(answer, 1, "two processes of {nodes} nodes, {first}");
                for turn in [Turn::First, Turn::Second] {
                    let answer: Vec<_> =
                        of(turn).filter(|node| node.answers_for(first, false)).collect();
                    let index = first % nodes; // as the filter computes it
                    assert_eq!(answer, [Steering::new(index, nodes, turn).unwrap()], "{first}");
                }
            }
        }
    }
}
