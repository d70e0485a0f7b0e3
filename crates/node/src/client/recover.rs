//! Recovery from temporary failures. The client repeats the attempt from the hop that failed. If
//! the chain was up before, the connection inside stays open, and only sees a pause and a new path.

use std::time::{Duration, Instant};

use tandem_wire::Code;

use super::{
    Client, Life, Work,
    race::Watch,
    retry::{Backoff, Jitter},
};
use crate::{
    error::ClientError,
    node::{Event, Output},
    quic,
};

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

impl Client {
    /// Handles a connection that failed or could not be opened: that of a hop, or that to the origin
    /// before it was established.
    pub(super) fn on_hop_failed(&mut self, now: Instant, index: usize, error: ClientError) {
        if self.life != Life::Running {
            return;
        }
        if self.moves_on(now, index, &error) {
            return;
        }
        let is_waiting_for_origin = self.chain.is_origin(index) && !self.is_origin_connected();
        let has_worked = self.recovery.was_up && !is_waiting_for_origin;
        let patience = self.patience(has_worked);
        let begin = if has_worked { now } else { self.began.unwrap_or(now) };
        let is_first = self.recovery.since.is_none();
        let elapsed = now.saturating_duration_since(*self.recovery.since.get_or_insert(begin));
        if !error.may_pass(has_worked) || elapsed >= patience {
            return self.end(now, Err(error));
        }
        let retry_in = if has_worked && is_first {
            Duration::ZERO
        } else {
            let Recovery { backoff, jitter, .. } = &mut self.recovery;
            let wait = backoff.after_failure(&self.limits, jitter, error.retry_after());
            wait.min(patience.saturating_sub(elapsed))
        };
        self.outputs.push_back(Output::Event(Event::HopLost { hop: index, error, retry_in }));
        self.rebuild(now, index, Some(retry_in));
    }

    /// Tries another proxy at once instead of one that has failed, if the hop has one that has not failed
    /// since the tunnel was last up.
    fn moves_on(&mut self, now: Instant, index: usize, error: &ClientError) -> bool {
        let has_other = match (index, self.chain.hops.get_mut(index)) {
            (_, None) => false,
            // Without an address, all candidates have failed.
            (0, Some(_)) => self.chain.outer.is_some_and(|address| {
                self.memory.on_failed(address);
                self.memory.has_untried()
            }),
            (_, Some(hop)) => hop.choose_next(),
        };
        if index == 0 && !has_other {
            self.memory.forgive();
        }
        if has_other {
            if index == 0 {
                self.chain.leave_first(now, &self.limits); // it may only have refused
            }
            let (error, retry_in) = (error.clone(), Duration::ZERO);
            self.outputs.push_back(Output::Event(Event::HopLost { hop: index, error, retry_in }));
            self.rebuild(now, index, Some(retry_in));
        }
        has_other
    }

    /// Handles the refusal of a proxy to open a tunnel to the next peer. If it is the fault of the first
    /// proxy, another one is tried.
    pub(super) fn on_refused(&mut self, now: Instant, index: usize, error: ClientError) {
        let is_busy = index == 0 && matches!(error, ClientError::Refused { status: 503, .. });
        let has_other = self.chain.outer.is_some_and(|address| self.memory.has_other(address));
        let failed = if is_busy && has_other { index } else { index + 1 };
        self.on_hop_failed(now, failed, error);
    }

    /// The longest time for which attempts are repeated.
    fn patience(&self, has_worked: bool) -> Duration {
        match (self.limits.retry, &self.work) {
            (Some(patience), _) => patience,
            (None, _) if !has_worked => Duration::ZERO,
            (None, Work::Fetch(_)) => self.limits.reconnect,
            // Local programs may wait without limit, but the connection of a transfer does not.
            (None, Work::Forward(_)) => Duration::MAX,
        }
    }

    /// Whether the handshake with the origin is complete.
    pub(super) fn is_origin_connected(&self) -> bool {
        self.chain.origin.as_ref().is_some_and(|origin| origin.is_connected())
    }

