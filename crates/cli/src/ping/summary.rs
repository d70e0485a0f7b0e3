//! What was measured, for people and for programs.

use std::{fmt, time::Duration};

use serde::Serialize;
use tandem_node::client::HopStatus;

use crate::outcome::round;

/// What was measured; the object of `ping --json`. Units are in the names.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Summary {
    /// The target; null if only the proxy was asked.
    pub(super) target: Option<String>,
    /// The proxies, the nearest first.
    pub(super) proxies: Vec<ProxySummary>,
    /// Requests that left.
    pub(super) sent: u32,
    /// Those that were answered.
    pub(super) answered: u32,
    /// Those that were refused or not answered in time.
    pub(super) failed: u32,
    /// The shortest time until an answer; null without one.
    min_ms: Option<f64>,
    mean_ms: Option<f64>,
    max_ms: Option<f64>,
    #[serde(skip)]
    times: Times,
}

/// The connection to one proxy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ProxySummary {
    /// Host, and port unless it is 443.
    proxy: String,
    /// The handshake of QUIC and TLS.
    handshake_ms: f64,
    /// From the first packet until the tunnel was up.
    setup_ms: f64,
    /// QUIC's smoothed RTT at the end. That of a proxy behind another one is the RTT through the tunnels before it.
    rtt_ms: f64,
    /// Packets that the client sent.
    sent_packets: u64,
    /// Those of them that were lost.
    lost_packets: u64,
}

/// The times until answers.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    min: Option<Duration>,
    max: Duration,
    sum: Duration,
}

impl Summary {
    pub(super) fn new(target: Option<String>) -> Self {
        Self { target, ..Self::default() }
    }

    /// Takes the state of the connections. `setups`: how long they took to come up.
    pub(super) fn see(&mut self, hops: &[HopStatus], setups: &[Duration]) {
        if hops.iter().any(|hop| !hop.is_up) {
            return; // what was seen before the tunnel broke says more
        }
        let seen = hops.iter().zip(setups).map(|(hop, setup)| ProxySummary {
            proxy: hop.authority.clone(),
            handshake_ms: milliseconds(hop.handshake.unwrap_or_default()),
            setup_ms: milliseconds(*setup),
            rtt_ms: milliseconds(hop.connection.smoothed_rtt),
            sent_packets: hop.connection.sent_packets,
            lost_packets: hop.connection.lost_packets,
        });
        self.proxies = seen.collect();
    }

    /// Notes the time until an answer.
    pub(super) fn note(&mut self, time: Duration) {
        self.answered += 1;
        let Times { min, max, sum } = &mut self.times;
        *min = Some(min.map_or(time, |min| min.min(time)));
        *max = time.max(*max);
        *sum += time;
        self.min_ms = min.map(milliseconds);
        self.mean_ms = Some(milliseconds(*sum / self.answered));
        self.max_ms = Some(milliseconds(*max));
    }

    /// The mean time until an answer in milliseconds; 0 without one.
    pub(super) fn mean_ms(&self) -> f64 {
        self.mean_ms.unwrap_or_default()
    }

    /// The last proxy.
    pub(super) fn peer(&self) -> &str {
        self.proxies.last().map_or("the proxy", |proxy| &proxy.proxy)
    }

    /// What to say of each proxy when the tunnel is up.
    pub(super) fn setup_lines(&self) -> Vec<String> {
        let line = |it: &ProxySummary| {
            let ProxySummary { proxy, setup_ms, handshake_ms, .. } = it;
            let [setup, handshake] = [setup_ms, handshake_ms].map(|it| shown(*it));
            format!("{proxy}: connected after {setup}, the handshake took {handshake} of it")
        };
        self.proxies.iter().map(line).collect()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, answered, failed, min_ms, mean_ms, max_ms, .. } = self;
        write!(f, "{sent} requests, {answered} answered, {failed} failed")?;
        if let (Some(min), Some(mean), Some(max)) = (min_ms, mean_ms, max_ms) {
            let [min, mean, max] = [min, mean, max].map(|it| digits(*it));
            write!(f, "; min/mean/max {min}/{mean}/{max} ms")?;
        }
        for it in &self.proxies {
            let ProxySummary { proxy, sent_packets, lost_packets, .. } = it;
            let rtt = shown(it.rtt_ms);
            write!(
                f,
                "\n{proxy}: RTT {rtt} (QUIC), lost {lost_packets} of {sent_packets} packets"
            )?;
        }
        Ok(())
    }
}

/// A time for people.
pub(super) fn ms(time: Duration) -> String {
    shown(milliseconds(time))
}

fn shown(ms: f64) -> String {
    format!("{} ms", digits(ms))
}

/// Three digits or a few more.
fn digits(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.2}") } else { format!("{ms:.1}") }
}

/// In milliseconds, to the microsecond.
fn milliseconds(time: Duration) -> f64 {
    round(time.as_secs_f64() * 1e3, 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_the_least_the_mean_and_the_largest_time() {
        let mut summary = Summary::new(Some("git.example:22".to_owned()));
        for ms in [20_000, 5_250, 7_750] {
            summary.note(Duration::from_micros(ms));
        }
        (summary.sent, summary.failed) = (4, 1);
        let text = summary.to_string();
        let expected = "4 requests, 3 answered, 1 failed; min/mean/max 5.25/11.0/20.0 ms";
        assert_eq!(text, expected);
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!(json["mean_ms"], 11.0);
        assert_eq!(json["target"], "git.example:22");
        assert!(json.get("times").is_none());
    }

    #[test]
    fn without_an_answer_there_are_no_times() {
        let summary = Summary { sent: 2, failed: 2, ..Summary::new(None) };
        assert_eq!(summary.to_string(), "2 requests, 0 answered, 2 failed");
        assert_eq!(serde_json::to_value(&summary).unwrap()["min_ms"], serde_json::Value::Null);
    }
}
