//! The resequencer at a tunnel's exit: payloads of one flow and direction come as the tunnel
//! delivers them, repaired ones late, and go in an order that those for whom they are can use.
//!
//! # Why
//!
//! A tunnel that repairs what it loses delivers the repaired packet a round trip late. Two habits
//! of the QUIC inside make that worth little:
//!
//! - Receivers of quinn, noq, quiche and s2n-quic tell duplicates apart with a filter of 129 packets
//!   and discard what is more than 128 behind the newest. At a tunnel RTT of 40 ms that is every
//!   repair above about 25 Mbit/s.
//! - Stock senders take a packet for lost that three others overtook (`kPacketThreshold`,
//!   RFC 9002 §6.1.1), send it again and slow down.
//!
//! [`Resequence::Window`] cures the first, [`Resequence::Ordered`] both. `docs/adr/0017` has the numbers.
//!
//! # Rules
//!
//! The sender numbers a flow's payloads from any number on, a repair keeps its number, and each
//! carries the *repair floor*: the lowest number that the sender still repairs.
//!
//! - A payload waits while the lowest number that is missing, and may still come, is too far behind.
//! - What the sender gave up, by its floor, is not waited for.
//! - Other gaps are waited for patiently: a repair may be lost again and then waits for the tunnel's
//!   own loss detection. Whatever comes after its gap was given up was waited for in vain, and is by
//!   then too late for the filter above. The time that counts (12 tunnel RTTs and 50 ms) is that
//!   between arrivals which overtake the gap. Silence hardly counts, so that an outage does not use
//!   it up, and neither does time in which repairs fill the oldest gap one after the other.
//! - What comes after it was given up is released at once; the receiver may want it all the same.
//! - Bytes, packets and time have bounds. When there is no more room, the oldest gap is given up.
//!
//! # Use
//!
//! After each [`Resequencer::push`] call [`Resequencer::poll_release`] until it returns `None`, and
//! let the connection inside read after every payload: engines bound how many pieces of a stream may
//! wait unread (noq: 1024) and close a connection over a burst of some thousand. Then wait for
//! [`Resequencer::next_timeout`] and poll again.

mod arrived;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
pub use tandem_wire::Sequenced;

use arrived::{Arrived, ring_index};

/// In which order payloads are released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resequence {
    /// As they come; only duplicates are dropped.
    Off,
    /// None is released that is more than so many packets ahead of a missing one that may still
    /// come. For senders that do not take overtaking for loss.
    Window(u32),
    /// As they were sent. For every sender.
    Ordered,
}

impl Resequence {
    /// The window unless another is asked for: 64 to 120 packets differ little, and 100 leaves 28 of
    /// the 128 for packet numbers that were skipped or not sent through the tunnel.
    pub const WINDOW: Self = Self::Window(100);

    /// How far a payload may be ahead of a missing one.
    fn ahead_max(self) -> u64 {
        match self {
            Self::Off => u64::MAX,
            Self::Window(packets) => u64::from(packets),
            Self::Ordered => 0,
        }
    }
}

/// What a flow may hold, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of UDP payload that wait. Up to 3 MB were needed at 100 Mbit/s: the rate times the time
    /// that a repair takes.
    pub bytes: usize,
    /// Numbers from the lowest missing one to the highest that waits: 8 MB in packets of 1200 bytes
    /// have 6667. At least 1, at most 2^20.
    pub packets: u32,
    /// A gap is given up after this many smoothed RTTs of the tunnel. With 1.5 downloads at
    /// 50 Mbit/s and 5 % loss take a quarter longer than with 6; with 12 nothing was given up on
    /// links without outages.
    pub gap_rtts: u32,
    /// The same, in addition: for delayed acknowledgements and timers, which RTTs do not know.
    pub gap_extra: Duration,
    /// A gap is given up after this much time of any kind, silence too: then the tunnel itself is
    /// taken for dead.
    pub gap_max: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            bytes: 8_000_000,
            packets: 7168,
            gap_rtts: 12,
            gap_extra: Duration::from_millis(50),
            gap_max: Duration::from_secs(10),
        }
    }
}

/// One silence counts for no more than this part, a tenth, of what a gap is given.
const SILENCE_SHARE: u32 = 10;

/// Numbers behind the lowest missing one of which it is known whether they came.
const HISTORY: u64 = 1024;

/// Numbers have 62 bits, as QUIC's variable-length integers have.
const NUMBER_MAX: u64 = (1 << 62) - 1;

/// No sender loses so many packets in a row: at 10 Gbit/s it would take more than an hour.
const JUMP_MAX: u64 = 1 << 32;

