//! When to acknowledge what arrives.
//!
//! The engine acknowledges every second packet at once. Inside a tunnel each of these acknowledgements
//! is a payload that must itself be acknowledged, so that they pile up along a chain. RFC 9000 §13.2.1
//! lets a receiver wait for `max_ack_delay`, and RFC 9000 §13.2.2 says that fewer acknowledgements can be
//! better. The engine cannot be told so, but it sends nothing while it is not asked for packets. The gate
//! keeps a connection from being asked while it has nothing to send but acknowledgements.

use std::{
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use tandem_transport::Flood;
use tandem_units::Ratio;

use super::observed::Arrived;

/// How long a node waits before it acknowledges data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckPolicy {
    /// The longest wait as a share of the smoothed RTT; 0: every second packet is acknowledged at once, also while
    /// packets come fast (RFC 9000 §13.2.2). The `max_ack_delay` that this end has announced, or that the peer has
    /// asked for (draft-ietf-quic-ack-frequency), bounds the wait. This end asks for nothing, because the engine panics
    /// when an `ACK_FREQUENCY` frame does not fit the packet that it is writing.
    pub delay: Ratio,
    /// The number of packets with data after which this end waits no longer.
    pub threshold: u32,
}

impl AckPolicy {
    /// The allowed thresholds.
    pub const THRESHOLD: RangeInclusive<u32> = 1..=1000;

    /// The default for the tunnels of a chain. It saves most bytes of acknowledgements, and a longer wait
    /// saves little more (figure `nested-acks/delays`).
    pub const TUNNEL: Self = Self { delay: Ratio::of(1, 2), threshold: 100 };

    /// The default for the connection inside a chain. Its sender waits less for acknowledgements.
    pub const END_TO_END: Self = Self { delay: Ratio::of(1, 4), threshold: 10 };

    /// This policy with what was chosen in its place. `None`: nothing was chosen.
    pub fn chosen(self, delay: Option<Ratio>, threshold: Option<u32>) -> Option<Self> {
        let is_chosen = delay.is_some() || threshold.is_some();
        is_chosen.then_some(Self {
            delay: delay.unwrap_or(self.delay),
            threshold: threshold.unwrap_or(self.threshold),
        })
    }

    /// Whether anything waits.
    pub(super) fn is_on(self) -> bool {
        self.delay != Ratio::ZERO
    }
}

/// The number of packets with data that are acknowledged without a wait, so that the peer's slow start
/// is not slowed down. It is that of the paper on nested acknowledgements (ANRW '25, §5.1).
const AT_ONCE: u64 = 100;

/// The number of packets that are acknowledged without a wait from one on that arrives out of order. With
/// three packets after a lost one, its sender declares it lost (RFC 9002 §6.1.1), and a tunnel repairs it.
const AFTER_A_GAP: u64 = 4;

/// Decides when a connection is asked for packets.
#[derive(Debug)]
pub(super) struct AckGate {
    /// The wait that was asked for, at any rate of packets.
    policy: Option<AckPolicy>,
    /// Whether each acknowledgement is sent at once, because that was asked for.
    is_off: bool,
    flood: Flood,
    /// Packets with data that have arrived, up to [`AT_ONCE`].
    arrived: u64,
    /// How many of the next packets with data are acknowledged without a wait, after a gap.
    hurry: u64,
    /// Packets with data that have arrived since the last ACK frame was sent.
    unacknowledged: u64,
    /// Whether the connection may have something to send but acknowledgements.
    is_open: bool,
    /// Whether the connection had nothing to send when it was asked last, and nothing has happened to it since. To ask
    /// it costs as much as to send a packet.
    is_quiet: bool,
    /// When the wait for more data ends.
    until: Option<Instant>,
}

impl AckGate {
    pub(super) fn new(policy: Option<AckPolicy>) -> Self {
        Self {
            is_off: policy.is_some_and(|policy| !policy.is_on()),
            policy,
            flood: Flood::default(),
            arrived: 0,
            hurry: 0,
            unacknowledged: 0,
            is_open: true,
            is_quiet: false,
            until: None,
        }
    }

    /// Notes that the connection has something to send.
    pub(super) const fn open(&mut self) {
        (self.is_open, self.is_quiet) = (true, false);
    }

    /// Notes that something has happened to the connection.
    pub(super) const fn touch(&mut self) {
        self.is_quiet = false;
    }

