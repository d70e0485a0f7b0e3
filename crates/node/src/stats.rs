//! Plain counters of a node; `tandem-net` exports them.

use std::time::Duration;

use tandem_units::{ByteCount, Rate};
use tandem_wire::Code;

use crate::{quic::UnusablePackets, resequence::ResequencerStats, tunnel_queue::LateDrops};

/// What a node counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// QUIC connections whose handshake completed.
    pub connections: u64,
    /// QUIC connections that are open now.
    pub connections_open: u64,
    /// Connections ended because the peer broke HTTP/3 or QUIC.
    pub connections_broken: u64,
    /// The same by cause.
    pub broken: Broken,
    /// Received UDP payloads that were for no QUIC connection and got no answer. Of servers.
    pub unusable_packets: UnusablePackets,
    /// Requests, of whatever kind.
    pub requests: u64,
    /// Requests refused or failed.
    pub requests_refused: u64,
    /// Flows opened: CONNECT-UDP requests granted.
    pub flows: u64,
    /// Flows that are open now.
    pub flows_open: u64,
    /// Flows that have ended, by cause.
    pub flows_ended: FlowsEnded,
    /// UDP payloads sent to targets.
    pub to_target_datagrams: u64,
    /// The same in bytes of UDP payload.
    pub to_target_bytes: u64,
    /// UDP payloads from targets put into tunnels.
    pub to_client_datagrams: u64,
    /// The same in bytes of UDP payload.
    pub to_client_bytes: u64,
    /// Dropped datagrams, by cause.
    pub dropped: Dropped,
    /// Datagrams sent again.
    pub repaired: Repaired,
    /// What the exits of tunnels held and released.
    pub resequenced: ResequencerStats,
    /// Fields of our own that were ignored because they are malformed or not allowed.
    pub fields_ignored: u64,
    /// Reports on tunnels.
    pub feedback: FeedbackStats,
    /// QUIC packets sent on all connections, those that have ended included.
    pub sent_packets: u64,
    /// QUIC packets declared lost on all connections, those that have ended included.
    pub lost_packets: u64,
    /// Bytes of files given to clients.
    pub file_bytes: u64,
    /// Bytes of uploads that clients sent.
    pub upload_bytes: u64,
}

impl Stats {
    /// Counts what a tunnel's queue dropped after it had taken it.
    pub(crate) const fn add_late(&mut self, late: &LateDrops) {
        self.dropped.too_large += late.too_large;
        self.dropped.queue_full += late.queue_full;
        self.dropped.deadline += late.deadline;
        self.dropped.standing_queue += late.standing_queue;
    }
}

/// Reports on tunnels, of which a proxy tells clients, and these origins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedbackStats {
    /// Sent: by a proxy to clients, or by a client to an origin.
    pub sent: u64,
    /// Received and followed, or passed on.
    pub used: u64,
    /// Received after a newer one, and ignored.
    pub stale: u64,
    /// Malformed or absurd, and ignored.
    pub malformed: u64,
}

/// Connections whose peer broke the protocol, by the kind of error that ended them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    /// QUIC itself (RFC 9000 §20.1).
    pub quic: u64,
    /// `H3_FRAME_ERROR`, `H3_FRAME_UNEXPECTED`.
    pub frames: u64,
    /// `H3_SETTINGS_ERROR`, `H3_MISSING_SETTINGS`.
    pub settings: u64,
    /// `H3_STREAM_CREATION_ERROR`, `H3_CLOSED_CRITICAL_STREAM`.
    pub streams: u64,
    /// The three of QPACK.
    pub qpack: u64,
    /// `H3_DATAGRAM_ERROR`.
    pub datagrams: u64,
    /// `H3_ID_ERROR`.
    pub ids: u64,
    /// `H3_EXCESSIVE_LOAD`, and any other.
    pub others: u64,
}

