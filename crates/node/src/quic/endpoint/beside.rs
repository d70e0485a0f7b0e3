//! Packets that are not the engine's: those of sealed transports, and PEP-ACKs.

use std::time::Instant;

use bytes::BytesMut;
use noq_proto::{DatagramEvent, FourTuple};

use super::{Endpoint, Event};
use crate::{
    impossible::impossible,
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
        (id, path): (ConnectionId, FourTuple),
        ecn: Option<Ecn>,
        payload: BytesMut,
    ) -> Option<Party<ConnectionId>> {
        let slot = self.slots.get_mut(&id)?;
        let (party, len) = (slot.party, payload.len());
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
        if let Some(own_id) = slot.connection.awaits_validation_of(path.remote()) {
            self.count_for_validation(now, path, &own_id, len);
        }
        self.touch(id);
        Some(party)
    }

    /// Lets the engine know of bytes that came from an address that is not validated. It sends three times as many at
    /// most (RFC 9000 §8), and sees few packets while the sealed transport carries the datagrams: without this, it does
    /// not repeat a lost challenge for seconds. A packet of the same length that it cannot decrypt counts, and does
    /// nothing else.
    fn count_for_validation(
        &mut self,
        now: Instant,
        path: FourTuple,
        own_id: &tandem_wire::ConnectionId,
        len: usize,
    ) {
        let mut packet = BytesMut::zeroed(len);
        let head = packet.split_first_mut();
        let Some((first, place)) =
            head.and_then(|(first, rest)| Some((first, rest.get_mut(..own_id.len())?)))
        else {
            return impossible("a packet of the sealed transport is longer than a connection ID");
        };
        *first = 0x40; // a short header (RFC 9000 §17.3.1)
        place.copy_from_slice(own_id);
        if let Some(DatagramEvent::ConnectionEvent(handle, event)) =
            self.inner.handle(now, path, None, packet, &mut Vec::new())
            && let Some(id) = self.by_handle.get(&handle.0)
            && let Some(slot) = self.slots.get_mut(id)
        {
            slot.connection.handle_event(now, event);
            slot.connection.wake_engine();
        }
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
