//! When to acknowledge what has arrived ([RFC 9000 §13.2]).
//!
//! Every second packet is acknowledged at once. While packets come fast on a short path, every 16th is: an
//! acknowledgement wakes the sender, which costs about as much CPU time as to carry a packet. A sender with a small
//! window may wait for the acknowledgement instead of sending the packets that end the wait. Then the wait ends with
//! time, and in silence; of the next packets every second one is acknowledged: of 64 (`AT_ONCE_LEAST`), and of twice as
//! many each time that it happens again, and of 64 after a gap.
//!
//! [RFC 9000 §13.2]: https://www.rfc-editor.org/rfc/rfc9000#section-13.2

use std::time::{Duration, Instant};

use tandem_units::Ratio;

use crate::{flood::Flood, rtt::MAX_ACK_DELAY};

/// RFC 9000 §13.2.2: "A receiver SHOULD send an ACK frame after receiving at least two ack-eliciting packets."
const THRESHOLD: u64 = 2;

/// How many packets at the start of a transport are acknowledged every second one, while its sender finds its rate.
const START: u32 = 100;

/// The number of packets that are acknowledged at once from one on that arrives out of order. With three packets after
/// a lost one, its sender declares it lost (RFC 9002 §6.1.1).
const AFTER_A_GAP: u32 = 4;

/// How long acknowledgements wait, at any rate of packets. Inside a tunnel each of them is a datagram that must itself
/// be acknowledged, so that they pile up along a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckWait {
    /// The longest wait as a share of the smoothed RTT. `max_ack_delay` bounds it. 0: every second packet is
    /// acknowledged at once, also while packets come fast.
    pub share: Ratio,
    /// The number of packets after which an acknowledgement waits no longer, at least 1.
    pub threshold: u32,
}

/// Decides when an ACK frame is due.
#[derive(Debug, Default)]
pub(crate) struct AckPolicy {
    wait: Option<AckWait>,
    /// Ack-eliciting packets that no ACK frame has covered.
    unacknowledged: u64,
    is_due: bool,
    /// When an ACK frame is due in any case.
    pub(crate) until: Option<Instant>,
    /// How many of the next packets are acknowledged at once.
    hurry: u32,
    /// Packets that have arrived, up to [`START`].
    arrived: u32,
    flood: Flood,
}

impl AckPolicy {
    pub(crate) fn new(wait: Option<AckWait>) -> Self {
        Self { wait, ..Self::default() }
    }

    /// The number of packets that makes an acknowledgement due, and the time.
    fn bounds(&self, smoothed_rtt: Duration) -> (u64, Duration) {
        if self.arrived < START {
            return (THRESHOLD, MAX_ACK_DELAY);
        }
        match (self.wait, self.flood.wait(smoothed_rtt)) {
            (Some(AckWait { share: Ratio::ZERO, .. }), _) | (None, None) => {
                (THRESHOLD, MAX_ACK_DELAY)
            }
            (None, Some((delay, threshold))) => (threshold, delay),
            (Some(wait), flood) => {
                let delay = smoothed_rtt.mul_f64(wait.share.as_f64()).min(MAX_ACK_DELAY);
                let (least, threshold) = flood.unwrap_or_default();
                (threshold.max(wait.threshold.into()), delay.max(least))
            }
        }
    }

    /// An ack-eliciting packet has come. `is_urgent`: it was out of order, or has the mark ECN-CE.
    pub(crate) fn on_packet(&mut self, now: Instant, is_urgent: bool, smoothed_rtt: Duration) {
        self.flood.on_arrived(now, 1);
        self.arrived = START.min(self.arrived + 1);
        self.unacknowledged += 1;
        if is_urgent {
            // RFC 9000 §13.2.1: "an endpoint SHOULD generate and send an ACK frame without delay"
            self.hurry = AFTER_A_GAP;
            self.flood.on_gap();
        }
        let (threshold, delay) = self.bounds(smoothed_rtt);
        if self.unacknowledged == threshold && threshold != THRESHOLD {
            self.flood.on_enough();
        }
        self.is_due |= self.hurry > 0 || self.unacknowledged >= threshold;
        self.hurry = self.hurry.saturating_sub(1);
        if self.until.is_none() {
            self.until = Some(now + delay);
        }
    }

    /// Whether there is something to acknowledge.
    pub(crate) const fn has_news(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Whether an ACK frame must leave now, alone if nothing else does.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.is_due || self.until.is_some_and(|until| until <= now)
    }

