use std::time::Duration;

use tandem_units::{ByteCount, Rate, Ratio};

use crate::Capacity;

/// The ideal completion time of a download, with which flow completion times are compared.
///
/// Two end-to-end RTTs (handshake and request), plus the time that the bottleneck needs to carry
/// `1.06 * size / (1 - loss)` bytes of IP packets. The factor 1.06 covers headers, including those
/// of one tunnel. `loss` is random loss after the bottleneck, which uses capacity. For loss before
/// the bottleneck it is zero. The bytes are rounded up to whole bytes, and then the time to whole
/// nanoseconds. With a loss of 100 % the result is [`Duration::MAX`].
pub fn ideal_completion(size: ByteCount, rate: Rate, e2e_rtt: Duration, loss: Ratio) -> Duration {
    let at_once = Duration::ZERO;
    ideal_completion_over(&Capacity::Constant(rate), size, e2e_rtt, loss, at_once)
}

/// Works as [`ideal_completion`], for any bottleneck. The download begins at `begin`, counted from
/// the start of the path. On a trace the opportunities after the two round trips count. Without a
/// bottleneck only the round trips count.
pub fn ideal_completion_over(
    capacity: &Capacity,
    size: ByteCount,
    e2e_rtt: Duration,
    loss: Ratio,
    begin: Duration,
) -> Duration {
    let Some(bytes) = carried_bytes(size, loss) else { return Duration::MAX };
    let exchange = e2e_rtt * 2;
    exchange.saturating_add(capacity.time_to_carry(bytes, begin + exchange))
}

/// The result of `1.06 * size / (1 - loss)`, rounded up; `None` if no packet arrives.
fn carried_bytes(size: ByteCount, loss: Ratio) -> Option<ByteCount> {
    let billion = u128::from(Ratio::ONE.parts_per_billion());
    let carried = u128::from(size.get()) * 106 * billion;
    let arriving = 100 * u128::from(loss.complement().parts_per_billion());
    let bytes = (arriving > 0).then(|| carried.div_ceil(arriving))?;
    Some(ByteCount::new(u64::try_from(bytes).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::RateTrace;

    #[test]
    fn the_ideal_is_two_round_trips_and_the_time_at_the_bottleneck() {
        let rtt = Duration::from_millis(140);
        let rate = Rate::from_mbps(10);
        for (size, loss, expected_nanos) in [
            (0, Ratio::ZERO, 280_000_000),
            (10_000_000, Ratio::ZERO, 280_000_000 + 8_480_000_000),
            // 10 600 000 / 0.95 = 11 157 894.7 bytes, rounded up, at 800 ns each.
            (10_000_000, Ratio::of(5, 100), 280_000_000 + 11_157_895 * 800),
            (1, Ratio::ZERO, 280_000_000 + 2 * 800),
        ] {
            let ideal = ideal_completion(ByteCount::new(size), rate, rtt, loss);
            assert_eq!(ideal.as_nanos(), expected_nanos, "{size} bytes at {loss}");
        }
    }

    #[test]
    fn the_ideal_on_a_trace_takes_the_opportunities_after_two_round_trips() {
        // There are 1060 full packets of 1500 bytes. The trace carries 10 of them per round of 1 s,
        // all at its end.
        let trace = Arc::new(RateTrace::from_millis(vec![1000; 10]).unwrap());
        let capacity = Capacity::Trace { trace, offset: Duration::from_millis(300) };
        let size = ByteCount::new(1_500_000);
        for (begin_ms, expected_ms) in [
            (0, 105_000 + 700),
            (400, 105_000 + 300),
            // The two round trips end exactly when a round ends, which is too late for that round.
            (420, 106_000 + 280),
        ] {
            let begin = Duration::from_millis(begin_ms);
            let rtt = Duration::from_millis(140);
            let ideal = ideal_completion_over(&capacity, size, rtt, Ratio::ZERO, begin);
            assert_eq!(ideal, Duration::from_millis(expected_ms), "begun at {begin:?}");
        }
    }

    #[test]
    fn the_ideal_of_a_download_that_never_arrives_is_endless() {
        let rate = Rate::from_mbps(1);
        let ideal = ideal_completion(ByteCount::new(1), rate, Duration::ZERO, Ratio::ONE);
        assert_eq!(ideal, Duration::MAX);
        let none = Ratio::ZERO;
        let once = Arc::new(RateTrace::from_millis(vec![1]).unwrap().once());
        let once = Capacity::Trace { trace: once, offset: Duration::ZERO };
        let ideal = |size, loss| {
            let rtt = Duration::from_millis(1);
            ideal_completion_over(&once, ByteCount::new(size), rtt, loss, Duration::ZERO)
        };
        assert_eq!(ideal(1, none), Duration::MAX, "the trace has ended");
        assert_eq!(ideal(1, Ratio::ONE), Duration::MAX);
        assert_eq!(ideal(0, none), Duration::from_millis(2));
    }
}