/// The tunnel's RTT until it is told (`kInitialRtt`, RFC 9002 §6.2.2).
const INITIAL_RTT: Duration = Duration::from_millis(333);

/// What a resequencer counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResequencerStats {
    /// Payloads released.
    pub released: u64,
    /// Those of them that had to wait.
    pub waited: u64,
    /// For how long, all together.
    pub waited_time: Duration,
    /// The most bytes of payload that waited at once.
    pub held_bytes_max: usize,
    /// The most payloads that waited at once.
    pub held_packets_max: usize,
    /// Missing numbers that were waited for no longer, by cause.
    pub given_up: GivenUpGaps,
    /// Payloads that came after they were given up, and were released.
    pub late: u64,
    /// Payloads dropped because their number had come before: spurious repairs.
    pub duplicates: u64,
    /// Payloads dropped because they came so late that it is not known whether they had come before.
    pub stale: u64,
    /// Payloads dropped because no sane sender is at that number.
    pub out_of_range: u64,
    /// Floors ignored because they were above what was sent.
    pub floors_out_of_range: u64,
    /// Payloads dropped because those released before were not taken.
    pub overrun: u64,
}

/// Missing numbers that were waited for no longer, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenUpGaps {
    /// The sender repairs them no more.
    pub floor: u64,
    /// [`Bounds::gap_rtts`] and [`Bounds::gap_extra`].
    pub time: u64,
    /// [`Bounds::gap_max`].
    pub silence: u64,
    /// [`Bounds::bytes`].
    pub bytes: u64,
    /// [`Bounds::packets`].
    pub packets: u64,
    /// [`Resequencer::flush`].
    pub flush: u64,
}

#[derive(Clone, Copy)]
enum Cause {
    Floor,
    Time,
    Silence,
    Bytes,
    Packets,
    Flush,
}

impl GivenUpGaps {
    fn count(&mut self, cause: Cause, numbers: u64) {
        let counter = match cause {
            Cause::Floor => &mut self.floor,
            Cause::Time => &mut self.time,
            Cause::Silence => &mut self.silence,
            Cause::Bytes => &mut self.bytes,
            Cause::Packets => &mut self.packets,
            Cause::Flush => &mut self.flush,
        };
        *counter += numbers;
    }
}

/// Numbers found missing at once.
#[derive(Debug)]
struct Gap {
    /// The number whose arrival showed it: what is missing below, and above the gap before.
    below: u64,
    found: Instant,
    /// What the resequencer's `overtaken` was.
    overtaken: Duration,
}

/// Brings the payloads of one flow and direction into order; see the [module](self).
#[derive(Debug)]
pub struct Resequencer {
    ahead_max: u64,
    bounds: Bounds,
    smoothed_rtt: Duration,
    is_started: bool,
    /// The lowest number that is missing and waited for.
    next: u64,
    /// One above the highest number that came or was given up; never below `next`.
    end: u64,
    /// What came below this has been released; always above `next`.
    released_below: u64,
    /// From `next - HISTORY` to `end`.
    arrived: Arrived,
    /// What waits, by number: a ring of a power of two of places that grows when it has to.
    slots: Vec<Option<Bytes>>,
    held_packets: usize,
    held_bytes: usize,
    /// In the order in which they were found, which is that of their numbers. Those that have been
    /// filled remain until `next` has passed.
    gaps: VecDeque<Gap>,
    /// Released, and not yet taken.
    ready: VecDeque<Bytes>,
    ready_bytes: usize,
    /// Time that counts against gaps: between arrivals that overtook the oldest.
    overtaken: Duration,
    last_arrival: Option<Instant>,
    /// Until when `waited_time` has been added up.
    added_up: Option<Instant>,
    stats: ResequencerStats,
}

impl Resequencer {
    /// For a flow whose first payload has not come.
    pub fn new(mode: Resequence, mut bounds: Bounds) -> Self {
        bounds.packets = bounds.packets.clamp(1, 1 << 20);
        Self {
            ahead_max: mode.ahead_max(),
            bounds,
            smoothed_rtt: INITIAL_RTT,
            is_started: false,
            next: 0,
            end: 0,
            released_below: 0,
            arrived: Arrived::new(HISTORY + u64::from(bounds.packets)),
            slots: Vec::new(),
            held_packets: 0,
            held_bytes: 0,
            gaps: VecDeque::new(),
            ready: VecDeque::new(),
            ready_bytes: 0,
            overtaken: Duration::ZERO,
            last_arrival: None,
            added_up: None,
            stats: ResequencerStats::default(),
        }
    }

    /// Tells the smoothed RTT of the tunnel.
    pub fn set_smoothed_rtt(&mut self, smoothed_rtt: Duration) {
        self.smoothed_rtt = smoothed_rtt;
    }

