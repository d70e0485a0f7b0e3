use std::time::Duration;

use tandem_units::{ByteCount, Rate, Ratio};

/// The time that a download could take at best: the yardstick for flow completion times.
///
/// Two end-to-end RTTs (handshake and request), plus the time that the bottleneck needs to carry
/// `1.06 * size / (1 - loss)` bytes of IP packets. 1.06: headers, of one tunnel too. `loss` is
/// random loss after the bottleneck, whose victims used its capacity; loss before it is zero here.
///
/// The bytes are rounded up to whole ones, then the time to whole nanoseconds. With a loss of
/// 100 % it is [`Duration::MAX`].
pub fn ideal_completion(size: ByteCount, rate: Rate, e2e_rtt: Duration, loss: Ratio) -> Duration {
    let Some(bytes) = carried_bytes(size, loss) else { return Duration::MAX };
    (e2e_rtt * 2).saturating_add(rate.time_to_send(bytes))
}

/// `1.06 * size / (1 - loss)`, rounded up; `None` if nothing arrives.
pub(crate) fn carried_bytes(size: ByteCount, loss: Ratio) -> Option<ByteCount> {
    let billion = u128::from(Ratio::ONE.parts_per_billion());
    let carried = u128::from(size.get()) * 106 * billion;
    let arriving = 100 * u128::from(loss.complement().parts_per_billion());
    let bytes = (arriving > 0).then(|| carried.div_ceil(arriving))?;
    Some(ByteCount::new(u64::try_from(bytes).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_ideal_of_what_never_arrives_is_endless() {
        let rate = Rate::from_mbps(1);
        let ideal = ideal_completion(ByteCount::new(1), rate, Duration::ZERO, Ratio::ONE);
        assert_eq!(ideal, Duration::MAX);
    }
}
