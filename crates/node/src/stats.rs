//! The counters of a node.

use std::time::Duration;

use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::{Code, Order};

use tandem_congestion::DomainStats;

use crate::{
    proxy::Transfers,
    quic::{DatagramTransport, PepAckStats, UnusablePackets},
    tunnel::resequence::ResequencerStats,
};

/// The counters of a node. All are totals since its start, unless their description says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// QUIC connections whose handshake completed.
    pub connections: u64,
    /// Connections whose datagrams travel in the sealed transport, because both ends agreed on it. Of proxies.
    pub sealed_transports: u64,
    /// QUIC connections that are open at present.
    pub connections_open: u64,
    /// Connections that were closed because the peer violated HTTP/3 or QUIC.
    pub connections_broken: u64,
    /// The same connections by cause.
    pub broken: Broken,
    /// What became of the connections that peers wanted to open. Of servers.
    pub accepting: Accepting,
    /// Received UDP payloads that were for no QUIC connection and got no answer. Of servers.
    pub unusable_packets: UnusablePackets,
    /// What PEPs have said. Of origins.
    pub pep_acks: PepAckStats,
    /// What a proxy has told as a PEP.
    pub pep: tandem_pep::Stats,
    /// Requests of all kinds.
    pub requests: u64,
    /// Requests that were refused or failed.
    pub requests_refused: u64,
    /// Requests that showed no right to use the proxy, by cause. They are among the refused ones.
    pub denied: Denied,
    /// Flows that were opened, which are granted CONNECT-UDP requests.
    pub flows: u64,
    /// Flows that are open at present.
    pub flows_open: u64,
    /// Flows that have ended, by cause.
    pub flows_ended: FlowsEnded,
    /// UDP payloads sent to targets.
    pub to_target_datagrams: u64,
    /// Bytes of UDP payload sent to targets.
    pub to_target_bytes: u64,
    /// UDP payloads from targets that were queued for clients.
    pub to_client_datagrams: u64,
    /// Bytes of UDP payload from targets that were queued for clients.
    pub to_client_bytes: u64,
    /// TCP connections.
    pub tcp: TcpStats,
    /// Dropped datagrams, by cause.
    pub dropped: Dropped,
    /// How users share a busy thread. Of proxies.
    pub shares: ShareStats,
    /// UDP payloads that went in capsules, because they did not fit a datagram of the tunnel at that
    /// time.
    pub in_capsules: u64,
    /// Packets beside the tunnels' connections: forwarded and sealed ones.
    pub beside: BesideStats,
    /// Retransmissions of datagrams.
    pub repaired: Repaired,
    /// The orders of payloads that the clients of repaired flows chose.
    pub orders: Orders,
    /// The counters of the resequencers at the egress of tunnels.
    pub resequenced: ResequencerStats,
    /// The times of transfers in an A/B test of modes. Of proxies.
    pub transfers: Transfers,
    /// Header fields of Tandem's own extensions that were ignored because they were malformed or
    /// not allowed.
    pub fields_ignored: u64,
    /// Reports on tunnels.
    pub feedback: FeedbackStats,
    /// Lines about flows and connections that were left out of the log, because there were too many of them.
    pub unlogged_lines: u64,
    /// QUIC packets sent on all connections, including those that have ended.
    pub sent_packets: u64,
    /// QUIC packets declared lost on all connections, including those that have ended.
    pub lost_packets: u64,
    /// Bytes of files that were passed to QUIC for clients.
    pub file_bytes: u64,
    /// Bytes of uploads received from clients.
    pub upload_bytes: u64,
    /// How often something happened that cannot happen, unless this program has an error. The nodes of a process share
    /// such counts, and each is in the counters of one of them.
    pub internal_errors: u64,
}

impl Stats {
    /// Counts a payload towards a target, unless it was dropped.
    pub(crate) fn count_to_target(&mut self, is_queued: bool, len: usize) {
        if is_queued {
            self.to_target_datagrams += 1;
            self.to_target_bytes += len as u64;
        }
    }

