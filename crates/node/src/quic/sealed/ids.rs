//! The connection IDs at which the connections of an endpoint receive the packets of their sealed transports.

use std::collections::{BTreeMap, btree_map::Entry};

use super::SealedId;
use crate::quic::{
    ConnectionId, ConnectionIds, Header, Transport,
    config::{Generator, rng},
};
use rand::Rng;

/// The fewest bytes of an ID, which nobody can guess.
const LEN_MIN: usize = 8;

/// Lets the choices differ from those of others with the same seed.
const PART: u64 = 1 << 60;

/// The IDs of one endpoint. They name this node, as all its connection IDs do, so that threads, machines and load
/// balancers pass packets on to it.
pub(in crate::quic) struct SealedIds {
    random: Generator,
    choice: ConnectionIds,
    /// By the last bytes of the ID. Those before name the machine in a fleet. A packet that differs in them is not
    /// authentic.
    connections: BTreeMap<[u8; LEN_MIN], ConnectionId>,
}

impl SealedIds {
    pub(in crate::quic) fn new(transport: &Transport, seed: Option<u64>) -> Self {
        Self {
            random: rng(seed.map(|seed| seed.wrapping_add(PART))),
            choice: ConnectionIds::new(transport),
            connections: BTreeMap::new(),
        }
    }

    /// The length of all IDs: that of the endpoint's other IDs, as load balancers need it.
    fn len(&self) -> usize {
        self.choice.len().max(LEN_MIN)
    }

    /// Chooses an ID for a connection, and a number that its peer cannot guess.
    pub(in crate::quic) fn choose(&mut self, connection: ConnectionId) -> (SealedId, u64) {
        let mut bytes = [0; SealedId::LEN_MAX];
        let len = self.len();
        loop {
            let bytes = bytes.get_mut(..len).expect("no ID is longer");
            self.random.fill(bytes);
            self.choice.mark(bytes);
            let id = SealedId::try_from(&*bytes).expect("no ID is longer");
            let key = *id.last_chunk().expect("no ID is shorter");
            if let Entry::Vacant(entry) = self.connections.entry(key) {
                entry.insert(connection);
                return (id, self.random.random());
            }
        }
    }

    /// The connection whose sealed transport a packet may be of.
    pub(in crate::quic) fn find(&self, packet: &[u8]) -> Option<ConnectionId> {
        if self.connections.is_empty() {
            return None;
        }
        let Some(Header::Short { rest }) = Header::read(packet) else { return None };
        self.connections.get(rest.get(..self.len())?.last_chunk()?).copied()
    }

    pub(in crate::quic) fn remove(&mut self, id: SealedId) {
        if let Some(key) = id.last_chunk() {
            self.connections.remove(key);
        }
    }
}
