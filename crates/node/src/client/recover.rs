//! Recovery from a tunnel that fails. The client rebuilds it from the hop that failed. The
//! connection inside stays open, and only sees a pause and a new path.

use std::time::{Duration, Instant};

use tandem_wire::Code;

use super::{Client, Life, Work};
use crate::{
    error::ClientError,
    node::{Event, Output},
};

/// The base of the wait between attempts, which doubles with each attempt.
const WAIT_BASE: Duration = Duration::from_millis(250);
/// The longest wait between attempts.
const WAIT_MAX: Duration = Duration::from_secs(4);

/// The state of the recovery of a tunnel.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Whether the whole chain has been up before. Only then is it rebuilt.
    pub(super) was_up: bool,
    /// When the tunnel failed.
    since: Option<Instant>,
    attempts: u32,
    /// When the next attempt starts, and from which hop.
    next: Option<(Instant, usize)>,
    /// The number of rebuilds, so that each new connection makes its own random choices.
    generation: u64,
}

impl Recovery {
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.next.map(|(at, _)| at)
    }
}

impl Client {
    /// Handles a hop whose connection failed or could not be opened.
    pub(super) fn on_hop_failed(&mut self, now: Instant, index: usize, error: ClientError) {
        if self.life != Life::Running {
            return;
        }
        let since = *self.recovery.since.get_or_insert(now);
        // Local programs may wait without limit, but the connection of a transfer does not.
        let has_timed_out = matches!(self.work, Work::Fetch(_))
            && now.saturating_duration_since(since) >= self.limits.reconnect;
        if !self.recovery.was_up || has_timed_out {
            return self.end(now, Err(error));
        }
        let doublings = self.recovery.attempts.min(8);
        let wait = match self.recovery.attempts {
            0 => Duration::ZERO,
            _ => (WAIT_BASE * (1 << doublings)).min(WAIT_MAX),
        };
        self.outputs.push_back(Output::Event(Event::HopLost { hop: index, error }));
        self.recovery.attempts += 1;
        self.rebuild(now, index, wait);
    }

    /// Resets the hops from this one on, and starts them again after a while.
    fn rebuild(&mut self, now: Instant, index: usize, wait: Duration) {
        // A recovery that starts at a hop further out takes precedence.
        let index = self.recovery.next.map_or(index, |(_, earlier)| earlier.min(index));
        self.recovery.next = Some((now + wait, index));
        self.recovery.generation += 1;
        let generation = self.recovery.generation;
        for hop in self.chain.hops.iter_mut().skip(index) {
            hop.renew(generation, &self.limits);
        }
        if index == 0 {
            self.is_resolving = false;
            if self.chain.outer.take().is_some() {
                self.outputs.push_back(Output::CloseSocket(self.chain.outer_socket));
            }
        } else if let Some(hop) = self.chain.hops.get_mut(index - 1)
            && let Some(stream) = hop.next.take()
        {
            hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
        }
        if let Work::Forward(forward) = &mut self.work {
            forward.forget_streams();
        }
    }

    /// Starts an attempt that is due.
    pub(super) fn recover(&mut self, now: Instant) {
        if let Some((at, index)) = self.recovery.next
            && at <= now
        {
            self.recovery.next = None;
            match index.checked_sub(1) {
                None => self.begin(now),
                Some(outer) => self.on_hop_settings(now, outer),
            }
        }
    }

    /// Notes that the whole chain is up.
    pub(super) fn on_chain_up(&mut self) {
        let is_rebuilt = self.recovery.was_up;
        if let Some((_, connection)) = self.chain.origin.as_mut().and_then(|origin| origin.parts())
            && is_rebuilt
        {
            // The origin learns the address of the new tunnel's egress only from a packet, and a
            // client that downloads may have nothing else to send.
            connection.ping();
        }
        self.recovery.was_up = true;
        self.recovery.since = None;
        self.recovery.attempts = 0;
    }
}
