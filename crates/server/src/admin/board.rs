//! The state of a server over the last minutes, made of the states of its nodes.

use std::{
    cell::{Cell, Ref, RefCell},
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use prometheus_client::metrics::histogram::Histogram;
use tandem_net::clock;
use tandem_node::{
    stats::{ConnectionStats, Stats},
    status::ConnectionStatus,
};

use super::{
    BUSIEST, Facts, OfProcess, SeenNode, ab, causes, has_stopped, metrics,
    now::{Connections, Flows, History, Memory, Now, Queue, Rates, Rtt, Tunnel},
    takes_connections,
    users::UserSeries,
};
use crate::{admin::words::round, capacity::memory, process::qlog::since_1970};

/// Seconds of which rates are kept: five minutes.
pub(super) const HISTORY: usize = 300;

/// The state of a server over the last minutes.
pub(super) struct Board<'a> {
    facts: &'a Facts,
    history: RefCell<VecDeque<BoardSecond>>,
    users: RefCell<UserSeries>,
    rtts: Histogram,
    /// When the newest state of a node was made whose RTTs are in the histogram.
    counted: Cell<Option<Instant>>,
}

/// One second.
#[derive(Clone, Copy, Debug)]
struct BoardSecond {
    to_client_mbps: f64,
    to_target_mbps: f64,
    queue_bytes: f64,
    rtt_s: f64,
}

impl<'a> Board<'a> {
    pub(super) fn new(facts: &'a Facts) -> Self {
        Self {
            facts,
            history: RefCell::default(),
            users: RefCell::default(),
            rtts: metrics::rtt_histogram(),
            counted: Cell::new(None),
        }
    }

    /// What users carry.
    pub(super) fn users(&self) -> Ref<'_, UserSeries> {
        self.users.borrow()
    }

    /// Each RTT that was seen, once a second.
    pub(super) const fn rtts(&self) -> &Histogram {
        &self.rtts
    }

    /// Takes the states of a new second.
    pub(super) fn update(&self, seen: &[Arc<SeenNode>], of_process: OfProcess) {
        let new = seen.iter().filter(|it| self.counted.get().is_none_or(|last| it.at > last));
        for rtt in new.flat_map(|seen| &seen.status.rtts) {
            self.rtts.observe(rtt.as_secs_f64());
        }
        self.counted.set(seen.iter().map(|seen| seen.at).max());
        if let Some(users) = &self.facts.users {
            self.users.borrow_mut().update(clock::now(), users.counters());
        }
        let now = self.now(seen, of_process);
        let mut history = self.history.borrow_mut();
        if history.len() == HISTORY {
            history.pop_front();
        }
        history.push_back(BoardSecond {
            to_client_mbps: now.rates.to_client_mbps,
            to_target_mbps: now.rates.to_target_mbps,
            queue_bytes: float(now.queue.bytes),
            rtt_s: now.rtt.map_or(0.0, |rtt| rtt.median_s),
        });
    }

    /// What is known now.
    pub(super) fn now(&self, seen: &[Arc<SeenNode>], of_process: OfProcess) -> Now {
        let OfProcess { is_draining, stuck_threads, lost_log_lines, cut_qlogs } = of_process;
        let sum = |value: fn(&SeenNode) -> u64| seen.iter().map(|it| value(it)).sum::<u64>();
        let tunnels = tunnels(seen);
        let wait = tunnels.iter().map(|it| it.queue_wait_s).fold(0.0, f64::max);
        let upstream_is_up = self.facts.is_upstream_up();
        let is_complete = seen.len() == self.facts.threads;
        Now {
            time_s: round(since_1970().as_secs_f64(), 1e3),
            role: self.facts.role,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: round(clock::now().duration_since(self.facts.started).as_secs_f64(), 1e3),
            is_ready: !is_draining
                && is_complete
                && takes_connections(seen)
                && !has_stopped(seen)
                && upstream_is_up != Some(false),
            upstream_is_up,
            is_draining,
            threads: self.facts.threads,
            stuck_threads,
            lost_log_lines,
            cut_qlogs,
            memory: Memory { in_use_bytes: memory::in_use(), bound_bytes: self.facts.memory_max },
            connections: Connections {
                open: sum(|it| it.status.stats.connections_open),
                limit: self.facts.connections_max,
                total: sum(|it| it.status.stats.connections),
                broken: sum(|it| it.status.stats.connections_broken),
            },
            flows: Flows {
                udp: sum(|it| it.status.stats.flows_open),
                tcp: sum(|it| it.status.stats.tcp.open),
                limit: self.facts.sockets_max,
                udp_total: sum(|it| it.status.stats.flows),
                tcp_total: sum(|it| it.status.stats.tcp.opened),
            },
            queue: Queue { bytes: sum(|it| it.status.queued.get()), longest_wait_s: wait },
            rtt: rtt(seen),
            dropped: sums(seen, |stats| causes::dropped(&stats.dropped)),
            refused: sums(seen, refused),
            rates: rates(seen),
            history: self.history(),
            users: self.users.borrow().busiest(),
            users_known: self.users.borrow().known(),
            ab_test: ab::times(seen.iter().map(|seen| &seen.status.stats.transfers)),
            tunnels,
        }
    }

    fn history(&self) -> History {
        let history = self.history.borrow();
        let all = |value: fn(&BoardSecond) -> f64| history.iter().map(value).collect();
        History {
            to_client_mbps: all(|it| it.to_client_mbps),
            to_target_mbps: all(|it| it.to_target_mbps),
            queue_bytes: all(|it| it.queue_bytes),
            rtt_median_s: all(|it| it.rtt_s),
        }
    }
}

