//! When the driver lets packets gather before it waits for the next one.
//!
//! To be woken costs a thread about as much as to handle a packet. While packets come evenly and fast, each would
//! wake it. So after its work it sleeps for a moment without being woken, and then handles what has come: what
//! network cards do with their interrupts. It gains nothing when packets come in bursts, which wake the thread once
//! each, and it would delay a lone program that waits for each answer before it asks again. Therefore a thread pauses
//! only
//!
//! - while one side alone, the tunnels or the targets, would wake it more often than such a program could,
//! - while a wake without a pause brings few packets, which every 16th wait finds out, and
//! - while no flow is there that its user has called urgent, because a packet and its answer pass four threads.
//!
//! The tools of the benchmark of the data path compile this file, too, so that peers can pause by the same rule.

use std::{
    ops::RangeInclusive,
    time::{Duration, Instant},
};

/// Whether, and for how long, a driver lets packets gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Each packet wakes the thread.
    Off,
    /// The thread pauses for this long at most while packets come faster than that.
    UpTo(Duration),
}

impl Default for Pause {
    fn default() -> Self {
        Self::AUTO
    }
}

impl Pause {
    /// The usual length. Half of it saves half as much, and longer ones save little more (ADR 87).
    pub const AUTO: Self = Self::UpTo(Duration::from_micros(100));

    /// The lengths that make sense. With a shorter one the thread would only sleep, and save nothing. With a longer one
    /// it would delay packets by as much as a network does.
    pub const LENGTHS: RangeInclusive<Duration> =
        Duration::from_micros(10)..=Duration::from_millis(1);
}

/// The time over which packets are counted.
const WINDOW: Duration = Duration::from_millis(2);

/// One of so many waits is without a pause, to learn how many packets a wake brings.
const PROBE: u8 = 16;

/// With so many packets for each wake, the thread makes no pauses.
const BATCH_MAX: u64 = 4;

/// The weight of the newest wake in the average of packets is one of so many.
const MEMORY: u64 = 8;

/// How long no pause is made after a packet of an urgent flow. Speech and games send each 50 ms or more often.
const URGENT: Duration = Duration::from_millis(200);

/// Who sends packets to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The one behind the socket with most packets: at a server the listening one, at a client that of its tunnel.
    Main,
    /// Those behind all other sockets.
    Others,
}

/// Decides about pauses.
pub(crate) struct Pauses {
    length: Option<Duration>,
    /// The number of the main socket.
    main: Option<u64>,
    /// The socket of the others that had packets last.
    newest_other: Option<u64>,
    /// The packets of the main socket, and of all others, in this window.
    count: Counts,
    began: Instant,
    /// The side that would wake the thread often, in the last window.
    fast: Option<Side>,
    /// The packets since the last wait.
    since_wait: Counts,
    /// Whether the last wait was without a pause.
    was_probe: bool,
    /// The packets of the busier side that a wake without a pause brings, times [`MEMORY`].
    batch: u64,
    /// Waits since the last one without a pause.
    waits: u8,
    /// Until when an urgent flow has the thread for itself.
    urgent_until: Option<Instant>,
    /// Whether the thread's timers are exact.
    is_exact: bool,
}

/// Packets of each side.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    main: u64,
    others: u64,
}

impl Counts {
    fn add(&mut self, side: Side, datagrams: u64) {
        match side {
            Side::Main => self.main += datagrams,
            Side::Others => self.others += datagrams,
        }
    }

    const fn of(self, side: Side) -> u64 {
        match side {
            Side::Main => self.main,
            Side::Others => self.others,
        }
    }

    /// The side with most packets.
    const fn most(self) -> Side {
        if self.main >= self.others { Side::Main } else { Side::Others }
    }
}

impl Pauses {
    pub(crate) const fn new(pause: Pause, now: Instant) -> Self {
        let length = match pause {
            Pause::Off => None,
            Pause::UpTo(length) => Some(length),
        };
        Self {
            length,
            main: None,
            newest_other: None,
            count: Counts { main: 0, others: 0 },
            began: now,
            fast: None,
            since_wait: Counts { main: 0, others: 0 },
            was_probe: false,
            batch: MEMORY,
            waits: 0,
            urgent_until: None,
            is_exact: false,
        }
    }

    /// Notes how many datagrams have come from a socket.
    pub(crate) fn on_received(&mut self, socket: u64, datagrams: u64) {
        let main = *self.main.get_or_insert(socket);
        let side = if socket == main { Side::Main } else { Side::Others };
        self.count.add(side, datagrams);
        self.since_wait.add(side, datagrams);
        if side == Side::Others {
            self.newest_other = Some(socket);
        }
    }

    /// Notes that an urgent flow has sent a packet.
    pub(crate) fn on_urgent(&mut self, now: Instant) {
        self.urgent_until = Some(now + URGENT);
    }

    /// How long the driver sleeps before it waits, which it does now. `deadline`: when the node is due.
    pub(crate) fn before_wait(
        &mut self,
        now: Instant,
        deadline: Option<Instant>,
    ) -> Option<Duration> {
        let length = self.length?;
        self.learn();
        self.end_window(now, length);
        self.waits = (self.waits + 1) % PROBE;
        let is_urgent = self.urgent_until.is_some_and(|until| now < until);
        self.was_probe = self.fast.is_none() || is_urgent || self.waits == 0;
        if self.was_probe {
            return None;
        }
        let left = deadline.map_or(length, |at| at.saturating_duration_since(now));
        Some(length.min(left)).filter(|pause| !pause.is_zero())
    }

