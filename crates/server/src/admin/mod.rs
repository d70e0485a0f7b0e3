//! What operators see of a running server, and users of a running client
//! ([ADR 52](../../../../docs/design/adr/0052-admin-listener.md)).
//!
//! Each node leaves its state in a place of its own once a second. The main thread, which runs no node, reads
//! these places and serves HTTP.

mod ab;
mod addr;
mod board;
mod causes;
pub mod client;
mod metrics;
mod now;
mod page;
mod paths;
mod users;
pub mod words;

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tandem_net::{
    DriverStats,
    admin::{AdminListener, Answer, answer, text},
    clock,
    site::UpstreamWatch,
};
use tandem_node::{limits::Limits, proxy::Users, stats::Stats, status::Status};

use self::board::Board;
pub(crate) use self::paths::{LostAtPlaces, PathTotals, PlaceCounts, SecondsAtPlaces};
pub use self::{
    ab::AbRatio,
    addr::AdminAddr,
    now::{AbTimes, Now, Tunnel, User},
};
use crate::process::{qlog::since_1970, say};

/// How often nodes are looked at.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// The age of a node's state at which its thread counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// How many connections a node lists.
pub(crate) const BUSIEST: usize = 20;

/// What a server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleName {
    /// A proxy.
    #[default]
    Proxy,
    /// An origin.
    Origin,
}

impl RoleName {
    /// The name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Origin => "origin",
        }
    }
}

/// What does not change while a server runs.
#[derive(Debug)]
struct Facts {
    role: RoleName,
    threads: usize,
    memory_max: u64,
    connections_max: usize,
    sockets_max: usize,
    started: Instant,
    /// Since 1970.
    started_unix: Duration,
    /// The users of a proxy.
    users: Option<Users>,
    /// The HTTP server behind an origin.
    upstream: Option<Arc<UpstreamWatch>>,
}

/// What stands behind a server.
#[derive(Debug, Default)]
pub(crate) struct Behind<'a> {
    /// The users of a proxy.
    pub(crate) users: Option<&'a Users>,
    /// The HTTP server behind an origin.
    pub(crate) upstream: Option<Arc<UpstreamWatch>>,
}

impl Facts {
    /// Whether the HTTP server behind an origin answers. `None`: there is none.
    fn is_upstream_up(&self) -> Option<bool> {
        self.upstream.as_ref().map(|upstream| upstream.is_up())
    }
}

/// What the main thread knows of the process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OfProcess {
    /// Whether a signal has stopped the server.
    pub(crate) is_draining: bool,
    /// How often a thread was found stuck.
    pub(crate) stuck_threads: u64,
    /// How many lines of the log could not be written, or had to wait behind too many others.
    pub(crate) lost_log_lines: u64,
    /// How many qlog files end before their connections.
    pub(crate) cut_qlogs: u64,
}

/// A node at its last look.
#[derive(Debug)]
struct SeenNode {
    at: Instant,
    /// The time since the look before.
    interval: Duration,
    status: Status,
    driver: DriverStats,
    /// What was counted in the interval.
    carried: GrowingCounters,
}

/// What a node counts whose growth is shown.
#[derive(Clone, Copy, Debug, Default)]
struct GrowingCounters {
    to_client_bytes: u64,
    to_target_bytes: u64,
    sent_datagrams: u64,
    received_datagrams: u64,
    sent_packets: u64,
    lost_packets: u64,
}

impl GrowingCounters {
    fn of(stats: &Stats, driver: &DriverStats) -> Self {
        Self {
            to_client_bytes: stats.to_client_bytes + stats.tcp.to_client_bytes + stats.file_bytes,
            to_target_bytes: stats.to_target_bytes + stats.tcp.to_target_bytes + stats.upload_bytes,
            sent_datagrams: driver.datagrams_sent,
            received_datagrams: driver.datagrams_received,
            sent_packets: stats.sent_packets,
            lost_packets: stats.lost_packets,
        }
    }

    fn since(self, old: Self) -> Self {
        Self {
            to_client_bytes: self.to_client_bytes.saturating_sub(old.to_client_bytes),
            to_target_bytes: self.to_target_bytes.saturating_sub(old.to_target_bytes),
            sent_datagrams: self.sent_datagrams.saturating_sub(old.sent_datagrams),
            received_datagrams: self.received_datagrams.saturating_sub(old.received_datagrams),
            sent_packets: self.sent_packets.saturating_sub(old.sent_packets),
            lost_packets: self.lost_packets.saturating_sub(old.lost_packets),
        }
    }
}

/// The admin listener cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address} (--admin): {error}")]
pub struct ListenError {
    /// The address to listen on.
    address: AdminAddr,
    /// The cause.
    error: io::Error,
}

/// The places in which the nodes of a server leave their states, and where operators see them.
#[derive(Debug)]
pub struct Admin {
    address: AdminAddr,
    facts: Facts,
    nodes: Vec<Mutex<Option<Arc<SeenNode>>>>,
    paths: Mutex<Option<PathTotals>>,
}

