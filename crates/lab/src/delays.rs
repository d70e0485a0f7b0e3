//! One-way delays of UDP payloads from one host to another, also through tunnels.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::HostId;

/// The largest number of payloads on their way. The oldest are forgotten first.
const ON_THE_WAY_MAX: usize = 100_000;

/// The largest number of delays that are kept.
const DELAYS_MAX: usize = 10_000_000;

/// Number of bytes at the end of a payload that identify it. QUIC packets end with the 16 bytes of
/// an AEAD tag, which look random.
const MARK: usize = 16;

/// Measures one-way delays from one host to others.
#[derive(Debug, Default)]
pub(crate) struct Delays {
    /// The sending host. With `None` nothing is measured.
    from: Option<HostId>,
    /// The receiving hosts.
    to: Vec<HostId>,
    on_the_way: BTreeMap<Vec<u8>, Instant>,
    measured: Vec<Duration>,
}

impl Delays {
    pub(crate) fn measure(&mut self, from: HostId, to: HostId) {
        self.from = Some(from);
        self.to.push(to);
    }

    /// The delays in the order of arrival. Copies of one payload count once.
    pub(crate) fn measured(&self) -> &[Duration] {
        &self.measured
    }

    pub(crate) fn on_sent(&mut self, now: Instant, from: HostId, payload: &[u8]) {
        if self.from == Some(from)
            && let Some(mark) = mark(payload)
        {
            if self.on_the_way.len() >= ON_THE_WAY_MAX {
                self.forget_oldest();
            }
            self.on_the_way.insert(mark.to_vec(), now);
        }
    }

    pub(crate) fn on_delivered(&mut self, now: Instant, to: HostId, payload: &[u8]) {
        if self.to.contains(&to)
            && let Some(mark) = mark(payload)
            && let Some(sent) = self.on_the_way.remove(mark)
            && self.measured.len() < DELAYS_MAX
        {
            self.measured.push(now - sent);
        }
    }

    /// Forgets the older half of the payloads, which are presumably lost.
    fn forget_oldest(&mut self) {
        let mut times: Vec<_> = self.on_the_way.values().copied().collect();
        times.sort_unstable();
        if let Some(middle) = times.get(times.len() / 2).copied() {
            self.on_the_way.retain(|_, sent| *sent > middle);
        }
    }
}

fn mark(payload: &[u8]) -> Option<&[u8]> {
    payload.last_chunk::<MARK>().map(<[u8; MARK]>::as_slice)
}