    /// Notes that the connection had nothing more to send. `has_acked`: it sent an ACK frame before.
    pub(super) fn close(&mut self, now: Instant, has_acked: bool) {
        (self.is_open, self.is_quiet) = (false, true);
        let is_over = self.until.take().is_some_and(|until| until <= now);
        if has_acked {
            if is_over {
                self.flood.on_expired(now);
            }
            self.unacknowledged = 0;
        }
    }

    /// Whether the connection need not be asked for packets now.
    pub(super) fn holds(&self, now: Instant) -> bool {
        !self.is_open && self.until.is_some_and(|until| now < until)
    }

    /// Whether the connection had nothing to send when it was asked last, and nothing has happened to it since.
    pub(super) const fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// When the wait ends.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.until.filter(|_| !self.is_open)
    }

    /// Handles what arrived. `may_send`: an acknowledgement among it may let the connection send more.
    pub(super) fn on_arrived(
        &mut self,
        now: Instant,
        arrived: &Arrived,
        may_send: bool,
        smoothed_rtt: Duration,
    ) {
        self.touch();
        if self.is_off {
            return self.open();
        }
        self.flood.on_arrived(now, arrived.with_data);
        self.arrived = AT_ONCE.min(self.arrived + arrived.with_data);
        self.unacknowledged += arrived.with_data;
        if arrived.is_out_of_order {
            self.hurry = AFTER_A_GAP;
            self.flood.on_gap();
        }
        let is_hurried = self.hurry > 0;
        self.hurry = self.hurry.saturating_sub(arrived.with_data);
        let asked_for = self.policy.map(|policy| {
            (smoothed_rtt.mul_f64(policy.delay.as_f64()), u64::from(policy.threshold))
        });
        let wait = match (asked_for, self.flood.wait(smoothed_rtt)) {
            (Some(asked_for), Some(flood)) => {
                Some((asked_for.0.max(flood.0), asked_for.1.max(flood.1)))
            }
            (asked_for, flood) => asked_for.or(flood),
        };
        let Some((delay, threshold)) = wait else { return self.open() };
        let is_enough = self.unacknowledged >= threshold;
        if is_enough {
            self.flood.on_enough();
        }
        let is_due = is_hurried || is_enough;
        if self.arrived < AT_ONCE || arrived.is_urgent || may_send || is_due {
            return self.open();
        }
        if arrived.with_data > 0 {
            self.until.get_or_insert(now + delay);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_start;

    const RTT: Duration = Duration::from_millis(40);
    const NEAR: Duration = Duration::from_millis(1);
    const DATA: Arrived =
        Arrived { with_data: 1, has_acks: false, is_urgent: false, is_out_of_order: false };

    /// A gate after the start of its connection.
    fn gate(threshold: u32) -> AckGate {
        let mut gate = AckGate::new(Some(AckPolicy { threshold, ..AckPolicy::END_TO_END }));
        for _ in 0..AT_ONCE {
            assert!(!gate.holds(test_start()), "nothing waits at the start of a connection");
            gate.on_arrived(test_start(), &DATA, false, RTT);
        }
        gate.close(test_start(), true);
        gate
    }

    #[test]
    fn data_waits_for_a_share_of_the_rtt() {
        let (now, ms) = (test_start(), Duration::from_millis);
        let mut gate = gate(100);
        gate.on_arrived(now, &DATA, false, RTT);
        gate.on_arrived(now + ms(3), &DATA, false, RTT);
        assert_eq!(gate.next_timeout(), Some(now + ms(10)));
        assert!(gate.holds(now + ms(9)) && !gate.holds(now + ms(10)));
        gate.close(test_start(), true);
        assert_eq!(gate.next_timeout(), None);
    }

    #[test]
    fn nothing_waits_for_more_than_the_threshold() {
        let now = test_start();
        let mut gate = gate(3);
        for held in [true, true, false] {
            gate.on_arrived(now, &DATA, false, RTT);
            assert_eq!(gate.holds(now), held);
        }
        gate.close(test_start(), true);
        gate.on_arrived(now, &DATA, false, RTT);
        assert!(gate.holds(now), "the count begins again with each ACK frame");
    }

    #[test]
    fn whatever_else_is_to_be_sent_ends_the_wait() {
        type Change = fn(&mut AckGate, Instant);
        let now = test_start();
        let changes: [(&str, Change); 4] = [
            ("the node sends", |gate, _| gate.open()),
            ("another frame arrives", |gate, now| {
                gate.on_arrived(now, &Arrived { is_urgent: true, ..DATA }, false, RTT);
            }),
            ("an ACK frame makes room", |gate, now| {
                let acks = Arrived { with_data: 0, has_acks: true, ..DATA };
                gate.on_arrived(now, &acks, true, RTT);
            }),
            ("all is sent", |gate, _| gate.close(test_start(), false)),
        ];
        for (what, change) in changes {
            let mut gate = gate(100);
            gate.on_arrived(now, &DATA, false, RTT);
            assert!(gate.holds(now));
            change(&mut gate, now);
            assert!(!gate.holds(now), "{what}");
        }
    }

    #[test]
    fn a_connection_that_has_sent_all_is_quiet_until_something_happens() {
        let now = test_start();
        let mut gate = gate(100);
        gate.on_arrived(now, &DATA, false, RTT);
        assert!(!gate.is_quiet());
        gate.close(now, false);
        assert!(gate.is_quiet() && gate.next_timeout().is_none());
        gate.touch();
        assert!(!gate.is_quiet());
    }

    #[test]
    fn after_a_gap_a_lost_packet_is_found_at_once() {
        let now = test_start();
        let mut gate = gate(100);
        gate.on_arrived(now, &Arrived { is_out_of_order: true, ..DATA }, false, RTT);
        for _ in 0..3 {
            assert!(!gate.holds(now));
            gate.close(test_start(), true);
            gate.on_arrived(now, &DATA, false, RTT);
        }
        assert!(!gate.holds(now));
        gate.close(test_start(), true);
        gate.on_arrived(now, &DATA, false, RTT);
        assert!(gate.holds(now), "the packet after these waits again");
    }

    /// Gives a gate packets that come evenly after others. Returns how many ACK frames of the last hundred
    /// packets it lets pass at once, and how many when time is over.
    fn acknowledged(gate: &mut AckGate, spacing: Duration) -> (u32, u32) {
        let (mut now, mut at_once, mut by_time) = (test_start(), 0, 0);
        for packet in 0..1100 {
            if packet == 1000 {
                (at_once, by_time) = (0, 0);
            }
            let next = now + spacing;
            if let Some(until) = gate.next_timeout().filter(|until| *until < next) {
                assert!(!gate.holds(until));
                gate.close(until, true);
                by_time += 1;
            }
            now = next;
            gate.on_arrived(now, &DATA, false, NEAR);
            if !gate.holds(now) {
                gate.close(now, true);
                at_once += 1;
            }
        }
        (at_once, by_time)
    }

    #[test]
    fn of_fast_packets_every_sixteenth_is_acknowledged() {
        let off = AckPolicy::TUNNEL.chosen(Some(Ratio::ZERO), None);
        let us = Duration::from_micros;
        for (policy, spacing, expected, why) in [
            (None, us(20), (6..=7, 0..=0), "50 packets/ms: each 16th of 100"),
            (None, us(100), (6..=7, 0..=0), "10 packets/ms: each 16th of 100"),
            (None, us(220), (0..=0, 10..=11), "4.5 packets/ms: each after 2 ms"),
            (None, us(300), (100..=100, 0..=0), "3.3 packets/ms: nothing waits"),
            (off, us(20), (100..=100, 0..=0), "nothing is to wait"),
        ] {
            let mut gate = AckGate::new(policy);
            let (at_once, by_time) = acknowledged(&mut gate, spacing);
            assert!(
                expected.0.contains(&at_once) && expected.1.contains(&by_time),
                "{why}: {at_once}, {by_time}"
            );
        }
    }

    #[test]
    fn of_fast_packets_all_are_acknowledged_where_every_fiftieth_is_lost() {
        let (mut now, mut gate) = (test_start(), AckGate::new(None));
        for packet in 0..2000 {
            now += Duration::from_micros(20);
            let is_out_of_order = packet % 50 == 0;
            gate.on_arrived(now, &Arrived { is_out_of_order, ..DATA }, false, NEAR);
            assert!(!gate.holds(now), "packet {packet}");
            gate.close(now, true);
        }
    }

    #[test]
    fn a_sender_that_waits_for_acknowledgements_is_held_up_seldom() {
        let (mut now, mut waits, mut packets) = (test_start(), 0_u32, 0_u32);
        let mut gate = AckGate::new(None);
        while packets < 20_000 {
            // It has a window of ten packets, and sends one each 20 us until it is full.
            for _ in 0..10 {
                now += Duration::from_micros(20);
                packets += 1;
                gate.on_arrived(now, &DATA, false, NEAR);
                if !gate.holds(now) {
                    gate.close(now, true);
                }
            }
            if let Some(until) = gate.next_timeout() {
                waits += 1;
                now = until;
                gate.close(now, true);
            }
        }
        assert!((1..=20).contains(&waits), "{waits}");
    }
}
