use std::{
    mem,
    time::{Duration, Instant},
};

use tandem_netem::Packet;
use tandem_node::{Input, Output};

use super::{PepNumber, World, tcp::TcpOccurrence};
use crate::{
    HostId, PathId,
    host::Host,
    network::{Datagram, PathExit},
    trace::{PathEnd, TraceEntry},
};

/// An entry of the world's agenda.
pub(super) enum Occurrence {
    /// A node must be polled.
    Wake(HostId),
    /// A timer may have expired.
    Timer(HostId),
    /// The answer to a node's request is ready.
    Answer { host: HostId, incarnation: u64, input: Input },
    /// A path may have an event.
    Path(PathId),
    /// The process of a busy host runs.
    Turn(HostId),
    /// Something about a TCP connection.
    Tcp(TcpOccurrence),
    /// A PEP may have something to send.
    Pep(PepNumber),
}

/// The largest number of outputs of one node between two inputs.
const OUTPUTS_PER_DRAIN_MAX: u32 = 100_000;

/// The largest number of events at one instant.
const EVENTS_PER_INSTANT_MAX: u32 = 1_000_000;

/// The number of times in a row that a node may ask for a time that has passed, before the clock
/// advances by [`STALL_STEP`]. QUIC engines do so occasionally, because they handle one of several
/// expired timers per call.
pub(super) const STALLS_FREE: u32 = 8;

/// The largest number of times in a row.
const STALLS_MAX: u32 = 10_000;

/// The step by which the clock advances for a node that wants to be woken in the past.
pub(super) const STALL_STEP: Duration = Duration::from_micros(1);

/// Methods that run a world.
impl World {
    /// Runs until the condition holds, but for at most `limit`, and returns whether it holds. The
    /// condition is checked after every event.
    pub fn run_until(&mut self, limit: Duration, mut condition: impl FnMut(&Self) -> bool) -> bool {
        let deadline = self.now + limit;
        while !condition(self) {
            let Some((at, what)) = self.agenda.pop_due(deadline) else {
                self.advance_to(deadline);
                return condition(self);
            };
            self.advance_to(at);
            self.meet(what);
        }
        true
    }

    /// Runs for this duration.
    pub fn run_for(&mut self, duration: Duration) {
        self.run_until(duration, |_| false);
    }

    fn advance_to(&mut self, at: Instant) {
        if at > self.now {
            self.now = at;
            self.events_now = 0;
        }
        self.events_now += 1;
        assert!(
            self.events_now <= EVENTS_PER_INSTANT_MAX,
            "more than {EVENTS_PER_INSTANT_MAX} events {:?} after the start",
            self.elapsed(),
        );
    }

    fn meet(&mut self, what: Occurrence) {
        match what {
            Occurrence::Wake(host) => self.drain(host),
            Occurrence::Timer(host) => self.check_timer(host),
            Occurrence::Answer { host, incarnation, input } => {
                if self.host(host).incarnation == incarnation {
                    self.feed(host, input);
                }
            }
            Occurrence::Path(path) => self.check_path(path),
            Occurrence::Turn(host) => self.take_turn(host),
            Occurrence::Tcp(what) => self.meet_tcp(what),
            Occurrence::Pep(pep) => self.check_pep(pep),
        }
    }

    fn check_timer(&mut self, id: HostId) {
        let now = self.now;
        let timer = &mut self.host_mut(id).timer;
        timer.scheduled.take_if(|scheduled| *scheduled <= now);
        match timer.wanted.take_if(|wanted| *wanted <= now) {
            Some(_) => self.feed(id, Input::Timeout),
            None => self.schedule_timer(id),
        }
    }

    /// Makes sure that the agenda contains a check of a host's timer when it expires.
    fn schedule_timer(&mut self, id: HostId) {
        let timer = &mut self.host_mut(id).timer;
        let Some(wanted) = timer.wanted else { return };
        if timer.scheduled.is_none_or(|scheduled| wanted < scheduled) {
            timer.scheduled = Some(wanted);
            self.agenda.push(wanted, Occurrence::Timer(id));
        }
    }

