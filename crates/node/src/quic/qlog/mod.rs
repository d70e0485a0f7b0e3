//! The qlog of a connection ([main schema], [events of QUIC]), written as JSON text sequences (RFC 7464).
//!
//! The engine has qlog too, but where it is compiled in, it prepares each event even if no file wants
//! one, which takes a tenth of a proxy's time. Here the events come from what a connection's packet
//! protection and its congestion controller see. Without a file nothing is done.
//!
//! The packets of the sealed transport beside a connection are events of a namespace of our own, `tandem`, with the
//! names and the data of those of QUIC. They have packet numbers of their own, which programs that draw QUIC would mix
//! up.
//!
//! A server's file lacks the client's first packet, which the engine decrypts before there is a
//! connection. Tokens are left out, because they are secrets.
//!
//! [main schema]: https://www.ietf.org/archive/id/draft-ietf-quic-qlog-main-schema-13.html
//! [events of QUIC]: https://www.ietf.org/archive/id/draft-ietf-quic-qlog-quic-events-12.html

mod frames;
mod header;
mod parameters;
#[cfg(test)]
mod tests;

use std::{
    fmt::Debug,
    io::{self, Write},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use tandem_wire::QuicFrames;
use tracing::warn;

pub(super) use self::header::PacketType;
use crate::seldom::Seldom;

/// Makes the files of qlogs.
pub trait QlogFiles: Debug + Send + Sync {
    /// Makes the file of a connection, whose name begins with `name` and ends as the caller likes. Each connection has
    /// another name. The file is written in small pieces. The thread that carries packets makes and writes it, so that
    /// neither should wait for a disk.
    ///
    /// # Errors
    ///
    /// The file cannot be made. The connection then goes on without one. The log says so at most every ten seconds.
    fn create(&self, name: &str) -> io::Result<Box<dyn Write + Send>>;
}

/// The files of the qlogs of one endpoint.
#[derive(Clone, Debug)]
pub(super) struct Qlogs {
    files: Arc<dyn QlogFiles>,
    /// Limits the warnings, since peers decide how many connections there are.
    warning: Arc<Mutex<Seldom>>,
}

impl Qlogs {
    pub(super) fn new(files: Arc<dyn QlogFiles>) -> Self {
        Self { files, warning: Arc::default() }
    }

    /// How many warnings were left out, if one is due.
    fn warning(&self, now: Instant) -> Option<u64> {
        self.warning.lock().unwrap_or_else(PoisonError::into_inner).due(now)
    }
}

/// The place of a connection among those of one client, by which their qlogs can be drawn together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// What the client's connections have in common.
    pub(crate) chain: u64,
    /// How many connections are around this one.
    pub(crate) layer: usize,
    /// Whether it ends at an origin and not at a proxy.
    pub(crate) is_end_to_end: bool,
    /// How long the client had been running when the connection began.
    pub(crate) offset: Duration,
}

/// Who has done something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Local,
    Remote,
}

/// The estimates of the recovery of losses, and what the path carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Metrics {
    pub(super) smoothed_rtt: Duration,
    pub(super) min_rtt: Option<Duration>,
    pub(super) congestion_window: u64,
    pub(super) bytes_in_flight: u64,
    /// In bits per second.
    pub(super) pacing_rate: Option<u64>,
    /// The largest UDP payload in bytes.
    pub(super) mtu: u16,
}

/// The qlog of one connection.
pub(super) struct Qlog {
    qlogs: Qlogs,
    file: Box<dyn Write + Send>,
    start: Instant,
    /// The time of the events that follow.
    now: Instant,
    metrics: Metrics,
    /// Those of the sealed transport.
    metrics_of_sealed: Metrics,
    remote: Option<SocketAddr>,
    has_remote_parameters: bool,
    /// The exponents of the delays in ACK frames, by their sender.
    ack_delay_exponents: [u32; 2],
    /// The packet type of the newest packet that was sent.
    newest: PacketType,
    /// How many datagrams a tunnel has sent again.
    repairs: u64,
}

impl Debug for Qlog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qlog").finish_non_exhaustive()
    }
}

/// The namespace of QUIC's events.
const QUIC: &str = "quic";

/// The namespace of events that no document of the IETF describes: `datagrams_repaired`, and those of the sealed
/// transport.
const TANDEM: &str = "tandem";

/// The name of the schema of that namespace.
const EVENTS: &str = "urn:tandem:qlog:events:tandem";

/// The character before each record of a JSON text sequence (RFC 7464).
const RECORD_SEPARATOR: char = '\u{1e}';

