use std::time::Instant;

use tandem_units::ByteCount;

use crate::{Ack, Algorithm, CongestionEvent, CongestionSignal};

/// `NewReno` as in [RFC 9002 §7], with the names of its appendix B.
///
/// The window is halved once per round trip with loss or marks, and grows by one datagram per round
/// trip otherwise. Recovery does not slow sending down further, §7.3.2.
///
/// [RFC 9002 §7]: https://www.rfc-editor.org/rfc/rfc9002#section-7
#[derive(Clone, Debug)]
pub struct NewReno {
    initial_window: ByteCount,
    max_datagram_size: ByteCount,
    congestion_window: ByteCount,
    /// Infinite until the first loss.
    ssthresh: ByteCount,
    /// When the last recovery period began.
    congestion_recovery_start_time: Option<Instant>,
    /// What was acknowledged in congestion avoidance since the window grew last. §B.5 divides at
    /// every acknowledgement and would never grow a window above the square of a datagram's size.
    acked_since_growth: ByteCount,
}

/// §7.2: `kMinimumWindow` in datagrams.
const MINIMUM_WINDOW_PACKETS: u64 = 2;

/// §B.1: the window is divided by this on a loss. `kLossReductionFactor` is its reciprocal.
const LOSS_DIVISOR: u64 = 2;

impl NewReno {
    /// A controller for a path that carries datagrams of at most `max_datagram_size` of UDP
    /// payload.
    pub const fn new(initial_window: ByteCount, max_datagram_size: ByteCount) -> Self {
        Self {
            initial_window,
            max_datagram_size,
            congestion_window: initial_window,
            ssthresh: ByteCount::MAX,
            congestion_recovery_start_time: None,
            acked_since_growth: ByteCount::ZERO,
        }
    }

    fn in_congestion_recovery(&self, sent: Instant) -> bool {
        self.congestion_recovery_start_time.is_some_and(|start| sent <= start)
    }

    fn minimum_window(&self) -> ByteCount {
        self.max_datagram_size.saturating_mul(MINIMUM_WINDOW_PACKETS)
    }
}

impl Algorithm for NewReno {
    fn on_ack(&mut self, ack: Ack) {
        // §7.8: an underused window SHOULD NOT grow.
        if ack.is_app_limited || self.in_congestion_recovery(ack.sent) {
            return;
        }
        if self.congestion_window < self.ssthresh {
            self.congestion_window += ack.bytes; // slow start, §7.3.1
            return;
        }
        self.acked_since_growth += ack.bytes; // congestion avoidance, §7.3.3
        if self.acked_since_growth >= self.congestion_window {
            self.acked_since_growth -= self.congestion_window;
            self.congestion_window += self.max_datagram_size;
        }
    }

    fn on_congestion_event(&mut self, event: CongestionEvent) {
        if !self.in_congestion_recovery(event.sent) {
            self.congestion_recovery_start_time = Some(event.now);
            self.ssthresh = ByteCount::new(self.congestion_window.get() / LOSS_DIVISOR);
            self.congestion_window = self.ssthresh.max(self.minimum_window());
            self.acked_since_growth = ByteCount::ZERO;
        }
        if event.signal == CongestionSignal::PersistentLoss {
            // §7.6.2, with §B.8: recovery is over, slow start begins.
            self.congestion_window = self.minimum_window();
            self.congestion_recovery_start_time = None;
        }
    }

    fn on_mtu_update(&mut self, max_datagram_size: ByteCount) {
        self.max_datagram_size = max_datagram_size;
        self.congestion_window = self.congestion_window.max(self.minimum_window());
    }

    fn congestion_window(&self) -> ByteCount {
        self.congestion_window
    }

    fn initial_window(&self) -> ByteCount {
        self.initial_window
    }

    fn ssthresh(&self) -> Option<ByteCount> {
        Some(self.ssthresh)
    }
}
