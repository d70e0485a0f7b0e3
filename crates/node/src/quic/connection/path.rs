//! The path of a connection: another one, silence on it, and marks that do not arrive.

use std::{net::SocketAddr, time::Instant};

use super::Connection;

use crate::quic::{ecn::Marks, observed::Arrived, sealed::SealedTransport};

impl Connection {
    /// Lets packets take another path to the peer at once, or a path again on which nothing could be sent.
    ///
    /// RFC 9000 §9.5: "An endpoint MUST NOT use the same connection ID when sending from more than one local address",
    /// so that the engine uses another one from now on. It also forgets how often its probes have gone unanswered.
    pub(crate) fn change_path(&mut self, now: Instant) {
        self.wake_engine();
        self.ecn.on_path_changed();
        self.inner.handle_network_change(None, now);
        if let (Some(sealed), Some(control)) = (&mut self.sealed, &self.hooks.control) {
            sealed.on_new_path(now, control);
        }
    }

    /// Notes that the peer has moved to another address. `is_new_path`: nothing is known about the path to it.
    pub(super) fn on_peer_moved(&mut self, now: Instant, is_new_path: bool) {
        let (Some(sealed), Some(control)) = (&mut self.sealed, &self.hooks.control) else {
            return; // the engine has noticed it, and carries the datagrams
        };
        // RFC 9000 §8: "Prior to validating the client address, servers MUST NOT send more than three times as many
        // bytes as the number of bytes they have received." In the sealed transport there are none.
        sealed.hold_until_validated(now);
        // RFC 9000 §9.4: an endpoint "MUST immediately reset the congestion controller and round-trip time estimator
        // for the new path", but for a change of the port only.
        if is_new_path {
            sealed.on_new_path(now, control);
        }
    }

    /// A connection ID of this end at which the peer sends, if it sends from this address, and nothing shows yet that
    /// it is there. Only ends with a sealed transport ask.
    pub(in crate::quic) fn awaits_validation_of(
        &self,
        remote: SocketAddr,
    ) -> Option<tandem_wire::ConnectionId> {
        let is_held = self.sealed.as_ref().is_some_and(SealedTransport::is_held);
        self.at.filter(|at| is_held && at.remote == remote).map(|at| at.id)
    }

    /// When the first packet left that the peer has to acknowledge (RFC 9000 §13.2.1), since an authentic packet came
    /// from it. Only clients note it.
    pub(crate) const fn awaits_since(&self) -> Option<Instant> {
        self.awaits
    }

    /// Starts to measure the silence of the peer again.
    pub(crate) const fn forget_silence(&mut self) {
        self.awaits = None;
    }

    /// Whether a packet that leaves now may have an ECN mark.
    pub(super) fn may_mark(&mut self, now: Instant) -> bool {
        let smoothed_rtt = (!self.inner.is_handshaking()).then(|| self.smoothed_rtt());
        let Self { ecn, hooks, .. } = self;
        ecn.may_mark(now, smoothed_rtt, || {
            let mut observed = hooks.observer.lock();
            observed.want_acked(true);
            observed.progress()
        })
    }

    /// Takes what has arrived, and notes what it says of the path.
    pub(super) fn note_arrivals(&mut self) -> Arrived {
        let mut observed = self.hooks.observer.lock();
        let arrived = observed.take_arrived();
        if self.awaits.is_some() && arrived.has_any() {
            self.awaits = None;
            observed.take_has_elicited();
        }
        if matches!(self.ecn.marks, Marks::Tried(..)) {
            self.ecn.on_arrived(&observed.progress());
            observed.want_acked(matches!(self.ecn.marks, Marks::Tried(..)));
        }
        arrived
    }
}
