//! What was measured, for people and for programs.

use std::{fmt, time::Duration};

use serde::Serialize;
use tandem_node::client::ClientStatus;
use tandem_server::admin::words::bytes;

use super::Direction;
use crate::{
    config::HttpsUrl,
    outcome::{round, seconds},
};

/// A look at a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Since the first look.
    pub(super) at: Duration,
    /// The bytes of the body so far.
    pub(super) bytes: u64,
    /// The smoothed RTT of the end-to-end connection.
    pub(super) rtt: Duration,
}

/// The object of `speedtest --json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// The URL that was given.
    url: String,
    /// Number of proxies on the path.
    hops: usize,
    /// Null if it was not measured.
    download: Option<Measured>,
    /// Null if it was not measured.
    upload: Option<Measured>,
}

/// One direction. Units are in the names.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Measured {
    /// The mode that each proxy granted; the nearest is the first.
    granted: Vec<String>,
    /// Bits of the body per second, without the first fifth of the time.
    goodput_mbps: f64,
    /// Bytes of the body in the whole time.
    bytes: u64,
    /// The whole time.
    time_s: f64,
    /// The least smoothed RTT of the end-to-end connection, which is that of the first moments, before queues fill.
    rtt_idle_ms: f64,
    /// Median of its smoothed RTT while the rate was measured.
    rtt_loaded_ms: f64,
    /// QUIC packets that this program sent: in the tunnel to the nearest proxy, or to the origin.
    sent_packets: u64,
    /// Those of them that were lost.
    lost_packets: u64,
    /// Lost payloads that this end of the tunnels sent again.
    repaired: u64,
    /// Payloads that waited at this end of the tunnels for an earlier one, which was lost or late.
    waited: u64,
}

impl Measured {
    /// From looks at the transfer, and its last state.
    pub(super) fn new(samples: &[Sample], status: &ClientStatus) -> Self {
        let nearest = status.hops.first().map(|hop| &hop.connection);
        let end_to_end = status.end_to_end.as_ref().map(|it| &it.connection);
        let connection = nearest.or(end_to_end).copied().unwrap_or_default();
        let tunnels = status.hops.iter().map(|hop| &hop.tunnel);
        let granted = status.hops.iter().filter_map(|hop| hop.agreement);
        let idle = samples.iter().map(|sample| sample.rtt).min();
        let last = samples.last();
        let time = last.map_or(Duration::ZERO, |last| last.at);
        let steady = steady(samples, time);
        Self {
            granted: granted.map(|agreement| agreement.granted.to_string()).collect(),
            goodput_mbps: round(goodput(steady), 1e3),
            bytes: last.map_or(0, |last| last.bytes),
            time_s: seconds(time),
            rtt_idle_ms: ms(idle.unwrap_or_default()),
            rtt_loaded_ms: ms(median(steady)),
            sent_packets: connection.sent_packets,
            lost_packets: connection.lost_packets,
            repaired: tunnels.clone().map(|it| it.repaired.sent_again).sum(),
            waited: tunnels.map(|it| it.resequenced.waited).sum(),
        }
    }
}

/// The looks after the first fifth of the time, in which the rate grows.
fn steady(samples: &[Sample], time: Duration) -> &[Sample] {
    let begin = samples.partition_point(|sample| sample.at < time / 5);
    samples.get(begin..).unwrap_or_default()
}

/// In Mbit/s.
fn goodput(samples: &[Sample]) -> f64 {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return 0.0 };
    let time = last.at.saturating_sub(first.at).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^50 bytes")]
    let bits = (8 * last.bytes.saturating_sub(first.bytes)) as f64;
    if time > 0.0 { bits / time / 1e6 } else { 0.0 }
}

fn median(samples: &[Sample]) -> Duration {
    let mut rtts: Vec<_> = samples.iter().map(|sample| sample.rtt).collect();
    rtts.sort();
    rtts.get(rtts.len() / 2).copied().unwrap_or_default()
}

