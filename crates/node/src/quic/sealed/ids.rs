//! The connection IDs at which the connections of an endpoint receive the packets of their sealed transports.

use std::collections::BTreeMap;

use rand::Rng;
use tandem_wire::TransportField;

use super::SealedId;
use crate::quic::{
    ConnectionId, ConnectionIds, Header, Transport,
    config::{Generator, rng},
};

/// Lets the choices differ from those of others with the same seed.
const PART: u64 = 1 << 60;

/// The IDs of one endpoint. They name this node, as all its connection IDs do, so that threads, machines and load
/// balancers pass packets on to it.
pub(in crate::quic) struct SealedIds {
    random: Generator,
    choice: ConnectionIds,
    connections: BTreeMap<SealedId, ConnectionId>,
}

impl SealedIds {
    pub(in crate::quic) fn new(transport: &Transport, seed: Option<u64>) -> Self {
        Self {
            random: rng(seed.map(|seed| seed.wrapping_add(PART))),
            choice: ConnectionIds::new(transport),
            connections: BTreeMap::new(),
        }
    }

    /// Chooses an ID for a connection, and a number that its peer cannot guess. `None`: the IDs of this node have more
    /// bytes, because of its load balancer.
    pub(in crate::quic) fn choose(&mut self, connection: ConnectionId) -> Option<(SealedId, u64)> {
        let mut id = SealedId::default();
        if self.choice.len() > id.len() {
            return None;
        }
        loop {
            self.random.fill(&mut id);
            self.choice.mark(&mut id);
            if !self.connections.contains_key(&id) {
                break;
            }
        }
        self.connections.insert(id, connection);
        Some((id, self.random.random()))
    }

    /// The connection whose sealed transport a packet may be of.
    pub(in crate::quic) fn find(&self, packet: &[u8]) -> Option<ConnectionId> {
        if self.connections.is_empty() {
            return None;
        }
        let Some(Header::Short { rest }) = Header::read(packet) else { return None };
        self.connections.get(rest.first_chunk::<{ TransportField::ID_LEN }>()?).copied()
    }

    pub(in crate::quic) fn remove(&mut self, id: SealedId) {
        self.connections.remove(&id);
    }
}
