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

use tandem_units::Ratio;

use super::observed::Arrived;

/// How long a node waits before it acknowledges data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckPolicy {
    /// The longest wait as a share of the smoothed RTT; 0: every second packet is acknowledged at once
    /// (RFC 9000 §13.2.2). The `max_ack_delay` that this end has announced, or that the peer has asked for
    /// (draft-ietf-quic-ack-frequency), bounds the wait. This end asks for nothing, because the engine
    /// panics when an `ACK_FREQUENCY` frame does not fit the packet that it is writing.
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
    /// The wait that was asked for. `None`: only that of [`Haste`].
    policy: Option<AckPolicy>,
    /// Whether each acknowledgement is sent at once.
    is_off: bool,
    fast: Haste,
    /// Packets with data that have arrived, up to [`AT_ONCE`].
    arrived: u64,
    /// How many of the next packets with data are acknowledged without a wait, after a gap.
    hurry: u64,
    /// Packets with data that have arrived since the last ACK frame was sent.
    unacknowledged: u64,
    /// Whether the connection may have something to send but acknowledgements.
    is_open: bool,
    /// When the wait for more data ends.
    until: Option<Instant>,
}

/// Whether packets come so fast that acknowledging every second one costs both ends more than it tells the sender.
#[derive(Debug, Default)]
struct Haste {
    /// When the present window began, and how many packets with data have come in it.
    window: Option<(Instant, u64)>,
    /// Packets in a millisecond, in the last window.
    per_ms: u64,
    /// How many of the next packets are acknowledged as when packets come slowly.
    at_once: u64,
    /// How many will be, when the next wait was in vain.
    penalty: u64,
}

fn env(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}
static PACKETS: std::sync::LazyLock<u64> = std::sync::LazyLock::new(|| env("T_ACKS", 16));
static WAIT_US: std::sync::LazyLock<u64> = std::sync::LazyLock::new(|| env("T_WAIT", 2000));
static FAST: std::sync::LazyLock<u64> = std::sync::LazyLock::new(|| env("T_FAST", 4));

impl Haste {
    /// The time over which packets are counted.
    const WINDOW: Duration = Duration::from_millis(8);
    /// The least and the largest penalty.
    const PENALTY: RangeInclusive<u64> = 64..=4096;

    fn on_arrived(&mut self, now: Instant, packets: u64) {
        let (began, count) = self.window.get_or_insert((now, 0));
        let elapsed = now.saturating_duration_since(*began);
        if elapsed >= Self::WINDOW {
            let per_ms = u128::from(*count) * 1_000_000 / elapsed.as_nanos().max(1);
            self.per_ms = u64::try_from(per_ms).unwrap_or(u64::MAX);
            (*began, *count) = (now, 0);
        }
        *count += packets;
        self.at_once = self.at_once.saturating_sub(packets);
    }

    fn is_fast(&self) -> bool {
        self.per_ms >= *FAST && self.at_once == 0
    }

    /// Notes that an acknowledgement was sent because time was over, after this number of packets.
    fn on_expired(&mut self, packets: u64) {
        let expected = self.per_ms * *WAIT_US / 1000;
        if packets * 2 < expected.min(*PACKETS) {
            self.at_once = self.penalty.max(*Self::PENALTY.start());
            self.penalty = (self.at_once * 2).min(*Self::PENALTY.end());
        }
    }

    fn on_enough(&mut self) {
        self.penalty -= self.penalty / 16;
    }
}

impl AckGate {
    pub(super) fn new(policy: Option<AckPolicy>) -> Self {
        Self {
            is_off: *PACKETS == 0 || policy.is_some_and(|policy| !policy.is_on()),
            policy,
            fast: Haste::default(),
            arrived: 0,
            hurry: 0,
            unacknowledged: 0,
            is_open: true,
            until: None,
        }
    }

    /// Notes that the connection has something to send.
    pub(super) const fn open(&mut self) {
        self.is_open = true;
    }

    /// Notes that the connection had nothing more to send. `has_acked`: it sent an ACK frame before.
    pub(super) fn close(&mut self, now: Instant, has_acked: bool) {
        self.is_open = false;
        let is_over = self.until.take().is_some_and(|until| until <= now);
        if has_acked {
            if is_over {
                self.fast.on_expired(self.unacknowledged);
            }
            self.unacknowledged = 0;
        }
    }

    /// Whether the connection need not be asked for packets now.
    pub(super) fn holds(&self, now: Instant) -> bool {
        !self.is_open && self.until.is_some_and(|until| now < until)
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
        if self.is_off {
            return self.open();
        }
        self.fast.on_arrived(now, arrived.with_data);
        self.arrived = AT_ONCE.min(self.arrived + arrived.with_data);
        self.unacknowledged += arrived.with_data;
        if arrived.is_out_of_order {
            self.hurry = AFTER_A_GAP;
        }
        let is_hurried = self.hurry > 0;
        self.hurry = self.hurry.saturating_sub(arrived.with_data);
        let mut policy = self.policy.map(|policy| {
            (smoothed_rtt.mul_f64(policy.delay.as_f64()), u64::from(policy.threshold))
        });
        if self.fast.is_fast() {
            let (delay, threshold) = policy.unwrap_or_default();
            policy = Some((delay.max(Duration::from_micros(*WAIT_US)), threshold.max(*PACKETS)));
        }
        let Some((delay, threshold)) = policy else { return self.open() };
        let is_due = is_hurried || self.unacknowledged >= threshold;
        if is_due && !is_hurried {
            self.fast.on_enough();
        }
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
    const DATA: Arrived =
        Arrived { with_data: 1, has_acks: false, is_urgent: false, is_out_of_order: false };

    /// A gate after the start of its connection.
    fn gate(threshold: u32) -> AckGate {
        let mut gate = AckGate::new(Some(AckPolicy { threshold, ..AckPolicy::END_TO_END }));
        for _ in 0..AT_ONCE {
            assert!(!gate.holds(test_start()), "nothing waits at the start of a connection");
            gate.on_arrived(test_start(), &DATA, false, RTT);
        }
        gate.close(true);
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
        gate.close(true);
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
        gate.close(true);
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
            ("all is sent", |gate, _| gate.close(false)),
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
    fn after_a_gap_a_lost_packet_is_found_at_once() {
        let now = test_start();
        let mut gate = gate(100);
        gate.on_arrived(now, &Arrived { is_out_of_order: true, ..DATA }, false, RTT);
        for _ in 0..3 {
            assert!(!gate.holds(now));
            gate.close(true);
            gate.on_arrived(now, &DATA, false, RTT);
        }
        assert!(!gate.holds(now));
        gate.close(true);
        gate.on_arrived(now, &DATA, false, RTT);
        assert!(gate.holds(now), "the packet after these waits again");
    }

    #[test]
    fn without_a_policy_nothing_waits() {
        let off = AckPolicy::TUNNEL.chosen(Some(Ratio::ZERO), None);
        for policy in [None, off] {
            let mut gate = AckGate::new(policy);
            for _ in 0..300 {
                gate.on_arrived(test_start(), &DATA, false, RTT);
                assert!(!gate.holds(test_start()));
                gate.close(false);
            }
        }
    }
}
