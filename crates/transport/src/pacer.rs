//! Pacing ([RFC 9002 §7.7]): packets leave at a rate, in bursts that a timer can keep up with.
//!
//! [RFC 9002 §7.7]: https://www.rfc-editor.org/rfc/rfc9002#section-7.7

use std::time::{Duration, Instant};

use tandem_units::Rate;

/// What pacing depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The rate that the controller wants.
    pub(crate) rate: Option<Rate>,
    /// The congestion window in bytes.
    pub(crate) window: u64,
    pub(crate) smoothed_rtt: Duration,
    /// The size of a full packet in bytes.
    pub(crate) packet_size: u64,
}

impl Pace {
    /// A window above this is not paced: it is that of a sender without congestion control.
    const WINDOW_MAX: u64 = 1 << 32;

    /// Bytes per second. A window is spread over the RTT, and a quarter faster, so that pacing alone does not keep a
    /// sender from using its window (RFC 9002 §7.7: N = 1.25). `None`: no pacing.
    fn bytes_per_second(&self) -> Option<u64> {
        if let Some(rate) = self.rate {
            return Some(rate.bytes_per_second().max(1));
        }
        if self.window > Self::WINDOW_MAX {
            return None;
        }
        let rate = u128::from(self.window) * 1_250_000_000 / self.smoothed_rtt.as_nanos().max(1);
        Some(u64::try_from(rate).unwrap_or(u64::MAX).max(1))
    }
}

/// A bucket of bytes that may leave now.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// The last packet may leave when one byte is there, so that the bucket may be in debt.
    bytes: i64,
    filled: Instant,
    /// The next time at which packets may leave.
    pub(crate) until: Option<Instant>,
}

impl Pacer {
    /// The bucket holds what leaves in this time,
    const BURST: Duration = Duration::from_millis(2);
    /// but never fewer packets than the first of these numbers, nor more than the second.
    const BURST_PACKETS: (u64, u64) = (10, 256);

    /// A sender that waits does so for a quarter of the RTT, and within these bounds, so that on long paths there are
    /// at most 1000 timers in a second.
    const WAIT: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(1));

    /// The bucket is full.
    pub(crate) fn new(now: Instant, packet_size: u64) -> Self {
        Self { bytes: signed(Self::BURST_PACKETS.0 * packet_size), filled: now, until: None }
    }

    /// Fills the bucket. Returns how many bytes may leave now; packets may leave while it is above 0.
    pub(crate) fn budget(&mut self, now: Instant, pace: &Pace) -> i64 {
        let Some(rate) = pace.bytes_per_second() else {
            self.until = None;
            return i64::MAX;
        };
        let (least, most) = Self::BURST_PACKETS;
        let capacity =
            bytes_in(rate, Self::BURST).clamp(least * pace.packet_size, most * pace.packet_size);
        let elapsed = now.saturating_duration_since(self.filled);
        let earned = bytes_in(rate, elapsed);
        if earned > 0 {
            // Parts of a byte are lost to this end, which makes it slower than the rate by less than one byte for each
            // call.
            self.bytes = self.bytes.saturating_add(signed(earned)).min(signed(capacity));
            self.filled = now;
        }
        if self.bytes > 0 || self.until.is_some_and(|until| until <= now) {
            // A timer that was rounded is as good as the time.
            self.until = None;
            return self.bytes.max(1);
        }
        if self.until.is_none() {
            let (least, most) = Self::WAIT;
            let wait = (pace.smoothed_rtt / 4).clamp(least, most);
            let wanted = bytes_in(rate, wait).clamp(pace.packet_size, capacity);
            let missing = wanted.saturating_add(self.bytes.unsigned_abs());
            let nanos = u128::from(missing) * 1_000_000_000 / u128::from(rate);
            let wait = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            self.until = Some(now + wait.min(Self::WAIT_MAX));
        }
        0
    }

    /// No wait is longer, however slow the rate is.
    const WAIT_MAX: Duration = Duration::from_secs(1);

    pub(crate) fn on_sent(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(signed(bytes));
    }
}

fn bytes_in(bytes_per_second: u64, time: Duration) -> u64 {
    const NANOS: u64 = 1_000_000_000;
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    if let Some(product) = bytes_per_second.checked_mul(nanos) {
        return product / NANOS; // this division is much faster
    }
    let bytes = u128::from(bytes_per_second) * u128::from(nanos) / u128::from(NANOS);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_start;

    /// Sends as fast as the pacer lets it for a second. Returns the bytes and the waits.
    fn sent(pace: &Pace) -> (u64, u32) {
        let (start, mut bytes, mut waits) = (test_start(), 0, 0);
        let (mut now, mut pacer) = (start, Pacer::new(start, pace.packet_size));
        while now < start + Duration::from_secs(1) {
            let mut budget = pacer.budget(now, pace);
            if budget == 0 {
                waits += 1;
                now = pacer.until.expect("it waits");
                continue;
            }
            while budget > 0 {
                pacer.on_sent(pace.packet_size);
                bytes += pace.packet_size;
                budget -= signed(pace.packet_size);
            }
        }
        (bytes, waits)
    }

    #[test]
    fn packets_leave_at_the_rate_with_few_timers() {
        let ms = Duration::from_millis;
        for (mbps, rtt, waits_max) in [
            (1, ms(40), 110),
            (10, ms(40), 1_000),
            (100, ms(40), 1_001),
            (1_000, ms(40), 1_001),
            (1_000, ms(1), 4_001),
            (1_000, ms(0), 10_001),
        ] {
            let rate = Some(Rate::from_mbps(mbps));
            let pace = Pace { rate, window: 12_000, smoothed_rtt: rtt, packet_size: 1200 };
            let (bytes, waits) = sent(&pace);
            let allowed = mbps * 125_000;
            let burst = 256 * 1200;
            assert!((allowed * 97 / 100..=allowed + burst).contains(&bytes), "{mbps}: {bytes}");
            assert!(waits <= waits_max, "{mbps} Mbit/s, {rtt:?}: {waits} waits");
        }
    }

    #[test]
    fn a_window_is_spread_over_the_rtt() {
        let smoothed_rtt = Duration::from_millis(100);
        let pace = Pace { rate: None, window: 100_000, smoothed_rtt, packet_size: 1000 };
        let (bytes, _) = sent(&pace);
        assert!((1_230_000..1_280_000).contains(&bytes), "{bytes}");
        let off = Pace { window: 1 << 40, ..pace };
        assert_eq!(Pacer::new(test_start(), 1000).budget(test_start(), &off), i64::MAX);
    }
}
