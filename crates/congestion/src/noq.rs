//! The adapter between our controllers and noq, and the only file of this crate that names its types.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use noq_proto::RttEstimator;
use noq_proto::congestion::{
    Bbr3Config, Controller, ControllerFactory, ControllerMetrics, CubicConfig,
};
use tandem_units::{ByteCount, Rate};

use crate::{
    Ack, AcksEnd, Algorithm, Bbr1, CongestionEvent, CongestionSignal, ControllerConfig,
    ControllerName, Feedback, Lost, Mdcc, MdccConfig, NewReno, Off, Sent, Tecc,
};

/// A factory that builds a controller for each new path, in the form that noq's `TransportConfig`
/// takes.
pub type Factory = Arc<dyn ControllerFactory + Send + Sync>;

/// The factory of the controller that `config` names, for one connection. Only
/// [`ControllerName::Tecc`] and [`ControllerName::Mdcc`] listen to `feedback`.
///
/// Each controller that it builds gets the next seed, so a run with the same connections repeats.
/// The exception is noq's own `BBRv3`, which draws from the operating system.
pub fn factory(config: &ControllerConfig, feedback: Feedback) -> Factory {
    Arc::new(SeededFactory { config: config.clone(), feedback, built: AtomicU64::new(0) })
}

/// Builds controllers that differ in their seeds only.
#[derive(Debug)]
struct SeededFactory {
    config: ControllerConfig,
    feedback: Feedback,
    /// The number of controllers that were built.
    built: AtomicU64,
}

impl ControllerFactory for SeededFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let max_datagram_size = ByteCount::new(current_mtu.into());
        let initial_window = self.config.initial_window(max_datagram_size);
        match self.config.name {
            ControllerName::Bbr1 | ControllerName::Bbr1Tunnel => {
                Box::new(Adapter(self.bbr1(now, max_datagram_size)))
            }
            ControllerName::Tecc | ControllerName::TeccPaper => {
                let bbr = self.bbr1(now, max_datagram_size);
                let feedback = self.feedback.clone();
                let tecc = Tecc::new(bbr, self.config.tecc, feedback, max_datagram_size);
                Box::new(Adapter(tecc))
            }
            ControllerName::Mdcc | ControllerName::MdccPaper => {
                let mdcc = match self.config.name {
                    ControllerName::MdccPaper => MdccConfig::PAPER,
                    _ => MdccConfig::default(),
                };
                let feedback = self.feedback.clone();
                Box::new(Adapter(Mdcc::new(mdcc, feedback, now, initial_window, max_datagram_size)))
            }
            ControllerName::NewReno => {
                Box::new(Adapter(NewReno::new(initial_window, max_datagram_size)))
            }
            ControllerName::Cubic => {
                let mut config = CubicConfig::default();
                config.initial_window(initial_window.get());
                Arc::new(config).build(now, current_mtu)
            }
            ControllerName::Bbr3 => {
                let mut config = Bbr3Config::default();
                config.initial_window(initial_window.get());
                Arc::new(config).build(now, current_mtu)
            }
            ControllerName::Off => Box::new(Adapter(Off)),
        }
    }
}

impl SeededFactory {
    fn bbr1(&self, now: Instant, max_datagram_size: ByteCount) -> Bbr1 {
        let index = self.built.fetch_add(1, Ordering::Relaxed);
        self.config.bbr1(index, now, max_datagram_size)
    }
}

/// Makes noq drive an [`Algorithm`].
#[derive(Clone, Debug)]
pub struct Adapter<A>(pub A);

impl<A: Algorithm + Clone> Controller for Adapter<A> {
    fn on_packet_sent(&mut self, now: Instant, bytes: u16, packet_number: u64) {
        let bytes = ByteCount::new(bytes.into());
        self.0.on_packet_sent(Sent { now, packet_number, bytes });
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
        self.0.on_ack(Ack {
            now,
            sent,
            packet_number,
            bytes: ByteCount::new(bytes),
            is_app_limited,
            smoothed_rtt: rtt.get(),
            min_rtt: rtt.min(),
        });
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        is_app_limited: bool,
        largest_acked: Option<u64>,
    ) {
        let bytes_in_flight = ByteCount::new(in_flight);
        self.0.on_acks_end(AcksEnd { now, bytes_in_flight, is_app_limited, largest_acked });
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
        let signal = match (is_ecn, is_persistent_congestion) {
            (true, _) => CongestionSignal::Ecn,
            (false, true) => CongestionSignal::PersistentLoss,
            (false, false) => CongestionSignal::Loss,
        };
        let lost = ByteCount::new(lost_bytes);
        self.0.on_congestion_event(CongestionEvent { now, signal, sent, packet_number, lost });
    }

    fn on_packet_lost(&mut self, bytes: u16, packet_number: u64, now: Instant) {
        let bytes = ByteCount::new(bytes.into());
        self.0.on_packet_lost(Lost { now, packet_number, bytes });
    }

    fn on_spurious_congestion_event(&mut self) {
        self.0.on_spurious_congestion_event();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.0.on_mtu_update(ByteCount::new(new_mtu.into()));
    }

    fn window(&self) -> u64 {
        self.0.congestion_window().get()
    }

    fn metrics(&self) -> ControllerMetrics {
        // Not a struct literal: noq marks the type non-exhaustive.
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.0.congestion_window().get();
        metrics.ssthresh = self.0.ssthresh().map(ByteCount::get);
        metrics.pacing_rate = self.0.pacing_rate().map(noq_pacing_rate);
        metrics.send_quantum = self.0.send_quantum().map(ByteCount::get);
        metrics.bandwidth_estimate = self.0.bandwidth_estimate().map(Rate::bits_per_second);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.0.initial_window().get()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A pacing rate in noq's unit, bytes per second.
///
/// Between one byte and one gigabyte per second: noq waits for the missing bytes at this rate, and
/// a wait that rounds to 0 ns would spin for ever in virtual time.
fn noq_pacing_rate(rate: Rate) -> u64 {
    rate.bytes_per_second().clamp(1, ONE_BYTE_PER_NANOSECOND)
}

const ONE_BYTE_PER_NANOSECOND: u64 = 1_000_000_000;