    /// Counts a payload towards a client.
    pub(crate) const fn count_to_client(&mut self, len: usize) {
        self.to_client_datagrams += 1;
        self.to_client_bytes += len as u64;
    }

    /// Adds what tunnels counted.
    pub(crate) fn add_tunnels(&mut self, other: &Self) {
        self.dropped.add(&other.dropped);
        self.repaired.add(&other.repaired);
        self.in_capsules += other.in_capsules;
        self.orders.add(&other.orders);
        self.resequenced.add(&other.resequenced);
        self.feedback.add(&other.feedback);
        self.fields_ignored += other.fields_ignored;
    }
}

/// The counters of a busy thread that users share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareStats {
    /// How often the thread became busy.
    pub busy: u64,
    /// How often a TCP connection was not read for a while, because its user had already got its part of the thread.
    pub waits: u64,
}

/// The counters of packets that travel beside tunnels' connections (`docs/design/wire.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BesideStats {
    /// Packets sent.
    pub sent: u64,
    /// Packets received and passed on.
    pub received: u64,
    /// Received packets that were dropped: forged, replayed or truncated ones, those from another address
    /// than the flow's client has, and those that came while too many waited.
    pub refused: u64,
}

impl BesideStats {
    /// Adds what another hop counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.refused += other.refused;
    }
}

/// The counters of TCP connections through tunnels. At a proxy these are the connections to targets,
/// at a client those of local programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpStats {
    /// Connections that were established end to end.
    pub opened: u64,
    /// Connections that are open at present.
    pub open: u64,
    /// Connections that were refused, or whose target could not be reached.
    pub failed: u64,
    /// Programs whose connection to a client's proxy port was refused, because they broke its protocol
    /// or did not show its password.
    pub programs_refused: u64,
    /// Connections that both ends finished.
    pub finished: u64,
    /// Connections that were reset by the target (at a proxy) or by the program (at a client).
    pub reset: u64,
    /// Connections that ended because their stream was reset, or their tunnel ended.
    pub aborted: u64,
    /// Bytes towards targets.
    pub to_target_bytes: u64,
    /// Bytes from targets.
    pub to_client_bytes: u64,
}

/// What became of the connections that peers wanted to open at a server, and were not simply
/// accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepting {
    /// Peers that were asked to prove their address (Retry, RFC 9000 §8.1.2).
    pub retried: u64,
    /// Handshakes that a server did not begin when it was asked, because their address prefix began too many. The peer
    /// asks again.
    pub over_prefix_pace: u64,
    /// Handshakes that it did not begin when it was asked, because all peers together began too many.
    pub over_pace: u64,
    /// Connections that were refused for lack of room.
    pub refused: u64,
    /// Connections that were closed to make room for new ones.
    pub displaced: u64,
    /// Connections that were closed because memory was short.
    pub closed_for_memory: u64,
    /// Handshakes that were not completed in time.
    pub handshakes_timed_out: u64,
}

/// The counters of reports on tunnels, which proxies send to clients, and clients send to origins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedbackStats {
    /// Reports sent, by a proxy to clients or by a client to an origin.
    pub sent: u64,
    /// Reports that arrived, each after none that is newer. Nobody need have used them: a client passes them on, and
    /// only the origin knows whether it follows them.
    pub received: u64,
    /// Reports that a congestion controller of this node has followed. Of origins, and of clients that upload.
    pub followed: u64,
    /// Reports received after a newer one, and ignored.
    pub stale: u64,
    /// Reports that were malformed or out of range, and ignored.
    pub malformed: u64,
}

impl FeedbackStats {
    /// Adds what another tunnel counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.followed += other.followed;
        self.stale += other.stale;
        self.malformed += other.malformed;
    }
}

