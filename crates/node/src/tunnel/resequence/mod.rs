//! The resequencer at the egress of a tunnel. It takes the payloads of one flow and direction as
//! the tunnel delivers them, with retransmitted payloads late, and releases them in an order that
//! suits their receiver.
//!
//! # Why
//!
//! A tunnel that repairs its losses delivers a retransmitted packet a round trip late. Two
//! properties of QUIC implementations then make the repair nearly useless for the connection
//! inside:
//!
//! - Receivers of quinn, noq, quiche and s2n-quic detect duplicates with a filter of 129 packets
//!   and discard packets that are more than 128 behind the newest. At a tunnel RTT of 40 ms this
//!   hits every retransmission above about 25 Mbit/s.
//! - Stock senders declare a packet lost when a packet sent three later is acknowledged
//!   (`kPacketThreshold`, RFC 9002 §6.1.1). They retransmit its data and slow down.
//!
//! [`Resequence::Window`] solves the first problem, [`Resequence::Ordered`] solves both.
//! `docs/design/adr/0017` has the numbers.
//!
//! # Rules
//!
//! The sender numbers the payloads of a flow, starting at any number. A retransmission keeps its
//! number. Each payload carries the *repair floor*: the lowest sequence number that the sender
//! still repairs.
//!
//! - A payload waits while the lowest missing number that may still arrive is too far behind it.
//! - No payload waits for missing numbers below the repair floor, which the sender gave up.
//! - Payloads wait long for other gaps: a retransmission may be lost again, and the tunnel's loss
//!   detection then needs time. A payload that arrives after its gap was given up has made others
//!   wait in vain, and by then it is too late for the filter above. A gap is given up after 12 RTTs
//!   of the tunnel and 50 ms. This time counts only between arrivals that overtake the gap. Silence
//!   hardly counts, so that an outage does not use the time up. Time in which retransmissions fill
//!   the oldest gap one after the other does not count either.
//! - A payload that arrives after its number was given up is released at once, because its receiver
//!   may still accept it.
//! - The bytes and packets that wait, and the time for which they wait, have bounds. When there is
//!   no more room, the oldest gap is given up.
//!
//! # Use
//!
//! After each [`Resequencer::push`], call [`Resequencer::poll_release`] until it returns `None`.
//! Let the connection inside read after every payload, because engines bound how many pieces of a
//! stream may wait unread (noq: 1024) and close a connection after a burst of a few thousand. Then
//! wait for [`Resequencer::next_timeout`] and poll again.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::{Duration, Instant},
};

use bytes::Bytes;
pub use tandem_wire::Sequenced;

use crate::{arrived::Arrived, spare};

/// The order in which payloads are released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resequence {
    /// Payloads are released as they arrive. Only duplicates are dropped.
    Off,
    /// A payload is released if it is at most this many packets ahead of the lowest missing one
    /// that may still arrive. This suits senders that do not treat reordering as loss.
    Window(u32),
    /// Payloads are released in the order in which they were sent. This suits every sender.
    Ordered,
}

