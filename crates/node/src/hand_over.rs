//! When a process ends after another one at its address has taken over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use crate::{limits::Limits, quic};

/// How many nodes of a process that another one has taken over from are still busy.
///
/// No node ends alone: the other process could die, and then this one gets new connections for all of its nodes again.
#[derive(Clone, Debug)]
pub struct BusyNodes(Arc<AtomicUsize>);

impl BusyNodes {
    /// All nodes are busy at first.
    pub fn all(nodes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(nodes)))
    }

    /// Whether no node is busy, so that all may end.
    pub fn is_none(&self) -> bool {
        self.0.load(Relaxed) == 0
    }
}

/// What a node knows after another process has taken over.
#[derive(Debug)]
pub(crate) struct HandOver {
    /// When the node counts as quiet, whatever it does.
    until: Instant,
    idle_since: Option<Instant>,
    is_busy: bool,
    busy_nodes: BusyNodes,
}

impl HandOver {
    pub(crate) const fn new(until: Instant, busy_nodes: BusyNodes) -> Self {
        Self { until, idle_since: None, is_busy: true, busy_nodes }
    }

    /// Notes whether the node is idle. It is no longer busy when it has been so for [`Limits::QUIET`], or has no
    /// connection.
    pub(crate) fn note(&mut self, now: Instant, is_idle: bool, has_connections: bool) {
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or(now));
        let is_quiet = self.idle_since.is_some_and(|since| since + Limits::QUIET <= now);
        let is_busy = has_connections && !is_quiet && now < self.until;
        match (self.is_busy, is_busy) {
            (true, false) => drop(self.busy_nodes.0.fetch_sub(1, Relaxed)),
            (false, true) => drop(self.busy_nodes.0.fetch_add(1, Relaxed)),
            _ => {}
        }
        self.is_busy = is_busy;
    }

    /// When to call [`Self::note`] at the latest.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let quiet = self.idle_since.map(|since| since + Limits::QUIET);
        self.is_busy.then(|| quic::earliest(Some(self.until), quiet)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "only differences to it matter")]
    fn a_node_is_busy_until_it_was_idle_for_long_or_has_no_connection_or_its_time_is_over() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let nodes = BusyNodes::all(2);
        let [mut one, mut other] = [(); 2].map(|()| HandOver::new(at(100), nodes.clone()));
        one.note(at(0), false, false);
        other.note(at(0), true, true);
        assert_eq!((nodes.is_none(), other.next_timeout()), (false, Some(at(10))));
        other.note(at(9), false, true);
        other.note(at(10), true, true);
        other.note(at(19), true, true);
        assert_eq!((nodes.is_none(), other.next_timeout()), (false, Some(at(20))));
        other.note(at(20), true, true);
        assert_eq!((nodes.is_none(), other.next_timeout()), (true, None));
        other.note(at(21), false, true);
        assert_eq!((nodes.is_none(), other.next_timeout()), (false, Some(at(100))));
        other.note(at(100), false, true);
        assert_eq!((nodes.is_none(), other.next_timeout()), (true, None));
    }
}
