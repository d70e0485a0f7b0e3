//! What acknowledgements mean: RTT, fates, ECN, and losses that were none.

use std::time::Instant;

use tandem_congestion::{Ack, AcksEnd, CongestionEvent, CongestionSignal};
use tandem_units::ByteCount;

use super::Recovery;
use crate::{
    ecn::EcnSignal,
    fates::Fates,
    frame::AckFrame,
    sent::{SentPacket, State},
};

/// What is summed up over an ACK frame.
#[derive(Default)]
struct NewlyAcked {
    /// When the largest acknowledged packet was sent, if it is newly acknowledged and on this path.
    largest_sent: Option<Instant>,
    packets: u64,
    marked: u64,
    /// The largest number in an ACK frame that the peer now has, and one.
    ack_until: u64,
}

impl Recovery {
    /// Takes an ACK frame that acknowledges only what was sent. Returns the largest number in an ACK frame of this end
    /// that the peer has got by it.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        ack: &AckFrame<'_>,
        fates: &mut (impl Fates + ?Sized),
    ) -> Option<u64> {
        let mut newly = NewlyAcked::default();
        for range in ack.ranges() {
            if *range.end() < self.sent.first() {
                break;
            }
            self.on_range(now, *range.start(), *range.end(), ack.largest, &mut newly, fates);
        }
        let raises = self.largest_acked.is_none_or(|largest| largest < ack.largest);
        if raises {
            self.largest_acked = Some(ack.largest);
        }
        if newly.packets > 0 {
            self.controller.on_acks_end(AcksEnd {
                now,
                bytes_in_flight: ByteCount::new(self.bytes_in_flight),
                is_app_limited: self.is_app_limited,
                largest_acked: self.largest_acked,
            });
        }
        if let Some(sent) = newly.largest_sent {
            self.first_sample.get_or_insert(now);
            self.rtt.on_sample(now.saturating_duration_since(sent), ack.delay());
        }
        if raises {
            let signal = self.ecn.on_ack(ack.ecn, newly.marked);
            if signal == EcnSignal::Congestion
                && let Some(sent) = self.sent.get(ack.largest).map(|packet| packet.sent)
            {
                self.on_marks(now, ack.largest, sent);
            }
        }
        if newly.packets > 0 {
            (self.probe_count, self.probes) = (0, 0);
        }
        self.detect_losses(now, fates);
        self.forget(now);
        newly.ack_until.checked_sub(1)
    }

    /// Takes one range of an ACK frame.
    fn on_range(
        &mut self,
        now: Instant,
        first: u64,
        last: u64,
        largest: u64,
        newly: &mut NewlyAcked,
        fates: &mut (impl Fates + ?Sized),
    ) {
        let mut number = first.max(self.sent.first());
        while number <= last {
            let Some(packet) = self.sent.get_mut(number) else { break };
            let run = packet.run;
            // All up to the last one are done with this frame, so that the next frame can skip them.
            packet.run = run.max(u32::try_from(last - number).unwrap_or(u32::MAX));
            let state = packet.state;
            if state != State::Done {
                packet.state = State::Done;
                let packet = *packet;
                newly.ack_until = newly.ack_until.max(packet.ack_until);
                newly.marked += u64::from(packet.is_marked);
                if state == State::InFlight {
                    self.on_packet_acked(now, number, &packet, newly, fates);
                    if number == largest && number >= self.path_start {
                        newly.largest_sent = Some(packet.sent);
                    }
                } else {
                    self.on_packet_late(number, largest, &packet, fates);
                }
            }
            number += 1 + u64::from(run);
        }
    }

    fn on_packet_acked(
        &mut self,
        now: Instant,
        number: u64,
        packet: &SentPacket,
        newly: &mut NewlyAcked,
        fates: &mut (impl Fates + ?Sized),
    ) {
        self.in_flight -= 1;
        newly.packets += 1;
        if number >= self.path_start {
            self.bytes_in_flight -= u64::from(packet.size);
            self.mtu.on_acked(now, number, packet.size, packet.sent);
            self.controller.on_ack(Ack {
                now,
                sent: packet.sent,
                packet_number: number,
                bytes: ByteCount::new(packet.size.into()),
                is_app_limited: self.is_app_limited,
                smoothed_rtt: self.rtt.smoothed,
                min_rtt: self.rtt.min,
            });
        }
        self.sent.tags(packet).for_each(|tag| fates.acked(tag));
    }

    /// A packet that was declared lost is acknowledged.
    fn on_packet_late(
        &mut self,
        number: u64,
        largest: u64,
        packet: &SentPacket,
        fates: &mut (impl Fates + ?Sized),
    ) {
        self.counts.late_packets += 1;
        self.sent.tags(packet).for_each(|tag| fates.late_acked(tag));
        if number < self.path_start {
            return;
        }
        self.reordering.on_spurious_loss(number, largest - number, self.sent.next_number());
        if packet.loss_event == self.event {
            self.event_lost -= 1;
            if self.event_lost == 0 {
                self.counts.spurious_events += 1;
                self.controller.on_spurious_congestion_event();
            }
        }
    }

    fn on_marks(&mut self, now: Instant, packet_number: u64, sent: Instant) {
        if packet_number < self.path_start {
            return;
        }
        self.counts.marked_events += 1;
        (self.event, self.event_lost) = (self.event.wrapping_add(1), 0);
        let signal = CongestionSignal::Ecn;
        let lost = ByteCount::ZERO;
        self.controller.on_congestion_event(CongestionEvent {
            now,
            signal,
            sent,
            packet_number,
            lost,
        });
    }
}
