//! The datagrams of a connection: in the sealed transport if both ends have agreed on it, in DATAGRAM frames otherwise.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use noq_proto::{PathId, SendDatagramError, congestion::Controller};
use tandem_congestion::Algorithm;
use tandem_transport::{Counts, seal::Secrets};
use tandem_units::{ByteCount, Rate};
use tandem_wire::{ResetToken, StrangerText, TransportField};

use super::{Connection, PathEstimate, SendDatagram};
use crate::{
    node::{Ecn, Transmit},
    quic::{
        AckPolicy, DatagramId, DatagramTransport, Delivery,
        convert::{ecn_from_transport, from_noq_rate},
        sealed::{SealedArrival, SealedId, SealedTransport, Start},
    },
};

impl Connection {
    /// Lets the peer be asked for a sealed transport. `chosen`: the ID at which this end receives, and a number that
    /// the peer cannot guess. `settings`: whether packets get ECN marks, and the size that every path carries, in
    /// bytes.
    pub(in crate::quic) fn offer_sealed(
        &mut self,
        chosen: (SealedId, u64),
        acks: Option<AckPolicy>,
        settings: (bool, u16),
    ) {
        self.sealed = Some(SealedTransport::new(chosen, self.is_client, acks, settings));
    }

    /// The ID that a client offers to its server for a sealed transport. `None`: there can be none, or both have agreed
    /// on it.
    pub(crate) fn sealed_offer(&self) -> Option<SealedId> {
        let sealed = self.sealed.as_ref().filter(|sealed| !sealed.is_agreed())?;
        (!self.inner.is_handshaking()).then(|| sealed.id())
    }

    /// Lets the sealed transport carry the datagrams, because both ends have agreed on it. Returns the ID of this end.
    /// `peer`: what the other end has said. `None`: there can be none.
    pub(crate) fn agree_on_sealed(
        &mut self,
        now: Instant,
        peer: TransportField,
    ) -> Option<SealedId> {
        let sealed = self.sealed.as_mut()?;
        if sealed.is_agreed() {
            return Some(sealed.id());
        }
        let control = self.hooks.control.as_ref()?;
        let session = self.inner.crypto_session();
        let secrets = Secrets::export_for_transport(|secrets, label, context| {
            session.export_keying_material(secrets, label, context)
        });
        sealed.start(Start {
            now,
            peer,
            secrets: secrets.ok()?,
            control,
            packet_size: self.inner.current_mtu(),
            rtt: (
                self.inner.rtt(PathId::ZERO).unwrap_or_default(),
                self.hooks.deliveries.min_rtt(),
            ),
            layer: self.hooks.observer.lock().layer(),
            log: self.has_qlog.then(|| self.hooks.observer.clone()),
        });
        Some(sealed.id())
    }

