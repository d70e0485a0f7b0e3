//! What `/api/now` of a client and `tandem top --json` say, which the picture is drawn from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tandem_node::quic::DatagramTransport;

/// A client at one time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientNow {
    /// Seconds since 1970.
    pub time_s: f64,
    /// The word that tells a client from a server.
    pub role: ClientRole,
    /// Its version.
    pub version: String,
    /// Seconds since its start.
    pub uptime_s: f64,
    /// Whether there is a tunnel.
    pub state: ClientState,
    /// For how many seconds this has been so.
    pub state_for_s: f64,
    /// Why the tunnel was last lost, or could not be established; `null` if neither has happened.
    pub error: Option<String>,
    /// Seconds until the next attempt, while the client is away.
    pub retry_in_s: Option<f64>,
    /// How often a tunnel that was up was lost.
    pub lost: u64,
    /// The memory that its process has allocated.
    pub memory_bytes: u64,
    /// Payload of UDP and TCP of programs now.
    pub rates: ClientRates,
    /// Payload of UDP and TCP of programs since the start.
    pub carried: ClientCarried,
    /// How many flows there are, and were.
    pub flows: ClientFlows,
    /// Datagrams that the tunnels dropped since the start, by cause.
    pub dropped: BTreeMap<String, u64>,
    /// One value for each second of the last minutes, the newest last.
    pub history: ClientHistory,
    /// The proxies, the nearest first.
    pub hops: Vec<ClientHop>,
    /// Open flows, the one through which something passed last first.
    pub open_flows: Vec<ClientFlow>,
}

/// The role of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientRole {
    /// The only one.
    #[default]
    Client,
}

/// Whether a client has a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientState {
    /// There was no tunnel yet.
    #[default]
    Connecting,
    /// There is one.
    Up,
    /// It was lost, or could not be established, and the client tries again.
    Away,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ClientRates {
    pub to_target_mbps: f64,
    pub to_client_mbps: f64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ClientCarried {
    pub to_target_bytes: u64,
    pub to_client_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ClientFlows {
    pub open: usize,
    pub udp_total: u64,
    pub tcp_total: u64,
    pub tcp_failed: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientHistory {
    pub to_target_mbps: Vec<f64>,
    pub to_client_mbps: Vec<f64>,
    /// Of the tunnel to the nearest proxy.
    pub rtt_s: Vec<f64>,
}

/// The tunnel to one proxy. Rates, bytes and packets are QUIC's, without what travels beside the connection. Those of
/// packets begin again when the connection is opened again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientHop {
    /// Host, and port unless it is 443.
    pub proxy: String,
    /// Whether the tunnel is up.
    pub is_up: bool,
    /// The mode that the proxy granted; `null` if it has granted no flow of UDP payloads yet.
    pub mode: Option<String>,
    /// What carries the datagrams: `sealed`, the transport beside the connection, or `quic`, DATAGRAM frames.
    pub transport: DatagramTransport,
    /// The smoothed RTT.
    pub rtt_s: f64,
    /// The handshake; `null` if it is not complete.
    pub handshake_s: Option<f64>,
    /// Rates at present.
    pub sent_mbps: f64,
    /// See `sent_mbps`.
    pub received_mbps: f64,
    /// Bytes since the connection was opened.
    pub sent_bytes: u64,
    /// See `sent_bytes`.
    pub received_bytes: u64,
    /// Packets that this client sent.
    pub sent_packets: u64,
    /// Those of them that were lost. What the path from the proxy loses only the proxy knows.
    pub lost_packets: u64,
    /// Their share.
    pub lost_ratio: f64,
    /// Lost payloads that this end of the tunnel sent again, since the start.
    pub repaired: u64,
    /// Lost payloads that were given up: those that this end no longer sent, and those from the proxy that it no longer
    /// waited for.
    pub given_up: u64,
    /// Payloads from the proxy that waited here for an earlier one, which was lost and sent again.
    pub waited: u64,
    /// Bytes that wait for the tunnel.
    pub queue_bytes: u64,
}

/// A flow of a local program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientFlow {
    /// `tcp`, `udp`, `socks-udp` or `embedded`.
    pub kind: String,
    /// Host and port.
    pub target: String,
    /// `waiting`, `asked`, `open`, `idle` or `closing`.
    pub phase: String,
    /// Payload from the program.
    pub to_target_bytes: u64,
    /// Payload for the program.
    pub to_client_bytes: u64,
    /// Seconds since the program asked for it, or since its first payload; `null` if nothing has passed.
    pub age_s: Option<f64>,
    /// Seconds since something passed last.
    pub silent_s: Option<f64>,
}
