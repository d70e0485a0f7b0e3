//! The metrics of a node. Its counters by cause are taken apart field by field, so that the compiler finds a cause that
//! is missing.

use std::time::Duration;

use tandem_net::DriverStats;
use tandem_node::{
    proxy::{Arm, TransferTimes, Transfers},
    quic::{PepAckStats, UnusablePackets},
    stats::{
        Accepting, BesideStats, Broken, Denied, FeedbackStats, FlowsEnded, GivenUp, Orders,
        Repaired, ShareStats, Stats, TcpStats,
    },
    tunnel::resequence::{GivenUpGaps, ResequencerStats},
};

use super::{
    super::{RoleName, causes},
    family::{Family, MetricKind, MetricSample, Value},
};

/// The families of a node, always in the same order.
pub(super) fn families(role: RoleName, stats: &Stats, driver: &DriverStats) -> Vec<Family> {
    let mut families = of_connections(stats);
    match role {
        RoleName::Proxy => families.extend(
            of_flows(stats)
                .into_iter()
                .chain(of_tcp(&stats.tcp))
                .chain(of_shares(&stats.shares))
                .chain(of_transfers(&stats.transfers))
                .chain(of_tunnels(stats))
                .chain(of_repairs(&stats.repaired))
                .chain([of_orders(stats.orders)])
                .chain(of_egress(&stats.resequenced)),
        ),
        RoleName::Origin => families.extend(of_origin(stats)),
    }
    families.extend(of_driver(driver));
    families
}

fn of_connections(stats: &Stats) -> Vec<Family> {
    let Broken { quic, frames, settings, streams, qpack, datagrams, ids, others } = stats.broken;
    let [limited, unusable] = of_strangers(stats);
    vec![
        Family::counter(
            "tandem_connections_total",
            "QUIC connections whose handshake completed",
            stats.connections,
        ),
        Family::gauge(
            "tandem_connections_open",
            "QUIC connections that are open",
            stats.connections_open,
        ),
        Family::counter(
            "tandem_sealed_transports_total",
            "Connections whose datagrams travel in the sealed transport",
            stats.sealed_transports,
        ),
        Family::counters(
            ("tandem_connections_broken_total", "cause"),
            "Connections that were closed because the peer violated QUIC or HTTP/3",
            [
                ("quic", quic),
                ("frames", frames),
                ("settings", settings),
                ("streams", streams),
                ("qpack", qpack),
                ("datagrams", datagrams),
                ("ids", ids),
                ("others", others),
            ],
        ),
        Family::counter(
            "tandem_internal_errors_total",
            "How often something happened that cannot happen unless this program has an error; please \
             report it",
            stats.internal_errors,
        ),
        limited,
        unusable,
        Family::counter("tandem_requests_total", "HTTP requests of all kinds", stats.requests),
        Family::counter(
            "tandem_requests_refused_total",
            "HTTP requests that were refused or failed",
            stats.requests_refused,
        ),
        Family::counter(
            "tandem_quic_packets_sent_total",
            "QUIC packets sent to clients",
            stats.sent_packets,
        ),
        Family::counter(
            "tandem_quic_packets_lost_total",
            "QUIC packets to clients that were declared lost",
            stats.lost_packets,
        ),
    ]
}

/// What a server did not do for its peers.
fn of_strangers(stats: &Stats) -> [Family; 2] {
    let Accepting {
        retried,
        over_prefix_pace,
        over_pace,
        refused,
        displaced,
        closed_for_memory,
        handshakes_timed_out,
    } = stats.accepting;
    let UnusablePackets {
        too_short,
        too_long,
        unknown_version,
        for_another,
        refused: refused_packets,
        too_many,
    } = stats.unusable_packets;
    [
        Family::counters(
            ("tandem_connections_limited_total", "limit"),
            "Connections that met a limit: asked to prove their address (retry), made to ask again \
             because their address prefix (prefix_pace) or all clients (pace) began too many \
             handshakes, refused for lack of room, closed to make room (displaced), closed because \
             memory was short, or too slow in the handshake",
            [
                ("retry", retried),
                ("prefix_pace", over_prefix_pace),
                ("pace", over_pace),
                ("refused", refused),
                ("displaced", displaced),
                ("memory", closed_for_memory),
                ("handshake_timeout", handshakes_timed_out),
            ],
        ),
        Family::counters(
            ("tandem_unusable_packets_total", "cause"),
            "Received packets that were for no connection and got no answer",
            [
                ("too_short", too_short),
                ("too_long", too_long),
                ("unknown_version", unknown_version),
                ("for_another", for_another),
                ("refused", refused_packets),
                ("too_many", too_many),
            ],
        ),
    ]
}