    /// Takes a payload. At most as many steps as payloads become free, and one per 64 numbers of
    /// [`Bounds::packets`].
    pub fn push(&mut self, now: Instant, datagram: Sequenced) {
        let Sequenced { sequence, floor, payload } = datagram;
        let (number, repair_floor) = (sequence.get(), floor.get());
        self.add_up(now);
        if !self.is_plausible(number) {
            self.stats.out_of_range += 1;
            return;
        }
        if self.is_overrun(payload.len()) {
            self.stats.overrun += 1;
            return;
        }
        self.move_floor(number, repair_floor);
        let is_known = self.next.saturating_sub(number) <= HISTORY;
        if !is_known {
            self.stats.stale += 1;
        } else if number < self.end && self.arrived.contains(number) {
            self.stats.duplicates += 1;
        } else if number < self.next {
            self.stats.late += 1;
            self.arrived.insert(number);
            self.release(payload);
        } else {
            self.count_time(now, number);
            self.insert(now, number, payload);
            self.expire(now);
        }
    }

    /// Hears of a repair floor without a payload, for senders that say so when nothing else goes.
    pub fn raise_floor(&mut self, now: Instant, repair_floor: u64) {
        self.add_up(now);
        if self.is_started && self.is_plausible(repair_floor) {
            self.give_up_below(repair_floor, Cause::Floor);
        } else {
            self.stats.floors_out_of_range += 1;
        }
    }

    /// Waits for nothing any more of what is missing now: the flow or its tunnel ends, or others
    /// need the memory.
    pub fn flush(&mut self, now: Instant) {
        self.add_up(now);
        self.give_up_below(self.end, Cause::Flush);
    }

    /// The next payload that may go, if there is one.
    pub fn poll_release(&mut self, now: Instant) -> Option<Bytes> {
        if self.ready.is_empty() {
            self.add_up(now);
            self.expire(now);
        }
        let payload = self.ready.pop_front()?;
        self.ready_bytes -= payload.len();
        self.stats.released += 1;
        Some(payload)
    }

    /// When to poll again although nothing came.
    pub fn next_timeout(&self) -> Option<Instant> {
        let gap = self.gaps.front().filter(|_| self.held_packets > 0)?;
        gap.found.checked_add(self.bounds.gap_max)
    }

    /// Bytes of payload that it holds, those included that may go and have not been taken.
    pub const fn held_bytes(&self) -> usize {
        self.held_bytes + self.ready_bytes
    }

    /// What it counted.
    pub const fn stats(&self) -> &ResequencerStats {
        &self.stats
    }

    fn packets_max(&self) -> u64 {
        u64::from(self.bounds.packets)
    }

    fn is_plausible(&self, number: u64) -> bool {
        let jump_max = if self.is_started { self.end + JUMP_MAX } else { NUMBER_MAX };
        number <= NUMBER_MAX.min(jump_max)
    }

    /// Whether the caller left so much that its next payload would break the bounds.
    fn is_overrun(&self, len: usize) -> bool {
        let bytes = self.held_bytes() + len;
        let packets = (self.held_packets + self.ready.len()) as u64;
        !self.ready.is_empty() && (bytes > self.bounds.bytes || packets >= self.packets_max())
    }

    fn move_floor(&mut self, number: u64, repair_floor: u64) {
        let is_sane = repair_floor <= number + 1;
        if !is_sane {
            self.stats.floors_out_of_range += 1;
        }
        if !self.is_started {
            // What the sender says is missing below the first to arrive is waited for too.
            let lowest = (number + 1).saturating_sub(self.packets_max());
            let floor = if is_sane { repair_floor.min(number) } else { number };
            self.is_started = true;
            self.next = floor.max(lowest);
            self.end = self.next;
            self.released_below = self.next.saturating_add(self.ahead_max).saturating_add(1);
        } else if is_sane {
            self.give_up_below(repair_floor.min(number), Cause::Floor);
        }
    }

    /// Time counts against gaps when something overtakes the oldest.
    fn count_time(&mut self, now: Instant, number: u64) {
        let last = self.last_arrival.replace(now).unwrap_or(now);
        if number > self.next {
            let silence = now.saturating_duration_since(last);
            let counted = silence.min(self.gap_time() / SILENCE_SHARE);
            self.overtaken = self.overtaken.saturating_add(counted);
        }
    }

    /// What a gap is given.
    fn gap_time(&self) -> Duration {
        let rtts = self.smoothed_rtt.saturating_mul(self.bounds.gap_rtts);
        rtts.saturating_add(self.bounds.gap_extra).min(self.bounds.gap_max)
    }

