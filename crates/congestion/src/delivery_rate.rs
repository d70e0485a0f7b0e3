//! Delivery-rate estimation, [draft-cheng-iccrg-delivery-rate-estimation-00].
//!
//! For every packet the sender remembers the number of bytes that had been delivered when the
//! packet was sent. An acknowledgement of the packet gives one sample of the delivery rate: the
//! bytes delivered since then, divided by the longer of the send interval and the acknowledgement
//! interval.
//!
//! | draft | here |
//! | --- | --- |
//! | `C.delivered` | [`DeliveryRate::delivered`] |
//! | `C.delivered_time` | `DeliveryRate::delivered_time` |
//! | `C.first_sent_time` | `DeliveryRate::first_sent_time` |
//! | `C.app_limited` | `DeliveryRate::app_limited_until`, `None` for 0 |
//! | `P.*` | `SentPacket` |
//! | `rs.*` | [`RateSample`] |
//!
//! One step of the draft is left out: it drops samples over intervals shorter than `MinRTT`. QUIC
//! never confuses a packet with its retransmission, so a sample's interval is never shorter than
//! the packet's own RTT.
//!
//! [draft-cheng-iccrg-delivery-rate-estimation-00]:
//! https://datatracker.ietf.org/doc/html/draft-cheng-iccrg-delivery-rate-estimation-00

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate};

use crate::{Ack, Lost, Sent};

/// The delivery-rate estimator of one connection.
#[derive(Clone, Debug)]
pub struct DeliveryRate {
    delivered: ByteCount,
    delivered_time: Instant,
    first_sent_time: Instant,
    /// The application-limited period ends when more than this number of bytes has been delivered:
    /// everything that was in flight when the application had no more data to send. `None` outside
    /// such a period.
    app_limited_until: Option<ByteCount>,
    packets: InFlight,
    /// The newest packet that the current ACK frame acknowledged.
    newest_acked: Option<SentPacket>,
    /// The time of the last acknowledgement, or of the first packet after an idle period.
    last_progress: Instant,
    /// The total time for which the path has stalled.
    standstill: Duration,
    /// The value of `standstill` at `first_sent_time`.
    first_sent_standstill: Duration,
}

/// The state of the connection at the time at which a packet in flight was sent.
#[derive(Clone, Copy, Debug)]
struct SentPacket {
    sent: Instant,
    delivered: ByteCount,
    delivered_time: Instant,
    first_sent_time: Instant,
    is_app_limited: bool,
    standstill: Duration,
    first_sent_standstill: Duration,
}

/// The delivery-rate sample of one ACK frame.
#[derive(Clone, Copy, Debug)]
pub struct RateSample {
    /// The delivery rate, or `None` if no time passed.
    pub delivery_rate: Option<Rate>,
    /// The number of bytes that had been delivered when the newest acknowledged packet was sent.
    pub prior_delivered: ByteCount,
    /// Whether the packet was sent in an application-limited period. The sample may then be below
    /// the path's bandwidth.
    pub is_app_limited: bool,
    /// The RTT of the newest acknowledged packet, with the peer's acknowledgement delay.
    pub rtt: Duration,
}

/// The estimator forgets a packet if neither its acknowledgement nor its loss is reported for this
/// time. QUIC drops some packets without a report, when it discards keys or changes the path.
const FORGET_AFTER: Duration = Duration::from_secs(60);

impl DeliveryRate {
    /// Creates the estimator of a connection that begins at `now`.
    pub const fn new(now: Instant) -> Self {
        Self {
            delivered: ByteCount::ZERO,
            delivered_time: now,
            first_sent_time: now,
            app_limited_until: None,
            packets: InFlight { packets: VecDeque::new(), reported: 0 },
            newest_acked: None,
            last_progress: now,
            standstill: Duration::ZERO,
            first_sent_standstill: Duration::ZERO,
        }
    }

    /// Returns the number of bytes delivered so far.
    pub const fn delivered(&self) -> ByteCount {
        self.delivered
    }

    /// Returns whether the sender is application-limited.
    pub const fn is_app_limited(&self) -> bool {
        self.app_limited_until.is_some()
    }

