use std::time::Instant;

use tandem_units::ByteCount;

use crate::{Ack, Algorithm, CongestionEvent, CongestionSignal};

/// `NewReno` as in [RFC 9002 §7], with the names of its appendix B.
///
/// The window is halved once per round trip with losses or ECN marks. Otherwise it grows by one
/// datagram per round trip in congestion avoidance. Sending is not slowed down further during
/// recovery (§7.3.2).
///
/// [RFC 9002 §7]: https://www.rfc-editor.org/rfc/rfc9002#section-7
#[derive(Clone, Debug)]
pub struct NewReno {
    initial_window: ByteCount,
    max_datagram_size: ByteCount,
    congestion_window: ByteCount,
    /// The slow-start threshold in bytes; it is infinite until the first congestion event.
    ssthresh: ByteCount,
    /// The time at which the last recovery period began.
    congestion_recovery_start_time: Option<Instant>,
    /// The bytes acknowledged in congestion avoidance since the window last grew. §B.5 divides at
    /// every acknowledgement instead. In integers that would never grow a window above the square
    /// of a datagram's size.
    acked_since_growth: ByteCount,
}

/// `kMinimumWindow` in datagrams (§7.2).
const MINIMUM_WINDOW_PACKETS: u64 = 2;

/// The divisor of the window on a loss. `kLossReductionFactor` is its reciprocal (§B.1).
const LOSS_DIVISOR: u64 = 2;

impl NewReno {
    /// Creates a controller for a path that carries datagrams of at most `max_datagram_size` bytes
    /// of UDP payload. `initial_window` is in bytes.
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
            self.congestion_window += ack.bytes; // this is slow start, §7.3.1
            return;
        }
        self.acked_since_growth += ack.bytes; // this is congestion avoidance, §7.3.3
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
            // §7.6.2 and §B.8: the recovery period ends, and slow start begins.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DATAGRAM: ByteCount = ByteCount::new(1200);

    struct Sender {
        controller: NewReno,
        start: Instant,
    }

    impl Sender {
        fn new() -> Self {
            let controller = NewReno::new(DATAGRAM.saturating_mul(10), DATAGRAM);
            Self { controller, start: crate::test_start() }
        }

        fn at(&self, millis: u64) -> Instant {
            self.start + Duration::from_millis(millis)
        }

        fn ack(&mut self, packets: u64, sent_millis: u64, is_app_limited: bool) -> u64 {
            let sent = self.at(sent_millis);
            for packet_number in 0..packets {
                self.controller.on_ack(Ack {
                    now: sent + Duration::from_millis(100),
                    sent,
                    packet_number,
                    bytes: DATAGRAM,
                    is_app_limited,
                    smoothed_rtt: Duration::from_millis(100),
                    min_rtt: Duration::from_millis(100),
                });
            }
            self.window_packets()
        }

        fn congested(&mut self, signal: CongestionSignal, sent_millis: u64, millis: u64) -> u64 {
            self.controller.on_congestion_event(CongestionEvent {
                now: self.at(millis),
                signal,
                sent: self.at(sent_millis),
                packet_number: 0,
                lost: DATAGRAM,
            });
            self.window_packets()
        }

        fn window_packets(&self) -> u64 {
            self.controller.congestion_window().get() / DATAGRAM.get()
        }
    }

    #[test]
    fn the_window_doubles_then_halves_once_then_grows_by_one_per_round() {
        let mut sender = Sender::new();
        assert_eq!(sender.ack(10, 0, false), 20, "slow start");
        assert_eq!(sender.ack(20, 100, true), 20, "underused");
        assert_eq!(sender.congested(CongestionSignal::Loss, 200, 300), 10);
        assert_eq!(sender.congested(CongestionSignal::Ecn, 250, 310), 10, "same round trip");
        assert_eq!(sender.ack(5, 250, false), 10, "sent before recovery");
        assert_eq!(sender.ack(9, 320, false), 10, "congestion avoidance");
        assert_eq!(sender.ack(1, 320, false), 11);
        assert_eq!(sender.ack(11, 420, false), 12);
        assert_eq!(sender.congested(CongestionSignal::Ecn, 430, 530), 6);
    }

    #[test]
    fn persistent_congestion_starts_again_from_two_datagrams() {
        let mut sender = Sender::new();
        assert_eq!(sender.congested(CongestionSignal::PersistentLoss, 100, 2_000), 2);
        assert_eq!(sender.ack(2, 2_100, false), 4, "slow start up to half the window before");
        assert_eq!(sender.ack(1, 2_200, false), 5);
        assert_eq!(sender.ack(5, 2_300, false), 6);
        for round in 0..10 {
            sender.congested(CongestionSignal::Loss, 3_000 + 100 * round, 3_050 + 100 * round);
        }
        assert_eq!(sender.window_packets(), 2, "kMinimumWindow");
    }
}
