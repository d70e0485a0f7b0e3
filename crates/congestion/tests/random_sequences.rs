//! Every controller, noq's own ones included, keeps working after any order of events that noq can
//! report.

mod link;
mod world;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory};
use proptest::prelude::*;
use tandem_congestion::{ControllerConfig, ControllerName, Feedback, factory};
use tandem_units::Ratio;
use world::Download;

/// An event of the sequence.
#[derive(Clone, Debug)]
enum Op {
    /// The sender sends as many packets as the window allows, up to this number.
    Send(usize),
    /// An ACK frame acknowledges `count` packets in flight, after the first `skip` ones.
    Ack { skip: usize, count: usize, is_app_limited: bool },
    /// The oldest packets in flight are lost.
    Lose { count: usize, is_persistent: bool },
    /// Packets leave the flight without a report, as when keys are discarded.
    Forget(usize),
    /// Packet numbers restart at zero, as in another packet number space.
    Renumber,
    /// The peer reports an ECN mark.
    Mark,
    /// The last losses were spurious.
    Spurious,
    /// The size of a datagram changes.
    Mtu(u16),
    /// Time passes without an event.
    WaitMillis(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (1_usize..60).prop_map(Op::Send),
        8 => (0_usize..20, 1_usize..80, any::<bool>())
            .prop_map(|(skip, count, is_app_limited)| Op::Ack { skip, count, is_app_limited }),
        3 => (1_usize..60, prop::bool::weighted(0.1))
            .prop_map(|(count, is_persistent)| Op::Lose { count, is_persistent }),
        1 => (1_usize..10).prop_map(Op::Forget),
        1 => Just(Op::Renumber),
        1 => Just(Op::Mark),
        1 => Just(Op::Spurious),
        1 => (1200_u16..9000).prop_map(Op::Mtu),
        4 => (0_u64..200).prop_map(Op::WaitMillis),
        1 => (1_000_u64..100_000).prop_map(Op::WaitMillis),
    ];
    prop::collection::vec(op, 1..300)
}

#[derive(Clone, Copy)]
struct Packet {
    number: u64,
    sent: Instant,
    bytes: u16,
}

/// The part of a sender that a controller sees.
struct Sender {
    name: ControllerName,
    controller: Box<dyn Controller>,
    rtt: RttEstimator,
    now: Instant,
    mtu: u16,
    next_number: u64,
    in_flight: VecDeque<Packet>,
}

impl Sender {
    fn new(config: &ControllerConfig) -> Self {
        let (now, mtu) = (world::start(), 1452);
        Self {
            name: config.name,
            controller: factory(config, Feedback::default()).build(now, mtu),
            rtt: rtt(),
            now,
            mtu,
            next_number: 0,
            in_flight: VecDeque::new(),
        }
    }