    /// Notes a packet that is sent. `bytes_in_flight` is the number of bytes in flight before it.
    /// If it is zero, the intervals restart, so that idle time does not count as slow delivery.
    pub fn on_packet_sent(&mut self, sent: Sent, bytes_in_flight: ByteCount) {
        if bytes_in_flight.is_zero() {
            self.first_sent_time = sent.now;
            self.delivered_time = sent.now;
            self.last_progress = sent.now;
            self.first_sent_standstill = self.standstill;
        }
        let packet = SentPacket {
            sent: sent.now,
            delivered: self.delivered,
            delivered_time: self.delivered_time,
            first_sent_time: self.first_sent_time,
            is_app_limited: self.is_app_limited(),
            standstill: self.standstill,
            first_sent_standstill: self.first_sent_standstill,
        };
        // This overwrites a packet with the same number from another packet number space. That
        // packet was part of the handshake, and its sample is of no importance.
        self.packets.insert(sent.packet_number, packet);
    }

    /// Notes a packet that is acknowledged.
    pub fn on_ack(&mut self, ack: &Ack) {
        self.delivered += ack.bytes;
        self.delivered_time = ack.now;
        let Some(packet) = self.packets.get(ack.packet_number) else { return };
        if packet.sent != ack.sent {
            return; // a packet of another packet number space with the same number
        }
        self.packets.remove(ack.packet_number);
        if self.newest_acked.is_none_or(|newest| newest.sent <= packet.sent) {
            self.newest_acked = Some(packet);
        }
    }

    /// Excludes the time for which the path has stalled from the intervals of samples, so that
    /// samples give the rate at which the path delivers while it is not stalled.
    ///
    /// The stall is the time since the last acknowledgement, or since the first packet after an
    /// idle period, beyond `allowed`. This must be called before [`Self::on_acks_end`].
    pub fn forgive_standstill(&mut self, now: Instant, allowed: Duration) {
        self.standstill +=
            now.saturating_duration_since(self.last_progress).saturating_sub(allowed);
    }

    /// Ends an ACK frame and returns its sample, or `None` if the frame acknowledged no known
    /// packet.
    pub fn on_acks_end(&mut self, now: Instant) -> Option<RateSample> {
        self.last_progress = now;
        // Everything is delivered that was in flight when the application had no more data to send.
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

    /// Notes a packet that is declared lost. It gives no sample.
    pub fn on_packet_lost(&mut self, lost: &Lost) {
        self.packets.remove(lost.packet_number);
    }

    /// Begins an application-limited period: the application has no more data to send while
    /// `bytes_in_flight` bytes are in flight. The samples of packets that are sent before all of
    /// them are delivered may be below the path's bandwidth.
    pub fn on_app_limited(&mut self, bytes_in_flight: ByteCount) {
        self.app_limited_until = Some(self.delivered + bytes_in_flight);
    }

    fn forget_unreported(&mut self, now: Instant) {
        while let Some((number, oldest)) = self.packets.first()
            && now.saturating_duration_since(oldest.sent) > FORGET_AFTER
        {
            self.packets.remove(number);
        }
    }
}

/// The packets in flight, in the order of their numbers. Packets are sent in this order and mostly reported in it, so
/// that a queue is faster than a map.
#[derive(Clone, Debug)]
struct InFlight {
    /// `None`: a packet that was reported before an older one.
    packets: VecDeque<(u64, Option<SentPacket>)>,
    /// How many packets are `None`.
    reported: usize,
}

impl InFlight {
    /// An empty queue keeps its memory if it is not for more packets than this. In a longer one, at most half of the
    /// packets are such as have been reported.
    const SPARE_MAX: usize = 16;

    fn insert(&mut self, number: u64, packet: SentPacket) {
        let packet = (number, Some(packet));
        if self.packets.back().is_none_or(|(newest, _)| *newest < number) {
            return self.packets.push_back(packet);
        }
        match self.place(number) {
            Ok(place) => {
                if let Some(old) = self.packets.get_mut(place) {
                    self.reported -= usize::from(old.1.is_none());
                    *old = packet;
                }
            }
            Err(place) => self.packets.insert(place, packet),
        }
    }

    /// The place of a packet, or that which it would have.
    fn place(&self, number: u64) -> Result<usize, usize> {
        match self.packets.front() {
            Some((oldest, _)) if *oldest == number => Ok(0),
            _ => self.packets.binary_search_by_key(&number, |(number, _)| *number),
        }
    }

    fn get(&self, number: u64) -> Option<SentPacket> {
        self.packets.get(self.place(number).ok()?)?.1
    }

    fn first(&self) -> Option<(u64, SentPacket)> {
        let (number, packet) = self.packets.front()?;
        Some((*number, (*packet)?))
    }

