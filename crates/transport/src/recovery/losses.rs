//! Which packets are lost.

use std::time::Instant;

use tandem_congestion::{CongestionEvent, CongestionSignal, Lost};
use tandem_units::ByteCount;

use super::Recovery;
use crate::{
    fates::Fates,
    sent::{SentPacket, State},
};

/// RFC 9002 §7.6.1: `kPersistentCongestionThreshold`.
const PERSISTENT_CONGESTION_THRESHOLD: u32 = 3;

/// The packets that are declared lost at one moment.
#[derive(Default)]
struct NewlyLost {
    packets: u32,
    bytes: u64,
    newest: Option<(u64, Instant)>,
    is_persistent: bool,
}

impl Recovery {
    /// Declares packets lost (RFC 9002 §6.1).
    pub(crate) fn detect_losses(&mut self, now: Instant, fates: &mut (impl Fates + ?Sized)) {
        self.loss_time = None;
        let Some(largest) = self.largest_acked else { return };
        let delay = self.reordering.loss_delay(&self.rtt);
        let persistent = self.rtt.probe_timeout() * PERSISTENT_CONGESTION_THRESHOLD;
        let next_event = self.event.wrapping_add(1);
        let mut lost = NewlyLost::default();
        // When the first of the packets was sent that were lost one after the other.
        let mut run_start = None;
        self.open_from = self.open_from.max(self.sent.first());
        while self.open_from < largest {
            let number = self.open_from;
            let Some(packet) = self.sent.get_mut(number) else { break };
            if packet.state == State::InFlight {
                if largest - number < self.reordering.packets && packet.sent + delay > now {
                    self.loss_time = Some(packet.sent + delay);
                    break;
                }
                (packet.state, packet.loss_event) = (State::Lost, next_event);
                let packet = *packet;
                self.on_packet_lost(now, number, &packet, &mut lost, fates);
                // §7.6.2: both were sent after the first sample of the RTT.
                if self.first_sample.is_some_and(|first| first < packet.sent) {
                    let start = *run_start.get_or_insert(packet.sent);
                    lost.is_persistent |= packet.sent.saturating_duration_since(start) > persistent;
                }
            } else if packet.state == State::Done && packet.is_ack_eliciting {
                run_start = None;
            }
            self.open_from += 1;
        }
        self.on_losses(now, &lost);
    }

    fn on_packet_lost(
        &mut self,
        now: Instant,
        number: u64,
        packet: &SentPacket,
        lost: &mut NewlyLost,
        fates: &mut (impl Fates + ?Sized),
    ) {
        self.in_flight -= 1;
        self.counts.lost_packets += 1;
        self.sent.tags(packet).for_each(|tag| fates.lost(tag));
        fates.packet_lost(number, packet.size.into());
        if number < self.path_start {
            return;
        }
        self.bytes_in_flight -= u64::from(packet.size);
        let is_probe = self.mtu.is_probe(number);
        self.mtu.on_lost(now, number, packet.size, packet.sent);
        let bytes = ByteCount::new(packet.size.into());
        self.controller.on_packet_lost(Lost { now, packet_number: number, bytes });
        if is_probe {
            // RFC 8899 §3: "Loss of a probe packet SHOULD NOT be treated as an indication of congestion".
            return;
        }
        lost.packets += 1;
        lost.bytes += u64::from(packet.size);
        lost.newest = Some((number, packet.sent));
    }

    fn on_losses(&mut self, now: Instant, lost: &NewlyLost) {
        let Some((packet_number, sent)) = lost.newest else { return };
        self.event = self.event.wrapping_add(1);
        self.event_lost = lost.packets;
        self.counts.congestion_events += 1;
        if packet_number >= self.period_until {
            self.period_until = self.sent.next_number();
            self.reordering.on_congestion_event();
        }
        let signal = if lost.is_persistent {
            self.counts.persistent_events += 1;
            self.rtt.on_persistent_congestion();
            CongestionSignal::PersistentLoss
        } else {
            CongestionSignal::Loss
        };
        let lost = ByteCount::new(lost.bytes);
        self.controller.on_congestion_event(CongestionEvent {
            now,
            signal,
            sent,
            packet_number,
            lost,
        });
    }

    /// Makes room for one packet. The oldest one is lost, if its fate is open, and nothing more is heard of it.
    pub(crate) fn make_room(&mut self, now: Instant, fates: &mut (impl Fates + ?Sized)) {
        if !self.sent.is_full() {
            return;
        }
        let number = self.sent.first();
        if let Some(packet) = self.sent.get(number).copied()
            && packet.state == State::InFlight
        {
            let mut lost = NewlyLost::default();
            self.on_packet_lost(now, number, &packet, &mut lost, fates);
            self.on_losses(now, &lost);
        }
        self.sent.pop();
    }

    /// The transport has ended: what is in flight is lost.
    pub(crate) fn lose_all(&mut self, fates: &mut (impl Fates + ?Sized)) {
        while let Some(packet) = self.sent.get(self.sent.first()).copied() {
            if packet.state == State::InFlight {
                self.sent.tags(&packet).for_each(|tag| fates.lost(tag));
            }
            self.sent.pop();
        }
        (self.in_flight, self.bytes_in_flight, self.loss_time, self.probes) = (0, 0, None, 0);
        self.sent.release();
    }
}
