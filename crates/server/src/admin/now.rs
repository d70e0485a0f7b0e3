//! What `/api/now` and `tandem top --json` say, which pages and pictures are drawn from.

use std::{collections::BTreeMap, net::SocketAddr};

use serde::{Deserialize, Serialize};
use tandem_node::quic::DatagramTransport;

use super::RoleName;

/// A server at one time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Now {
    /// Seconds since 1970.
    pub time_s: f64,
    /// What the server is.
    pub role: RoleName,
    /// Its version.
    pub version: String,
    /// Seconds since its start.
    pub uptime_s: f64,
    /// Whether the server takes new flows.
    pub is_ready: bool,
    /// Whether the HTTP server behind an origin answers; `null` without one.
    #[serde(default)]
    pub upstream_is_up: Option<bool>,
    /// Whether a signal has stopped it, and open flows may go on.
    pub is_draining: bool,
    /// The number of its threads.
    pub threads: usize,
    /// How often a thread did not come back to its work.
    pub stuck_threads: u64,
    /// How many lines of the log were lost, because nobody took them.
    pub lost_log_lines: u64,
    /// How many qlog files end before their connections, because the disk was full or slow.
    pub cut_qlogs: u64,
    /// The memory of its process.
    pub memory: Memory,
    /// Its connections.
    pub connections: Connections,
    /// Flows of its clients.
    pub flows: Flows,
    /// Payloads that wait for tunnels.
    pub queue: Queue,
    /// The smoothed RTTs of all open connections; `null` without one.
    pub rtt: Option<Rtt>,
    /// Datagrams that tunnels have dropped since the start, by cause.
    pub dropped: BTreeMap<String, u64>,
    /// Connections and requests that were refused or closed since the start, by cause.
    pub refused: BTreeMap<String, u64>,
    /// What it carries now.
    pub rates: Rates,
    /// One value for each second of the last minutes, the newest last.
    pub history: History,
    /// The connections that carry most, the busiest first.
    pub tunnels: Vec<Tunnel>,
    /// The users that carry most, the busiest first. Of proxies.
    pub users: Vec<User>,
    /// How many users the proxy remembers.
    pub users_known: usize,
    /// How long transfers in an A/B test took. Of proxies with --ab-test.
    pub ab_test: Vec<AbTimes>,
}

/// The times of transfers of users with one mode, and of one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AbTimes {
    /// What the users got: `tecc`, `rmdt` or `mdt`.
    pub mode: String,
    /// The bytes to the client, in words.
    pub size: String,
    /// How many transfers there were.
    pub transfers: u64,
    /// The mean time in seconds.
    pub mean_s: f64,
    /// The mean of the natural logarithms of the times in seconds.
    pub log_mean: f64,
    /// Their variance, with the divisor n - 1.
    pub log_variance: f64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    pub in_use_bytes: u64,
    pub bound_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Connections {
    pub open: u64,
    pub limit: usize,
    pub total: u64,
    pub broken: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Flows {
    pub udp: u64,
    pub tcp: u64,
    pub limit: usize,
    pub udp_total: u64,
    pub tcp_total: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Queue {
    pub bytes: u64,
    pub longest_wait_s: f64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[expect(clippy::struct_field_names, reason = "names of numbers in JSON end with their unit")]
pub struct Rtt {
    pub median_s: f64,
    pub p95_s: f64,
    pub max_s: f64,
}

/// What is carried now: payload of UDP and TCP, or files and uploads at an origin.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Rates {
    pub to_client_mbps: f64,
    pub to_target_mbps: f64,
    /// UDP payloads a second at all sockets.
    pub sent_pps: f64,
    pub received_pps: f64,
    /// QUIC packets to clients that were lost, as a share of those sent.
    pub lost_ratio: f64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    pub to_client_mbps: Vec<f64>,
    pub to_target_mbps: Vec<f64>,
    pub queue_bytes: Vec<f64>,
    pub rtt_median_s: Vec<f64>,
}

/// One connection of a client, with a proxy's tunnel on it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tunnel {
    /// The number of the connection in the log.
    pub connection: u64,
    /// Whose it is.
    pub user: Option<String>,
    /// Only with --log-clients.
    pub client: Option<SocketAddr>,
    /// Open flows of UDP.
    pub udp_flows: usize,
    /// Open flows of TCP.
    pub tcp_flows: usize,
    /// What carries the datagrams: `sealed`, the transport beside the connection, or `quic`, DATAGRAM frames.
    pub transport: DatagramTransport,
    /// The smoothed RTT in seconds.
    pub rtt_s: f64,
    /// QUIC's rates, in both directions.
    pub to_client_mbps: f64,
    /// The same from the client.
    pub from_client_mbps: f64,
    /// Bytes since its start.
    pub to_client_bytes: u64,
    /// The same from the client.
    pub from_client_bytes: u64,
    /// QUIC packets that were lost, as a share of those sent.
    pub lost_ratio: f64,
    /// Bytes that wait for the tunnel.
    pub queue_bytes: u64,
    /// For how many seconds the oldest of them has waited.
    pub queue_wait_s: f64,
}

/// One user of a proxy. Bytes are payload of UDP and TCP.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct User {
    /// The name.
    pub name: String,
    /// Open connections.
    pub connections: u32,
    /// UDP flows and TCP connections.
    pub flows: u32,
    /// The rate to clients.
    pub to_client_mbps: f64,
    /// The rate to targets.
    pub to_target_mbps: f64,
    /// Bytes to clients.
    pub to_client_bytes: u64,
    /// Bytes to targets.
    pub to_target_bytes: u64,
    /// By limit: how many requests were refused, and how many UDP payloads dropped for the rate.
    pub limited: BTreeMap<String, u64>,
}