/// The counters of connections whose peer violated the protocol, by the error code that closed
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    /// The transport error codes of QUIC (RFC 9000 §20.1).
    pub quic: u64,
    /// `H3_FRAME_ERROR` and `H3_FRAME_UNEXPECTED`.
    pub frames: u64,
    /// `H3_SETTINGS_ERROR` and `H3_MISSING_SETTINGS`.
    pub settings: u64,
    /// `H3_STREAM_CREATION_ERROR` and `H3_CLOSED_CRITICAL_STREAM`.
    pub streams: u64,
    /// The three error codes of QPACK (RFC 9204 §6).
    pub qpack: u64,
    /// `H3_DATAGRAM_ERROR`.
    pub datagrams: u64,
    /// `H3_ID_ERROR`.
    pub ids: u64,
    /// `H3_EXCESSIVE_LOAD` and all other codes.
    pub others: u64,
}

impl Broken {
    /// Counts a connection that was closed with this code.
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

    /// Returns the sum over all causes.
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

/// The counters of flows that have ended, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowsEnded {
    /// The client finished or reset the request.
    pub by_client: u64,
    /// The flow was idle for longer than [`Limits::flow_idle`](crate::limits::Limits::flow_idle).
    pub idle: u64,
    /// The operating system reported that the target cannot be reached.
    pub unreachable: u64,
    /// A capsule or a payload of the client was malformed.
    pub malformed: u64,
    /// The connection ended, and with it all its flows.
    pub with_connection: u64,
    /// The user of the flow has lost its right: the operator removed the token, the token has expired, or the
    /// bytes of the month were used up.
    pub revoked: u64,
    /// The client needed the place for another local program, and this flow had been silent for longest.
    pub for_others: u64,
}

/// The counters of requests that showed no right to use a proxy, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Denied {
    /// The request had no token. Browsers send a token only after such a request.
    pub no_token: u64,
    /// The request had a wrong token.
    pub wrong_token: u64,
    /// The request had a token of the right issuer that was no longer valid, or not yet.
    pub expired: u64,
    /// Too many wrong tokens had come from the client's address, so the proxy did not look at the
    /// request's token.
    pub ignored: u64,
}

/// The counters of dropped datagrams, by cause. A dropped datagram is not an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The tunnel's queue was full.
    pub queue_full: u64,
    /// The datagram did not fit a packet of the tunnel.
    pub too_large: u64,
    /// The Context ID was unknown (RFC 9298 §5).
    pub unknown_context: u64,
    /// The flow was unknown, or its request had not arrived yet and the buffer for early datagrams
    /// was full.
    pub unknown_flow: u64,
    /// The datagram was malformed: it had no Quarter Stream ID or no Context ID.
    pub malformed: u64,
    /// The datagram was older than the deadline of the other end of the tunnel.
    pub deadline: u64,
    /// Active queue management (AQM) dropped the datagram to keep the tunnel's queue short.
    pub standing_queue: u64,
    /// A listening socket had the largest number of local peers already.
    pub too_many_flows: u64,
    /// The proxy's thread was busy, and the user had already got more than its part of it.
    pub over_share: u64,
}

impl Dropped {
    /// Returns the sum over all causes.
    pub const fn total(&self) -> u64 {
        self.queue_full
            + self.too_large
            + self.unknown_context
            + self.unknown_flow
            + self.malformed
            + self.deadline
            + self.standing_queue
            + self.too_many_flows
            + self.over_share
    }
}

impl Dropped {
    /// Adds what another tunnel counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.queue_full += other.queue_full;
        self.too_large += other.too_large;
        self.unknown_context += other.unknown_context;
        self.unknown_flow += other.unknown_flow;
        self.malformed += other.malformed;
        self.deadline += other.deadline;
        self.standing_queue += other.standing_queue;
        self.too_many_flows += other.too_many_flows;
        self.over_share += other.over_share;
    }
}

/// How often a client chose each order of payloads for a repaired flow: when the flow began, and when it changed its
/// mind (mode auto).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// [`Order::Off`].
    pub off: u64,
    /// [`Order::Window`].
    pub window: u64,
    /// [`Order::Ordered`].
    pub ordered: u64,
}

impl Orders {
    pub(crate) const fn count(&mut self, order: Order) {
        match order {
            Order::Off => self.off += 1,
            Order::Window => self.window += 1,
            Order::Ordered => self.ordered += 1,
        }
    }

