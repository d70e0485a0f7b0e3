//! Packets that are not the engine's: those of sealed transports, and PEP-ACKs.

use std::{net::SocketAddr, time::Instant};

use bytes::BytesMut;
use noq_proto::{ConnectionError, DatagramEvent, FourTuple};
use tandem_wire::{Code, ResetToken};

use super::{Closed, Endpoint, Event};
use crate::{
    impossible::impossible,
    node::Ecn,
    quic::{
        Connection, ConnectionId, Header,
        pep::{Listener, PepAckStats},
        sealed::SealedArrival,
    },
    rounds::Party,
};

/// The fewest bytes of a stateless reset (RFC 9000 §10.3).
const STATELESS_RESET_MIN: usize = 5 + ResetToken::LEN;

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

    /// Whether a packet is a stateless reset of the sealed transport of a connection: its last bytes are the token of
    /// the ID to which the transport sends. It ends the connection.
    ///
    /// RFC 9000 §10.3.1: "An endpoint identifies a received datagram as a Stateless Reset by comparing the last 16
    /// bytes of the datagram with all stateless reset tokens associated with the remote address on which the datagram
    /// was received."
    pub(super) fn is_sealed_reset(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        payload: &[u8],
    ) -> bool {
        let Some(Header::Short { .. }) = Header::read(payload) else { return false }; // resets have short ones
        let Some(token) = payload.last_chunk().filter(|_| payload.len() >= STATELESS_RESET_MIN)
        else {
            return false; // it is too short
        };
        let token = ResetToken::new(*token);
        let is_one = |connection: &Connection| {
            connection.is_sealed_reset_by(&token)
                && !connection.is_closed()
                && connection.path().is_some_and(|path| path.client == remote)
        };
        let found = self.slots.iter_mut().find(|(_, slot)| is_one(&slot.connection));
        let Some((&id, slot)) = found else { return false }; // as nearly always
        let reason = ConnectionError::Reset;
        slot.connection.log_loss(&reason);
        // The engine has not seen the reset. What it sends now is of no use to the peer, and harmless.
        slot.connection.close(now, Code::H3_NO_ERROR, "");
        self.events.push_back((id, Event::Lost(Closed::from(reason))));
        self.touch(id);
        true
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