    fn bytes_in_flight(&self) -> u64 {
        self.in_flight.iter().map(|packet| u64::from(packet.bytes)).sum()
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Send(count) => self.send(count),
            Op::Ack { skip, count, is_app_limited } => self.ack(skip, count, is_app_limited),
            Op::Lose { count, is_persistent } => self.lose(count, is_persistent),
            Op::Forget(count) => drop(self.in_flight.drain(..count.min(self.in_flight.len()))),
            Op::Renumber => self.next_number = 0,
            Op::Mark => {
                let (sent, number) = (self.now, self.next_number);
                self.controller.on_congestion_event(self.now, sent, false, true, 0, number);
            }
            Op::Spurious => self.controller.on_spurious_congestion_event(),
            Op::Mtu(mtu) => {
                self.mtu = mtu;
                self.controller.on_mtu_update(mtu);
            }
            Op::WaitMillis(millis) => self.now += Duration::from_millis(millis),
        }
    }

    fn send(&mut self, count: usize) {
        for _ in 0..count {
            if self.bytes_in_flight() + u64::from(self.mtu) > self.controller.window() {
                self.controller.on_cwnd_limited();
                return;
            }
            let packet = Packet { number: self.next_number, sent: self.now, bytes: self.mtu };
            self.next_number += 1;
            self.in_flight.push_back(packet);
            self.controller.on_packet_sent(self.now, packet.bytes, packet.number);
            self.controller.on_sent(self.now, packet.bytes.into(), packet.number);
        }
    }

    fn ack(&mut self, skip: usize, count: usize, is_app_limited: bool) {
        self.now += Duration::from_micros(100);
        let first = skip.min(self.in_flight.len());
        let end = (first + count).min(self.in_flight.len());
        let acked: Vec<_> = self.in_flight.drain(first..end).collect();
        for Packet { number, sent, bytes } in &acked {
            let bytes = u64::from(*bytes);
            self.controller.on_ack(self.now, *sent, bytes, *number, is_app_limited, &self.rtt);
        }
        if let Some(newest) = acked.last() {
            let in_flight = self.bytes_in_flight();
            self.controller.on_end_acks(self.now, in_flight, is_app_limited, Some(newest.number));
        }
    }

    fn lose(&mut self, count: usize, is_persistent: bool) {
        let count = count.min(self.in_flight.len());
        let lost: Vec<_> = self.in_flight.drain(..count).collect();
        let bytes = lost.iter().map(|packet| u64::from(packet.bytes)).sum();
        for packet in &lost {
            self.controller.on_packet_lost(packet.bytes, packet.number, self.now);
        }
        if let Some(Packet { number, sent, .. }) = lost.last().copied() {
            self.controller.on_congestion_event(
                self.now,
                sent,
                is_persistent,
                false,
                bytes,
                number,
            );
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let metrics = self.controller.metrics();
        let window = self.controller.window();
        prop_assert!(window >= 2 * u64::from(self.mtu), "window of {window} bytes");
        prop_assert_eq!(metrics.congestion_window, window);
        prop_assert!(self.pacing_rate() > 0, "nothing would ever be sent");
        Ok(())
    }

    /// Checks that the sender recovers on a path of 50 ms without losses.
    fn recover(&mut self) -> Result<(), TestCaseError> {
        self.lose(usize::MAX, false);
        for _ in 0..60 {
            self.send(100);
            prop_assert!(self.in_flight.len() >= 2, "stuck");
            self.now += Duration::from_millis(50);
            self.ack(0, usize::MAX / 2, false);
            self.check()?;
        }
        let rate = self.pacing_rate();
        prop_assert!(rate >= u64::from(self.mtu), "less than a datagram per second: {rate}");
        Ok(())
    }

    /// Returns the pacing rate in bytes per second. noq's `BBRv3` is exempt: it reports 0 after
    /// some orders of losses, which noq's pacer treats as one byte per second.
    fn pacing_rate(&self) -> u64 {
        let rate = self.controller.metrics().pacing_rate;
        rate.filter(|_| self.name != ControllerName::Bbr3).unwrap_or(u64::MAX)
    }
}

/// Returns an RTT estimator. Only noq can create one, but it passes one to each controller.
fn rtt() -> RttEstimator {
    static RTT: OnceLock<RttEstimator> = OnceLock::new();
    *RTT.get_or_init(|| {
        let spy = Spy::default();
        let download =
            Download { bytes: 10_000, ..Download::new(Arc::new(spy.clone()), Ratio::ZERO, 1) };
        download.run().expect("the link works");
        let seen = spy.seen.lock().expect("no panic while locked");
        seen.expect("packets were acknowledged")
    })
}

/// A controller that keeps the RTT estimator that noq last passed to it.
#[derive(Clone, Debug, Default)]
struct Spy {
    seen: Arc<Mutex<Option<RttEstimator>>>,
}

impl ControllerFactory for Spy {
    fn build(self: Arc<Self>, _now: Instant, _current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Self::clone(&self))
    }
}

impl Controller for Spy {
    fn on_ack(
        &mut self,
        _now: Instant,
        _sent: Instant,
        _bytes: u64,
        _packet_number: u64,
        _is_app_limited: bool,
        rtt: &RttEstimator,
    ) {
        *self.seen.lock().expect("no panic while locked") = Some(*rtt);
    }

    fn on_congestion_event(
        &mut self,
        _now: Instant,
        _sent: Instant,
        _is_persistent_congestion: bool,
        _is_ecn: bool,
        _lost_bytes: u64,
        _packet_number: u64,
    ) {
    }

    fn on_mtu_update(&mut self, _new_mtu: u16) {}

    fn window(&self) -> u64 {
        1 << 20
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        1 << 20
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_events_leaves_a_working_controller(
        name in prop::sample::select(ControllerName::ALL.to_vec()),
        initial_window_packets in prop::sample::select(vec![0, 2, 10, 32, 1000]),
        bbr_up_gain_percent in prop::sample::select(vec![0, 100, 125, 200, u32::MAX]),
        seed: u64,
        ops in ops(),
    ) {
        let config = ControllerConfig { initial_window_packets, bbr_up_gain_percent, seed, ..name.into() };
        let mut sender = Sender::new(&config);
        sender.check()?;
        for op in &ops {
            sender.apply(op);
            sender.check()?;
        }
        sender.recover()?;
    }
}
