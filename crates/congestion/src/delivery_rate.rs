//! Delivery-rate estimation, [draft-cheng-iccrg-delivery-rate-estimation-00].
//!
//! Every packet carries what had been delivered when it left. When it is acknowledged, the
//! difference to what is delivered by then, over the longer of the time to send it and the time to
//! get it acknowledged, is one sample of the rate that the path delivers.
//!
//! | draft | here |
//! | --- | --- |
//! | `C.delivered` | [`DeliveryRate::delivered`] |
//! | `C.delivered_time` | `DeliveryRate::delivered_time` |
//! | `C.first_sent_time` | `DeliveryRate::first_sent_time` |
//! | `C.app_limited` | `DeliveryRate::app_limited_until`, `None` for 0 |
//! | `P.*` | `Packet` |
//! | `rs.*` | [`RateSample`] |
//!
//! One step of the draft is missing: it drops samples over less than `MinRTT`. QUIC never confuses
//! a packet with its retransmission, so a sample's time is never shorter than its own round trip.
//!
//! [draft-cheng-iccrg-delivery-rate-estimation-00]: https://datatracker.ietf.org/doc/html/draft-cheng-iccrg-delivery-rate-estimation-00

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate};

use crate::{Ack, Lost, Sent};

/// The state of a connection and of its packets in flight.
#[derive(Clone, Debug)]
pub struct DeliveryRate {
    delivered: ByteCount,
    delivered_time: Instant,
    first_sent_time: Instant,
    /// While the application, not the network, sets the pace: the delivered total at which
    /// everything that was in flight when the application ran dry is delivered.
    app_limited_until: Option<ByteCount>,
    packets: BTreeMap<u64, Packet>,
    /// The newest packet that the current ACK frame acknowledged.
    newest_acked: Option<Packet>,
    /// When anything was acknowledged last, or, after a while without packets, sent first.
    last_progress: Instant,
    /// How long the path has stood still, in all.
    standstill: Duration,
    /// The same at `first_sent_time`.
    first_sent_standstill: Duration,
}

/// What a packet in flight remembers of the moment it left.
#[derive(Clone, Copy, Debug)]
struct Packet {
    sent: Instant,
    delivered: ByteCount,
    delivered_time: Instant,
    first_sent_time: Instant,
    is_app_limited: bool,
    standstill: Duration,
    first_sent_standstill: Duration,
}

/// What one ACK frame tells about the path.
#[derive(Clone, Copy, Debug)]
pub struct RateSample {
    /// The rate of delivery, or `None` if no time passed.
    pub delivery_rate: Option<Rate>,
    /// What had been delivered when the newest acknowledged packet left.
    pub prior_delivered: ByteCount,
    /// The sample may be below what the path carries: the application had run dry when the packet
    /// left, or before that while packets in flight with it did.
    pub is_app_limited: bool,
    /// The round trip of the newest acknowledged packet, the peer's delay included.
    pub rtt: Duration,
}

/// Packets are forgotten when their acknowledgement or loss has not been reported for so long: QUIC
/// drops some without a report, when it discards keys or changes the path.
const FORGET_AFTER: Duration = Duration::from_secs(60);

impl DeliveryRate {
    /// The state of a connection that begins.
    pub const fn new(now: Instant) -> Self {
        Self {
            delivered: ByteCount::ZERO,
            delivered_time: now,
            first_sent_time: now,
            app_limited_until: None,
            packets: BTreeMap::new(),
            newest_acked: None,
            last_progress: now,
            standstill: Duration::ZERO,
            first_sent_standstill: Duration::ZERO,
        }
    }

    /// What has been delivered so far.
    pub const fn delivered(&self) -> ByteCount {
        self.delivered
    }

    /// Whether the application, not the network, sets the pace.
    pub const fn is_app_limited(&self) -> bool {
        self.app_limited_until.is_some()
    }

    /// A packet leaves. `bytes_in_flight` does not count it: when nothing is in flight, idle time
    /// must not be taken for slow delivery.
    pub fn on_packet_sent(&mut self, sent: Sent, bytes_in_flight: ByteCount) {
        if bytes_in_flight.is_zero() {
            self.first_sent_time = sent.now;
            self.delivered_time = sent.now;
            self.last_progress = sent.now;
            self.first_sent_standstill = self.standstill;
        }
        let packet = Packet {
            sent: sent.now,
            delivered: self.delivered,
            delivered_time: self.delivered_time,
            first_sent_time: self.first_sent_time,
            is_app_limited: self.is_app_limited(),
            standstill: self.standstill,
            first_sent_standstill: self.first_sent_standstill,
        };
        // A packet of another number space with the same number is overwritten. It was part of the
        // handshake; nothing is lost with its sample.
        self.packets.insert(sent.packet_number, packet);
    }

