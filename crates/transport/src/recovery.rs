//! Loss detection and congestion control of a sender ([RFC 9002]).
//!
//! [RFC 9002]: https://www.rfc-editor.org/rfc/rfc9002

use std::time::{Duration, Instant};

use tandem_congestion::{
    Ack, AcksEnd, Algorithm, CongestionEvent, CongestionSignal, Lost, Sent as SentEvent,
};
use tandem_units::ByteCount;

use crate::{
    ecn::{EcnSignal, EcnValidation},
    fates::Fates,
    frame::AckFrame,
    reordering::Reordering,
    rtt::Rtt,
    sent::{SentPacket, SentPackets, State},
};

/// The longest time between two probes, unless the RTT asks for more. A path that comes back is noticed within it.
const PROBE_TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// Doublings of the probe timeout.
const BACK_OFF_MAX: u32 = 16;

/// RFC 9002 §7.6.1: `kPersistentCongestionThreshold`.
const PERSISTENT_CONGESTION_THRESHOLD: u32 = 3;

/// For how many probe timeouts a late acknowledgement of a lost packet is waited for.
const LATE_PROBE_TIMEOUTS: u32 = 3;

/// The least time after which an idle transport gives memory back.
const IDLE: Duration = Duration::from_secs(1);

/// A sender on one path.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) sent: SentPackets,
    pub(crate) rtt: Rtt,
    pub(crate) reordering: Reordering,
    pub(crate) ecn: EcnValidation,
    pub(crate) controller: Box<dyn Algorithm>,
    /// The bytes of packets in flight on this path.
    pub(crate) bytes_in_flight: u64,
    /// The packets in flight, also those that left on the path before.
    pub(crate) in_flight: usize,
    /// The first packet on this path. Lower ones tell nothing about it (RFC 9000 §9.4).
    pub(crate) path_start: u64,
    /// Whether the sender could have sent more, but the source had nothing.
    pub(crate) is_app_limited: bool,
    /// How many packets may be sent as probes.
    pub(crate) probes: u8,
    largest_acked: Option<u64>,
    /// The lowest packet that may be in flight.
    open_from: u64,
    /// When the next packet is lost.
    loss_time: Option<Instant>,
    /// The time from which the probe timeout counts.
    probe_base: Instant,
    probe_count: u32,
    /// When the RTT had its first sample on this path.
    first_sample: Option<Instant>,
    /// The last congestion event, and how many of its packets have not been acknowledged late.
    event: u32,
    event_lost: u32,
    /// Packets from this number on begin a new recovery period when they are lost.
    period_until: u64,
    pub(crate) counts: RecoveryCounts,
}

/// What a sender has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryCounts {
    /// Packets that were declared lost.
    pub lost_packets: u64,
    /// Lost packets that were acknowledged late.
    pub late_packets: u64,
    /// Congestion events because of loss.
    pub congestion_events: u64,
    /// Congestion events because of marks.
    pub marked_events: u64,
    /// Times at which the controller was told that a congestion event was spurious.
    pub spurious_events: u64,
    /// Periods of persistent congestion.
    pub persistent_events: u64,
    /// Probe timeouts.
    pub probe_timeouts: u64,
}

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

/// The packets that are declared lost at one moment.
#[derive(Default)]
struct NewlyLost {
    packets: u32,
    bytes: u64,
    newest: Option<(u64, Instant)>,
    is_persistent: bool,
}

impl Recovery {
    pub(crate) fn new(
        now: Instant,
        initial_rtt: Duration,
        controller: Box<dyn Algorithm>,
        is_ecn_on: bool,
    ) -> Self {
        Self {
            sent: SentPackets::default(),
            rtt: Rtt::new(initial_rtt),
            reordering: Reordering::new(),
            ecn: EcnValidation::new(is_ecn_on),
            controller,
            bytes_in_flight: 0,
            in_flight: 0,
            path_start: 0,
            is_app_limited: true,
            probes: 0,
            largest_acked: None,
            open_from: 0,
            loss_time: None,
            probe_base: now,
            probe_count: 0,
            first_sample: None,
            event: 0,
            event_lost: 0,
            period_until: 0,
            counts: RecoveryCounts::default(),
        }
    }

