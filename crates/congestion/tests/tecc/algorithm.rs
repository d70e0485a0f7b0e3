//! Algorithm 1 (TECC §4.2.4) against values that were calculated by hand.

use std::time::Duration;

use tandem_congestion::{Applied, Feedback, TeccConfig};
use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::{TunnelInfo, VarInt};

use crate::path::{PACKET, Sender, report};

const MS: Duration = Duration::from_millis(1);

/// A sender that has measured this RTT, and whose first flight is large enough for every report.
fn sender(config: &str, rtt: Duration) -> Sender {
    let base = "delta=0.95,max-pf=0.5,u-max=1,ewma=1,r-ai=0,q-target=0ms,first-flight=10MB";
    let config = TeccConfig::default().with(base).unwrap().with(config).unwrap();
    let mut sender = Sender::new(config);
    sender.round_trip(rtt);
    sender
}

/// The sending rate that follows from a report on a tunnel of 10 Mbit/s, in thousandths of 10
/// Mbit/s.
fn utilization(sender: &mut Sender, queue: u64, retransmitted_percent: u64) -> u64 {
    let queue = ByteCount::new(queue);
    let retransmit_ratio = Ratio::of(retransmitted_percent, 100);
    assert_eq!(sender.report(TunnelInfo { queue, retransmit_ratio, ..report() }), Applied::Used);
    (sender.rate().bits_per_second() + 5000) / 10_000
}

#[test]
fn utilization_is_that_of_algorithm_1() {
    // θ Tr is 125 kB if θ is 100 ms, and 116.7 kB if θ is two thirds of 140 ms.
    for (config, rtt, queue, retransmitted, expected) in [
        ("theta=1Ts", 100, 0, 0, 1000),
        ("theta=1Ts", 100, 12_500, 0, 900),
        ("theta=1Ts", 100, 31_250, 0, 750),
        ("theta=1Ts", 100, 62_500, 0, 500),
        // U is at least 1 - max_pf.
        ("theta=1Ts", 100, 100_000, 0, 500),
        ("theta=1Ts,max-pf=0.8", 100, 100_000, 0, 200),
        ("theta=1Ts,max-pf=0.8", 100, 1_000_000_000, 100, 200),
        // Retransmissions reduce U by δ r, independently of θ.
        ("theta=1Ts", 100, 0, 10, 905),
        ("theta=0.667Ts", 140, 0, 10, 905),
        ("theta=4Ts", 140, 0, 10, 905),
        ("theta=1Ts,delta=0", 100, 0, 10, 1000),
        ("theta=1Ts", 100, 12_500, 10, 805),
        ("theta=1Ts", 100, 0, 100, 500),
        // A longer θ reduces a queue more slowly.
        ("theta=2Ts", 100, 31_250, 0, 875),
        // θ is the tunnel's RTT of 40 ms: θ Tr is 50 kB.
        ("theta=1Tl", 100, 12_500, 0, 750),
        // A queue of the target's length does not count, and a shorter one raises U above 1.
        ("theta=1Ts,q-target=40ms,u-max=1.25", 100, 50_000, 0, 1000),
        ("theta=1Ts,q-target=40ms,u-max=1.25", 100, 56_250, 0, 950),
        ("theta=1Ts,q-target=40ms,u-max=1.25", 100, 37_500, 0, 1100),
        ("theta=1Ts,q-target=40ms,u-max=1.25", 100, 0, 0, 1250),
        ("theta=1Ts,q-target=40ms,u-max=1.25", 100, 0, 10, 1250),
        ("theta=1Ts,q-target=40ms,u-max=1", 100, 0, 0, 1000),
        // As printed, 10 % of 1.25 MB times δ is 119 kB, which is more than θ Tr.
        ("theta=0.667Ts,units=literal", 140, 0, 10, 500),
        ("theta=0.667Ts,units=literal", 140, 0, 1, 898),
        ("theta=1Ts,units=literal", 100, 0, 1, 905),
        ("theta=1Ts,units=literal", 100, 0, 5, 525),
        ("theta=10Ts,units=literal", 100, 0, 10, 905),
        ("theta=1Ts,units=literal", 100, 12_500, 1, 805),
    ] {
        let mut sender = sender(config, rtt * MS);
        let seen = utilization(&mut sender, queue, retransmitted);
        let message = format!("{config}: RTT {rtt} ms, q = {queue}, r = {retransmitted} %");
        assert!(seen.abs_diff(expected) <= 1, "{message}: {seen}, not {expected}");
    }
}

#[test]
fn the_printed_units_halve_the_rate_if_a_tenth_is_retransmitted() {
    // The paper's own constants: θ = 2/3 Ts = 93 ms, δ = 0.95, max_pf = 0.5.
    let paper = TeccConfig::PAPER.with("first-flight=10MB,r-ai=0").unwrap();
    let rate = |config| {
        let mut sender = Sender::new(config);
        sender.round_trip(140 * MS);
        utilization(&mut sender, 0, 10)
    };
    assert_eq!(rate(paper), 905);
    assert_eq!(rate(paper.with("units=literal").unwrap()), 500);
}

#[test]
fn utilization_is_a_moving_average() {
    let mut sender = sender("theta=1Ts,ewma=0.5", 100 * MS);
    assert_eq!(utilization(&mut sender, 0, 0), 1000, "the first value is not averaged");
    for expected in [750, 625, 563, 531] {
        assert_eq!(utilization(&mut sender, 62_500, 0), expected);
    }
    assert_eq!(utilization(&mut sender, 0, 0), 766, "the average rises again");
}

