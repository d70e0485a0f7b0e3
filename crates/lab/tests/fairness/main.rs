//! Tests the shares of flows of an access link by their controllers.
//!
//! The tables of `benchmarks/notes/tunnels-controller.md` are printed by `cargo bench -p tandem-lab --bench fairness`.

#[expect(dead_code, reason = "the benchmark uses the rest")]
mod bed;

use std::time::Duration;

use bed::{Contest, Flow};
use tandem_congestion::ControllerName;

fn tunnels(count: usize, name: ControllerName) -> Vec<Flow> {
    vec![Flow::Tunnel(name); count]
}

#[test]
fn tunnels_share_a_link_among_themselves() {
    let shares = Contest {
        settle: Duration::from_secs(3),
        measure: Duration::from_secs(10),
        ..Contest::new(tunnels(2, ControllerName::Bbr1Tunnel), 1)
    }
    .run();
    assert!(shares.jain() > 0.8, "{shares:?}");
}
