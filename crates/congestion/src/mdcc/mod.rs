//! Multi-domain congestion control, with the feedback of a lightweight PEP (*A Lightweight Performance
//! Enhancing Proxy for Evolved Protocols and Networks*, Krämer et al.).
//!
//! A PEP between a wired domain and an access domain tells the sender which packets have passed it. The
//! sender is fair in the wired domain, where it shares links with others, by a CUBIC window that PEP-ACKs
//! clock. The access domain belongs to the user, so a model of its rate and its queue is enough there, and a
//! loss there is no congestion. Without authentic PEP-ACKs this is CUBIC.
//!
//! | file | contents |
//! | --- | --- |
//! | `control` | the windows of the two domains |
//! | `access` | the model of the access domain |
//! | `scalable` | Scalable TCP, which the paper uses in its place |

mod access;
mod control;
mod scalable;

use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate};

pub(crate) use self::control::Control;
use crate::{Ack, AcksEnd, Algorithm, CongestionEvent, Factor, Feedback, Lost, Sent};

/// The settings of [`Mdcc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MdccConfig {
    /// How long packets may wait in the queue of the access domain.
    pub queue_target: Duration,
    /// The share of packets that may be lost in the access domain in a round trip before the sender slows
    /// down.
    pub loss_max: Factor,
    /// Whether the windows are those of the paper: CUBIC that PEP-ACKs clock, and Scalable TCP that
    /// acknowledgements clock; the smaller one counts.
    pub is_paper: bool,
}

impl MdccConfig {
    /// The algorithm of the paper.
    pub const PAPER: Self = Self { is_paper: true, ..Self::DEFAULT };

    const DEFAULT: Self = Self {
        queue_target: Duration::from_millis(4),
        loss_max: Factor::from_percent(10),
        is_paper: false,
    };
}

impl Default for MdccConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A controller for senders that hear from PEPs which packets have passed.
#[derive(Clone, Debug)]
pub struct Mdcc {
    feedback: Feedback,
}

impl Mdcc {
    /// Creates the controller of a connection that begins at `now`. What PEPs say comes through
    /// `feedback`. `initial_window` and `max_datagram_size` are in bytes of UDP payload.
    ///
    /// A copy of this controller, for another path of the same connection, shares its state.
    pub fn new(
        config: MdccConfig,
        feedback: Feedback,
        now: Instant,
        initial_window: ByteCount,
        max_datagram_size: ByteCount,
    ) -> Self {
        let control = Control::new(config, now, initial_window, max_datagram_size);
        feedback.state().mdcc = Some(Box::new(control));
        Self { feedback }
    }

    /// Calls `act` with the state of the control, and of the domains.
    fn with<T: Default>(
        &self,
        act: impl FnOnce(&mut Control, &crate::segments::Domains) -> T,
    ) -> T {
        let state = &mut *self.feedback.state();
        state.mdcc.as_mut().map(|control| act(control, &state.domains)).unwrap_or_default()
    }
}

impl Algorithm for Mdcc {
    fn on_packet_sent(&mut self, sent: Sent) {
        self.with(|control, domains| control.on_sent(sent, domains));
    }

    fn on_ack(&mut self, ack: Ack) {
        self.with(|control, domains| control.on_ack(&ack, domains));
    }

    fn on_acks_end(&mut self, end: AcksEnd) {
        self.with(|control, domains| control.on_acks_end(&end, domains));
    }

    fn on_packet_lost(&mut self, lost: Lost) {
        self.with(|control, _| control.on_lost(&lost));
    }

    fn on_congestion_event(&mut self, event: CongestionEvent) {
        self.with(|control, _| control.on_congestion_event(&event));
    }

    fn on_mtu_update(&mut self, max_datagram_size: ByteCount) {
        self.with(|control, _| control.on_mtu_update(max_datagram_size));
    }

    fn congestion_window(&self) -> ByteCount {
        self.with(|control, _| control.window())
    }

    fn initial_window(&self) -> ByteCount {
        self.with(|control, _| control.initial_window())
    }

    fn ssthresh(&self) -> Option<ByteCount> {
        self.with(|control, _| control.ssthresh())
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.with(|control, _| control.pacing_rate())
    }

    fn bandwidth_estimate(&self) -> Option<Rate> {
        self.with(|control, _| control.bandwidth())
    }
}