fn of_flows(stats: &Stats) -> Vec<Family> {
    let Denied { no_token, wrong_token, ignored, expired } = stats.denied;
    // `for_others` counts at clients only.
    let FlowsEnded {
        by_client,
        idle,
        unreachable,
        malformed,
        with_connection,
        revoked,
        for_others: _,
    } = stats.flows_ended;
    vec![
        Family::counters(
            ("tandem_requests_denied_total", "cause"),
            "Requests that showed no right to use the proxy; ignored: too many wrong tokens had come \
             from the same place",
            [
                ("no_token", no_token),
                ("wrong_token", wrong_token),
                ("expired", expired),
                ("ignored", ignored),
            ],
        ),
        Family::counter("tandem_flows_total", "UDP flows that were opened", stats.flows),
        Family::gauge(
            "tandem_flows_open",
            "Sockets that are open towards targets of UDP",
            stats.flows_open,
        ),
        Family::counters(
            ("tandem_flows_ended_total", "cause"),
            "UDP flows that have ended",
            [
                ("by_client", by_client),
                ("idle", idle),
                ("unreachable", unreachable),
                ("malformed", malformed),
                ("with_connection", with_connection),
                ("revoked", revoked),
            ],
        ),
        Family::counters(
            ("tandem_udp_datagrams_total", "direction"),
            "UDP payloads that were relayed",
            [("to_target", stats.to_target_datagrams), ("to_client", stats.to_client_datagrams)],
        ),
        Family::counters(
            ("tandem_udp_bytes_total", "direction"),
            "Bytes of UDP payload that were relayed",
            [("to_target", stats.to_target_bytes), ("to_client", stats.to_client_bytes)],
        ),
    ]
}

fn of_tcp(stats: &TcpStats) -> Vec<Family> {
    // `programs_refused` counts at clients only.
    let TcpStats { opened, open, failed, programs_refused: _, finished, reset, aborted, .. } =
        *stats;
    vec![
        Family::counters(
            ("tandem_tcp_connections_total", "event"),
            "TCP connections to targets, by what became of them",
            [
                ("opened", opened),
                ("failed", failed),
                ("finished", finished),
                ("reset", reset),
                ("aborted", aborted),
            ],
        ),
        Family::gauge(
            "tandem_tcp_connections_open",
            "TCP connections to targets that are open",
            open,
        ),
        Family::counters(
            ("tandem_tcp_bytes_total", "direction"),
            "Bytes of TCP connections that were relayed",
            [("to_target", stats.to_target_bytes), ("to_client", stats.to_client_bytes)],
        ),
    ]
}

fn of_tunnels(stats: &Stats) -> Vec<Family> {
    let BesideStats { sent, received, refused } = stats.beside;
    let FeedbackStats {
        sent: reports,
        received: reports_received,
        followed,
        stale,
        malformed: malformed_reports,
    } = stats.feedback;
    let tandem_pep::Stats { observed, notices, untold } = stats.pep;
    vec![
        Family::counters(
            ("tandem_datagrams_dropped_total", "cause"),
            "UDP payloads that tunnels dropped",
            causes::dropped(&stats.dropped),
        ),
        Family::counter(
            "tandem_datagrams_in_capsules_total",
            "UDP payloads that went in capsules, because they did not fit a datagram",
            stats.in_capsules,
        ),
        Family::counters(
            ("tandem_beside_packets_total", "event"),
            "Packets beside the tunnels' connections (modes forward and uack)",
            [("sent", sent), ("received", received), ("refused", refused)],
        ),
        Family::counters(
            ("tandem_reports_total", "event"),
            "Reports on tunnels (modes auto and tecc)",
            [
                ("sent", reports),
                ("received", reports_received),
                ("followed", followed),
                ("stale", stale),
                ("malformed", malformed_reports),
            ],
        ),
        Family::counter(
            "tandem_log_lines_left_out_total",
            "Lines about flows and connections that were left out of the log, because there were too many",
            stats.unlogged_lines,
        ),
        Family::counter(
            "tandem_fields_ignored_total",
            "Header fields of Tandem's own extensions that were malformed or not allowed",
            stats.fields_ignored,
        ),
        Family::counters(
            ("tandem_pep_packets_total", "event"),
            "Packets of servers that the proxy saw as a PEP, PEP-ACKs that it sent, and packets of which \
             none tells",
            [("observed", observed), ("pep_acks", notices), ("untold", untold)],
        ),
    ]
}

