//! The round-trip time, [RFC 9002 §5].
//!
//! [RFC 9002 §5]: https://www.rfc-editor.org/rfc/rfc9002#section-5

use std::time::Duration;

/// The timer granularity, `kGranularity` (RFC 9002 §6.1.2).
pub(crate) const GRANULARITY: Duration = Duration::from_millis(1);

/// The longest time for which a receiver delays an acknowledgement, `max_ack_delay` (RFC 9000 §18.2). Both ends have
/// the same.
pub const MAX_ACK_DELAY: Duration = Duration::from_millis(25);

/// `smoothed_rtt`, `rttvar`, `min_rtt` and `latest_rtt`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    pub(crate) smoothed: Duration,
    pub(crate) variation: Duration,
    pub(crate) min: Duration,
    pub(crate) latest: Duration,
    pub(crate) has_sample: bool,
}

impl Rtt {
    /// Before the first sample.
    pub(crate) fn new(initial: Duration) -> Self {
        let [smoothed, min, latest] = [initial; 3];
        Self { smoothed, variation: initial / 2, min, latest, has_sample: false }
    }

    /// What is known of the path already.
    pub(crate) fn known(smoothed: Duration, min: Duration) -> Self {
        Self { min: min.min(smoothed), has_sample: true, ..Self::new(smoothed) }
    }

    /// Takes a sample. `ack_delay`: as the peer says.
    pub(crate) fn on_sample(&mut self, latest: Duration, ack_delay: Duration) {
        self.latest = latest;
        if !self.has_sample {
            *self = Self { has_sample: true, latest, ..Self::new(latest) };
            return;
        }
        self.min = self.min.min(latest);
        let ack_delay = ack_delay.min(MAX_ACK_DELAY);
        // §5.3: an adjusted RTT is never below the minimum.
        let without_delay = latest.checked_sub(ack_delay).filter(|it| *it >= self.min);
        let adjusted = without_delay.unwrap_or(latest);
        let difference = self.smoothed.abs_diff(adjusted);
        self.variation = (self.variation * 3 + difference) / 4;
        self.smoothed = (self.smoothed * 7 + adjusted) / 8;
    }

    /// §5.2: after persistent congestion, the minimum is set to the newest sample.
    pub(crate) fn on_persistent_congestion(&mut self) {
        self.min = self.latest;
    }

    /// The probe timeout without its back-off (§6.2.1).
    pub(crate) fn probe_timeout(&self) -> Duration {
        self.smoothed + (self.variation * 4).max(GRANULARITY) + MAX_ACK_DELAY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_smoothed_without_the_delay_of_acknowledgements() {
        let ms = Duration::from_millis;
        let mut rtt = Rtt::new(ms(333));
        assert_eq!(rtt.probe_timeout(), ms(333 + 666 + 25));
        for (latest, ack_delay, smoothed, variation, min) in [
            (100, 50, 100_000, 50_000, 100), // the first one counts as it is
            (180, 20, 107_500, 52_500, 100), // 160
            (110, 20, 107_812, 40_000, 100), // the delay would bring it below the minimum
            (200, 99, 116_210, 46_796, 100), // the peer may delay 25 ms
        ] {
            rtt.on_sample(ms(latest), ms(ack_delay));
            let micros = (rtt.smoothed.as_micros(), rtt.variation.as_micros());
            assert_eq!((micros, rtt.min), ((smoothed, variation), ms(min)), "{latest}");
        }
        rtt.on_persistent_congestion();
        assert_eq!(rtt.min, ms(200));
    }
}
