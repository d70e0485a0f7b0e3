//! The measurements of a download or an upload, for people and for programs.

use std::{path::Path, time::Duration};

use serde::{Serialize, Serializer};
use tandem_node::{
    ConnectionStats,
    client::Choice,
    mode::{Agreement, Mode},
    node::FetchReport,
    quic::DatagramTransport,
    stats::Traffic,
};
pub(crate) use tandem_server::admin::words::round;
use tandem_units::ByteCount;

use crate::download::Sha256Hex;

/// The measurements of a download; one object of `get --json`. Units are in the names.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// The URL of the file, after all redirects.
    pub(crate) url: String,
    /// The mode that was asked for.
    pub(crate) mode: Mode,
    /// The mode that each proxy granted; the nearest is the first.
    pub(crate) granted: Vec<Mode>,
    /// What the client had chosen at the end in mode auto: `ordered` or `window`. Null in other modes, for
    /// an upload, and if no proxy repairs losses as Tandem's do.
    #[serde(rename = "chosen", serialize_with = "order")]
    pub(crate) choice: Option<Choice>,
    /// Why a proxy granted another mode, for people.
    #[serde(skip)]
    pub(crate) lesser: Vec<String>,
    /// Number of proxies on the path.
    pub(crate) hops: usize,
    /// Number of redirects that were followed.
    pub(crate) redirects: u8,
    /// Length of the whole file, or of an upload.
    pub(crate) bytes: u64,
    /// How many of these bytes an earlier download had fetched, which `--continue` continued.
    pub(crate) resumed_bytes: u64,
    /// SHA-256 of the whole file, in hexadecimal; null for an upload, and if ranges went to a device
    /// out of order.
    pub(crate) sha256: Option<Sha256Hex>,
    /// From the first packet of the end-to-end connection to the last byte, or to the answer to an
    /// upload.
    pub(crate) fct_s: f64,
    /// The shortest possible time; null if the path is not known.
    pub(crate) ideal_s: Option<f64>,
    /// The end-to-end handshake, a part of `fct_s`.
    pub(crate) handshake_s: f64,
    /// Name resolution and tunnels, before `fct_s` begins.
    pub(crate) setup_s: f64,
    /// Bits of `bytes`, without `resumed_bytes`, per second of `fct_s`.
    pub(crate) goodput_mbps: f64,
    /// Share of the tunnel's packets that carry retransmitted payloads; null without a tunnel, and if
    /// only the proxy knows it.
    pub(crate) tunnel_retransmit_ratio: Option<f64>,
    /// Smoothed RTT of the end-to-end connection at the end.
    pub(crate) rtt_ms: f64,
    /// Share of all bytes on the client's access link that tunnels add.
    pub(crate) chain_overhead_ratio: f64,
    /// Share of all these bytes that are acknowledgements because of tunnels.
    pub(crate) chain_ack_ratio: f64,
    /// The connections: the hops, the nearest proxy first, and the end-to-end connection.
    pub(crate) connections: Vec<ConnectionTraffic>,
    /// Reports on the tunnel that were sent to the origin, or to the sender of an upload.
    pub(crate) feedback_sent: u64,
    /// Reports of the proxy that arrived at this client.
    pub(crate) feedback_received: u64,
    /// Reports that the sender of an upload followed; null for a download, whose sender is the origin.
    pub(crate) feedback_followed: Option<u64>,
}

/// What was sent and received on one connection, without Initial packets.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ConnectionTraffic {
    /// What carries the datagrams of a tunnel: sealed, the transport beside the connection, or quic, DATAGRAM frames.
    transport: DatagramTransport,
    /// Smoothed RTT at the end.
    rtt_ms: f64,
    /// What this client sent.
    sent: SentTotals,
    /// What arrived at this client.
    received: SentTotals,
}

/// What was sent in one direction of a connection. Bytes are those of QUIC packets.
#[derive(Clone, Debug, Serialize)]
struct SentTotals {
    packets: u64,
    bytes: u64,
    ack_frames: u64,
    ack_bytes: u64,
    /// Packets with nothing but ACK frames.
    ack_only_packets: u64,
    ack_only_bytes: u64,
}

impl From<&Traffic> for SentTotals {
    fn from(traffic: &Traffic) -> Self {
        let &Traffic { packets, bytes, ack_frames, ack_bytes, .. } = traffic;
        let &Traffic { ack_only_packets, ack_only_bytes, .. } = traffic;
        Self { packets, bytes, ack_frames, ack_bytes, ack_only_packets, ack_only_bytes }
    }
}

impl From<&ConnectionStats> for ConnectionTraffic {
    fn from(connection: &ConnectionStats) -> Self {
        let rtt_ms = milliseconds(connection.smoothed_rtt);
        let (sent, received) = ((&connection.sent).into(), (&connection.received).into());
        Self { transport: connection.datagrams, rtt_ms, sent, received }
    }
}

