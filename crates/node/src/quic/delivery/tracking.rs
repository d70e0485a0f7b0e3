//! A congestion controller that wraps another, and reports the delivery of packets.

use std::{
    any::Any,
    sync::Arc,
    time::{Duration, Instant},
};

use noq_proto::{
    RttEstimator,
    congestion::{Controller, ControllerFactory, ControllerMetrics},
};
use tandem_congestion::Factory;

use super::Deliveries;
use crate::quic::{
    observed::Observer,
    pep::{Made, Passage},
};

/// A factory for the controllers of one connection, which also report the delivery of its datagrams
/// to the deliveries, the fate of its packets to the passage, and their losses to the qlog.
pub(in crate::quic) fn tracking(
    controllers: Factory,
    (deliveries, passage, qlog): (Deliveries, Option<Passage>, Option<Observer>),
) -> Factory {
    Arc::new(TrackingFactory { controllers, deliveries, passage, qlog })
}

struct TrackingFactory {
    controllers: Factory,
    deliveries: Deliveries,
    passage: Option<Passage>,
    qlog: Option<Observer>,
}

impl ControllerFactory for TrackingFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::clone(&self.controllers).build(now, current_mtu);
        let path = self.deliveries.add_path();
        let (deliveries, passage) = (self.deliveries.clone(), self.passage.clone());
        forget_path(path, passage.as_ref());
        let qlog = self.qlog.clone();
        Box::new(Tracking { inner, path, deliveries, passage, qlog, newest_acked: None })
    }
}

/// What PEPs have said of another path means nothing for a new one.
fn forget_path(path: u32, passage: Option<&Passage>) {
    if let Some(passage) = passage.filter(|_| path > 1) {
        passage.feedback.forget_path();
    }
}

/// A controller that also reports which packets were sent, acknowledged and lost.
#[derive(Debug)]
struct Tracking {
    inner: Box<dyn Controller>,
    path: u32,
    deliveries: Deliveries,
    /// Whether PEPs may acknowledge packets, and where.
    passage: Option<Passage>,
    /// The observer that writes a qlog, if there is one.
    qlog: Option<Observer>,
    /// When the newest packet was sent of those that an ACK frame acknowledges.
    newest_acked: Option<Instant>,
}

impl Controller for Tracking {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_packet_number: u64) {
        self.inner.on_sent(now, bytes, largest_packet_number);
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, packet_number: u64) {
        self.deliveries.on_packet_sent(self.path, now, bytes, packet_number);
        if let Some(passage) = &self.passage {
            passage.on_made(Made { number: packet_number, bytes });
        }
        self.inner.on_packet_sent(now, bytes, packet_number);
    }

    fn on_cwnd_limited(&mut self) {
        self.deliveries.hold_back();
        self.inner.on_cwnd_limited();
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        packet_number: u64,
        is_app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.newest_acked = self.newest_acked.max(Some(sent));
        self.deliveries.on_acked(packet_number, sent);
        self.deliveries.set_min_rtt(rtt.min());
        if let Some(passage) = &self.passage {
            passage.feedback.on_acked(now, packet_number, sent);
        }
        self.inner.on_ack(now, sent, bytes, packet_number, is_app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        is_app_limited: bool,
        largest_acked: Option<u64>,
    ) {
        self.deliveries.set_newest_acked(self.newest_acked.take());
        self.deliveries.on_acks_end(self.path, in_flight, largest_acked);
        if let Some(passage) = &self.passage {
            passage.feedback.on_acks_end(now, is_app_limited);
        }
        self.inner.on_end_acks(now, in_flight, is_app_limited, largest_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        lost_bytes: u64,
        packet_number: u64,
    ) {
        self.inner.on_congestion_event(
            now,
            sent,
            is_persistent_congestion,
            is_ecn,
            lost_bytes,
            packet_number,
        );
    }

    fn on_packet_lost(&mut self, bytes: u16, packet_number: u64, now: Instant) {
        self.deliveries.on_lost(packet_number, bytes);
        self.deliveries.hold_back();
        if let Some(passage) = &self.passage {
            passage.feedback.on_lost(packet_number, bytes);
        }
        if let Some(observer) = &self.qlog {
            observer.log(|qlog| qlog.lost(packet_number, bytes));
        }
        self.inner.on_packet_lost(bytes, packet_number, now);
    }

    fn on_spurious_congestion_event(&mut self) {
        self.inner.on_spurious_congestion_event();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn on_ack_frequency_update(&mut self, ack_eliciting_threshold: u64, max_ack_delay: Duration) {
        self.inner.on_ack_frequency_update(ack_eliciting_threshold, max_ack_delay);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        let (inner, path) = (self.inner.clone_box(), self.deliveries.add_path());
        let (deliveries, passage) = (self.deliveries.clone(), self.passage.clone());
        forget_path(path, passage.as_ref());
        let qlog = self.qlog.clone();
        Box::new(Self { inner, path, deliveries, passage, qlog, newest_acked: None })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.inner.into_any()
    }
}