fn sums(
    seen: &[Arc<SeenNode>],
    causes: fn(&Stats) -> [(&'static str, u64); 8],
) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (cause, count) in seen.iter().flat_map(|seen| causes(&seen.status.stats)) {
        *sums.entry(cause.to_owned()).or_default() += count;
    }
    sums
}

const fn refused(stats: &Stats) -> [(&'static str, u64); 8] {
    [
        ("requests", stats.requests_refused),
        ("requests_without_token", stats.denied.no_token),
        ("requests_with_wrong_token", stats.denied.wrong_token),
        ("requests_ignored", stats.denied.ignored),
        ("connections_without_room", stats.accepting.refused),
        ("connections_displaced", stats.accepting.displaced),
        ("connections_closed_for_memory", stats.accepting.closed_for_memory),
        ("handshakes_timed_out", stats.accepting.handshakes_timed_out),
    ]
}

fn rates(seen: &[Arc<SeenNode>]) -> Rates {
    let mut rates = Rates::default();
    let (mut sent, mut lost) = (0, 0);
    for seen in seen {
        let carried = seen.carried;
        rates.to_client_mbps += mbps(carried.to_client_bytes, seen.interval);
        rates.to_target_mbps += mbps(carried.to_target_bytes, seen.interval);
        rates.sent_pps += per_second(carried.sent_datagrams, seen.interval);
        rates.received_pps += per_second(carried.received_datagrams, seen.interval);
        sent += carried.sent_packets;
        lost += carried.lost_packets;
    }
    Rates {
        to_client_mbps: round(rates.to_client_mbps, 1e3),
        to_target_mbps: round(rates.to_target_mbps, 1e3),
        sent_pps: round(rates.sent_pps, 10.0),
        received_pps: round(rates.received_pps, 10.0),
        lost_ratio: ratio(lost, sent),
    }
}

fn rtt(seen: &[Arc<SeenNode>]) -> Option<Rtt> {
    let mut all: Vec<_> = seen.iter().flat_map(|seen| &seen.status.rtts).copied().collect();
    let last = all.len().checked_sub(1)?;
    let mut at = |percent: usize| {
        let (_, rtt, _) = all.select_nth_unstable(last * percent / 100);
        round(rtt.as_secs_f64(), 1e6)
    };
    Some(Rtt { median_s: at(50), p95_s: at(95), max_s: at(100) })
}

fn tunnels(seen: &[Arc<SeenNode>]) -> Vec<Tunnel> {
    let all =
        seen.iter().flat_map(|it| it.status.busiest.iter().map(move |one| (one, it.interval)));
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(it, _)| (Reverse(it.to_client_bytes + it.from_client_bytes), it.connection));
    all.truncate(BUSIEST);
    all.into_iter().map(|(it, interval)| tunnel(it, interval)).collect()
}

fn tunnel(status: &ConnectionStatus, interval: Duration) -> Tunnel {
    let ConnectionStatus { connection, stats, to_client_bytes, from_client_bytes, tunnel } = status;
    let queued = tunnel.as_ref().map_or(0, |it| it.queued.get());
    Tunnel {
        connection: *connection,
        user: tunnel.as_ref().and_then(|it| it.user.clone()),
        client: tunnel.as_ref().and_then(|it| it.client),
        udp_flows: tunnel.as_ref().map_or(0, |it| it.udp_flows),
        tcp_flows: tunnel.as_ref().map_or(0, |it| it.tcp_flows),
        transport: stats.datagrams,
        rtt_s: round(stats.smoothed_rtt.as_secs_f64(), 1e6),
        to_client_mbps: round(mbps(*to_client_bytes, interval), 1e3),
        from_client_mbps: round(mbps(*from_client_bytes, interval), 1e3),
        to_client_bytes: stats.sent.bytes,
        from_client_bytes: stats.received.bytes,
        lost_ratio: ratio(stats.lost_packets, stats.sent_packets),
        queue_bytes: queued,
        queue_wait_s: round(8.0 * float(queued) / pacing_bps(stats), 1e3),
    }
}

/// The rate at which packets may leave in bit/s. Where the controller names none, the engine paces by 5/4 of a
/// window each smoothed RTT (RFC 9002 §7.7).
fn pacing_bps(stats: &ConnectionStats) -> f64 {
    stats.pacing_rate.map_or_else(
        || {
            let bits = 8.0 * float(stats.congestion_window.get().max(1));
            1.25 * bits / stats.smoothed_rtt.as_secs_f64().max(1e-6)
        },
        |rate| float(rate.bits_per_second()),
    )
}

/// A rate in Mbit/s.
pub(super) fn mbps(bytes: u64, interval: Duration) -> f64 {
    per_second(bytes, interval) * 8.0 / 1e6
}

fn per_second(count: u64, interval: Duration) -> f64 {
    float(count) / interval.as_secs_f64().max(1e-3)
}

pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    round(float(part) / float(whole.max(1)), 1e5)
}

#[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
const fn float(number: u64) -> f64 {
    number as f64
}
