//! Token buckets that threads share.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tandem_units::{ByteCount, Rate};

/// When a bucket will be full again, in nanoseconds of the users' clock.
#[derive(Debug, Default)]
struct FullAt(AtomicU64);

impl FullAt {
    /// Takes something that fills again in `cost` at the time `now`, if a bucket that fills in `depth` has it.
    fn take(&self, now: u64, cost: u64, depth: u64) -> bool {
        let next = |full_at: u64| {
            let next = full_at.max(now).saturating_add(cost);
            (next <= now.saturating_add(depth)).then_some(next)
        };
        self.0.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

/// A token bucket of things that are counted: so many at once, and then so many a second.
#[derive(Debug, Default)]
pub(super) struct CountBucket {
    /// The time in which one more may pass, in nanoseconds; 0 stands for no limit.
    interval: AtomicU64,
    burst: AtomicU32,
    full_at: FullAt,
}

impl CountBucket {
    /// Sets the limit. `None` stands for no limit. The least is one at once and one a second.
    pub(super) fn set(&self, limit: Option<(u32, u32)>) {
        let (burst, interval) = limit.map_or((0, 0), |(burst, per_second)| {
            (burst.max(1), 1_000_000_000 / u64::from(per_second.max(1)))
        });
        self.burst.store(burst, Relaxed);
        self.interval.store(interval, Relaxed);
    }

    /// Takes one at the time `now`, in nanoseconds, if the bucket has one.
    pub(super) fn take(&self, now: u64) -> bool {
        let interval = self.interval.load(Relaxed);
        let depth = interval.saturating_mul(u64::from(self.burst.load(Relaxed)));
        interval == 0 || self.full_at.take(now, interval, depth)
    }
}

/// A token bucket of bytes.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// Bits per second; 0 stands for no limit.
    rate: AtomicU64,
    full_at: FullAt,
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
        let Some(rate) = Rate::from_bps(self.rate.load(Relaxed)) else { return true }; // no limit
        self.full_at.take(now, nanos(rate, bytes), depth(rate))
    }

    /// Takes bytes that have passed already, even if the bucket does not have them.
    pub(super) fn charge(&self, now: u64, bytes: usize) {
        let Some(rate) = Rate::from_bps(self.rate.load(Relaxed)) else { return }; // no limit
        let next = |full_at: u64| Some(full_at.max(now).saturating_add(nanos(rate, bytes)));
        // It always succeeds.
        self.full_at.0.fetch_update(Relaxed, Relaxed, next).unwrap_or_default();
    }

    /// The time until the bucket has something again. `None`: it has something.
    pub(super) fn wait(&self, now: u64) -> Option<Duration> {
        let rate = Rate::from_bps(self.rate.load(Relaxed))?;
        let debt = self.full_at.0.load(Relaxed).saturating_sub(now.saturating_add(depth(rate)));
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
    fn a_bucket_of_counted_things_passes_its_burst_and_then_its_rate() {
        let bucket = CountBucket::default();
        assert!((0..10_000).all(|_| bucket.take(0)), "there is no limit");
        bucket.set(Some((4000, 200)));
        let passed = |now| (0..10_000).filter(|_| bucket.take(now)).count();
        assert_eq!(passed(0), 4000);
        let each_milli: usize = (1..=10_000).map(|milli| passed(milli * MS)).sum();
        assert_eq!(each_milli, 2000);
        assert_eq!(passed(20_000 * MS), 2000);
        assert_eq!(passed(1_000_000 * MS), 4000, "no more than the burst is saved");
        bucket.set(Some((0, 0)));
        assert_eq!(passed(2_000_000 * MS), 1);
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
