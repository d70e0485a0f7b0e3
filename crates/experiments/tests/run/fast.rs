//! Tests of fast links.

use tandem_experiments::run::{Mode, Parameters};
use tandem_units::{ByteCount, Rate};

use super::run;

#[test]
fn a_download_survives_what_a_stream_tunnel_releases_at_once() {
    // The queue is a tenth of what is in flight, so that the tunnel loses 10 % of its packets. When it has
    // sent the missing ones again, thousands of packets of the connection inside are there at once.
    let record = run(&Parameters {
        mode: Mode::Mst,
        rate: Rate::from_mbps(300),
        path_rtt: Some("40ms".parse().expect("a time")),
        size: ByteCount::new(70_000_000),
        time_limit: "10s".parse().expect("a time"),
        ..Parameters::default()
    });
    assert!(record.record.completed, "{:?}", record.record);
}
