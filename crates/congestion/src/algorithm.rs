use std::fmt::Debug;
use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate};

/// A congestion controller as its paper has it: events in, a window and a rate out.
///
/// It reads no clock, draws no randomness but from a seed, and knows no QUIC library. Events of one
/// moment arrive in this order: each newly acknowledged packet ([`on_ack`](Self::on_ack)), the end
/// of that batch ([`on_acks_end`](Self::on_acks_end)), each packet found lost because of it
/// ([`on_packet_lost`](Self::on_packet_lost)), and one
/// [`on_congestion_event`](Self::on_congestion_event) for all of those.
///
/// Only ack-eliciting packets are reported. A packet may vanish without an acknowledgement or a
/// loss, when its keys are discarded or the path changes; [`AcksEnd::bytes_in_flight`] is then the
/// truth.
pub trait Algorithm: Debug + Send + Sync + 'static {
    /// A packet leaves.
    fn on_packet_sent(&mut self, _sent: Sent) {}

    /// A packet is acknowledged for the first time.
    fn on_ack(&mut self, _ack: Ack) {}

    /// Every packet that one ACK frame newly acknowledges was reported.
    fn on_acks_end(&mut self, _end: AcksEnd) {}

    /// A packet is declared lost.
    fn on_packet_lost(&mut self, _lost: Lost) {}

    /// Packets were lost or marked; called once for all that were found at the same moment.
    fn on_congestion_event(&mut self, event: CongestionEvent);

    /// Every packet of the last congestion event arrived after all.
    fn on_spurious_congestion_event(&mut self) {}

    /// The size of a full datagram changed.
    fn on_mtu_update(&mut self, max_datagram_size: ByteCount);

    /// Bytes that may be in flight; at least two datagrams.
    fn congestion_window(&self) -> ByteCount;

    /// The window that a connection starts with.
    fn initial_window(&self) -> ByteCount;

    /// The window below which slow start goes on, for controllers that have one.
    fn ssthresh(&self) -> Option<ByteCount> {
        None
    }

    /// The rate at which packets leave; `None` leaves pacing to the sender, which spreads a window
    /// over a round trip.
    fn pacing_rate(&self) -> Option<Rate> {
        None
    }

    /// Bytes that may leave back to back; `None` for no limit but the sender's own.
    fn send_quantum(&self) -> Option<ByteCount> {
        None
    }

    /// What the path carries, for controllers that estimate it.
    fn bandwidth_estimate(&self) -> Option<Rate> {
        None
    }
}

/// An ack-eliciting packet that leaves.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The time.
    pub now: Instant,
    /// The number of the packet, unique only together with the time: Initial, Handshake and
    /// application data packets are numbered apart.
    pub packet_number: u64,
    /// The size of the packet.
    pub bytes: ByteCount,
}

/// A packet that is acknowledged for the first time.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// The time at which the ACK frame came.
    pub now: Instant,
    /// The time at which the packet left.
    pub sent: Instant,
    /// The number of the packet; see [`Sent::packet_number`].
    pub packet_number: u64,
    /// The size of the packet.
    pub bytes: ByteCount,
    /// The sender could have sent more before this ACK, but had nothing to send.
    pub is_app_limited: bool,
    /// RFC 9002's `smoothed_rtt`, without this acknowledgement's sample.
    pub smoothed_rtt: Duration,
    /// RFC 9002's `min_rtt`, without this acknowledgement's sample.
    pub min_rtt: Duration,
}

impl Ack {
    /// The time from this packet to its acknowledgement, the peer's delay included.
    pub fn latest_rtt(&self) -> Duration {
        self.now.saturating_duration_since(self.sent)
    }
}

/// The end of the packets that one ACK frame newly acknowledges.
#[derive(Clone, Copy, Debug)]
pub struct AcksEnd {
    /// The time at which the ACK frame came.
    pub now: Instant,
    /// What is in flight without the acknowledged packets. Packets that this ACK will let the
    /// sender declare lost still count.
    pub bytes_in_flight: ByteCount,
    /// The sender could have sent more before this ACK, but had nothing to send.
    pub is_app_limited: bool,
    /// The largest packet number acknowledged so far in this packet number space.
    pub largest_acked: Option<u64>,
}

/// A packet that is declared lost.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// The time.
    pub now: Instant,
    /// The number of the packet; see [`Sent::packet_number`].
    pub packet_number: u64,
    /// The size of the packet.
    pub bytes: ByteCount,
}

/// A sign of congestion.
#[derive(Clone, Copy, Debug)]
pub struct CongestionEvent {
    /// The time.
    pub now: Instant,
    /// What the sign was.
    pub signal: CongestionSignal,
    /// When the newest packet that was lost or marked had left.
    pub sent: Instant,
    /// The number of that packet; see [`Sent::packet_number`].
    pub packet_number: u64,
    /// What was lost; nothing for marks.
    pub lost: ByteCount,
}

/// The kind of a [`CongestionEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionSignal {
    /// Packets were lost.
    Loss,
    /// Every packet of a long time was lost: persistent congestion, RFC 9002 §7.6.
    PersistentLoss,
    /// The peer reported more packets marked *congestion experienced*.
    Ecn,
}
