//! Reads the qlog files that [`QlogDir`](tandem_server::process::qlog::QlogDir) makes.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::Deserialize;

/// The character before each record of a JSON text sequence (RFC 7464).
const RECORD_SEPARATOR: u8 = 0x1e;

/// The longest first record. It has about 600 bytes.
const HEAD_MAX: u64 = 64 * 1024;

/// The place of a connection among those of its client.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct LayerPlace {
    #[serde(rename = "tandem_chain")]
    pub(super) chain: String,
    #[serde(rename = "tandem_layer")]
    pub(super) layer: u32,
    #[serde(rename = "tandem_kind")]
    kind: String,
    /// When the connection began, in milliseconds since the client did.
    #[serde(rename = "tandem_offset")]
    pub(super) offset: f64,
}

impl LayerPlace {
    pub(super) fn name(&self) -> String {
        if self.kind == "tunnel" {
            format!("tunnel {}", self.layer + 1)
        } else {
            "end to end".to_owned()
        }
    }
}

/// What a file says of itself.
#[derive(Clone, Debug)]
pub(super) struct QlogHead {
    pub(super) path: PathBuf,
    /// When the file was changed last.
    pub(super) modified: SystemTime,
    /// The files of both ends of a connection have the same.
    pub(super) group: String,
    /// Only in the files of clients.
    pub(super) place: Option<LayerPlace>,
}

#[derive(Deserialize)]
struct FileHead {
    trace: TraceHead,
}

#[derive(Deserialize)]
struct TraceHead {
    common_fields: CommonFields,
    vantage_point: VantagePoint,
}

#[derive(Deserialize)]
struct CommonFields {
    group_id: String,
    #[serde(flatten)]
    place: Option<LayerPlace>,
}

#[derive(Deserialize)]
struct VantagePoint {
    r#type: String,
}

impl QlogHead {
    /// Reads the first record. `None`: this is no such file.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let modified = file.metadata().and_then(|it| it.modified()).ok()?;
        let mut records = BufReader::new(file).take(HEAD_MAX).split(RECORD_SEPARATOR).skip(1);
        let CommonFields { group_id, place } = head(&records.next()?.ok()?)?.common_fields;
        Some(Self { path: path.to_owned(), modified, group: group_id, place })
    }
}

fn head(record: &[u8]) -> Option<TraceHead> {
    serde_json::from_slice::<FileHead>(record).ok().map(|head| head.trace)
}

#[derive(Deserialize)]
struct TraceEvent {
    time: f64,
    name: String,
    #[serde(default)]
    data: Data,
}

#[derive(Default, Deserialize)]
struct Data {
    congestion_window: Option<f64>,
    smoothed_rtt: Option<f64>,
    min_rtt: Option<f64>,
    raw: Option<RawEvent>,
    count: Option<u32>,
}

#[derive(Deserialize)]
struct RawEvent {
    length: Option<u64>,
}

/// What one end saw of a connection. Times are in milliseconds, and counts are those since the start.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace {
    pub(super) is_client: bool,
    pub(super) sent_bytes: u64,
    /// Bytes of packets that came.
    received_bytes: u64,
    sent: u64,
    pub(super) least_rtt: Option<f64>,
    pub(super) windows: Vec<(f64, f64)>,
    pub(super) rtts: Vec<(f64, f64)>,
    pub(super) lost: Vec<(f64, f64)>,
    pub(super) repaired: Vec<(f64, f64)>,
    end: f64,
    /// Whether there is a sealed transport. From then on its window and RTT are drawn, because it carries the
    /// datagrams.
    has_sealed: bool,
}

impl Trace {
    /// Reads a whole file. A record that is cut off or foreign is left out.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let mut records = BufReader::new(File::open(path)?).split(RECORD_SEPARATOR).skip(1);
        let head = records.next().transpose()?.and_then(|record| head(&record));
        let is_client = head.is_some_and(|head| head.vantage_point.r#type == "client");
        let mut trace = Self { is_client, ..Self::default() };
        for record in records {
            if let Ok(event) = serde_json::from_slice(&record?) {
                trace.add(&event);
            }
        }
        // All values hold until the end of the connection.
        let end = trace.end;
        for counts in [&mut trace.lost, &mut trace.repaired] {
            counts.push((end, newest(counts)));
        }
        for values in [&mut trace.windows, &mut trace.rtts] {
            if let Some(&(_, last)) = values.last() {
                values.push((end, last));
            }
        }
        Ok(trace)
    }

    fn add(&mut self, TraceEvent { time, name, data }: &TraceEvent) {
        self.end = *time;
        match name.as_str() {
            "quic:packet_sent" | "tandem:packet_sent" => {
                self.sent += 1;
                self.sent_bytes += data.raw.as_ref().and_then(|raw| raw.length).unwrap_or(0);
            }
            "quic:packet_received" | "tandem:packet_received" => {
                self.received_bytes += data.raw.as_ref().and_then(|raw| raw.length).unwrap_or(0);
            }
            "quic:packet_lost" | "tandem:packet_lost" => {
                let before = newest(&self.lost);
                step(&mut self.lost, *time, before + 1.0);
            }
            "tandem:datagrams_repaired" => {
                let more = f64::from(data.count.unwrap_or(0));
                let before = newest(&self.repaired);
                step(&mut self.repaired, *time, before + more);
            }
            "quic:recovery_metrics_updated" if self.has_sealed => {}
            "quic:recovery_metrics_updated" | "tandem:recovery_metrics_updated" => {
                self.has_sealed = name.starts_with("tandem:");
                self.least_rtt = data.min_rtt.or(self.least_rtt);
                if let Some(window) = data.congestion_window {
                    step(&mut self.windows, *time, window);
                }
                // Before the first sample it is a default.
                if let Some(rtt) = data.smoothed_rtt.filter(|_| self.least_rtt.is_some()) {
                    step(&mut self.rtts, *time, rtt);
                }
            }
            _ => {}
        }
    }

