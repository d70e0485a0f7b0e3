//! The metrics of a client, by the conventions of those of servers.

use super::{
    board::Seen,
    now::{ClientHop, ClientState},
};
pub(super) use crate::admin::metrics::CONTENT_TYPE;
use crate::admin::{
    causes,
    metrics::{self, Family, MetricKind, MetricSample},
};

/// The text for a scrape.
pub(super) fn text(seen: &Seen) -> String {
    metrics::text_of(families(seen))
}

fn families(seen: &Seen) -> Vec<Family> {
    let (now, stats) = (&seen.now, &seen.stats);
    let mut families = metrics::of_any_process(now.memory_bytes, now.time_s - now.uptime_s);
    families.extend([
        Family::gauge(
            "tandem_client_up",
            "Whether there is a tunnel: 1 or 0",
            now.state == ClientState::Up,
        ),
        Family::counter(
            "tandem_client_lost_total",
            "How often a tunnel that was up was lost",
            now.lost,
        ),
        Family::gauge(
            "tandem_client_flows_open",
            "Flows of programs that are open",
            now.flows.open,
        ),
        Family::counters(
            ("tandem_client_udp_bytes_total", "direction"),
            "Bytes of UDP payload of programs",
            [("to_target", stats.to_target_bytes), ("to_client", stats.to_client_bytes)],
        ),
        Family::counters(
            ("tandem_client_tcp_bytes_total", "direction"),
            "Bytes of TCP connections of programs",
            [("to_target", stats.tcp.to_target_bytes), ("to_client", stats.tcp.to_client_bytes)],
        ),
        Family::counters(
            ("tandem_client_tcp_connections_total", "event"),
            "TCP connections of programs: up to their target, and not",
            [("opened", stats.tcp.opened), ("failed", stats.tcp.failed)],
        ),
        Family::counters(
            ("tandem_client_datagrams_dropped_total", "cause"),
            "UDP payloads that the client's end of its tunnels dropped",
            causes::dropped(&stats.dropped),
        ),
        Family::counter(
            "tandem_client_repairs_total",
            "Lost datagrams that the client sent again",
            stats.repaired.sent_again,
        ),
        Family::counter(
            "tandem_client_resequencing_waits_total",
            "Payloads that waited at the client for one that was lost before them",
            stats.resequenced.waited,
        ),
    ]);
    families.extend(of_hops(&now.hops));
    families
}

/// What is known of each tunnel. The nearest proxy is hop 1.
fn of_hops(hops: &[ClientHop]) -> Vec<Family> {
    let of_each = |value: fn(&ClientHop) -> u64| {
        let numbered = (1..).zip(hops);
        numbered.map(|(hop, it): (u32, _)| MetricSample::of([hop.to_string()], value(it))).collect()
    };
    let family = |kind, title, value| Family::labelled(kind, title, ["hop"], of_each(value));
    let rtts = (1..).zip(hops).map(|(hop, it): (u32, _)| (hop.to_string(), it.rtt_s));
    vec![
        Family::gauge("tandem_client_rtt_seconds", "Smoothed RTT of the tunnel's connection", 0.0)
            .by("hop", rtts),
        family(
            MetricKind::Gauge,
            ("tandem_client_queue_bytes", "Bytes that wait for the tunnel"),
            |it| it.queue_bytes,
        ),
        family(
            MetricKind::Counter,
            (
                "tandem_client_packets_sent_total",
                "QUIC packets sent on the tunnel's connection; from zero again with a new one",
            ),
            |it| it.sent_packets,
        ),
        family(
            MetricKind::Counter,
            ("tandem_client_packets_lost_total", "Those of them that were lost"),
            |it| it.lost_packets,
        ),
    ]
}

/// All rows of the table of metrics in the documentation.
#[cfg(test)]
pub(super) fn rows(seen: &Seen) -> Vec<[String; 4]> {
    families(seen).iter().map(Family::row).collect()
}