/// In milliseconds, to the microsecond.
fn ms(time: Duration) -> f64 {
    round(time.as_secs_f64() * 1e3, 1e3)
}

impl Report {
    pub(super) fn new(url: &HttpsUrl, hops: usize) -> Self {
        Self { url: url.to_string(), hops, download: None, upload: None }
    }

    pub(super) fn add(&mut self, direction: Direction, measured: Measured) {
        match direction {
            Direction::Download => self.download = Some(measured),
            Direction::Upload => self.upload = Some(measured),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match self.hops {
            0 => "without a tunnel".to_owned(),
            1 => "through one proxy".to_owned(),
            hops => format!("through {hops} proxies"),
        };
        write!(f, "{}\n{path}", self.url)?;
        for (name, measured) in [("download", &self.download), ("upload", &self.upload)] {
            if let Some(measured) = measured {
                write!(f, "\n{name:<9} {measured}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { goodput_mbps, time_s, rtt_idle_ms, rtt_loaded_ms, .. } = self;
        let Self { sent_packets, lost_packets, repaired, waited, .. } = self;
        let bytes = bytes(self.bytes);
        write!(f, "{goodput_mbps:.2} Mbit/s ({bytes} in {time_s:.1} s)")?;
        write!(f, "\n          RTT {rtt_idle_ms:.1} ms idle, {rtt_loaded_ms:.1} ms under load")?;
        write!(f, "\n          lost {lost_packets} of {sent_packets} packets that were sent")?;
        if *repaired > 0 {
            write!(f, "; {repaired} payloads sent again")?;
        }
        if *waited > 0 {
            write!(f, "; {waited} waited for a repair")?;
        }
        if !self.granted.is_empty() {
            write!(f, "\n          mode {}", self.granted.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look after this number of tenths of a second.
    fn sample(tenths: u64, bytes: u64, rtt_ms: u64) -> Sample {
        let (at, rtt) = (Duration::from_millis(100 * tenths), Duration::from_millis(rtt_ms));
        Sample { at, bytes, rtt }
    }

    #[test]
    fn the_first_fifth_of_the_time_does_not_count() {
        // A burst, then 1 MB in each tenth of a second.
        let looks = |it| sample(it, 8_000_000 + it * 1_000_000, 20 + it);
        let samples: Vec<_> =
            std::iter::once(sample(0, 0, 20)).chain((1..=10).map(looks)).collect();
        let measured = Measured::new(&samples, &ClientStatus::default());
        assert_eq!(
            (measured.goodput_mbps, measured.bytes, measured.time_s),
            (80.0, 18_000_000, 1.0)
        );
        assert_eq!((measured.rtt_idle_ms, measured.rtt_loaded_ms), (20.0, 26.0));
    }

    #[test]
    fn a_short_transfer_has_numbers_too() {
        for samples in [&[][..], &[sample(0, 0, 20)]] {
            let measured = Measured::new(samples, &ClientStatus::default());
            assert_eq!((measured.goodput_mbps, measured.bytes), (0.0, 0));
        }
    }

    #[test]
    fn each_direction_that_was_measured_has_its_lines() {
        let url = "https://o.example/".parse().unwrap();
        let mut report = Report::new(&url, 1);
        let measured =
            Measured { repaired: 7, granted: vec!["rmdt".to_owned()], ..Measured::default() };
        report.add(Direction::Upload, measured);
        let text = report.to_string();
        assert!(
            text.starts_with("https://o.example/\nthrough one proxy\nupload    0.00 Mbit/s"),
            "{text}"
        );
        assert!(text.contains("; 7 payloads sent again\n          mode rmdt"), "{text}");
        assert!(!text.contains("download") && text.lines().all(|line| line.len() <= 80), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["download"].is_null() && json["upload"]["repaired"] == 7);
    }
}