    /// The milliseconds from its first packet to its last one, and the bytes of packets in the direction in which it
    /// carried more.
    pub(super) fn carried(&self) -> (f64, u64) {
        (self.end, self.sent_bytes.max(self.received_bytes))
    }

    /// Which end saw it.
    pub(super) const fn seen_by(&self) -> &'static str {
        if self.is_client { "client" } else { "server" }
    }

    /// Moves all times.
    pub(super) fn shift(&mut self, by: f64) {
        let Self { windows, rtts, lost, repaired, .. } = self;
        for (time, _) in [windows, rtts, lost, repaired].into_iter().flatten() {
            *time += by;
        }
    }

    /// A line about the connection.
    pub(super) fn summary(&self, name: &str) -> String {
        let end = self.seen_by();
        let (lost, repaired) = (newest(&self.lost), newest(&self.repaired));
        format!(
            "{name}: as its {end} saw it; {} packets sent, {lost} lost, {repaired} datagrams sent again",
            self.sent
        )
    }
}

fn newest(points: &[(f64, f64)]) -> f64 {
    points.last().map_or(0.0, |&(_, value)| value)
}

/// Adds a value, which holds until the next one. So curves are drawn as steps.
fn step(points: &mut Vec<(f64, f64)>, time: f64, value: f64) {
    if !points.is_empty() {
        points.push((time, newest(points)));
    }
    points.push((time, value));
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"{"qlog_version":"0.3","trace":{"common_fields":{"group_id":"0a","tandem_chain":"77",
        "tandem_kind":"tunnel","tandem_layer":0,"tandem_offset":1.5},"vantage_point":{"type":"client"}}}"#;

    fn file(records: &[&str]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!("\u{1e}{}\n", records.join("\n\u{1e}"));
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn a_file_says_where_its_connection_belongs() {
        let head = QlogHead::read(file(&[HEAD]).path()).unwrap();
        let place = head.place.unwrap();
        assert_eq!((head.group.as_str(), place.chain.as_str(), place.offset), ("0a", "77", 1.5));
        assert_eq!(place.name(), "tunnel 1");
        let server =
            r#"{"trace":{"common_fields":{"group_id":"0a"},"vantage_point":{"type":"server"}}}"#;
        assert_eq!(QlogHead::read(file(&[server]).path()).unwrap().place, None);
        for foreign in ["", "{}", "no JSON", r#"{"trace":{"common_fields":{"group_id":7}}}"#] {
            assert!(QlogHead::read(file(&[foreign]).path()).is_none(), "{foreign}");
        }
    }

    #[test]
    fn the_packets_of_a_sealed_transport_count_and_its_window_is_drawn() {
        let file = file(&[
            HEAD,
            r#"{"time":1,"name":"quic:packet_sent","data":{"raw":{"length":1200}}}"#,
            r#"{"time":2,"name":"quic:recovery_metrics_updated","data":{"congestion_window":9,"min_rtt":4.5}}"#,
            r#"{"time":3,"name":"tandem:packet_sent","data":{"raw":{"length":1000}}}"#,
            r#"{"time":4,"name":"tandem:recovery_metrics_updated","data":{"congestion_window":7,"min_rtt":4}}"#,
            r#"{"time":5,"name":"quic:recovery_metrics_updated","data":{"congestion_window":3}}"#,
            r#"{"time":6,"name":"tandem:packet_lost","data":{"raw":{"length":1000}}}"#,
        ]);
        let trace = Trace::read(file.path()).unwrap();
        assert_eq!((trace.sent, trace.sent_bytes, trace.least_rtt), (2, 2200, Some(4.0)));
        assert_eq!(trace.windows, [(2.0, 9.0), (4.0, 9.0), (4.0, 7.0), (6.0, 7.0)]);
        assert_eq!(trace.lost, [(6.0, 1.0), (6.0, 1.0)]);
    }

    #[test]
    fn counts_are_steps_and_broken_records_are_left_out() {
        let file = file(&[
            HEAD,
            r#"{"time":1,"name":"quic:packet_sent","data":{"raw":{"length":1200},"frames":[]}}"#,
            r#"{"time":2,"name":"quic:recovery_metrics_updated","data":{"congestion_window":9,"min_rtt":4.5}}"#,
            r#"{"time":3,"name":"quic:packet_lost","data":{"header":{}}}"#,
            r#"{"time":4,"name":"tandem:datagrams_repaired","data":{"count":2}}"#,
            r#"{"time":5,"name":"of others","data":{}}"#,
            r#"{"time":6,"name":"quic:packet_sent","da"#,
        ]);
        let mut trace = Trace::read(file.path()).unwrap();
        assert_eq!((trace.sent_bytes, trace.least_rtt), (1200, Some(4.5)));
        assert_eq!(trace.lost, [(3.0, 1.0), (5.0, 1.0)]);
        assert_eq!(trace.repaired, [(4.0, 2.0), (5.0, 2.0)]);
        trace.shift(10.0);
        assert_eq!(trace.windows, [(12.0, 9.0), (15.0, 9.0)], "it holds until the end");
        let summary = trace.summary("tunnel 1");
        assert!(summary.ends_with("1 packets sent, 1 lost, 2 datagrams sent again"), "{summary}");
    }
}