/// The times of transfers in an A/B test. Without one all numbers are 0.
fn of_transfers(transfers: &Transfers) -> Vec<Family> {
    let samples = |value: fn(TransferTimes) -> Value| {
        let sample = |(arm, size, times): (Arm, &str, TransferTimes)| MetricSample {
            labels: vec![arm.name().into(), size.to_owned().into()],
            value: value(times),
        };
        transfers.rows().map(sample).collect()
    };
    let family =
        |text, samples| Family::labelled(MetricKind::Counter, text, ["mode", "size"], samples);
    vec![
        family(
            (
                "tandem_transfers_total",
                "Transfers of the users in an A/B test (--ab-test), by what they got and by bytes to the client",
            ),
            samples(|times| times.count.into()),
        ),
        family(
            ("tandem_transfer_seconds_total", "The sum of the times of these transfers"),
            samples(|times| Duration::from_micros(times.micros).as_secs_f64().into()),
        ),
    ]
}

/// How users share the processor time of threads that are busy.
fn of_shares(&ShareStats { busy, waits }: &ShareStats) -> Vec<Family> {
    vec![
        Family::counter(
            "tandem_busy_total",
            "How often a thread became busy: it had something to do for 50 ms without a break, so \
             that users have equal parts of it",
            busy,
        ),
        Family::counter(
            "tandem_tcp_waits_total",
            "How often a TCP connection was not read for a while, because its user had already got \
             its part of a busy thread",
            waits,
        ),
    ]
}

fn of_orders(Orders { off, window, ordered }: Orders) -> Family {
    Family::counters(
        ("tandem_orders_total", "order"),
        "How often clients chose this order for the payloads of a repaired flow, at its start and \
         later (mode auto)",
        [("ordered", ordered), ("window", window), ("off", off)],
    )
}

fn of_repairs(repaired: &Repaired) -> Vec<Family> {
    let Repaired { sent_again, probes, given_up, kept_bytes_max } = *repaired;
    let GivenUp { time, deadline, limit, room, unknown } = given_up;
    vec![
        Family::counter(
            "tandem_repairs_total",
            "Lost datagrams that were sent again, with probes",
            sent_again,
        ),
        Family::counter(
            "tandem_repair_probes_total",
            "Datagrams that were sent again because no acknowledgement came",
            probes,
        ),
        Family::counters(
            ("tandem_repairs_given_up_total", "cause"),
            "Lost datagrams that were not sent again",
            [
                ("time", time),
                ("deadline", deadline),
                ("limit", limit),
                ("room", room),
                ("unknown", unknown),
            ],
        ),
        Family::one(
            MetricKind::Peak,
            "tandem_repair_kept_bytes_max",
            "The most bytes that one tunnel kept for repairs so far",
            kept_bytes_max,
        ),
    ]
}

