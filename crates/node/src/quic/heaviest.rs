//! Which node of a process has the heaviest connection.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::Steering;

/// The memory that the heaviest connection of each node takes, in bytes. All nodes that have a clone of this share
/// the memory of a process. When it is short, the connection that takes most is closed, whichever node it is of.
///
/// A node only knows what the others said when they last measured the memory in use.
#[derive(Clone, Debug)]
pub struct Heaviest(Arc<[AtomicU64; Steering::NODES_MAX as usize]>);

impl Default for Heaviest {
    fn default() -> Self {
        Self(Arc::new([const { AtomicU64::new(0) }; Steering::NODES_MAX as usize]))
    }
}

impl Heaviest {
    /// Says how heavy the heaviest connection of a node is.
    pub(super) fn set(&self, node: Steering, bytes: u64) {
        if let Some(own) = self.0.get(usize::from(node.index())) {
            own.store(bytes, Relaxed);
        }
    }

    /// How heavy the heaviest connection of all other nodes is.
    pub(super) fn of_others(&self, node: Steering) -> u64 {
        let others = self.0.iter().zip(0_u8..).filter(|(_, index)| *index != node.index());
        others.map(|(bytes, _)| bytes.load(Relaxed)).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::Turn;

    #[test]
    fn a_node_hears_of_others_and_not_of_itself() {
        let heaviest = Heaviest::default();
        let [first, last] = [0, 63].map(|index| Steering::new(index, 64, Turn::First).unwrap());
        assert_eq!((heaviest.of_others(first), heaviest.of_others(last)), (0, 0));
        heaviest.clone().set(first, 7);
        heaviest.set(last, 5);
        assert_eq!((heaviest.of_others(first), heaviest.of_others(last)), (5, 7));
        heaviest.set(first, 0);
        assert_eq!(heaviest.of_others(last), 0);
    }
}
