//! A bound on what reports cost: at most one per cent of each direction of a tunnel.

use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate};

/// One of this many bytes that a direction can carry may belong to reports.
const SHARE: i64 = 100;

/// Reports that may be sent at once, before the direction has carried anything.
const BURST: i64 = 16;

/// The bytes that a report costs on the way to the client: an HTTP Datagram of 30 bytes, and the
/// headers of IP, UDP, QUIC and the DATAGRAM frame, with the tag of the encryption. A packet full of
/// payload has no room for a report.
const TO_CLIENT: i64 = 90;

/// The bytes that a report costs on the way from the client: half an ACK of the packet in which it
/// came, and the frame in which the client passes it on, in a packet with an ACK.
const FROM_CLIENT: i64 = 70;

/// The bytes of a full packet. The first one of a sample may have been on its way for longer than the sample, so that
/// it does not count beside others. On a thin link, two of them seemed to come at twice its rate.
const FULL_PACKET: u64 = 1200;

/// The time over which the rate from the client is measured.
const SAMPLE: Duration = Duration::from_millis(50);

/// The largest rate of the last one to two of these times counts. Pauses without active flows do not
/// count, because a direction carries no less after a pause.
const MEMORY: Duration = Duration::from_secs(5);

/// A longer time between two reports is a pause.
const PAUSE: Duration = Duration::from_secs(1);

/// What reports may still cost in both directions.
#[derive(Debug)]
pub(super) struct ReportBudget {
    to_client: Credit,
    from_client: Credit,
    peak: Peak,
    earned: Option<Instant>,
}

impl ReportBudget {
    pub(super) const fn new() -> Self {
        Self {
            to_client: Credit::new(TO_CLIENT),
            from_client: Credit::new(FROM_CLIENT),
            peak: Peak::new(),
            earned: None,
        }
    }

    /// Adds what reports may cost for the time since the last call. `sending_rate` is the rate at
    /// which the tunnel can send, and `received` the number of bytes that have come from the client.
    pub(super) fn earn(&mut self, now: Instant, sending_rate: Rate, received: ByteCount) {
        let since = self.earned.replace(now).unwrap_or(now);
        let elapsed = now.saturating_duration_since(since);
        let receiving_rate = self.peak.update(now, elapsed.min(PAUSE), received);
        self.to_client.earn(sending_rate.bytes_in(elapsed));
        self.from_client.earn(receiving_rate.map_or(ByteCount::ZERO, |it| it.bytes_in(elapsed)));
    }

    /// Pays for a report. `false`: it would cost too much. The first report on a flow is never
    /// refused, because an origin needs it before it sends, and the flow's request costs more than
    /// the report. Later reports have to make up for it.
    pub(super) fn spend(&mut self, is_first: bool) -> bool {
        let is_enough = self.to_client.is_enough() && self.from_client.is_enough();
        if is_enough || is_first {
            self.to_client.spend();
            self.from_client.spend();
        }
        is_enough || is_first
    }
}

/// The bytes that a direction could carry and that are not set against a report yet.
#[derive(Debug)]
struct Credit {
    /// It is below zero after first reports, and always within a burst of zero.
    bytes: i64,
    /// The bytes that are set against one report.
    price: i64,
}

impl Credit {
    /// The credit for a burst of reports of this cost in bytes.
    const fn new(cost: i64) -> Self {
        let price = cost * SHARE;
        Self { bytes: BURST * price, price }
    }

    fn earn(&mut self, carried: ByteCount) {
        let carried = i64::try_from(carried.get()).unwrap_or(i64::MAX);
        self.bytes = self.bytes.saturating_add(carried).min(BURST * self.price);
    }

    const fn is_enough(&self) -> bool {
        self.bytes >= self.price
    }

    fn spend(&mut self) {
        self.bytes = (self.bytes - self.price).max(-BURST * self.price);
    }
}

/// The largest rate at which bytes have come from the client. How much more the direction could
/// carry is not known.
#[derive(Debug)]
struct Peak {
    /// The largest rate of the present time, and that of the time before.
    rates: [Option<Rate>; 2],
    /// The age of the present time.
    age: Duration,
    /// The start of the present sample, and the bytes that had come by then.
    sample: Option<(Instant, ByteCount)>,
}

impl Peak {
    const fn new() -> Self {
        Self { rates: [None; 2], age: Duration::ZERO, sample: None }
    }