impl Resequence {
    /// The default window. Windows of 64 to 120 packets perform nearly alike, and 100 leaves 28 of
    /// the 128 packets for packet numbers that were skipped or not sent through the tunnel.
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

/// The bounds on the payloads that a flow holds, and on the time for which it holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most bytes of memory that payloads take while they wait, [`OVERHEAD`] included.
    /// Measurements at 100 Mbit/s needed up to 3 MB, which is the rate times the duration of a
    /// repair.
    pub bytes: usize,
    /// The most numbers from the lowest missing one to the highest that waits. 8 MB take 6667
    /// packets of 1200 bytes. At least 1, at most 2^20.
    pub packets: u32,
    /// A gap is given up after this many smoothed RTTs of the tunnel. With 1.5 RTTs, downloads at
    /// 50 Mbit/s and 5 % loss take a quarter longer than with 6 RTTs. With 12 RTTs no gap was given
    /// up on links without outages.
    pub gap_rtts: u32,
    /// Time in addition to these RTTs, for delayed acknowledgements and timers, which RTTs do not
    /// include.
    pub gap_extra: Duration,
    /// A gap is given up after this much time in any case, silence included. The tunnel itself then
    /// counts as dead.
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

/// One silence counts for at most one part in this many of the time after which a gap is given up.
const SILENCE_SHARE: u32 = 10;

/// How many numbers behind the lowest missing one the resequencer remembers as arrived or not.
const HISTORY: u64 = 1024;

/// The memory of a waiting payload beside its bytes, and that of a gap: 40 bytes in a map whose nodes
/// are at least half full, and what an allocator adds. A test compares it with the allocator.
pub const OVERHEAD: usize = 128;

/// Numbers have 62 bits, as QUIC's variable-length integers have.
const NUMBER_MAX: u64 = (1 << 62) - 1;

/// The largest jump of numbers that is plausible. A tunnel that lost this many packets in a row
/// would lose everything for more than an hour, even at 10 Gbit/s.
const JUMP_MAX: u64 = 1 << 32;

/// The tunnel's RTT until [`Resequencer::set_smoothed_rtt`] sets it (`kInitialRtt`, RFC 9002
/// §6.2.2).
const INITIAL_RTT: Duration = Duration::from_millis(333);

/// The counters of a resequencer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResequencerStats {
    /// Payloads that were released.
    pub released: u64,
    /// Payloads that had to wait.
    pub waited: u64,
    /// The sum of the times for which payloads waited.
    pub waited_time: Duration,
    /// The most bytes of payload that waited at once.
    pub held_bytes_max: usize,
    /// The most payloads that waited at once.
    pub held_packets_max: usize,
    /// Missing numbers that were given up, by cause.
    pub given_up: GivenUpGaps,
    /// Payloads that arrived after they were given up, and were released.
    pub late: u64,
    /// Payloads dropped because their number had arrived before: spurious retransmissions.
    pub duplicates: u64,
    /// Payloads dropped because they arrived so late that they may be duplicates.
    pub stale: u64,
    /// Payloads dropped because their number is not plausible.
    pub out_of_range: u64,
    /// Repair floors ignored because they were not plausible.
    pub floors_out_of_range: u64,
    /// Payloads dropped because the caller had not taken those released before.
    pub overrun: u64,
}

/// Missing numbers that were given up, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenUpGaps {
    /// Numbers below the repair floor, which the sender no longer repairs.
    pub floor: u64,
    /// Numbers given up by [`Bounds::gap_rtts`] and [`Bounds::gap_extra`].
    pub time: u64,
    /// Numbers given up by [`Bounds::gap_max`].
    pub silence: u64,
    /// Numbers given up by [`Bounds::bytes`].
    pub bytes: u64,
    /// Numbers given up by [`Bounds::packets`].
    pub packets: u64,
    /// Numbers given up by [`Resequencer::flush`].
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
    /// Returns the sum over all causes.
    pub const fn total(&self) -> u64 {
        self.floor + self.time + self.silence + self.bytes + self.packets + self.flush
    }

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

/// Numbers that were found missing together.
#[derive(Clone, Copy, Debug)]
struct Gap {
    found: Instant,
    /// The resequencer's `overtaken` at that time.
    overtaken: Duration,
}

/// Brings the payloads of one flow and direction into order. See the [module](self).
#[derive(Debug)]
pub struct Resequencer {
    ahead_max: u64,
    bounds: Bounds,
    smoothed_rtt: Duration,
    is_started: bool,
    /// The lowest missing number that was not given up.
    next: u64,
    /// One above the highest number that arrived or was given up. Never below `next`.
    end: u64,
    /// Payloads with a number below this are released when they arrive. Always above `next`.
    released_below: u64,
    /// Which numbers from `next - HISTORY` to `end` have arrived.
    arrived: Arrived,
    /// The payloads that wait, by number. A peer chooses the numbers, so the memory must depend on
    /// how many payloads wait, and not on how far apart their numbers are.
    held: BTreeMap<u64, Bytes>,
    /// Bytes of payload in `held`.
    payload_bytes: usize,
    /// The gaps, by the number whose arrival showed the gap. A gap consists of the missing numbers
    /// below it that are above the gap before. A gap that was filled remains until `next` has passed
    /// it.
    gaps: BTreeMap<u64, Gap>,
    /// Payloads that are released but not yet taken.
    ready: VecDeque<Bytes>,
    ready_bytes: usize,
    /// The time that counts against gaps: the time between arrivals that overtook the oldest gap.
    overtaken: Duration,
    last_arrival: Option<Instant>,
    /// The time up to which `waited_time` is complete.
    added_up: Option<Instant>,
    stats: ResequencerStats,
}