impl Qlog {
    /// Begins the qlog of a connection with this connection ID: the first that the client has chosen for the server.
    pub(super) fn begin(
        qlogs: &Qlogs,
        now: Instant,
        (is_client, place): (bool, Option<Place>),
        id: &[u8],
    ) -> Option<Self> {
        let (id, side) = (hex(id), if is_client { "client" } else { "server" });
        let warn_of = |error: &io::Error| {
            if let Some(left_out) = qlogs.warning(now) {
                warn!(%error, %id, left_out, "no qlog of this connection");
            }
        };
        let file = qlogs.files.create(&format!("{id}-{side}")).inspect_err(warn_of).ok()?;
        let mut qlog = Self {
            qlogs: qlogs.clone(),
            file,
            start: now,
            now,
            metrics: Metrics::default(),
            metrics_of_sealed: Metrics::default(),
            remote: None,
            has_remote_parameters: false,
            ack_delay_exponents: [parameters::ACK_DELAY_EXPONENT; 2],
            newest: PacketType::Initial,
            repairs: 0,
        };
        let mut common_fields = json!({
            "group_id": id,
            "time_format": "relative_to_epoch",
            "reference_time": { "clock_type": "monotonic", "epoch": "unknown" },
        });
        // The main schema (§7) allows any further fields.
        if let (Some(Place { chain, layer, is_end_to_end, offset }), Some(fields)) =
            (place, common_fields.as_object_mut())
        {
            fields.insert("tandem_chain".to_owned(), format!("{chain:016x}").into());
            fields.insert("tandem_layer".to_owned(), layer.into());
            let kind = if is_end_to_end { "end-to-end" } else { "tunnel" };
            fields.insert("tandem_kind".to_owned(), kind.into());
            fields.insert("tandem_offset".to_owned(), millis(offset));
        }
        qlog.write(&json!({
            "file_schema": "urn:ietf:params:qlog:file:sequential",
            "serialization_format": "application/qlog+json-seq",
            // Programs that know earlier drafts tell the format by these.
            "qlog_version": "0.3",
            "qlog_format": "JSON-SEQ",
            "trace": {
                "common_fields": common_fields,
                "vantage_point": { "type": side },
                "event_schemas": ["urn:ietf:params:qlog:events:quic-12", EVENTS],
            },
        }));
        Some(qlog)
    }

    /// Sets the time of the events that follow.
    pub(super) const fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// The address of the peer is known, or has changed.
    pub(super) fn remote(&mut self, remote: SocketAddr) {
        if self.remote == Some(remote) {
            return;
        }
        let (ip, port) = if remote.is_ipv4() { ("ip_v4", "port_v4") } else { ("ip_v6", "port_v6") };
        let end = json!({ ip: remote.ip().to_string(), port: remote.port() });
        if self.remote.replace(remote).is_none() {
            self.event("connection_started", json!({ "local": {}, "remote": end }));
        } else {
            self.event("tuple_assigned", json!({ "tuple_id": "", "tuple_remote": end }));
        }
    }

    /// Writes transport parameters in their encoded form (RFC 9000 §18), those of the peer only once.
    pub(super) fn parameters(&mut self, who: Who, encoded: &[u8]) {
        if who == Who::Remote && std::mem::replace(&mut self.has_remote_parameters, true) {
            return;
        }
        let (mut data, exponent) = parameters::decode(encoded);
        if let Some(known) = self.ack_delay_exponents.get_mut(usize::from(who == Who::Remote)) {
            *known = exponent;
        }
        let initiator = if who == Who::Local { "local" } else { "remote" };
        data.insert("initiator".to_owned(), initiator.into());
        self.event("parameters_set", Value::Object(data));
    }

    /// Writes a packet. `header` is without protection, and `payload` is not encrypted; `len` is the length of both
    /// with the tag of the encryption.
    pub(super) fn packet(
        &mut self,
        who: Who,
        (packet_type, number): (PacketType, u64),
        (header, payload): (&[u8], &[u8]),
        len: usize,
    ) {
        let name = if who == Who::Local { "packet_sent" } else { "packet_received" };
        if who == Who::Local {
            self.newest = packet_type;
        }
        let exponent = self.ack_delay_exponents.get(usize::from(who == Who::Remote));
        let exponent = exponent.copied().unwrap_or(parameters::ACK_DELAY_EXPONENT);
        let frames = QuicFrames::new(payload).map(|frame| frames::json(&frame, exponent));
        let data = json!({
            "header": header::json(packet_type, number, header),
            "raw": { "length": len },
            "frames": frames.collect::<Vec<_>>(),
        });
        self.event(name, data);
    }

    /// Writes that a packet was declared lost. The controller is not told of which packet number space it is.
    pub(super) fn lost(&mut self, number: u64, len: u16) {
        let packet_type = match self.newest {
            PacketType::OneRtt => PacketType::OneRtt.name(),
            _ => "unknown",
        };
        let data = json!({
            "header": { "packet_type": packet_type, "packet_number": number },
            "raw": { "length": len },
        });
        self.event("packet_lost", data);
    }