impl Admin {
    /// The places of a server with this number of threads, if it has an address for operators.
    pub(crate) fn new(
        address: Option<&AdminAddr>,
        role: RoleName,
        threads: u8,
        limits: &Limits,
        behind: Behind<'_>,
    ) -> Option<Self> {
        let threads = usize::from(threads);
        let facts = Facts {
            role,
            threads,
            memory_max: limits.memory,
            connections_max: limits.connections,
            sockets_max: limits.sockets,
            started: clock::now(),
            started_unix: since_1970(),
            users: behind.users.cloned(),
            upstream: behind.upstream,
        };
        Some(Self {
            address: address?.clone(),
            facts,
            nodes: (0..threads).map(|_| Mutex::default()).collect(),
            paths: Mutex::default(),
        })
    }

    /// Takes the state of the node with this index.
    pub fn note(&self, index: usize, status: Status, driver: &DriverStats) {
        let Some(place) = self.nodes.get(index) else { return };
        let at = clock::now();
        let old = place.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (since, before) = old.map_or((self.facts.started, GrowingCounters::default()), |old| {
            (old.at, GrowingCounters::of(&old.status.stats, &old.driver))
        });
        let carried = GrowingCounters::of(&status.stats, driver).since(before);
        let interval = at.saturating_duration_since(since);
        let seen = Arc::new(SeenNode { at, interval, status, driver: *driver, carried });
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
    }

    /// Takes what PEPs have shown.
    pub(crate) fn note_paths(&self, paths: PathTotals) {
        *self.paths.lock().unwrap_or_else(PoisonError::into_inner) = Some(paths);
    }

    /// Listens from now on. Call within a runtime.
    pub(crate) fn listen(&self) -> Result<AdminListener, ListenError> {
        listen(&self.address)
    }

    /// Serves operators until the future is dropped.
    pub(crate) async fn serve(&self, listener: &AdminListener, of_process: impl Fn() -> OfProcess) {
        let board = Board::new(&self.facts);
        let update = async {
            let mut ticks = tokio::time::interval(INTERVAL);
            loop {
                ticks.tick().await;
                board.update(&self.seen(), of_process());
            }
        };
        tokio::select! {
            () = update => {}
            () = listener.serve(|path| self.answer(path, &board, of_process())) => {}
        }
    }

    fn seen(&self) -> Vec<Arc<SeenNode>> {
        let nodes = self.nodes.iter();
        nodes.filter_map(|it| it.lock().unwrap_or_else(PoisonError::into_inner).clone()).collect()
    }

    fn answer(&self, path: &str, board: &Board<'_>, of_process: OfProcess) -> Answer {
        let seen = self.seen();
        match path {
            "/" => page::whole(&board.now(&seen, of_process)),
            "/live" => page::live(&board.now(&seen, of_process)),
            "/metrics" => {
                let now = board.now(&seen, of_process);
                let paths = *self.paths.lock().unwrap_or_else(PoisonError::into_inner);
                let seen: Vec<_> = seen.iter().map(Arc::as_ref).collect();
                let users = board.users();
                let families = metrics::families(&self.facts, &seen, &now, paths.as_ref(), &users);
                let text = metrics::text(families, board.rtts());
                answer(StatusCode::OK, metrics::CONTENT_TYPE, text)
            }
            "/api/now" => {
                let json = serde_json::to_string(&board.now(&seen, of_process));
                let json = json.expect("all keys are strings");
                answer(StatusCode::OK, "application/json", json)
            }
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if of_process.is_draining => {
                text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
            }
            "/readyz" if seen.len() < self.nodes.len() => {
                text(StatusCode::SERVICE_UNAVAILABLE, "starting\n")
            }
            "/readyz" if has_stopped(&seen) => {
                text(StatusCode::SERVICE_UNAVAILABLE, "a thread is stuck\n")
            }
            "/readyz" if self.facts.is_upstream_up() == Some(false) => {
                text(StatusCode::SERVICE_UNAVAILABLE, "the server behind the site is down\n")
            }
            "/readyz" if takes_connections(&seen) => text(StatusCode::OK, "ready\n"),
            "/readyz" => text(StatusCode::SERVICE_UNAVAILABLE, "short of memory\n"),
            _ => text(
                StatusCode::NOT_FOUND,
                "There is /, /metrics, /api/now, /healthz and /readyz.\n",
            ),
        }
    }
}

/// Listens from now on, and says where. Call within a runtime.
fn listen(address: &AdminAddr) -> Result<AdminListener, ListenError> {
    let listener = AdminListener::bind(&address.0)
        .map_err(|error| ListenError { address: address.clone(), error })?;
    match listener.local_addr() {
        Some(address) => say(format_args!("admin page at http://{address}/")),
        None => say(format_args!("admin listener at {address}")),
    }
    Ok(listener)
}

/// Whether every node takes connections.
fn takes_connections(seen: &[Arc<SeenNode>]) -> bool {
    seen.iter().all(|seen| seen.status.takes_connections)
}

/// Whether a node has not left its state for long.
fn has_stopped(seen: &[Arc<SeenNode>]) -> bool {
    let now = clock::now();
    seen.iter().any(|seen| now.saturating_duration_since(seen.at) > STUCK_AFTER)
}

#[cfg(test)]
mod tests;
