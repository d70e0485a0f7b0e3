//! The sender keeps working after any order of reports, acknowledgements, losses and delays.

use std::time::Duration;

use proptest::prelude::*;
use tandem_congestion::{Algorithm, CongestionSignal, TeccConfig};
use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::{TunnelInfo, VarInt};

use crate::path::{PACKET, Sender};

/// An event of the sequence.
#[derive(Clone, Debug)]
enum Op {
    /// A report arrives. It gets the next sequence number if the second value is true, and keeps
    /// its own otherwise.
    Report(Box<TunnelInfo>, bool),
    Send(usize),
    Ack {
        skip: usize,
        count: usize,
    },
    Lose {
        count: usize,
        is_persistent: bool,
    },
    Mtu(u64),
    WaitMicros(u64),
}

fn rates() -> impl Strategy<Value = Rate> {
    let kbps = prop_oneof![1..1_u64 << 30, 1..100_000_u64, Just(1), Just((1 << 30) - 1)];
    kbps.prop_map(|kbps| Rate::from_bps(kbps * 1000).unwrap())
}

fn rtts() -> impl Strategy<Value = Duration> {
    let micros = prop_oneof![1..60_000_000_u64, 1..200_000_u64, Just(1), Just(60_000_000)];
    micros.prop_map(Duration::from_micros)
}

fn reports() -> impl Strategy<Value = TunnelInfo> {
    let rates = (rates(), prop::option::of(rates()), prop::option::of(rates()));
    let queue = prop_oneof![0..1_u64 << 30, Just(0), Just((1 << 30) - 1)];
    let sequence = prop_oneof![0..100_u64, Just((1 << 62) - 1)];
    (rates, queue, 0..=10_000_u64, rtts(), rtts(), sequence).prop_map(
        |((sending_rate, bandwidth, arrival_rate), queue, parts, min_rtt, smoothed_rtt, number)| {
            TunnelInfo {
                sequence: VarInt::saturating_from(number),
                sending_rate,
                bandwidth,
                queue: ByteCount::new(queue),
                retransmit_ratio: Ratio::of(parts, 10_000),
                min_rtt,
                smoothed_rtt,
                arrival_rate,
            }
        },
    )
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (reports(), prop::bool::weighted(0.9))
            .prop_map(|(info, is_next)| Op::Report(Box::new(info), is_next)),
        6 => (1_usize..60).prop_map(Op::Send),
        6 => (0_usize..20, 1_usize..80).prop_map(|(skip, count)| Op::Ack { skip, count }),
        2 => (1_usize..60, prop::bool::weighted(0.1))
            .prop_map(|(count, is_persistent)| Op::Lose { count, is_persistent }),
        1 => (1200_u64..65_000).prop_map(Op::Mtu),
        6 => (0_u64..200_000).prop_map(Op::WaitMicros),
        1 => (1_000_000_u64..100_000_000).prop_map(Op::WaitMicros),
    ];
    prop::collection::vec(op, 1..300)
}

fn apply(sender: &mut Sender, op: Op) {
    match op {
        Op::Report(info, true) => {
            sender.report(*info);
        }
        Op::Report(info, false) => {
            sender.feedback.apply(sender.now, &*info);
        }
        Op::Send(count) => {
            for _ in 0..count {
                if sender.bytes_in_flight() < sender.window() {
                    sender.send(None);
                }
            }
        }
        Op::Ack { skip, count } => sender.acknowledge_next(skip, count),
        Op::Lose { count, is_persistent: false } => sender.lose(count, CongestionSignal::Loss),
        Op::Lose { count, is_persistent: true } => {
            sender.lose(count, CongestionSignal::PersistentLoss);
        }
        Op::Mtu(bytes) => sender.tecc.on_mtu_update(ByteCount::new(bytes)),
        Op::WaitMicros(micros) => sender.now += Duration::from_micros(micros),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_reports_and_events_leaves_a_working_sender(
        config in prop::sample::select(vec![
            "", "guard=off", "units=literal,theta=0.1Tl,ewma=0.01", "window-rtt=smoothed,window=10",
            "max-pf=0.99,u-max=3,delta=2,r-ai=100,q-target=2s", "theta=20Ts,first-flight=15kB",
        ]),
        is_paper: bool,
        ops in ops(),
    ) {
        let base = if is_paper { TeccConfig::PAPER } else { TeccConfig::default() };
        let mut sender = Sender::new(base.with(config).unwrap());
        for op in ops {
            apply(&mut sender, op);
            let (window, rate) = (sender.window(), sender.rate());
            prop_assert!(window >= PACKET.saturating_mul(2), "window of {window:?}");
            prop_assert!(rate.bits_per_second() > 0, "{rate:?}");
        }
    }
}
