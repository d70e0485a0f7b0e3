//! Tests the shares of flows of an access link by their controllers.
//!
//! The tables of `benchmarks/notes/tunnels-controller.md` are printed by `cargo bench -p tandem-lab --bench fairness`.

mod bed;

use std::time::Duration;

use bed::{Contest, Flow};
use tandem_congestion::ControllerName;
use tandem_node::quic::DatagramTransport::{Quic, Sealed};

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

/// `cargo bench -p tandem-lab --bench fairness -- sealed` measures more links, for longer.
#[test]
fn a_tunnel_takes_no_larger_share_with_the_sealed_transport() {
    for other in [ControllerName::Cubic, ControllerName::Bbr1] {
        let [quic, sealed] = [Quic, Sealed].map(|datagrams| {
            let flows = [Flow::Tunnel(ControllerName::Bbr1Tunnel), Flow::Direct(other)];
            let settle = Duration::from_secs(5);
            let shares = Contest { settle, datagrams, ..Contest::new(flows, 1) }.run();
            println!("{other}, {datagrams:?}: {shares:?}");
            shares.share(0)
        });
        assert!(sealed < quic + 0.1, "beside {other}: {sealed:.2} instead of {quic:.2}");
        assert!(sealed > 0.25, "beside {other}: {sealed:.2}");
    }
}