    /// Ends the window over which packets are counted, if it is over.
    fn end_window(&mut self, now: Instant, length: Duration) {
        let elapsed = now.saturating_duration_since(self.began);
        if elapsed < WINDOW {
            return;
        }
        let side = self.count.most();
        // Wakes by one side that are 1.25 lengths apart, or closer. A program that waits for each answer gets one of
        // each side in the time for a round trip, which is longer.
        let wakes = u128::from(self.count.of(side) * MEMORY / self.batch.max(1));
        let is_fast = wakes * length.as_nanos() * 5 >= elapsed.as_nanos() * 4;
        self.fast = (is_fast && self.batch < BATCH_MAX * MEMORY).then_some(side);
        if self.count.main == 0 && self.newest_other.is_some() {
            self.main = self.newest_other.take(); // a client has another socket on another network
        }
        (self.began, self.count) = (now, Counts::default());
    }

    /// Learns from a wait without a pause how many packets a wake brings.
    fn learn(&mut self) {
        let came = std::mem::take(&mut self.since_wait);
        let came = came.of(self.fast.unwrap_or(came.most()));
        if self.was_probe && came > 0 {
            self.batch = self.batch - self.batch / MEMORY + came;
        }
    }

    /// Sleeps for this long, which nothing ends early.
    pub(crate) fn sleep(&mut self, length: Duration) {
        if !std::mem::replace(&mut self.is_exact, true) {
            #[cfg(target_os = "linux")]
            // else the kernel sleeps for 50 us longer, as it does for all threads
            rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))
                .unwrap_or_default();
        }
        std::thread::sleep(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TUNNEL: u64 = 1;
    const LENGTH: Duration = Duration::from_micros(100);

    /// Packets of a socket: how long after each other, and how many at once.
    struct Arrivals {
        socket: u64,
        every: Duration,
        at_once: u64,
        next: Duration,
    }

    fn arrivals(socket: u64, every: u64, at_once: u64) -> Arrivals {
        let every = Duration::from_micros(every);
        Arrivals { socket, every, at_once, next: every }
    }

    /// Plays a second, of which the first half warms up. Returns how many pauses and how many other waits there are in
    /// the second one.
    fn played(pause: Pause, mut from: Vec<Arrivals>, urgent: Option<Duration>) -> (u32, u32) {
        let start = crate::clock::now();
        let mut pauses = Pauses::new(pause, start);
        let (mut now, mut gathered, mut woken) = (Duration::ZERO, 0, 0);
        while now < Duration::from_secs(1) {
            if urgent.is_some_and(|every| now.as_micros() % every.as_micros() < 1000) {
                pauses.on_urgent(start + now);
            }
            let length = pauses.before_wait(start + now, None);
            let is_warm = now >= Duration::from_millis(500);
            if let Some(length) = length {
                now += length;
                gathered += u32::from(is_warm);
            }
            let next = from.iter().map(|it| it.next).min().expect("arrivals");
            let waited = next.saturating_sub(now);
            woken += u32::from(is_warm && length.is_none());
            now += waited;
            for it in &mut from {
                while it.next <= now {
                    pauses.on_received(it.socket, it.at_once);
                    it.next += it.every;
                }
            }
            now += Duration::from_micros(5); // the work
        }
        (gathered, woken)
    }

    #[test]
    fn a_thread_pauses_while_packets_come_evenly_and_fast() {
        let auto = Pause::AUTO;
        let call = Some(Duration::from_millis(20));
        for (what, pause, from, urgent, expected) in [
            ("50,000/s", auto, vec![arrivals(1, 20, 1)], None, true),
            ("10,000/s", auto, vec![arrivals(1, 100, 1)], None, true),
            (
                "the same from targets",
                auto,
                vec![arrivals(1, 1600, 1), arrivals(2, 100, 1)],
                None,
                true,
            ),
            ("5,000/s", auto, vec![arrivals(1, 200, 1)], None, false),
            ("50,000/s and a call", auto, vec![arrivals(1, 20, 1)], call, false),
            ("bursts of 16", auto, vec![arrivals(1, 320, 16)], None, false),
            (
                "bursts and acknowledgements",
                auto,
                vec![arrivals(1, 320, 16), arrivals(2, 330, 1)],
                None,
                false,
            ),
            (
                "questions and answers",
                auto,
                vec![arrivals(1, 130, 1), arrivals(2, 130, 1)],
                None,
                false,
            ),
            ("never", Pause::Off, vec![arrivals(1, 20, 1)], None, false),
        ] {
            let (gathered, woken) = played(pause, from, urgent);
            let share = f64::from(gathered) / f64::from(gathered + woken);
            if expected {
                assert!(share > 0.9, "{what}: {gathered} pauses, {woken} other waits");
            } else {
                assert!(share < 0.05, "{what}: {gathered} pauses, {woken} other waits");
            }
        }
    }

    #[test]
    fn a_pause_ends_when_the_node_is_due() {
        let start = crate::clock::now();
        let mut pauses = Pauses::new(Pause::AUTO, start);
        for packet in 1..=200 {
            pauses.on_received(TUNNEL, 1);
            pauses.before_wait(start + packet * LENGTH / 5, None);
        }
        pauses.waits = 0;
        let now = start + 200 * LENGTH / 5;
        for (due, expected) in [(150, Some(100)), (30, Some(30)), (0, None)] {
            let deadline = Some(now + Duration::from_micros(due));
            let pause = pauses.before_wait(now, deadline);
            assert_eq!(pause, expected.map(Duration::from_micros), "due in {due} us");
        }
    }
}