    /// A packet is acknowledged.
    pub fn on_ack(&mut self, ack: &Ack) {
        self.delivered += ack.bytes;
        self.delivered_time = ack.now;
        let Some(packet) = self.packets.get(&ack.packet_number).copied() else { return };
        if packet.sent != ack.sent {
            return; // same number, other number space
        }
        self.packets.remove(&ack.packet_number);
        if self.newest_acked.is_none_or(|newest| newest.sent <= packet.sent) {
            self.newest_acked = Some(packet);
        }
    }

    /// The path delivered nothing for so long that it stood still, if the last acknowledgement, or
    /// the first packet after a pause, is longer ago than this. To be called before
    /// [`Self::on_acks_end`]: what is beyond `allowed` is no part of any sample's time, so that samples
    /// tell how fast the path is when it moves.
    pub fn forgive_standstill(&mut self, now: Instant, allowed: Duration) {
        self.standstill +=
            now.saturating_duration_since(self.last_progress).saturating_sub(allowed);
    }

    /// The sample of one ACK frame; `None` if it acknowledged nothing that is known.
    pub fn on_acks_end(&mut self, now: Instant) -> Option<RateSample> {
        self.last_progress = now;
        // Above the mark everything that was in flight when the application ran dry is delivered.
        if self.app_limited_until.is_some_and(|mark| self.delivered > mark) {
            self.app_limited_until = None;
        }
        self.forget_unreported(now);
        let packet = self.newest_acked.take()?;
        self.first_sent_time = packet.sent;
        self.first_sent_standstill = packet.standstill;
        let send_elapsed = packet
            .sent
            .saturating_duration_since(packet.first_sent_time)
            .saturating_sub(packet.standstill.saturating_sub(packet.first_sent_standstill));
        let ack_elapsed = now
            .saturating_duration_since(packet.delivered_time)
            .saturating_sub(self.standstill.saturating_sub(packet.standstill));
        let delivered = self.delivered - packet.delivered;
        Some(RateSample {
            delivery_rate: Rate::average(delivered, send_elapsed.max(ack_elapsed)),
            prior_delivered: packet.delivered,
            is_app_limited: packet.is_app_limited,
            rtt: now.saturating_duration_since(packet.sent),
        })
    }

    /// A packet is lost: it will give no sample.
    pub fn on_packet_lost(&mut self, lost: &Lost) {
        self.packets.remove(&lost.packet_number);
    }

    /// The application has run dry while so much is in flight. Packets that leave before all of it
    /// is delivered say nothing about the path.
    pub fn on_app_limited(&mut self, bytes_in_flight: ByteCount) {
        self.app_limited_until = Some(self.delivered + bytes_in_flight);
    }