impl Broken {
    /// Counts one that was ended with this code.
    pub(crate) const fn count(&mut self, code: Code) {
        let counter = match code {
            Code::H3_FRAME_ERROR | Code::H3_FRAME_UNEXPECTED => &mut self.frames,
            Code::H3_SETTINGS_ERROR | Code::H3_MISSING_SETTINGS => &mut self.settings,
            Code::H3_STREAM_CREATION_ERROR | Code::H3_CLOSED_CRITICAL_STREAM => &mut self.streams,
            Code::QPACK_DECOMPRESSION_FAILED
            | Code::QPACK_ENCODER_STREAM_ERROR
            | Code::QPACK_DECODER_STREAM_ERROR => &mut self.qpack,
            Code::H3_DATAGRAM_ERROR => &mut self.datagrams,
            Code::H3_ID_ERROR => &mut self.ids,
            _ => &mut self.others,
        };
        *counter += 1;
    }

    /// All causes together.
    pub const fn total(&self) -> u64 {
        self.quic
            + self.frames
            + self.settings
            + self.streams
            + self.qpack
            + self.datagrams
            + self.ids
            + self.others
    }
}

/// Flows that have ended, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowsEnded {
    /// The client finished or reset the request.
    pub by_client: u64,
    /// No packet passed for long.
    pub idle: u64,
    /// The operating system said that the target cannot be reached.
    pub unreachable: u64,
    /// A capsule or a payload of the client was malformed.
    pub malformed: u64,
    /// The connection ended, and all its flows with it.
    pub with_connection: u64,
}

/// Datagrams dropped by a node, by cause. Dropping is no error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The tunnel's queue was full.
    pub queue_full: u64,
    /// Does not fit a packet of the tunnel.
    pub too_large: u64,
    /// Context ID that is not known (RFC 9298 §5).
    pub unknown_context: u64,
    /// Flow that is not known, or not yet and its buffer is full.
    pub unknown_flow: u64,
    /// Malformed: no quarter stream ID, no context ID.
    pub malformed: u64,
    /// Older than the other end of the tunnel wants.
    pub deadline: u64,
    /// Dropped to keep the tunnel's queue short.
    pub standing_queue: u64,
    /// No room for one more local peer of a listening socket.
    pub too_many_flows: u64,
}

impl Dropped {
    /// All causes together.
    pub const fn total(&self) -> u64 {
        self.queue_full
            + self.too_large
            + self.unknown_context
            + self.unknown_flow
            + self.malformed
            + self.deadline
            + self.standing_queue
            + self.too_many_flows
    }
}

/// HTTP Datagrams that a node sent again, and those that it did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Sent again, probes included.
    pub sent_again: u64,
    /// Sent again because no acknowledgement came and nothing else was to be sent.
    pub probes: u64,
    /// Lost, and sent again no more.
    pub given_up: GivenUp,
    /// The most bytes that one tunnel kept until they had arrived.
    pub kept_bytes_max: u64,
}

/// Lost datagrams that were sent again no more, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenUp {
    /// It was repaired for long enough.
    pub time: u64,
    /// It was older than the other end wants.
    pub deadline: u64,
    /// It was sent again as often as the other end wants.
    pub limit: u64,
    /// There was no room to keep it.
    pub room: u64,
    /// So much was under way that its fate was not followed.
    pub unknown: u64,
}

impl GivenUp {
    /// All causes together.
    pub const fn total(&self) -> u64 {
        self.time + self.deadline + self.limit + self.room + self.unknown
    }
}

impl Repaired {
    /// Adds what another tunnel counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.sent_again += other.sent_again;
        self.probes += other.probes;
        self.given_up.time += other.given_up.time;
        self.given_up.deadline += other.given_up.deadline;
        self.given_up.limit += other.given_up.limit;
        self.given_up.room += other.given_up.room;
        self.given_up.unknown += other.given_up.unknown;
        self.kept_bytes_max = self.kept_bytes_max.max(other.kept_bytes_max);
    }
}

/// One QUIC connection of a node as it is now. Packets and bytes are QUIC's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStats {
    /// RFC 9002's `smoothed_rtt`.
    pub smoothed_rtt: Duration,
    /// RFC 9002's `congestion_window`.
    pub congestion_window: ByteCount,
    /// The rate at which the controller lets packets leave, if it says one.
    pub pacing_rate: Option<Rate>,
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// UDP payloads received.
    pub received_datagrams: u64,
    /// ACK frames sent.
    pub sent_ack_frames: u64,
}
