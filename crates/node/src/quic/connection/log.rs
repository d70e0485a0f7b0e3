//! What a connection writes in its qlog. Without one nothing is done.

use std::time::Instant;

use noq_proto::{ConnectionError, PathId, congestion::Controller};
use tandem_wire::{Code, StrangerText};

use super::Connection;
use crate::quic::qlog::Metrics;

impl Connection {
    /// Sets the time of the events in the qlog, if there is one.
    pub(super) fn begin_log(&self, now: Instant) {
        if self.has_qlog {
            self.hooks.observer.log(|qlog| qlog.set_now(now));
        }
    }

    /// Writes in the qlog, if there is one, what has changed.
    pub(super) fn end_log(&self) {
        if !self.has_qlog {
            return;
        }
        let controller = self.inner.congestion_state(PathId::ZERO).map(Controller::metrics);
        let controller = controller.unwrap_or_default();
        let metrics = Metrics {
            smoothed_rtt: self.inner.rtt(PathId::ZERO).unwrap_or_default(),
            min_rtt: self.hooks.deliveries.min_rtt(),
            congestion_window: controller.congestion_window,
            bytes_in_flight: self.hooks.deliveries.in_flight(),
            pacing_rate: controller.pacing_rate.map(|rate| rate.saturating_mul(8)),
            mtu: self.inner.current_mtu(),
        };
        let remote = self.inner.network_path(PathId::ZERO).map(|path| path.remote());
        self.hooks.observer.log(|qlog| {
            if let Ok(remote) = remote {
                qlog.remote(remote);
            }
            qlog.metrics(metrics);
        });
    }

    /// Writes in the qlog, if there is one, how many datagrams a tunnel has sent again.
    pub(crate) fn log_repairs(&self, now: Instant, total: u64) {
        if self.has_qlog {
            self.begin_log(now);
            self.hooks.observer.log(|qlog| qlog.repairs(total));
        }
    }

    /// Writes in the qlog, if there is one, why the connection has ended.
    pub(in crate::quic) fn log_loss(&self, reason: &ConnectionError) {
        if self.has_qlog {
            self.hooks.observer.log(|qlog| {
                qlog.lost_connection(&StrangerText::from(reason.to_string()).to_string());
            });
        }
    }

    /// Writes in the qlog, if there is one, that this end closes the connection.
    pub(super) fn log_close(&self, now: Instant, code: Code, reason: &str) {
        if self.has_qlog && !self.inner.is_closed() {
            self.begin_log(now);
            self.hooks.observer.log(|qlog| qlog.closed(code.0, reason));
        }
    }
}
