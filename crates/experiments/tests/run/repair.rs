//! Tests of the benefit of retransmission in a tunnel, and of ordering at its egress.

use tandem_congestion::ControllerName;
use tandem_experiments::run::{Mode, Parameters, RunRecord};
use tandem_netem::LossModel;
use tandem_node::client::Order;
use tandem_units::{ByteCount, Rate, Ratio};

use super::run;

/// A download of 5 MB over 50 Mbit/s with 5 % loss. A retransmission takes 40 ms, in which 160
/// packets are sent. This exceeds the window of 128 packets of a receiver's duplicate filter.
fn fast(resequence: Order, origin_controller: ControllerName) -> RunRecord {
    fast_with_seed(resequence, origin_controller, Parameters::default().seed)
}

fn fast_with_seed(resequence: Order, origin_controller: ControllerName, seed: u64) -> RunRecord {
    let record = run(&Parameters {
        seed,
        mode: Mode::Rmdt,
        resequence: Some(resequence),
        origin_controller,
        rate: Rate::from_mbps(50),
        queue: "625 kB".parse().expect("a queue"),
        loss: LossModel::Bernoulli(Ratio::of(5, 100)),
        size: ByteCount::new(5_000_000),
        ..Parameters::default()
    });
    assert!(record.record.completed, "{:?}", record.record);
    record.record
}

#[test]
fn a_retransmission_that_is_128_packets_late_is_useless_without_order_at_the_egress() {
    // Single runs differ by 5 %, whatever the order, and also by lost packets of the handshake, which are left out. The
    // gain in the mean is 2.5 % with these thirty seeds, 2.2 % with the first twenty and 2.4 % with the first ten.
    let fct = |order, seed| {
        let record = fast_with_seed(order, ControllerName::Bbr1, seed);
        record.fct_without_handshake_s.expect("completed")
    };
    let of = |order| (1..=30).map(|seed| fct(order, seed)).sum::<f64>() / 30.0;
    let (off, window) = (of(Order::Off), of(Order::Window));
    assert!(window < off * 0.98, "off {off} s, window {window} s in the mean");
}

#[test]
fn a_stock_cubic_origin_is_fast_over_a_bad_link_behind_an_ordered_egress() {
    let [off, _, ordered] = Order::ALL.map(|order| fast(order, ControllerName::Cubic));
    let (slow, quick) = (off.fct_s.expect("completed"), ordered.fct_s.expect("completed"));
    assert!(quick * 2.0 < slow, "off {slow} s, ordered {quick} s");
    assert!(off.e2e_retransmit_ratio > 0.03, "{off:?}");
    assert!(ordered.e2e_retransmit_ratio < 0.002, "{ordered:?}");
    assert!(ordered.e2e_srtt_mean_ms < 280.0, "the RTT is above twice the base RTT: {ordered:?}");
    assert_eq!(ordered.repair.exit_given_up, 0, "{ordered:?}");
    assert!(ordered.repair.exit_held_max_bytes < 4_000_000, "{ordered:?}");
}

#[test]
fn the_queue_before_an_ordered_egress_is_short() {
    let of = |resequence| {
        let origin_controller = ControllerName::Cubic;
        let parameters =
            Parameters { mode: Mode::Rmdt, resequence, origin_controller, ..<_>::default() };
        run(&parameters).record
    };
    let (window, ordered) = (of(Some(Order::Window)), of(Some(Order::Ordered)));
    // Without loss both fill the link. Only the order at the egress decides whether AQM drops
    // packets.
    assert!(window.repair.tunnel_queue_aqm_drops == 0 && ordered.repair.tunnel_queue_aqm_drops > 0);
    assert!(ordered.e2e_srtt_mean_ms * 2.0 < window.e2e_srtt_mean_ms, "{ordered:?}");
    let (fast, slow) = (window.fct_s.expect("completed"), ordered.fct_s.expect("completed"));
    assert!(slow < fast * 1.05, "{fast} s, {slow} s");
}

#[test]
fn a_chain_retransmits_hop_by_hop() {
    let loss = LossModel::Bernoulli(Ratio::of(5, 100));
    let size = ByteCount::new(2_000_000);
    for origin_controller in [ControllerName::Bbr1, ControllerName::Cubic] {
        let parameters = Parameters {
            mode: Mode::Rmdt,
            proxies: 2,
            loss,
            size,
            origin_controller,
            ..<_>::default()
        };
        let record = run(&parameters).record;
        assert!(record.completed && record.e2e_retransmit_ratio < 0.002, "{record:?}");
        assert!(record.fct_over_ideal.is_some_and(|ratio| ratio < 1.8), "{record:?}");
    }
}