    /// Resets the connections from this one on that have to be opened again, and starts them again
    /// after a while. `None`: the connection to the first proxy is open already.
    pub(super) fn rebuild(&mut self, now: Instant, index: usize, wait: Option<Duration>) {
        // A recovery that starts at a hop further out takes precedence.
        let index = self.recovery.next.map_or(index, |(_, earlier)| earlier.min(index));
        self.recovery.next = wait.map(|wait| (now + wait, index));
        self.recovery.generation += 1;
        let generation = self.recovery.generation;
        self.lost.retain(|(lost, _)| *lost < index); // these are opened again
        let is_origin = self.chain.is_origin(index);
        // It may have begun together with the request for the last tunnel.
        let is_waiting = !self.is_origin_connected();
        for hop in self.chain.hops.iter_mut().skip(index) {
            hop.renew(generation, &self.limits);
        }
        if let Some(origin) = self.chain.origin.as_mut().filter(|_| is_waiting) {
            **origin = origin.renewed(generation, &self.limits);
        }
        if index == 0 {
            self.end_race(now);
            self.watch = Watch::default();
            if self.chain.outer.take().is_some() {
                self.outputs.push_back(Output::CloseSocket(self.chain.outer_socket));
            }
        } else if let Some(hop) = self.chain.hops.get_mut(index - 1)
            && let Some(stream) = hop.next.take()
        {
            hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
        }
        if let Work::Forward(forward) = &mut self.work
            && !is_origin
        {
            forward.forget_streams();
            self.end_tcp_streams(now);
        }
    }

    /// Resets a connection that is not established, so that it can be opened again.
    pub(super) fn begin_again(&mut self, index: usize) {
        self.recovery.generation += 1;
        let generation = self.recovery.generation;
        if let Some(peer) = self.chain.peer(index) {
            *peer = peer.renewed(generation, &self.limits);
        }
    }

    /// Starts an attempt that is due.
    pub(super) fn recover(&mut self, now: Instant) {
        if let Some((at, index)) = self.recovery.next
            && at <= now
        {
            self.recovery.next = None;
            self.recovery.nudges = None;
            match index.checked_sub(1) {
                None => self.begin(now),
                Some(outer) => self.on_hop_settings(now, outer),
            }
        }
        self.nudge(now);
    }

    /// Sends the origin a packet over its new path, if one is due.
    fn nudge(&mut self, now: Instant) {
        let (Some(nudges), Some(origin)) = (&mut self.recovery.nudges, &mut self.chain.origin)
        else {
            return;
        };
        if nudges.next > now {
            return;
        }
        let stats = origin.stats();
        let is_over = stats.received_datagrams >= nudges.arrived + Nudges::ENOUGH;
        if let (false, Some(left), Some(mut carrier)) =
            (is_over, nudges.left.checked_sub(1), origin.carrier())
        {
            carrier.quic().ping();
            nudges.left = left;
            let (least, most) = Nudges::INTERVAL;
            nudges.next = now + (stats.smoothed_rtt / 4).clamp(least, most);
        } else {
            self.recovery.nudges = None;
            // The packets in which the origin asks whether its new path works were lost. It asks again over another
            // one, which begins at another port of the proxy. The origin's idle timeout bounds how often.
            let is_open = origin.has_connection();
            if !is_over && is_open && !self.chain.hops.is_empty() {
                self.rebuild(now, self.chain.hops.len(), Some(Duration::ZERO));
            }
        }
    }

    /// Notes that an attempt was successful.
    pub(super) fn on_success(&mut self) {
        self.recovery.since = None;
        self.recovery.backoff = Backoff::default();
        self.memory.forgive();
    }

    /// Notes that the whole chain is up.
    pub(super) fn on_chain_up(&mut self, now: Instant) {
        let is_rebuilt = self.recovery.was_up;
        self.recovery.was_up = true;
        let Some(origin) = &mut self.chain.origin else { return self.on_success() };
        if !origin.is_connected() {
            return;
        }
        let arrived = origin.stats().received_datagrams;
        self.on_success();
        if is_rebuilt {
            self.recovery.nudges = Some(Nudges { next: now, left: Nudges::MOST, arrived });
            self.nudge(now);
        }
    }
}