    fn forget_unreported(&mut self, now: Instant) {
        while let Some(oldest) = self.packets.first_entry()
            && now.saturating_duration_since(oldest.get().sent) > FORGET_AFTER
        {
            oldest.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: ByteCount = ByteCount::new(1250);
    const RTT: Duration = Duration::from_millis(100);

    struct Path {
        rates: DeliveryRate,
        start: Instant,
        in_flight: ByteCount,
    }

    impl Path {
        fn new() -> Self {
            let start = crate::test_start();
            Self { rates: DeliveryRate::new(start), start, in_flight: ByteCount::ZERO }
        }

        fn at(&self, millis: u64) -> Instant {
            self.start + Duration::from_millis(millis)
        }

        fn send(&mut self, packet_number: u64, millis: u64) {
            let sent = Sent { now: self.at(millis), packet_number, bytes: PACKET };
            self.rates.on_packet_sent(sent, self.in_flight);
            self.in_flight += PACKET;
        }

        /// An ACK frame for one packet, one round trip after it left.
        fn ack(&mut self, packet_number: u64, sent_millis: u64) -> Option<RateSample> {
            let ack = self.ack_of(packet_number, sent_millis);
            self.in_flight -= PACKET;
            self.rates.on_ack(&ack);
            self.rates.on_acks_end(ack.now)
        }

        fn ack_of(&self, packet_number: u64, sent_millis: u64) -> Ack {
            let sent = self.at(sent_millis);
            Ack {
                now: sent + RTT,
                sent,
                packet_number,
                bytes: PACKET,
                is_app_limited: false,
                smoothed_rtt: RTT,
                min_rtt: RTT,
            }
        }
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn packets_sent_at_a_rate_are_delivered_at_that_rate() {
        let mut path = Path::new();
        for millis in 0..100 {
            path.send(millis, millis);
        }
        for millis in 0..100 {
            let sample = path.ack(millis, millis).unwrap();
            assert_eq!(sample.rtt, RTT);
            path.send(100 + millis, 100 + millis);
        }
        // 1250 bytes per millisecond; the sample spans what was in flight and the packet itself.
        let sample = path.ack(100, 100).unwrap();
        assert_eq!(sample.prior_delivered, PACKET);
        assert_eq!(sample.delivery_rate, Some(Rate::from_mbps(10)));
        assert!(!sample.is_app_limited);
    }

    #[test]
    fn packets_of_a_sender_that_ran_dry_are_marked_until_its_flight_is_delivered() {
        let mut path = Path::new();
        path.send(0, 0);
        path.send(1, 1);
        path.rates.on_app_limited(path.in_flight);
        path.send(2, 50);
        assert!(!path.ack(0, 0).unwrap().is_app_limited, "left before");
        assert!(!path.ack(1, 1).unwrap().is_app_limited, "left before");
        path.send(3, 120);
        assert!(path.rates.is_app_limited(), "the mark itself is not passed");
        assert!(path.ack(2, 50).unwrap().is_app_limited, "left after");
        assert!(!path.rates.is_app_limited());
        path.send(4, 160);
        assert!(path.ack(3, 120).unwrap().is_app_limited, "left before the mark was passed");
        assert!(!path.ack(4, 160).unwrap().is_app_limited);
    }

    #[test]
    fn idle_time_is_not_slow_delivery() {
        let mut path = Path::new();
        path.send(0, 0);
        path.ack(0, 0).unwrap();
        path.send(1, 60_000);
        let rate = path.ack(1, 60_000).unwrap().delivery_rate;
        assert_eq!(rate, Rate::average(PACKET, RTT));
    }

    #[test]
    fn a_path_that_stood_still_is_as_fast_as_when_it_moves() {
        // A packet each millisecond; nothing arrives from 150 to 2150 ms.
        let sample = |allowed: Option<Duration>| {
            let mut path = Path::new();
            for millis in 0..100 {
                path.send(millis, millis);
            }
            let mut sample = None;
            for number in 0..100 {
                let millis = if number < 50 { 100 + number } else { 2_100 + number };
                let now = path.at(millis);
                if let Some(allowed) = allowed {
                    path.rates.forgive_standstill(now, allowed);
                }
                path.rates.on_ack(&Ack { now, ..path.ack_of(number, number) });
                sample = path.rates.on_acks_end(now);
            }
            sample.unwrap().delivery_rate.unwrap()
        };
        // All 100 were sent before the first was acknowledged, 2199 ms before the last was.
        assert_eq!(sample(None), Rate::average(PACKET.saturating_mul(100), ms(2_199)).unwrap());
        // Of 2001 ms without an acknowledgement all but 100 are no part of it.
        let moving = sample(Some(ms(100)));
        assert_eq!(moving, Rate::average(PACKET.saturating_mul(100), ms(298)).unwrap());
    }

    #[test]
    fn a_pause_of_the_application_is_no_standstill() {
        let mut path = Path::new();
        path.send(0, 0);
        path.ack(0, 0).unwrap();
        path.send(1, 60_000);
        path.rates.forgive_standstill(path.at(60_100), RTT);
        assert_eq!(path.rates.standstill, Duration::ZERO);
    }

    #[test]
    fn the_same_number_in_another_space_is_another_packet() {
        let mut path = Path::new();
        path.send(0, 0);
        path.send(0, 10);
        assert!(path.ack(0, 0).is_none(), "overwritten");
        assert_eq!(path.rates.delivered(), PACKET, "but delivered");
        assert_eq!(path.ack(0, 10).unwrap().rtt, RTT);
    }

    #[test]
    fn packets_without_a_report_are_forgotten() {
        let mut path = Path::new();
        path.send(0, 0);
        path.send(1, 1);
        path.send(2, 90_000);
        path.ack(2, 90_000).unwrap();
        assert!(path.rates.packets.is_empty());
    }
}