    fn check_path(&mut self, id: PathId) {
        while let Some(exit) = self.network.pop(id, self.now) {
            match exit {
                PathExit::Arrived(packet) => {
                    self.record(PathEnd::Delivered, &packet);
                    self.deliver(packet.content);
                }
                PathExit::Onward(next, packet) => {
                    self.show_to_peps(next, &packet);
                    self.schedule_path(next);
                }
            }
        }
        self.schedule_path(id);
    }

    /// Makes sure that the agenda contains a check of a path at its next event.
    pub(super) fn schedule_path(&mut self, id: PathId) {
        if let Some(at) = self.network.schedule(id) {
            self.agenda.push(at, Occurrence::Path(id));
        }
    }

    pub(super) fn feed(&mut self, id: HostId, input: Input) {
        let now = self.now;
        let host = self.host_mut(id);
        if let Some(pause) = &mut host.pause {
            if host.waiting.is_empty() {
                let pause = pause.next();
                self.agenda.push(now + pause, Occurrence::Turn(id));
            }
            return self.host_mut(id).waiting.push(input);
        }
        if let Some(node) = &mut host.node {
            node.handle(now, input);
            self.drain(id);
        }
    }

    /// Gives a busy host's node everything that has come since its last turn.
    fn take_turn(&mut self, id: HostId) {
        let now = self.now;
        let host = self.host_mut(id);
        let waiting = mem::take(&mut host.waiting);
        if let Some(node) = &mut host.node {
            for input in waiting {
                node.handle(now, input);
            }
            self.drain(id);
        }
    }

    /// Performs the outputs of a node until it waits.
    fn drain(&mut self, id: HostId) {
        let now = self.now;
        let mut buf = mem::take(&mut self.buf);
        for _ in 0..OUTPUTS_PER_DRAIN_MAX {
            buf.clear();
            let node = self.host_mut(id).node.as_mut();
            let output = node.map_or(Output::Wait(None), |node| node.poll(now, &mut buf));
            if let Output::Wait(deadline) = output {
                self.buf = buf;
                self.set_timer(id, deadline);
                return;
            }
            self.perform(id, output, &buf);
        }
        panic!(
            "{} gave {OUTPUTS_PER_DRAIN_MAX} outputs in a row {:?} after the start",
            self.host(id).name,
            self.elapsed(),
        );
    }

    fn set_timer(&mut self, id: HostId, deadline: Option<Instant>) {
        let (now, elapsed) = (self.now, self.elapsed());
        let deadline = deadline.map(|deadline| self.round_up(deadline));
        let Host { name, timer, .. } = self.host_mut(id);
        timer.wanted = match deadline {
            Some(deadline) if deadline <= now => {
                timer.stalls += 1;
                assert!(
                    timer.stalls <= STALLS_MAX,
                    "{name} asked {STALLS_MAX} times in a row for a time that had passed, \
                     {elapsed:?} after the start",
                );
                Some(if timer.stalls > STALLS_FREE { now + STALL_STEP } else { now })
            }
            deadline => {
                timer.stalls = 0;
                deadline
            }
        };
        self.schedule_timer(id);
    }

    fn round_up(&self, deadline: Instant) -> Instant {
        let Some(granularity) = self.timer_granularity.filter(|_| deadline > self.now) else {
            return deadline;
        };
        let nanos = deadline.saturating_duration_since(self.base).as_nanos();
        let rounded = nanos.next_multiple_of(granularity.as_nanos());
        self.base + Duration::from_nanos(rounded.try_into().unwrap_or(u64::MAX))
    }

    pub(super) fn record(&mut self, end: PathEnd, packet: &Packet<Datagram>) {
        let &Packet { size, content: Datagram { from, to, .. } } = packet;
        self.trace.record(TraceEntry { at: self.elapsed(), end, from, to, size });
    }
}