impl Resequencer {
    /// A resequencer for a new flow.
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
            held: BTreeMap::new(),
            payload_bytes: 0,
            gaps: BTreeMap::new(),
            ready: VecDeque::new(),
            ready_bytes: 0,
            overtaken: Duration::ZERO,
            last_arrival: None,
            added_up: None,
            stats: ResequencerStats::default(),
        }
    }

    /// Sets the smoothed RTT of the tunnel.
    pub fn set_smoothed_rtt(&mut self, smoothed_rtt: Duration) {
        self.smoothed_rtt = smoothed_rtt;
    }

    /// Changes the order. Payloads that no longer have to wait are released. What is missing is given up if a narrower
    /// order would have waited for it, because payloads behind it were released already.
    pub fn set_mode(&mut self, now: Instant, mode: Resequence) {
        let before = mem::replace(&mut self.ahead_max, mode.ahead_max());
        if !self.is_started || before == self.ahead_max {
            return;
        }
        self.add_up(now);
        if self.ahead_max < before {
            self.give_up_below(self.end, Cause::Flush);
            self.released_below = 0; // the next step computes it
        }
        self.move_next(self.next);
    }

    /// Takes a payload. The cost is at most one step per payload that is released, and one step per
    /// 64 numbers of [`Bounds::packets`].
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

    /// Takes a repair floor without a payload, from senders that send one when they have no payload
    /// to send.
    pub fn raise_floor(&mut self, now: Instant, repair_floor: u64) {
        self.add_up(now);
        if self.is_started && self.is_plausible(repair_floor) {
            self.give_up_below(repair_floor, Cause::Floor);
        } else {
            self.stats.floors_out_of_range += 1;
        }
    }

    /// Gives up everything that is missing now, because the flow or its tunnel ends or other flows
    /// need the memory.
    pub fn flush(&mut self, now: Instant) {
        self.add_up(now);
        self.give_up_below(self.end, Cause::Flush);
    }

    /// The next released payload, if there is one.
    pub fn poll_release(&mut self, now: Instant) -> Option<Bytes> {
        if self.ready.is_empty() {
            self.add_up(now);
            self.expire(now);
        }
        let payload = self.ready.pop_front()?;
        spare::give_back(&mut self.ready);
        self.ready_bytes -= payload.len();
        self.stats.released += 1;
        Some(payload)
    }

    /// When to poll again even if nothing arrives before.
    pub fn next_timeout(&self) -> Option<Instant> {
        let (_, gap) = self.gaps.first_key_value().filter(|_| !self.held.is_empty())?;
        gap.found.checked_add(self.bounds.gap_max)
    }

    /// Bytes of memory that the payloads and gaps take, including released payloads that have not
    /// been taken.
    pub fn held_bytes(&self) -> usize {
        self.waiting_bytes() + self.ready_bytes + self.ready.len() * OVERHEAD
    }

    /// Bytes of memory that everything takes.
    pub fn memory(&self) -> usize {
        let ready = self.ready.capacity() * size_of::<Bytes>();
        self.waiting_bytes() + self.ready_bytes + ready + self.arrived.memory()
    }

    /// The counters.
    pub const fn stats(&self) -> &ResequencerStats {
        &self.stats
    }

    /// Bytes of memory that the waiting payloads and the gaps take.
    fn waiting_bytes(&self) -> usize {
        self.payload_bytes + (self.held.len() + self.gaps.len()) * OVERHEAD
    }

    fn packets_max(&self) -> u64 {
        u64::from(self.bounds.packets)
    }

    fn is_plausible(&self, number: u64) -> bool {
        let jump_max = if self.is_started { self.end + JUMP_MAX } else { NUMBER_MAX };
        number <= NUMBER_MAX.min(jump_max)
    }

    /// Whether one more payload would exceed the bounds, because the caller has not taken released
    /// payloads.
    fn is_overrun(&self, len: usize) -> bool {
        let bytes = self.held_bytes() + len + OVERHEAD;
        let packets = (self.held.len() + self.ready.len()) as u64;
        !self.ready.is_empty() && (bytes > self.bounds.bytes || packets >= self.packets_max())
    }

    fn move_floor(&mut self, number: u64, repair_floor: u64) {
        let is_sane = repair_floor <= number + 1;
        if !is_sane {
            self.stats.floors_out_of_range += 1;
        }
        if !self.is_started {
            // Payloads between the repair floor and the first arrival may still arrive.
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

    /// Counts time against the gaps if this number overtakes the oldest gap.
    fn count_time(&mut self, now: Instant, number: u64) {
        let last = self.last_arrival.replace(now).unwrap_or(now);
        if number > self.next {
            let silence = now.saturating_duration_since(last);
            let counted = silence.min(self.gap_time() / SILENCE_SHARE);
            self.overtaken = self.overtaken.saturating_add(counted);
        }
    }

    /// The time after which a gap is given up.
    fn gap_time(&self) -> Duration {
        let rtts = self.smoothed_rtt.saturating_mul(self.bounds.gap_rtts);
        rtts.saturating_add(self.bounds.gap_extra).min(self.bounds.gap_max)
    }

    /// Takes a payload whose number has not arrived before and has not been given up.
    fn insert(&mut self, now: Instant, number: u64, payload: Bytes) {
        self.give_up_below((number + 1).saturating_sub(self.packets_max()), Cause::Packets);
        while number >= self.released_below && self.exceeds_bytes(number, payload.len()) {
            let after_gap = self.arrived.first(self.next..number).unwrap_or(number);
            self.give_up_below(after_gap, Cause::Bytes);
        }
        if self.shows_gap(number) {
            self.gaps.insert(number, Gap { found: now, overtaken: self.overtaken });
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

    /// Whether the arrival of a number shows that others are missing, which may hold payloads up.
    fn shows_gap(&self, number: u64) -> bool {
        number > self.end && self.ahead_max < self.packets_max()
    }

    /// Whether a payload that would have to wait is too much.
    fn exceeds_bytes(&self, number: u64, len: usize) -> bool {
        let overheads = 1 + usize::from(self.shows_gap(number));
        self.waiting_bytes() + len + overheads * OVERHEAD > self.bounds.bytes
    }

    /// Keeps a copy of a payload. The payload itself may be a small part of a large receive buffer,
    /// which is not counted and which the payload would keep alive.
    fn hold(&mut self, number: u64, payload: &Bytes) {
        self.held.insert(number, Bytes::copy_from_slice(payload));
        self.payload_bytes += payload.len();
        self.stats.waited += 1;
        self.stats.held_packets_max = self.stats.held_packets_max.max(self.held.len());
        self.stats.held_bytes_max = self.stats.held_bytes_max.max(self.payload_bytes);
    }

    fn release(&mut self, payload: Bytes) {
        self.ready_bytes += payload.len();
        self.ready.push_back(payload);
    }

    /// Gives up the gaps that have timed out.
    fn expire(&mut self, now: Instant) {
        let gap_time = self.gap_time();
        while !self.held.is_empty()
            && let Some((&below, &gap)) = self.gaps.first_key_value()
        {
            let cause = if self.overtaken.saturating_sub(gap.overtaken) >= gap_time {
                Cause::Time
            } else if now.saturating_duration_since(gap.found) >= self.bounds.gap_max {
                Cause::Silence
            } else {
                break;
            };
            self.give_up_below(below, cause);
        }
    }

    fn give_up_below(&mut self, number: u64, cause: Cause) {
        if number > self.next {
            let arrived = self.arrived.count(self.next..number.min(self.end));
            self.stats.given_up.count(cause, number - self.next - arrived);
            self.move_next(number);
        }
    }

    /// Moves `next` to the first missing number from `number` on, and releases the payloads that no
    /// longer have to wait.
    fn move_next(&mut self, number: u64) {
        let next = self.arrived.first_missing(number..self.end).unwrap_or(self.end.max(number));
        let freed_below = next.saturating_add(self.ahead_max).saturating_add(1);
        self.release_held(freed_below);
        self.released_below = self.released_below.max(freed_below);
        self.arrived.forget(self.next.saturating_sub(HISTORY)..next.saturating_sub(HISTORY));
        self.next = next;
        self.end = self.end.max(next);
        while self.gaps.first_key_value().is_some_and(|(&below, _)| below <= next) {
            self.gaps.pop_first();
        }
    }

    /// Releases the payloads that wait below `end`, the lowest number first.
    fn release_held(&mut self, end: u64) {
        while let Some(first) = self.held.first_entry().filter(|first| *first.key() < end) {
            let payload = first.remove();
            self.payload_bytes -= payload.len();
            self.release(payload);
        }
    }

    /// Adds the time since the last call to `waited_time`.
    fn add_up(&mut self, now: Instant) {
        let last = self.added_up.replace(now).unwrap_or(now);
        if !self.held.is_empty() {
            let packets = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
            let waited = now.saturating_duration_since(last).saturating_mul(packets);
            self.stats.waited_time = self.stats.waited_time.saturating_add(waited);
        }
    }
}
