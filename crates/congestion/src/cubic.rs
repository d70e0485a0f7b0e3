use std::time::{Duration, Instant};

use tandem_units::ByteCount;

/// The window of CUBIC, [RFC 9438], with the names of its section 4.1. It is a part of controllers: they
/// decide what clocks it.
///
/// [RFC 9438]: https://www.rfc-editor.org/rfc/rfc9438
#[derive(Clone, Debug)]
pub(crate) struct Cubic {
    /// The largest segment in bytes.
    smss: f64,
    /// In bytes, as all windows here.
    cwnd: f64,
    ssthresh: f64,
    w_max: f64,
    w_est: f64,
    cwnd_prior: f64,
    /// In seconds.
    k: f64,
    epoch_start: Option<Instant>,
    /// Since when the window does not limit the sender.
    idle_since: Option<Instant>,
    recovery_start: Option<Instant>,
}

/// §4.1: C in segments per second cubed.
const C: f64 = 0.4;

/// §4.6: the factor of the window at a congestion event.
const BETA: f64 = 0.7;

/// §4.3: the growth of a flow of Reno that gets as much as one with [`BETA`].
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// §4.6: `ssthresh` has two segments at least.
const SSTHRESH_SEGMENTS: f64 = 2.0;

impl Cubic {
    pub(crate) fn new(initial_window: ByteCount, smss: ByteCount) -> Self {
        Self {
            smss: to_f64(smss),
            cwnd: to_f64(initial_window),
            ssthresh: f64::INFINITY,
            w_max: 0.0,
            w_est: 0.0,
            cwnd_prior: 0.0,
            k: 0.0,
            epoch_start: None,
            idle_since: None,
            recovery_start: None,
        }
    }

    pub(crate) fn window(&self) -> ByteCount {
        to_bytes(self.cwnd)
    }

    pub(crate) fn is_in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    pub(crate) fn set_smss(&mut self, smss: ByteCount) {
        self.smss = to_f64(smss);
        self.cwnd = self.cwnd.max(SSTHRESH_SEGMENTS * self.smss);
    }

    /// Grows the window after `bytes` were acknowledged, the newest of which were sent at `sent`.
    /// `is_limit`: the window keeps the sender from sending more. Otherwise it does not grow, and the
    /// time does not count (§5.8).
    pub(crate) fn on_acked(
        &mut self,
        now: Instant,
        (bytes, sent): (ByteCount, Instant),
        is_limit: bool,
        rtt: Duration,
    ) {
        if self.recovery_start.is_some_and(|start| sent <= start) {
            return;
        }
        if !is_limit {
            self.idle_since.get_or_insert(now);
            return;
        }
        if let (Some(since), Some(start)) = (self.idle_since.take(), &mut self.epoch_start) {
            *start += now.saturating_duration_since(since);
        }
        let acked = to_f64(bytes);
        if self.is_in_slow_start() {
            self.cwnd += acked;
            return;
        }
        let start = *self.epoch_start.get_or_insert_with(|| {
            // §4.2: W_max is the window itself if there was none larger.
            self.w_max = self.w_max.max(self.cwnd);
            self.k = cube_root((self.w_max - self.cwnd) / (C * self.smss));
            self.w_est = self.cwnd;
            now
        });
        let elapsed = now.saturating_duration_since(start);
        let target = self.w_cubic(elapsed + rtt).clamp(self.cwnd, 1.5 * self.cwnd);
        let alpha = if self.w_est < self.cwnd_prior { ALPHA } else { 1.0 };
        self.w_est += alpha * acked * self.smss / self.cwnd;
        if self.w_cubic(elapsed) < self.w_est {
            self.cwnd = self.cwnd.max(self.w_est); // §4.3: as fast as Reno
        } else {
            self.cwnd += (target - self.cwnd) / self.cwnd * acked;
        }
    }

    /// `W_cubic(t)`, §4.2.
    fn w_cubic(&self, elapsed: Duration) -> f64 {
        let t = elapsed.as_secs_f64() - self.k;
        C * self.smss * t * t * t + self.w_max
    }

    /// Reduces the window, unless the packet was sent before the last reduction. `used`: how much of the
    /// window is in use.
    pub(crate) fn on_congestion(&mut self, now: Instant, sent: Instant, used: ByteCount) {
        if self.recovery_start.is_some_and(|start| sent <= start) {
            return;
        }
        self.recovery_start = Some(now);
        let used = to_f64(used).min(self.cwnd);
        // §4.7: fast convergence.
        self.w_max = if used < self.w_max { used * (1.0 + BETA) / 2.0 } else { used };
        self.cwnd_prior = used;
        self.ssthresh = (used * BETA).max(SSTHRESH_SEGMENTS * self.smss);
        self.cwnd = self.ssthresh;
        self.epoch_start = None;
        self.idle_since = None;
    }

