//! When acknowledgements of packets that come fast wait for more of them, in the sealed transport and in QUIC
//! connections beside it.

use std::time::{Duration, Instant};

/// Whether packets come so fast that an acknowledgement for every second one would cost both ends more than it tells
/// the sender. It wakes the sender, which costs about as much CPU time as to carry a packet.
///
/// A sender with a small window may wait for the acknowledgement instead of sending the packets that end the wait.
/// Then the wait ends with time, and in silence. The next packets are acknowledged at once: `AT_ONCE_LEAST` of
/// them, and twice as many each time that it happens again.
#[derive(Debug, Default)]
pub struct Flood {
    /// When the present window began, and how many packets with data have come in it.
    window: Option<(Instant, u64)>,
    /// When the last packet with data came.
    last: Option<Instant>,
    /// Packets in a millisecond, in the last window.
    per_ms: u64,
    /// How many of the next packets are acknowledged at once.
    at_once: u64,
    /// How many will be when the next wait is in vain.
    penalty: u64,
}

impl Flood {
    /// The time over which packets are counted.
    const WINDOW: Duration = Duration::from_millis(8);

    /// From this rate on acknowledgements wait: 48 Mbit/s in packets of 1500 bytes. Below it, they are so few that
    /// they cost little.
    const PER_MS: u64 = 4;

    /// The number of packets after which an acknowledgement waits no longer. They come within the wait from a rate of
    /// 8 in a millisecond on.
    const THRESHOLD: u64 = 16;

    /// The longest wait.
    pub const DELAY: Duration = Duration::from_millis(2);

    /// From this smoothed RTT on nothing waits. A longer path has fewer packets in each wake of its own, and an origin
    /// that follows reports (TECC) needs timely acknowledgements there (ADR 88).
    const RTT: Duration = Duration::from_millis(2);

    /// How long no packet has come before a wait ends that was in vain. At the least rate four packets come in this
    /// time.
    const SILENCE: Duration = Duration::from_millis(1);

    /// How many packets are acknowledged at once after the first wait in vain, and after a gap.
    const AT_ONCE_LEAST: u64 = 64;

    /// The most, with which a wait of 2 ms is a small part of the time.
    const AT_ONCE_MOST: u64 = 4096;

    /// Notes packets with data that have come together.
    pub fn on_arrived(&mut self, now: Instant, packets: u64) {
        let (began, count) = self.window.get_or_insert((now, 0));
        let elapsed = now.saturating_duration_since(*began);
        if elapsed >= Self::WINDOW {
            let per_ms = u128::from(*count) * 1_000_000 / elapsed.as_nanos();
            self.per_ms = u64::try_from(per_ms).unwrap_or(u64::MAX);
            (*began, *count) = (now, 0);
        }
        *count += packets;
        if packets > 0 {
            self.last = Some(now);
        }
        self.at_once = self.at_once.saturating_sub(packets);
    }

    /// The wait and the number of packets that end it, while packets come fast on a short path.
    pub fn wait(&self, smoothed_rtt: Duration) -> Option<(Duration, u64)> {
        (smoothed_rtt < Self::RTT && self.per_ms >= Self::PER_MS && self.at_once == 0)
            .then_some((Self::DELAY, Self::THRESHOLD))
    }

    /// Notes a packet out of order. A path that loses packets leaves its sender a small window.
    pub fn on_gap(&mut self) {
        self.at_once = self.at_once.max(Self::AT_ONCE_LEAST);
    }

    /// Notes that time has ended a wait.
    pub fn on_expired(&mut self, now: Instant) {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) >= Self::SILENCE) {
            self.at_once = self.penalty.max(Self::AT_ONCE_LEAST);
            self.penalty = Self::AT_ONCE_MOST.min(self.at_once * 2);
        }
    }

    /// Notes that packets have ended a wait.
    pub fn on_enough(&mut self) {
        self.penalty -= self.penalty.div_ceil(16);
    }
}
