//! What a client does when a tunnel breaks: it builds it anew from the hop that failed, while the
//! connection inside, which only sees a pause and a new path, lives on.

use std::time::{Duration, Instant};

use tandem_wire::Code;

use super::{Client, Life, Work};
use crate::{
    error::ClientError,
    node::{Event, Output},
};

/// First wait before another attempt; each doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// Longest wait between attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(4);

/// How far the repair of a tunnel has come.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// The whole chain has been up: only then is it built anew.
    pub(super) was_up: bool,
    /// When it broke.
    since: Option<Instant>,
    attempts: u32,
    /// When to begin the next attempt, and from which hop.
    next: Option<(Instant, usize)>,
    /// Counts the connections that were built, so that each has its own randomness.
    generation: u64,
}

impl Recovery {
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.next.map(|(at, _)| at)
    }
}

impl Client {
    /// A hop's connection broke or could not be opened.
    pub(super) fn on_hop_failed(&mut self, now: Instant, index: usize, error: ClientError) {
        if self.life != Life::Running {
            return;
        }
        let since = *self.recovery.since.get_or_insert(now);
        // Local programs may wait for ever; a download's own connection does not.
        let is_hopeless = matches!(self.work, Work::Fetch(_))
            && now.saturating_duration_since(since) >= self.limits.reconnect;
        if !self.recovery.was_up || is_hopeless {
            return self.end(now, Err(error));
        }
        let doublings = self.recovery.attempts.min(8);
        let wait = match self.recovery.attempts {
            0 => Duration::ZERO,
            _ => (FIRST_WAIT * (1 << doublings)).min(LONGEST_WAIT),
        };
        self.outputs.push_back(Output::Event(Event::HopLost { hop: index, error }));
        self.recovery.attempts += 1;
        self.rebuild(now, index, wait);
    }

    /// Forgets the hops from this one on and begins them anew after a while.
    fn rebuild(&mut self, now: Instant, index: usize, wait: Duration) {
        // A repair that is under way from a hop further out comes first.
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

    /// Begins an attempt that is due.
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

    /// The whole chain is up.
    pub(super) fn on_chain_up(&mut self) {
        let is_rebuilt = self.recovery.was_up;
        if let Some((_, connection)) = self.chain.origin.as_mut().and_then(|origin| origin.parts())
            && is_rebuilt
        {
            // Only a packet tells the origin where the new tunnel ends, and who downloads may have
            // nothing else to send.
            connection.ping();
        }
        self.recovery.was_up = true;
        self.recovery.since = None;
        self.recovery.attempts = 0;
    }
}