    /// Notes how many bytes have come in all, after the flows were active for some time. Returns the
    /// largest rate.
    fn update(&mut self, now: Instant, active: Duration, received: ByteCount) -> Option<Rate> {
        self.age += active;
        if self.age >= MEMORY {
            self.rates.rotate_right(1);
            (self.rates[0], self.age) = (None, Duration::ZERO);
        }
        let (since, before) = *self.sample.get_or_insert((now, received));
        let elapsed = now.saturating_duration_since(since);
        if elapsed >= SAMPLE {
            let came = received.saturating_sub(before).get();
            let counted = came.saturating_sub(FULL_PACKET).max(came.min(FULL_PACKET));
            let rate = Rate::average(ByteCount::new(counted), elapsed);
            self.rates[0] = self.rates[0].max(rate);
            self.sample = Some((now, received));
        }
        self.rates.into_iter().max().flatten()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_start;

    const SECOND: Duration = Duration::from_secs(1);

    /// Counts the reports of a tunnel that would send one each 5 ms, over links of these rates.
    fn reports(to_client: Rate, from_client: Rate, time: Duration) -> u64 {
        let (mut budget, begin) = (ReportBudget::new(), test_start());
        let interval = Duration::from_millis(5);
        let mut passed = Duration::ZERO;
        let mut reports = 0;
        while passed < time {
            budget.earn(begin + passed, to_client, from_client.bytes_in(passed));
            reports += u64::from(budget.spend(false));
            passed += interval;
        }
        reports
    }

    #[test]
    fn two_packets_that_come_in_one_sample_do_not_make_a_link_faster() {
        let (mut peak, begin) = (Peak::new(), test_start());
        // At 100 kbit/s a packet of 1250 bytes takes 100 ms. The first one began before the sample.
        for (ms, received) in [(0, 0), (10, 1250), (110, 2500)] {
            peak.update(begin + Duration::from_millis(ms), SAMPLE, ByteCount::new(received));
        }
        let rate = peak.rates[0].expect("a sample is over");
        assert!(rate <= Rate::from_bps(100_000).expect("not zero"), "{rate}");
    }

    #[test]
    fn reports_cost_one_per_cent_of_the_thinner_direction() {
        let (thin, wide) = (Rate::from_bps(100_000).unwrap(), Rate::from_mbps(100));
        // 100 kbit/s are 12.5 kB/s. One per cent of that pays for 1.8 reports from the client, or for
        // 1.4 to the client.
        for (to_client, from_client, expected) in [
            (wide, thin, 16 + 17..=16 + 18),
            (thin, wide, 16 + 13..=16 + 14),
            (wide, wide, 2000..=2000),
        ] {
            let seen = reports(to_client, from_client, 10 * SECOND);
            assert!(expected.contains(&seen), "{to_client}, {from_client}: {seen}");
        }
    }

    #[test]
    fn a_first_report_is_always_sent_and_later_ones_make_up_for_it() {
        let (mut budget, begin) = (ReportBudget::new(), test_start());
        while budget.spend(false) {}
        for _ in 0..100 {
            assert!(budget.spend(true));
        }
        // The debt is sixteen reports from the client, and the same number of reports to it.
        let rate = Rate::from_mbps(1);
        let mut carried = ByteCount::ZERO;
        budget.earn(begin, rate, carried);
        let mut waited = Duration::ZERO;
        while !budget.spend(false) {
            waited += Duration::from_millis(50);
            carried = rate.bytes_in(waited);
            budget.earn(begin + waited, rate, carried);
        }
        let paid = 17 * u64::try_from(TO_CLIENT * SHARE).unwrap();
        assert!((paid..paid + 10_000).contains(&rate.bytes_in(waited).get()), "{waited:?}");
    }

    #[test]
    fn the_fastest_seconds_count_for_some_time() {
        let mut peak = Peak::new();
        let (mut now, mut carried) = (test_start(), ByteCount::ZERO);
        let mut run = |rate: Rate, seconds: u32| {
            let mut best = None;
            for _ in 0..seconds * 10 {
                now += SECOND / 10;
                carried += rate.bytes_in(SECOND / 10);
                best = peak.update(now, SECOND / 10, carried);
            }
            best
        };
        let (fast, slow) = (Rate::from_mbps(8), Rate::from_bps(80_000).unwrap());
        // A sample lasts 100 ms, and its first full packet does not count.
        let counted = fast.bytes_in(SECOND / 10) - ByteCount::new(FULL_PACKET);
        let seen = Rate::average(counted, SECOND / 10);
        assert_eq!(run(fast, 1), seen);
        assert_eq!(run(slow, 4), seen);
        assert_eq!(run(slow, 10), Some(slow));
        assert_eq!(peak.update(now + 100 * SECOND, PAUSE, carried), Some(slow));
    }

    proptest! {
        #[test]
        fn the_cost_never_exceeds_one_per_cent_and_a_burst(
            steps in prop::collection::vec((0_u64..2000, 0_u64..1_000_000, 1_u64..1_000_000_000), 1..200),
        ) {
            let (mut budget, mut now) = (ReportBudget::new(), test_start());
            let (mut received, mut to_client, mut reports) = (ByteCount::ZERO, 0, 0_u64);
            for (ms, bytes, rate) in steps {
                let step = Duration::from_millis(ms);
                now += step;
                received += ByteCount::new(bytes);
                let rate = Rate::from_bps(rate).unwrap();
                to_client += rate.bytes_in(step).get();
                budget.earn(now, rate, received);
                while budget.spend(false) {
                    reports += 1;
                }
            }
            let (to_each, burst) = (u64::try_from(TO_CLIENT).unwrap(), u64::try_from(BURST).unwrap());
            prop_assert!(reports * to_each * 100 <= to_client + burst * to_each * 100);
        }
    }
}