    /// Takes a number that has not come before and has not been given up.
    fn insert(&mut self, now: Instant, number: u64, payload: Bytes) {
        self.give_up_below((number + 1).saturating_sub(self.packets_max()), Cause::Packets);
        while number >= self.released_below && self.held_bytes + payload.len() > self.bounds.bytes {
            let after_gap = self.arrived.first(self.next..number).unwrap_or(number);
            self.give_up_below(after_gap, Cause::Bytes);
        }
        if number > self.end && self.ahead_max < self.packets_max() {
            self.gaps.push_back(Gap { below: number, found: now, overtaken: self.overtaken });
        }
        self.end = self.end.max(number + 1);
        self.arrived.insert(number);
        if number < self.released_below {
            self.release(payload);
        } else {
            self.hold(number, &payload);
        }
        self.move_next(self.next);
    }

    /// Keeps a copy: the payload may be a small piece of a large receive buffer, which is not
    /// counted and must not live as long.
    fn hold(&mut self, number: u64, payload: &Bytes) {
        if number - self.next >= self.slots.len() as u64 {
            self.grow(number);
        }
        let index = ring_index(number, self.slots.len());
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some(Bytes::copy_from_slice(payload));
            self.held_packets += 1;
            self.held_bytes += payload.len();
            self.stats.waited += 1;
            self.stats.held_packets_max = self.stats.held_packets_max.max(self.held_packets);
            self.stats.held_bytes_max = self.stats.held_bytes_max.max(self.held_bytes);
        }
    }

    /// Makes the ring long enough for `number`.
    fn grow(&mut self, number: u64) {
        let places = usize::try_from(number - self.next + 1).expect("at most `Bounds::packets`");
        let len = places.next_power_of_two().max(64);
        let mut old = std::mem::replace(&mut self.slots, vec![None; len]);
        for number in self.next..self.next + old.len() as u64 {
            let index = ring_index(number, old.len());
            let payload = old.get_mut(index).and_then(Option::take);
            if let Some(slot) = self.slots.get_mut(ring_index(number, len)) {
                *slot = payload;
            }
        }
    }

    fn release(&mut self, payload: Bytes) {
        self.ready_bytes += payload.len();
        self.ready.push_back(payload);
    }

    /// Gives up the gaps that have had their time.
    fn expire(&mut self, now: Instant) {
        let gap_time = self.gap_time();
        while self.held_packets > 0
            && let Some(gap) = self.gaps.front()
        {
            let cause = if self.overtaken.saturating_sub(gap.overtaken) >= gap_time {
                Cause::Time
            } else if now.saturating_duration_since(gap.found) >= self.bounds.gap_max {
                Cause::Silence
            } else {
                break;
            };
            self.give_up_below(gap.below, cause);
        }
    }

    fn give_up_below(&mut self, number: u64, cause: Cause) {
        if number > self.next {
            let arrived = self.arrived.count(self.next..number.min(self.end));
            self.stats.given_up.count(cause, number - self.next - arrived);
            self.move_next(number);
        }
    }

    /// Waits for nothing below `number`, nor for what follows it without a gap, and releases what
    /// this frees.
    fn move_next(&mut self, number: u64) {
        let next = self.arrived.first_missing(number..self.end).unwrap_or(self.end.max(number));
        let freed_below = next.saturating_add(self.ahead_max).saturating_add(1);
        if self.held_packets > 0 {
            self.release_held(freed_below.min(self.end));
        }
        self.released_below = self.released_below.max(freed_below);
        self.arrived.forget(self.next.saturating_sub(HISTORY)..next.saturating_sub(HISTORY));
        self.next = next;
        self.end = self.end.max(next);
        while self.gaps.front().is_some_and(|gap| gap.below <= next) {
            self.gaps.pop_front();
        }
    }

    /// Releases what waits below `end`, the lowest first.
    fn release_held(&mut self, end: u64) {
        let mut from = self.released_below;
        while let Some(number) = self.arrived.first(from..end) {
            let index = ring_index(number, self.slots.len());
            if let Some(payload) = self.slots.get_mut(index).and_then(Option::take) {
                self.held_packets -= 1;
                self.held_bytes -= payload.len();
                self.release(payload);
            }
            from = number + 1;
        }
    }

    /// Adds to `waited_time` what has passed since the last time.
    fn add_up(&mut self, now: Instant) {
        let last = self.added_up.replace(now).unwrap_or(now);
        if self.held_packets > 0 {
            let packets = u32::try_from(self.held_packets).unwrap_or(u32::MAX);
            let waited = now.saturating_duration_since(last).saturating_mul(packets);
            self.stats.waited_time = self.stats.waited_time.saturating_add(waited);
        }
    }
}
