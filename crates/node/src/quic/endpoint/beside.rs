//! Packets that are not the engine's: those of sealed transports, and PEP-ACKs.

use std::time::Instant;

use bytes::BytesMut;

use super::{Endpoint, Event};
use crate::{
    node::Ecn,
    quic::{
        ConnectionId,
        pep::{Listener, PepAckStats},
        sealed::SealedArrival,
    },
    rounds::Party,
};

impl Endpoint {
    /// Handles a packet of the sealed transport of a connection.
    pub(super) fn on_sealed(
        &mut self,
        now: Instant,
        id: ConnectionId,
        ecn: Option<Ecn>,
        payload: BytesMut,
    ) -> Option<Party<ConnectionId>> {
        let slot = self.slots.get_mut(&id)?;
        let party = slot.party;
        match slot.connection.handle_sealed(now, ecn, payload) {
            SealedArrival::Dropped => {
                self.demux.count_refused();
                return Some(party);
            }
            SealedArrival::Taken { is_first: true } | SealedArrival::Violation(_) => {
                self.events.push_back((id, Event::Datagrams));
            }
            SealedArrival::Taken { is_first: false } => {}
        }
        self.touch(id);
        Some(party)
    }

    /// Tells the connections of packets that have passed a PEP. The congestion window of each may have
    /// grown, so that it gets a turn to send.
    pub(super) fn on_pep_ack(&mut self, now: Instant, payload: &[u8]) {
        let Some(listener) = &mut self.peps else { return }; // it listens to no PEPs
        let mut told = Vec::new();
        listener.on_pep_ack(payload, |id, passed| {
            if let Some(slot) = self.slots.get(&id) {
                slot.connection.on_passed(now, passed);
                told.push(id);
            }
        });
        for id in told {
            self.touch(id);
        }
    }

    /// What was counted of PEP-ACKs.
    pub(crate) fn pep_acks(&self) -> PepAckStats {
        self.peps.as_ref().map(Listener::stats).unwrap_or_default()
    }
}
