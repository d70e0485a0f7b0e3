//! Metrics for Prometheus, by its conventions: base units, `_total` for counters, labels from closed sets.

mod family;
mod node;

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, prometheus_text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, histogram::Histogram},
    registry::Registry,
};
use rustix::time::{ClockId, clock_gettime};
use tandem_net::site::UpstreamWatch;

use self::family::Value;
pub(super) use self::family::{Family, MetricKind, MetricSample};
use super::{Facts, RoleName, SeenNode, now::Now, paths::PathTotals, users::UserSeries};
use crate::capacity::memory;

/// The name of the histogram of RTTs.
const RTT: &str = "tandem_rtt_seconds";

/// Its help.
const RTT_HELP: &str = "Smoothed RTT to clients: each open connection counts once a second";

/// The upper ends of its buckets in seconds: from a local network to satellites and full queues.
const RTT_BUCKETS: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 1.0, 2.0, 5.0];

/// The media type of the metrics.
pub(super) use prometheus_text::CONTENT_TYPE;

/// An empty histogram of RTTs.
pub(super) fn rtt_histogram() -> Histogram {
    Histogram::new(RTT_BUCKETS)
}

/// The text for a scrape.
pub(super) fn text(families: Vec<Family>, rtts: &Histogram) -> String {
    let mut registry = Registry::default();
    // The registry ends the help with a full stop.
    registry.register(RTT, RTT_HELP, rtts.clone());
    encode(registry, families)
}

/// The text for a scrape of families alone.
pub(super) fn text_of(families: Vec<Family>) -> String {
    encode(Registry::default(), families)
}

fn encode(mut registry: Registry, families: Vec<Family>) -> String {
    registry.register_collector(Box::new(Families(families)));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry).expect("a string takes all text");
    text
}

/// All families of a server but the histogram.
pub(super) fn families(
    facts: &Facts,
    seen: &[&SeenNode],
    now: &Now,
    paths: Option<&PathTotals>,
    users: &UserSeries,
) -> Vec<Family> {
    let mut families = of_process(facts, now);
    let mut nodes =
        seen.iter().map(|seen| node::families(facts.role, &seen.status.stats, &seen.driver));
    let mut sums = nodes.next().unwrap_or_default();
    for node in nodes {
        sums.iter_mut().zip(&node).for_each(|(sum, family)| sum.add(family));
    }
    families.extend(sums);
    if facts.users.is_some() {
        families.extend(users.families());
    }
    families.extend(facts.upstream.iter().flat_map(|upstream| of_upstream(upstream)));
    families.extend(paths.into_iter().flat_map(of_paths));
    families
}

/// What is known of any process. `started`: in seconds since 1970.
pub(super) fn of_any_process(memory_bytes: u64, started: f64) -> Vec<Family> {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "exact for 285 million years")]
    let cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    vec![
        Family::gauge("tandem_build_info", "1, with the version of the program", 1_u64)
            .by("version", [(env!("CARGO_PKG_VERSION"), 1_u64)]),
        Family::gauge(
            "process_start_time_seconds",
            "When the process started, in seconds since 1970",
            started,
        ),
        Family::counter("process_cpu_seconds_total", "CPU time of the process", cpu_seconds),
        Family::gauge(
            "process_resident_memory_bytes",
            "Memory of the process in the machine's RAM",
            memory::resident(),
        ),
        Family::gauge("tandem_memory_bytes", "Memory that the process has allocated", memory_bytes),
    ]
}

/// What became of requests that an origin has passed on.
fn of_upstream(upstream: &UpstreamWatch) -> [Family; 4] {
    [
        Family::gauge(
            "tandem_upstream_up",
            "Whether the HTTP server behind the origin answers: 1 or 0",
            upstream.is_up(),
        ),
        Family::counter(
            "tandem_upstream_responses_total",
            "Responses of the HTTP server behind the origin",
            upstream.answered(),
        ),
        Family::counters(
            ("tandem_upstream_failures_total", "cause"),
            "Requests to the HTTP server behind the origin without an answer, or without a whole one; the causes are \
             those of RFC 9209",
            upstream.failed().map(|(error, count)| (error.reason(), count)),
        ),
        Family::gauge(
            "tandem_upstream_websockets_open",
            "WebSockets to the HTTP server behind the origin that are open",
            upstream.websockets(),
        ),
    ]
}

