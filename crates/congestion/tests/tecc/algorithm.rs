//! Algorithm 1 (TECC §4.2.4) against values made by hand.

use std::time::Duration;

use tandem_congestion::{Applied, Feedback, TeccConfig};
use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::{TunnelInfo, VarInt};

use crate::path::{PACKET, Sender, report};

const MS: Duration = Duration::from_millis(1);

/// A sender that has measured this RTT, and has room for whatever a report says.
fn sender(config: &str, rtt: Duration) -> Sender {
    let base = "delta=0.95,max-pf=0.5,u-max=1,ewma=1,r-ai=0,q-target=0ms,first-flight=10MB";
    let config = TeccConfig::default().with(base).unwrap().with(config).unwrap();
    let mut sender = Sender::new(config);
    sender.round_trip(rtt);
    sender
}

/// What a sender makes of a report on a tunnel of 10 Mbit/s, in thousandths of 10 Mbit/s.
fn utilization(sender: &mut Sender, queue: u64, retransmitted_percent: u64) -> u64 {
    let queue = ByteCount::new(queue);
    let retransmit_ratio = Ratio::of(retransmitted_percent, 100);
    assert_eq!(sender.report(TunnelInfo { queue, retransmit_ratio, ..report() }), Applied::Used);
    (sender.rate().bits_per_second() + 5000) / 10_000
}

#[test]
fn utilization_is_what_algorithm_1_says() {
    // θ Tr is 125 kB with θ = 100 ms, and 116.7 kB with two thirds of 140 ms.
    for (config, rtt, queue, retransmitted, expected) in [
        ("theta=1Ts", 100, 0, 0, 1000),
        ("theta=1Ts", 100, 12_500, 0, 900),
        ("theta=1Ts", 100, 31_250, 0, 750),
        ("theta=1Ts", 100, 62_500, 0, 500),
        // At least 1 - max_pf.
        ("theta=1Ts", 100, 100_000, 0, 500),
        ("theta=1Ts,max-pf=0.8", 100, 100_000, 0, 200),
        ("theta=1Ts,max-pf=0.8", 100, 1_000_000_000, 100, 200),
        // δ r, whatever θ is.
        ("theta=1Ts", 100, 0, 10, 905),
        ("theta=0.667Ts", 140, 0, 10, 905),
        ("theta=4Ts", 140, 0, 10, 905),
        ("theta=1Ts,delta=0", 100, 0, 10, 1000),
        ("theta=1Ts", 100, 12_500, 10, 805),
        ("theta=1Ts", 100, 0, 100, 500),
        // A longer θ takes a queue down more slowly.
        ("theta=2Ts", 100, 31_250, 0, 875),
        // Of the tunnel, 40 ms: 50 kB.
        ("theta=1Tl", 100, 12_500, 0, 750),
        // What is to wait does not count, and less than that asks for more.
        ("theta=1Ts,q-target=40ms,u-max=1.25", 100, 50_000, 0, 1000),
        ("theta=1Ts,q-target=40ms,u-max=1.25", 100, 56_250, 0, 950),
        ("theta=1Ts,q-target=40ms,u-max=1.25", 100, 37_500, 0, 1100),
        ("theta=1Ts,q-target=40ms,u-max=1.25", 100, 0, 0, 1250),
        ("theta=1Ts,q-target=40ms,u-max=1.25", 100, 0, 10, 1250),
        ("theta=1Ts,q-target=40ms,u-max=1", 100, 0, 0, 1000),
        // As printed: r = 10 % of 1.25 MB is 119 kB after δ, all that goes in θ and more.
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
fn the_printed_units_halve_the_rate_where_a_tenth_is_sent_again() {
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
    assert_eq!(utilization(&mut sender, 0, 0), 1000, "the first counts alone");
    for expected in [750, 625, 563, 531] {
        assert_eq!(utilization(&mut sender, 62_500, 0), expected);
    }
    assert_eq!(utilization(&mut sender, 0, 0), 766, "and up again");
}

#[test]
fn the_rate_grows_by_some_packets_each_round_trip() {
    // One packet of 1200 bytes in 100 ms: 96 kbit/s.
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
fn the_window_is_what_fills_some_round_trips_at_the_rate() {
    for (config, expected) in [
        ("window=1,window-rtt=least", 125_000),
        ("window=2,window-rtt=least", 250_000),
        ("window=2,window-rtt=smoothed", 250_000),
    ] {
        let mut sender = sender(config, 100 * MS);
        sender.report(report());
        let seen = sender.window().get();
        // And three packets.
        assert!(seen.abs_diff(expected + 3 * PACKET.get()) <= 2, "{config}: {seen}");
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
    // Nor does it live longer for them.
    sender.now += 150 * MS;
    assert_eq!(apply(&sender, info(5, 10)), Applied::Stale);
    sender.now += 51 * MS;
    sender.send(None);
    assert!(sender.is_bbr());
    assert_eq!(apply(&sender, info(1000, 20)), Applied::Used, "gaps do not matter");
    assert_eq!(sender.rate(), Rate::from_mbps(20));
}

#[test]
fn without_a_sender_that_listens_reports_go_nowhere() {
    let feedback = Feedback::default();
    let now = sender("", 100 * MS).now;
    assert_eq!(feedback.apply(now, &report()), Applied::NotListening);
}

#[test]
fn two_round_trips_after_the_last_report_it_is_bbr() {
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
        assert!(!sender.is_bbr(), "until the next report");
    }
}

#[test]
fn persistent_loss_ends_what_a_report_said() {
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
