//! A token bucket that threads share.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tandem_units::{ByteCount, Rate};

/// A token bucket: a rate, and the time at which the bucket will be full again, in nanoseconds of the
/// users' clock.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// Bits per second; 0 stands for no limit.
    rate: AtomicU64,
    full_at: AtomicU64,
}

/// What a full bucket holds, as the time in which it fills. A sender in slow start sends two windows in a
/// round trip, which is 100 ms on a long path.
const DEPTH: Duration = Duration::from_millis(100);

/// The least that a full bucket holds: one batch of a socket.
const DEPTH_MIN: ByteCount = ByteCount::new(64_000);

impl Bucket {
    pub(super) fn set(&self, rate: Option<Rate>) {
        self.rate.store(rate.map_or(0, Rate::bits_per_second), Relaxed);
    }

    /// Takes bytes at the time `now` if the bucket has them.
    pub(super) fn take(&self, now: u64, bytes: usize) -> bool {
        let Some(rate) = Rate::from_bps(self.rate.load(Relaxed)) else { return true };
        let next = |full_at: u64| {
            let next = full_at.max(now).saturating_add(nanos(rate, bytes));
            (next <= now.saturating_add(depth(rate))).then_some(next)
        };
        self.full_at.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    /// Takes bytes that have passed already, even if the bucket does not have them.
    pub(super) fn charge(&self, now: u64, bytes: usize) {
        let Some(rate) = Rate::from_bps(self.rate.load(Relaxed)) else { return };
        let next = |full_at: u64| Some(full_at.max(now).saturating_add(nanos(rate, bytes)));
        // It always succeeds.
        self.full_at.fetch_update(Relaxed, Relaxed, next).unwrap_or_default();
    }

    /// The time until the bucket has something again. `None`: it has something.
    pub(super) fn wait(&self, now: u64) -> Option<Duration> {
        let rate = Rate::from_bps(self.rate.load(Relaxed))?;
        let debt = self.full_at.load(Relaxed).saturating_sub(now.saturating_add(depth(rate)));
        (debt > 0).then(|| Duration::from_nanos(debt))
    }
}

fn nanos(rate: Rate, bytes: usize) -> u64 {
    u64::try_from(rate.time_to_send(ByteCount::from(bytes)).as_nanos()).unwrap_or(u64::MAX)
}

fn depth(rate: Rate) -> u64 {
    u64::try_from(DEPTH.max(rate.time_to_send(DEPTH_MIN)).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn bucket(mbps: u64) -> Bucket {
        let bucket = Bucket::default();
        bucket.set(Some(Rate::from_mbps(mbps)));
        bucket
    }

    #[test]
    fn a_bucket_passes_its_rate_and_at_first_its_depth() {
        let bucket = bucket(80); // 10 MB/s, so that 100 ms are 1 MB
        let mut taken = 0;
        for milli in 0..1000 {
            while bucket.take(milli * MS, 1000) {
                taken += 1000;
            }
        }
        assert!((10_980_000..=11_000_000).contains(&taken), "{taken}");
    }

    #[test]
    fn what_has_passed_already_is_paid_later() {
        let bucket = bucket(80);
        assert_eq!(bucket.wait(0), None);
        bucket.charge(0, 3_000_000);
        assert_eq!(bucket.wait(0), Some(Duration::from_millis(200)));
        assert!(!bucket.take(199 * MS, 1) && bucket.take(201 * MS, 1000));
        assert_eq!(bucket.wait(200 * MS + MS), None);
    }

    #[test]
    fn without_a_rate_everything_passes() {
        let bucket = Bucket::default();
        bucket.charge(0, usize::MAX);
        assert!(bucket.take(0, usize::MAX) && bucket.wait(0).is_none());
        let slow = Bucket::default();
        slow.set(Rate::from_bps(1));
        assert!(slow.take(0, 60_000), "a batch passes at any rate");
        assert!(!slow.take(0, 60_000));
    }
}
