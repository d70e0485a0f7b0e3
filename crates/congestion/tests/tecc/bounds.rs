//! The bounds on the sender's trust in reports.

use std::time::Duration;

use tandem_congestion::{Algorithm, TeccConfig};
use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::TunnelInfo;

use crate::path::{PACKET, Path, Sender, report};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A report of 1 Tbit/s without a queue.
fn absurd() -> TunnelInfo {
    let rate = Rate::from_mbps(1_000_000);
    let rates = TunnelInfo { sending_rate: rate, bandwidth: Some(rate), ..report() };
    TunnelInfo { arrival_rate: Some(rate), ..rates }
}

fn configs() -> [TeccConfig; 3] {
    let off = TeccConfig::default().with("guard=off").unwrap();
    [TeccConfig::default(), off, TeccConfig::PAPER]
}

#[test]
fn a_report_alone_gets_a_first_flight_and_no_more() {
    for config in configs() {
        let config = config.with("first-flight=50kB").unwrap();
        let mut sender = Sender::new(config);
        sender.report(absurd());
        assert!(sender.window() <= ByteCount::new(50_000), "{:?}", sender.window());
        let mut path = Path::new(Rate::from_mbps(10), 100 * MS, ByteCount::new(10_000_000));
        path.run(&mut sender, 99 * MS, |_, sender| {
            sender.report(absurd());
        });
        assert!(sender.sent <= ByteCount::new(50_000), "{:?} sent before any ACK", sender.sent);
    }
}

#[test]
fn after_three_rounds_the_rate_is_at_most_four_times_the_acknowledged_rate() {
    for config in configs() {
        for queue in [15_000, 150_000, 2_000_000] {
            let queue = ByteCount::new(queue);
            let mut path = Path::new(Rate::from_mbps(10), 100 * MS, queue);
            let rounds = (path.rtt + path.rate.time_to_send(queue)) * 4;
            let mut sender = Sender::new(config);
            let mut since = sender.now;
            path.run(&mut sender, 20 * SECOND, |_, sender| {
                if sender.is_bbr() {
                    since = sender.now;
                }
                sender.report(absurd());
                if sender.now - since < rounds {
                    return;
                }
                let acked = sender.tecc.bandwidth_estimate().unwrap().bits_per_second();
                let rate = sender.rate().bits_per_second();
                assert!(rate <= acked * 4 + 100_000, "{rate} with {acked} acknowledged");
            });
        }
    }
}

#[test]
fn the_window_is_never_below_four_packets() {
    for config in configs() {
        let mut path = Path::new(Rate::from_mbps(10), 100 * MS, ByteCount::new(150_000));
        path.loss_every = 10;
        let mut sender = Sender::new(config);
        let crawl = TunnelInfo {
            sending_rate: Rate::from_bps(1000).unwrap(),
            bandwidth: None,
            queue: ByteCount::new((1 << 30) - 1),
            retransmit_ratio: Ratio::of(1, 1),
            arrival_rate: None,
            ..report()
        };
        path.run(&mut sender, 5 * SECOND, |_, sender| {
            sender.report(crawl);
            assert!(sender.window() >= PACKET.saturating_mul(4), "{:?}", sender.window());
            assert!(sender.rate().bits_per_second() > 0);
        });
    }
}

/// A true report on a tunnel whose bottleneck is that of the path.
fn truth(path: &Path, sender: &Sender) -> TunnelInfo {
    let queue = path.backlog(sender.now);
    let smoothed_rtt = Duration::from_millis(40) + path.rate.time_to_send(queue);
    TunnelInfo {
        sending_rate: path.rate,
        bandwidth: Some(path.rate),
        queue,
        smoothed_rtt,
        arrival_rate: Some(path.rate),
        ..report()
    }
}

#[test]
fn true_reports_fill_the_path_and_lose_nothing() {
    for config in configs() {
        let mut path = Path::new(Rate::from_mbps(10), 100 * MS, ByteCount::new(150_000));
        let mut sender = Sender::new(config);
        let report = |path: &mut Path, sender: &mut Sender| {
            let info = truth(path, sender);
            sender.report(info);
            assert!(!sender.is_bbr());
        };
        path.run(&mut sender, 10 * SECOND, report);
        assert_eq!(sender.lost, ByteCount::ZERO);
        let acked = sender.acked.get();
        assert!(acked >= 12_500_000 * 95 / 100, "{acked} of 12.5 MB");
    }
}

/// The report of a proxy while the bottleneck lies between origin and proxy: the tunnel could send
/// 10 Mbit/s, its queue is empty, and packets arrive at the rate of the bottleneck.
fn behind(path: &Path) -> TunnelInfo {
    TunnelInfo { arrival_rate: Some(path.rate), ..report() }
}

/// Returns the lost bytes and the average backlog at the bottleneck, in bytes, of the second ten
/// seconds.
fn behind_the_proxy(config: &str) -> (u64, u64) {
    let mut path = Path::new(Rate::from_mbps(5), 100 * MS, ByteCount::new(150_000));
    let mut sender = Sender::new(TeccConfig::default().with(config).unwrap());
    path.run(&mut sender, 10 * SECOND, |path, sender| {
        sender.report(behind(path));
    });
    let (lost, acked) = (sender.lost, sender.acked);
    let (mut waits, mut times) = (0, 0);
    path.run(&mut sender, 10 * SECOND, |path, sender| {
        sender.report(behind(path));
        waits += path.backlog(sender.now).get();
        times += 1;
    });
    let acked = (sender.acked - acked).get();
    println!(
        "{config}: {} acked, {} lost, {} wait",
        acked,
        (sender.lost - lost).get(),
        waits / times
    );
    assert!(acked >= 6_250_000 * 85 / 100, "{config}: {acked} of 6.25 MB");
    ((sender.lost - lost).get(), waits / times)
}

#[test]
fn a_bottleneck_behind_the_proxy_does_not_stay_full() {
    let (lost, waits) = behind_the_proxy("guard=on");
    let (lost_without, waits_without) = behind_the_proxy("guard=off");
    assert!(lost < 62_500 && waits < 50_000, "{lost} of 6.25 MB lost, {waits} of 150 kB wait");
    assert!(waits_without > 100_000, "{lost_without} lost, {waits_without} wait without guard");
}

/// Returns the bytes acknowledged in ten seconds if every packet waits 40 ms for the retransmission
/// of an earlier one.
fn with_repairs(config: &str) -> u64 {
    let mut path = Path::new(Rate::from_mbps(10), 140 * MS, ByteCount::new(150_000));
    let config = TeccConfig::default().with("window=1.4").unwrap().with(config).unwrap();
    let mut sender = Sender::new(config);
    sender.round_trip(100 * MS); // a single packet waits for no retransmission
    path.run(&mut sender, 10 * SECOND, |_, sender| {
        sender.report(TunnelInfo { retransmit_ratio: Ratio::of(5, 100), ..report() });
    });
    sender.acked.get()
}

#[test]
fn waiting_for_repairs_at_the_egress_is_not_a_bottleneck_behind_the_proxy() {
    let (with, without) = (with_repairs("guard=on"), with_repairs("guard=off"));
    assert!(with >= without * 98 / 100, "{with} bytes, {without} without the guard");
}
