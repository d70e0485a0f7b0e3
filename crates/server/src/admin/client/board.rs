//! The state of a client over the last minutes.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use tandem_net::clock;
use tandem_node::{
    StrangerText,
    client::{ClientStatus, FlowStatus, HopStatus},
    error::ClientError,
    stats::Stats,
};

use super::now::{
    ClientCarried, ClientFlow, ClientFlows, ClientHistory, ClientHop, ClientNow, ClientRates,
    ClientRole, ClientState,
};
use crate::{
    admin::{
        board::{HISTORY, mbps, ratio},
        causes,
        words::round,
    },
    capacity::memory,
    process::qlog::since_1970,
};

/// A client at its last look.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) now: ClientNow,
    pub(super) stats: Stats,
}

/// What is known of a client besides its last state.
#[derive(Debug)]
pub(super) struct Board {
    started: Instant,
    state: ClientState,
    since: Instant,
    /// The last failure, and when the client tries again.
    failure: Option<(String, Instant)>,
    lost: u64,
    /// When the node was last looked at, and what it had carried then.
    last: Option<(Instant, Carried)>,
    history: VecDeque<[f64; 3]>,
}

/// What grows.
#[derive(Clone, Debug, Default)]
struct Carried {
    to_target: u64,
    to_client: u64,
    /// The bytes that each hop has sent and received.
    hops: Vec<(u64, u64)>,
}

impl Carried {
    fn of(client: &ClientStatus) -> Self {
        let stats = &client.stats;
        Self {
            to_target: stats.to_target_bytes + stats.tcp.to_target_bytes,
            to_client: stats.to_client_bytes + stats.tcp.to_client_bytes,
            hops: client.hops.iter().map(|hop| (hop.sent_bytes, hop.received_bytes)).collect(),
        }
    }
}

impl Board {
    pub(super) fn new() -> Self {
        let now = clock::now();
        Self {
            started: now,
            state: ClientState::Connecting,
            since: now,
            failure: None,
            lost: 0,
            last: None,
            history: VecDeque::new(),
        }
    }

    pub(super) fn note_up(&mut self) {
        self.enter(ClientState::Up);
    }

    pub(super) fn note_lost(&mut self, error: &ClientError, retry_in: Duration) {
        self.lost += u64::from(self.state == ClientState::Up);
        self.enter(ClientState::Away);
        // The causes are partly texts of strangers, whose escape sequences may not become too long together.
        let words = StrangerText::new(&error.to_string()).to_string();
        self.failure = Some((words, clock::now() + retry_in));
    }

    fn enter(&mut self, state: ClientState) {
        if self.state != state {
            (self.state, self.since) = (state, clock::now());
        }
    }

    /// Takes the state of a new second.
    pub(super) fn update(&mut self, status: &ClientStatus) -> Seen {
        let mut seen = self.see(status);
        self.last = Some((clock::now(), Carried::of(status)));
        if self.history.len() >= HISTORY {
            self.history.pop_front();
        }
        let ClientRates { to_target_mbps, to_client_mbps } = seen.now.rates;
        let rtt = seen.now.hops.first().map_or(0.0, |hop| hop.rtt_s);
        self.history.push_back([to_target_mbps, to_client_mbps, rtt]);
        seen.now.history = self.history();
        seen
    }