    /// Whether a packet with these last bytes is a stateless reset of the sealed transport's ID at the peer.
    pub(in crate::quic) fn is_sealed_reset_by(&self, token: &ResetToken) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.is_reset_by(token))
    }

    /// What carries the datagrams.
    pub(crate) fn datagram_transport(&self) -> DatagramTransport {
        let is_sealed = self.sealed.as_ref().is_some_and(SealedTransport::is_used);
        if is_sealed { DatagramTransport::Sealed } else { DatagramTransport::Quic }
    }

    /// What the sealed transport has counted.
    pub(super) fn sealed_counts(&self) -> Counts {
        self.sealed.as_ref().and_then(SealedTransport::counts).unwrap_or_default()
    }

    /// Handles a packet of the sealed transport.
    pub(in crate::quic) fn handle_sealed(
        &mut self,
        now: Instant,
        ecn: Option<Ecn>,
        packet: BytesMut,
    ) -> SealedArrival {
        let Some(sealed) = &mut self.sealed else { return SealedArrival::Dropped };
        let arrival = sealed.handle(now, ecn, packet);
        match arrival {
            SealedArrival::Dropped => {}
            SealedArrival::Taken { .. } => self.awaits = None,
            SealedArrival::Violation(reason) => {
                let reason = StrangerText::from(reason.to_string());
                tracing::debug!(%reason, "the peer breaks the rules of the sealed transport");
                self.violation = Some(reason);
            }
        }
        arrival
    }

    /// Takes what the peer has done against the rules of the sealed transport, so that the connection must be closed.
    pub(crate) const fn take_violation(&mut self) -> Option<StrangerText> {
        self.violation.take()
    }

    /// Whether the sealed transport is asked for packets before the engine, because it has less in flight.
    pub(super) fn is_sealed_first(&self) -> bool {
        let is_agreed = self.sealed.as_ref().is_some_and(SealedTransport::is_agreed);
        let control = self.hooks.control.as_ref().filter(|_| is_agreed);
        control.is_some_and(|control| {
            let (engine, sealed) = control.in_flight();
            sealed <= engine
        })
    }

    /// The next packets of the sealed transport, at the end of `buf`.
    pub(super) fn poll_sealed(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        let sealed = self.sealed.as_mut().filter(|sealed| sealed.is_agreed())?;
        let is_validated = |since| self.hooks.deliveries.has_acked_since(since);
        if self.inner.is_closed() || !sealed.may_send(is_validated) {
            return None;
        }
        let transmit = sealed.poll_transmit(now, buf, self.inner.current_mtu())?;
        if self.is_client && self.awaits.is_none() && sealed.awaits_ack() {
            self.awaits = Some(now);
        }
        let path = self.inner.network_path(PathId::ZERO).ok()?;
        Some(Transmit {
            destination: path.remote(),
            src_ip: path.local_ip(),
            ecn: transmit.ecn.map(ecn_from_transport),
            size: transmit.size,
            segment_size: (transmit.size > transmit.segment_size).then_some(transmit.segment_size),
        })
    }

    /// The largest datagram that fits a packet at the moment. `None` if the peer accepts none.
    pub(crate) fn max_datagram_size(&mut self) -> Option<usize> {
        let sealed = self.sealed.as_ref().and_then(SealedTransport::datagram_max);
        sealed.or_else(|| self.inner.datagrams().max_size())
    }

    /// Sends a datagram.
    pub(crate) fn send_datagram(&mut self, mut data: Bytes) -> SendDatagram {
        if let Some(sealed) = &mut self.sealed {
            match sealed.send(None, data) {
                Ok(result) => return result,
                Err(back) => data = back,
            }
        }
        self.wake_engine();
        match self.inner.datagrams().send(data, false) {
            Ok(()) => SendDatagram::Taken,
            Err(SendDatagramError::Blocked(data)) => SendDatagram::Blocked(data),
            Err(
                SendDatagramError::TooLarge
                | SendDatagramError::UnsupportedByPeer
                | SendDatagramError::Disabled,
            ) => SendDatagram::TooLarge,
        }
    }

    /// Whether the engine has room for a datagram of this size now.
    pub(crate) fn has_room_for_datagram(&mut self, len: usize) -> bool {
        if let Some(has_room) = self.sealed.as_ref().and_then(|sealed| sealed.has_room(len)) {
            return has_room;
        }
        self.inner.datagrams().send_buffer_space() >= len
    }

    /// Gives a datagram to the engine, if it has room. [`Connection::poll_delivery`] then reports
    /// its delivery. `false`: the engine did not take it, and no report follows.
    pub(crate) fn send_tracked_datagram(&mut self, id: DatagramId, mut data: Bytes) -> bool {
        if let Some(sealed) = &mut self.sealed {
            match sealed.send(Some(id), data) {
                Ok(result) => return matches!(result, SendDatagram::Taken),
                Err(back) => data = back,
            }
        }
        self.wake_engine();
        let tracked = self.hooks.deliveries.track(id, data);
        let is_taken = self.inner.datagrams().send(tracked, false).is_ok();
        if !is_taken {
            self.hooks.deliveries.untrack(id);
        }
        is_taken
    }

    /// The next delivery report. Each tracked datagram gets exactly one.
    pub(crate) fn poll_delivery(&mut self) -> Option<(DatagramId, Delivery)> {
        let sealed = self.sealed.as_mut().and_then(SealedTransport::poll_delivery);
        sealed.or_else(|| self.hooks.deliveries.poll())
    }

    /// The tracked datagram that was sent last and when it was sent, while its delivery is not
    /// known.
    pub(crate) fn newest_datagram(&self) -> Option<(DatagramId, Instant)> {
        let sealed = self.sealed.as_ref().and_then(SealedTransport::newest);
        sealed.or_else(|| self.hooks.deliveries.newest())
    }

    /// Whether the peer has not acknowledged everything that was sent to it.
    pub(crate) fn awaits_ack(&self) -> bool {
        self.hooks.deliveries.awaits_ack()
            || self.sealed.as_ref().is_some_and(SealedTransport::awaits_ack)
    }

    /// The next datagram that arrived.
    pub(crate) fn receive_datagram(&mut self) -> Option<Bytes> {
        let sealed = self.sealed.as_mut().and_then(SealedTransport::receive);
        sealed.or_else(|| self.inner.datagrams().recv())
    }

    /// RFC 9002's `smoothed_rtt`.
    pub(crate) fn smoothed_rtt(&self) -> Duration {
        let sealed = self.sealed.as_ref().and_then(SealedTransport::rtt);
        let of_engine = || self.inner.rtt(PathId::ZERO).unwrap_or_default();
        sealed.map_or_else(of_engine, |(smoothed, _)| smoothed)
    }

    /// The congestion window.
    pub(crate) fn congestion_window(&self) -> ByteCount {
        if let Some(control) = &self.hooks.control {
            return control.with(Algorithm::congestion_window);
        }
        let controller = self.inner.congestion_state(PathId::ZERO);
        ByteCount::new(controller.map_or(0, Controller::window))
    }

    /// The controller's estimates of the path.
    pub(crate) fn path_estimate(&self) -> PathEstimate {
        let sealed = self.sealed.as_ref().and_then(SealedTransport::rtt);
        let smoothed_rtt = self.smoothed_rtt();
        let of_engine = || self.hooks.deliveries.min_rtt().unwrap_or(smoothed_rtt);
        let min_rtt = sealed.map_or_else(of_engine, |(_, min)| min);
        if let Some(control) = &self.hooks.control {
            return control.with(|algorithm| {
                let window = algorithm.congestion_window();
                PathEstimate {
                    congestion_window: window,
                    initial_window: algorithm.initial_window(),
                    pacing_rate: algorithm.pacing_rate(),
                    bandwidth: algorithm.bandwidth_estimate(),
                    is_starting: algorithm.ssthresh().is_none_or(|threshold| window < threshold),
                    min_rtt,
                    smoothed_rtt,
                }
            });
        }
        let controller = self.inner.congestion_state(PathId::ZERO);
        let metrics = controller.map(Controller::metrics);
        let metrics = metrics.unwrap_or_default();
        let window = metrics.congestion_window;
        PathEstimate {
            congestion_window: ByteCount::new(window),
            initial_window: ByteCount::new(controller.map_or(0, Controller::initial_window)),
            pacing_rate: metrics.pacing_rate.and_then(from_noq_rate),
            bandwidth: metrics.bandwidth_estimate.and_then(Rate::from_bps),
            is_starting: metrics.ssthresh.is_none_or(|threshold| window < threshold),
            min_rtt,
            smoothed_rtt,
        }
    }
}