    pub(crate) const fn add(&mut self, other: &Self) {
        self.off += other.off;
        self.window += other.window;
        self.ordered += other.ordered;
    }
}

/// The counters of retransmitted HTTP Datagrams, and of lost ones that were not retransmitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Retransmissions, including probes.
    pub sent_again: u64,
    /// Retransmissions because no acknowledgement arrived and no other data was waiting.
    pub probes: u64,
    /// Lost datagrams that were not retransmitted, by cause.
    pub given_up: GivenUp,
    /// The largest number of bytes that one tunnel kept for retransmission.
    pub kept_bytes_max: u64,
}

/// The counters of lost datagrams that were not retransmitted, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenUp {
    /// The longest time for repairs was over.
    pub time: u64,
    /// The datagram was older than the deadline of the other end of the tunnel.
    pub deadline: u64,
    /// The number of retransmissions had reached the limit of the other end of the tunnel.
    pub limit: u64,
    /// There was no space to keep the datagram.
    pub room: u64,
    /// Too many datagrams were in flight, so the fate of this one was not tracked.
    pub unknown: u64,
}

impl GivenUp {
    /// Returns the sum over all causes.
    pub const fn total(&self) -> u64 {
        self.time + self.deadline + self.limit + self.room + self.unknown
    }
}

impl Repaired {
    /// Adds the counters of another tunnel.
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

/// The present state and the counters of one QUIC connection of a node. Packets and bytes are
/// QUIC's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStats {
    /// What carries the datagrams.
    pub datagrams: DatagramTransport,
    /// RFC 9002's `smoothed_rtt`.
    pub smoothed_rtt: Duration,
    /// RFC 9002's `congestion_window`.
    pub congestion_window: ByteCount,
    /// The pacing rate of the congestion controller, if it has one.
    pub pacing_rate: Option<Rate>,
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// UDP payloads received.
    pub received_datagrams: u64,
    /// ACK frames sent.
    pub sent_ack_frames: u64,
    /// What was sent in packets with keys of TLS, which are all but Initial packets.
    pub sent: Traffic,
    /// What was received in such packets.
    pub received: Traffic,
    /// What PEPs on the path have shown. `None`: no PEP has acknowledged a packet.
    pub domains: Option<DomainStats>,
}

/// What was sent or received on one QUIC connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes of these packets, with their headers and tags.
    pub bytes: u64,
    /// Packets with data of streams.
    pub stream_packets: u64,
    /// ACK frames.
    pub ack_frames: u64,
    /// Bytes of ACK frames.
    pub ack_bytes: u64,
    /// Packets that have ACK frames and otherwise nothing but padding.
    pub ack_only_packets: u64,
    /// Bytes of these packets, with their headers and tags.
    pub ack_only_bytes: u64,
}

/// The bytes of a chain of tunnels on the client's access link, in both directions, by the definitions
/// of the paper on nested acknowledgements (ANRW '25, §5.2). They are bytes of IPv4 packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// All bytes (the paper's T).
    pub total_bytes: u64,
    /// The bytes that the end-to-end connection alone would have taken.
    pub end_to_end_bytes: u64,
    /// The bytes of acknowledgements that tunnels cause: packets that contain nothing else on any layer,
    /// without the end-to-end packets in them, and ACK frames of tunnels in other packets.
    pub ack_bytes: u64,
    /// The ACK frames of all tunnels.
    pub ack_frames: u64,
    /// The end-to-end packets with data of streams.
    pub data_packets: u64,
}

impl Overhead {
    /// The share of all bytes that tunnels add.
    pub const fn share(&self) -> Ratio {
        Ratio::of(self.total_bytes.saturating_sub(self.end_to_end_bytes), self.total_bytes)
    }

    /// The share of all bytes that are acknowledgements because of tunnels.
    pub const fn ack_share(&self) -> Ratio {
        Ratio::of(self.ack_bytes, self.total_bytes)
    }
}
