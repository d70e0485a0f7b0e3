use std::fmt::Debug;
use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate};

/// A congestion controller as a pure state machine: it takes events and provides a congestion
/// window and a pacing rate.
///
/// It reads no clock, takes its randomness only from a seed, and does not depend on a QUIC library.
/// Events of one moment arrive in this order: each newly acknowledged packet
/// ([`on_ack`](Self::on_ack)), the end of that batch ([`on_acks_end`](Self::on_acks_end)), each
/// packet that is declared lost because of it ([`on_packet_lost`](Self::on_packet_lost)), and one
/// [`on_congestion_event`](Self::on_congestion_event) for all lost packets.
///
/// Only ack-eliciting packets are reported. A packet may leave the flight without an
/// acknowledgement or a loss, when its keys are discarded or the path changes.
/// [`AcksEnd::bytes_in_flight`] is therefore authoritative.
pub trait Algorithm: Debug + Send + Sync + 'static {
    /// A packet is sent.
    fn on_packet_sent(&mut self, _sent: Sent) {}

    /// A packet is acknowledged for the first time.
    fn on_ack(&mut self, _ack: Ack) {}

    /// Every packet that one ACK frame newly acknowledges has been reported with
    /// [`on_ack`](Self::on_ack).
    fn on_acks_end(&mut self, _end: AcksEnd) {}

    /// A packet is declared lost.
    fn on_packet_lost(&mut self, _lost: Lost) {}

    /// Packets were lost or ECN-marked; this is called once for all that were detected at the same
    /// moment.
    fn on_congestion_event(&mut self, event: CongestionEvent);

    /// Every packet of the last congestion event has been acknowledged late: the event was
    /// spurious.
    fn on_spurious_congestion_event(&mut self) {}

    /// The size of a full datagram, in bytes of UDP payload, has changed.
    fn on_mtu_update(&mut self, max_datagram_size: ByteCount);

    /// Returns the number of bytes that may be in flight; at least two full datagrams.
    fn congestion_window(&self) -> ByteCount;

    /// Returns the congestion window, in bytes, with which a connection starts.
    fn initial_window(&self) -> ByteCount;

    /// Returns the slow-start threshold in bytes, or `None` for a controller that has none.
    fn ssthresh(&self) -> Option<ByteCount> {
        None
    }

    /// Returns the pacing rate. `None` leaves pacing to the sender, which spreads a congestion
    /// window over one round trip.
    fn pacing_rate(&self) -> Option<Rate> {
        None
    }

    /// Returns the number of bytes that may be sent back to back, or `None` if only the sender's
    /// own limit applies.
    fn send_quantum(&self) -> Option<ByteCount> {
        None
    }

    /// Returns the estimated bottleneck bandwidth, or `None` if the controller has no estimate.
    fn bandwidth_estimate(&self) -> Option<Rate> {
        None
    }
}

/// An ack-eliciting packet that is sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The time at which the packet is sent.
    pub now: Instant,
    /// The packet number. It is unique only together with the time, because Initial, Handshake and
    /// application data packets have separate packet number spaces.
    pub packet_number: u64,
    /// The size of the packet in bytes.
    pub bytes: ByteCount,
}

/// A packet that is acknowledged for the first time.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// The time at which the ACK frame arrived.
    pub now: Instant,
    /// The time at which the packet was sent.
    pub sent: Instant,
    /// The packet number; see [`Sent::packet_number`].
    pub packet_number: u64,
    /// The size of the packet in bytes.
    pub bytes: ByteCount,
    /// Whether the sender was application-limited: it could have sent more before this
    /// acknowledgement, but had nothing to send.
    pub is_app_limited: bool,
    /// RFC 9002's `smoothed_rtt`, without this acknowledgement's sample.
    pub smoothed_rtt: Duration,
    /// RFC 9002's `min_rtt`, without this acknowledgement's sample.
    pub min_rtt: Duration,
}

impl Ack {
    /// Returns the time from sending this packet to its acknowledgement: an RTT sample that
    /// includes the peer's acknowledgement delay.
    pub fn latest_rtt(&self) -> Duration {
        self.now.saturating_duration_since(self.sent)
    }
}

/// The end of the packets that one ACK frame newly acknowledges.
#[derive(Clone, Copy, Debug)]
pub struct AcksEnd {
    /// The time at which the ACK frame arrived.
    pub now: Instant,
    /// The bytes in flight without the acknowledged packets. Packets that the sender will declare
    /// lost because of this ACK frame still count.
    pub bytes_in_flight: ByteCount,
    /// Whether the sender was application-limited: it could have sent more before this
    /// acknowledgement, but had nothing to send.
    pub is_app_limited: bool,
    /// The largest packet number acknowledged so far in this packet number space.
    pub largest_acked: Option<u64>,
}

/// A packet that is declared lost.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// The time at which the packet was declared lost.
    pub now: Instant,
    /// The packet number; see [`Sent::packet_number`].
    pub packet_number: u64,
    /// The size of the packet in bytes.
    pub bytes: ByteCount,
}

/// A congestion event (RFC 9002 §7).
#[derive(Clone, Copy, Debug)]
pub struct CongestionEvent {
    /// The time at which the event was detected.
    pub now: Instant,
    /// The kind of the event.
    pub signal: CongestionSignal,
    /// The time at which the newest packet that was lost or marked had been sent.
    pub sent: Instant,
    /// The number of that packet; see [`Sent::packet_number`].
    pub packet_number: u64,
    /// The number of lost bytes; zero for [`CongestionSignal::Ecn`].
    pub lost: ByteCount,
}

/// The kind of a [`CongestionEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionSignal {
    /// Packets were lost.
    Loss,
    /// Every packet over a long period was lost: persistent congestion, RFC 9002 §7.6.
    PersistentLoss,
    /// The peer reported more packets with the mark ECN-CE (congestion experienced).
    Ecn,
}
