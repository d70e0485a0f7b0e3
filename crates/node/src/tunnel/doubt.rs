//! A client's doubt whether a stranger's proxy relays payloads in capsules.
//!
//! RFC 9297 §3.5 gives DATAGRAM capsules the meaning of HTTP Datagrams, but some proxies drop them.
//! A flow whose payloads in capsules get no answer therefore sends a few payloads in both forms. If
//! a datagram comes back then, and nothing did before, the flow goes on with datagrams. A flow whose
//! target never answers loses nothing: its payloads continue to go in capsules.

use std::time::{Duration, Instant};

/// The time without an answer after which a flow sends a payload in both forms. It is a little less
/// than the first probe timeout of a QUIC connection (RFC 9002 §6.2.2: 999 ms), so that the first
/// packet that the connection inside repeats goes in both.
const SILENCE: Duration = Duration::from_millis(900);

/// How many payloads go in both forms. A proxy that relays both sends them to its target twice.
const COPIES: u8 = 6;

/// The doubt about one flow.
#[derive(Debug)]
pub(super) struct Doubt {
    first_sent: Option<Instant>,
    /// How many payloads went in both forms.
    copies: u8,
}

impl Doubt {
    pub(super) const fn new() -> Self {
        Self { first_sent: None, copies: 0 }
    }

    /// Notes that a payload is sent in a capsule. Returns whether it should go in a datagram too.
    pub(super) fn wants_copy(&mut self, now: Instant) -> bool {
        let first_sent = *self.first_sent.get_or_insert(now);
        let is_silent = now.saturating_duration_since(first_sent) >= SILENCE;
        let wants_copy = is_silent && self.copies < COPIES;
        self.copies += u8::from(wants_copy);
        wants_copy
    }

    /// Whether the first answer of the flow, which came in a datagram, shows that the proxy relays
    /// datagrams only.
    pub(super) const fn is_confirmed(&self) -> bool {
        self.copies > 0
    }
}