    fn remove(&mut self, number: u64) {
        let place = self.place(number).ok();
        if let Some((_, packet)) = place.and_then(|place| self.packets.get_mut(place)) {
            self.reported += usize::from(packet.take().is_some());
        }
        while let Some((_, None)) = self.packets.front() {
            self.packets.pop_front();
            self.reported -= 1;
        }
        if self.packets.len() > Self::SPARE_MAX && self.reported > self.packets.len() / 2 {
            // A packet whose report may never come is the first one.
            self.packets.retain(|(_, packet)| packet.is_some());
            self.reported = 0;
        }
        if self.packets.is_empty() && self.packets.capacity() > Self::SPARE_MAX {
            self.packets = VecDeque::new();
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

        /// Acknowledges one packet, one round trip after it was sent.
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
        // The rate is 1250 bytes per millisecond. The sample spans the flight and the packet
        // itself.
        let sample = path.ack(100, 100).unwrap();
        assert_eq!(sample.prior_delivered, PACKET);
        assert_eq!(sample.delivery_rate, Some(Rate::from_mbps(10)));
        assert!(!sample.is_app_limited);
    }

    #[test]
    fn samples_are_application_limited_until_the_flight_is_delivered() {
        let mut path = Path::new();
        path.send(0, 0);
        path.send(1, 1);
        path.rates.on_app_limited(path.in_flight);
        path.send(2, 50);
        assert!(!path.ack(0, 0).unwrap().is_app_limited, "sent before");
        assert!(!path.ack(1, 1).unwrap().is_app_limited, "sent before");
        path.send(3, 120);
        assert!(path.rates.is_app_limited(), "the mark itself is not passed");
        assert!(path.ack(2, 50).unwrap().is_app_limited, "sent after");
        assert!(!path.rates.is_app_limited());
        path.send(4, 160);
        assert!(path.ack(3, 120).unwrap().is_app_limited, "sent before the mark was passed");
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
    fn a_stall_does_not_lower_the_delivery_rate() {
        // One packet is sent per millisecond. No ACK frame arrives from 150 to 2150 ms.
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
        // All 100 packets were sent before the first acknowledgement. The last one arrived 2199 ms
        // after the first packet was sent.
        assert_eq!(sample(None), Rate::average(PACKET.saturating_mul(100), ms(2_199)).unwrap());
        // There was no acknowledgement for 2001 ms; all but 100 ms of this time are excluded.
        let moving = sample(Some(ms(100)));
        assert_eq!(moving, Rate::average(PACKET.saturating_mul(100), ms(298)).unwrap());
    }

    #[test]
    fn an_idle_period_of_the_application_is_not_a_stall() {
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
    fn packets_are_found_in_whatever_order_they_are_sent_and_reported() {
        // After the handshake, packet numbers start again at 0. So a number can follow a larger one, or come twice.
        for (sent, reported) in [
            ([5, 6, 7, 8], [8, 6, 5, 7]),
            ([0, 2, 4, 1], [1, 4, 2, 0]),
            ([3, 4, 5, 3], [4, 3, 3, 5]),
        ] {
            let mut path = Path::new();
            for (millis, number) in (0..).zip(sent) {
                path.send(number, millis);
            }
            for number in reported {
                let last = (0..).zip(sent).filter(|(_, it)| *it == number).last().unwrap().0;
                let was_reported = path.rates.packets.get(number).is_none();
                path.in_flight += PACKET; // it never falls to zero
                assert_eq!(path.ack(number, last).is_none(), was_reported, "{number} of {sent:?}");
            }
            assert!(path.rates.packets.packets.is_empty(), "{sent:?}");
        }
    }

    #[test]
    fn a_packet_without_a_report_does_not_keep_those_after_it_in_memory() {
        let mut path = Path::new();
        path.send(0, 0);
        for number in 1..=10_000 {
            path.send(number, number);
            path.ack(number, number);
        }
        assert!(path.rates.packets.get(0).is_some(), "its report may still come");
        let kept = path.rates.packets.packets.len();
        assert!(kept <= 2 * InFlight::SPARE_MAX, "{kept} places for one packet");
    }

    #[test]
    fn packets_without_a_report_are_forgotten() {
        let mut path = Path::new();
        path.send(0, 0);
        path.send(1, 1);
        path.send(2, 90_000);
        path.ack(2, 90_000).unwrap();
        assert!(path.rates.packets.packets.is_empty());
    }
}