    /// An ACK frame has left.
    pub(crate) fn on_ack_sent(&mut self, now: Instant) {
        if !self.is_due && self.until.is_some_and(|until| until <= now) {
            self.flood.on_expired(now);
        }
        (self.unacknowledged, self.is_due, self.until) = (0, false, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_start;

    const NEAR: Duration = Duration::from_millis(1);
    const FAR: Duration = Duration::from_millis(40);

    /// Gives a policy packets that come evenly, after 1000 others. Returns how many ACK frames the last hundred packets
    /// get at once, and how many when time is over.
    fn acknowledged(spacing: Duration, rtt: Duration) -> (u32, u32) {
        let (mut policy, mut now) = (AckPolicy::default(), test_start());
        let (mut at_once, mut by_time) = (0, 0);
        for packet in 0..1100 {
            if packet == 1000 {
                (at_once, by_time) = (0, 0);
            }
            let next = now + spacing;
            if let Some(until) = policy.until.filter(|until| *until < next) {
                assert!(policy.is_due(until));
                policy.on_ack_sent(until);
                by_time += 1;
            }
            now = next;
            policy.on_packet(now, false, rtt);
            if policy.is_due(now) {
                policy.on_ack_sent(now);
                at_once += 1;
            }
        }
        (at_once, by_time)
    }

    #[test]
    fn of_fast_packets_on_a_short_path_every_sixteenth_is_acknowledged() {
        let us = Duration::from_micros;
        for (spacing, rtt, expected, why) in [
            (us(20), NEAR, (6..=7, 0..=0), "50 packets/ms: each 16th of 100"),
            (us(100), NEAR, (6..=7, 0..=0), "10 packets/ms: each 16th of 100"),
            (us(220), NEAR, (0..=0, 10..=11), "4.5 packets/ms: each after 2 ms"),
            (us(300), NEAR, (50..=50, 0..=0), "3.3 packets/ms: every second"),
            (us(20), FAR, (50..=50, 0..=0), "a long path: every second"),
            (us(30_000), FAR, (0..=0, 100..=100), "slow: each after max_ack_delay"),
        ] {
            let (at_once, by_time) = acknowledged(spacing, rtt);
            assert!(
                expected.0.contains(&at_once) && expected.1.contains(&by_time),
                "{why}: {at_once}, {by_time}"
            );
        }
    }

    #[test]
    fn of_fast_packets_each_second_is_acknowledged_where_every_fiftieth_is_lost() {
        let (mut policy, mut now) = (AckPolicy::default(), test_start());
        let mut acks = 0_u32;
        for packet in 0..2000 {
            now += Duration::from_micros(20);
            policy.on_packet(now, packet % 50 == 0, NEAR);
            if policy.is_due(now) {
                policy.on_ack_sent(now);
                acks += u32::from(packet >= 1000);
            }
        }
        assert!((500..=580).contains(&acks), "{acks} for 1000 packets");
    }

    #[test]
    fn packets_after_a_gap_and_marks_are_acknowledged_at_once() {
        let (mut policy, now) = (AckPolicy::default(), test_start());
        let mut due = Vec::new();
        for packet in 0..8 {
            policy.on_packet(now, packet == 1, FAR);
            due.push(policy.is_due(now));
            if policy.is_due(now) {
                policy.on_ack_sent(now);
            }
        }
        assert_eq!(due, [false, true, true, true, true, false, true, false]);
    }

    #[test]
    fn a_sender_that_waits_for_acknowledgements_is_held_up_seldom() {
        let (mut policy, mut now) = (AckPolicy::default(), test_start());
        let (mut waits, mut packets) = (0_u32, 0_u32);
        while packets < 20_000 {
            // It has a window of ten packets, and sends one each 20 us until it is full. The acknowledgement of its
            // ninth packet, or of its tenth, lets it go on.
            for _ in 0..10 {
                now += Duration::from_micros(20);
                packets += 1;
                policy.on_packet(now, false, NEAR);
                if policy.is_due(now) {
                    policy.on_ack_sent(now);
                }
            }
            if policy.until.is_some_and(|until| until <= now + Flood::DELAY) {
                waits += 1;
                now += Flood::DELAY;
                policy.on_ack_sent(now);
            }
        }
        assert!((1..=20).contains(&waits), "{waits}");
    }
}