    /// Begins again with this window, after which nothing is known of the path.
    pub(crate) fn restart(&mut self, window: ByteCount) {
        self.cwnd = to_f64(window).max(SSTHRESH_SEGMENTS * self.smss);
        self.epoch_start = None;
        self.idle_since = None;
        self.recovery_start = None;
    }

    /// Lowers the window to what is in use, after which it grows as after a congestion event.
    pub(crate) fn lower_to(&mut self, used: ByteCount) {
        let used = to_f64(used).max(SSTHRESH_SEGMENTS * self.smss);
        if used < self.cwnd {
            self.cwnd = used;
            self.ssthresh = self.ssthresh.min(used);
            self.epoch_start = None;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
const fn to_f64(bytes: ByteCount) -> f64 {
    bytes.get() as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
const fn to_bytes(bytes: f64) -> ByteCount {
    ByteCount::new(bytes.clamp(0.0, 1e15) as u64)
}

/// The cube root by Newton's method, which is the same on every machine.
fn cube_root(number: f64) -> f64 {
    if number <= 0.0 {
        return 0.0;
    }
    let mut root = number.max(1.0);
    for _ in 0..64 {
        root -= (root * root * root - number) / (3.0 * root * root);
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMSS: ByteCount = ByteCount::new(1000);
    const RTT: Duration = Duration::from_millis(100);

    /// Acknowledges one window.
    fn round(cubic: &mut Cubic, now: &mut Instant, is_limit: bool) {
        *now += RTT;
        let window = cubic.window();
        cubic.on_acked(*now, (window, *now), is_limit, RTT);
    }

    fn after_loss() -> (Cubic, Instant) {
        let now = crate::test_start();
        let mut cubic = Cubic::new(ByteCount::new(100_000), SMSS);
        cubic.on_congestion(now, now, ByteCount::new(100_000));
        (cubic, now)
    }

    #[test]
    fn slow_start_doubles_the_window_each_round() {
        let mut now = crate::test_start();
        let mut cubic = Cubic::new(ByteCount::new(10_000), SMSS);
        for _ in 0..3 {
            round(&mut cubic, &mut now, true);
        }
        assert_eq!(cubic.window(), ByteCount::new(80_000));
    }

    #[test]
    fn a_loss_takes_three_tenths_once_per_round_trip() {
        let (mut cubic, now) = after_loss();
        assert_eq!(cubic.window(), ByteCount::new(70_000));
        cubic.on_congestion(now + RTT, now, ByteCount::new(100_000));
        assert_eq!(cubic.window(), ByteCount::new(70_000));
        cubic.on_congestion(now + RTT, now + RTT, ByteCount::new(70_000));
        assert_eq!(cubic.window(), ByteCount::new(49_000));
    }

    #[test]
    fn the_window_is_back_after_k_seconds_and_grows_beyond() {
        let (mut cubic, start) = after_loss();
        let mut now = start;
        // K is the cube root of 30 / 0.4: 4.22 s.
        while now < start + Duration::from_millis(4300) {
            assert!(cubic.window() < ByteCount::new(101_000), "{:?}", now - start);
            round(&mut cubic, &mut now, true);
        }
        assert!(cubic.window() > ByteCount::new(98_000), "{}", cubic.window());
        for _ in 0..40 {
            round(&mut cubic, &mut now, true);
        }
        assert!(cubic.window() > ByteCount::new(120_000), "{}", cubic.window());
    }

    #[test]
    fn a_window_that_is_not_the_limit_does_not_grow_and_does_not_age() {
        let (mut cubic, start) = after_loss();
        let mut now = start;
        round(&mut cubic, &mut now, true);
        let before = cubic.window();
        for _ in 0..100 {
            round(&mut cubic, &mut now, false);
        }
        assert_eq!(cubic.window(), before);
        round(&mut cubic, &mut now, true);
        assert!(cubic.window() < ByteCount::new(80_000), "{}", cubic.window());
    }

    #[test]
    fn cube_roots_are_exact_enough() {
        for (number, root) in
            [(0.0, 0.0), (1e-3, 0.1), (1.0, 1.0), (75.0, 4.217_163_326), (1e9, 1e3)]
        {
            assert!((cube_root(number) - root).abs() < 1e-6, "{number}");
        }
    }
}
