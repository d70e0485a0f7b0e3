//! Metrics for Prometheus. One HTTP listener in a thread of its own serves them.

use std::net::SocketAddr;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::PrometheusBuilder;
use tandem_congestion::Place;
use tandem_node::quic::PepAckStats;

use crate::error::CliError;

const SECONDS: &str = "tandem_path_bottleneck_seconds";
const LOST: &str = "tandem_path_lost_packets_total";
const CONNECTIONS: &str = "tandem_path_connections";
const PEP_ACKS: &str = "tandem_pep_acks_total";

/// Serves the metrics at `/metrics` of this address, until the process ends.
pub(crate) fn serve(address: SocketAddr) -> Result<(), CliError> {
    let builder = PrometheusBuilder::new().with_http_listener(address);
    builder.install().map_err(|error| CliError::Metrics { address, reason: error.to_string() })?;
    describe_gauge!(SECONDS, Unit::Seconds, "For how long the bottleneck of connections was where");
    describe_counter!(LOST, "Packets that were lost, by the domain of the path");
    describe_gauge!(CONNECTIONS, "Open connections with a PEP on their path, by their bottleneck");
    describe_counter!(PEP_ACKS, "PEP-ACKs, by what became of them");
    Ok(())
}

/// The name of a place, as in `tandem origin --json`.
pub(crate) const fn name(place: Place) -> &'static str {
    match place {
        Place::Wired => "wired",
        Place::Access => "access",
        Place::Sender => "sender",
    }
}

/// Sets how many connections have their bottleneck there.
pub(crate) fn set_connections(place: Place, count: usize) {
    gauge!(CONNECTIONS, "bottleneck" => name(place)).set(u32::try_from(count).unwrap_or(u32::MAX));
}

/// Adds time for which the bottleneck of a connection was there, in seconds.
pub(crate) fn add_seconds(place: Place, seconds: f64) {
    // The counters of this library have no fractions.
    gauge!(SECONDS, "bottleneck" => name(place)).increment(seconds.max(0.0));
}

/// Adds packets that were lost in a domain.
pub(crate) fn add_lost(domain: &'static str, packets: u64) {
    counter!(LOST, "domain" => domain).increment(packets);
}

/// Sets what became of PEP-ACKs.
pub(crate) fn set_pep_acks(stats: &PepAckStats) {
    let PepAckStats { used, unknown, forged, foreign, malformed, packets: _ } = *stats;
    for (result, count) in [
        ("used", used),
        ("unknown", unknown),
        ("forged", forged),
        ("foreign", foreign),
        ("malformed", malformed),
    ] {
        counter!(PEP_ACKS, "result" => result).absolute(count);
    }
}