impl Outcome {
    pub(crate) fn new(
        url: String,
        mode: Mode,
        hops: usize,
        report: &FetchReport,
        sha256: impl Into<Option<Sha256Hex>>,
    ) -> Self {
        let fct_s = seconds(report.completion);
        #[expect(clippy::cast_precision_loss, reason = "exact below 2^50 bytes")]
        let bits = (report.bytes * 8) as f64;
        Self {
            url,
            mode,
            granted: report.agreements.iter().map(|agreement| agreement.granted).collect(),
            choice: report.choice,
            lesser: lesser(&report.agreements),
            hops,
            redirects: 0,
            bytes: report.bytes,
            resumed_bytes: 0,
            sha256: sha256.into(),
            fct_s,
            ideal_s: None,
            handshake_s: seconds(report.handshake),
            setup_s: seconds(report.setup),
            goodput_mbps: round(bits / report.completion.as_secs_f64().max(1e-9) / 1e6, 1e3),
            tunnel_retransmit_ratio: repairs_nothing(&report.agreements).then_some(0.0),
            rtt_ms: milliseconds(report.smoothed_rtt),
            chain_overhead_ratio: round(report.overhead.share().as_f64(), 1e6),
            chain_ack_ratio: round(report.overhead.ack_share().as_f64(), 1e6),
            connections: report.connections.iter().map(ConnectionTraffic::from).collect(),
            feedback_sent: report.feedback.sent,
            feedback_received: report.feedback.received,
            feedback_followed: None,
        }
    }

    /// The outcome of an upload, whose sender is this program. All reports are those of its own end of the tunnel.
    pub(crate) fn of_upload(self, followed: u64) -> Self {
        Self { feedback_received: 0, feedback_followed: Some(followed), ..self }
    }

    /// For people. `saved`: the file with the body of a download.
    pub(crate) fn summary(&self, saved: Option<&Path>) -> String {
        let Self { url, bytes, sha256, fct_s, handshake_s, setup_s, goodput_mbps, rtt_ms, .. } =
            self;
        let size = ByteCount::new(*bytes);
        let earlier = match self.resumed_bytes {
            0 => String::new(),
            earlier => format!(", {} of it from an earlier download", ByteCount::new(earlier)),
        };
        let path = match self.hops {
            0 => self.mode.to_string(),
            1 => format!("1 proxy, {}", self.mode),
            hops => format!("{hops} proxies, {}", self.mode),
        };
        let lesser = self.lesser.iter().flat_map(|line| ["          ", line, "\n"]);
        let lesser: String = lesser.collect();
        let choice =
            self.choice.map_or(String::new(), |choice| format!("          the tunnel {choice}\n"));
        let body = match saved {
            Some(file) => format!("saved     {}", file.display()),
            None => format!("sent to   {url}"),
        };
        let hash = match (sha256, saved) {
            (Some(hash), _) => format!("sha-256   {}\n", hash.0),
            (None, Some(_)) => {
                "sha-256   not known, because ranges arrived out of order\n".to_owned()
            }
            (None, None) => String::new(),
        };
        format!(
            "{body}\n\
             size      {size}{earlier}\n{hash}\
             path      {path}, RTT {rtt_ms:.1} ms\n{lesser}{choice}\
             time      {fct_s:.3} s, handshake {handshake_s:.3} s of it, after {setup_s:.3} s of \
             setup\n\
             goodput   {goodput_mbps:.2} Mbit/s"
        )
    }
}

/// The order that was chosen, for programs.
#[expect(
    clippy::ref_option,
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn order<S: Serializer>(choice: &Option<Choice>, serializer: S) -> Result<S::Ok, S::Error> {
    choice.map(Choice::order).serialize(serializer)
}

/// A line for each proxy that granted another mode than was asked for.
fn lesser(agreements: &[Agreement]) -> Vec<String> {
    let lesser = (1..).zip(agreements).filter(|(_, agreement)| agreement.lesser.is_some());
    lesser.map(|(number, agreement)| format!("proxy {number} granted {agreement}")).collect()
}

/// Whether there are tunnels and none of them sends lost payloads again.
fn repairs_nothing(agreements: &[Agreement]) -> bool {
    let is_mdt = |agreement: &Agreement| agreement.granted == Mode::Mdt;
    !agreements.is_empty() && agreements.iter().all(is_mdt)
}

/// In seconds, to the microsecond.
pub(crate) fn seconds(duration: Duration) -> f64 {
    round(duration.as_secs_f64(), 1e6)
}

/// In milliseconds, to the microsecond.
fn milliseconds(duration: Duration) -> f64 {
    round(duration.as_secs_f64() * 1e3, 1e3)
}