fn of_egress(egress: &ResequencerStats) -> Vec<Family> {
    let ResequencerStats { released, waited, waited_time, held_bytes_max, .. } = *egress;
    let ResequencerStats { late, duplicates, stale, out_of_range, overrun, .. } = *egress;
    let ResequencerStats { given_up: gaps, floors_out_of_range, held_packets_max, .. } = *egress;
    let GivenUpGaps { floor, time: gap_time, silence, bytes, packets, flush } = gaps;
    let peak = |name, help, value: usize| Family::one(MetricKind::Peak, name, help, value);
    vec![
        Family::counter(
            "tandem_resequenced_total",
            "Numbered payloads from clients that left in order",
            released,
        ),
        Family::counter(
            "tandem_resequencing_waits_total",
            "Numbered payloads from clients that had to wait for earlier ones",
            waited,
        ),
        Family::counter(
            "tandem_resequencing_wait_seconds_total",
            "The time for which they waited",
            waited_time.as_secs_f64(),
        ),
        Family::counters(
            ("tandem_resequencing_gaps_total", "cause"),
            "Missing payloads from clients that were given up",
            [
                ("floor", floor),
                ("time", gap_time),
                ("silence", silence),
                ("bytes", bytes),
                ("packets", packets),
                ("flush", flush),
            ],
        ),
        Family::counters(
            ("tandem_resequencing_irregular_total", "cause"),
            "Numbered payloads from clients that came late and left, or that were dropped, and repair floors \
             that were ignored",
            [
                ("late", late),
                ("duplicate", duplicates),
                ("stale", stale),
                ("out_of_range", out_of_range),
                ("overrun", overrun),
                ("floor_out_of_range", floors_out_of_range),
            ],
        ),
        peak(
            "tandem_resequencing_held_bytes_max",
            "The most bytes that waited at once in one flow so far",
            held_bytes_max,
        ),
        peak(
            "tandem_resequencing_held_packets_max",
            "The most payloads that waited at once in one flow so far",
            held_packets_max,
        ),
    ]
}

fn of_origin(stats: &Stats) -> Vec<Family> {
    let PepAckStats { used, unknown, forged, foreign, malformed, packets } = stats.pep_acks;
    let FeedbackStats { sent, received, followed, stale, malformed: malformed_reports } =
        stats.feedback;
    vec![
        Family::counter("tandem_file_bytes_total", "Bytes of files sent", stats.file_bytes),
        Family::counter(
            "tandem_upload_bytes_total",
            "Bytes of uploads received",
            stats.upload_bytes,
        ),
        Family::counters(
            ("tandem_reports_total", "event"),
            "Reports on tunnels (modes auto and tecc)",
            [
                ("sent", sent),
                ("received", received),
                ("followed", followed),
                ("stale", stale),
                ("malformed", malformed_reports),
            ],
        ),
        Family::counters(
            ("tandem_pep_acks_total", "result"),
            "PEP-ACKs, by what became of them",
            [
                ("used", used),
                ("unknown", unknown),
                ("forged", forged),
                ("foreign", foreign),
                ("malformed", malformed),
            ],
        ),
        Family::counter(
            "tandem_pep_acked_packets_total",
            "Packets that PEP-ACKs named and that were known",
            packets,
        ),
    ]
}

fn of_driver(stats: &DriverStats) -> Vec<Family> {
    let received_dropped = stats.dropped_not_from_peer;
    vec![
        Family::counters(
            ("tandem_socket_datagrams_total", "direction"),
            "UDP payloads that the sockets of the process received and sent, on both sides",
            [("received", stats.datagrams_received), ("sent", stats.datagrams_sent)],
        ),
        Family::counters(
            ("tandem_socket_bytes_total", "direction"),
            "Bytes of UDP payload that the sockets of the process received and sent, on both sides",
            [("received", stats.bytes_received), ("sent", stats.bytes_sent)],
        ),
        Family::counters(
            ("tandem_socket_calls_total", "direction"),
            "System calls that received and sent UDP payloads; one call carries several",
            [("received", stats.receive_calls), ("sent", stats.send_calls)],
        ),
        Family::counters(
            ("tandem_socket_datagrams_dropped_total", "cause"),
            "UDP payloads that were not sent, came from another address than the target, or waited in too great a \
             number for another thread",
            [
                ("too_large", stats.dropped_too_large),
                ("send_buffer_full", stats.dropped_send_blocked),
                ("send_error", stats.dropped_send_error),
                ("no_socket", stats.dropped_no_socket),
                ("not_from_target", received_dropped),
                ("other_thread", stats.dropped_hand_over),
            ],
        ),
        Family::counter(
            "tandem_socket_datagrams_handed_over_total",
            "UDP payloads that another thread received and handed to that of their connection",
            stats.handed_over,
        ),
        Family::counters(
            ("tandem_socket_errors_total", "cause"),
            "Errors of the operating system about sockets",
            [
                ("receive", stats.receive_errors),
                ("open", stats.sockets_refused),
                ("peer", stats.sockets_failed),
                ("tcp_open", stats.tcp_refused),
                ("tcp", stats.tcp_failed),
            ],
        ),
        Family::counter(
            "tandem_wakes_total",
            "How often threads woke from waiting for packets and timers",
            stats.wakes,
        ),
    ]
}
