//! The state of the hosts while a journey runs.
//!
//! Each host writes here from its own thread, between packets. The sampler reads from another thread,
//! so that it does not delay packets.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tandem_node::{ConnectionStats, Origin, Proxy};
use tandem_units::ByteCount;

use crate::progress::{Bar, Progress};

/// Interval at which a host writes.
pub(super) const PERIOD: Duration = Duration::from_millis(50);

/// The latest readings.
#[derive(Debug, Default)]
pub(super) struct Gauges(Mutex<Readings>);

/// The readings of the gauges at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Readings {
    /// The origin's connection to the client.
    pub(super) e2e: Option<ConnectionStats>,
    /// The proxy's connection to the client.
    pub(super) tunnel: Option<ConnectionStats>,
    /// Length of the proxy's tunnel queue; `None` without a proxy.
    pub(super) tunnel_queue: Option<ByteCount>,
    /// Bytes of body that have arrived.
    pub(super) body: u64,
    /// Its length, once it is known.
    pub(super) body_len: Option<u64>,
    /// The event for which the download waits.
    pub(super) awaited: String,
}

impl Readings {
    /// Whether a part of the body has arrived and a part is missing, and every layer has readings.
    /// Before that an RTT may not have been measured yet, and afterwards connections end.
    pub(super) fn is_under_way(&self) -> bool {
        let has_layers = self.e2e.is_some() && self.tunnel.is_some() == self.tunnel_queue.is_some();
        has_layers && self.body > 0 && self.body_len.is_none_or(|len| self.body < len)
    }
}

impl Gauges {
    /// The current readings.
    pub(super) fn read(&self) -> Readings {
        self.lock().clone()
    }

    /// Takes the origin's readings.
    pub(super) fn of_origin(&self, origin: &mut Origin) {
        self.lock().e2e = origin.connections().next();
    }

    /// Takes the proxy's readings.
    pub(super) fn of_proxy(&self, proxy: &mut Proxy) {
        let mut readings = self.lock();
        readings.tunnel = proxy.connections().next();
        readings.tunnel_queue = Some(proxy.tunnel_queue());
    }

    /// Locks the readings. They are consistent after every write, even if the writer panicked.
    fn lock(&self) -> MutexGuard<'_, Readings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes the progress of the download to a bar and to the gauges.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgressSink<'a> {
    pub(super) bar: &'a Bar,
    pub(super) gauges: &'a Gauges,
}

impl Progress for ProgressSink<'_> {
    fn say(&self, message: String) {
        self.gauges.lock().awaited.clone_from(&message);
        self.bar.say(message);
    }

    fn start(&self, len: Option<u64>) {
        self.gauges.lock().body_len = len;
        self.bar.start(len);
    }

    fn advance(&self, bytes: u64) {
        self.gauges.lock().body += bytes;
        self.bar.advance(bytes);
    }
}