fn of_process(facts: &Facts, now: &Now) -> Vec<Family> {
    let mut families = of_any_process(now.memory.in_use_bytes, facts.started_unix.as_secs_f64());
    families.extend([
        Family::gauge(
            "tandem_memory_bound_bytes",
            "The bound of --memory; from half of it, new connections are refused",
            now.memory.bound_bytes,
        ),
        Family::gauge("tandem_threads", "Threads that serve connections", now.threads),
        Family::counter(
            "tandem_stuck_threads_total",
            "How often a thread did not come back to its work for five seconds",
            now.stuck_threads,
        ),
        Family::counter(
            "tandem_log_lines_lost_total",
            "Lines of the log that were lost, because standard error was full, gone or not read",
            now.lost_log_lines,
        ),
        Family::counter(
            "tandem_qlogs_cut_total",
            "Qlog files that end before their connections, because the disk was full or slow",
            now.cut_qlogs,
        ),
        Family::gauge("tandem_ready", "Whether new flows are taken: 1 or 0", now.is_ready),
        Family::gauge(
            "tandem_connections_limit",
            "The most connections that may be open",
            facts.connections_max,
        ),
    ]);
    if facts.role == RoleName::Proxy {
        families.extend([
            Family::gauge(
                "tandem_flows_limit",
                "The most sockets towards targets that may be open, for UDP and TCP together",
                facts.sockets_max,
            ),
            Family::gauge(
                "tandem_tunnel_queue_bytes",
                "Bytes that wait in the queues of all tunnels to clients",
                now.queue.bytes,
            ),
            Family::gauge(
                "tandem_tunnel_queue_wait_seconds",
                "The longest queue among the busiest tunnels, as the time to send it at the pacing rate",
                now.queue.longest_wait_s,
            ),
        ]);
    }
    families
}

/// What PEPs have shown of paths. Of origins with `--peps`.
fn of_paths(paths: &PathTotals) -> Vec<Family> {
    let PathTotals { connections, seconds, lost } = paths;
    vec![
        Family::gauge(
            "tandem_path_connections",
            "Open connections with a PEP on their path, by their bottleneck",
            0_u64,
        )
        .by("bottleneck", connections.by_place()),
        Family::counter(
            "tandem_path_bottleneck_seconds_total",
            "For how long the bottleneck of connections was where",
            0.0,
        )
        .by("bottleneck", seconds.by_place()),
        Family::counter(
            "tandem_path_lost_packets_total",
            "Packets that were lost, by the domain of the path",
            0_u64,
        )
        .by("domain", lost.by_domain()),
    ]
}

/// All rows of the table of metrics in the documentation: name, type, label and meaning.
#[cfg(test)]
pub(super) fn table(facts: &Facts, seen: &SeenNode, paths: Option<PathTotals>) -> Vec<[String; 4]> {
    let users = UserSeries::default();
    let families = families(facts, &[seen], &Now::default(), paths.as_ref(), &users);
    let mut rows: Vec<_> = families.iter().map(Family::row).collect();
    rows.push([RTT, "histogram", "", RTT_HELP].map(str::to_owned));
    rows
}

/// Families as the library encodes them.
#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { name, help, kind, labels, samples } in &self.0 {
            // The library adds the ending to the names of counters.
            let name = name.strip_suffix("_total").unwrap_or(name);
            let kind = match kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge | MetricKind::Peak => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for sample in samples {
                let values = sample.labels.iter().map(AsRef::as_ref);
                let labels: Vec<(&str, &str)> = labels.iter().copied().zip(values).collect();
                let encoder = family.encode_family(&labels)?;
                match (kind, sample.value) {
                    (MetricType::Counter, Value::Whole(value)) => {
                        ConstCounter::new(value).encode(encoder)?;
                    }
                    (MetricType::Counter, Value::Fraction(value)) => {
                        ConstCounter::new(value).encode(encoder)?;
                    }
                    (_, Value::Whole(value)) => ConstGauge::new(value).encode(encoder)?,
                    (_, Value::Fraction(value)) => ConstGauge::new(value).encode(encoder)?,
                }
            }
        }
        Ok(())
    }
}
