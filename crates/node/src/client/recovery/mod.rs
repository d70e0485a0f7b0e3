//! Recovery from temporary failures. The client repeats the attempt from the hop that failed. If
//! the chain was up before, the connection inside stays open, and only sees a pause and a new path.

mod retry;

use std::time::{Duration, Instant};

pub(super) use self::retry::{Backoff, Jitter};
use super::chain::Peer;
use crate::{error::ClientError, limits::Limits, quic};

/// Packets that show the origin the new path of its connection, after a tunnel was rebuilt.
///
/// The origin learns the address of the new tunnel's egress only from a packet, and a client that
/// downloads may have nothing else to send. Until the origin has validated the path, it may send
/// three times as many bytes as it has received over it (RFC 9000 §9.3.1). If its first packet is
/// lost, it waits for 400 bytes or more, and the client's packets have about 40. One alone would
/// leave both ends silent until their idle timeouts.
#[derive(Debug)]
struct Nudges {
    next: Instant,
    left: u8,
    /// How many packets of the origin had arrived when the tunnel was rebuilt.
    arrived: u64,
}

impl Nudges {
    /// With this number the origin may send at least ten packets.
    const MOST: u8 = 120;
    /// The number of packets that show that the origin may send again.
    const ENOUGH: u64 = 10;
    /// The interval is a quarter of the RTT to the origin, within these bounds.
    const INTERVAL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
}

/// The state of the recovery of a tunnel.
pub(super) struct Recovery {
    /// Whether the whole chain has been up before.
    pub(super) was_up: bool,
    /// When the tunnel failed, or when the client started.
    since: Option<Instant>,
    backoff: Backoff,
    pub(super) jitter: Jitter,
    /// When the next attempt starts, and from which hop.
    next: Option<(Instant, usize)>,
    nudges: Option<Nudges>,
    /// The number of rebuilds, so that each new connection makes its own random choices.
    generation: u64,
}

impl Recovery {
    pub(super) fn new(seed: Option<u64>) -> Self {
        Self {
            was_up: false,
            since: None,
            backoff: Backoff::default(),
            jitter: Jitter::new(seed),
            next: None,
            nudges: None,
            generation: 0,
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let nudge = self.nudges.as_ref().map(|nudges| nudges.next);
        quic::earliest(self.next.map(|(at, _)| at), nudge)
    }
}

impl Recovery {
    /// How long to wait before the attempt after this failure. `None`: attempts have been repeated for longer than
    /// `patience`. `begin`: when the first attempt of a client began whose chain has never been up.
    pub(super) fn wait_after(
        &mut self,
        now: Instant,
        error: &ClientError,
        begin: Option<Instant>,
        patience: Duration,
        limits: &Limits,
    ) -> Option<Duration> {
        let is_first = self.since.is_none();
        let since = *self.since.get_or_insert(begin.unwrap_or(now));
        let elapsed = now.saturating_duration_since(since);
        let has_worked = begin.is_none();
        if !error.may_pass(has_worked || limits.retry_mistakes) || elapsed >= patience {
            return None;
        }
        if has_worked && is_first {
            return Some(Duration::ZERO);
        }
        let wait = self.backoff.after_failure(limits, &mut self.jitter, error.retry_after());
        Some(wait.min(patience.saturating_sub(elapsed)))
    }

    /// Begins a rebuild from this hop on, or from one further out, which takes precedence. Its connections are opened
    /// after a while. `None`: the connection to the first proxy is open already. Returns the hop, and the number of
    /// the rebuild.
    pub(super) fn rebuild(
        &mut self,
        now: Instant,
        index: usize,
        wait: Option<Duration>,
    ) -> (usize, u64) {
        let index = self.next.map_or(index, |(_, earlier)| earlier.min(index));
        self.next = wait.map(|wait| (now + wait, index));
        (index, self.next_generation())
    }

    /// The number of the next connection's choices.
    pub(super) const fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// The hop from which an attempt starts that is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<usize> {
        let (_, index) = self.next.take_if(|(at, _)| *at <= now)?;
        self.nudges = None;
        Some(index)
    }

    /// Notes that an attempt was successful.
    pub(super) fn on_success(&mut self) {
        self.since = None;
        self.backoff = Backoff::default();
    }

    /// Begins to show the origin the new path, after a tunnel was rebuilt.
    pub(super) const fn begin_nudges(&mut self, now: Instant, arrived: u64) {
        self.nudges = Some(Nudges { next: now, left: Nudges::MOST, arrived });
    }

    /// Sends the origin a packet over its new path, if one is due. Returns whether the origin has not answered, so that
    /// it needs another path.
    pub(super) fn nudge(&mut self, now: Instant, origin: &mut Peer) -> bool {
        let Some(nudges) = self.nudges.as_mut().filter(|nudges| nudges.next <= now) else {
            return false; // none is due
        };
        let stats = origin.stats();
        let is_over = stats.received_datagrams >= nudges.arrived + Nudges::ENOUGH;
        if let (false, Some(left), Some(mut carrier)) =
            (is_over, nudges.left.checked_sub(1), origin.carrier())
        {
            carrier.quic().ping();
            nudges.left = left;
            let (least, most) = Nudges::INTERVAL;
            nudges.next = now + (stats.smoothed_rtt / 4).clamp(least, most);
            return false;
        }
        self.nudges = None;
        // The packets in which the origin asks whether its new path works were lost. It asks again over another
        // one, which begins at another port of the proxy. The origin's idle timeout bounds how often.
        !is_over && origin.has_connection()
    }
}
