//! Several nodes at one address, each of which runs in a thread of its own.

/// Which of the nodes at one address this one is. The first byte of each connection ID that the node
/// chooses says so, so that the operating system can give a packet to its node wherever it comes from.
///
/// Packets with a long header belong to the handshake. The operating system must give those of one
/// address and port to the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    index: u8,
    nodes: u8,
}

impl Default for Steering {
    fn default() -> Self {
        Self::ALONE
    }
}

impl Steering {
    /// A node that has the address for itself.
    pub const ALONE: Self = Self { index: 0, nodes: 1 };

    /// The most nodes at one address. The first byte still has two bits that nobody can guess.
    pub const NODES_MAX: u8 = 64;

    /// The node with this index, counted from 0, of this many nodes. `None`: there is no such node, or there
    /// are more than [`Self::NODES_MAX`].
    pub const fn new(index: u8, nodes: u8) -> Option<Self> {
        if index < nodes && nodes <= Self::NODES_MAX { Some(Self { index, nodes }) } else { None }
    }

    /// Which node gets packets whose connection ID begins with this byte: the remainder of a division by
    /// the number of nodes. The filter of a group of sockets computes the same.
    pub const fn node_of(self, first: u8) -> u8 {
        first % self.nodes
    }

    /// The number of nodes.
    pub const fn nodes(self) -> u8 {
        self.nodes
    }

    /// The index of this node, counted from 0.
    pub const fn index(self) -> u8 {
        self.index
    }

    /// Makes a random connection ID one of this node.
    pub(crate) fn mark(self, id: &mut [u8]) {
        if let Some(first) = id.first_mut() {
            let random = *first - *first % self.nodes;
            // Above 255, it is that of the nodes before.
            let above = || random - self.nodes + self.index;
            *first = random.checked_add(self.index).unwrap_or_else(above);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_id_is_one_of_the_node() {
        for nodes in 1..=Steering::NODES_MAX {
            for index in 0..nodes {
                let steering = Steering::new(index, nodes).unwrap();
                for first in 0..=255 {
                    let mut id = [first, 7];
                    steering.mark(&mut id);
                    assert_eq!(steering.node_of(id[0]), index, "{steering:?}, {first}");
                    assert_eq!(id[1], 7);
                    assert!(first.abs_diff(id[0]) < nodes, "{steering:?}, {first}: {id:?}");
                }
            }
        }
        assert_eq!(Steering::new(2, 2), None);
        assert_eq!(Steering::new(0, Steering::NODES_MAX + 1), None);
    }

    #[test]
    fn a_node_alone_changes_no_id() {
        for first in 0..=255 {
            let mut id = [first];
            Steering::ALONE.mark(&mut id);
            assert_eq!(id, [first]);
        }
    }
}
