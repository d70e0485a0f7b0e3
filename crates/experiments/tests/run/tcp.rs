//! Tests of TCP connections through a tunnel.

use std::time::Duration;

use tandem_experiments::run::{Mode, Parameters, Workload};
use tandem_netem::LossModel;
use tandem_units::{HumanDuration, Rate, Ratio};

use super::run;

#[test]
fn a_short_path_whose_packets_come_in_bursts_keeps_its_rate() {
    // Wi-Fi networks and busy hosts deliver packets late, and then many at once. Packets wait up to 5 ms
    // on a path with a round trip of 0.5 ms.
    for (loss, least_mbps) in [(0, 70.0), (20, 55.0)] {
        let record = run(&Parameters {
            mode: Mode::Mst,
            workload: Workload::Tcp(HumanDuration(Duration::from_secs(3))),
            rate: Rate::from_mbps(80),
            client_rtt: HumanDuration(Duration::from_micros(500)),
            origin_rtt: HumanDuration(Duration::ZERO),
            jitter: HumanDuration(Duration::from_millis(5)),
            loss: LossModel::Bernoulli(Ratio::of(loss, 100)),
            ..Parameters::default()
        });
        let goodput = record.record.goodput_mbps;
        assert!(goodput > least_mbps, "{goodput} Mbit/s with {loss} % loss");
    }
}
