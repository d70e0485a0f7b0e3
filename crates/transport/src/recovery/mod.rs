//! Loss detection and congestion control of a sender ([RFC 9002]).
//!
//! [RFC 9002]: https://www.rfc-editor.org/rfc/rfc9002

mod acks;
mod losses;
mod timers;

use std::time::{Duration, Instant};

use tandem_congestion::{Algorithm, Sent as SentEvent};
use tandem_units::ByteCount;

use crate::{
    ecn::EcnValidation,
    mtu::Mtu,
    reordering::Reordering,
    rtt::Rtt,
    sent::{SentPacket, SentPackets},
};

/// A sender on one path.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) sent: SentPackets,
    pub(crate) rtt: Rtt,
    pub(crate) reordering: Reordering,
    pub(crate) ecn: EcnValidation,
    pub(crate) mtu: Mtu,
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

/// The least time after which an idle transport gives memory back.
pub(crate) const IDLE: Duration = Duration::from_secs(1);

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

impl Recovery {
    pub(crate) fn new(
        now: Instant,
        rtt: Rtt,
        mtu: Mtu,
        controller: Box<dyn Algorithm>,
        is_ecn_on: bool,
    ) -> Self {
        Self {
            sent: SentPackets::default(),
            rtt,
            mtu,
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

    /// The path is a new one: nothing is known about it (RFC 9000 §9.4).
    pub(crate) fn on_new_path(
        &mut self,
        initial_rtt: Duration,
        mtu: Mtu,
        controller: Box<dyn Algorithm>,
        is_ecn_on: bool,
    ) {
        (self.rtt, self.mtu) = (Rtt::new(initial_rtt), mtu);
        self.reordering = Reordering::new();
        self.controller = controller;
        self.ecn.on_path_change(is_ecn_on);
        self.path_start = self.sent.next_number();
        (self.bytes_in_flight, self.event_lost, self.first_sample) = (0, 0, None);
        self.event = self.event.wrapping_add(1);
        (self.probe_count, self.probes, self.period_until) = (0, 0, self.path_start);
    }
}
