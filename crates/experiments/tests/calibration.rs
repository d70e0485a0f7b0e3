//! Tests that runs reproduce known results about controllers and links.

use std::time::Duration;

use tandem_experiments::run::{self, Mode, Parameters, TraceStore, Workload};
use tandem_netem::{LossAt, LossModel};
use tandem_units::{HumanDuration, Ratio};

fn ms(ms: u64) -> HumanDuration {
    Duration::from_millis(ms).into()
}

/// The goodput of a `BBRv1` origin without a tunnel over a link of 10 Mbit/s in a minute, as a
/// share of the capacity that random loss leaves. The RTT is 40 ms.
fn share_kept(loss_percent: u64, loss_at: LossAt) -> f64 {
    let parameters = Parameters {
        mode: Mode::Mft,
        workload: Workload::Long(ms(60_000)),
        origin_rtt: ms(0),
        loss: LossModel::Bernoulli(Ratio::of(loss_percent, 100)),
        uplink_loss: Some(LossModel::default()),
        loss_at,
        ..Parameters::default()
    };
    let record = run::run(&parameters, &TraceStore::default()).expect("a run").record;
    // The headers are 20 bytes (IPv4), 8 bytes (UDP), and those of QUIC and HTTP/3 within the
    // remaining 1452 bytes.
    let payload_share = 1_420.0 / 1_480.0;
    let left = 1.0 - Ratio::of(loss_percent, 100).as_f64();
    record.goodput_mbps / (10.0 * left * payload_share)
}

#[test]
fn bbr1_keeps_what_random_loss_leaves_of_a_link() {
    for loss in [1, 5, 10] {
        let kept = share_kept(loss, LossAt::Before);
        assert!((0.95..1.05).contains(&kept), "at {loss} %: {kept:.3}");
    }
}

#[test]
fn bbr1_keeps_less_if_lost_packets_have_used_the_link() {
    // Its estimate is then the arrival rate (1-p) C, and it sends at this rate in seven phases of
    // eight.
    for (loss, least) in [(5, 0.95), (10, 0.88)] {
        let kept = share_kept(loss, LossAt::After);
        assert!((least..1.05).contains(&kept), "at {loss} %: {kept:.3}");
    }
}
