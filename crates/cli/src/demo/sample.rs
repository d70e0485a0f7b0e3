//! Both layers of a journey over time.

use std::time::Duration;

use serde::Serialize;
use tandem_node::ConnectionStats;
use tandem_units::ByteCount;

use super::gauges::{PERIOD, Readings};
use crate::outcome::round;

/// The largest number of samples of a journey. When a journey has more, every second one is dropped
/// and the interval doubles, so that a journey of any length can be kept and drawn.
const SAMPLES_MAX: usize = 4_000;

/// Both layers at one time, and one line of `--series`. The names are those of `lab run --series`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct DemoSample {
    /// Time since the client began to connect.
    pub(super) at_s: f64,
    /// The origin's pacing rate.
    pub(super) e2e_pacing_mbps: Option<f64>,
    /// The proxy's pacing rate; none without a tunnel.
    pub(super) tunnel_pacing_mbps: Option<f64>,
    /// The origin's smoothed RTT.
    pub(super) e2e_srtt_ms: Option<f64>,
    /// The proxy's smoothed RTT; none without a tunnel.
    pub(super) tunnel_srtt_ms: Option<f64>,
    /// Length of the proxy's tunnel queue; none without a tunnel.
    pub(super) tunnel_queue_bytes: Option<u64>,
}

impl DemoSample {
    /// The readings of the gauges at this time.
    pub(super) fn new(at: Duration, readings: &Readings) -> Self {
        let Readings { e2e, tunnel, tunnel_queue, .. } = readings;
        Self {
            at_s: round(at.as_secs_f64(), 1e3),
            e2e_pacing_mbps: e2e.as_ref().map(pacing_mbps),
            tunnel_pacing_mbps: tunnel.as_ref().map(pacing_mbps),
            e2e_srtt_ms: e2e.as_ref().map(srtt_ms),
            tunnel_srtt_ms: tunnel.as_ref().map(srtt_ms),
            tunnel_queue_bytes: tunnel_queue.map(ByteCount::get),
        }
    }
}

/// The rate at which packets may leave. Where the controller names none, the engine paces by 5/4 of a
/// window each smoothed RTT (RFC 9002 §7.7).
fn pacing_mbps(connection: &ConnectionStats) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
    let megabits = |bits: u64| bits as f64 / 1e6;
    let mbps = if let Some(rate) = connection.pacing_rate {
        megabits(rate.bits_per_second())
    } else {
        let window = megabits(connection.congestion_window.get() * 8);
        1.25 * window / connection.smoothed_rtt.as_secs_f64().max(1e-6)
    };
    round(mbps, 1e3)
}

fn srtt_ms(connection: &ConnectionStats) -> f64 {
    round(connection.smoothed_rtt.as_secs_f64() * 1e3, 1e3)
}

/// The samples of one journey.
#[derive(Debug)]
pub(super) struct Samples {
    kept: Vec<DemoSample>,
    interval: Duration,
    next: Duration,
}

impl Samples {
    pub(super) fn new() -> Self {
        Self { kept: Vec::new(), interval: PERIOD, next: Duration::ZERO }
    }

    /// Keeps the readings of this time, if a sample is due and a download is in progress.
    pub(super) fn add(&mut self, at: Duration, readings: &Readings) {
        if at < self.next || !readings.is_under_way() {
            return;
        }
        self.kept.push(DemoSample::new(at, readings));
        if self.kept.len() >= SAMPLES_MAX {
            let mut is_kept = true; // the last is kept, so that the next one is an interval away
            self.kept.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.interval *= 2;
        }
        // The sampler wakes on a grid of its own, so a sample may be half a period early.
        self.next = at + self.interval.saturating_sub(PERIOD / 2);
    }

    /// The samples in order of time.
    pub(super) fn as_slice(&self) -> &[DemoSample] {
        &self.kept
    }
}

#[cfg(test)]
mod tests {
    use tandem_units::Rate;

    use super::*;

    fn readings() -> Readings {
        Readings {
            e2e: Some(ConnectionStats {
                smoothed_rtt: Duration::from_millis(150),
                pacing_rate: Some(Rate::from_mbps(10)),
                ..ConnectionStats::default()
            }),
            tunnel: Some(ConnectionStats {
                smoothed_rtt: Duration::from_millis(40),
                congestion_window: ByteCount::new(40_000),
                pacing_rate: None,
                ..ConnectionStats::default()
            }),
            tunnel_queue: Some(ByteCount::new(1_500)),
            body: 1,
            body_len: Some(10_000),
            ..Readings::default()
        }
    }

    #[test]
    fn a_controller_without_a_rate_is_paced_by_its_window() {
        let sample = DemoSample::new(Duration::from_micros(1_234_567), &readings());
        let expected = DemoSample {
            at_s: 1.235,
            e2e_pacing_mbps: Some(10.0),
            tunnel_pacing_mbps: Some(10.0), // 1.25 * 40 kB * 8 / 40 ms
            e2e_srtt_ms: Some(150.0),
            tunnel_srtt_ms: Some(40.0),
            tunnel_queue_bytes: Some(1_500),
        };
        assert_eq!(sample, expected);
    }

    #[test]
    fn a_journey_without_a_tunnel_has_the_lines_of_the_origin_only() {
        let untunnelled = Readings { tunnel: None, tunnel_queue: None, ..readings() };
        let sample = DemoSample::new(Duration::ZERO, &untunnelled);
        assert_eq!(sample.e2e_srtt_ms, Some(150.0));
        assert_eq!(sample.tunnel_srtt_ms, None);
        assert_eq!(sample.tunnel_pacing_mbps, None);
        assert_eq!(sample.tunnel_queue_bytes, None);
    }

    #[test]
    fn samples_are_kept_from_the_first_byte_to_the_last() {
        let mut samples = Samples::new();
        let mut at = Duration::ZERO;
        for body in [0, 0, 1, 9_999, 10_000, 10_000] {
            samples.add(at, &Readings { body, ..readings() });
            at += PERIOD;
        }
        let times: Vec<_> = samples.as_slice().iter().map(|sample| sample.at_s).collect();
        assert_eq!(times, [0.1, 0.15]);
    }

    #[test]
    fn a_long_journey_has_fewer_samples_a_second() {
        let mut samples = Samples::new();
        let mut at = Duration::ZERO;
        for _ in 0..6 * SAMPLES_MAX {
            samples.add(at, &readings());
            at += PERIOD;
        }
        let kept = samples.as_slice();
        assert!(kept.len() < SAMPLES_MAX && kept.len() > SAMPLES_MAX / 3, "{}", kept.len());
        let steps = kept.windows(2).map(|pair| pair[1].at_s - pair[0].at_s);
        let (least, most) =
            steps.fold((f64::MAX, 0_f64), |(least, most), step| (least.min(step), most.max(step)));
        assert!(most - least < 1e-6, "uneven: {least} to {most} s");
        assert!(kept.last().unwrap().at_s > at.as_secs_f64() - 1.0);
    }
}
