//! What `/api/now` and `tandem top --json` say, which pages and pictures are drawn from.

use std::{collections::BTreeMap, net::SocketAddr};

use serde::{Deserialize, Serialize};

use super::Role;

/// A server at one time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Now {
    /// Seconds since 1970.
    pub(crate) time_s: f64,
    pub(crate) role: Role,
    pub(crate) version: String,
    pub(crate) uptime_s: f64,
    /// Whether the server takes new flows.
    pub(crate) is_ready: bool,
    /// Whether a signal has stopped it, and open flows may go on.
    pub(crate) is_draining: bool,
    pub(crate) threads: usize,
    /// How often a thread did not come back to its work.
    pub(crate) stuck_threads: u64,
    /// How many lines of the log were lost, because nobody took them.
    pub(crate) lost_log_lines: u64,
    /// How many qlog files end before their connections, because the disk was full or slow.
    pub(crate) cut_qlogs: u64,
    pub(crate) memory: Memory,
    pub(crate) connections: Connections,
    pub(crate) flows: Flows,
    pub(crate) queue: Queue,
    /// The smoothed RTTs of all open connections; `null` without one.
    pub(crate) rtt: Option<Rtt>,
    /// Datagrams that tunnels have dropped since the start, by cause.
    pub(crate) dropped: BTreeMap<String, u64>,
    /// Connections and requests that were refused or closed since the start, by cause.
    pub(crate) refused: BTreeMap<String, u64>,
    pub(crate) rates: Rates,
    /// One value for each second of the last minutes, the newest last.
    pub(crate) history: History,
    /// The connections that carry most, the busiest first.
    pub(crate) tunnels: Vec<Tunnel>,
    /// The users that carry most, the busiest first. Of proxies.
    pub(crate) users: Vec<User>,
    /// How many users the proxy remembers.
    pub(crate) users_known: usize,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) in_use_bytes: u64,
    pub(crate) bound_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Connections {
    pub(crate) open: u64,
    pub(crate) limit: usize,
    pub(crate) total: u64,
    pub(crate) broken: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Flows {
    pub(crate) udp: u64,
    pub(crate) tcp: u64,
    pub(crate) limit: usize,
    pub(crate) udp_total: u64,
    pub(crate) tcp_total: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Queue {
    pub(crate) bytes: u64,
    pub(crate) longest_wait_s: f64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[expect(clippy::struct_field_names, reason = "names of numbers in JSON end with their unit")]
pub(crate) struct Rtt {
    pub(crate) median_s: f64,
    pub(crate) p95_s: f64,
    pub(crate) max_s: f64,
}

/// What is carried now: payload of UDP and TCP, or files and uploads at an origin.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rates {
    pub(crate) to_client_mbps: f64,
    pub(crate) to_target_mbps: f64,
    /// UDP payloads a second at all sockets.
    pub(crate) sent_pps: f64,
    pub(crate) received_pps: f64,
    /// QUIC packets to clients that were lost, as a share of those sent.
    pub(crate) lost_ratio: f64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct History {
    pub(crate) to_client_mbps: Vec<f64>,
    pub(crate) to_target_mbps: Vec<f64>,
    pub(crate) queue_bytes: Vec<f64>,
    pub(crate) rtt_median_s: Vec<f64>,
}

/// One connection of a client, with a proxy's tunnel on it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tunnel {
    /// The number of the connection in the log.
    pub(crate) connection: u64,
    pub(crate) user: Option<String>,
    /// Only with --log-clients.
    pub(crate) client: Option<SocketAddr>,
    pub(crate) udp_flows: usize,
    pub(crate) tcp_flows: usize,
    pub(crate) rtt_s: f64,
    /// QUIC's rates, in both directions.
    pub(crate) to_client_mbps: f64,
    pub(crate) from_client_mbps: f64,
    pub(crate) to_client_bytes: u64,
    pub(crate) from_client_bytes: u64,
    pub(crate) lost_ratio: f64,
    pub(crate) queue_bytes: u64,
    pub(crate) queue_wait_s: f64,
}

/// One user of a proxy. Bytes are payload of UDP and TCP.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) connections: u32,
    /// UDP flows and TCP connections.
    pub(crate) flows: u32,
    pub(crate) to_client_mbps: f64,
    pub(crate) to_target_mbps: f64,
    pub(crate) to_client_bytes: u64,
    pub(crate) to_target_bytes: u64,
    /// By limit: how many requests were refused, and how many UDP payloads dropped for the rate.
    pub(crate) limited: BTreeMap<String, u64>,
}
