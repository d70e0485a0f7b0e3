//! An origin's congestion controller that cooperates with a tunnel on its path: TECC, Towards
//! Efficient QUIC Tunneling via Collaborative Transmission Control (NSDI '24, §4.2).
//!
//! A proxy reports the tunnel's sending rate, the length of its queue and the share of packets that
//! it retransmits ([`TunnelInfo`](tandem_wire::TunnelInfo)). While reports arrive, the origin sends
//! at the rate that Algorithm 1 computes from them. Before the first report, after the last one has
//! expired, and while reports contradict what the origin measures, it behaves as [`Bbr1`].
//!
//! | file | contents |
//! | --- | --- |
//! | `config` | [`TeccConfig`], the algorithm's constants |
//! | `control` | Algorithm 1 with its rate and window |
//! | `guard` | the checks of reports against end-to-end measurements |

mod config;
mod control;
mod guard;

use std::time::Instant;

use tandem_units::{ByteCount, Rate};

pub use self::config::{Leg, RetransmissionUnits, TeccConfig, TeccConfigError, WindowRtt};
pub(crate) use self::control::Control;
use crate::{
    Ack, AcksEnd, Algorithm, Bbr1, CongestionEvent, CongestionSignal, Feedback, Lost, Sent,
};

/// A controller that follows the reports of a tunnel, and behaves as [`Bbr1`] without them.
#[derive(Clone, Debug)]
pub struct Tecc {
    bbr: Bbr1,
    feedback: Feedback,
}

impl Tecc {
    /// Creates a controller whose reports come through `feedback`.
    ///
    /// `max_datagram_size` is the largest UDP payload that the path carries, in bytes.
    pub fn new(
        bbr: Bbr1,
        config: TeccConfig,
        feedback: Feedback,
        max_datagram_size: ByteCount,
    ) -> Self {
        feedback.state().tunnel.attach(config, max_datagram_size);
        Self { bbr, feedback }
    }
}

impl Algorithm for Tecc {
    fn on_packet_sent(&mut self, sent: Sent) {
        self.bbr.on_packet_sent(sent);
        self.feedback.state().tunnel.on_sent(sent.now);
    }

    fn on_ack(&mut self, ack: Ack) {
        self.bbr.on_ack(ack);
        self.feedback.state().tunnel.on_ack(&ack);
    }

    fn on_acks_end(&mut self, end: AcksEnd) {
        self.bbr.on_acks_end(end);
        let (is_round, acked_rate) = (self.bbr.is_round_start(), self.bbr.bandwidth_estimate());
        self.feedback.state().tunnel.on_acks_end(end.now, is_round, acked_rate);
    }

    fn on_packet_lost(&mut self, lost: Lost) {
        self.bbr.on_packet_lost(lost);
        self.feedback.state().tunnel.on_lost(lost.now, lost.bytes);
    }

    fn on_congestion_event(&mut self, event: CongestionEvent) {
        self.bbr.on_congestion_event(event);
        if event.signal == CongestionSignal::PersistentLoss {
            self.feedback.state().tunnel.forget_report();
        }
    }

    fn on_mtu_update(&mut self, max_datagram_size: ByteCount) {
        self.bbr.on_mtu_update(max_datagram_size);
        self.feedback.state().tunnel.set_max_datagram_size(max_datagram_size);
    }

    fn congestion_window(&self) -> ByteCount {
        self.feedback.state().tunnel.window().unwrap_or_else(|| self.bbr.congestion_window())
    }

    fn initial_window(&self) -> ByteCount {
        self.bbr.initial_window()
    }

    fn ssthresh(&self) -> Option<ByteCount> {
        self.bbr.ssthresh()
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.feedback.state().tunnel.rate().or_else(|| self.bbr.pacing_rate())
    }

    fn send_quantum(&self) -> Option<ByteCount> {
        self.bbr.send_quantum()
    }

    fn bandwidth_estimate(&self) -> Option<Rate> {
        self.bbr.bandwidth_estimate()
    }
}

/// Returns whether `now` is later than `since` by more than `than`.
fn is_older(now: Instant, since: Instant, than: std::time::Duration) -> bool {
    now.saturating_duration_since(since) > than
}