    /// Writes a packet of the sealed transport, with its frames before encryption. `len` is the length of the packet.
    pub(super) fn sealed_packet(&mut self, who: Who, number: u64, frames: &[u8], len: usize) {
        let name = if who == Who::Local { "packet_sent" } else { "packet_received" };
        // The delay of its ACK frames is in microseconds.
        let frames = QuicFrames::new(frames).map(|frame| frames::json(&frame, 0));
        let data = json!({
            "header": Self::sealed_header(number),
            "raw": { "length": len },
            "frames": frames.collect::<Vec<_>>(),
        });
        self.event_of(TANDEM, name, data);
    }

    /// Writes that a packet of the sealed transport was declared lost.
    pub(super) fn lost_sealed(&mut self, number: u64, len: usize) {
        let data = json!({ "header": Self::sealed_header(number), "raw": { "length": len } });
        self.event_of(TANDEM, "packet_lost", data);
    }

    fn sealed_header(number: u64) -> Value {
        json!({ "packet_type": "sealed", "packet_number": number })
    }

    /// Writes what has changed.
    pub(super) fn metrics(&mut self, metrics: Metrics) {
        let before = std::mem::replace(&mut self.metrics, metrics);
        self.changes(QUIC, before, metrics);
    }

    /// Writes what has changed of the sealed transport.
    pub(super) fn metrics_of_sealed(&mut self, metrics: Metrics) {
        let before = std::mem::replace(&mut self.metrics_of_sealed, metrics);
        self.changes(TANDEM, before, metrics);
    }

    fn changes(&mut self, namespace: &str, before: Metrics, metrics: Metrics) {
        if before == metrics {
            return;
        }
        let mut data = Map::new();
        let mut set = |name: &str, is_new: bool, value: Value| {
            if is_new {
                data.insert(name.to_owned(), value);
            }
        };
        let Metrics { smoothed_rtt, min_rtt, congestion_window, bytes_in_flight, pacing_rate, mtu } =
            metrics;
        set("smoothed_rtt", smoothed_rtt != before.smoothed_rtt, millis(smoothed_rtt));
        if let Some(min_rtt) = min_rtt {
            set("min_rtt", before.min_rtt != Some(min_rtt), millis(min_rtt));
        }
        let is_new = congestion_window != before.congestion_window;
        set("congestion_window", is_new, congestion_window.into());
        let is_new = bytes_in_flight != before.bytes_in_flight;
        set("bytes_in_flight", is_new, bytes_in_flight.into());
        if let Some(pacing_rate) = pacing_rate {
            set("pacing_rate", before.pacing_rate != Some(pacing_rate), pacing_rate.into());
        }
        if !data.is_empty() {
            self.event_of(namespace, "recovery_metrics_updated", Value::Object(data));
        }
        if mtu != before.mtu {
            let is_first = before.mtu == 0;
            let new = json!({ "new": mtu });
            let data = if is_first { new } else { json!({ "old": before.mtu, "new": mtu }) };
            self.event_of(namespace, "mtu_updated", data);
        }
    }

    /// Writes how many datagrams a tunnel has sent again, if there are more of them.
    pub(super) fn repairs(&mut self, total: u64) {
        let count = total.saturating_sub(std::mem::replace(&mut self.repairs, total));
        if count > 0 {
            self.event_of(TANDEM, "datagrams_repaired", json!({ "count": count }));
        }
    }

    /// Writes that this end closes the connection with a code of the application.
    pub(super) fn closed(&mut self, code: u64, reason: &str) {
        let data = json!({ "initiator": "local", "error_code": code, "reason": reason });
        self.event("connection_closed", data);
    }

    /// Writes why the connection has ended, if this end has not closed it.
    pub(super) fn lost_connection(&mut self, reason: &str) {
        self.event("connection_closed", json!({ "reason": reason }));
    }

    fn event(&mut self, name: &str, data: impl Into<Value>) {
        self.event_of(QUIC, name, data);
    }

    fn event_of(&mut self, namespace: &str, name: &str, data: impl Into<Value>) {
        let time = self.time();
        let data = data.into();
        self.write(&json!({ "time": time, "name": format!("{namespace}:{name}"), "data": data }));
    }

    fn time(&self) -> Value {
        millis(self.now.saturating_duration_since(self.start))
    }

    fn write(&mut self, record: &Value) {
        let written = writeln!(self.file, "{RECORD_SEPARATOR}{record}");
        self.check(written);
    }

    fn flush(&mut self) {
        let flushed = self.file.flush();
        self.check(flushed);
    }

    /// Writes nothing more after an error.
    fn check(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            if let Some(left_out) = self.qlogs.warning(self.now) {
                warn!(%error, left_out, "the qlog of a connection ends here");
            }
            self.file = Box::new(io::sink());
        }
    }
}

impl Drop for Qlog {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Milliseconds with microseconds as their fraction.
fn millis(duration: Duration) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "a connection lasts for less than 285 years")]
    let micros = duration.as_micros() as f64;
    (micros / 1000.0).into()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;

    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a text takes every digit");
        text
    })
}