    /// What is known now.
    pub(super) fn see(&self, client: &ClientStatus) -> Seen {
        let now = clock::now();
        let carried = Carried::of(client);
        let (at, before) = self.last.clone().unwrap_or_else(|| (self.started, Carried::default()));
        let interval = now.saturating_duration_since(at);
        let rate = |new: u64, old: u64| round(mbps(new.saturating_sub(old), interval), 1e3);
        let stats = &client.stats;
        let hops = client.hops.iter().enumerate().map(|(index, it)| {
            // A new connection counts from zero.
            let (sent, received) = before.hops.get(index).copied().unwrap_or_default();
            let is_new = it.sent_bytes < sent || it.received_bytes < received;
            let (sent, received) = if is_new { (0, 0) } else { (sent, received) };
            let rates = (rate(it.sent_bytes, sent), rate(it.received_bytes, received));
            hop(it, rates)
        });
        let is_away = self.state == ClientState::Away;
        let next = self.failure.as_ref().filter(|_| is_away).map(|(_, next)| *next);
        let dropped = causes::dropped(&stats.dropped).map(|(cause, n)| (cause.to_owned(), n));
        let mut dropped = BTreeMap::from(dropped);
        dropped.insert("too_many_flows".to_owned(), stats.dropped.too_many_flows);
        let open_flows = client.flows.iter().map(|it| flow(it, now)).collect();
        let now = ClientNow {
            time_s: round(since_1970().as_secs_f64(), 1e3),
            role: ClientRole::Client,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: seconds(now, self.started),
            state: self.state,
            state_for_s: seconds(now, self.since),
            error: self.failure.as_ref().map(|(words, _)| words.clone()),
            retry_in_s: next.map(|next| seconds(next, now)),
            lost: self.lost,
            memory_bytes: memory::in_use(),
            rates: ClientRates {
                to_target_mbps: rate(carried.to_target, before.to_target),
                to_client_mbps: rate(carried.to_client, before.to_client),
            },
            carried: ClientCarried {
                to_target_bytes: carried.to_target,
                to_client_bytes: carried.to_client,
            },
            flows: ClientFlows {
                open: client.flows_open,
                udp_total: stats.flows,
                tcp_total: stats.tcp.opened,
                tcp_failed: stats.tcp.failed,
            },
            dropped,
            history: self.history(),
            hops: hops.collect(),
            open_flows,
        };
        Seen { now, stats: *stats }
    }

    fn history(&self) -> ClientHistory {
        let all = |value: fn(&[f64; 3]) -> f64| self.history.iter().map(value).collect();
        ClientHistory {
            to_target_mbps: all(|[it, _, _]| *it),
            to_client_mbps: all(|[_, it, _]| *it),
            rtt_s: all(|[_, _, it]| *it),
        }
    }
}

fn hop(status: &HopStatus, (sent_mbps, received_mbps): (f64, f64)) -> ClientHop {
    let HopStatus { connection, tunnel, .. } = status;
    ClientHop {
        proxy: status.authority.clone(),
        is_up: status.is_up,
        mode: status.agreement.map(|agreement| agreement.granted.to_string()),
        transport: connection.datagrams,
        rtt_s: round(connection.smoothed_rtt.as_secs_f64(), 1e6),
        handshake_s: status.handshake.map(|it| round(it.as_secs_f64(), 1e6)),
        sent_mbps,
        received_mbps,
        sent_bytes: status.sent_bytes,
        received_bytes: status.received_bytes,
        sent_packets: connection.sent_packets,
        lost_packets: connection.lost_packets,
        lost_ratio: ratio(connection.lost_packets, connection.sent_packets),
        repaired: tunnel.repaired.sent_again,
        given_up: tunnel.repaired.given_up.total() + tunnel.resequenced.given_up.total(),
        waited: tunnel.resequenced.waited,
        queue_bytes: status.queued.get(),
    }
}

fn flow(status: &FlowStatus, now: Instant) -> ClientFlow {
    ClientFlow {
        kind: status.kind.as_str().to_owned(),
        // Programs choose it.
        target: StrangerText::new(&status.target).to_string(),
        phase: status.phase.as_str().to_owned(),
        to_target_bytes: status.to_target_bytes,
        to_client_bytes: status.to_client_bytes,
        age_s: status.began.map(|began| seconds(now, began)),
        silent_s: status.last.map(|last| seconds(now, last)),
    }
}

/// Seconds since an earlier time, to the millisecond.
fn seconds(now: Instant, earlier: Instant) -> f64 {
    round(now.saturating_duration_since(earlier).as_secs_f64(), 1e3)
}