    /// Notes the packet with the next number. Its tags have been pushed.
    pub(crate) fn on_sent(&mut self, now: Instant, packet: SentPacket) {
        if packet.is_ack_eliciting {
            let bytes = ByteCount::new(packet.size.into());
            let packet_number = self.sent.next_number();
            self.bytes_in_flight += u64::from(packet.size);
            self.in_flight += 1;
            self.probe_base = now;
            self.controller.on_packet_sent(SentEvent { now, packet_number, bytes });
        }
        if packet.is_marked {
            self.ecn.on_marked();
        }
        self.sent.push(packet);
    }

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
        if number < self.path_start {
            return;
        }
        self.bytes_in_flight -= u64::from(packet.size);
        lost.packets += 1;
        lost.bytes += u64::from(packet.size);
        lost.newest = Some((number, packet.sent));
        let bytes = ByteCount::new(packet.size.into());
        self.controller.on_packet_lost(Lost { now, packet_number: number, bytes });
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

    /// The path is a new one: nothing is known about it (RFC 9000 §9.4).
    pub(crate) fn on_new_path(
        &mut self,
        initial_rtt: Duration,
        controller: Box<dyn Algorithm>,
        is_ecn_on: bool,
    ) {
        self.rtt = Rtt::new(initial_rtt);
        self.reordering = Reordering::new();
        self.controller = controller;
        self.ecn.on_path_change(is_ecn_on);
        self.path_start = self.sent.next_number();
        (self.bytes_in_flight, self.event_lost, self.first_sample) = (0, 0, None);
        self.event = self.event.wrapping_add(1);
        (self.probe_count, self.probes, self.period_until) = (0, 0, self.path_start);
    }

    /// When something is to be done about what was sent. `may_probe`: whether packets may leave.
    pub(crate) fn next_timeout(&self, may_probe: bool) -> Option<Instant> {
        if self.loss_time.is_some() {
            return self.loss_time;
        }
        if self.in_flight > 0 { may_probe.then(|| self.probe_time()) } else { self.idle_time() }
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        may_probe: bool,
        fates: &mut (impl Fates + ?Sized),
    ) {
        if self.loss_time.is_some_and(|time| time <= now) {
            self.detect_losses(now, fates);
            self.forget(now);
        } else if self.loss_time.is_none()
            && may_probe
            && self.in_flight > 0
            && self.probe_time() <= now
        {
            // RFC 9002 §6.2.4: one or two packets; the first time may be an accident.
            self.probes = if self.probe_count == 0 { 1 } else { 2 };
            self.probe_count = (self.probe_count + 1).min(BACK_OFF_MAX);
            self.probe_base = now;
            self.counts.probe_timeouts += 1;
            self.ecn.on_probe_timeout();
        } else if self.idle_time().is_some_and(|time| time <= now) {
            self.sent.forget(Some(now));
            self.sent.release();
        }
    }

    fn probe_time(&self) -> Instant {
        let timeout = self.rtt.probe_timeout();
        let backed_off = timeout.saturating_mul(1 << self.probe_count);
        self.probe_base + backed_off.min(PROBE_TIMEOUT_MAX.max(timeout))
    }

    /// When an idle sender gives memory back.
    fn idle_time(&self) -> Option<Instant> {
        let holds = !self.sent.is_empty() || self.sent.has_spare();
        (holds && self.in_flight == 0)
            .then(|| self.probe_base + (self.rtt.probe_timeout() * LATE_PROBE_TIMEOUTS).max(IDLE))
    }

    fn forget(&mut self, now: Instant) {
        let late = self.rtt.probe_timeout() * LATE_PROBE_TIMEOUTS;
        self.sent.forget(now.checked_sub(late));
    }
}