#[test]
fn the_rate_grows_by_some_packets_each_round_trip() {
    // One packet of 1200 bytes in 100 ms is 96 kbit/s.
    for (config, rtt, expected) in [
        ("r-ai=1", 100, 10_096_000),
        ("r-ai=5", 100, 10_480_000),
        ("r-ai=1", 200, 10_048_000),
        ("r-ai=0", 100, 10_000_000),
    ] {
        let mut sender = sender(config, rtt * MS);
        sender.report(report());
        let seen = sender.rate().bits_per_second();
        assert!(seen.abs_diff(expected) <= 10, "{config}, {rtt} ms: {seen}");
    }
}

#[test]
fn the_window_is_a_multiple_of_the_rate_times_the_rtt() {
    for (config, expected) in [
        ("window=1,window-rtt=least", 125_000),
        ("window=2,window-rtt=least", 250_000),
        ("window=2,window-rtt=smoothed", 250_000),
    ] {
        let mut sender = sender(config, 100 * MS);
        sender.report(report());
        let seen = sender.window().get();
        // The window holds three packets more.
        assert!(seen.abs_diff(expected + 3 * PACKET.get()) <= 2, "{config}: {seen}");
    }
}

#[test]
fn the_window_does_not_keep_the_tunnels_queue_from_its_target() {
    // 10 Mbit/s are 1250 bytes per millisecond. The tunnel's RTT, and so a retransmission, is 40 ms.
    for (config, rtt, retransmitted_percent, expected) in [
        ("window=2,q-target=60ms", 100, 1, 250_000), // as much as 200 ms
        ("window=2,q-target=60ms", 41, 1, 141 * 1250), // path, target and retransmission
        ("window=2,q-target=60ms", 41, 0, 101 * 1250), // nothing is retransmitted
        ("window=2,q-target=10ms", 41, 0, 82 * 1250), // twice the RTT is more
        ("window=2,q-target=60ms", 121, 1, 242 * 1250),
    ] {
        let mut sender = sender(config, rtt * MS);
        let retransmit_ratio = Ratio::of(retransmitted_percent, 100);
        sender.report(TunnelInfo { retransmit_ratio, ..report() });
        let seen = sender.window().get();
        let message = format!("{config}: RTT {rtt} ms, r = {retransmitted_percent} %: {seen}");
        // The window holds three packets more.
        assert!(seen.abs_diff(expected + 3 * PACKET.get()) <= 2, "{message}");
    }
}

#[test]
fn a_report_that_is_not_newer_changes_nothing() {
    let mut sender = sender("theta=1Ts", 100 * MS);
    let info = |sequence, mbps| TunnelInfo {
        sequence: VarInt::from_u32(sequence),
        sending_rate: Rate::from_mbps(mbps),
        ..report()
    };
    let apply = |sender: &Sender, info: TunnelInfo| sender.feedback.apply(sender.now, &info);
    assert_eq!(apply(&sender, info(5, 10)), Applied::Used);
    for (sequence, mbps) in [(5, 20), (4, 20), (0, 20), (5, 10)] {
        assert_eq!(apply(&sender, info(sequence, mbps)), Applied::Stale, "{sequence}");
        assert_eq!(sender.rate(), Rate::from_mbps(10), "{sequence}");
    }
    // Such reports do not extend the lifetime of the one that is followed.
    sender.now += 150 * MS;
    assert_eq!(apply(&sender, info(5, 10)), Applied::Stale);
    sender.now += 51 * MS;
    sender.send(None);
    assert!(sender.is_bbr());
    assert_eq!(apply(&sender, info(1000, 20)), Applied::Used, "gaps do not matter");
    assert_eq!(sender.rate(), Rate::from_mbps(20));
}

#[test]
fn a_handle_without_a_controller_ignores_reports() {
    let feedback = Feedback::default();
    let now = sender("", 100 * MS).now;
    assert_eq!(feedback.apply(now, &report()), Applied::NotListening);
}

#[test]
fn the_controller_is_bbr_two_rtts_after_the_last_report() {
    for (rtt, lifetime) in [(100, 200), (30, 60), (300, 600)] {
        let mut sender = sender("", rtt * MS);
        assert!(sender.is_bbr(), "before the first report");
        sender.report(report());
        assert!(!sender.is_bbr());
        sender.now += lifetime * MS;
        sender.send(None);
        assert!(!sender.is_bbr(), "{rtt} ms: after {lifetime} ms");
        sender.now += MS;
        sender.send(None);
        assert!(sender.is_bbr(), "{rtt} ms: after {lifetime} ms and 1 ms");
        sender.report(report());
        assert!(!sender.is_bbr(), "after the next report");
    }
}

#[test]
fn persistent_congestion_ends_the_lifetime_of_a_report() {
    let mut sender = sender("", 100 * MS);
    sender.report(report());
    sender.send(None);
    sender.lose(1, tandem_congestion::CongestionSignal::Loss);
    assert!(!sender.is_bbr());
    sender.send(None);
    sender.lose(1, tandem_congestion::CongestionSignal::PersistentLoss);
    sender.send(None);
    assert!(sender.is_bbr());
    sender.report(report());
    assert!(!sender.is_bbr());
}
